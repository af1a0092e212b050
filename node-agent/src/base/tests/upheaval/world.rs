//! A base, what is known of it, and everything that can happen to the two.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use proptest::prelude::*;

use super::super::super::state::Operation;
use super::super::*;
use super::{Happening, Mood, NAMES, VERSIONS};
use crate::arklet::{Code, Failure, StateRecord};

/// As in the actor.
const ORPHAN_DELAY: SignedDuration = SignedDuration::from_secs(10);

/// An operation on its way, and the other versions that the planner went by.
pub(super) struct Flight {
    action: Action,
    others: BTreeSet<String>,
}

impl Flight {
    fn subject(&self) -> (Operation, ModuleId, Option<String>) {
        match &self.action {
            Action::Install { uid, module } => (Operation::Install, module.id.clone(), Some(uid.clone())),
            Action::Switch { uid, id, .. } => (Operation::Switch, id.clone(), Some(uid.clone())),
            Action::Uninstall { id, uid } => (Operation::Uninstall, id.clone(), uid.clone()),
            Action::Adopt { .. } | Action::Fail { .. } | Action::Removed { .. } => unreachable!(),
        }
    }
}

pub(super) struct World {
    pub(super) rig: Rig,
    /// What the base holds.
    pub(super) truth: Vec<Biz>,
    /// What the base is stopping by an order that nobody waits for any more, and since when.
    stopping: Vec<(ModuleId, Timestamp)>,
    /// Whether the base answers.
    up: bool,
    pub(super) flying: Vec<Flight>,
    pods: usize,
}

impl World {
    pub(super) fn new(replace: bool, multi_version: bool) -> Self {
        let mut rig = Rig::new();
        rig.rules.attempts = 1_000;
        rig.rules.lethal_restarts = 1_000;
        rig.rules.replace_foreign = replace;
        rig.rules.versions_per_module = if multi_version { 2 } else { 1 };
        rig.observed.multi_version = multi_version;
        Self { rig, truth: Vec::new(), stopping: Vec::new(), up: true, flying: Vec::new(), pods: 0 }
    }

    pub(super) fn held(&self, id: &ModuleId) -> Option<&Biz> {
        self.truth.iter().find(|biz| biz.name == id.name && biz.version == id.version)
    }

    fn others(modules: &[Biz], id: &ModuleId) -> BTreeSet<String> {
        let others = modules.iter().filter(|biz| biz.name == id.name && biz.version != id.version);
        others.map(|biz| biz.version.clone()).collect()
    }

    /// A list is read.
    fn query(&mut self) {
        if self.up {
            self.rig.observed.modules = self.truth.clone();
            self.rig.observed.answering = true;
            self.rig.memory.listed(&self.truth, &self.rig.desired, self.rig.now);
        }
        if !self.rig.memory.synced {
            self.rig.memory.synced = true;
            self.rig.memory.orphans_after = self.rig.now.checked_add(ORPHAN_DELAY).ok();
        }
    }

    fn pick(&self, which: usize) -> Option<String> {
        let uids: Vec<_> = self.rig.desired.keys().collect();
        (!uids.is_empty()).then(|| uids[which % uids.len()].clone())
    }

    /// Plans and begins until nothing more is begun; checks the promises.
    pub(super) fn turn(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..20 {
            let plan = self.rig.plan();
            self.rig.memory.viewed(&plan.views);
            for (uid, view) in &plan.views {
                if view.withdraw {
                    self.rig.memory.pods.entry(uid.clone()).or_default().withdrawn = true;
                }
            }
            let mut again = false;
            for action in plan.actions {
                again |= self.begin(action)?;
            }
            if !again {
                return Ok(());
            }
        }
        Err(TestCaseError::fail("it never stops"))
    }

