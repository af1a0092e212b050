//! The lines of all VPods in memory, bounded for each and in all. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;

use super::VPod;

/// What a line costs beside its text.
const OVERHEAD: usize = 96;

/// How many bytes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of one VPod.
    pub vpod: usize,
    /// Of all.
    pub all: usize,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When it was written.
    pub at: Timestamp,
    /// What happened, on one line, without credentials.
    pub text: Arc<str>,
}

/// Which lines of a container are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Since the module was put onto the base for the last time.
    Current,
    /// Of the time before: the base was restarted, or another version was released in place.
    Previous,
}

/// Lines from a place on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The lines, oldest first.
    pub lines: Vec<Line>,
    /// Where the next reading begins.
    pub next: u64,
    /// Lines were dropped between the place asked for and the first that is left.
    pub gap: bool,
    /// The VPod is gone: no line will follow.
    pub closed: bool,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    container: Option<Arc<str>>,
    line: Line,
}

impl Entry {
    fn cost(&self) -> usize {
        self.line.text.len().saturating_add(OVERHEAD)
    }
}

/// Where the runs of a container begin.
#[derive(Debug, Clone, Copy)]
struct Runs {
    run: i32,
    since: u64,
    previous: Option<u64>,
}

/// The lines of one VPod.
#[derive(Debug)]
struct Ring {
    vpod: VPod,
    containers: Vec<Arc<str>>,
    entries: VecDeque<Entry>,
    bytes: usize,
    next: u64,
    runs: BTreeMap<Arc<str>, Runs>,
    closed: bool,
    changed: watch::Sender<()>,
}

impl Ring {
    fn new(vpod: VPod, containers: Vec<Arc<str>>) -> Self {
        let changed = watch::Sender::new(());
        let (entries, runs) = (VecDeque::new(), BTreeMap::new());
        Self { vpod, containers, entries, bytes: 0, next: 0, runs, closed: false, changed }
    }

    /// Drops the oldest lines until at most `limit` bytes are left; gives back how many bytes that freed.
    fn trim(&mut self, limit: usize) -> usize {
        let before = self.bytes;
        while self.bytes > limit {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.cost());
        }
        before.saturating_sub(self.bytes)
    }

    fn push(&mut self, container: Option<Arc<str>>, run: i32, line: Line) {
        let number = self.next;
        self.next = number.saturating_add(1);
        if let Some(container) = &container {
            let runs =
                self.runs.entry(Arc::clone(container)).or_insert(Runs { run, since: 0, previous: None });
            if run > runs.run {
                *runs = Runs { run, since: number, previous: Some(runs.since) };
            }
        }
        let entry = Entry { number, container, line };
        self.bytes = self.bytes.saturating_add(entry.cost());
        self.entries.push_back(entry);
    }

    /// First and, where it is over, last number (exclusive) of a run; `None` where there was none before.
    fn bounds(&self, container: &str, run: Run) -> Option<(u64, u64)> {
        let runs = self.runs.get(container).copied();
        match run {
            Run::Current => Some((runs.map_or(0, |runs| runs.since), u64::MAX)),
            Run::Previous => runs.and_then(|runs| Some((runs.previous?, runs.since))),
        }
    }
}

/// The lines of all VPods.
#[derive(Debug)]
pub(super) struct Store {
    limits: Limits,
    rings: HashMap<Arc<str>, Ring>,
    /// UID by namespace and name: of VPods of one name the one that was opened last.
    names: HashMap<(String, String), Arc<str>>,
    bytes: usize,
}

impl Store {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, rings: HashMap::new(), names: HashMap::new(), bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Begins the lines of a VPod; says whether it was not there yet.
    pub(super) fn open(&mut self, vpod: &VPod, containers: impl Iterator<Item = String>) -> bool {
        let uid: Arc<str> = vpod.uid.as_str().into();
        if self.rings.get(&uid).is_some_and(|ring| !ring.closed) {
            return false;
        }
        let key = (vpod.namespace.clone(), vpod.name.clone());
        if let Some(before) = self.names.insert(key, Arc::clone(&uid)) {
            self.close(&before);
        }
        let ring = Ring::new(vpod.clone(), containers.map(Arc::from).collect());
        self.remove(&uid);
        self.rings.insert(uid, ring);
        true
    }

    /// Nothing follows for this VPod. Its lines stay only for those who are reading them.
    pub(super) fn close(&mut self, uid: &str) {
        if let Some(ring) = self.rings.get_mut(uid) {
            ring.closed = true;
            ring.changed.send_replace(());
            let key = (ring.vpod.namespace.clone(), ring.vpod.name.clone());
            if self.names.get(&key).is_some_and(|named| **named == *uid) {
                self.names.remove(&key);
            }
        }
        let unread: Vec<_> = self
            .rings
            .iter()
            .filter(|(_, ring)| ring.closed && ring.changed.receiver_count() == 0)
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in unread {
            self.remove(&uid);
        }
    }

    fn remove(&mut self, uid: &str) {
        if let Some(ring) = self.rings.remove(uid) {
            self.bytes = self.bytes.saturating_sub(ring.bytes);
        }
    }

    pub(super) fn push(&mut self, uid: &str, container: Option<&str>, run: i32, line: Line) {
        let Some(ring) = self.rings.get_mut(uid).filter(|ring| !ring.closed) else { return };
        let container = match container {
            // One that the Pod does not have could be asked for by nobody.
            Some(name) => match ring.containers.iter().find(|known| ***known == *name) {
                Some(known) => Some(Arc::clone(known)),
                None => return,
            },
            None => None,
        };
        let before = ring.bytes;
        ring.push(container, run, line);
        ring.trim(self.limits.vpod);
        ring.changed.send_replace(());
        self.bytes = self.bytes.saturating_sub(before).saturating_add(ring.bytes);
        if self.bytes > self.limits.all {
            self.make_room();
        }
    }

    /// Everybody keeps an equal share at most, so that those who talk much lose theirs first. What is freed beyond need
    /// keeps this from happening with every line.
    fn make_room(&mut self) {
        let share = self.limits.all / 8 * 7 / self.rings.len().max(1);
        let freed: usize = self.rings.values_mut().map(|ring| ring.trim(share)).sum();
        self.bytes = self.bytes.saturating_sub(freed);
    }

    pub(super) fn find(&self, namespace: &str, name: &str) -> Option<(&VPod, &[Arc<str>])> {
        let uid = self.names.get(&(namespace.to_owned(), name.to_owned()))?;
        self.rings.get(uid).map(|ring| (&ring.vpod, &*ring.containers))
    }

    pub(super) fn changes(&self, uid: &str) -> Option<watch::Receiver<()>> {
        self.rings.get(uid).map(|ring| ring.changed.subscribe())
    }

    pub(super) fn read(&self, uid: &str, container: &str, run: Run, from: u64) -> Option<Reading> {
        let ring = self.rings.get(uid)?;
        let (first, end) = ring.bounds(container, run)?;
        // A run that ends while it is followed goes on into the next.
        let from = if from == 0 { first } else { from };
        let oldest = ring.entries.front().map_or(ring.next, |entry| entry.number);
        let lines = ring
            .entries
            .iter()
            .filter(|entry| (from..end).contains(&entry.number))
            .filter(|entry| entry.container.as_deref().is_none_or(|name| name == container))
            .map(|entry| entry.line.clone())
            .collect();
        Some(Reading { lines, next: ring.next, gap: oldest > from, closed: ring.closed })
    }
}
