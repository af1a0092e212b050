//! From any state of a base, under any order of replies, everything settles, and the planner's promises hold
//! at every step.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::state::Operation;
use super::*;
use crate::arklet::{Code, Failure};

/// What a simulated base does with an operation.
#[derive(Debug, Clone, Copy)]
enum Mood {
    Works,
    /// Done, but the answer is lost.
    LosesAnswer,
    /// Not done, transient.
    Refuses,
    /// Registered as broken.
    Breaks,
    /// Main returns later.
    StartsSlowly,
}

fn mood() -> impl Strategy<Value = Mood> {
    prop_oneof![
        4 => Just(Mood::Works),
        1 => Just(Mood::LosesAnswer),
        1 => Just(Mood::Refuses),
        1 => Just(Mood::Breaks),
        1 => Just(Mood::StartsSlowly),
    ]
}

#[derive(Debug, Clone)]
struct Found {
    name: usize,
    version: usize,
    state: BizState,
    /// 0: foreign; else owner of that number (some of which do not live).
    owner: usize,
    same_hash: bool,
}

fn found() -> impl Strategy<Value = Found> {
    let state = prop_oneof![
        Just(BizState::Activated),
        Just(BizState::Deactivated),
        Just(BizState::Broken),
        Just(BizState::Resolved),
    ];
    (0..3_usize, 0..3_usize, state, 0..5_usize, any::<bool>())
        .prop_map(|(name, version, state, owner, same_hash)| Found { name, version, state, owner, same_hash })
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const VERSIONS: [&str; 3] = ["1", "2", "3"];

/// VPods: modules as (name, version), whether the Pod is being removed, and the name of a module that all of them require.
type Pods = Vec<(Vec<(usize, usize)>, bool, Option<usize>)>;

fn pods() -> impl Strategy<Value = Pods> {
    let modules = proptest::collection::btree_map(0..3_usize, 0..3_usize, 1..3)
        .prop_map(|modules| modules.into_iter().collect::<Vec<_>>());
    let needed = proptest::option::weighted(0.3, 0..3_usize);
    proptest::collection::vec((modules, proptest::bool::weighted(0.2), needed), 0..4)
}

struct World {
    rig: Rig,
    flying: Vec<Action>,
    foreign: BTreeSet<ModuleId>,
    removed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl World {
    fn new(pods: &Pods, on_base: &[Found], replace: bool) -> Self {
        let mut rig = Rig::new();
        rig.rules.attempts = 1_000;
        rig.rules.lethal_restarts = 1_000;
        rig.rules.replace_foreign = replace;
        for (n, (modules, removing, needed)) in pods.iter().enumerate() {
            let modules: Vec<_> = modules.iter().map(|(n, v)| (NAMES[*n], VERSIONS[*v])).collect();
            rig = rig.pod(&format!("p{}", n + 1), &modules);
            if let Some(needed) = needed {
                rig = rig.needs(&format!("p{}", n + 1), NAMES[*needed], None);
            }
            if *removing {
                rig = rig.edit(&format!("p{}", n + 1), |pod| pod.removal = Removal::Uninstalling);
            }
        }
        let mut foreign = BTreeSet::new();
        let mut active = BTreeSet::new();
        for found in on_base {
            let module = id(NAMES[found.name], VERSIONS[found.version]);
            if rig.observed.find(&module).is_some() {
                continue;
            }
            // One version of a name is active at most.
            let state = if found.state == BizState::Activated && !active.insert(found.name) {
                BizState::Deactivated
            } else {
                found.state
            };
            rig.observed.modules.push(biz(&module.name, &module.version, state));
            if found.owner == 0 {
                foreign.insert(module);
            } else {
                let hash = if found.same_hash { "h" } else { "x" };
                rig.memory.own(&module, owner(&format!("p{}", found.owner), hash));
            }
        }
        rig.memory.listed(&rig.observed.modules.clone(), &rig.desired.clone(), rig.now);
        Self { rig, flying: Vec::new(), foreign, removed: BTreeSet::new(), failed: BTreeSet::new() }
    }

    /// Plans and begins; checks the promises.
    fn turn(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..20 {
            let plan = self.rig.plan();
            self.rig.memory.viewed(&plan.views);
            let mut again = false;
            for action in plan.actions {
                again |= self.begin(action)?;
            }
            if !again {
                return Ok(());
            }
        }
        Err(TestCaseError::fail("adoption without end"))
    }

    fn begin(&mut self, action: Action) -> Result<bool, TestCaseError> {
        let module = match &action {
            Action::Install { module, .. } | Action::Adopt { module, .. } => Some(module.id.clone()),
            Action::Switch { id, .. } | Action::Uninstall { id, .. } => Some(id.clone()),
            Action::Fail { .. } | Action::Removed { .. } => None,
        };
        if let Some(module) = &module {
            prop_assert!(!self.rig.memory.busy.contains_key(&module.name), "two operations on {module}");
        }
        match &action {
            Action::Install { module, .. } => {
                prop_assert!(self.rig.observed.find(&module.id).is_none(), "{} is there already", module.id);
            }
            Action::Uninstall { id, .. } => {
                let ours = self.rig.memory.owner(id).is_some();
                let foreign = self.foreign.contains(id) && !ours;
                prop_assert!(!foreign || self.rig.rules.replace_foreign, "foreign {id} taken off");
            }
            Action::Fail { uid, .. } => {
                prop_assert!(self.failed.insert(uid.clone()), "failed twice");
                self.rig.desired.get_mut(uid).unwrap().terminal = true;
                return Ok(true);
            }
            Action::Removed { uid } => {
                for module in self.rig.memory.owned_by(uid) {
                    prop_assert!(self.rig.observed.find(module).is_none(), "{module} is still there");
                }
                self.removed.insert(uid.clone());
                self.rig.desired.remove(uid);
                self.rig.memory.pod_gone(uid);
                return Ok(true);
            }
            Action::Adopt { .. } | Action::Switch { .. } => {}
        }
        self.rig.begin(&action);
        if matches!(action, Action::Adopt { .. }) {
            self.rig.memory.listed(
                &self.rig.observed.modules.clone(),
                &self.rig.desired.clone(),
                self.rig.now,
            );
            return Ok(true);
        }
        self.flying.push(action);
        Ok(false)
    }

    /// One of the operations on their way ends.
    fn land(&mut self, which: usize, mood: Mood) {
        if self.flying.is_empty() {
            return;
        }
        let action = self.flying.remove(which % self.flying.len());
        let lost = Outcome::Failed(Failure::new(Code::AnswerLost, "lost"));
        let refused = Outcome::Failed(Failure::new(Code::ArtifactServer, "503"));
        let modules = &mut self.rig.observed.modules;
        let (kind, module, uid, outcome) = match action {
            Action::Install { uid, module } => {
                let active =
                    modules.iter().any(|b| b.name == module.id.name && b.state == BizState::Activated);
                let state = match mood {
                    Mood::Refuses => None,
                    Mood::Breaks => Some(BizState::Broken),
                    Mood::StartsSlowly => Some(BizState::Resolved),
                    Mood::Works | Mood::LosesAnswer if active => Some(BizState::Deactivated),
                    Mood::Works | Mood::LosesAnswer => Some(BizState::Activated),
                };
                if let Some(state) = state {
                    modules.push(biz(&module.id.name, &module.id.version, state));
                }
                let outcome = match mood {
                    Mood::Works => Outcome::Done,
                    Mood::LosesAnswer | Mood::StartsSlowly => lost,
                    Mood::Refuses | Mood::Breaks => refused,
                };
                (Operation::Install, module.id, Some(uid), outcome)
            }
            Action::Switch { uid, id, .. } => {
                for biz in modules.iter_mut().filter(|biz| biz.name == id.name) {
                    if biz.version == id.version {
                        biz.state = BizState::Activated;
                    } else if biz.state == BizState::Activated {
                        biz.state = BizState::Deactivated;
                    }
                }
                (Operation::Switch, id, Some(uid), Outcome::Done)
            }
            Action::Uninstall { id, uid } => {
                let starting = modules.iter().any(|biz| {
                    biz.name == id.name && biz.version == id.version && biz.state == BizState::Resolved
                });
                let outcome = match mood {
                    _ if starting => Outcome::Failed(Failure::new(Code::Refused, "starting")),
                    Mood::Refuses => Outcome::Failed(Failure::new(Code::StillListed, "still")),
                    _ => {
                        modules.retain(|biz| biz.name != id.name || biz.version != id.version);
                        self.foreign.remove(&id);
                        Outcome::Done
                    }
                };
                (Operation::Uninstall, id, uid, outcome)
            }
            Action::Adopt { .. } | Action::Fail { .. } | Action::Removed { .. } => unreachable!(),
        };
        let uid = uid.unwrap_or_default();
        self.rig.end(kind, &uid, &module, outcome);
    }

    /// What was starting has started (or, beside an active one, is deactivated).
    fn starts(&mut self) {
        for n in 0..self.rig.observed.modules.len() {
            if self.rig.observed.modules[n].state == BizState::Resolved {
                let name = self.rig.observed.modules[n].name.clone();
                let active = self
                    .rig
                    .observed
                    .modules
                    .iter()
                    .any(|biz| biz.name == name && biz.state == BizState::Activated);
                self.rig.observed.modules[n].state =
                    if active { BizState::Deactivated } else { BizState::Activated };
            }
        }
        self.rig.memory.listed(&self.rig.observed.modules.clone(), &self.rig.desired.clone(), self.rig.now);
    }

    fn restart(&mut self) {
        self.rig.observed.modules.clear();
        self.foreign.clear();
        self.rig.memory.restarted(&self.rig.desired.clone(), &rules(), self.rig.now);
        self.rig.memory.listed(&[], &self.rig.desired.clone(), self.rig.now);
    }

    /// At rest: every VPod has what it wants or waits for something that is really there, and nothing of ours
    /// is left that nobody wants.
    fn settled(&self) -> Result<(), TestCaseError> {
        let plan = self.rig.plan();
        prop_assert!(self.flying.is_empty());
        prop_assert_eq!(plan.actions.iter().map(shown).collect::<Vec<_>>(), Vec::<String>::new());
        for (uid, view) in &plan.views {
            for (container, state) in &view.modules {
                let ModuleState::Waiting { reason, message } = state else { continue };
                let fine = matches!(
                    reason,
                    Reason::SameModule
                        | Reason::WaitingForOldVersion
                        | Reason::ForeignModule
                        | Reason::WaitingForModule
                        | Reason::Deactivated
                ) || (*reason == Reason::Replaying
                    && (message.starts_with("waits for container")
                        || message.starts_with("requires module")));
                prop_assert!(fine, "{uid}/{container} is stuck: {reason:?} {message}");
            }
        }
        for biz in &self.rig.observed.modules {
            let module = id(&biz.name, &biz.version);
            if let Some(owner) = self.rig.memory.owner(&module) {
                prop_assert!(self.rig.desired.contains_key(&owner.uid), "{module} of nobody is left");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn it_settles_and_keeps_its_promises(
        pods in pods(),
        on_base in proptest::collection::vec(found(), 0..5),
        replace: bool,
        moods in proptest::collection::vec((any::<usize>(), mood(), proptest::bool::weighted(0.05)), 0..40),
    ) {
        let mut world = World::new(&pods, &on_base, replace);
        for (which, mood, restart) in moods {
            world.turn()?;
            if restart {
                // What is on its way dies with the base.
                while !world.flying.is_empty() {
                    world.land(0, Mood::Refuses);
                }
                world.restart();
            } else {
                world.land(which, mood);
            }
            world.rig.now += jiff::SignedDuration::from_secs(1);
        }
        // Then nothing goes wrong any more.
        for _ in 0..200 {
            world.turn()?;
            if world.flying.is_empty() {
                world.starts();
                world.rig.now += jiff::SignedDuration::from_secs(400);
            } else {
                world.land(0, Mood::Works);
            }
        }
        world.turn()?;
        world.settled()?;
    }
}
