//! The Nodes, side by side.
//!
//! A question names thousands of them, in an order of kube-scheduler's own. So what finds a name is small enough to stay
//! in the processor's cache, and all that is asked of most nodes is in one place.

use std::sync::Arc;

use hashbrown::HashTable;
use policy::contract::{BaseError, BaseFacts, BaseRevision, ModulePod};
use policy::version::Version;

use super::mark::{Mark, Places};
use super::shards::Key;

/// Rows that are copied together when one of them changes after the table was cloned.
const CHUNK: usize = 16;

/// A Node as far as placement needs it.
#[derive(Debug, Clone)]
pub enum NodeKind {
    /// One of our `VNode`s.
    Base(Arc<BaseFacts>),
    /// Any other Node.
    Ordinary,
    /// One of ours that does not say which base it stands for.
    Malformed(BaseError),
}

/// Module Pods bound to a Node.
pub(super) type BoundPods = Arc<[Arc<ModulePod>]>;

/// A Node and the module Pods bound to it.
#[derive(Debug, Clone)]
pub struct NodeEntry {
    /// `None`: Pods are bound to it, but the Node itself was not seen yet, or is gone.
    pub kind: Option<NodeKind>,
    /// Module Pods bound here and not finished, those being deleted included.
    pub pods: Arc<[Arc<ModulePod>]>,
    /// Tells it as it is from what it was and from others.
    pub mark: Mark,
    /// `allocatable.pods` of a base.
    slots: u32,
}

impl NodeEntry {
    /// What is known of the base; `None` where it is none.
    pub fn base(&self) -> Option<&BaseFacts> {
        match &self.kind {
            Some(NodeKind::Base(facts)) => Some(facts),
            Some(NodeKind::Ordinary | NodeKind::Malformed(_)) | None => None,
        }
    }

    /// All that a [`policy::Fleet`] is made from.
    pub(super) fn in_fleet(&self) -> Option<(Option<&Version>, Option<&BaseRevision>)> {
        self.base().map(|facts| (facts.version.as_deref(), facts.revision.as_ref()))
    }

    /// Whether the base has one slot, which is free.
    pub fn is_its_only_slot_free(&self) -> bool {
        self.slots == 1 && self.pods.is_empty()
    }
}

#[derive(Debug, Clone)]
struct Row {
    name: Arc<str>,
    entry: NodeEntry,
}

type Chunk = [Option<Row>; CHUNK];

/// Nodes by name. Cheap to clone, and cheap to change right after it was cloned: a change copies the rows beside it, and
/// only a Node that comes or goes the index.
#[derive(Debug, Clone, Default)]
pub struct Nodes {
    rows: Rows,
    /// Their places, found by their names.
    index: Arc<HashTable<u32>>,
    places: Places,
}

/// By the places of their marks; empty where a Node is gone.
#[derive(Debug, Clone, Default)]
struct Rows(Vec<Arc<Chunk>>);

impl Nodes {
    /// The Node of a name.
    pub fn get(&self, name: &str) -> Option<&NodeEntry> {
        let place = self.index.find(Key::of(name).bits(), |place| self.rows.is_of(*place, name))?;
        Some(&self.rows.get(*place)?.entry)
    }

    /// All of them, by their places.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &NodeEntry)> {
        let rows = self.rows.0.iter().flat_map(|chunk| chunk.iter().flatten());
        rows.map(|Row { name, entry }| (name, entry))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Sets what is known of a Node, which gets a new mark.
    pub(super) fn set(&mut self, name: &Arc<str>, kind: Option<NodeKind>, pods: BoundPods) {
        let slots = match &kind {
            Some(NodeKind::Base(facts)) => facts.allocatable_pods,
            Some(NodeKind::Ordinary | NodeKind::Malformed(_)) | None => 0,
        };
        let known = self.get(name).map(|entry| entry.mark.place);
        let place = known.unwrap_or_else(|| self.places.take(name));
        let entry = NodeEntry { kind, pods, mark: Mark::new(place), slots };
        self.rows.set(place, Some(Row { name: Arc::clone(name), entry }));
        if known.is_none() {
            let rows = &self.rows;
            let hash = |place: &u32| rows.get(*place).map_or(0, |row| Key::of(&row.name).bits());
            Arc::make_mut(&mut self.index).insert_unique(Key::of(name).bits(), place, hash);
        }
    }

