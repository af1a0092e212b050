//! What requires a module is installed after it.

use super::super::state::Operation;
use super::*;

const NOTHING: [&str; 0] = [];

impl Rig {
    fn message(&self, uid: &str) -> String {
        let view = &self.plan().views[uid];
        let waiting = view.modules.iter().find_map(|(_, state)| match state {
            ModuleState::Waiting { message, .. } => Some(message.clone()),
            ModuleState::Active { .. } => None,
        });
        waiting.expect("it waits")
    }

    /// Begins and ends every install that is planned, until nothing is; gives back their order.
    fn installed(&mut self) -> Vec<String> {
        let mut order = Vec::new();
        loop {
            let views = self.plan().views;
            self.memory.viewed(&views);
            let actions = self.plan().actions;
            if actions.is_empty() {
                return order;
            }
            for action in actions {
                let Action::Install { uid, module } = &action else { panic!("{}", shown(&action)) };
                self.begin(&action);
                order.push(module.id.name.clone());
                self.observed.modules.push(biz(&module.id.name, &module.id.version, BizState::Activated));
                self.end(Operation::Install, uid, &module.id, Outcome::Done);
            }
        }
    }

    fn restart(&mut self) {
        self.observed.modules.clear();
        self.memory.restarted(&self.desired.clone(), &rules(), self.now);
    }
}

#[test]
fn a_module_waits_for_what_it_requires_and_goes_on_by_itself() {
    let rig = Rig::new().pod("p", &[("payments", "2")]).needs("p", "ledger", Some(">=1.5"));
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::WaitingForModule));
    assert_eq!(rig.message("p"), "requires module ledger [1.5,), which is not active on this base");
    let old = rig.listed("ledger", "1.4", BizState::Activated);
    assert_eq!(old.actions(), NOTHING, "another version");
    let starting = old.listed("ledger", "1.5", BizState::Resolved);
    assert_eq!(starting.actions(), NOTHING, "not active yet");
    let there = starting.listed("ledger", "1.6", BizState::Activated);
    assert_eq!(there.actions(), ["install payments:2 for p"], "whoever put it there");
}

#[test]
fn the_required_one_goes_first_whoever_is_older() {
    let mut rig =
        Rig::new().pod("a", &[("payments", "1")]).pod("b", &[("ledger", "1")]).needs("a", "ledger", None);
    assert_eq!(rig.actions(), ["install ledger:1 for b"]);
    assert_eq!(rig.installed(), ["ledger", "payments"]);
}

#[test]
fn a_module_of_the_same_pod_is_enough() {
    let mut rig = Rig::new().pod("p", &[("payments", "1"), ("ledger", "1")]).needs("p", "ledger", None);
    assert_eq!(rig.installed(), ["payments", "ledger"], "in the order of the Pod");
}

#[test]
fn what_is_leaving_does_not_count() {
    let base = |removal| {
        Rig::new()
            .pod("old", &[("ledger", "1")])
            .owned("ledger", "1", "old", "h")
            .listed("ledger", "1", BizState::Activated)
            .edit("old", |pod| pod.removal = removal)
            .pod("p", &[("payments", "1")])
            .needs("p", "ledger", None)
    };
    assert_eq!(base(Removal::None).actions(), ["install payments:1 for p"]);
    assert_eq!(base(Removal::Draining).actions(), NOTHING);
    assert_eq!(base(Removal::Draining).reason("p"), Some(Reason::WaitingForModule));
}

#[test]
fn a_replay_installs_what_is_required_first() {
    let mut rig = Rig::new().pod("a", &[("payments", "1")]).pod("b", &[("ledger", "1")]);
    rig.rules.parallel = 1;
    assert_eq!(rig.installed(), ["payments", "ledger"], "nothing was required then");
    let mut rig = rig.needs("a", "ledger", None);
    assert_eq!(rig.actions(), NOTHING, "what runs stays");
    rig.restart();
    assert_eq!(rig.reason("a"), Some(Reason::Replaying));
    assert_eq!(rig.message("a"), "requires module ledger, which is not active on this base");
    assert_eq!(rig.installed(), ["ledger", "payments"]);
}

#[test]
fn a_replay_does_not_wait_for_what_does_not_come_back() {
    let mut rig = Rig::new().pod("a", &[("payments", "1")]);
    rig.installed();
    let mut rig = rig.needs("a", "ledger", None);
    rig.restart();
    assert_eq!(rig.installed(), ["payments"]);

    let mut rig = Rig::new().pod("a", &[("payments", "1")]).pod("b", &[("ledger", "1")]);
    rig.installed();
    let mut rig = rig.needs("a", "ledger", None);
    let key = (id("ledger", "1"), "h".to_owned());
    rig.memory.lethal.insert(key, super::super::lethal::Suspect { uid: "b".to_owned(), deaths: 3 });
    rig.restart();
    assert_eq!(rig.actions(), ["install payments:1 for a"], "what kills the base is held");
}

#[test]
fn a_new_version_in_place_waits_with_the_old_one_on_the_base() {
    let mut rig = Rig::new().pod("p", &[("payments", "1")]);
    rig.installed();
    let mut rig = rig
        .edit("p", |pod| pod.want = Want::Modules(vec![wanted("payments", "2", "h")]))
        .needs("p", "ledger", None);
    assert_eq!(rig.actions(), NOTHING);
    assert!(!rig.plan().views["p"].withdraw, "nothing leaves the traffic for what cannot come");
    rig = rig.listed("ledger", "1", BizState::Activated);
    assert_eq!(rig.reason("p"), Some(Reason::Releasing));
}

/// Annotations can make such a circle; a policy with one is refused.
#[test]
fn a_circle_is_broken_by_the_first_and_said() {
    let mut rig = Rig::new()
        .pod("x", &[("web", "1")])
        .pod("a", &[("payments", "1")])
        .pod("b", &[("ledger", "1")])
        .needs("x", "payments", None)
        .needs("a", "ledger", None)
        .needs("b", "payments", None);
    let plan = rig.plan();
    let (uid, why) = plan.first.expect("somebody goes first");
    assert_eq!(uid, "a", "x only depends on the circle");
    assert_eq!(why, "payments:1 requires ledger, which waits for it in a circle; it goes first");
    assert_eq!(rig.actions(), ["install payments:1 for a"]);
    assert_eq!(rig.reason("b"), Some(Reason::WaitingForModule));
    assert_eq!(rig.installed(), ["payments", "web", "ledger"]);
    assert_eq!(rig.plan().first, None);
    rig.restart();
    assert_eq!(rig.installed().len(), 3, "a replay neither");
}

#[test]
fn a_circle_that_lacks_something_else_waits_for_that() {
    let circle = Rig::new()
        .pod("a", &[("payments", "1")])
        .pod("b", &[("ledger", "1")])
        .needs("a", "ledger", None)
        .needs("b", "payments", None)
        .needs("b", "audit", None);
    assert_eq!(circle.actions(), NOTHING);
    assert_eq!(circle.plan().first, None);
    let whole = circle.listed("audit", "1", BizState::Activated);
    assert_eq!(whole.actions(), ["install payments:1 for a"]);
}

#[test]
fn a_circle_through_the_order_of_a_pod_is_broken_too() {
    let mut rig = Rig::new().pod("a", &[("web", "1"), ("ledger", "1")]).pod("b", &[("payments", "1")]);
    rig = rig.needs("b", "ledger", None).edit("a", |pod| {
        let need = ModulePattern { name: Glob::new("payments"), versions: None };
        pod.needs.insert("web".to_owned(), vec![need]);
    });
    assert_eq!(rig.installed(), ["web", "ledger", "payments"]);
}
