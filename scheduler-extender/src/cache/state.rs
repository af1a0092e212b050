//! The state and its changes: pure, one owner.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use policy::Fleet;
use policy::contract::{ModulePod, SharedFacts};

use super::health::Health;
use super::nodes::{BoundPods, NodeEntry, NodeKind, Nodes};
use super::shards::Shards;
use super::watch::{Change, NodeUpdate, PodUpdate, Source};

/// All that is known. Cloned to be published.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Nodes by name.
    pub nodes: Nodes,
    /// Module Pods by `namespace/name`: a Pod made again under its name replaces the old one even when the deletion
    /// was never seen.
    pub pods: Shards<Arc<ModulePod>>,
    /// The watch of Nodes.
    pub nodes_health: Health,
    /// The watch of Pods.
    pub pods_health: Health,
    /// Counts changes that may let a Pod in: a base came or changed, a Pod came to its Node (others may need its modules),
    /// left it or began to.
    pub loosened: u64,
    nodes_listed: Option<Arc<HashSet<Arc<str>>>>,
    pods_listed: Option<Arc<HashSet<Arc<str>>>>,
    shared: SharedFacts,
    /// Bound module Pods by the names of their modules.
    by_module: Shards<Arc<Vec<Arc<ModulePod>>>>,
    /// Made when it is first asked for, and shared by all states with the same bases.
    fleet: Arc<OnceLock<Fleet>>,
}

impl State {
    /// Whether both first lists are complete.
    pub fn synced(&self) -> bool {
        self.nodes_health.synced && self.pods_health.synced
    }

    /// Whether Pods may have changed without our knowing: their watch fails, or is being caught up by a new list and what
    /// follows it.
    pub fn pods_in_doubt(&self, now: Instant) -> bool {
        let health = &self.pods_health;
        self.pods_listed.is_some() || health.is_catching_up(now) || health.is_failing(now)
    }

    /// What all bases are.
    pub fn fleet(&self) -> &Fleet {
        self.fleet.get_or_init(|| Fleet::of(self.nodes.iter().filter_map(|(_, entry)| entry.base())))
    }

    /// Module Pods that have a module of this name and are bound to whatever node.
    pub fn with_module(&self, name: &str) -> &[Arc<ModulePod>] {
        self.by_module.get(name).map_or(&[], |pods| pods)
    }

