//! Decides what to do on a base: pure, from what VPods want, what the base lists and what is remembered.
//!
//! Promises, whatever comes in: at most one operation on one module name at a time; never an install of a
//! name and version that is listed; never an uninstall of a module that is not ours, unless the policy says
//! `replace`; nothing is uninstalled before all bound Pods are known, and nothing at all while held.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::lethal::Flying;
use super::moving::{Moving, moving};
use super::requirements::{Base, Requirements};
use super::state::{
    Action, Desired, Memory, ModuleId, ModuleState, Observed, Operation, Plan, PodView, Reason, Removal,
    Rules, Want, Wanted,
};
use super::step::{Step, Surroundings, step};
use crate::arklet::BizState;

/// Plans what to do now.
pub fn plan(
    desired: &BTreeMap<String, Desired>,
    observed: &Observed,
    memory: &Memory,
    rules: &Rules,
    now: Timestamp,
) -> Plan {
    let order = order(desired, memory);
    let admitted = admitted(&order, memory, rules);
    let claims = claims(&order, &admitted, memory);
    let base = Base { desired, observed, memory, rules, claims: &claims };
    let requirements = Requirements::of(&base, &order);
    let moving = moving(&base, &requirements);
    let first = requirements.first().map(|(uid, why)| (uid.to_owned(), why.to_owned()));
    let mut planner = Planner {
        desired,
        observed,
        memory,
        rules,
        now,
        claims,
        moving,
        admitted,
        names: memory.busy.keys().cloned().collect(),
        pods: memory.busy.values().filter_map(|busy| busy.uid.clone()).collect(),
        installs: memory.busy.values().filter(|busy| busy.kind != Operation::Uninstall).count(),
        flying: Flying::of(memory, desired),
        uninstalls: memory.busy.values().filter(|busy| busy.kind == Operation::Uninstall).count(),
        requirements,
        plan: Plan { first, ..Plan::default() },
    };
    // Removals first: what waits for a name or a slot can then see that it is on its way.
    planner.orphans();
    for pod in order {
        planner.pod(pod);
    }
    planner.plan
}

struct Planner<'a> {
    desired: &'a BTreeMap<String, Desired>,
    observed: &'a Observed,
    memory: &'a Memory,
    rules: &'a Rules,
    now: Timestamp,
    /// Which VPod each wanted module belongs to.
    claims: BTreeMap<ModuleId, String>,
    /// Who may give up what it has though what it wants is not free yet.
    moving: Moving,
    /// VPods within the base's limit.
    admitted: BTreeSet<String>,
    /// What waits for other modules.
    requirements: Requirements,
    /// Module names with an operation on its way or planned.
    names: BTreeSet<String>,
    /// VPods with an operation on its way or planned.
    pods: BTreeSet<String>,
    installs: usize,
    flying: Flying,
    uninstalls: usize,
    plan: Plan,
}

