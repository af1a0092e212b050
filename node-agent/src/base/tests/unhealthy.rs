//! Modules whose probes give them up.

use super::super::restart::Cause;
use super::super::state::Operation;
use super::*;
use crate::vpod::probe::{Failing, Kind};

const NOTHING: [&str; 0] = [];

/// A VPod of these modules, all active and its own.
fn running(modules: &[(&str, &str)]) -> Rig {
    let mut rig = Rig::new().pod("p", modules);
    for (name, version) in modules {
        rig = rig.owned(name, version, "p", "h").listed(name, version, BizState::Activated);
    }
    let views = rig.plan().views;
    rig.memory.viewed(&views);
    rig
}

impl Rig {
    /// The liveness probe of a container gives its module up.
    fn given_up(&mut self, container: &str) {
        let failing = Failing { kind: Kind::Liveness, why: "HTTP 500".to_owned() };
        self.memory.module_mut("p", container).unhealthy = Some(failing);
    }

    /// Begins the only action there is, which must be this one.
    fn begin_only(&mut self, wanted: &str) {
        assert_eq!(self.actions(), [wanted]);
        let action = self.plan().actions.remove(0);
        self.begin(&action);
    }

    /// The module in `container` is taken off and comes back; gives back when the install began.
    fn reinstalled(&mut self, container: &str) -> Timestamp {
        let module = id(container, "1");
        self.given_up(container);
        self.begin_only(&format!("uninstall {module} for p"));
        self.observed.modules.retain(|biz| biz.name != container);
        self.end(Operation::Uninstall, "p", &module, Outcome::Done);
        while self.actions().is_empty() {
            self.now = self.plan().wake.expect("it waits for a time");
        }
        let began = self.now;
        self.begin_only(&format!("install {module} for p"));
        self.observed.modules.push(biz(container, "1", BizState::Activated));
        self.end(Operation::Install, "p", &module, Outcome::Done);
        assert!(self.plan().views["p"].installed());
        began
    }
}

#[test]
fn what_probes_give_up_is_uninstalled_once_and_installed_once() {
    let mut rig = running(&[("shop", "1")]);
    rig.given_up("shop");
    assert_eq!(rig.reason("p"), Some(Reason::Unhealthy));
    rig.begin_only("uninstall shop:1 for p");
    assert_eq!(rig.actions(), NOTHING, "one operation at a time");
    assert_eq!(rig.reason("p"), Some(Reason::Unhealthy));
    rig.observed.modules.clear();
    rig.end(Operation::Uninstall, "p", &id("shop", "1"), Outcome::Done);
    let module = rig.memory.module("p", "shop").unwrap();
    assert_eq!((module.restarts, module.unhealthy.as_ref()), (1, None));
    let ending = module.ending.as_ref().unwrap();
    assert_eq!(
        (ending.cause, ending.message.as_str()),
        (Cause::LivenessProbe, "Liveness probe failed: HTTP 500")
    );
    rig.begin_only("install shop:1 for p");
    assert!(rig.plan().views["p"].running, "the phase stays");
    assert_eq!(rig.reason("p"), Some(Reason::Replaying));
    rig.observed.modules.push(biz("shop", "1", BizState::Activated));
    rig.end(Operation::Install, "p", &id("shop", "1"), Outcome::Done);
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.memory.module("p", "shop").unwrap().restarts, 1);
}

#[test]
fn an_uninstall_whose_answer_is_lost_is_the_same_restart() {
    let mut rig = running(&[("shop", "1")]);
    rig.given_up("shop");
    rig.begin_only("uninstall shop:1 for p");
    rig.observed.answering = false;
    let lost = Outcome::Failed(crate::arklet::Failure::new(crate::arklet::Code::AnswerLost, "lost"));
    rig.end(Operation::Uninstall, "p", &id("shop", "1"), lost);
    rig.observed = Observed { answering: true, ..Observed::default() };
    rig.memory.listed(&[], &rig.desired.clone(), rig.now);
    let module = rig.memory.module("p", "shop").unwrap();
    assert_eq!((module.restarts, module.ending.as_ref().unwrap().cause), (1, Cause::LivenessProbe));
    assert!(module.crashes.is_some());
}

#[test]
fn only_the_module_that_fails_is_taken_off() {
    let mut rig = running(&[("shop", "1"), ("cart", "1")]);
    rig.given_up("cart");
    assert_eq!(rig.actions(), ["uninstall cart:1 for p"]);
    let shown = &rig.plan().views["p"].modules;
    assert!(matches!(shown[0].1, ModuleState::Active { .. }), "{shown:?}");
}

#[test]
fn nothing_is_taken_off_while_it_must_not_be() {
    let given_up = || {
        let mut rig = running(&[("shop", "1")]);
        rig.given_up("shop");
        rig
    };
    let untouched = |rig: &Rig, why: &str| {
        assert_eq!(rig.actions(), NOTHING, "{why}");
        assert!(rig.plan().views["p"].installed(), "{why}: it is left running");
    };
    untouched(&given_up().memory(|memory| memory.held = true), "brake or pause");
    untouched(&given_up().edit("p", |pod| pod.paused = true), "its namespace is paused");
    let mut leaving = given_up();
    leaving.observed.leaving = true;
    untouched(&leaving, "the base is leaving");
    let mut silent = given_up();
    silent.observed.answering = false;
    untouched(&silent, "the base is silent");
    let going = given_up().edit("p", |pod| pod.removal = Removal::Draining);
    assert_eq!(going.actions(), NOTHING, "the Pod is being deleted");
}

#[test]
fn a_module_that_fails_again_and_again_waits_longer_and_longer() {
    let mut rig = running(&[("shop", "1")]);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let failed = rig.now;
        waits.push(rig.reinstalled("shop").as_second() - failed.as_second());
        rig.now += jiff::SignedDuration::from_secs(3);
    }
    assert_eq!(waits, [0, 10, 20, 40]);
    assert_eq!(rig.memory.module("p", "shop").unwrap().restarts, 4);
    rig.given_up("shop");
    rig.begin_only("uninstall shop:1 for p");
    rig.observed.modules.clear();
    rig.end(Operation::Uninstall, "p", &id("shop", "1"), Outcome::Done);
    let view = &rig.plan().views["p"].modules[0].1;
    let ModuleState::Waiting { reason: Reason::CrashLoopBackOff, message } = view else { panic!("{view:?}") };
    assert!(
        message.starts_with(
            "back-off 80s before it is installed again: Liveness probe failed: HTTP 500; next after "
        ),
        "{message}"
    );
}

#[test]
fn a_base_that_restarts_is_no_fault_of_the_module() {
    let mut rig = running(&[("shop", "1")]);
    rig.observed.modules.clear();
    rig.memory.restarted(&rig.desired.clone(), &rules(), at(50));
    let module = rig.memory.module("p", "shop").unwrap();
    assert_eq!((module.ending.as_ref().unwrap().cause, module.crashes), (Cause::BaseRestarted, None));
    assert_eq!(rig.actions(), ["install shop:1 for p"]);
}

#[test]
fn a_new_image_is_not_blamed_for_the_old_one() {
    let mut rig = running(&[("shop", "1")]);
    rig.reinstalled("shop");
    rig.given_up("shop");
    rig.memory.changed("p", "shop");
    let module = rig.memory.module("p", "shop").unwrap();
    assert_eq!((module.unhealthy.as_ref(), module.crashes), (None, None));
}
