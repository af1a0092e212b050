//! The kubelet endpoint of VNodes: `kubectl logs` of a VPod comes here, through the API server, and reads the journal.
//!
//! Off unless a serving certificate is named. Nobody is served without a name: callers show a client certificate or a
//! token that the API server knows, and the API server says whether they may.

mod authentication;
mod authorization;
mod logs;
mod query;
mod server;
mod settings;
mod verdicts;

pub use server::Endpoint;
pub use settings::{KubeletError, KubeletFlags, NodeAddressKind, Settings};

#[cfg(test)]
mod tests;
