//! Whether a Pod can be placed on a VNode as it stands: one answer for all who ask. Pure.
//!
//! It goes by the rules of kube-scheduler that a Pod and a Node speak of, slots and resources among them, and by ours.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use policy::contract::BaseFacts;
use policy::contract::module::{ModulePod, PodKind, classify};
use policy::model::Quantity;
use policy::{BaseView, Policy, decide};

use super::Template;
use crate::vpod::has_ended;

/// What a Pod asks for, and a base has, besides slots.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// A VNode that may take Pods, and what is on it.
#[derive(Debug)]
pub struct Place {
    node: Arc<Node>,
    facts: BaseFacts,
    pods: Vec<Arc<ModulePod>>,
    slots: usize,
    /// Thousandths that are free, by resource.
    free: BTreeMap<&'static str, i128>,
}

impl Place {
    /// The VNode with what it says of its base, and the Pods that are bound to it.
    pub fn new<'a>(
        node: &Arc<Node>,
        facts: BaseFacts,
        on_it: impl IntoIterator<Item = &'a Arc<Pod>>,
    ) -> Self {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let mut free: BTreeMap<&'static str, i128> =
            RESOURCES.iter().filter_map(|name| Some((*name, milli(&allocatable?.get(*name)?.0)?))).collect();
        let (mut pods, mut bound) = (Vec::new(), 0);
        for pod in on_it.into_iter().filter(|pod| !has_ended(pod)) {
            bound += 1;
            occupy(&mut free, pod);
            if let PodKind::Module(module) = classify(pod) {
                pods.push(Arc::from(module));
            }
        }
        let slots = usize::try_from(facts.allocatable_pods).unwrap_or(usize::MAX).saturating_sub(bound);
        Self { node: Arc::clone(node), facts, pods, slots, free }
    }

    /// Whether one of these Pods could be placed here now.
    pub fn takes(&self, policy: &Policy, template: &Template) -> bool {
        let view = BaseView { facts: &self.facts, pods: &self.pods, reserved: &[] };
        self.slots > 0
            && template.may_stand_on(&self.node)
            && asks_for(&template.pod)
                .iter()
                .all(|(name, amount)| self.free.get(name).is_some_and(|free| amount <= free))
            && decide(policy, &template.module, &view).is_ok()
    }

    /// Puts one of these Pods here.
    pub fn take(&mut self, template: &Template) {
        self.slots = self.slots.saturating_sub(1);
        self.pods.push(Arc::clone(&template.module));
        occupy(&mut self.free, &template.pod);
    }
}

fn occupy(free: &mut BTreeMap<&'static str, i128>, pod: &Pod) {
    for (name, amount) in asks_for(pod) {
        if let Some(free) = free.get_mut(name) {
            *free -= amount;
        }
    }
}

/// In thousandths.
fn milli(text: &str) -> Option<i128> {
    Quantity::parse(text).ok().map(|amount| i128::from(amount.milli()))
}

/// What the containers of a Pod ask for together, in thousandths.
fn asks_for(pod: &Pod) -> BTreeMap<&'static str, i128> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let requests: Vec<_> =
        containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref()).collect();
    let sum = |name: &str| -> i128 {
        requests.iter().filter_map(|requests| milli(&requests.get(name)?.0)).fold(0, i128::saturating_add)
    };
    RESOURCES.iter().map(|name| (*name, sum(name))).filter(|(_, sum)| *sum > 0).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn place(changes: &[(&str, Value)], on_it: &[Arc<Pod>]) -> Place {
        let mut node = json!({
            "metadata": {"name": "n", "labels": {"app.kubernetes.io/managed-by": "stowage"},
                "annotations": {"stowage.dev/base": "a/b", "stowage.dev/inventory": "{\"v\":1}"}},
            "status": {"allocatable": {"pods": "2", "cpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]}
        });
        for (pointer, value) in changes {
            *node.pointer_mut(pointer).expect(pointer) = value.clone();
        }
        let node: Arc<Node> = Arc::new(serde_json::from_value(node).expect("node"));
        let facts = BaseFacts::from_node(&node).expect("readable").expect("a base");
        Place::new(&node, facts, on_it)
    }

    fn pod(uid: &str, module: &str, cpu: &str) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"namespace": "shop", "name": uid, "uid": uid},
            "spec": {"tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
                "containers": [{"name": module, "image": "https://x/m.jar", "env": [{"name": "MODULE_VERSION", "value": "1"}],
                    "resources": {"requests": {"cpu": cpu}}}]}
        });
        Arc::new(serde_json::from_value(pod).expect("pod"))
    }

    fn template(module: &str, cpu: &str) -> Template {
        Template::of_pod(pod("p", module, cpu)).expect("a module Pod")
    }

    #[test]
    fn a_place_has_slots_resources_and_not_the_same_module() {
        let there = [pod("a", "shop", "500m")];
        let takes = |changes: &[(&str, Value)], module, cpu| {
            place(changes, &there).takes(&Policy::default(), &template(module, cpu))
        };
        assert!(takes(&[], "cart", "500m"));
        assert!(!takes(&[("/status/allocatable/pods", json!("1"))], "cart", "500m"), "no slot");
        assert!(!takes(&[], "cart", "501m"), "no cpu");
        assert!(
            !takes(&[("/status/allocatable", json!({"pods": "2"}))], "cart", "1m"),
            "it has no cpu at all"
        );
        assert!(!takes(&[], "shop", "100m"), "it is there already");
    }

    #[test]
    fn what_the_node_says_decides() {
        let takes = |changes: &[(&str, Value)]| {
            place(changes, &[]).takes(&Policy::default(), &template("cart", "100m"))
        };
        assert!(takes(&[]));
        assert!(!takes(&[("/status/conditions/0/status", json!("False"))]), "its base is silent");
        let inventory = json!(r#"{"v":1,"modules":[{"name":"cart","version":"1"}]}"#);
        let there = ("/metadata/annotations/stowage.dev~1inventory", inventory);
        assert!(!takes(&[there]), "the module is there, and nobody's to take off");
    }

    #[test]
    fn a_place_is_taken_once() {
        let policy = Policy::default();
        let mut place = place(&[], &[]);
        let (first, second, third) =
            (template("shop", "600m"), template("cart", "600m"), template("x", "400m"));
        assert!(place.takes(&policy, &first));
        place.take(&first);
        assert!(!place.takes(&policy, &second), "the cpu is taken");
        assert!(place.takes(&policy, &third));
        place.take(&third);
        assert!(!place.takes(&policy, &template("y", "0")), "both slots are taken");
    }
}
