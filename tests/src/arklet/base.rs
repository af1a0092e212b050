//! One life of a simulated base, from the start of its JVM to its end. A restart makes a new one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Order;
use super::ark::Ark;
use super::faults::Faults;
use super::journal::Journal;
use super::metaspace::{Exhausted, Footprint, Metaspace};
use super::operations::{Locks, Operations};
use super::options::Options;
use super::serving::Serving;

/// What survives a restart, because it belongs to the test and not to the JVM.
#[derive(Debug, Clone)]
pub(super) struct Outside {
    pub options: Arc<Options>,
    pub journal: Journal,
    pub faults: Faults,
    pub orders: mpsc::Sender<Order>,
}

/// A running JVM. Each lock is held for a few statements, never across an await.
#[derive(Debug)]
pub(super) struct Base {
    pub outside: Outside,
    pub address: SocketAddr,
    pub started: Instant,
    pub workers: Vec<Semaphore>,
    pub life: CancellationToken,
    pub tasks: TaskTracker,
    pub serving: Serving,
    ark: Mutex<Ark>,
    metaspace: Mutex<Metaspace>,
    locks: Mutex<Locks>,
    operations: Mutex<Operations>,
    /// Calls since the metaspace ran full, plus one; 0 while it has not.
    calls_exhausted: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a base has decayed since its metaspace ran full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decay {
    Sound,
    /// Known modules are refused as repeated, others find no space, the JVM's figures hang.
    Exhausted,
    /// Its workers are dead: every connection is reset.
    Dead,
}

impl Base {
    pub(super) fn new(outside: Outside, address: SocketAddr, life: CancellationToken) -> Self {
        let options = &outside.options;
        let tasks = TaskTracker::new();
        Self {
            address,
            started: Instant::now(),
            workers: (0..options.workers.max(1)).map(|_| Semaphore::new(1)).collect(),
            serving: Serving::new(address.ip(), outside.faults.clone(), life.clone(), tasks.clone()),
            life,
            tasks,
            ark: Mutex::default(),
            metaspace: Mutex::new(Metaspace::new(options.max_metaspace, options.own_footprint)),
            locks: Mutex::default(),
            operations: Mutex::default(),
            calls_exhausted: AtomicU32::new(0),
            outside,
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.outside.options
    }

    pub(super) fn identity(&self) -> String {
        self.options().identity.clone().unwrap_or_else(|| self.address.ip().to_string())
    }

    /// The time by the clock of the base's machine.
    pub(super) fn clock(&self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_add(self.options().clock_offset).unwrap_or(now)
    }

    /// The same in epoch milliseconds, as in every time that a reply carries.
    pub(super) fn now(&self) -> i64 {
        self.clock().as_millisecond()
    }

    pub(super) fn ark(&self) -> MutexGuard<'_, Ark> {
        lock(&self.ark)
    }

    pub(super) fn metaspace(&self) -> MutexGuard<'_, Metaspace> {
        lock(&self.metaspace)
    }

    pub(super) fn locks(&self) -> MutexGuard<'_, Locks> {
        lock(&self.locks)
    }

    pub(super) fn operations(&self) -> MutexGuard<'_, Operations> {
        lock(&self.operations)
    }

    /// Loads a module's classes; the first failure marks the base for the rest of its life.
    pub(super) fn load(&self, footprint: Footprint) -> Result<(), Exhausted> {
        let loaded = self.metaspace().load(footprint);
        if loaded.is_err() {
            // A later failure does not start the decay anew.
            let _ = self.calls_exhausted.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        }
        loaded
    }

    /// Counts a call against what an exhausted JVM still manages.
    pub(super) fn decay(&self) -> Decay {
        if self.calls_exhausted.load(Ordering::SeqCst) == 0 {
            return Decay::Sound;
        }
        let calls = self.calls_exhausted.fetch_add(1, Ordering::SeqCst);
        if calls > self.options().calls_after_exhaustion { Decay::Dead } else { Decay::Exhausted }
    }

    /// Takes the base down after a time, unless it is down by then or rid of the module that does it.
    pub(super) fn exit_after(self: &Arc<Self>, wait: Duration, name: String, version: String) {
        let base = Arc::clone(self);
        self.tasks.spawn(async move {
            tokio::select! {
                () = base.life.cancelled() => {}
                () = tokio::time::sleep(wait) => {
                    if base.ark().find(&name, &version).is_none() {
                        return;
                    }
                    // The supervisor is gone only when the simulator is.
                    // A full mailbox holds such an order already.
                    let _ = base.outside.orders.try_send(Order::Exit);
                }
            }
        });
    }
}
