//! The brakes and pauses of the fleet: what is counted as lost, and what is held.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

use super::Fleet;
use super::bases::inventory;
use super::pods::{lives, modules_of};
use crate::base::{Event, EventKind, Health, Hold, Message};
use crate::brake::{Brake, Change};
use crate::named::some;
use crate::vnode::SeenNode;

/// How long a base that vanished waits for others: a list or a bulk change tells them within moments.
pub(super) const SETTLE_BASE: Duration = Duration::from_secs(3);
/// The same for a VPod that vanished unordered.
pub(super) const SETTLE_MODULE: Duration = Duration::from_secs(1);

/// The brake over what probes give up.
const PROBES: &str = "probes";
/// Losses that an Event names.
const SHOWN: usize = 8;

/// The brake's key for a base that is there but silent.
pub(super) fn silence(uid: &str) -> String {
    format!("silent/{uid}")
}

impl Fleet {
    /// A term begins with everything in hand: what is missing is counted before anybody acts on it.
    pub(super) fn begin(&mut self, now: Instant) {
        let cluster = self.context.cluster.clone();
        let nodes: Vec<SeenNode> =
            self.seen.values().filter(|seen| seen.is_ours(&cluster)).cloned().collect();
        for seen in &nodes {
            let uid = seen.base_uid();
            let watched = self.sources.iter().any(|source| source.get(uid).is_some());
            if watched || self.losses.is_missing(uid) {
                continue;
            }
            let (namespace, pod) = seen.base().unwrap_or_default();
            self.losses.missing(uid, seen.name(), namespace, pod, now);
            self.brake.lost(uid, 1, SETTLE_BASE, now);
        }
        self.look_up_due(now);
        let bound: BTreeSet<&str> =
            self.pods.values().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        // A VPod weighs as much as the modules that are there for it.
        let mut lost: BTreeMap<String, usize> = BTreeMap::new();
        let served = nodes.iter().filter(|seen| !self.has_sidecar(seen.name()));
        for seen in served.filter(|seen| !self.losses.is_missing(seen.base_uid())) {
            for module in inventory(seen).into_iter().flat_map(|inventory| inventory.modules) {
                if let Some(owner) = module.owner.filter(|owner| !bound.contains(&*owner.uid)) {
                    *lost.entry(owner.uid.to_string()).or_default() += 1;
                }
            }
        }
        for (uid, modules) in lost {
            self.module_brake.lost(&uid, modules, SETTLE_MODULE, now);
        }
        self.dirty.extend(self.seen.keys().cloned());
        self.dirty.extend(self.bases.values().map(|spec| spec.node.clone()));
        tracing::info!(
            bases = self.bases.len(),
            vnodes = nodes.len(),
            missing = self.losses.len(),
            "a term begins"
        );
    }

    /// Asks both brakes, and acts on what they let pass.
    pub(super) fn judge(&mut self, now: Instant) {
        let rules = self.rules.brakes();
        // What is left matters only while something is lost; to count it at every event would be much work.
        let left = if self.brake.waiting().len() == 0 { 0 } else { self.bases_left() };
        let bases = self.brake.judge(left, rules.bases, now);
        let left = if self.module_brake.waiting().len() == 0 { 0 } else { self.modules_left() };
        let modules = self.module_brake.judge(left, rules.modules, now);
        let left = if self.probe_brake.waiting().len() == 0 {
            0
        } else {
            self.modules_left().saturating_sub(self.probe_brake.waiting().len())
        };
        let probes = self.probe_brake.judge(left, rules.modules, now);
        self.announce(PROBES, probes.change, &self.probe_brake);
        self.pass_unhealthy(probes.pass);
        self.announce("bases", bases.change, &self.brake);
        self.announce("modules", modules.change, &self.module_brake);
        if bases.change != Change::None || modules.change != Change::None {
            self.hold_all();
        }
        self.pass(bases.pass, modules.pass);
    }

    /// An operator let the brake go.
    pub(super) fn on_release(&mut self) {
        if !self.begun {
            return;
        }
        let (bases, modules) = (self.brake.release(), self.module_brake.release());
        let probes = self.probe_brake.release();
        tracing::warn!(bases = bases.len(), modules = modules.len(), "an operator let the brake go");
        self.context.leader.released();
        self.context.metrics.brake("bases", false);
        self.context.metrics.brake("modules", false);
        self.context.metrics.brake(PROBES, false);
        self.pass_unhealthy(probes);
        self.hold_all();
        self.pass(bases, modules);
    }

