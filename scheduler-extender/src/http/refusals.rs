//! What becomes of Pods that were refused on every node.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use policy::Policy;
use policy::contract::{ModulePod, PodKind};
use service::policy_file::Versioned;

use super::Extender;
use crate::base_limits::BaseLimits;
use crate::cache::{NodeKind, Snapshot};
use crate::kinds::Memory;
use crate::placement::Judge;
use crate::reservations::Reservations;
use crate::waiting::{Ground, Refused, Waiting};

/// Longest time spent at once on looking for places.
const BUDGET: Duration = Duration::from_millis(20);

/// Pods that are worth waking.
#[derive(Debug, Default)]
pub struct Due {
    /// These, now.
    pub pods: Vec<Refused>,
    /// Others may follow without anything new: they rest, or were not looked at yet.
    pub more: bool,
}

impl Extender {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A Pod was refused on every node, by what this snapshot and this policy say.
    pub(super) fn refused(
        &self,
        pod: &ModulePod,
        snapshot: &Snapshot,
        policy: &Versioned<Policy>,
        now: Instant,
    ) {
        let mut waiting = self.waiting();
        waiting.refused(pod, ground(snapshot, policy), now);
        self.metrics.waiting(waiting.len());
        drop(waiting);
        // The snapshot may be old by now, and nothing newer may come.
        self.refusals.notify_one();
    }

    /// A Pod has a place, or is gone.
    pub fn placed(&self, uid: &str) {
        let mut waiting = self.waiting();
        waiting.forget(uid);
        self.metrics.waiting(waiting.len());
    }

    /// A Pod that was due could not be woken.
    pub fn not_woken(&self, refused: &Refused) {
        self.waiting().not_nudged(refused);
    }

    /// At most so many Pods that were refused and would fit by what is known now. They count as woken.
    pub fn due(&self, now: Instant, most: usize) -> Due {
        // What cannot be believed wakes nobody; filter answers with errors meanwhile, which are tried again anyway.
        let Ok(snapshot) = self.snapshot(now) else {
            return Due { more: !self.waiting().is_empty(), ..Due::default() };
        };
        let policy = self.policy();
        let ground = ground(&snapshot, &policy);
        let (outdated, resting) = self.waiting().outdated(ground, now);
        let until = Instant::now() + BUDGET;
        let mut due = Due { more: resting, pods: Vec::new() };
        let mut limits = BaseLimits::default();
        for refused in outdated {
            if due.pods.len() >= most || Instant::now() >= until {
                due.more = true;
                break;
            }
            let uid = &refused.pod.uid;
            match snapshot.pods.get(&refused.pod.key()).filter(|pod| pod.uid == *uid) {
                Some(pod) if pod.node_name.is_none() && !pod.deleting => {
                    if self.has_place(pod, &snapshot, &policy, &mut limits) {
                        self.waiting().nudged(uid, ground, now);
                        due.pods.push(refused);
                    } else {
                        self.waiting().still_refused(uid, ground);
                    }
                }
                // kube-scheduler may have heard of it before us.
                None if now.saturating_duration_since(refused.since) < self.limits.reservation => {
                    due.more = true;
                }
                Some(_) | None => self.placed(uid),
            }
        }
        due
    }

    fn has_place(
        &self,
        pod: &Arc<ModulePod>,
        snapshot: &Snapshot,
        policy: &Arc<Versioned<Policy>>,
        limits: &mut BaseLimits,
    ) -> bool {
        let nobody = Reservations::new(Duration::ZERO);
        let kind = PodKind::Module(Box::new(ModulePod::clone(pod)));
        let judge = Judge::new(&kind, snapshot, &policy.policy, &nobody);
        // With a copy of what is remembered, because those who answer kube-scheduler must not wait for a walk over all
        // nodes.
        let mut kind = self.kinds().of(pod, policy).cloned();
        let found = snapshot.nodes.iter().any(|(name, entry)| {
            let Some(NodeKind::Base(facts)) = &entry.kind else { return false };
            // Where no slot is left kube-scheduler does not even ask.
            let taken = u32::try_from(entry.pods.len()).unwrap_or(u32::MAX);
            let mut memory = kind.as_mut().map(|kind| Memory { kind, limits: &mut *limits });
            taken < facts.allocatable_pods && judge.judge(name, entry, memory.as_mut()).is_ok()
        });
        if let Some(kind) = kind {
            self.kinds().learn(kind);
        }
        found
    }
}

fn ground(snapshot: &Snapshot, policy: &Versioned<Policy>) -> Ground {
    Ground { loosened: snapshot.loosened, policy: policy.generation }
}
