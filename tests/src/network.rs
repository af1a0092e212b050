//! Addresses of bases and ports of servers.
//!
//! Cargo runs the `e2e_*` test binaries through `tests/runner.sh`, each in a network namespace of its own, where every
//! address of 10.244.0.0/16 is local. So each base Pod listens on its own address, and EndpointSlices, which refuse
//! loopback addresses, accept it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU16, AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::controlplane::binaries::{self, BinariesError};

/// The range of base addresses.
pub const RANGE: &str = "10.244.0.0/16";
const RANGE_START: u32 = u32::from_be_bytes([10, 244, 0, 0]);
/// Set by the runner inside the namespace.
const INSIDE: &str = "STOWAGE_NETNS";

/// Why base addresses or ports are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The program was not started by the runner.
    #[error(
        "addresses of {RANGE} are not local: start this through cargo, whose runner tests/runner.sh makes a network \
         namespace (Linux, `unshare` from util-linux)"
    )]
    Outside,
    /// The control plane binary that sets up the namespace is missing.
    #[error("the network namespace could not be set up: {0}")]
    Binaries(#[from] BinariesError),
    /// It failed.
    #[error("the network namespace could not be set up: {0}")]
    Setup(String),
    /// This program could not be started again inside a namespace.
    #[error("the network namespace could not be entered: {0}")]
    Enter(io::Error),
    /// All 65,000 addresses were handed out.
    #[error("all addresses of {RANGE} are in use")]
    NoAddress,
    /// Every port was taken.
    #[error("no free port: {0}")]
    NoPort(io::Error),
}

/// Whether the runner gave this program a namespace of its own.
pub(crate) fn in_namespace() -> bool {
    std::env::var(INSIDE).as_deref() == Ok("inside")
}

/// Returns inside a network namespace; outside of one, this process is replaced by the same program in a new one. For
/// programs that are not started through cargo's runner.
pub fn enter() -> Result<(), NetworkError> {
    if in_namespace() {
        return Ok(());
    }
    // A first build needs the network, which the namespace has not.
    binaries::locate()?;
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("runner.sh");
    let program = std::env::current_exe().map_err(NetworkError::Enter)?;
    let error = Command::new(runner).arg(program).args(std::env::args_os().skip(1)).env(INSIDE, "on").exec();
    Err(NetworkError::Enter(error))
}

/// Whether an address of the range can be reached by its listener's neighbours. Listening alone proves nothing where
/// "lo" is down or binding to foreign addresses is allowed.
fn is_local() -> bool {
    let reach = || -> io::Result<()> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::from(RANGE_START + 1), 0)))?;
        TcpStream::connect_timeout(&listener.local_addr()?, Duration::from_secs(1)).map(drop)
    };
    reach().is_ok()
}

/// Checks that base addresses are local, and makes them so in a namespace whose runner found no `ip` command.
/// Blocks, at the first call only.
pub fn ensure() -> Result<(), NetworkError> {
    if is_local() {
        return Ok(());
    }
    if !in_namespace() {
        return Err(NetworkError::Outside);
    }
    let output = binaries::locate()?
        .loopback()?
        .arg(RANGE)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| NetworkError::Setup(error.to_string()))?;
    if output.status.success() && is_local() {
        return Ok(());
    }
    Err(NetworkError::Setup(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// An address for one base, never given twice by this process. (Pods keep theirs over container restarts.)
pub fn allocate_ip() -> Result<Ipv4Addr, NetworkError> {
    static NEXT: AtomicU32 = AtomicU32::new(256); // 10.244.1.0; the first 256 are for other uses
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        if offset >= 0xffff {
            return Err(NetworkError::NoAddress);
        }
        // .0 and .255 look like mistakes to people and to some programs.
        if !matches!(offset & 0xff, 0 | 0xff) {
            return Ok(Ipv4Addr::from(RANGE_START + offset));
        }
    }
}

/// A port on 127.0.0.1 that nobody listens on, never given twice by this process. Below the range of outgoing
/// connections, which could otherwise take it first.
pub fn free_port() -> Result<u16, NetworkError> {
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 15_000;
    static START: OnceLock<u16> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that share a network namespace begin in different places.
    let start = *START.get_or_init(|| u16::try_from(std::process::id() % 150).unwrap_or(0) * 100);
    let mut last = io::Error::other("none tried");
    for _ in 0..COUNT {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(start) % COUNT;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, FIRST + offset)) {
            Ok(_) => return Ok(FIRST + offset),
            Err(error) => last = error,
        }
    }
    Err(NetworkError::NoPort(last))
}

/// Whether a program is installed that knows the command `version`.
pub(crate) fn is_installed(program: &str) -> bool {
    Command::new(program)
        .arg("version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn addresses_and_ports_are_given_once() {
        let addresses: HashSet<Ipv4Addr> = (0..1000).map(|_| allocate_ip().unwrap()).collect();
        assert_eq!(addresses.len(), 1000);
        assert!(addresses.iter().all(|ip| ip.octets()[..2] == [10, 244] && ip.octets()[3] != 0));
        let ports: HashSet<u16> = (0..20).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 20);
        assert!(ports.iter().all(|port| (15_000..30_000).contains(port)));
    }
}
