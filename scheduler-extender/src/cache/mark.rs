//! What tells one state of a node from every other, for those who remember something about it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shards::Key;

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

    /// How many nodes there is room for.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is room for none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets everything, and keeps the room.
    pub fn forget(&mut self) {
        self.0.fill((0, T::default()));
    }
}

/// So many places of nodes that are gone are kept for them before any is given to another. Many times what goes while a
/// placement is on its way.
const KEPT: usize = 1_024;

/// Hands places out. A node that is made again has the place that it had, because who remembers something about the node
/// of that name may mean it still; after a thousand others the place is given to another.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Of nodes that are gone, the one that went first at the front. Shared, because it seldom changes.
    left: Arc<VecDeque<(Key, u32)>>,
    next: u32,
}

impl Places {
    /// A place for a node that is new.
    pub fn take(&mut self, name: &str) -> u32 {
        let key = Key::of(name);
        let known = self.left.iter().rposition(|(left, _)| *left == key);
        let place = match known {
            Some(index) => Arc::make_mut(&mut self.left).remove(index),
            None if self.left.len() > KEPT => Arc::make_mut(&mut self.left).pop_front(),
            None => None,
        };
        place.map_or_else(
            || {
                self.next += 1;
                self.next - 1
            },
            |(_, place)| place,
        )
    }

    /// The place of a node that is gone.
    pub fn give_back(&mut self, name: &str, place: u32) {
        Arc::make_mut(&mut self.left).push_back((Key::of(name), place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_kept_for_its_node_for_a_while() {
        let mut places = Places::default();
        let name = |n: usize| format!("v{n}");
        let taken: Vec<u32> = (0..=KEPT).map(|n| places.take(&name(n))).collect();
        assert!(taken.iter().copied().eq(0..=1_024));
        let go = |places: &mut Places, range: std::ops::Range<usize>| {
            range.for_each(|n| places.give_back(&name(n), taken[n]));
        };
        go(&mut places, 0..KEPT);
        assert_eq!(places.take("other"), 1_025, "none is given to another yet");
        assert_eq!(places.take("v7"), 7, "made again");
        go(&mut places, 7..8);
        go(&mut places, KEPT..KEPT + 1);
        assert_eq!(places.take("another"), 0, "that of the one that went first");
        assert_eq!(places.take("v0"), 1_026, "which comes too late");
        assert_eq!((places.take("v1"), places.take("v1024")), (1, 1_024));
    }
}
