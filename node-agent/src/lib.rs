//! `stowage-agent`: posts VNodes for bases and runs the VPods bound to them through arklet.

/// Ends a test build here when this point was armed; nothing at all in every other build.
#[cfg(feature = "fault-points")]
macro_rules! fault_point {
    ($point:ident) => {
        $crate::fault::FaultPoint::$point.reached()
    };
}
#[cfg(not(feature = "fault-points"))]
macro_rules! fault_point {
    ($point:ident) => {};
}

pub mod app;
pub mod args;
pub mod arklet;
pub mod audit;
pub mod base;
mod beat;
pub mod brake;
pub mod discovery;
pub mod event;
pub mod failure;
#[cfg(feature = "fault-points")]
pub mod fault;
pub mod fitting;
pub mod fleet;
pub mod healing;
pub mod journal;
pub mod kubelet;
pub mod lease;
pub mod metrics;
mod named;
pub mod policies;
pub mod preflight;
pub mod retire;
pub mod rules;
pub mod sidecar;
mod trim;
pub mod vnode;
pub mod vpod;
pub mod watches;
