//! A copy of what a watch tells, so that what vanished while the watch was broken is noticed too. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// What a watch tells.
#[derive(Debug)]
pub enum Feed<T> {
    /// A new list begins.
    Begin,
    /// Part of that list.
    Listed(T),
    /// The list is complete.
    Complete,
    /// Added or changed.
    Applied(T),
    /// Gone, as it was last.
    Deleted(T),
}

/// What follows from it.
#[derive(Debug, PartialEq)]
pub enum Delta<T, K> {
    /// There, new or changed.
    Put(T),
    /// Gone. `last` is what the watch said of it as it went, where it said anything.
    Gone {
        /// What was kept of it.
        kept: K,
        /// The object as it went; `None` when it was only missing from a list.
        last: Option<T>,
    },
    /// The first list is complete.
    Synced,
}

/// What is kept of each object, by UID. Owned by the fleet.
#[derive(Debug)]
pub struct Mirror<K> {
    kept: BTreeMap<String, K>,
    listing: Option<BTreeSet<String>>,
    synced: bool,
}

impl<K> Default for Mirror<K> {
    fn default() -> Self {
        Self { kept: BTreeMap::new(), listing: None, synced: false }
    }
}

impl<K: Clone> Mirror<K> {
    /// Takes what the watch tells. `keep` says under which UID an object goes and what is kept of it.
    pub fn take<T>(&mut self, feed: Feed<T>, keep: impl Fn(&T) -> (String, K)) -> Vec<Delta<T, K>> {
        match feed {
            Feed::Begin => {
                self.listing = Some(BTreeSet::new());
                Vec::new()
            }
            Feed::Listed(object) => {
                let (uid, kept) = keep(&object);
                if let Some(listing) = &mut self.listing {
                    listing.insert(uid.clone());
                }
                self.kept.insert(uid, kept);
                vec![Delta::Put(object)]
            }
            Feed::Applied(object) => {
                let (uid, kept) = keep(&object);
                self.kept.insert(uid, kept);
                vec![Delta::Put(object)]
            }
            Feed::Deleted(object) => {
                let (uid, _) = keep(&object);
                match self.kept.remove(&uid) {
                    Some(kept) => vec![Delta::Gone { kept, last: Some(object) }],
                    None => Vec::new(),
                }
            }
            Feed::Complete => self.complete(),
        }
    }

    fn complete<T>(&mut self) -> Vec<Delta<T, K>> {
        let listed = self.listing.take().unwrap_or_default();
        let missing: Vec<String> = self.kept.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        let mut deltas: Vec<Delta<T, K>> = missing
            .iter()
            .filter_map(|uid| self.kept.remove(uid))
            .map(|kept| Delta::Gone { kept, last: None })
            .collect();
        if !self.synced {
            self.synced = true;
            deltas.push(Delta::Synced);
        }
        deltas
    }

    /// Whether a list was complete once.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// What is kept, by UID.
    pub fn get(&self, uid: &str) -> Option<&K> {
        self.kept.get(uid)
    }

    /// All that is kept.
    pub fn values(&self) -> impl Iterator<Item = &K> {
        self.kept.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(
        mirror: &mut Mirror<u32>,
        feed: Feed<(&'static str, u32)>,
    ) -> Vec<Delta<(&'static str, u32), u32>> {
        mirror.take(feed, |(uid, value)| ((*uid).to_owned(), *value))
    }

    /// BL-103, BL-120: nothing is gone before a list is complete, and what a broken watch missed is found then.
    #[test]
    fn what_is_missing_from_a_complete_list_is_gone() {
        let mut mirror = Mirror::default();
        take(&mut mirror, Feed::Begin);
        assert_eq!(take(&mut mirror, Feed::Listed(("a", 1))), [Delta::Put(("a", 1))]);
        take(&mut mirror, Feed::Listed(("b", 1)));
        assert!(!mirror.is_synced());
        assert_eq!(take(&mut mirror, Feed::Complete), [Delta::Synced]);

        take(&mut mirror, Feed::Begin);
        take(&mut mirror, Feed::Listed(("b", 2)));
        assert_eq!(mirror.len(), 2, "a list that has only begun proves nothing");
        // The list breaks off and begins again.
        take(&mut mirror, Feed::Begin);
        take(&mut mirror, Feed::Listed(("c", 1)));
        take(&mut mirror, Feed::Listed(("b", 2)));
        assert_eq!(take(&mut mirror, Feed::Complete), [Delta::Gone { kept: 1, last: None }]);
        assert_eq!(mirror.values().count(), 2);
    }

    #[test]
    fn a_deletion_tells_the_object_as_it_went_and_only_once() {
        let mut mirror = Mirror::default();
        take(&mut mirror, Feed::Applied(("a", 1)));
        assert_eq!(
            take(&mut mirror, Feed::Deleted(("a", 2))),
            [Delta::Gone { kept: 1, last: Some(("a", 2)) }]
        );
        assert_eq!(take(&mut mirror, Feed::Deleted(("a", 2))), []);
    }
}
