//! What tells one state of a node from every other, for those who remember something about it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Where a node has its place in tables about nodes, and which state of it an entry there is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Small, and of no other node of the same state of the cluster.
    pub place: u32,
    /// Of no other node and no other state of this one, in the whole process. Never 0.
    pub stamp: u64,
}

impl Mark {
    /// For a node that is new or has changed.
    pub fn new(place: u32) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { place, stamp: LAST.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

/// Hands places out, those that were given back first.
#[derive(Debug, Clone, Default)]
pub struct Places {
    free: Vec<u32>,
    next: u32,
}

impl Places {
    /// A place that nobody has.
    pub fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// The place of a node that is gone.
    pub fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }
}