    fn begin(&mut self, action: Action) -> Result<bool, TestCaseError> {
        let Rig { observed, memory, rules, desired, .. } = &self.rig;
        let held = memory.held;
        match &action {
            Action::Install { uid, module } => {
                let pod = &desired[uid];
                prop_assert!(!held && observed.answering, "an install while held or silent");
                prop_assert!(observed.find(&module.id).is_none(), "{} is listed already", module.id);
                prop_assert!(pod.removal == Removal::None && !pod.terminal, "for a Pod that goes");
                let installs = self.flying.iter().filter(|flight| flight.subject().0 != Operation::Uninstall);
                prop_assert!(installs.count() < rules.parallel, "more installs than allowed");
            }
            Action::Switch { id, .. } => {
                prop_assert!(!held, "a switch while held");
                let state = observed.find(id).map(|biz| biz.state);
                prop_assert_eq!(state, Some(BizState::Deactivated), "{} is switched", id);
                prop_assert!(
                    self.stopping.iter().all(|(stopping, _)| stopping != id),
                    "{id} is being stopped"
                );
            }
            Action::Uninstall { id, .. } => {
                prop_assert!(!held && observed.answering && memory.synced, "an uninstall too early");
                prop_assert!(observed.find(id).is_some(), "{id} is not there");
                let since =
                    self.stopping.iter().find(|(stopping, _)| stopping == id).map(|(_, since)| *since);
                let in_time = since.is_none_or(|since| since + SignedDuration::from_secs(60) <= self.rig.now);
                prop_assert!(in_time, "a second uninstall of {id} while the first one runs");
                let owner = memory.owner(id);
                prop_assert!(owner.is_some() || rules.replace_foreign, "foreign {id} taken off");
                let wanted = owner.and_then(|owner| Some((owner, desired.get(&owner.uid)?)));
                if let Some((owner, pod)) = wanted {
                    let same =
                        pod.modules().iter().any(|module| module.id == *id && module.hash == owner.hash);
                    let broken = observed
                        .find(id)
                        .is_some_and(|biz| biz.state == BizState::Broken || biz.is_stopping());
                    let failing = memory.pods.get(&owner.uid).is_some_and(|pod| pod.failing.is_some());
                    let goes = pod.terminal || pod.removal == Removal::Uninstalling || failing;
                    prop_assert!(goes || broken || !same, "{id} is wanted by its owner {}", owner.uid);
                }
            }
            Action::Adopt { uid, module } => {
                prop_assert!(!held && observed.find(&module.id).is_some(), "nothing to adopt for {uid}");
                self.rig.begin(&action);
                self.rig.memory.listed(&self.rig.observed.modules, &self.rig.desired, self.rig.now);
                return Ok(true);
            }
            Action::Fail { uid, .. } => {
                self.rig.desired.get_mut(uid).unwrap().terminal = true;
                self.rig.memory.departed.insert(uid.clone());
                return Ok(true);
            }
            Action::Removed { uid } => {
                for module in memory.owned_by(uid) {
                    prop_assert!(observed.find(module).is_none(), "{module} is still there");
                }
                self.gone(&uid.clone());
                return Ok(true);
            }
        }
        let flight = Flight { others: BTreeSet::new(), action };
        let (_, id, _) = flight.subject();
        let twice = self.flying.iter().any(|other| other.subject().1.name == id.name);
        prop_assert!(!twice && !self.rig.memory.busy.contains_key(&id.name), "two operations on {}", id.name);
        self.rig.begin(&flight.action);
        let others = Self::others(&self.rig.observed.modules, &id);
        self.flying.push(Flight { others, ..flight });
        Ok(false)
    }

    fn gone(&mut self, uid: &str) {
        self.rig.desired.remove(uid);
        self.rig.memory.pod_gone(uid);
        if self.rig.observed.answering {
            self.rig.memory.listed(&self.rig.observed.modules, &self.rig.desired, self.rig.now);
        }
    }

