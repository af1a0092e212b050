//! The demo's own network namespace.

use std::{io, os::unix::process::CommandExt, path::Path, process::Command};

use super::DemoError;
use crate::controlplane::binaries;

/// Set by `tests/runner.sh`.
const INSIDE: &str = "STOWAGE_NETNS";

/// Returns inside a network namespace made for the demo; outside of one, this process is replaced by the demo inside
/// a new one.
pub fn enter() -> Result<(), DemoError> {
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == "inside") {
        return Ok(());
    }
    // A first build needs the network, which the namespace has not.
    binaries::locate().map_err(|error| DemoError::Place(io::Error::other(error)))?;
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("runner.sh");
    let program = std::env::current_exe().map_err(DemoError::Place)?;
    let error = Command::new(runner).arg(program).args(std::env::args_os().skip(1)).env(INSIDE, "on").exec();
    Err(DemoError::Place(error))
}
