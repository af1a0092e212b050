//! A module that kills the base is held, whatever its neighbours do; they never are.

use proptest::prelude::*;

use super::super::state::Operation;
use super::*;
use crate::arklet::{Code, Failure};

fn lost() -> Outcome {
    Outcome::Failed(Failure::new(Code::AnswerLost, "the connection broke"))
}

/// A base on which one module kills the JVM, during its install or some time after it.
struct World {
    rig: Rig,
    flying: Vec<(String, Wanted)>,
    /// Seconds after its install; 0: during it.
    delay: i64,
    kills_at: Option<Timestamp>,
    good: Timestamp,
    deaths: u32,
}

const KILLER: &str = "x";

impl World {
    fn new(neighbours: usize, place: usize, delay: i64) -> Self {
        let mut rig = Rig::new();
        let mut names: Vec<_> = ["a", "b", "c", "d"].into_iter().take(neighbours).collect();
        names.insert(place.min(names.len()), KILLER);
        for name in names {
            rig = rig.pod(name, &[(name, "1")]);
        }
        let good = rig.now;
        Self { rig, flying: Vec::new(), delay, kills_at: None, good, deaths: 0 }
    }

    fn turn(&mut self) {
        let plan = self.rig.plan();
        for (uid, view) in &plan.views {
            let held = view
                .modules
                .iter()
                .any(|(_, state)| matches!(state, ModuleState::Waiting { reason: Reason::Lethal, .. }));
            assert!(
                !held || uid == KILLER,
                "{uid} is held after {} deaths: {:?}",
                self.deaths,
                self.rig.memory.lethal
            );
        }
        self.rig.memory.viewed(&plan.views);
        for action in plan.actions {
            self.rig.begin(&action);
            let Action::Install { uid, module } = action else { panic!("{action:?}") };
            self.rig.memory.sent(&module.id, self.rig.now);
            self.flying.push((uid, module));
        }
    }

    fn list(&mut self) {
        let (modules, desired) = (self.rig.observed.modules.clone(), self.rig.desired.clone());
        self.rig.memory.listed(&modules, &desired, self.rig.now);
        self.rig.memory.outlived(&modules, self.rig.rules.lethal_within, self.rig.now);
        self.good = self.rig.now;
    }

    /// An install ends with what the base lists now.
    fn ends(&mut self, uid: String, module: &Wanted, outcome: Outcome) {
        let ended = Ended {
            kind: Operation::Install,
            id: module.id.clone(),
            container: Some(module.container.clone()),
            uid: Some(uid),
            outcome,
        };
        let (rules, now) = (self.rig.rules.clone(), self.rig.now);
        self.rig.memory.ended(&ended, &self.rig.observed, &rules, 0.5, now);
    }

    fn land(&mut self, which: usize, told_late: bool) {
        let (uid, module) = self.flying.remove(which % self.flying.len());
        if uid == KILLER && self.delay == 0 {
            self.flying.push((uid, module));
            return self.die(told_late);
        }
        if uid == KILLER {
            self.kills_at = self.rig.now.checked_add(jiff::SignedDuration::from_secs(self.delay)).ok();
        }
        self.rig.observed.modules.push(biz(&module.id.name, &module.id.version, BizState::Activated));
        self.list();
        self.ends(uid, &module, Outcome::Done);
        self.list();
    }

    /// The calls on their way break before the restart is told, or after it.
    fn die(&mut self, told_late: bool) {
        self.deaths += 1;
        self.kills_at = None;
        self.rig.observed.modules.clear();
        self.rig.observed.answering = false;
        let flying = std::mem::take(&mut self.flying);
        let restarted = |world: &mut Self| {
            let (desired, rules) = (world.rig.desired.clone(), world.rig.rules.clone());
            world.rig.memory.restarted(&desired, &rules, world.good);
        };
        if told_late {
            restarted(self);
        }
        for (uid, module) in flying {
            self.ends(uid, &module, lost());
        }
        if !told_late {
            restarted(self);
        }
        self.rig.now += jiff::SignedDuration::from_secs(20);
        self.rig.observed.answering = true;
        self.list();
    }