impl Planner<'_> {
    fn wake(&mut self, at: Timestamp) {
        self.plan.wake = Some(self.plan.wake.map_or(at, |known| known.min(at)));
    }

    /// Modules of ours that nobody claims.
    fn orphans(&mut self) {
        if !self.memory.synced || !self.observed.answering {
            return;
        }
        // What was installed last goes first: it may use what was there before it.
        for (id, owner) in self.memory.owners.iter().rev() {
            if self.observed.find(id).is_none() {
                continue;
            }
            let pod = self.desired.get(&owner.uid);
            // Whoever claims it takes it over from an owner that is gone, but waits for one that lives.
            let living = pod.is_some_and(Desired::living);
            if self.claims.get(id).is_some_and(|claimant| *claimant == owner.uid || !living) {
                continue;
            }
            let due = match pod {
                None => self.gone(&owner.uid),
                Some(pod) if pod.terminal || pod.removal == Removal::Uninstalling => true,
                Some(pod) if self.failing(&pod.uid) => true,
                // A VPod that cannot be read (any more) still owns what runs.
                Some(pod) if matches!(pod.want, Want::Reading | Want::Unreadable { .. }) => false,
                Some(pod) if pod.removal == Removal::Draining => false,
                Some(pod) => {
                    self.memory.pods.get(&pod.uid).is_some_and(|memory| memory.withdrawn)
                        || pod
                            .modules()
                            .iter()
                            .all(|module| module.id.name != id.name || self.has(pod, module))
                }
            };
            if due && !pod.is_some_and(|pod| pod.paused) {
                self.uninstall(id, pod.map(|pod| pod.uid.as_str()));
            }
        }
    }

    /// Whether a VPod that is not bound here any more is really gone, as opposed to lost in a fault of ours.
    fn gone(&mut self, uid: &str) -> bool {
        if self.memory.departed.contains(uid) {
            return true;
        }
        self.plan.orphans = self.plan.orphans.saturating_add(1);
        match self.memory.orphans_after {
            Some(at) if at > self.now => {
                self.wake(at);
                false
            }
            _ => true,
        }
    }

    /// Whether a VPod has this module already.
    fn has(&self, pod: &Desired, module: &Wanted) -> bool {
        self.memory.owner(&module.id).is_some_and(|owner| owner.uid == pod.uid)
            && self.observed.find(&module.id).is_some_and(|biz| biz.state == BizState::Activated)
    }

    fn failing(&self, uid: &str) -> bool {
        self.memory.pods.get(uid).is_some_and(|memory| memory.failing.is_some())
    }

    fn uninstall(&mut self, id: &ModuleId, uid: Option<&str>) -> bool {
        let busy = self.names.contains(&id.name) || uid.is_some_and(|uid| self.pods.contains(uid));
        let paused = self.memory.owner(id).is_some_and(|o| self.memory.paused.contains(&o.namespace));
        if self.memory.held || paused || busy || self.uninstalls >= self.rules.parallel.max(2) {
            return false;
        }
        let stuck = self.memory.stuck.get(id).map(|(_, at)| *at);
        let stopping = self.memory.stopping_until(id, self.rules);
        if let Some(at) = stuck.max(stopping).filter(|at| *at > self.now) {
            self.wake(at);
            return false;
        }
        self.uninstalls = self.uninstalls.saturating_add(1);
        self.begin(id, uid);
        self.plan.actions.push(Action::Uninstall { id: id.clone(), uid: uid.map(ToOwned::to_owned) });
        true
    }

    fn begin(&mut self, id: &ModuleId, uid: Option<&str>) {
        self.names.insert(id.name.clone());
        if let Some(uid) = uid {
            self.pods.insert(uid.to_owned());
        }
    }

    fn pod(&mut self, pod: &Desired) {
        if pod.removal == Removal::Uninstalling && self.nothing_left(pod) {
            self.plan.actions.push(Action::Removed { uid: pod.uid.clone() });
        }
        if pod.terminal {
            return;
        }
        let memory = self.memory.pods.get(&pod.uid);
        let running = memory.is_some_and(|memory| memory.running);
        let failing = memory.and_then(|memory| memory.failing.as_ref());
        let modules = match (&pod.want, failing) {
            (Want::NotAModule { message }, _) => {
                self.fail(pod, "NotAModule", message.clone());
                Vec::new()
            }
            (_, Some((container, failure))) => {
                if self.nothing_left(pod) && !self.memory.held {
                    self.fail(
                        pod,
                        failure.code.as_str(),
                        format!("module in container {container}: {failure}"),
                    );
                }
                let message = failure.to_string();
                all(pod, Reason::Uninstalling, &format!("a module of this Pod failed for good: {message}"))
            }
            (Want::Modules(modules), None) => self.modules(pod, modules),
            (Want::Reading | Want::Unreadable { .. }, None) => Vec::new(),
        };
        let releasing = modules
            .iter()
            .any(|(_, state)| matches!(state, ModuleState::Waiting { reason: Reason::Releasing, .. }));
        let view = PodView {
            running: running || (failing.is_none() && all_active(&modules)),
            withdraw: releasing || self.observed.leaving,
            modules: replaying(modules, running),
        };
        self.plan.views.insert(pod.uid.clone(), view);
    }

    fn fail(&mut self, pod: &Desired, reason: &'static str, message: String) {
        if pod.removal == Removal::None {
            self.plan.actions.push(Action::Fail { uid: pod.uid.clone(), reason, message });
        }
    }

    /// Whether nothing that we did for this VPod is on the base or on its way.
    fn nothing_left(&self, pod: &Desired) -> bool {
        let busy = self.pods.contains(&pod.uid);
        let mut owned = self.memory.owned_by(&pod.uid).peekable();
        !busy
            && (owned.peek().is_none()
                || (self.observed.answering && owned.all(|id| self.observed.find(id).is_none())))
    }

    fn modules(&mut self, pod: &Desired, modules: &[Wanted]) -> Vec<(String, ModuleState)> {
        if pod.removal != Removal::None {
            return modules.iter().map(|module| (module.container.clone(), self.as_it_is(module))).collect();
        }
        if !self.admitted.contains(&pod.uid) {
            let message =
                "the base has as many VPods as the policy allows; this one was bound past the limit";
            return all(pod, Reason::BaseFull, message);
        }
        if !owns_or_accepted(self.memory, &pod.uid)
            && let Some(objection) = &pod.rejected
        {
            return all(pod, Reason::PolicyRejected, objection);
        }
        let mut before: Option<&str> = None;
        let mut states = Vec::with_capacity(modules.len());
        for module in modules {
            let state = self.module(pod, module, before);
            if !matches!(state, ModuleState::Active { .. }) && before.is_none() {
                before = Some(&module.container);
            }
            states.push((module.container.clone(), state));
        }
        states
    }

    /// What a module shows while its VPod is being removed.
    fn as_it_is(&self, module: &Wanted) -> ModuleState {
        match self.observed.find(&module.id) {
            Some(biz) if biz.state == BizState::Activated => {
                ModuleState::Active { since: biz.activated_at() }
            }
            _ => ModuleState::Waiting {
                reason: Reason::Uninstalling,
                message: "the Pod is being deleted".to_owned(),
            },
        }
    }

    fn module(&mut self, pod: &Desired, module: &Wanted, before: Option<&str>) -> ModuleState {
        let step = step(&Surroundings {
            desired: self.desired,
            observed: self.observed,
            memory: self.memory,
            rules: self.rules,
            now: self.now,
            claims: &self.claims,
            moving: &self.moving,
            pod,
            module,
            before,
            requires: self.requirements.wait(&pod.uid, &module.container),
            name_busy: self.names.contains(&module.id.name),
            pod_busy: self.pods.contains(&pod.uid),
            slot_free: self.installs < self.rules.parallel,
            flying: self.flying,
        });
        match step {
            Step::Active { since } => ModuleState::Active { since },
            Step::Wait { reason, message, until } => {
                if let Some(until) = until {
                    self.wake(until);
                }
                ModuleState::Waiting { reason, message }
            }
            Step::Adopt => {
                self.plan.actions.push(Action::Adopt { uid: pod.uid.clone(), module: module.clone() });
                waiting(Reason::Queued, "found on the base; being adopted")
            }
            Step::Install => {
                self.installs = self.installs.saturating_add(1);
                self.flying.begins(self.memory.suspect(&pod.uid, module).is_some());
                self.begin(&module.id, Some(&pod.uid));
                self.plan.actions.push(Action::Install { uid: pod.uid.clone(), module: module.clone() });
                waiting(Reason::Installing, "being installed")
            }
            Step::Switch => {
                self.installs = self.installs.saturating_add(1);
                self.begin(&module.id, Some(&pod.uid));
                self.plan.actions.push(Action::Switch {
                    uid: pod.uid.clone(),
                    container: module.container.clone(),
                    id: module.id.clone(),
                });
                waiting(Reason::Installing, "loaded; being made the active version")
            }
            Step::Uninstall { id, reason, message } => {
                self.uninstall(&id, Some(&pod.uid));
                ModuleState::Waiting { reason, message }
            }
        }
    }
}

