//! Bases that healing has evicted, and those that come in their place.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Fleet;
use super::gate::SETTLE;
use super::mirror::Mirror;
use crate::discovery::BaseSpec;
use crate::healing::{Awaited, Notes, Sibling, Verdict};

impl Fleet {
    /// Evicts the base Pod, once the Lease says that its successor is awaited.
    pub(super) fn replace(&mut self, spec: &BaseSpec, now: Instant) {
        let (Some(controller), Some(notes)) = (&spec.controller, &mut self.heals.notes) else { return };
        if !notes.has(&spec.uid) {
            let of_it = self.sources.iter().flat_map(Mirror::values);
            let created = of_it
                .filter(|key| key.controller.as_ref() == Some(&controller.uid))
                .filter_map(|key| key.created);
            let newest = created.max().or(spec.created).unwrap_or(Timestamp::UNIX_EPOCH);
            notes.0.push(Awaited::new(&spec.uid, &controller.uid, newest));
            self.context.leader.note.want(notes.to_annotation());
        }
        let written = Notes::parse(self.context.leader.note.stored().as_deref());
        if !written.has(&spec.uid) || !self.may_ask(&spec.uid, &spec.uid, now) {
            return;
        }
        let client = self.context.base_client.clone();
        self.evict(client, &spec.uid, (spec.namespace.clone(), spec.pod.clone(), spec.uid.clone()), None);
    }

    /// Looks whether the successors of bases that have gone are complete.
    pub(super) fn look_for_successors(&mut self, now: Instant, wall: Timestamp) {
        let mut notes = match self.heals.notes.take() {
            Some(notes) => notes,
            None => Notes::parse(self.context.leader.note.stored().as_deref()),
        };
        // An earlier agent was about to evict it, and its JVM began anew before: it is healed by that.
        let kept = |awaited: &Awaited| {
            let Some(spec) = self.bases.get(&awaited.base).filter(|spec| spec.leaving.is_none()) else {
                return true;
            };
            let actor = self.slots.get(&spec.node).and_then(|slot| slot.actor.as_ref());
            actor.is_none_or(|actor| actor.uid != awaited.base) || self.heals.has(&awaited.base)
        };
        notes.0.retain(kept);
        if !notes.0.is_empty() {
            let siblings = self.siblings(&notes, now, wall);
            let there: BTreeSet<&str> =
                self.sources.iter().flat_map(Mirror::values).map(|key| key.uid.as_str()).collect();
            for (base_uid, verdict) in notes.look(|base| there.contains(base), &siblings, wall) {
                match verdict {
                    Verdict::Awaited => {}
                    Verdict::Complete(_) => tracing::info!(base_uid, "a base is healed"),
                    Verdict::Abandoned => {
                        tracing::warn!(base_uid, "no successor came for a base that was healed");
                    }
                }
            }
        }
        let text = notes.to_annotation();
        if !self.context.observe && text != self.context.leader.note.stored() {
            self.context.leader.note.want(text);
        }
        self.heals.notes = Some(notes);
    }

    /// Pods that may be successors: those of the same controllers.
    fn siblings(&mut self, notes: &Notes, now: Instant, wall: Timestamp) -> Vec<Sibling> {
        let mut complete = std::mem::take(&mut self.heals.complete);
        let mut siblings = Vec::new();
        for key in self.sources.iter().flat_map(Mirror::values) {
            let (Some(controller), Some(created)) = (&key.controller, key.created) else { continue };
            let may_be = |awaited: &Awaited| awaited.controller == *controller && created > awaited.newest;
            if !notes.0.iter().any(may_be) {
                continue;
            }
            let whole = self.bases.get(&key.uid).is_some_and(|spec| {
                spec.started
                    && spec.leaving.is_none()
                    && self.is_vnode_ready(&spec.node)
                    && self.awaited(spec, wall).is_empty()
            });
            let since = if whole {
                Some(*complete.entry(key.uid.clone()).or_insert(now))
            } else {
                complete.remove(&key.uid);
                None
            };
            // Controllers and kube-scheduler need a moment to see a new VNode.
            let settled = since.is_some_and(|since| now.saturating_duration_since(since) >= SETTLE);
            siblings.push(Sibling { controller: controller.clone(), created, complete: settled });
        }
        if !siblings.is_empty() {
            self.heals.complete = complete;
        }
        siblings
    }
}
