//! By what is looked at: VPods, bases, the API server, and a fleet.

mod api;
mod bases;
mod fleet;
mod pods;