/// Every module of a Pod waits for the same reason.
fn all(pod: &Desired, reason: Reason, message: &str) -> Vec<(String, ModuleState)> {
    pod.modules().iter().map(|module| (module.container.clone(), waiting(reason, message))).collect()
}

fn waiting(reason: Reason, message: &str) -> ModuleState {
    ModuleState::Waiting { reason, message: message.to_owned() }
}

fn all_active(modules: &[(String, ModuleState)]) -> bool {
    !modules.is_empty() && modules.iter().all(|(_, state)| matches!(state, ModuleState::Active { .. }))
}

/// What comes back after it has run once is a replay, whatever step it is at.
fn replaying(modules: Vec<(String, ModuleState)>, running: bool) -> Vec<(String, ModuleState)> {
    const STEPS: [Reason; 4] =
        [Reason::Installing, Reason::Queued, Reason::WaitingForModule, Reason::WaitingForBase];
    modules
        .into_iter()
        .map(|(container, state)| match state {
            ModuleState::Waiting { reason, message } if running && STEPS.contains(&reason) => {
                (container, ModuleState::Waiting { reason: Reason::Replaying, message })
            }
            other => (container, other),
        })
        .collect()
}

fn owns_or_accepted(memory: &Memory, uid: &str) -> bool {
    memory.pods.get(uid).is_some_and(|pod| pod.accepted || pod.running)
        || memory.owned_by(uid).next().is_some()
}