    fn pass(&mut self, bases: Vec<String>, pods: Vec<String>) {
        for key in bases {
            if let Some(uid) = key.strip_prefix("silent/") {
                if let Some(node) = self.bases.get(uid).map(|spec| spec.node.clone()) {
                    self.count_silence(&node);
                }
            } else {
                self.losses.pass(&key);
                self.act_on_loss(&key);
            }
        }
        for uid in pods {
            for slot in self.slots.values() {
                // Only one of them knows the Pod; to the others it is nothing.
                if let Some(actor) = &slot.actor {
                    actor.tell(Message::PodGone { uid: uid.clone() });
                }
            }
        }
    }

    /// Bases that are there and answer, or have not been asked yet.
    fn bases_left(&self) -> usize {
        let silent = |node: &str| {
            let report = self.slots.get(node).and_then(|slot| slot.report.as_ref());
            report.is_some_and(|report| matches!(report.health, Health::Silent { .. }))
        };
        let there = |uid: &String| !self.losses.is_missing(uid);
        self.bases
            .iter()
            .filter(|(uid, spec)| there(uid) && spec.leaving.is_none() && !silent(&spec.node))
            .count()
    }

    /// Modules of ours whose VPods are there.
    fn modules_left(&self) -> usize {
        // A term begins without slots, with the Nodes that stand then.
        let ours = |node: &String| {
            let cluster = &self.context.cluster;
            self.slots.contains_key(node) || self.seen.get(node).is_some_and(|seen| seen.is_ours(cluster))
        };
        let ours = self.pods_on.iter().filter(|(node, _)| ours(node));
        let living = ours.flat_map(|(_, pods)| pods.values()).filter(|pod| lives(pod));
        living.map(|pod| modules_of(pod)).sum()
    }

    /// What holds this VNode now.
    pub(super) fn hold_on(&self, node: &str) -> Hold {
        Hold {
            brake: self.brake.is_on() || self.module_brake.is_on(),
            pause: self.rules.is_paused()
                || self.seen.get(node).is_some_and(SeenNode::is_paused)
                || self
                    .slots
                    .get(node)
                    .and_then(|slot| slot.actor.as_ref())
                    .is_some_and(|actor| actor.marking),
        }
    }

    /// Whether nothing may be removed on this VNode now.
    pub(super) fn is_held(&self, node: &str) -> bool {
        self.hold_on(node).any()
    }

    pub(super) fn hold_all(&mut self) {
        let nodes: Vec<String> = self.slots.keys().cloned().collect();
        for node in nodes {
            self.hold(&node);
        }
    }

    /// Tells the actor of a VNode what holds it, when that changed.
    pub(super) fn hold(&mut self, node: &str) {
        let held = self.hold_on(node);
        if let Some(slot) = self.slots.get_mut(node)
            && let Some(actor) = &mut slot.actor
            && actor.held != held
        {
            actor.held = held;
            actor.tell(Message::Hold(held));
        }
    }

    fn announce(&self, of: &'static str, change: Change, brake: &Brake) {
        let (what, held_back, well) = match of {
            PROBES => {
                ("probes give up too many modules at once", "none is installed again", "modules are well")
            }
            "modules" => ("too many modules seem lost at once", "nothing is removed", "modules are back"),
            _ => ("too many bases seem lost at once", "nothing is removed", "bases are back"),
        };
        let (kind, reason, note) = match change {
            Change::None => return,
            Change::Closed => (
                EventKind::Warning,
                "BrakeClosed",
                format!(
                    "{what} ({}): {held_back} until enough {well} or the annotation stowage.dev/brake=release is set on \
                     this Lease; held: {}",
                    brake.waiting().len(),
                    some(brake.waiting(), SHOWN)
                ),
            ),
            Change::Opened => (EventKind::Normal, "BrakeOpened", format!("enough {well}: nothing is held")),
        };
        self.context.metrics.brake(of, change == Change::Closed);
        match kind {
            EventKind::Warning => tracing::error!(of, held = brake.waiting().len(), note, "the brake closed"),
            EventKind::Normal => tracing::warn!(of, note, "the brake opened"),
        }
        let (namespace, name) = self.context.lease.clone();
        let regarding = ObjectReference {
            api_version: Some("coordination.k8s.io/v1".to_owned()),
            kind: Some("Lease".to_owned()),
            namespace: Some(namespace),
            name: Some(name),
            ..ObjectReference::default()
        };
        self.context.events.emit(Event { regarding, kind, reason, action: "Brake", note });
    }
}
