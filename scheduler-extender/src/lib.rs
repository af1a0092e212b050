//! `stowage-extender`: filters and scores `VNode`s for kube-scheduler.
//!
//! kube-scheduler asks over HTTP ([`http`]), in its own JSON ([`wire`]). Answers come from one immutable view of the
//! cluster ([`cache`]) and the policy in force ([`placement`]), with no call to an API server.

pub mod args;
pub mod base_limits;
pub mod cache;
pub mod explain;
pub mod http;
pub mod kinds;
pub mod metrics;
pub mod nudge;
pub mod placement;
pub mod policy_events;
pub mod reservations;
pub mod run;
pub mod shared;
pub mod waiting;
pub mod wire;
