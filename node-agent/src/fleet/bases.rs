//! What the watches of base Pods, Nodes and VPods tell, and what becomes of it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use policy::contract::{Inventory, names};
use tokio::time::Instant;

use super::hold::{SETTLE_BASE, SETTLE_MODULE, silence};
use super::losses::Verdict;
use super::pods::{has_ended, modules_of};
use super::{Delta, Feed, Fleet};
use crate::base::Message;
use crate::discovery::{BaseSpec, Leaving, NotABase, controller, from_pod};
use crate::vnode::SeenNode;

/// What is kept of a base Pod by its watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BaseKey {
    pub(super) uid: String,
    /// UID of its controller.
    pub(super) controller: Option<String>,
    pub(super) created: Option<Timestamp>,
}

impl Fleet {
    pub(super) fn on_base_pod(&mut self, source: usize, feed: Feed<Box<Pod>>) {
        let Some(mirror) = self.sources.get_mut(source) else { return };
        let deltas = mirror.take(feed, |pod| {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let controller = controller(pod).map(|controller| controller.uid);
            let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (uid.clone(), BaseKey { uid, controller, created })
        });
        for delta in deltas {
            match delta {
                Delta::Put(pod) => self.see_base(&pod),
                Delta::Gone { kept, last } => self.miss_base(&kept.uid, last.as_deref()),
                Delta::Synced => {}
            }
        }
    }

    fn see_base(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let before = self.bases.get(uid).cloned();
        let spec = match from_pod(pod, &self.context.cluster, before.as_deref()) {
            Ok(spec) => spec,
            Err(error) => {
                let text = error.to_string();
                let told = self.unreadable.get(uid) == Some(&text);
                if matches!(error, NotABase::Port { .. } | NotABase::Unnamed) && !told {
                    self.unreadable.insert(uid.to_owned(), text);
                    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
                    tracing::warn!(?namespace, ?name, %error, "a Pod that the selector matches is no base");
                }
                return;
            }
        };
        self.unreadable.remove(uid);
        if spec.leaving == Some(Leaving::Ended) {
            // Its address is free: another Pod may have it by now, so that nothing is sent there any more.
            self.note_own(uid, true);
            self.brake.back(uid);
            self.losses.ordered(
                uid,
                before.as_ref().map_or(&spec.node, |before| &before.node),
                Instant::now(),
            );
        } else if self.losses.clear(uid).is_some() {
            tracing::info!(node = spec.node, "the base is back");
            self.note_own(uid, false);
            self.brake.back(uid);
            self.weigh(&spec.node);
        }
        self.take_spec(spec, before.as_deref());
    }

    /// Takes a new description of a base, keeps what must not change, and tells its actor.
    pub(super) fn take_spec(&mut self, mut spec: BaseSpec, before: Option<&BaseSpec>) {
        if let Some(before) = before {
            // The name is made from labels that may change; the VNode keeps the one it was registered with.
            spec.node.clone_from(&before.node);
        } else {
            spec.started |= self.seen.get(&spec.node).is_some_and(|seen| was_started(seen, &spec));
        }
        if before == Some(&spec) {
            return;
        }
        if spec.leaving.is_some() {
            self.brake.back(&silence(&spec.uid));
        }
        let (node, uid, spec) = (spec.node.clone(), spec.uid.clone(), Arc::new(spec));
        self.want_host(spec.host.as_deref());
        self.bases.insert(uid.clone(), Arc::clone(&spec));
        if let Some(actor) = self.slots.get(&node).and_then(|slot| slot.actor.as_ref())
            && actor.uid == uid
        {
            actor.tell(Message::Base(spec));
            self.weigh(&node);
            self.show(&node, Vec::new());
        }
        self.dirty.insert(node);
    }

    fn miss_base(&mut self, uid: &str, last: Option<&Pod>) {
        self.unreadable.remove(uid);
        let Some(spec) = self.bases.get(uid).cloned() else { return };
        let now = Instant::now();
        let ordered = spec.leaving.is_some_and(|leaving| leaving != Leaving::Deselected)
            || last.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
        self.brake.back(&silence(uid));
        if ordered {
            self.note_own(uid, true);
            self.losses.ordered(uid, &spec.node, now);
        } else {
            self.losses.missing(uid, &spec.node, &spec.namespace, &spec.pod, now);
            self.brake.lost(uid, 1, SETTLE_BASE, now);
            self.look_up_due(now);
        }
        self.dirty.insert(spec.node.clone());
    }

    /// A base Pod was looked up because its watch does not show it.
    pub(super) fn on_found(&mut self, uid: &str, pod: Option<Box<Pod>>) {
        let now = Instant::now();
        let Some(node) = self.losses.get(uid).map(|loss| loss.node.clone()) else { return };
        let is_it = |pod: &Pod| pod.metadata.uid.as_deref() == Some(uid);
        let apart = pod.as_ref().is_some_and(|pod| self.leaves_alone(pod));
        let replaced = pod.as_ref().is_some_and(|pod| apart && !is_it(pod) && !has_ended(pod));
        self.losses.replaced(uid, replaced);
        match pod.filter(|pod| is_it(pod)) {
            None => {
                self.note_own(uid, true);
                if self.has_sidecar(&node) && !self.losses.has_passed(uid) {
                    // It was found at first, and so did not count.
                    self.brake.lost(uid, 1, SETTLE_BASE, now);
                }
                self.losses.judged(uid, Verdict::Gone, now);
            }
            // It ended by itself, which is no accident of many, and its address is free.
            Some(pod) if has_ended(&pod) => {
                self.note_own(uid, true);
                self.brake.back(uid);
                self.losses.ordered(uid, &node, now);
            }
            Some(_) if apart || self.has_sidecar(&node) => self.found_with_sidecar(uid, now),
            Some(pod) => {
                self.losses.judged(uid, Verdict::Deselected, now);
                if !self.bases.contains_key(uid)
                    && let Ok(mut spec) = from_pod(&pod, &self.context.cluster, None)
                {
                    // Its VNode is there already, under the name it was registered with.
                    spec.node.clone_from(&node);
                    spec.started = true;
                    self.want_host(spec.host.as_deref());
                    self.bases.insert(uid.to_owned(), Arc::new(spec));
                }
                if pod.metadata.deletion_timestamp.is_some() {
                    self.brake.back(uid);
                    self.losses.pass(uid);
                }
            }
        }
        self.act_on_loss(uid);
    }