    /// Takes one change of a watch in.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Node(update) => {
                // A list that has begun may still hang: only its end is a success.
                match &mut self.nodes_listed {
                    Some(listed) => _ = Arc::make_mut(listed).insert(Arc::clone(&update.name)),
                    None => self.nodes_health.succeeded(),
                }
                self.set_node(update);
            }
            Change::NodeGone(name) => {
                self.nodes_health.succeeded();
                self.lose_node(&name);
            }
            Change::Pod(update) => {
                match &mut self.pods_listed {
                    Some(listed) => _ = Arc::make_mut(listed).insert(Arc::clone(&update.key)),
                    None => self.pods_health.succeeded(),
                }
                self.set_pod(update);
            }
            Change::PodGone(key) => {
                self.pods_health.succeeded();
                self.remove_pod(&key);
            }
            Change::ListStarts(Source::Nodes, now) => {
                self.nodes_health.lists(now);
                self.nodes_listed = Some(Arc::default());
            }
            Change::ListStarts(Source::Pods, now) => {
                self.pods_health.lists(now);
                self.pods_listed = Some(Arc::default());
            }
            Change::ListEnds(source, now) => self.list_ends(source, now),
            Change::Failed(Source::Nodes, now) => self.nodes_health.failed(now),
            Change::Failed(Source::Pods, now) => self.pods_health.failed(now),
            Change::Opened(Source::Nodes, now) => self.nodes_health.opened(now),
            Change::Opened(Source::Pods, now) => self.pods_health.opened(now),
        }
    }

    /// What a new list does not name is gone, though nobody said so.
    fn list_ends(&mut self, source: Source, now: Instant) {
        match source {
            Source::Nodes => {
                self.nodes_health.listed(now);
                let Some(listed) = self.nodes_listed.take() else { return };
                let known = self.nodes.iter().filter(|(_, entry)| entry.kind.is_some());
                for name in missing(known.map(|(name, _)| name), &listed) {
                    self.lose_node(&name);
                }
            }
            Source::Pods => {
                self.pods_health.listed(now);
                let Some(listed) = self.pods_listed.take() else { return };
                for key in missing(self.pods.iter().map(|(key, _)| key), &listed) {
                    self.remove_pod(&key);
                }
            }
        }
    }

    fn set_node(&mut self, update: NodeUpdate) {
        let NodeUpdate { name, mut kind } = update;
        // Other Nodes change all the time, and take no module Pod.
        if let NodeKind::Base(facts) = &mut kind {
            self.loosened += 1;
            if let Some(facts) = Arc::get_mut(facts) {
                self.shared.share(facts);
            }
        }
        self.change_node(&name, |_, pods| (Some(kind), pods));
    }

    /// What is bound to it stays bound to it.
    fn lose_node(&mut self, name: &Arc<str>) {
        if self.nodes.get(name).is_some() {
            self.change_node(name, |_, pods| (None, pods));
        }
    }

    fn set_pod(&mut self, update: PodUpdate) {
        let PodUpdate { key, pod } = update;
        let Some(pod) = pod.filter(|pod| !pod.terminal) else { return self.remove_pod(&key) };
        if self.pods.get(&key).is_some_and(|old| **old == *pod) {
            return;
        }
        self.remove_pod(&key);
        if let Some(node) = &pod.node_name {
            self.loosened += 1;
            self.change_pods(node, |pods| pods.iter().chain([&pod]).cloned().collect());
            self.change_modules(&pod, |pods| {
                // Once, though it may have two modules of one name.
                if pods.last().is_none_or(|last| !Arc::ptr_eq(last, &pod)) {
                    pods.push(Arc::clone(&pod));
                }
            });
        }
        self.pods.insert(key, pod);
    }

    fn remove_pod(&mut self, key: &str) {
        let Some(old) = self.pods.remove(key) else { return };
        if let Some(node) = &old.node_name {
            self.loosened += 1;
            self.change_pods(node, |pods| {
                pods.iter().filter(|pod| !Arc::ptr_eq(pod, &old)).cloned().collect()
            });
            self.change_modules(&old, |pods| pods.retain(|pod| !Arc::ptr_eq(pod, &old)));
        }
    }

    fn change_modules(&mut self, pod: &ModulePod, change: impl Fn(&mut Vec<Arc<ModulePod>>)) {
        for module in &pod.modules {
            let mut pods = self.by_module.remove(&module.name).unwrap_or_default();
            change(Arc::make_mut(&mut pods));
            if !pods.is_empty() {
                self.by_module.insert(Arc::clone(&module.name), pods);
            }
        }
    }

    fn change_pods(&mut self, node: &Arc<str>, change: impl FnOnce(&BoundPods) -> BoundPods) {
        self.change_node(node, |kind, pods| (kind, change(&pods)));
    }

    fn change_node(
        &mut self,
        name: &Arc<str>,
        change: impl FnOnce(Option<NodeKind>, BoundPods) -> (Option<NodeKind>, BoundPods),
    ) {
        let old = self.nodes.get(name).cloned();
        let (kind, pods) = old.clone().map_or_else(Default::default, |entry| (entry.kind, entry.pods));
        let (kind, pods) = change(kind, pods);
        if kind.is_none() && pods.is_empty() {
            self.nodes.remove(name);
        } else {
            self.nodes.set(name, kind, pods);
        }
        let is_as_before =
            old.as_ref().and_then(NodeEntry::in_fleet) == self.nodes.get(name).and_then(NodeEntry::in_fleet);
        if !is_as_before {
            self.fleet = Arc::default();
        }
    }
}

fn missing<'a>(known: impl Iterator<Item = &'a Arc<str>>, listed: &HashSet<Arc<str>>) -> Vec<Arc<str>> {
    known.filter(|name| !listed.contains(*name)).cloned().collect()
}
