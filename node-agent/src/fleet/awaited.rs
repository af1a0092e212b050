//! What the readiness gate of a base waits for: VPods on its VNode, one Pod of each `DaemonSet` meant for it, module
//! Pods that kube-scheduler may still put there, and those that the rollout of its own workload has moved.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use policy::contract::BaseFacts;

use super::Fleet;
use super::pods::{has_ended, is_ready, lives};
use crate::discovery::BaseSpec;
use crate::fitting::{Place, Template};
use crate::named::key;
use crate::vnode::SeenNode;

/// A module Pod without a Node, trimmed on arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct Unplaced {
    /// Its UID.
    pub uid: String,
    key: String,
    created: Option<Timestamp>,
    /// Nobody deletes it, and kube-scheduler may look at it.
    waits: bool,
    template: Template,
}

impl Unplaced {
    /// Takes what is needed of a Pod; `None` where it is no module Pod.
    pub fn of(mut pod: Pod) -> Option<Self> {
        let (key, created) = (key(&pod.metadata), created(&pod));
        let gated = pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.iter().flatten().count() > 0);
        let waits = lives(&pod) && !gated;
        let uid = pod.metadata.uid.clone()?;
        pod.metadata.managed_fields = None;
        pod.status = None;
        Some(Self { uid, key, created, waits, template: Template::of_pod(pod)? })
    }
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Whether it has never been Running.
fn comes(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    lives(pod) && phase.is_none_or(|phase| phase == "Pending")
}

fn follows_bases(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet")
}

impl Fleet {
    fn pods_of(&self, node: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods_on.get(node).into_iter().flat_map(|pods| pods.values())
    }

    /// What the gate of this base waits for, by name.
    pub(super) fn awaited(&self, spec: &BaseSpec, wall: Timestamp) -> Vec<String> {
        let Some(seen) = self.seen.get(&spec.node) else { return Vec::new() };
        let here = self.pods_of(&spec.node).filter(|pod| lives(pod) && !is_ready(pod));
        let mut awaited: Vec<String> = here.map(|pod| format!("Pod {}", key(&pod.metadata))).collect();
        if let Ok(Some(base)) = BaseFacts::from_node(&seen.node) {
            awaited.extend(self.daemon_sets_without_a_pod(seen, &base));
            awaited.extend(self.may_come(seen, base, wall));
        }
        awaited.extend(self.moved_by_its_rollout(spec, wall));
        awaited
    }

    fn daemon_sets_without_a_pod(&self, seen: &SeenNode, base: &BaseFacts) -> Vec<String> {
        let has = |uid: &str| {
            self.pods_of(seen.name())
                .filter(|pod| lives(pod))
                .any(|pod| pod.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid))
        };
        let fits = |template: &Template| template.fits(self.rules.lasting(), &seen.node, base);
        let meant = self
            .daemon_sets
            .values()
            .filter(|set| !set.deleting && set.template.as_ref().is_some_and(fits) && !has(&set.uid));
        meant.map(|set| format!("DaemonSet {}/{}", set.namespace, set.name)).collect()
    }

    /// Module Pods that have no Node and could be placed here now.
    fn may_come(&self, seen: &SeenNode, base: BaseFacts, wall: Timestamp) -> Vec<String> {
        let bound = self.pods_of(seen.name()).filter(|pod| !has_ended(pod)).count();
        let slots = seen.allocatable_pods().unwrap_or_default();
        if bound >= slots || self.unplaced.is_empty() {
            return Vec::new();
        }
        let place = Place::new(&seen.node, base, self.pods_of(seen.name()));
        let waiting = self.unplaced.values().filter(|pod| {
            pod.waits
                && self.is_recent(pod.created, wall)
                && place.takes(self.rules.placement(), &pod.template)
        });
        waiting.map(|pod| format!("Pod {}, which has no Node yet", pod.key)).collect()
    }

    /// Module Pods on other bases of the same workload and revision that have yet to run for the first time: they
    /// replace what left with the bases before. Instances that follow their bases are waited for by those alone.
    fn moved_by_its_rollout(&self, spec: &BaseSpec, wall: Timestamp) -> Vec<String> {
        if spec.revision.is_none() {
            return Vec::new();
        }
        let peers = self.bases.values().filter(|base| {
            base.uid != spec.uid
                && base.namespace == spec.namespace
                && base.revision == spec.revision
                && base.leaving.is_none()
        });
        let pods = peers.flat_map(|base| self.pods_of(&base.node));
        let moved =
            pods.filter(|pod| comes(pod) && !follows_bases(pod) && self.is_recent(created(pod), wall));
        moved.map(|pod| format!("Pod {} on another base", key(&pod.metadata))).collect()
    }

    /// One Pod that never runs holds bases for one limit, and not each base anew.
    fn is_recent(&self, created: Option<Timestamp>, wall: Timestamp) -> bool {
        let Some((created, limit)) = created.zip(self.rules.gate_limit()) else { return true };
        created.checked_add(limit).is_ok_and(|until| until > wall)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(changes: &[(&str, Value)]) -> Pod {
        let mut pod = json!({
            "metadata": {"namespace": "shop", "name": "p", "uid": "u", "managedFields": [],
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
                "containers": [{"name": "shop", "env": [{"name": "MODULE_VERSION", "value": "1"}]}]},
            "status": {"phase": "Pending"},
        });
        for (pointer, value) in changes {
            let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
            pod.pointer_mut(parent).expect(parent)[key] = value.clone();
        }
        serde_json::from_value(pod).expect("pod")
    }

    #[test]
    fn only_module_pods_that_can_be_placed_are_waited_for() {
        let waits = |changes: &[(&str, Value)]| Unplaced::of(pod(changes)).map(|unplaced| unplaced.waits);
        assert_eq!(waits(&[]), Some(true));
        assert_eq!(waits(&[("/spec/schedulingGates", json!([{"name": "later"}]))]), Some(false));
        assert_eq!(waits(&[("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))]), Some(false));
        assert_eq!(waits(&[("/spec/tolerations", json!([]))]), None, "no module Pod");
        let kept = Unplaced::of(pod(&[])).expect("kept");
        assert_eq!((kept.key.as_str(), kept.created), ("shop/p", "2026-01-01T00:00:00Z".parse().ok()));
    }

    #[test]
    fn what_has_run_once_is_no_newcomer() {
        assert!(comes(&pod(&[])) && comes(&pod(&[("/status", json!({}))])));
        for changes in [
            [("/status/phase", json!("Running"))],
            [("/status/phase", json!("Failed"))],
            [("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))],
        ] {
            assert!(!comes(&pod(&changes)), "{changes:?}");
        }
        let owner = |kind| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o"}]);
        assert!(follows_bases(&pod(&[("/metadata/ownerReferences", owner("DaemonSet"))])));
        assert!(!follows_bases(&pod(&[("/metadata/ownerReferences", owner("ReplicaSet"))])));
    }
}
