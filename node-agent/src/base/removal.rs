//! VPods that go: by a deletionTimestamp, or because their base leaves or is silent. Out of the traffic first, off the
//! base then, the object last.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::actor::Actor;
use super::bound::Bound;
use super::context::EventKind;
use super::hooks::Hooked;
use super::state::Removal;
use super::told::Told;
use crate::failure::FailedPod;
use crate::vpod::delete::{self, Drain, Facts, Limits, Next};
use crate::vpod::write::{self, Eviction};

/// How the object of a VPod is taken away.
#[derive(Debug, Clone, Copy)]
enum Leave {
    /// Within its budgets.
    Evicted,
    /// Within its own grace period where none is given.
    Deleted { grace: Option<u32> },
}

impl Actor {
    /// Moves every removal on as far as it goes now.
    pub(super) fn removals(&mut self) {
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        for uid in uids {
            if self.gone {
                self.base_gone(&uid);
            } else if self.pods.get(&uid).is_some_and(Bound::leaving) {
                self.deleted_by_someone(&uid);
            } else if self.observed.leaving {
                self.base_leaving(&uid);
            } else {
                self.release(&uid);
                self.evict_silent(&uid);
            }
        }
    }

    pub(super) fn drain_limits(&self) -> Limits {
        let operations = &self.policy.operations;
        Limits { wait: operations.drain.wait, load_balancer: operations.gates.load_balancer_limit }
    }

    pub(super) fn facts_of(&self, uid: &str) -> Facts {
        let active =
            self.memory.pods.get(uid).is_some_and(|pod| pod.modules.values().any(|module| module.active));
        let Some(bound) = self.pods.get(uid) else {
            return Facts { active, hooks: false, listed_ready: false, foreign_gate: false };
        };
        Facts {
            active,
            hooks: !delete::hooks(&bound.pod).is_empty(),
            listed_ready: self.context.endpoints.ready(&bound.desired.namespace, uid),
            foreign_gate: delete::foreign_gate(&bound.pod),
        }
    }

    fn deleted_by_someone(&mut self, uid: &str) {
        let now = self.now();
        let facts = self.facts_of(uid);
        let limits = self.drain_limits();
        let stopped = self.stopped();
        let force_after = self.policy.operations.drain.force_after;
        let Some(bound) = self.pods.get_mut(uid) else { return };
        let deadline = bound.pod.metadata.deletion_timestamp.as_ref().map_or(now, |time| {
            let left = time.0.duration_since(self.context.clock.now());
            now.checked_add(left).unwrap_or(now)
        });
        let drain = bound.drain.get_or_insert_with(|| {
            fault_point!(DrainBegun);
            Drain::new(now, deadline, delete::grace(&bound.pod))
        });
        let over = drain.deadline();
        bound.desired.removal = bound.desired.removal.max(Removal::Draining);
        if bound.desired.removal == Removal::Draining && !stopped && !bound.desired.paused {
            match drain.next(facts, limits, now) {
                Next::Uninstall => {
                    fault_point!(Drained);
                    bound.desired.removal = Removal::Uninstalling;
                }
                Next::Hooks => {
                    let limit = delete::grace(&bound.pod);
                    self.call_hooks(uid, |_| true, limit, Hooked::Deletion);
                }
                Next::Wait(until) => self.wake_at(until),
            }
        }
        self.force(uid, over, force_after, now);
    }

    /// What cannot be finished does not block a deletion for ever.
    fn force(&mut self, uid: &str, over: Timestamp, after: Duration, now: Timestamp) {
        if !self.uninstalling(uid) || self.context.observe {
            return;
        }
        if now < over {
            self.wake_at(over);
            return;
        }
        let installing =
            self.memory.busy.values().any(|busy| {
                busy.uid.as_deref() == Some(uid) && busy.kind != super::state::Operation::Uninstall
            });
        let limit = over.checked_add(after).unwrap_or(Timestamp::MAX);
        let unreachable = !self.observed.answering && (self.checks.silent() || !self.spec.started);
        if installing || (unreachable && now >= limit) {
            // The owner entry stays: what is still there, or still comes, is uninstalled when it can be.
            self.memory.departed.insert(uid.to_owned());
            let Some(bound) = self.pods.get_mut(uid) else { return };
            if !std::mem::replace(&mut bound.forced, true) {
                self.context.meter.forced();
            }
            if !bound.only_waits_for_finalizers() {
                self.remove_object(uid);
            }
            return;
        }
        if unreachable {
            self.wake_at(limit);
            return;
        }
        let stuck = self.memory.owned_by(uid).find(|id| self.memory.stuck.contains_key(id)).cloned();
        if let Some(id) = stuck
            && let Some(bound) = self.pods.get_mut(uid)
            && !std::mem::replace(&mut bound.told_stuck, true)
        {
            let note =
                format!("the grace period is over and {id} is still on the base; its uninstall is retried");
            self.emit(uid, EventKind::Warning, "UninstallStuck", "Uninstalling", note);
        }
    }

