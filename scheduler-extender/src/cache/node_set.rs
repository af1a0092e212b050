//! A set of nodes.

use fixedbitset::FixedBitSet;

use super::mark::Mark;

/// Nodes by their places: a bit for each, so that a set of thousands is made and compared in a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSet(FixedBitSet);

impl NodeSet {
    /// None yet, with room for so many places. Sets with different room are not equal.
    pub fn with_capacity(places: usize) -> Self {
        Self(FixedBitSet::with_capacity(places))
    }

    /// Adds one. Whether it was not in yet.
    pub fn insert(&mut self, mark: Mark) -> bool {
        let is_new = !self.contains(mark);
        if let Ok(place) = usize::try_from(mark.place) {
            self.0.grow_and_insert(place);
        }
        is_new
    }

    /// Whether a node is in, in whatever state.
    pub fn contains(&self, mark: Mark) -> bool {
        usize::try_from(mark.place).is_ok_and(|place| self.0.contains(place))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_clear()
    }
}

impl FromIterator<Mark> for NodeSet {
    fn from_iter<I: IntoIterator<Item = Mark>>(marks: I) -> Self {
        let mut set = Self::default();
        for mark in marks {
            set.insert(mark);
        }
        set
    }
}