    /// What an operation does to the base, and what its caller hears. An install is sent only onto what was expected.
    fn execute(&mut self, flight: &Flight, mood: Mood) -> Result<Outcome, TestCaseError> {
        let (kind, id, _) = flight.subject();
        let failed = |code| Ok(Outcome::Failed(Failure::new(code, "trouble")));
        if !self.up {
            return failed(Code::BaseUnreachable);
        }
        match kind {
            Operation::Install => {
                if self.held(&id).is_some() || Self::others(&self.truth, &id) != flight.others {
                    return Ok(Outcome::Unsent);
                }
                let beside =
                    self.truth.iter().any(|biz| biz.name == id.name && biz.state == BizState::Activated);
                let (state, outcome) = match mood {
                    Mood::Refuses => return failed(Code::ArtifactServer),
                    Mood::Denies => return failed(Code::ArtifactNotFound),
                    Mood::Breaks => (BizState::Broken, failed(Code::ArtifactServer)),
                    Mood::StartsSlowly => (BizState::Resolved, failed(Code::AnswerLost)),
                    Mood::Works | Mood::LosesAnswer => {
                        let state = if beside && !self.rig.observed.multi_version {
                            BizState::Deactivated
                        } else {
                            BizState::Activated
                        };
                        let lost = matches!(mood, Mood::LosesAnswer);
                        (state, if lost { failed(Code::AnswerLost) } else { Ok(Outcome::Done) })
                    }
                };
                prop_assert!(self.held(&id).is_none(), "{id} is on the base already");
                self.truth.push(biz(&id.name, &id.version, state));
                outcome
            }
            Operation::Switch => {
                if self.held(&id).is_none() {
                    return failed(Code::Refused);
                }
                for biz in self.truth.iter_mut().filter(|biz| biz.name == id.name) {
                    if biz.version == id.version {
                        biz.state = BizState::Activated;
                    } else if biz.state == BizState::Activated {
                        biz.state = BizState::Deactivated;
                    }
                }
                Ok(Outcome::Done)
            }
            Operation::Uninstall => match self.held(&id).map(|biz| biz.state) {
                Some(BizState::Resolved) => failed(Code::Refused),
                Some(_) if self.stopping.iter().any(|(stopping, _)| *stopping == id) => {
                    failed(Code::Conflict)
                }
                Some(_) if matches!(mood, Mood::Refuses) => failed(Code::StillListed),
                Some(_) if matches!(mood, Mood::LosesAnswer | Mood::StartsSlowly) => {
                    self.stops(&id);
                    failed(Code::AnswerLost)
                }
                _ => {
                    self.truth.retain(|biz| biz.name != id.name || biz.version != id.version);
                    Ok(Outcome::Done)
                }
            },
        }
    }

    fn land(&mut self, which: usize, mood: Mood) -> Result<(), TestCaseError> {
        if self.flying.is_empty() {
            return Ok(());
        }
        let flight = self.flying.remove(which % self.flying.len());
        let outcome = self.execute(&flight, mood)?;
        let (kind, id, uid) = flight.subject();
        if self.up {
            self.rig.observed.modules = self.truth.clone();
        }
        let container = Some(id.name.clone());
        let ended = Ended { kind, id, uid, container, outcome };
        let Rig { memory, observed, rules, desired, now, .. } = &mut self.rig;
        memory.ended(&ended, observed, rules, 0.5, *now);
        if observed.answering {
            memory.listed(&observed.modules, desired, *now);
        }
        Ok(())
    }

    pub(super) fn happens(&mut self, happening: Happening) -> Result<(), TestCaseError> {
        match happening {
            Happening::PodComes(modules) => {
                if self.rig.desired.len() < 6 {
                    self.pods += 1;
                    let modules: Vec<_> = modules.iter().map(|(n, v)| (NAMES[*n], VERSIONS[*v])).collect();
                    let rig = std::mem::replace(&mut self.rig, Rig::new());
                    self.rig = rig.pod(&format!("p{:03}", self.pods), &modules);
                }
            }
            Happening::PodChanges(pod, version) => {
                if let Some(uid) = self.pick(pod)
                    && let Some(pod) = self.rig.desired.get_mut(&uid)
                    && let Want::Modules(modules) = &mut pod.want
                    && let Some(first) = modules.first_mut()
                    && first.id.version != VERSIONS[version]
                {
                    *first = wanted(&first.id.name.clone(), VERSIONS[version], "h");
                    let container = first.container.clone();
                    self.rig.memory.changed(&uid, &container);
                }
            }
            Happening::PodIsDeleted(pod) => {
                if let Some(uid) = self.pick(pod) {
                    let pod = self.rig.desired.get_mut(&uid).unwrap();
                    pod.removal = pod.removal.max(Removal::Draining);
                    self.rig.memory.departed.insert(uid);
                }
            }
            Happening::PodDrained(pod) => {
                if let Some(uid) = self.pick(pod) {
                    let pod = self.rig.desired.get_mut(&uid).unwrap();
                    if pod.removal == Removal::Draining {
                        pod.removal = Removal::Uninstalling;
                    }
                }
            }
            Happening::PodVanishes(pod) => {
                if let Some(uid) = self.pick(pod) {
                    self.gone(&uid);
                }
            }
            Happening::Reply(which, mood) => self.land(which, mood)?,
            Happening::Query => self.query(),
            Happening::InstallByHand(name, version) => {
                let id = id(NAMES[name], VERSIONS[version]);
                // A base does one thing at a time to a name.
                let busy = self.flying.iter().any(|flight| flight.subject().1.name == id.name);
                if self.up && !busy && !self.truth.iter().any(|biz| biz.name == id.name) {
                    self.truth.push(biz(&id.name, &id.version, BizState::Activated));
                }
            }
            Happening::UninstallByHand(which) => {
                if self.up && !self.truth.is_empty() {
                    let which = which % self.truth.len();
                    let gone = self.truth.remove(which);
                    self.stopping.retain(|(id, _)| id.name != gone.name || id.version != gone.version);
                }
            }
            Happening::Started => self.starts(),
            Happening::Silent => {
                self.up = false;
                self.rig.observed.answering = false;
            }
            Happening::Answers => {
                self.up = true;
                self.query();
            }
            Happening::BaseRestarts => {
                self.truth.clear();
                self.stopping.clear();
                self.up = false;
                self.rig.observed.modules.clear();
                self.rig.observed.answering = false;
                self.rig.memory.restarted(&self.rig.desired, &self.rig.rules, self.rig.now);
            }
            Happening::AgentRestarts => self.agent_restarts()?,
            Happening::Hold(held) => self.rig.memory.held = held,
            Happening::TimePasses(seconds) => self.rig.now += SignedDuration::from_secs(seconds),
        }
        Ok(())
    }

