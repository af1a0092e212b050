//! A small kubelet: it runs base Pods without containers.

mod runtime;

pub use runtime::{Exit, Idle, Running, Runtime, RuntimeError, Start};
