//! Bases with an agent of their own (the sidecar shape), from both sides: the agent of a fleet does nothing about them
//! until their Pods are gone, and then removes what they left; the sidecar ends with its base.

use k8s_openapi::api::core::v1::Pod;
use policy::contract::names;
use tokio::time::Instant;

use super::Fleet;
use super::hold::SETTLE_BASE;
use super::losses::Verdict;
use crate::discovery::BaseSpec;
use crate::vnode::SeenNode;

impl Fleet {
    /// Whether an agent of its own looks after the base of this VNode.
    pub(super) fn has_sidecar(&self, node: &str) -> bool {
        self.context.own.is_none()
            && match self.seen.get(node) {
                // Its label may be taken off the Node for a moment; that of the Pod says it too.
                Some(seen) => {
                    seen.has_sidecar()
                        || self.bases.get(seen.base_uid()).is_some_and(|spec| spec.has_sidecar())
                }
                None => self.bases.values().any(|spec| spec.node == node && spec.has_sidecar()),
            }
    }

    /// Whether this base Pod has an agent of its own, which is not this one.
    pub(super) fn leaves_alone(&self, pod: &Pod) -> bool {
        let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::SIDECAR));
        self.context.own.is_none() && label.map(String::as_str) == Some(names::SIDECAR_YES)
    }

    /// What another agent looks after stays as it is while its base Pod is there, or one that has its name now: that
    /// one's agent cleans up as well.
    pub(super) fn reconcile_sidecar(&mut self, node: &str, seen: Option<&SeenNode>, now: Instant) {
        let Some(seen) = seen else { return self.let_go(node) };
        let uid = seen.base_uid().to_owned();
        if self.losses.verdict(&uid) == Some(Verdict::Gone) {
            let is_next = |spec: &BaseSpec| {
                spec.node == node
                    && spec.uid != uid
                    && spec.has_sidecar()
                    && !self.losses.is_missing(&spec.uid)
            };
            let replaced = self.losses.is_replaced(&uid) || self.bases.values().any(|spec| is_next(spec));
            if replaced {
                self.let_go(node);
            // A keeper renews the Lease: while nothing may be removed, that would make a dead base look alive.
            } else if !self.is_put_off(node) {
                self.keep_left(node, seen);
                self.clean(node);
            }
            return;
        }
        self.let_go(node);
        if !self.losses.is_missing(&uid) && !self.is_watched(&uid) {
            let (namespace, pod) = seen.base().unwrap_or_default();
            self.losses.missing(&uid, node, namespace, pod, now);
            self.brake.lost(&uid, 1, SETTLE_BASE, now);
            self.look_up_due(now);
        }
    }

    /// The base Pod of a VNode with an agent of its own was looked up, because no watch of ours shows it: it is there.
    pub(super) fn found_with_sidecar(&mut self, uid: &str, now: Instant) {
        self.losses.there(uid, now);
        self.brake.back(uid);
    }

    /// Remembers whether the one base of this agent is gone.
    pub(super) fn note_own(&mut self, uid: &str, gone: bool) {
        if self.context.own.as_ref().is_some_and(|own| own.uid == uid) {
            self.own_gone = gone;
        }
    }

    /// The containers of our base have ended for good: its VPods have nothing to be drained from any more.
    pub(super) fn on_base_ended(&mut self) {
        let Some(own) = self.context.own.clone() else { return };
        tracing::info!(node = own.node, "the base has ended: its VNode goes");
        self.own_gone = true;
        self.brake.back(&own.uid);
        self.losses.ordered(&own.uid, &own.node, Instant::now());
        self.dirty.insert(own.node);
    }

    /// Ends the process when the one base of this agent is gone and nothing of it is left, or left to another agent.
    pub(super) fn end_with_base(&self) {
        if !self.own_gone || self.context.shutdown.is_cancelled() || !self.is_synced() {
            return;
        }
        let cleaned = || {
            let busy = self.slots.values().any(|slot| slot.actor.is_some() || slot.keeper.is_some());
            let left = self.seen.iter().any(|(name, seen)| {
                let removed = self.slots.get(name).is_some_and(|slot| slot.has_removed(seen.uid()));
                seen.is_ours(&self.context.cluster) && !removed
            });
            self.begun && !busy && !left
        };
        if self.term.is_none() || cleaned() {
            tracing::info!("the base is gone, and nothing is left of it");
            self.context.shutdown.cancel();
        }
    }
}