    /// Forgets a Node. Its place is kept for it for a while.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(place) = self.get(name).map(|entry| entry.mark.place) else { return };
        let index = Arc::make_mut(&mut self.index);
        if let Ok(found) = index.find_entry(Key::of(name).bits(), |known| *known == place) {
            found.remove();
        }
        self.rows.set(place, None);
        self.places.give_back(name, place);
    }
}

impl Rows {
    fn get(&self, place: u32) -> Option<&Row> {
        let place = usize::try_from(place).ok()?;
        self.0.get(place / CHUNK)?.get(place % CHUNK)?.as_ref()
    }

    fn is_of(&self, place: u32, name: &str) -> bool {
        self.get(place).is_some_and(|row| *row.name == *name)
    }

    fn set(&mut self, place: u32, row: Option<Row>) {
        let Ok(place) = usize::try_from(place) else { return };
        if self.0.len() <= place / CHUNK {
            self.0.resize_with(place / CHUNK + 1, Arc::default);
        }
        let chunk = self.0.get_mut(place / CHUNK).map(Arc::make_mut);
        if let Some(old) = chunk.and_then(|chunk| chunk.get_mut(place % CHUNK)) {
            *old = row;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn name(number: usize) -> Arc<str> {
        format!("v{number}").into()
    }

    #[test]
    fn a_map_like_any_other_and_clones_stay_as_they_were() {
        let (mut nodes, mut stamps) = (Nodes::default(), BTreeMap::new());
        let mut before = Vec::new();
        for number in 0..600 {
            let name = name(number * 7 % 100);
            if number % 3 == 2 {
                nodes.remove(&name);
                stamps.remove(&name);
            } else {
                nodes.set(&name, Some(NodeKind::Ordinary), Arc::default());
                stamps.insert(Arc::clone(&name), nodes.get(&name).map(|entry| entry.mark.stamp));
            }
            if number % 100 == 0 {
                before.push((nodes.clone(), stamps.clone()));
            }
        }
        before.push((nodes, stamps));
        for (nodes, stamps) in before {
            assert_eq!((nodes.len(), nodes.is_empty()), (stamps.len(), stamps.is_empty()));
            let known = nodes.iter().map(|(name, entry)| (Arc::clone(name), Some(entry.mark.stamp)));
            assert_eq!(known.collect::<BTreeMap<_, _>>(), stamps);
            let found = |name: &Arc<str>| nodes.get(name).map(|entry| entry.mark.stamp);
            assert!((0..100).map(name).all(|name| found(&name) == stamps.get(&name).copied().flatten()));
        }
    }

    /// Places of Nodes that are gone are given to others after a while.
    #[test]
    fn nodes_come_and_go_without_end() {
        let mut nodes = Nodes::default();
        for number in 0..5_000 {
            nodes.set(&name(number), Some(NodeKind::Ordinary), Arc::default());
            if number >= 10 {
                nodes.remove(&name(number - 10));
            }
        }
        let known: BTreeMap<_, _> = nodes.iter().map(|(name, entry)| (&**name, entry.mark)).collect();
        assert_eq!(known.len(), 10);
        assert!(
            (0..5_000)
                .map(name)
                .all(|name| nodes.get(&name).map(|entry| entry.mark) == known.get(&*name).copied())
        );
        assert!(nodes.rows.0.len() * CHUNK < 1_100, "rows of Nodes that are gone are used again");
    }
}