/// In which order VPods are served: replay in the order of the inventory, then the oldest first. Modules that
/// may have killed the base come last, so that their neighbours are restored first.
fn order<'a>(desired: &'a BTreeMap<String, Desired>, memory: &Memory) -> Vec<&'a Desired> {
    let mut pods: Vec<_> = desired.values().collect();
    pods.sort_by_cached_key(|pod| {
        let lethal = pod
            .modules()
            .iter()
            .filter_map(|module| memory.suspect(&pod.uid, module))
            .map(|suspect| suspect.deaths.saturating_add(1))
            .max()
            .unwrap_or(0);
        let place = memory.owners.iter().position(|(_, owner)| owner.uid == pod.uid).unwrap_or(usize::MAX);
        (lethal, place, pod.created, pod.uid.clone())
    });
    pods
}

/// Which VPods are within the limit: those that have something on the base always, then in order.
fn admitted(order: &[&Desired], memory: &Memory, rules: &Rules) -> BTreeSet<String> {
    let counted: Vec<&Desired> = order
        .iter()
        .copied()
        .filter(|pod| !pod.terminal && !matches!(pod.want, Want::NotAModule { .. }))
        .collect();
    let (settled, new): (Vec<_>, Vec<_>) =
        counted.into_iter().partition(|pod| owns_or_accepted(memory, &pod.uid));
    let free = rules.pods_per_base.saturating_sub(settled.len());
    settled.into_iter().chain(new.into_iter().take(free)).map(|pod| pod.uid.clone()).collect()
}

/// Gives every wanted module to one VPod: to its owner, else to the first that wants it.
fn claims(order: &[&Desired], admitted: &BTreeSet<String>, memory: &Memory) -> BTreeMap<ModuleId, String> {
    let eligible: Vec<&Desired> = order
        .iter()
        .copied()
        .filter(|pod| {
            let failing = memory.pods.get(&pod.uid).is_some_and(|memory| memory.failing.is_some());
            !pod.terminal
                && !failing
                && pod.removal != Removal::Uninstalling
                && admitted.contains(&pod.uid)
                && (pod.rejected.is_none() || owns_or_accepted(memory, &pod.uid))
        })
        .collect();
    let mut claims = BTreeMap::new();
    for pod in &eligible {
        for module in pod.modules() {
            if memory.owner(&module.id).is_some_and(|owner| owner.uid == pod.uid) {
                claims.insert(module.id.clone(), pod.uid.clone());
            }
        }
    }
    for pod in &eligible {
        // What is draining keeps what it has, but takes nothing over.
        for module in pod.modules().iter().filter(|_| pod.removal == Removal::None) {
            claims.entry(module.id.clone()).or_insert_with(|| pod.uid.clone());
        }
    }
    claims
}