    /// A stop that takes its time has begun.
    fn stops(&mut self, id: &ModuleId) {
        for biz in self.truth.iter_mut().filter(|biz| biz.name == id.name && biz.version == id.version) {
            biz.state = BizState::Deactivated;
            biz.records.push(StateRecord { at: None, state: biz.state, reason: "Killing".to_owned() });
        }
        self.stopping.push((id.clone(), self.rig.now));
    }

    /// What was starting has started, and what was being stopped is gone.
    fn starts(&mut self) {
        for (id, _) in std::mem::take(&mut self.stopping) {
            self.truth.retain(|biz| biz.name != id.name || biz.version != id.version);
        }
        for n in 0..self.truth.len() {
            if self.truth[n].state == BizState::Resolved {
                let name = self.truth[n].name.clone();
                let active = |biz: &Biz| biz.name == name && biz.state == BizState::Activated;
                let beside = self.truth.iter().any(active);
                let beside = beside && !self.rig.observed.multi_version;
                self.truth[n].state = if beside { BizState::Deactivated } else { BizState::Activated };
            }
        }
    }

    /// What was sent is done, and nobody hears of it; owners stand on the Node, phases in the Pods.
    fn agent_restarts(&mut self) -> Result<(), TestCaseError> {
        while !self.flying.is_empty() {
            let flight = self.flying.remove(0);
            let uninstall = flight.subject().0 == Operation::Uninstall;
            self.execute(&flight, if uninstall { Mood::StartsSlowly } else { Mood::Works })?;
        }
        let doubtful = self.rig.now.checked_add(self.rig.rules.install_timeout).ok();
        let before = std::mem::take(&mut self.rig.memory);
        for (id, owner) in before.owners {
            self.rig.memory.own(&id, Ownership { doubtful_until: doubtful, ..owner });
        }
        self.rig.memory.held = before.held;
        for (uid, pod) in &self.rig.desired {
            let memory = self.rig.memory.pods.entry(uid.clone()).or_default();
            memory.running = before.pods.get(uid).is_some_and(|pod| pod.running);
            memory.accepted = memory.running;
            if pod.terminal || pod.removal != Removal::None {
                self.rig.memory.departed.insert(uid.clone());
            }
        }
        self.rig.observed.answering = false;
        self.rig.observed.modules.clear();
        Ok(())
    }

    /// Nothing goes wrong any more, everybody answers, and time passes.
    pub(super) fn calms_down(&mut self) -> Result<(), TestCaseError> {
        self.up = true;
        self.rig.memory.held = false;
        for pod in self.rig.desired.values_mut() {
            if pod.removal == Removal::Draining {
                pod.removal = Removal::Uninstalling;
            }
        }
        for _ in 0..120 {
            self.query();
            self.turn()?;
            if self.flying.is_empty() {
                self.starts();
                self.rig.now += SignedDuration::from_secs(400);
            } else {
                self.land(0, Mood::Works)?;
            }
        }
        self.query();
        self.turn()
    }
}
