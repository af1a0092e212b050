//! How the memory of a base changes: when operations begin and end, when a list was read, when the base
//! restarted, when VPods come and go. Pure, like the planner that reads it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::restart::Cause;
use super::state::{
    Action, Busy, Desired, Memory, ModuleId, Observed, Operation, Ownership, PodView, Rules, Wanted,
    on_its_way,
};
use crate::arklet::{Biz, BizState, Class, Code, Failure};

/// How an operation on a module ended, after the truth was read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// What was done.
    pub kind: Operation,
    /// The module.
    pub id: ModuleId,
    /// For which VPod and container.
    pub uid: Option<String>,
    /// Container of the VPod.
    pub container: Option<String>,
    /// Whether it failed.
    pub outcome: Outcome,
}

/// Outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// arklet said success.
    Done,
    /// Nothing was sent: what the planner went by was not true any more, or its time had passed.
    Unsent,
    /// arklet said success, but for another module: the jar's manifest names it.
    Other(ModuleId),
    /// It failed, or nobody knows.
    Failed(Failure),
}

impl Memory {
    /// An action begins. Installs and adoptions write the owner down first.
    pub fn begin(&mut self, action: &Action, desired: &BTreeMap<String, Desired>, now: Timestamp) {
        let (kind, id, uid) = match action {
            Action::Install { uid, module } => {
                self.take(desired, uid, module);
                self.pods.entry(uid.clone()).or_default().accepted = true;
                (Operation::Install, &module.id, Some(uid.clone()))
            }
            Action::Switch { uid, id, .. } => (Operation::Switch, id, Some(uid.clone())),
            Action::Uninstall { id, uid } => (Operation::Uninstall, id, uid.clone()),
            Action::Adopt { uid, module } => {
                self.take(desired, uid, module);
                self.pods.entry(uid.clone()).or_default().accepted = true;
                return;
            }
            Action::Fail { .. } | Action::Removed { .. } => return,
        };
        self.busy.insert(id.name.clone(), Busy { kind, id: id.clone(), uid, since: now });
    }

    fn take(&mut self, desired: &BTreeMap<String, Desired>, uid: &str, module: &Wanted) {
        let Some(pod) = desired.get(uid) else { return };
        let owner = Ownership {
            uid: uid.to_owned(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            hash: module.hash.clone(),
            doubtful_until: None,
        };
        self.own(&module.id, owner);
    }

    /// An operation ended; `observed` is the truth read after it. `jitter` in 0..1 spreads retries.
    pub fn ended(&mut self, ended: &Ended, observed: &Observed, rules: &Rules, jitter: f64, now: Timestamp) {
        self.busy.remove(&ended.id.name);
        if ended.kind == Operation::Install {
            self.tried(ended, observed, now);
        }
        match ended.kind {
            Operation::Uninstall => self.uninstalled(ended, observed, rules, jitter, now),
            Operation::Install | Operation::Switch => self.installed(ended, observed, rules, jitter, now),
        }
    }

    /// Whether an install that ended may have killed the base.
    fn tried(&mut self, ended: &Ended, observed: &Observed, now: Timestamp) {
        let code = match &ended.outcome {
            Outcome::Unsent => return self.not_sent(&ended.id),
            Outcome::Failed(failure) => Some(failure.code),
            Outcome::Done | Outcome::Other(_) => None,
        };
        if code == Some(Code::BaseUnreachable) {
            self.not_sent(&ended.id);
        } else if observed.answering && (code != Some(Code::AnswerLost) || observed.find(&ended.id).is_some())
        {
            self.survived(&ended.id, now);
        }
    }

    fn uninstalled(
        &mut self,
        ended: &Ended,
        observed: &Observed,
        rules: &Rules,
        jitter: f64,
        now: Timestamp,
    ) {
        if observed.find(&ended.id).is_none() && observed.answering {
            self.stuck.remove(&ended.id);
            if let Some(uid) = &ended.uid {
                self.taken_off(uid, &ended.id, now);
            }
            return;
        }
        if ended.outcome == Outcome::Unsent {
            return;
        }
        let (tries, at) = self.stuck.entry(ended.id.clone()).or_insert((0, now));
        *tries = tries.saturating_add(1);
        *at = later(now, backoff(rules, *tries, jitter));
    }

    /// A module was taken off on purpose: that is no loss, though it counts as a restart when it comes back.
    fn taken_off(&mut self, uid: &str, id: &ModuleId, now: Timestamp) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        let Some((_, owner)) = self.owners.iter().find(|(owned, _)| owned == id) else { return };
        if owner.uid != uid {
            return;
        }
        for module in pod.modules.values_mut().filter(|module| module.active) {
            // Only the container that ran this one; the others' entries are confirmed by the next list.
            if module.running.as_ref() == Some(id) {
                module.ended(Cause::Replaced, "taken off for what replaces it", now);
            }
        }
    }

