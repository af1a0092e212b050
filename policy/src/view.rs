//! A base as a decision sees it: facts of the Node, Pods bound to it, and placements just made.

use std::sync::Arc;

use crate::{
    contract::{BaseFacts, InventoryModule, ModulePod},
    version::Version,
};

/// What is known of one base when a Pod knocks.
#[derive(Clone, Copy, Debug)]
pub struct BaseView<'a> {
    /// What the Node says.
    pub facts: &'a BaseFacts,
    /// Module Pods bound to the Node, as watched.
    pub pods: &'a [Arc<ModulePod>],
    /// Module Pods that were just placed there and are not yet seen bound. One that is in `pods` too counts once.
    pub reserved: &'a [Arc<ModulePod>],
}

/// A module that is on the base, or about to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instance<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: Option<&'a str>,
    pub(crate) comparable: Option<&'a Version>,
}

impl<'a> BaseView<'a> {
    /// A base without Pods.
    pub fn empty(facts: &'a BaseFacts) -> Self {
        Self { facts, pods: &[], reserved: &[] }
    }

    /// Pods other than `pod` that are not terminal; each once. Those being deleted are among them.
    pub(crate) fn others(self, pod: &'a ModulePod) -> impl Iterator<Item = &'a ModulePod> {
        let bound = self.pods;
        let placed =
            self.reserved.iter().filter(move |placed| !bound.iter().any(|other| same_pod(other, placed)));
        bound
            .iter()
            .chain(placed)
            .map(Arc::as_ref)
            .filter(move |other| !other.terminal && !same_pod(other, pod))
    }

    /// Modules of other Pods and foreign ones. What is already leaving is not among them: modules of Pods being
    /// deleted, and modules whose Pod is gone, which the agent takes off.
    pub(crate) fn staying(self, pod: &'a ModulePod) -> impl Iterator<Item = Instance<'a>> {
        let of_pods = self.others(pod).filter(|other| !other.deleting).flat_map(move |other| {
            other.modules.iter().map(move |module| {
                // The agent knows a version that the Pod does not spell.
                let installed =
                    if module.known_version().is_none() { self.entry(other, &module.name) } else { None };
                let version = module.known_version().or(installed.map(|(entry, _)| &*entry.version));
                let comparable = module.comparable.as_ref().or(installed.and_then(|(_, version)| version));
                Instance { name: &module.name, version, comparable }
            })
        });
        let foreign = self.entries().filter(|(entry, _)| entry.owner.is_none()).map(|(entry, comparable)| {
            Instance { name: &entry.name, version: Some(&entry.version), comparable }
        });
        of_pods.chain(foreign)
    }

    /// Entries of the inventory, with their versions ready to be compared.
    pub(crate) fn entries(self) -> impl Iterator<Item = (&'a InventoryModule, Option<&'a Version>)> {
        let modules =
            self.facts.inventory.get().map(|inventory| inventory.modules.as_slice()).unwrap_or_default();
        modules.iter().zip(self.facts.module_versions.iter().map(Option::as_ref))
    }

    /// Whether an entry belongs to one of the Pods that are bound and not terminal.
    pub(crate) fn has_owner(self, entry: &InventoryModule) -> bool {
        entry
            .owner
            .as_ref()
            .is_some_and(|owner| self.pods.iter().any(|pod| !pod.terminal && pod.uid == owner.uid))
    }

    fn entry(self, owner: &ModulePod, name: &str) -> Option<(&'a InventoryModule, Option<&'a Version>)> {
        self.entries().find(|(entry, _)| {
            *entry.name == *name && entry.owner.as_ref().is_some_and(|o| o.uid == owner.uid)
        })
    }
}

/// By UID; a Pod without one is only itself.
fn same_pod(a: &ModulePod, b: &ModulePod) -> bool {
    if a.uid.is_empty() { std::ptr::eq(a, b) } else { a.uid == b.uid }
}
