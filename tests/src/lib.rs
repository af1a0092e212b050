//! The test harness.

pub mod fetch;
pub mod kubelet;
mod leash;
pub mod logs;
pub mod process;
pub mod wait;
pub mod workdir;