    fn installed(&mut self, ended: &Ended, observed: &Observed, rules: &Rules, jitter: f64, now: Timestamp) {
        let (Some(uid), Some(container)) = (&ended.uid, &ended.container) else { return };
        let failure = match &ended.outcome {
            Outcome::Unsent => return,
            Outcome::Other(actual) => {
                // It is ours, under a name that nobody wants: the planner takes it off.
                if let Some((_, owner)) = self.owners.iter().find(|(id, _)| *id == ended.id) {
                    let owner = owner.clone();
                    self.own(actual, owner);
                }
                let text = format!("the jar says {actual}, the Pod says {}", ended.id);
                Some(Failure::new(Code::IdentityDiffers, &text))
            }
            Outcome::Done => None,
            Outcome::Failed(failure) => Some(failure.clone()),
        };
        if ended.kind == Operation::Switch {
            self.module_mut(uid, container).switched = true;
        }
        if !observed.answering {
            self.unknown(ended, uid, container, failure, rules, now);
            return;
        }
        let listed = observed.answering.then(|| observed.find(&ended.id).map(|biz| biz.state)).flatten();
        // What is listed counts more than what was answered.
        match (listed, failure) {
            (Some(BizState::Activated), _) => {
                let module = self.module_mut(uid, container);
                module.attempts = 0;
                module.nudges = 0;
                module.next_try = None;
                module.failure = None;
            }
            (Some(state), _) if on_its_way(state) => {}
            (Some(BizState::Deactivated), _) if ended.kind == Operation::Install => {}
            (_, Some(failure)) => self.failed(ended, uid, container, failure, rules, jitter, now),
            (_, None) => {
                let failure =
                    Failure::new(Code::NotActive, "arklet said success, but the module is not active");
                self.failed(ended, uid, container, failure, rules, jitter, now);
            }
        }
    }

