//! A simulated base: the HTTP operations API of arklet on an address, to the letter of the real one, with module
//! jars really downloaded and read, but no JVM.
//!
//! One [`Simulator`] costs two tasks and a listening socket while nobody talks to it. It holds a [`Journal`] of what
//! it was asked, and [`Faults`] that a test sets while it runs. A restart loses modules and operation records, as
//! in a JVM; journal and faults stay, because they belong to the test.

mod ark;
mod base;
mod command;
mod download;
mod faults;
mod health;
mod heartbeat;
mod http;
mod input;
mod install;
mod journal;
mod metaspace;
mod operations;
mod options;
mod plan;
mod request;
mod serving;
mod supervisor;
mod throwable;
mod uninstall;

use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use ark::BizState;
pub use faults::{Fault, FaultId, Faults, On};
pub use journal::{Answer, Entry, Journal, NotSeen};
pub use metaspace::Footprint;
pub use options::{AfterExit, BaseField, Options, Records, Release, SecondVersion};
pub use serving::Traffic;
pub use throwable::Throwable;

use base::{Base, Outside};
use supervisor::Supervisor;

/// Orders that wait for the supervisor.
const WAITING_ORDERS: usize = 16;

/// A base cannot be started.
#[derive(Debug, Error)]
pub enum SimulatorError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address that was asked for.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The simulator is stopped.
    #[error("the simulator is stopped")]
    Stopped,
}

/// What the supervisor is told.
#[derive(Debug)]
enum Order {
    /// End the JVM.
    Down(oneshot::Sender<()>),
    /// Start the JVM if it is down.
    Up(oneshot::Sender<Result<(), SimulatorError>>),
    /// The JVM ends by itself.
    Exit,
}

/// How a base has fared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lives {
    /// Times that its JVM was started.
    pub starts: u64,
    /// Times that its JVM ended by itself.
    pub exits: u64,
}

/// A module on a base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Name, as in its jar.
    pub name: String,
    /// Version, as in its jar.
    pub version: String,
    /// State.
    pub state: BizState,
}

/// A simulated base. Dropping it ends the base.
#[derive(Debug)]
pub struct Simulator {
    addr: SocketAddr,
    journal: Journal,
    faults: Faults,
    orders: mpsc::Sender<Order>,
    current: watch::Receiver<Option<Arc<Base>>>,
    lives: watch::Receiver<Lives>,
    _life: DropGuard,
}

impl Simulator {
    /// Starts a base.
    ///
    /// # Errors
    /// [`SimulatorError::Listen`] when its address is in use or not of this machine.
    pub async fn start(options: Options) -> Result<Self, SimulatorError> {
        let (orders, inbox) = mpsc::channel(WAITING_ORDERS);
        let outside = Outside {
            options: Arc::new(options),
            journal: Journal::default(),
            faults: Faults::default(),
            orders: orders.clone(),
        };
        let life = CancellationToken::new();
        let (journal, faults) = (outside.journal.clone(), outside.faults.clone());
        let (supervisor, addr, current, lives) = Supervisor::start(outside, inbox, life.clone()).await?;
        tokio::spawn(supervisor.run());
        Ok(Self { addr, journal, faults, orders, current, lives, _life: life.drop_guard() })
    }

    /// Where arklet listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where arklet listens, as a URL without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// What the base was asked.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What goes wrong.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Starts and exits of the JVM, to be waited on.
    pub fn lives(&self) -> watch::Receiver<Lives> {
        self.lives.clone()
    }

    fn base(&self) -> Option<Arc<Base>> {
        self.current.borrow().clone()
    }

    /// Whether the JVM runs.
    pub fn is_up(&self) -> bool {
        self.base().is_some()
    }

    /// The modules on the base; none while it is down.
    pub fn modules(&self) -> Vec<Module> {
        let Some(base) = self.base() else { return Vec::new() };
        let ark = base.ark();
        let module = |biz: &&ark::Biz| Module {
            name: biz.name.clone(),
            version: biz.version.clone(),
            state: biz.state,
        };
        ark.modules().iter().map(module).collect()
    }

    /// The state of one version of a module.
    pub fn state(&self, name: &str, version: &str) -> Option<BizState> {
        self.base()?.ark().find(name, version).map(|biz| biz.state)
    }

    /// What a module has served over HTTP since the JVM started.
    pub fn traffic(&self, name: &str, version: &str) -> Traffic {
        self.base().map_or_else(Traffic::default, |base| base.serving.traffic(&format!("{name}:{version}")))
    }

    /// Used metaspace in bytes; 0 while the base is down.
    pub fn metaspace_used(&self) -> u64 {
        self.base().map_or(0, |base| base.metaspace().used())
    }

    /// Collects what uninstalled modules have left in the metaspace.
    pub fn collect_garbage(&self) {
        if let Some(base) = self.base() {
            base.metaspace().collect();
        }
    }

    /// Ends the JVM: connections close, the port refuses, all is forgotten.
    ///
    /// # Errors
    /// [`SimulatorError::Stopped`] when the simulator's runtime is gone.
    pub async fn crash(&self) -> Result<(), SimulatorError> {
        let (done, waits) = oneshot::channel();
        self.orders.send(Order::Down(done)).await.map_err(|_| SimulatorError::Stopped)?;
        waits.await.map_err(|_| SimulatorError::Stopped)
    }

    /// Starts the JVM again, without modules; nothing if it runs.
    ///
    /// # Errors
    /// [`SimulatorError::Listen`] when another program has taken the port meanwhile.
    pub async fn boot(&self) -> Result<(), SimulatorError> {
        let (done, waits) = oneshot::channel();
        self.orders.send(Order::Up(done)).await.map_err(|_| SimulatorError::Stopped)?;
        waits.await.map_err(|_| SimulatorError::Stopped)?
    }

    /// [`crash`](Self::crash), then [`boot`](Self::boot).
    ///
    /// # Errors
    /// As these two.
    pub async fn restart(&self) -> Result<(), SimulatorError> {
        self.crash().await?;
        self.boot().await
    }
}