    /// Time passes until something may happen, at most one check.
    fn pass(&mut self) {
        let wake = self.rig.plan().wake;
        let check = self.rig.now + jiff::SignedDuration::from_secs(10);
        self.rig.now =
            [Some(check), wake, self.kills_at].into_iter().flatten().min().unwrap().max(self.rig.now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn only_the_killer_is_held(
        neighbours in 0..5_usize,
        place in 0..5_usize,
        delay in prop_oneof![Just(0_i64), 1..50_i64],
        restarts in 1..4_u32,
        chances in proptest::collection::vec((any::<usize>(), any::<bool>(), 0..8_i64), 20..60),
    ) {
        let mut world = World::new(neighbours, place, delay);
        world.rig.rules.lethal_restarts = restarts;
        for (which, told_late, takes) in chances.iter().cycle().take(600) {
            world.turn();
            if world.flying.is_empty() {
                world.pass();
            } else {
                world.rig.now += jiff::SignedDuration::from_secs(*takes);
            }
            if world.kills_at.is_some_and(|at| at <= world.rig.now) {
                world.die(*told_late);
            } else if world.flying.is_empty() {
                world.list();
            } else {
                world.land(*which, *told_late);
            }
        }
        let plan = world.rig.plan();
        for (uid, view) in &plan.views {
            prop_assert_eq!(view.installed(), uid != KILLER, "{} after {} deaths", uid, world.deaths);
        }
        prop_assert_eq!(world.rig.reason(KILLER), Some(Reason::Lethal));
        // Each neighbour may draw the blame away, but for the last time.
        let bound = restarts * (u32::try_from(neighbours).unwrap() + 1);
        prop_assert!(world.deaths <= bound, "{} deaths", world.deaths);
    }
}

/// Three deaths for the killer of a fresh base, as the policy says; its neighbour was installed each time, too.
fn held() -> Rig {
    let mut world = World::new(1, 1, 0);
    for _ in 0..60 {
        world.turn();
        if world.flying.is_empty() {
            world.pass();
            world.list();
        } else {
            world.land(0, false);
        }
    }
    assert_eq!(world.deaths, 3);
    assert_eq!(world.rig.reason(KILLER), Some(Reason::Lethal));
    world.rig
}

#[test]
fn a_retry_or_another_vpod_is_tried_again() {
    let mut rig = held();
    rig.memory.forgive(KILLER);
    assert_eq!(rig.actions(), ["install x:1 for x"]);
    let mut rig = held();
    rig.desired.remove(KILLER);
    rig.memory.pod_gone(KILLER);
    let rig = rig.pod("y", &[(KILLER, "1")]);
    assert_eq!(rig.actions(), ["install x:1 for y"]);
    let rig = held().edit(KILLER, |pod| pod.terminal = true).pod("y", &[(KILLER, "1")]);
    assert_eq!(rig.actions(), ["install x:1 for y"], "a successor of one that failed");
}

#[test]
fn what_was_never_sent_is_not_suspected() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    rig.memory.restarted(&rig.desired.clone(), &rules(), at(1));
    assert!(rig.memory.lethal.is_empty(), "it waits for its turn");
    rig.memory.sent(&id("shop", "1"), at(2));
    rig.end(
        Operation::Install,
        "p",
        &id("shop", "1"),
        Outcome::Failed(Failure::new(Code::BaseUnreachable, "refused")),
    );
    rig.memory.restarted(&rig.desired.clone(), &rules(), at(3));
    assert!(rig.memory.lethal.is_empty(), "no connection");
    rig.begin(&action);
    rig.memory.sent(&id("shop", "1"), at(4));
    rig.end(Operation::Install, "p", &id("shop", "1"), Outcome::Unsent);
    rig.memory.restarted(&rig.desired.clone(), &rules(), at(5));
    assert!(rig.memory.lethal.is_empty(), "withheld");
}

#[test]
fn a_module_that_lives_long_enough_is_cleared() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    rig.memory.sent(&id("shop", "1"), at(0));
    rig.memory.restarted(&rig.desired.clone(), &rules(), at(1));
    assert_eq!(rig.memory.lethal.len(), 1);
    rig.memory.sent(&id("shop", "1"), at(20));
    rig.observed.modules.push(biz("shop", "1", BizState::Activated));
    rig.now = at(20);
    rig.end(Operation::Install, "p", &id("shop", "1"), Outcome::Done);
    rig.memory.outlived(&rig.observed.modules, rig.rules.lethal_within, at(79));
    assert_eq!(rig.memory.lethal.len(), 1, "not yet");
    rig.memory.outlived(&rig.observed.modules, rig.rules.lethal_within, at(80));
    assert!(rig.memory.lethal.is_empty());
}