    /// The brake and the look-up have both spoken, or may have.
    pub(super) fn act_on_loss(&mut self, uid: &str) {
        let Some(node) = self.losses.get(uid).map(|loss| loss.node.clone()) else { return };
        if self.losses.verdict(uid) == Some(Verdict::Deselected)
            && let Some(before) = self.bases.get(uid).cloned()
            && before.leaving.is_none()
        {
            let spec = BaseSpec { leaving: Some(Leaving::Deselected), ..(*before).clone() };
            self.take_spec(spec, Some(&before));
        }
        self.dirty.insert(node);
    }

    pub(super) fn see_node(&mut self, seen: SeenNode) {
        let name = seen.name().to_owned();
        let was_paused = self.seen.get(&name).is_some_and(SeenNode::is_paused);
        let is_paused = seen.is_paused();
        if let Some(keeper) = self.slots.get(&name).and_then(|slot| slot.keeper.as_ref()) {
            keeper.saw(seen.clone());
        }
        self.seen.insert(name.clone(), seen);
        if was_paused != is_paused {
            self.hold(&name);
        }
        self.dirty.insert(name);
    }

    pub(super) fn miss_node(&mut self, name: &str, uid: &str) {
        // Another may have its name by now.
        if self.seen.get(name).is_some_and(|seen| seen.uid() == uid) {
            self.seen.remove(name);
        }
        if let Some(slot) = self.slots.get(name)
            && let Some(keeper) = &slot.keeper
        {
            keeper.lost(uid);
        }
        self.dirty.insert(name.to_owned());
    }

    pub(super) fn on_pod(&mut self, feed: Feed<Arc<Pod>>) {
        let deltas =
            self.pods.take(feed, |pod| (pod.metadata.uid.clone().unwrap_or_default(), Arc::clone(pod)));
        for delta in deltas {
            match delta {
                Delta::Put(pod) => self.see_pod(pod),
                Delta::Gone { kept, last } => self.miss_pod(&kept, last.as_deref()),
                Delta::Synced => {}
            }
        }
    }

    fn see_pod(&mut self, pod: Arc<Pod>) {
        let Some(node) = node_of(&pod).map(str::to_owned) else { return };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.module_brake.back(&uid);
        self.pods_on.entry(node.clone()).or_default().insert(uid, Arc::clone(&pod));
        if let Some(actor) = self.slots.get(&node).and_then(|slot| slot.actor.as_ref()) {
            actor.tell(Message::Pod(pod));
        }
    }

    fn miss_pod(&mut self, kept: &Pod, last: Option<&Pod>) {
        let Some(node) = node_of(kept).map(str::to_owned) else { return };
        let uid = kept.metadata.uid.clone().unwrap_or_default();
        self.context.journal.close(&uid);
        if let Some(pods) = self.pods_on.get_mut(&node) {
            pods.remove(&uid);
            if pods.is_empty() {
                self.pods_on.remove(&node);
            }
        }
        self.dirty.insert(node.clone());
        let Some(actor) = self.slots.get(&node).and_then(|slot| slot.actor.as_ref()) else { return };
        let pods = [Some(kept), last];
        let ordered = pods.iter().flatten().any(|pod| is_ordered(pod))
            || self.losses.verdict(&actor.uid) == Some(Verdict::Gone)
            || self.heals.has_begun(&actor.uid)
            || self.bases.get(&actor.uid).is_none_or(|base| base.leaving.is_some());
        let modules = modules_of(kept);
        // A Pod that has no modules leaves nothing behind on the base.
        if ordered || modules == 0 {
            actor.tell(Message::PodGone { uid });
        } else {
            self.module_brake.lost(&uid, modules, SETTLE_MODULE, Instant::now());
        }
    }
}

/// The VNode a Pod is bound to.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Whether somebody wanted this Pod to end: its absence is no accident.
fn is_ordered(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || has_ended(pod)
}

/// Whether a base had been ready since its start before this agent came: its VNode was Ready after that start.
fn was_started(seen: &SeenNode, spec: &BaseSpec) -> bool {
    let ready = seen.condition("Ready").filter(|ready| ready.status == "True" && seen.base_uid() == spec.uid);
    let Some(heartbeat) = ready.and_then(|ready| ready.last_heartbeat_time.as_ref()) else { return false };
    spec.started_at.is_some_and(|start| start <= heartbeat.0)
}

/// The inventory a Node carries, where it can be read.
pub(super) fn inventory(seen: &SeenNode) -> Option<Inventory> {
    let text = seen.annotation(names::INVENTORY)?;
    Inventory::parse(text)
        .inspect_err(
            |error| tracing::warn!(node = seen.name(), %error, "the inventory on the Node is not used"),
        )
        .ok()
}