    /// There is no deletionTimestamp yet, so Ready=False comes first; then the controllers shall make new ones.
    fn base_leaving(&mut self, uid: &str) {
        if self.held() {
            return;
        }
        let Some(bound) = self.pods.get(uid) else { return };
        if bound.desired.terminal || bound.ready() {
            return;
        }
        self.delete_object(uid, None);
    }

    fn base_gone(&mut self, uid: &str) {
        if self.held() {
            return;
        }
        if self.pods.get(uid).is_some_and(|bound| !bound.desired.terminal || bound.ending) {
            self.take_away(uid);
        }
    }

    /// `health.evictSilentAfter`: controllers shall make replacements elsewhere.
    fn evict_silent(&mut self, uid: &str) {
        let Some(after) = self.policy.operations.health.evict_silent_after else { return };
        let Some(since) = self.checks.silent_since() else { return };
        if self.held() {
            return;
        }
        let now = self.now();
        let due = since.checked_add(after).unwrap_or(Timestamp::MAX);
        if now < due {
            self.wake_at(due);
            return;
        }
        let Some(bound) = self.pods.get(uid) else { return };
        if bound.desired.terminal || bound.desired.paused {
            return;
        }
        self.begin_leaving(uid, Leave::Evicted);
    }

    /// Ends a VPod whose modules are off the base: its last status where it stays, then its object.
    pub(super) fn take_away(&mut self, uid: &str) {
        let waits = self.pods.get(uid).is_some_and(Bound::only_waits_for_finalizers);
        if !self.last_status(uid) && (!waits || self.gone) {
            self.remove_object(uid);
        }
    }

    /// Removes the object of a VPod.
    fn remove_object(&mut self, uid: &str) {
        self.delete_object(uid, Some(0));
    }

    fn delete_object(&mut self, uid: &str, grace: Option<u32>) {
        if !self.context.observe {
            self.begin_leaving(uid, Leave::Deleted { grace });
        }
    }

    /// Asks the API server to take a VPod away, unless it was asked just before.
    fn begin_leaving(&mut self, uid: &str, leave: Leave) {
        let now = self.now();
        let Some(bound) = self.pods.get_mut(uid) else { return };
        if !bound.deleting.due(now) {
            if let Some(next) = bound.deleting.next.filter(|next| *next > now) {
                self.wake_at(next);
            }
            return;
        }
        bound.deleting.running = true;
        let (client, tell, term) =
            (self.context.client.clone(), self.tell.clone(), self.context.term.clone());
        let (namespace, name) = (bound.desired.namespace.clone(), bound.desired.name.clone());
        let (calls, uid) = (Arc::clone(&self.context.pod_calls), uid.to_owned());
        self.tasks.spawn(async move {
            let permit = calls.acquire_owned().await;
            fault_point!(ObjectDeleting);
            let asked = match leave {
                Leave::Evicted => {
                    let asked = write::evict(&client, &term, &namespace, &name, &uid).await;
                    asked.map(|eviction| eviction == Eviction::Granted)
                }
                Leave::Deleted { grace } => {
                    let asked = write::delete(&client, &term, &namespace, &name, &uid, grace).await;
                    asked.map(|()| false)
                }
            };
            drop(permit);
            fault_point!(ObjectDeleted);
            tell.send(Told::Deleted { uid, asked });
        });
    }

    /// What the API server said; `Ok(true)` is an eviction that it granted.
    pub(super) fn deleted(&mut self, uid: &str, asked: Result<bool, String>) {
        let now = self.now();
        let gone = self.gone;
        if asked == Ok(true) {
            let note = "the base has been silent for longer than the policy allows".to_owned();
            self.emit(uid, EventKind::Warning, "EvictedFromSilentBase", "Evicting", note);
        }
        let Some(bound) = self.pods.get_mut(uid) else { return };
        match asked {
            Err(error) => {
                tracing::warn!(pod = %bound.desired.name, namespace = %bound.desired.namespace, %error, "VPod not deleted");
                bound.deleting.failed(now);
            }
            Ok(_) if gone => {
                self.pods.remove(uid);
            }
            Ok(_) => {
                // The watch will say so; should its event be lost, the object is asked for again.
                bound.deleting.running = false;
                bound.deleting.next = now.checked_add(Duration::from_secs(5)).ok();
            }
        }
    }

    /// Deletes a Failed VPod that is one too many.
    pub(super) fn sweep(&mut self, pod: FailedPod) {
        if self.context.observe {
            return;
        }
        let (client, tell, term) =
            (self.context.client.clone(), self.tell.clone(), self.context.term.clone());
        let calls = Arc::clone(&self.context.pod_calls);
        self.tasks.spawn(async move {
            let _permit = calls.acquire_owned().await;
            let error = write::delete(&client, &term, &pod.namespace, &pod.name, &pod.uid, None).await.err();
            tell.send(Told::Swept { pod, error });
        });
    }
}
