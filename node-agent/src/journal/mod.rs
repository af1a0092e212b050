//! The journal of VPods: what was done for their modules and what bases answered, as lines of text in memory. It is what
//! `kubectl logs` of a VPod shows.
//!
//! Actors write, the kubelet endpoint reads; neither waits for the other. No line holds credentials: URLs lose userinfo
//! and query, arguments of modules are only counted. The journal ends with the process; another one begins its own.

mod ring;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

pub use ring::{Limits, Line, Reading, Run};

use crate::arklet::shortened;
use ring::Store;

/// What is kept: some hundred lines of each VPod, and no more memory than an idle agent has to spare.
const LIMITS: Limits = Limits { vpod: 64 << 10, all: 16 << 20 };

/// A VPod, as far as a reader must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VPod {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The VNode that it is bound to.
    pub node: String,
}

/// A VPod whose lines can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which.
    pub vpod: VPod,
    /// Names of its containers.
    pub containers: Vec<Arc<str>>,
}

/// Takes lines and gives them back. Cheap to clone; the default one keeps nothing.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    bytes: Gauge,
}

impl Journal {
    /// One that keeps lines, within the usual limits; registers the metric `stowage_agent_journal_bytes`.
    pub fn new(registry: &mut Registry) -> Self {
        let journal = Self::limited(LIMITS);
        if let Some(shared) = &journal.shared {
            registry.sub_registry_with_prefix("stowage_agent").register(
                "journal_bytes",
                "Size of the journal of all VPods",
                shared.bytes.clone(),
            );
        }
        journal
    }

    /// One with limits of its own.
    pub fn limited(limits: Limits) -> Self {
        let shared = Shared { store: Mutex::new(Store::new(limits)), bytes: Gauge::default() };
        Self { shared: Some(Arc::new(shared)) }
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.shared.is_some()
    }

    /// Begins the lines of a VPod; says whether they were not begun yet.
    pub fn open(&self, vpod: &VPod, containers: impl Iterator<Item = String>) -> bool {
        self.change(|store| store.open(vpod, containers)).unwrap_or(false)
    }

    /// The VPod is gone, and with it its lines, once those who follow them have read the last.
    pub fn close(&self, uid: &str) {
        self.change(|store| store.close(uid));
    }

    /// Writes a line about a container, or about the whole VPod. `run` counts how often the module was put onto the base
    /// anew. The text is shortened and cleaned here.
    pub fn note(&self, uid: &str, container: Option<&str>, run: i32, at: Timestamp, text: &str) {
        if !self.is_on() {
            return;
        }
        let line = Line { at, text: shortened(text).into() };
        self.change(|store| store.push(uid, container, run, line));
    }

    /// The VPod of this name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Found> {
        let store = self.shared.as_ref()?.store();
        let (vpod, containers) = store.find(namespace, name)?;
        Some(Found { vpod: vpod.clone(), containers: containers.to_vec() })
    }

    /// The lines of a container from `from` on (0: the run's beginning); `None` where the VPod is gone or there was no
    /// such run.
    pub fn read(&self, uid: &str, container: &str, run: Run, from: u64) -> Option<Reading> {
        self.shared.as_ref()?.store().read(uid, container, run, from)
    }

    /// Tells of new lines and of the end. Whoever holds it keeps the last lines of a VPod that is gone.
    pub fn changes(&self, uid: &str) -> Option<watch::Receiver<()>> {
        self.shared.as_ref()?.store().changes(uid)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> Option<T> {
        let shared = self.shared.as_ref()?;
        let mut store = shared.store();
        let done = change(&mut store);
        shared.bytes.set(i64::try_from(store.bytes()).unwrap_or(i64::MAX));
        Some(done)
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        // Whoever panicked with it left whole lines.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes lines about one operation, from wherever it runs.
#[derive(Debug, Clone, Default)]
pub struct Pen {
    /// The journal.
    pub journal: Journal,
    /// UID of the VPod; `None`: nobody wants to read it.
    pub uid: Option<String>,
    /// The container; `None`: the whole VPod.
    pub container: Option<String>,
    /// See [`Journal::note`].
    pub run: i32,
}

impl Pen {
    /// Writes a line.
    pub fn note(&self, text: &str) {
        if let Some(uid) = &self.uid {
            self.journal.note(uid, self.container.as_deref(), self.run, Timestamp::now(), text);
        }
    }

    /// Whether lines arrive anywhere.
    pub fn is_on(&self) -> bool {
        self.uid.is_some() && self.journal.is_on()
    }
}

#[cfg(test)]
mod tests;
