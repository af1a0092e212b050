//! Where the VPods of a base could go, and how their controllers do elsewhere. Pure, over what the fleet knows.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Taint};
use policy::contract::module::{PodKind, classify};
use policy::contract::{BaseFacts, names};

use super::Fleet;
use super::pods::{has_ended, is_ready, lives};
use super::scale::is_of;
use crate::base::Health;
use crate::fitting::{Place, Template, tolerates_for_ever};
use crate::healing::{Following, Replicas, Tenant};
use crate::vnode::SeenNode;

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

    /// Bases other than this one where VPods would be placed now, and come up.
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
                let facts = BaseFacts::from_node(&seen.node).ok().flatten()?;
                // A module may be placed on a paused base, and waits there.
                (!facts.paused).then(|| Place::new(&seen.node, facts, pods))
            })
            .collect()
    }

    /// Takes a place for a VPod, where there is one.
    fn settle_on(&self, places: &mut [Place], pod: &Arc<Pod>) -> bool {
        let Some(template) = Template::of_pod(Arc::clone(pod)) else { return false };
        let policy = self.rules.placement();
        let Some(place) = places.iter_mut().find(|place| place.takes(policy, &template)) else {
            return false;
        };
        place.take(&template);
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "p", "uid": "p"},
            "spec": {"containers": [{"name": "shop"}]}
        });
        serde_json::from_value(pod).expect("pod")
    }

    /// BL-092.
    #[test]
    fn whom_the_taint_would_not_delete_stays() {
        let with = |toleration: serde_json::Value| {
            let mut pod = pod();
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
