//! Where the VPods of a base could go, and how their controllers do elsewhere. Pure, over what the fleet knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use policy::contract::module::{ModulePod, PodKind, classify};
use policy::contract::{BaseFacts, names};
use policy::model::Quantity;
use policy::{BaseView, Policy, decide};

use super::Fleet;
use super::pods::{has_ended, is_ready, lives};
use super::scale::is_of;
use crate::base::Health;
use crate::fitting::{may_stand_on, tolerates_for_ever};
use crate::healing::{Following, Replicas, Tenant};
use crate::vnode::SeenNode;

/// What a Pod asks for, and a base has, besides slots.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// A base that may take VPods, and what is on it.
#[derive(Debug)]
struct Place {
    node: Arc<Node>,
    facts: BaseFacts,
    pods: Vec<Arc<ModulePod>>,
    slots: usize,
    /// Thousandths that are free, by resource.
    free: BTreeMap<&'static str, i128>,
}

impl Place {
    fn new<'a>(node: &Arc<Node>, on_it: impl Iterator<Item = &'a Arc<Pod>>) -> Option<Self> {
        let facts = BaseFacts::from_node(node).ok().flatten()?;
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let mut free: BTreeMap<&'static str, i128> =
            RESOURCES.iter().filter_map(|name| Some((*name, milli(&allocatable?.get(*name)?.0)?))).collect();
        let (mut pods, mut bound) = (Vec::new(), 0);
        for pod in on_it.filter(|pod| !has_ended(pod)) {
            bound += 1;
            for (name, amount) in asks_for(pod) {
                if let Some(free) = free.get_mut(name) {
                    *free -= amount;
                }
            }
            if let PodKind::Module(module) = classify(pod) {
                pods.push(Arc::from(module));
            }
        }
        let slots = usize::try_from(facts.allocatable_pods).unwrap_or(usize::MAX).saturating_sub(bound);
        Some(Self { node: Arc::clone(node), facts, pods, slots, free })
    }

    /// Whether a VPod could go here now.
    fn takes(&self, policy: &Policy, pod: &Pod, module: &ModulePod) -> bool {
        let view = BaseView { facts: &self.facts, pods: &self.pods, reserved: &[] };
        self.slots > 0
            && may_stand_on(pod, &self.node)
            && asks_for(pod)
                .iter()
                .all(|(name, amount)| self.free.get(name).is_some_and(|free| amount <= free))
            && decide(policy, module, &view).is_ok()
    }

    fn take(&mut self, pod: &Pod, module: &Arc<ModulePod>) {
        self.slots -= 1;
        self.pods.push(Arc::clone(module));
        for (name, amount) in asks_for(pod) {
            if let Some(free) = self.free.get_mut(name) {
                *free -= amount;
            }
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

/// The controller of a Pod: kind and UID.
fn controller(pod: &Pod) -> Option<(&str, &str)> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    Some((&owner.kind, &owner.uid))
}

/// Whether a Pod says itself that it stays on an overloaded base: nobody would delete it for the taint.
fn stays(pod: &Pod) -> bool {
    let (key, value) = (names::OVERLOAD_TAINT.to_owned(), Some("true".to_owned()));
    tolerates_for_ever(pod, &Taint { key, value, effect: "NoExecute".to_owned(), time_added: None })
}

impl Fleet {
    /// The VPods of a base that have not ended, and where they could go.
    pub(super) fn tenants(&self, node: &str) -> Vec<Tenant> {
        let pods = self.pods_on.get(node).into_iter().flat_map(|pods| pods.values());
        let pods: Vec<&Arc<Pod>> = pods.filter(|pod| !has_ended(pod)).collect();
        let mut tenants: Vec<Tenant> = pods
            .iter()
            .map(|pod| Tenant {
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                following: self.following(node, pod),
                leaving: !lives(pod),
                place: false,
            })
            .collect();
        let moves = |tenant: &Tenant| !tenant.leaving && matches!(tenant.following, Following::Moves { .. });
        if tenants.iter().any(moves) {
            let mut places = self.places(node);
            for (tenant, pod) in tenants.iter_mut().zip(&pods) {
                if moves(tenant) {
                    tenant.place = self.settle_on(&mut places, pod);
                }
            }
        }
        tenants
    }

    fn following(&self, node: &str, pod: &Pod) -> Following {
        // What is no module Pod is set Failed by the actor.
        if stays(pod) || !matches!(classify(pod), PodKind::Module(_)) {
            return Following::Stays;
        }
        match controller(pod) {
            None => Following::Bare,
            Some(("DaemonSet", _)) => Following::FollowsBase,
            Some(_) if self.deployments.values().any(|set| set.scale.is_some() && is_of(pod, set)) => {
                Following::FollowsBase
            }
            Some((_, uid)) => {
                Following::Moves { controller: uid.to_owned(), elsewhere: self.replicas(node, uid).elsewhere }
            }
        }
    }

    /// Ready VPods of a controller on other bases than this, and how many it wants.
    pub(super) fn replicas(&self, node: &str, uid: &str) -> Replicas {
        let of_it = |pod: &&Arc<Pod>| controller(pod).is_some_and(|(_, other)| other == uid);
        let there = self.pods_on.iter().flat_map(|(on, pods)| pods.values().map(move |pod| (on, pod)));
        let (mut elsewhere, mut wanted) = (0, None);
        for (on, pod) in there.filter(|(_, pod)| of_it(pod)) {
            if on != node && lives(pod) && is_ready(pod) {
                elsewhere += 1;
            }
            if wanted.is_none() {
                let deployment = self.deployments.values().find(|deployment| is_of(pod, deployment));
                wanted = deployment.map(|deployment| usize::try_from(deployment.replicas).unwrap_or(0));
            }
        }
        Replicas { elsewhere, wanted }
    }

    /// Bases other than this one that take VPods now.
    fn places(&self, but: &str) -> Vec<Place> {
        let answers = |node: &str| {
            let report = self.slots.get(node).and_then(|slot| slot.report.as_ref());
            report.is_none_or(|report| report.health == Health::Answering)
        };
        // What is overloaded too takes no more, whether or not its turn has come.
        let well =
            |seen: &SeenNode| !self.heals.has(seen.base_uid()) && seen.annotation(names::HEALING).is_none();
        let others =
            self.seen.iter().filter(|(name, seen)| name.as_str() != but && answers(name) && well(seen));
        others
            .filter_map(|(name, seen)| {
                let pods = self.pods_on.get(name).into_iter().flat_map(|pods| pods.values());
                // Most bases are full, and to read an inventory takes long.
                let bound = pods.clone().filter(|pod| !has_ended(pod)).count();
                if seen.allocatable_pods().is_none_or(|slots| slots <= bound) {
                    return None;
                }
                Place::new(&seen.node, pods)
            })
            .filter(|place| place.slots > 0 && !place.facts.paused)
            .collect()
    }

    /// Takes a place for a VPod, where there is one.
    fn settle_on(&self, places: &mut [Place], pod: &Pod) -> bool {
        let PodKind::Module(module) = classify(pod) else { return false };
        let module: Arc<ModulePod> = Arc::from(module);
        let policy = self.rules.placement();
        let Some(place) = places.iter_mut().find(|place| place.takes(policy, pod, &module)) else {
            return false;
        };
        place.take(pod, &module);
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(slots: u32, cpu: &str) -> Arc<Node> {
        let node = json!({
            "metadata": {"name": "n", "labels": {"app.kubernetes.io/managed-by": "stowage"},
                "annotations": {"stowage.dev/base": "a/b", "stowage.dev/inventory": "{\"v\":1}"}},
            "status": {"allocatable": {"pods": slots.to_string(), "cpu": cpu},
                "conditions": [{"type": "Ready", "status": "True"}]}
        });
        Arc::new(serde_json::from_value(node).expect("node"))
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

    fn module(pod: &Pod) -> Arc<ModulePod> {
        match classify(pod) {
            PodKind::Module(module) => Arc::from(module),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_place_has_slots_resources_and_not_the_same_module() {
        let policy = Policy::default();
        let there = [pod("a", "shop", "500m")];
        let takes = |slots, cpu, pod: &Arc<Pod>| {
            let place = Place::new(&node(slots, cpu), there.iter()).expect("a base");
            place.takes(&policy, pod, &module(pod))
        };
        assert!(takes(2, "1", &pod("b", "cart", "500m")));
        assert!(!takes(1, "1", &pod("b", "cart", "500m")), "no slot");
        assert!(!takes(2, "1", &pod("b", "cart", "501m")), "no cpu");
        assert!(!takes(2, "1", &pod("b", "shop", "100m")), "it is there already");
    }

    #[test]
    fn a_place_is_taken_once() {
        let policy = Policy::default();
        let mut place = Place::new(&node(1, "1"), [].iter()).expect("a base");
        let (first, second) = (pod("a", "shop", "1"), pod("b", "cart", "1"));
        assert!(place.takes(&policy, &first, &module(&first)));
        place.take(&first, &module(&first));
        assert!(!place.takes(&policy, &second, &module(&second)));
    }

    /// BL-092.
    #[test]
    fn whom_the_taint_would_not_delete_stays() {
        let with = |toleration: serde_json::Value| {
            let mut pod = (*pod("a", "shop", "1")).clone();
            if let Some(spec) = &mut pod.spec {
                spec.tolerations = Some(serde_json::from_value(json!([toleration])).expect("tolerations"));
            }
            pod
        };
        assert!(stays(&with(json!({"operator": "Exists"}))));
        assert!(stays(&with(json!({"key": names::OVERLOAD_TAINT, "operator": "Exists"}))));
        let of = |effect: &str| json!({"key": names::OVERLOAD_TAINT, "operator": "Exists", "effect": effect});
        assert!(stays(&with(of("NoExecute"))));
        assert!(!stays(&with(of("NoSchedule"))));
        let mut for_a_while = of("NoExecute");
        for_a_while["tolerationSeconds"] = json!(60);
        assert!(!stays(&with(for_a_while)));
        assert!(!stays(&with(json!({"key": names::VIRTUAL_NODE_TAINT, "operator": "Exists"}))));
    }
}
