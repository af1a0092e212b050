//! Drift: what is not as it should be and does not get better by itself at the moment. Pure, but for the gauges.
//!
//! During a rollout some of it is normal for seconds; what stays for minutes needs a person.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use policy::contract::module::{PodKind, classify};
use policy::contract::{Inventory, InventoryModule, ModuleState, names};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Fleet;
use super::pods::{has_ended, lives};
use crate::named::key;

/// The report is made anew so often.
const EVERY: Duration = Duration::from_secs(15);
/// A gate that is False this long is stuck.
const STUCK: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);
/// Entries of each kind in `/diag`.
const SHOWN: usize = 100;

/// The kinds of drift, with what is concerned.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Drift {
    /// Modules of ours on a base whose VPod is gone.
    orphans: Vec<String>,
    /// Modules that are active in another version than their VPod says.
    wrong_versions: Vec<String>,
    /// Pods that are ready but for a readiness gate.
    stuck_gates: Vec<String>,
}

impl Drift {
    fn add(&mut self, other: Self) {
        self.orphans.extend(other.orphans);
        self.wrong_versions.extend(other.wrong_versions);
        self.stuck_gates.extend(other.stuck_gates);
    }

    pub(super) fn diag(&self) -> Value {
        let some =
            |all: &[String]| json!({"count": all.len(), "first": all.iter().take(SHOWN).collect::<Vec<_>>()});
        json!({
            "orphans": some(&self.orphans),
            "wrongVersions": some(&self.wrong_versions),
            "stuckGates": some(&self.stuck_gates),
        })
    }
}

/// What of one VNode has drifted.
fn of_node(node: &str, inventory: &Inventory, pods: &[Arc<Pod>], now: Timestamp) -> Drift {
    let living: Vec<&Arc<Pod>> = pods.iter().filter(|pod| !has_ended(pod)).collect();
    let owners: BTreeSet<&str> = living.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
    let orphans = inventory.modules.iter().filter_map(|module| {
        let owner = module.owner.as_ref().filter(|owner| !owners.contains(&*owner.uid))?;
        let (name, version) = (&module.name, &module.version);
        Some(format!("{name}:{version} on {node}, of {}/{}", owner.namespace, owner.name))
    });
    let orphans = orphans.collect();
    let staying = living.into_iter().filter(|pod| lives(pod));
    let (mut wrong_versions, mut stuck_gates) = (Vec::new(), Vec::new());
    for pod in staying {
        wrong_versions.extend(wrong(node, inventory, pod));
        stuck_gates.extend(stuck(pod, now).map(|gate| format!("{gate} of Pod {}", key(&pod.metadata))));
    }
    Drift { orphans, wrong_versions, stuck_gates }
}

/// Active modules of this name.
fn active<'a>(inventory: &'a Inventory, name: &'a str) -> impl Iterator<Item = &'a InventoryModule> {
    let modules = inventory.modules.iter();
    modules.filter(move |module| *module.name == *name && module.state == ModuleState::Activated)
}

fn wrong(node: &str, inventory: &Inventory, pod: &Pod) -> Vec<String> {
    let PodKind::Module(pod) = classify(pod) else { return Vec::new() };
    let owned = |name: &str| {
        let mut entries = inventory.modules.iter().filter(|entry| *entry.name == *name);
        entries.any(|entry| entry.owner.as_ref().is_some_and(|owner| owner.uid == pod.uid))
    };
    let known = pod.modules.iter().filter_map(|module| {
        // On a Pod that something was installed for, the label rules.
        let released = module.in_place.as_ref().filter(|_| owned(&module.name));
        let version = released.map_or_else(|| module.known_version(), |(version, _)| Some(&**version));
        Some((&module.name, version?))
    });
    known
        .filter(|(name, version)| active(inventory, name).all(|module| *module.version != **version))
        .filter_map(|(name, version)| {
            let found = active(inventory, name).next()?;
            Some(format!("{name}:{} on {node}, {version} wanted by {}", found.version, pod.key()))
        })
        .collect()
}

/// A readiness gate that keeps a Pod from being Ready and has done so for long.
fn stuck(pod: &Pod, now: Timestamp) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let condition = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
    let ready = condition("ContainersReady").filter(|condition| condition.status == "True")?;
    let long = |time: Option<&Timestamp>| time.is_some_and(|since| now.duration_since(*since) >= STUCK);
    let gates = pod.spec.as_ref()?.readiness_gates.iter().flatten();
    gates
        .map(|gate| gate.condition_type.as_str())
        .filter(|gate| condition(gate).is_none_or(|condition| condition.status != "True"))
        .find(|gate| {
            let since = condition(gate).unwrap_or(ready).last_transition_time.as_ref();
            long(since.or(ready.last_transition_time.as_ref()).map(|time| &time.0))
        })
        .map(str::to_owned)
}

