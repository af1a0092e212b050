//! VPods that go: by a deletionTimestamp, because their base leaves, or because another version replaces what
//! they run in place. Out of the traffic first, off the base then, the object last.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::actor::Actor;
use super::bound::Bound;
use super::context::EventKind;
use super::hooks::Hooked;
use super::state::{ModuleState, Reason, Removal};
use super::told::Told;
use crate::failure::FailedPod;
use crate::vpod::delete::{self, Drain, Facts, Limits, Next};
use crate::vpod::write;

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

    fn drain_limits(&self) -> Limits {
        let operations = &self.policy.operations;
        Limits { wait: operations.drain.wait, load_balancer: operations.gates.load_balancer_limit }
    }

    fn facts_of(&self, uid: &str) -> Facts {
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
        let (stopped, observe) = (self.stopped(), self.context.observe);
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
                Next::Hooks if observe => {
                    drain.hooks_done();
                    self.wake_at(now);
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
            self.context.meter.forced();
            self.remove_object(uid);
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

    /// A release in place has left the traffic when no slice lists the Pod and the drain wait is over.
    fn release(&mut self, uid: &str) {
        let now = self.now();
        let view = self.views.get(uid);
        let withdraw = view.is_some_and(|view| view.withdraw);
        let releasing = |(_, state): &&(String, ModuleState)| {
            matches!(state, ModuleState::Waiting { reason: Reason::Releasing, .. })
        };
        let replaced: Vec<String> = view
            .into_iter()
            .flat_map(|view| view.modules.iter().filter(releasing))
            .map(|(container, _)| container.clone())
            .collect();
        let facts = self.facts_of(uid);
        let limits = self.drain_limits();
        let Some(bound) = self.pods.get_mut(uid) else { return };
        if !withdraw {
            bound.release = None;
            return;
        }
        if bound.ready() {
            // The write of Ready=False is on its way.
            return;
        }
        let grace = delete::grace(&bound.pod);
        let deadline = now.checked_add(grace).unwrap_or(now);
        let drain = bound.release.get_or_insert_with(|| Drain::new(now, deadline, grace));
        // As for a kubelet, only what is replaced is told that it ends.
        let replaced = |container: &str| replaced.iter().any(|name| name == container);
        let hooks = delete::hooks(&bound.pod).iter().any(|(container, _)| replaced(container));
        match drain.next(Facts { hooks, ..facts }, limits, now) {
            Next::Uninstall => {
                fault_point!(ReleaseDrained);
                self.memory.pods.entry(uid.to_owned()).or_default().withdrawn = true;
            }
            Next::Hooks => self.call_hooks(uid, replaced, grace, Hooked::Release),
            Next::Wait(until) => self.wake_at(until),
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
        if self.begin_leaving(uid, Leave::Evicted) {
            let note = "the base has been silent for longer than the policy allows".to_owned();
            self.emit(uid, EventKind::Warning, "EvictedFromSilentBase", "Evicting", note);
        }
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

    /// Asks the API server to take a VPod away, unless it was asked just before. Gives back whether it is asked now.
    fn begin_leaving(&mut self, uid: &str, leave: Leave) -> bool {
        let now = self.now();
        let Some(bound) = self.pods.get_mut(uid) else { return false };
        if !bound.deleting.due(now) {
            if let Some(next) = bound.deleting.next.filter(|next| *next > now) {
                self.wake_at(next);
            }
            return false;
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
                Leave::Evicted => write::evict(&client, &term, &namespace, &name, &uid).await.map(drop),
                Leave::Deleted { grace } => {
                    write::delete(&client, &term, &namespace, &name, &uid, grace).await
                }
            };
            drop(permit);
            fault_point!(ObjectDeleted);
            tell.send(Told::Deleted { uid, error: asked.err() });
        });
        true
    }

    pub(super) fn deleted(&mut self, uid: &str, error: Option<String>) {
        let now = self.now();
        let gone = self.gone;
        let Some(bound) = self.pods.get_mut(uid) else { return };
        match error {
            Some(error) => {
                tracing::warn!(pod = %bound.desired.name, namespace = %bound.desired.namespace, %error, "VPod not deleted");
                bound.deleting.failed(now);
            }
            None if gone => {
                self.pods.remove(uid);
            }
            None => {
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
