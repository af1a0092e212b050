//! What the fleet shows of itself: gauges, and its part of `/diag`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Fleet;
use super::pods::has_ended;
use crate::base::Health;

impl Fleet {
    pub(super) fn show_counts(&self, now: Instant) {
        let metrics = &self.context.metrics;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        metrics.bases.set(count(self.bases.len()));
        metrics.vnodes.set(count(self.seen.len()));
        let ours = self.pods_on.iter().filter(|(node, _)| self.seen.contains_key(*node));
        let staying = ours.flat_map(|(_, pods)| pods.values()).filter(|pod| !has_ended(pod));
        metrics.vpods.set(count(staying.count()));
        metrics.pod_cidrs.set(count(self.seen.values().filter(|seen| seen.has_pod_cidr()).count()));
        let silent = |slot: &super::Slot| {
            slot.report.as_ref().is_some_and(|report| matches!(report.health, Health::Silent { .. }))
        };
        metrics.silent_bases.set(count(self.slots.values().filter(|slot| silent(slot)).count()));
        let ages = self.slots.values().filter_map(|slot| slot.keeper.as_ref()?.state.lease_age(now));
        metrics.lease_age.set(ages.max().unwrap_or(Duration::ZERO).as_secs_f64());
    }

    pub(super) fn diag(&self) -> Value {
        let now = Instant::now();
        let nodes: serde_json::Map<String, Value> =
            self.slots.iter().map(|(node, slot)| (node.clone(), self.slot_diag(node, slot, now))).collect();
        let lease_age = self.context.leader.lease_age();
        json!({
            "identity": self.context.identity,
            "leading": self.term.as_ref().is_some_and(crate::lease::Term::holds),
            "leaseAgeSeconds": lease_age.map(|age| age.as_secs_f64()),
            "observe": self.context.observe,
            "synced": self.is_synced(),
            "brake": {
                "bases": {"on": self.brake.is_on(), "waiting": self.brake.waiting().take(100).collect::<Vec<_>>()},
                "modules": {
                    "on": self.module_brake.is_on(),
                    "waiting": self.module_brake.waiting().take(100).collect::<Vec<_>>(),
                },
                "probes": {
                    "on": self.probe_brake.is_on(),
                    "waiting": self.probe_brake.waiting().take(100).collect::<Vec<_>>(),
                },
            },
            "bases": self.bases.len(),
            "vnodes": self.seen.len(),
            "pods": self.pods.len(),
            "missing": self.losses.len(),
            "drift": self.drift.diag(),
            "healing": self.heals.diag(),
            "nodes": nodes,
        })
    }

    fn slot_diag(&self, node: &str, slot: &super::Slot, now: Instant) -> Value {
        let base = slot.actor.as_ref().and_then(|actor| self.bases.get(&actor.uid));
        let health = slot.report.as_ref().map(|report| match &report.health {
            Health::Starting => json!("starting"),
            Health::Answering => json!("answering"),
            Health::Silent { since, reason } => json!({"silentSince": since.to_string(), "reason": reason}),
        });
        json!({
            "base": base.map(|spec| format!("{}/{}", spec.namespace, spec.pod)),
            "uid": base.map(|spec| &spec.uid),
            "leaving": base.and_then(|spec| spec.leaving).map(|leaving| format!("{leaving:?}")),
            "health": health,
            "silenceCounts": slot.counted,
            "modules": slot.report.as_ref().map(|report| report.inventory.modules.len()),
            "bound": slot.report.as_ref().map(|report| report.bound),
            "full": slot.report.as_ref().map(|report| report.full),
            "held": slot.actor.as_ref().map(|actor| actor.held.any()),
            "registered": self.seen.contains_key(node),
            "pods": self.pods_on.get(node).map_or(0, std::collections::BTreeMap::len),
            "leaseAgeSeconds": slot
                .keeper
                .as_ref()
                .and_then(|keeper| keeper.state.lease_age(now))
                .map(|age| age.as_secs_f64()),
        })
    }
}