    /// Nobody could read what came of it: nothing is counted, and the next list decides. Only what cannot
    /// become true by itself is kept.
    fn unknown(
        &mut self,
        ended: &Ended,
        uid: &str,
        container: &str,
        failure: Option<Failure>,
        rules: &Rules,
        now: Timestamp,
    ) {
        let until = later(now, rules.install_timeout);
        if let Some((_, owner)) = self.owners.iter_mut().find(|(id, _)| *id == ended.id) {
            owner.doubtful_until = Some(until);
        }
        match failure {
            Some(failure) if failure.class() != Class::Transient => {
                self.failed(ended, uid, container, failure, rules, 0.5, now);
            }
            failure => {
                let module = self.module_mut(uid, container);
                module.nudges = module.nudges.saturating_add(1);
                module.next_try = Some(later(now, rules.backoff_initial));
                module.failure = failure;
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
    fn failed(
        &mut self,
        ended: &Ended,
        uid: &str,
        container: &str,
        failure: Failure,
        rules: &Rules,
        jitter: f64,
        now: Timestamp,
    ) {
        if failure.code == Code::AnswerLost {
            let until = later(now, rules.install_timeout);
            if let Some((_, owner)) = self.owners.iter_mut().find(|(id, _)| *id == ended.id) {
                owner.doubtful_until = Some(until);
            }
        }
        if failure.class() == Class::Poisonous {
            self.exhausted = true;
        }
        let module = self.module_mut(uid, container);
        let blameless = match failure.code {
            // Nobody tried: the base is away, or an operation of an earlier life of ours still runs.
            Code::BaseUnreachable | Code::MetaspaceExhausted => true,
            Code::Conflict | Code::Repeat => {
                let waited = rules.backoff_initial.saturating_mul(module.nudges.min(1_000));
                waited < rules.install_timeout
            }
            _ => false,
        };
        let step = if blameless {
            module.nudges = module.nudges.saturating_add(1);
            1
        } else {
            module.attempts = module.attempts.saturating_add(1);
            module.attempts
        };
        module.next_try = Some(later(now, backoff(rules, step, jitter)));
        let for_good = match failure.class() {
            Class::Permanent => true,
            Class::Transient => !blameless && module.attempts >= rules.attempts,
            Class::Poisonous => false,
        };
        module.failure = Some(failure.clone());
        if for_good {
            let pod = self.pods.entry(uid.to_owned()).or_default();
            pod.failing.get_or_insert((container.to_owned(), failure));
        }
    }

    /// A list was read. What was active and is gone without our doing is lost and comes back as a restart.
    pub fn listed(&mut self, modules: &[Biz], desired: &BTreeMap<String, Desired>, now: Timestamp) {
        let find =
            |id: &ModuleId| modules.iter().find(|biz| biz.name == id.name && biz.version == id.version);
        self.starting.retain(|id, _| find(id).is_some_and(|biz| on_its_way(biz.state)));
        for biz in modules.iter().filter(|biz| on_its_way(biz.state)) {
            let id = ModuleId { name: biz.name.clone(), version: biz.version.clone() };
            self.starting.entry(id).or_insert(now);
        }
        self.stopping.retain(|id, _| find(id).is_some_and(Biz::is_stopping));
        for biz in modules.iter().filter(|biz| biz.is_stopping()) {
            let id = ModuleId { name: biz.name.clone(), version: biz.version.clone() };
            self.stopping.entry(id).or_insert(now);
        }
        self.stuck.retain(|id, _| find(id).is_some());
        for pod in desired.values() {
            for wanted in pod.modules() {
                let active = find(&wanted.id).is_some_and(|biz| biz.state == BizState::Activated);
                let ours = self.owner(&wanted.id).is_some_and(|owner| owner.uid == pod.uid);
                let busy = self.busy.contains_key(&wanted.id.name);
                let module = self.module_mut(&pod.uid, &wanted.container);
                if active && ours {
                    if !module.active {
                        module.switched = false;
                    }
                    module.active = true;
                    module.was_active = true;
                    module.running = Some(wanted.id.clone());
                    module.failure = None;
                    module.attempts = 0;
                    module.nudges = 0;
                } else if module.active && module.running.as_ref() == Some(&wanted.id) && !busy {
                    module.lost(pod.removal, Cause::Vanished, "gone from the base", now);
                }
            }
        }
        self.forget_owners(modules, desired, now);
    }

    /// Owners of what is neither listed nor wanted nor on its way are history.
    fn forget_owners(&mut self, modules: &[Biz], desired: &BTreeMap<String, Desired>, now: Timestamp) {
        let Self { owners, busy, .. } = self;
        owners.retain_mut(|(id, owner)| {
            let listed = modules.iter().any(|biz| biz.name == id.name && biz.version == id.version);
            if listed {
                owner.doubtful_until = None;
            }
            let wanted = desired
                .get(&owner.uid)
                .is_some_and(|pod| pod.living() && pod.modules().iter().any(|module| module.id == *id));
            listed
                || wanted
                || busy.contains_key(&id.name)
                || owner.doubtful_until.is_some_and(|until| until > now)
        });
        let kept: Vec<_> = self.owners.iter().map(|(_, owner)| owner.uid.clone()).collect();
        self.departed.retain(|uid| kept.contains(uid));
    }

    /// The base's container restarted: all modules are gone, and what was installed just before is suspected.
    /// `died` is when the base was last known to be well, or now.
    pub fn restarted(&mut self, desired: &BTreeMap<String, Desired>, rules: &Rules, died: Timestamp) {
        self.exhausted = false;
        self.starting.clear();
        self.stopping.clear();
        self.stuck.clear();
        self.blame(rules, died);
        for pod in desired.values() {
            if let Some(memory) = self.pods.get_mut(&pod.uid) {
                for module in memory.modules.values_mut() {
                    if module.active {
                        module.lost(pod.removal, Cause::BaseRestarted, "the base restarted", died);
                    }
                    module.next_try = None;
                    module.switched = false;
                }
            }
        }
    }

    /// Takes over what the planner found: phases only ever go forward, and a release in place is over when
    /// everything is active again.
    pub fn viewed(&mut self, views: &BTreeMap<String, PodView>) {
        for (uid, view) in views {
            let pod = self.pods.entry(uid.clone()).or_default();
            if view.installed() {
                pod.running = true;
                pod.withdrawn = false;
            }
        }
    }

    /// The Pod object is gone.
    pub fn pod_gone(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.forgive(uid);
    }

    /// What a VPod asks for changed: what was remembered against the old wish does not hold against the new, and
    /// what is replaced now must be told first, too.
    pub fn changed(&mut self, uid: &str, container: &str) {
        self.pods.entry(uid.to_owned()).or_default().withdrawn = false;
        let module = self.module_mut(uid, container);
        module.attempts = 0;
        module.nudges = 0;
        module.next_try = None;
        module.failure = None;
        module.switched = false;
        module.unhealthy = None;
        module.crashes = None;
    }
}

fn backoff(rules: &Rules, attempt: u32, jitter: f64) -> Duration {
    let doubled = rules
        .backoff_initial
        .saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1).min(20)))
        .min(rules.backoff_max);
    // Between 75 % and 125 %, so that VPods that failed together do not come back together.
    doubled.mul_f64(0.75 + 0.5 * jitter.clamp(0.0, 1.0))
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