impl Fleet {
    /// Makes the report anew when it is due.
    pub(super) fn look_for_drift(&mut self, now: Instant) {
        if !self.begun || self.drift_at.is_some_and(|at| now < at + EVERY) {
            return;
        }
        self.drift_at = Some(now);
        let wall = self.context.base_clock.now();
        let mut drift = Drift::default();
        for (node, slot) in &self.slots {
            let Some(report) = &slot.report else { continue };
            let pods: Vec<Arc<Pod>> =
                self.pods_on.get(node).into_iter().flat_map(|pods| pods.values()).cloned().collect();
            drift.add(of_node(node, &report.inventory, &pods, wall));
        }
        let stuck =
            self.bases.values().filter(|spec| spec.leaving.is_none() && spec.started).filter(|spec| {
                let gate = spec.gate.as_ref();
                let open =
                    gate.and_then(|gate| gate.condition.as_ref()).is_some_and(|condition| condition.status);
                let since = gate.and_then(|gate| gate.waiting_since);
                !open && since.is_some_and(|since| wall.duration_since(since) >= STUCK)
            });
        let stuck = stuck
            .map(|spec| format!("{} of base {}/{}", names::MODULES_READY_GATE, spec.namespace, spec.pod));
        drift.stuck_gates.extend(stuck);
        let metrics = &self.context.metrics;
        metrics.drift("orphan", drift.orphans.len());
        metrics.drift("wrong_version", drift.wrong_versions.len());
        metrics.drift("stuck_gate", drift.stuck_gates.len());
        self.drift = drift;
    }

    /// Whoever does not lead knows of no drift.
    pub(super) fn forget_drift(&mut self) {
        self.drift = Drift::default();
        self.drift_at = None;
        for kind in ["orphan", "wrong_version", "stuck_gate"] {
            self.context.metrics.drift(kind, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVENTORY: &str = r#"{"v":1,"modules":[
        {"name":"shop","version":"1.0","state":"activated","owner":"shop/p/u1"},
        {"name":"cart","version":"2.0","state":"activated","owner":"shop/gone/u9"},
        {"name":"foreign","version":"1.0","state":"activated"}]}"#;

    fn pod(uid: &str, module: &str, version: &str, change: impl FnOnce(&mut Value)) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"namespace": "shop", "name": uid, "uid": uid},
            "spec": {"tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
                "readinessGates": [{"conditionType": "module.koupleless.io/ready"}, {"conditionType": "lb/ready"}],
                "containers": [{"name": module, "env": [{"name": "MODULE_VERSION", "value": version}]}]},
            "status": {"phase": "Running", "conditions": [
                {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "module.koupleless.io/ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "lb/ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        });
        change(&mut pod);
        Arc::new(serde_json::from_value(pod).expect("pod"))
    }

    fn drift(pods: &[Arc<Pod>], now: &str) -> Drift {
        of_node("n", &Inventory::parse(INVENTORY).expect("inventory"), pods, now.parse().expect("time"))
    }

    const SOON: &str = "2026-01-01T00:01:00Z";
    const LATE: &str = "2026-01-01T00:05:00Z";

    #[test]
    fn a_module_without_its_vpod_is_an_orphan_and_a_foreign_one_is_not() {
        let found = drift(&[pod("u1", "shop", "1.0", |_| {})], LATE);
        assert_eq!(found.orphans, ["cart:2.0 on n, of shop/gone"]);
        assert!(found.wrong_versions.is_empty() && found.stuck_gates.is_empty(), "{found:?}");
        let leaving = pod("u1", "shop", "1.0", |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
        assert_eq!(drift(&[leaving], LATE).orphans.len(), 1, "on its way out");
        let failed = pod("u1", "shop", "1.0", |pod| pod["status"]["phase"] = json!("Failed"));
        assert_eq!(drift(&[failed], LATE).orphans.len(), 2, "over");
    }

    #[test]
    fn another_active_version_is_a_wrong_one() {
        let found = drift(&[pod("u1", "shop", "1.1", |_| {})], LATE);
        assert_eq!(found.wrong_versions, ["shop:1.0 on n, 1.1 wanted by shop/u1"]);
        assert!(drift(&[pod("u2", "other", "1.0", |_| {})], LATE).wrong_versions.is_empty(), "not there yet");
        let labelled = |label: &'static str| {
            move |pod: &mut Value| pod["metadata"]["labels"] = json!({"module.koupleless.io/shop": label})
        };
        let released = drift(&[pod("u1", "shop", "0.9", labelled("1.0"))], LATE);
        assert!(released.wrong_versions.is_empty(), "in place: {released:?}");
        let waiting = drift(&[pod("u1", "shop", "1.0", labelled("2.0"))], LATE);
        assert_eq!(waiting.wrong_versions, ["shop:1.0 on n, 2.0 wanted by shop/u1"]);
    }

    #[test]
    fn a_gate_is_stuck_when_only_it_has_been_missing_for_long() {
        let closed = |pod: &mut Value| pod["status"]["conditions"][2]["status"] = json!("False");
        let absent = |pod: &mut Value| drop(pod["status"]["conditions"].as_array_mut().expect("list").pop());
        let unready = |pod: &mut Value| {
            closed(pod);
            pod["status"]["conditions"][0]["status"] = json!("False");
        };
        assert!(drift(&[pod("u1", "shop", "1.0", closed)], SOON).stuck_gates.is_empty());
        assert_eq!(drift(&[pod("u1", "shop", "1.0", closed)], LATE).stuck_gates, ["lb/ready of Pod shop/u1"]);
        assert_eq!(drift(&[pod("u1", "shop", "1.0", absent)], LATE).stuck_gates.len(), 1);
        assert!(
            drift(&[pod("u1", "shop", "1.0", unready)], LATE).stuck_gates.is_empty(),
            "the module itself is not ready"
        );
    }
}
