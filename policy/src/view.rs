//! A base as a decision sees it: facts of the Node, Pods bound to it, and placements just made.

use std::sync::Arc;

use crate::{
    contract::{BaseFacts, Glance, InventoryModule, Module, ModulePod},
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
        self.staying_like(pod, |_| true)
    }

    /// Those of them whose names look as they may. Others are hardly touched.
    pub(crate) fn staying_like(
        self,
        pod: &'a ModulePod,
        may_be: impl Fn(Glance) -> bool + Copy,
    ) -> impl Iterator<Item = Instance<'a>> {
        let of_pods = self.others(pod).filter(|other| !other.deleting).flat_map(move |other| {
            let modules = other.modules.iter().filter(move |module| may_be(module.glance));
            modules.map(move |module| self.wanted(other, module))
        });
        let entries = self.entries().zip(&self.facts.module_index.glances);
        let foreign = entries.filter(move |((entry, _), glance)| may_be(**glance) && entry.owner.is_none());
        of_pods.chain(foreign.map(|((entry, comparable), _)| Instance {
            name: &entry.name,
            version: Some(&entry.version),
            comparable,
        }))
    }

    /// What a Pod wants of a module, as the agent reads it. Most Pods spell one version, and nothing is looked up.
    fn wanted(self, pod: &'a ModulePod, module: &'a Module) -> Instance<'a> {
        let (version, comparable) = match (module.known_version(), &module.in_place) {
            // Environment cannot change on a Pod that lives: once something is installed for it, the label rules.
            (Some(_), Some((label, comparable))) if self.entry(pod, &module.name).is_some() => {
                (Some(&**label), comparable.as_ref())
            }
            (Some(version), _) => (Some(version), module.comparable.as_ref()),
            // The agent knows a version that the Pod does not spell.
            (None, _) => match self.entry(pod, &module.name) {
                Some((entry, comparable)) => (Some(&*entry.version), comparable),
                None => (None, None),
            },
        };
        Instance { name: &module.name, version, comparable }
    }

    /// Entries of the inventory, with their versions ready to be compared.
    pub(crate) fn entries(self) -> impl Iterator<Item = (&'a InventoryModule, Option<&'a Version>)> {
        let modules =
            self.facts.inventory.get().map(|inventory| inventory.modules.as_slice()).unwrap_or_default();
        modules.iter().zip(self.facts.module_index.versions.iter().map(Option::as_ref))
    }

    /// Whether an entry belongs to a Pod that is bound or placed here and not terminal.
    pub(crate) fn has_owner(self, entry: &InventoryModule) -> bool {
        self.owner(entry).is_some()
    }

    /// Whether an entry is there for longer: foreign, or of a Pod that is not on its way out.
    pub(crate) fn stays(self, entry: &InventoryModule) -> bool {
        entry.owner.is_none() || self.owner(entry).is_some_and(|pod| !pod.deleting)
    }

    fn owner(self, entry: &InventoryModule) -> Option<&'a ModulePod> {
        let owner = entry.owner.as_ref()?;
        let mut pods = self.pods.iter().chain(self.reserved).map(Arc::as_ref);
        pods.find(|pod| !pod.terminal && pod.uid == owner.uid)
    }

    fn entry(self, owner: &ModulePod, name: &str) -> Option<(&'a InventoryModule, Option<&'a Version>)> {
        self.entries().find(|(entry, _)| {
            *entry.name == *name && entry.owner.as_ref().is_some_and(|o| o.uid == owner.uid)
        })
    }
}

/// By UID; a Pod without one is only itself.
pub(crate) fn same_pod(a: &ModulePod, b: &ModulePod) -> bool {
    if a.uid.is_empty() { std::ptr::eq(a, b) } else { a.uid == b.uid }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{PodKind, classify};

    fn facts(inventory: &str) -> BaseFacts {
        let node = format!(
            "{{metadata: {{name: n, labels: {{app.kubernetes.io/managed-by: stowage}}, annotations: \
             {{stowage.dev/base: a/b, stowage.dev/inventory: '{inventory}'}}}}}}"
        );
        BaseFacts::from_node(&serde_saphyr::from_str(&node).unwrap()).unwrap().unwrap()
    }

    fn pod(uid: &str, module: &str) -> Arc<ModulePod> {
        let text = format!(
            "{{metadata: {{namespace: shop, name: p, uid: '{uid}'}}, spec: {{tolerations: [{{key: \
             schedule.koupleless.io/virtual-node}}], containers: [{{name: {module}, env: [{{name: MODULE_VERSION, \
             value: '1'}}]}}]}}}}"
        );
        match classify(&serde_saphyr::from_str(&text).unwrap()) {
            PodKind::Module(pod) => Arc::new(*pod),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_pod_counts_once_and_never_for_itself() {
        let facts = facts(r#"{"v":1}"#);
        let (bound, placed) =
            ([pod("u1", "a"), pod("u2", "b")], [pod("u2", "b"), pod("u3", "c"), pod("me", "d")]);
        let view = BaseView { facts: &facts, pods: &bound, reserved: &placed };
        let me = pod("me", "d");
        let names: Vec<&str> = view.staying(&me).map(|instance| instance.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn an_entry_stays_with_its_pod() {
        let inventory = r#"{"v":1,"modules":[{"name":"a","version":"1","owner":"shop/p/u1"},{"name":"b","version":"1","owner":"shop/p/u2"},{"name":"c","version":"1","owner":"shop/p/gone"},{"name":"d","version":"1"}]}"#;
        let facts = facts(inventory);
        let mut leaving = (*pod("u2", "b")).clone();
        leaving.deleting = true;
        let (bound, placed) = ([Arc::new(leaving)], [pod("u1", "a")]);
        let view = BaseView { facts: &facts, pods: &bound, reserved: &placed };
        let staying: Vec<&str> =
            view.entries().filter(|(e, _)| view.stays(e)).map(|(e, _)| &*e.name).collect();
        assert_eq!(staying, ["a", "d"], "placed but not yet seen bound counts; leaving and gone do not");
        let owned: Vec<&str> =
            view.entries().filter(|(e, _)| view.has_owner(e)).map(|(e, _)| &*e.name).collect();
        assert_eq!(owned, ["a", "b"]);
    }
}
