//! A set of nodes.

use fixedbitset::FixedBitSet;

use super::mark::Mark;

/// Nodes by their places: a bit for each up to the last, so that a set of thousands is made and compared in a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSet(FixedBitSet);

impl NodeSet {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_nodes_are_the_same_set() {
        let set = |places: &[u32]| places.iter().map(|place| Mark::new(*place)).collect::<NodeSet>();
        assert_eq!(set(&[3, 700, 64]), set(&[64, 3, 700, 3]));
        assert_ne!(set(&[3, 700]), set(&[3, 700, 64]));
        let (mut grown, mark) = (set(&[1]), Mark::new(200));
        assert!(!grown.contains(mark) && grown.insert(mark) && !grown.insert(Mark::new(200)));
        assert!(grown.contains(mark) && !grown.is_empty() && set(&[]).is_empty());
    }
}
