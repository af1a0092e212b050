//! `stowage-agent`: posts VNodes for bases and runs the VPods bound to them through arklet.

pub mod arklet;
pub mod base;
pub mod discovery;
