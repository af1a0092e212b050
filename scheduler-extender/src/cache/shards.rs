//! A map that is cheap to clone and cheap to change right after it was cloned.
//!
//! With 5,000 Pods and 500 changes a second a plain map would be copied whole for each published snapshot. Here a
//! clone copies one pointer per shard, and a change copies only the shard it falls into.

use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

const SHARDS: usize = 256;

/// The hash of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    /// Of a name.
    pub(super) fn of(name: &str) -> Self {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        Self(HASHER.hash_one(name))
    }

    /// For a table.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// From other bits than those that find a place in a table.
    fn shard(self) -> usize {
        usize::try_from(self.0 >> 32).unwrap_or_default() % SHARDS
    }
}

type Shard<V> = HashTable<(Arc<str>, V)>;

/// A map from names to `V`, in shards shared between clones.
#[derive(Debug, Clone)]
pub struct Shards<V> {
    parts: Vec<Arc<Shard<V>>>,
    len: usize,
}

impl<V: Clone> Default for Shards<V> {
    fn default() -> Self {
        Self { parts: (0..SHARDS).map(|_| Arc::new(HashTable::new())).collect(), len: 0 }
    }
}

impl<V: Clone> Shards<V> {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&V> {
        let key = Key::of(name);
        let shard = self.parts.get(key.shard())?;
        shard.find(key.0, |(known, _)| **known == *name).map(|(_, value)| value)
    }

    /// Sets the value of a name; returns the old one.
    pub fn insert(&mut self, name: Arc<str>, value: V) -> Option<V> {
        let key = Key::of(&name);
        let shard = Arc::make_mut(self.parts.get_mut(key.shard())?);
        if let Some((_, old)) = shard.find_mut(key.0, |(known, _)| *known == name) {
            return Some(std::mem::replace(old, value));
        }
        shard.insert_unique(key.0, (name, value), |(known, _)| Key::of(known).0);
        self.len += 1;
        None
    }

    /// Removes a name; returns its value.
    pub fn remove(&mut self, name: &str) -> Option<V> {
        let key = Key::of(name);
        let shard = self.parts.get_mut(key.shard())?;
        shard.find(key.0, |(known, _)| **known == *name)?;
        let known = Arc::make_mut(shard).find_entry(key.0, |(known, _)| **known == *name).ok()?;
        let ((_, value), _) = known.remove();
        self.len -= 1;
        Some(value)
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.parts.iter().flat_map(|shard| shard.iter().map(|(name, value)| (name, value)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_map_like_any_other_and_clones_stay_as_they_were() {
        let (mut shards, mut plain) = (Shards::<usize>::default(), BTreeMap::new());
        let name = |n: usize| -> Arc<str> { format!("n{}", n % 700).into() };
        let mut before = Vec::new();
        for n in 0..3_000 {
            if n % 3 == 2 {
                assert_eq!(shards.remove(&name(n / 2)), plain.remove(&name(n / 2)));
            } else {
                assert_eq!(shards.insert(name(n), n), plain.insert(name(n), n));
            }
            if n % 1_000 == 0 {
                before.push((shards.clone(), plain.clone()));
            }
        }
        before.push((shards, plain));
        for (shards, plain) in before {
            let all: BTreeMap<_, _> = shards.iter().map(|(name, n)| (Arc::clone(name), *n)).collect();
            assert_eq!((&all, shards.len()), (&plain, plain.len()));
            assert!((0..700).all(|n| shards.get(&name(n)) == plain.get(&name(n))));
        }
    }
}
