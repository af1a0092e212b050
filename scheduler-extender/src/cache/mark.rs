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

/// What somebody remembers about nodes, each in one state. Lies side by side, by the places of nodes.
#[derive(Debug, Clone, Default)]
pub struct ByMark<T>(Vec<(u64, T)>);

impl<T: Clone + Default> ByMark<T> {
    /// What is remembered about a node in this state.
    pub fn get(&self, mark: Mark) -> Option<&T> {
        let (stamp, known) = self.0.get(usize::try_from(mark.place).ok()?)?;
        (*stamp == mark.stamp).then_some(known)
    }

    /// The same to be changed: the default where nothing is remembered yet.
    pub fn entry(&mut self, mark: Mark) -> Option<&mut T> {
        let place = usize::try_from(mark.place).ok()?;
        if self.0.len() <= place {
            self.0.resize(place + 1, (0, T::default()));
        }
        let (stamp, known) = self.0.get_mut(place)?;
        if *stamp != mark.stamp {
            (*stamp, *known) = (mark.stamp, T::default());
        }
        Some(known)
    }

    /// Forgets everything, and keeps the room.
    pub fn forget(&mut self) {
        self.0.fill((0, T::default()));
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
