//! What was found on the base, and what is done.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::arklet::StateRecord;

const NOTHING: [&str; 0] = [];

#[test]
fn nothing_there_installs() {
    let rig = Rig::new().pod("p", &[("shop", "1")]);
    assert_eq!(rig.actions(), ["install shop:1 for p"]);
    assert_eq!(rig.reason("p"), Some(Reason::Installing));
}

#[test]
fn wanted_version_activated_is_adopted_when_it_has_no_owner() {
    let rig = Rig::new().pod("p", &[("shop", "1")]).listed("shop", "1", BizState::Activated);
    assert_eq!(rig.actions(), ["adopt shop:1 for p"]);
}

#[test]
fn wanted_version_activated_and_ours_is_left_as_it_is() {
    let rig = Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed(
        "shop",
        "1",
        BizState::Activated,
    );
    assert_eq!(rig.actions(), NOTHING);
    assert!(rig.plan().views["p"].installed());
    assert!(rig.plan().views["p"].running);
}

#[test]
fn an_owner_that_is_gone_hands_over_what_is_the_same_and_nothing_else() {
    let base = || Rig::new().pod("p", &[("shop", "1")]).listed("shop", "1", BizState::Activated);
    assert_eq!(base().owned("shop", "1", "old", "h").actions(), ["adopt shop:1 for p"]);
    assert_eq!(base().owned("shop", "1", "old", "").actions(), ["adopt shop:1 for p"]);
    assert_eq!(base().owned("shop", "1", "old", "other").actions(), ["uninstall shop:1 for p"]);
}

#[test]
fn wanted_version_deactivated_is_switched_once() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed(
        "shop",
        "1",
        BizState::Deactivated,
    );
    assert_eq!(rig.actions(), ["switch shop:1 for p"]);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    rig.end(super::super::state::Operation::Switch, "p", &id("shop", "1"), Outcome::Done);
    rig.now = at(3600);
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::Deactivated));
}

#[test]
fn wanted_version_deactivated_waits_for_a_live_other_one() {
    let rig = Rig::new()
        .pod("q", &[("shop", "2")])
        .pod("p", &[("shop", "1")])
        .owned("shop", "1", "p", "h")
        .owned("shop", "2", "q", "h")
        .listed("shop", "1", BizState::Deactivated)
        .listed("shop", "2", BizState::Activated);
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::WaitingForOldVersion));
}

#[test]
fn wanted_version_starting_is_waited_for_and_never_installed_again() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed(
        "shop",
        "1",
        BizState::Resolved,
    );
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::Installing));
    assert_eq!(rig.plan().wake, Some(at(300)));
    rig.now = at(300);
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::InstallTimeout));
    rig.observed.modules[0].state = BizState::Activated;
    assert!(rig.plan().views["p"].installed());
}

#[test]
fn states_that_are_not_known_are_waited_for() {
    for state in [BizState::Unknown, BizState::Stopped, BizState::Unresolved] {
        let rig =
            Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed("shop", "1", state);
        assert_eq!(rig.actions(), NOTHING, "{state:?}");
    }
}

#[test]
fn wanted_version_broken_is_uninstalled_then_installed() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed(
        "shop",
        "1",
        BizState::Broken,
    );
    assert_eq!(rig.actions(), ["uninstall shop:1 for p"]);
    rig.observed.modules.clear();
    assert_eq!(rig.actions(), ["install shop:1 for p"]);
}

#[test]
fn another_version_of_a_live_vpod_is_waited_for() {
    let base = || {
        Rig::new().pod("q", &[("shop", "1")]).pod("p", &[("shop", "2")]).owned("shop", "1", "q", "h").listed(
            "shop",
            "1",
            BizState::Activated,
        )
    };
    assert_eq!(base().actions(), NOTHING);
    assert_eq!(base().reason("p"), Some(Reason::WaitingForOldVersion));
    let mut beside = base();
    beside.rules.versions_per_module = 2;
    assert_eq!(beside.actions(), NOTHING, "the base itself does not allow it");
    beside.observed.multi_version = true;
    assert_eq!(beside.actions(), ["install shop:2 for p"]);
}

#[test]
fn another_version_whose_vpod_is_gone_or_ended_goes_first() {
    let base = || {
        Rig::new().pod("p", &[("shop", "2")]).owned("shop", "1", "old", "h").listed(
            "shop",
            "1",
            BizState::Activated,
        )
    };
    assert_eq!(base().actions(), ["uninstall shop:1"]);
    let ended = base().pod("old", &[("shop", "1")]).edit("old", |pod| pod.terminal = true);
    assert_eq!(ended.actions(), ["uninstall shop:1 for old"]);
}

#[test]
fn another_version_that_is_leaving_is_waited_for() {
    let base = |removal| {
        Rig::new()
            .pod("q", &[("shop", "1")])
            .pod("p", &[("shop", "2")])
            .owned("shop", "1", "q", "h")
            .listed("shop", "1", BizState::Activated)
            .edit("q", |pod| pod.removal = removal)
    };
    assert_eq!(base(Removal::Draining).actions(), NOTHING);
    assert_eq!(base(Removal::Uninstalling).actions(), ["uninstall shop:1 for q"]);
    assert_eq!(base(Removal::Uninstalling).reason("p"), Some(Reason::WaitingForOldVersion));
}

#[test]
fn what_nobody_wants_goes_when_it_is_ours_and_stays_when_it_is_foreign() {
    let rig = Rig::new().owned("shop", "1", "old", "h").listed("shop", "1", BizState::Activated).listed(
        "base-tools",
        "7",
        BizState::Activated,
    );
    assert_eq!(rig.actions(), ["uninstall shop:1"]);
}

#[test]
fn another_version_that_is_foreign_is_left_alone_or_replaced() {
    let mut rig = Rig::new().pod("p", &[("shop", "2")]).listed("shop", "1", BizState::Activated);
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::ForeignModule));
    rig.rules.replace_foreign = true;
    assert_eq!(rig.actions(), ["uninstall shop:1 for p"]);
}

#[test]
fn a_foreign_version_that_another_vpod_adopts_is_not_replaced() {
    let mut rig = Rig::new().pod("o", &[("shop", "1")]).pod("p", &[("shop", "2")]);
    rig = rig.listed("shop", "1", BizState::Activated);
    rig.rules.replace_foreign = true;
    assert_eq!(rig.actions(), ["adopt shop:1 for o"]);
    assert_eq!(rig.reason("p"), Some(Reason::WaitingForOldVersion));
}

#[test]
fn the_same_module_for_a_second_vpod_is_never_there_twice() {
    let mut rig = Rig::new()
        .pod("q", &[("shop", "1")])
        .pod("p", &[("shop", "1")])
        .owned("shop", "1", "q", "h")
        .listed("shop", "1", BizState::Activated);
    rig.rules.versions_per_module = 9;
    rig.observed.multi_version = true;
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::SameModule));
}

#[test]
fn groups_are_installed_in_order_and_vpods_in_parallel() {
    let rig =
        Rig::new().pod("a", &[("a1", "1"), ("a2", "1")]).pod("b", &[("b1", "1")]).pod("c", &[("c1", "1")]);
    assert_eq!(rig.actions(), ["install a1:1 for a", "install b1:1 for b"]);
    assert_eq!(rig.reason("c"), Some(Reason::Queued));
    let plan = rig.plan();
    assert!(matches!(
        plan.views["a"].modules[1].1,
        ModuleState::Waiting { reason: Reason::WaitingForModule, .. }
    ));
}

#[test]
fn one_name_is_worked_on_once_at_a_time() {
    let rig = Rig::new().pod("a", &[("shop", "1")]).pod("b", &[("shop", "2")]);
    assert_eq!(rig.actions(), ["install shop:1 for a"]);
    assert_eq!(rig.reason("b"), Some(Reason::Queued));
}

#[test]
fn nothing_is_uninstalled_before_all_pods_are_known_or_while_held() {
    let base = || Rig::new().owned("shop", "1", "old", "h").listed("shop", "1", BizState::Activated);
    assert_eq!(base().memory(|memory| memory.synced = false).actions(), NOTHING);
    assert_eq!(base().memory(|memory| memory.held = true).actions(), NOTHING);
    let held = base().pod("p", &[("cart", "1")]).memory(|memory| memory.held = true);
    assert_eq!(held.actions(), NOTHING);
    assert_eq!(held.reason("p"), Some(Reason::Paused));
}

#[test]
fn nothing_of_a_paused_namespace_is_uninstalled_whoever_is_gone() {
    let base = || Rig::new().owned("shop", "1", "old", "h").listed("shop", "1", BizState::Activated);
    let paused =
        |rig: Rig| rig.memory(|memory| memory.paused = Arc::new(BTreeSet::from(["shop".to_owned()])));
    assert_eq!(base().actions(), ["uninstall shop:1"]);
    assert_eq!(paused(base()).actions(), NOTHING, "the object of its VPod is gone");
    let next = base().pod("p", &[("shop", "2")]).edit("p", |pod| pod.namespace = "other".to_owned());
    assert_eq!(next.actions(), ["uninstall shop:1"]);
    assert_eq!(paused(next).actions(), NOTHING, "a VPod of another namespace wants its place");
}

#[test]
fn orphans_of_a_vpod_not_seen_leaving_wait_for_a_brake_to_close() {
    let base = || {
        Rig::new()
            .owned("shop", "1", "old", "h")
            .listed("shop", "1", BizState::Activated)
            .memory(|memory| memory.orphans_after = Some(at(10)))
    };
    assert_eq!(base().actions(), NOTHING);
    assert_eq!(base().plan().wake, Some(at(10)));
    assert_eq!(base().plan().orphans, 1);
    let seen = base().memory(|memory| {
        memory.departed.insert("old".to_owned());
    });
    assert_eq!(seen.actions(), ["uninstall shop:1"]);
}

/// BL-044: Pods that were forced onto a full base by `nodeName` wait, and what runs there stays.
#[test]
fn past_the_limit_a_pod_waits_and_what_runs_stays() {
    let mut rig = Rig::new()
        .pod("a", &[("a", "1")])
        .pod("b", &[("b", "1")])
        .owned("b", "1", "b", "h")
        .listed("b", "1", BizState::Activated);
    rig.rules.pods_per_base = 1;
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("a"), Some(Reason::BaseFull));
    assert!(rig.plan().views["b"].installed());
    rig.rules.pods_per_base = 0;
    assert!(rig.plan().views["b"].installed(), "a policy that changes takes nothing off");
}

#[test]
fn a_pod_that_the_policy_rejects_is_not_installed_but_keeps_what_runs() {
    let new = Rig::new().pod("p", &[("shop", "1")]).edit("p", |pod| pod.rejected = Some("no".to_owned()));
    assert_eq!(new.actions(), NOTHING);
    assert_eq!(new.reason("p"), Some(Reason::PolicyRejected));
    let old = new.owned("shop", "1", "p", "h").listed("shop", "1", BizState::Activated);
    assert_eq!(old.actions(), NOTHING);
    assert!(old.plan().views["p"].installed());
}

#[test]
fn no_module_pod_fails_at_once() {
    let rig =
        Rig::new().pod("p", &[]).edit("p", |pod| pod.want = Want::NotAModule { message: "x".to_owned() });
    assert_eq!(rig.actions(), ["fail p NotAModule"]);
}

/// BL-038: a Pod whose words cannot be read any more still has its modules.
#[test]
fn what_cannot_be_read_any_more_keeps_what_runs() {
    let rig = Rig::new()
        .pod("p", &[])
        .edit("p", |pod| {
            pod.want = Want::Unreadable { reason: Reason::MissingReference, message: String::new() }
        })
        .owned("shop", "1", "p", "h")
        .listed("shop", "1", BizState::Activated);
    assert_eq!(rig.actions(), NOTHING);
}

#[test]
fn a_deleted_pod_is_uninstalled_in_reverse_and_then_removed() {
    let mut rig = Rig::new()
        .pod("p", &[("a", "1"), ("b", "1")])
        .edit("p", |pod| pod.removal = Removal::Uninstalling)
        .owned("a", "1", "p", "h")
        .owned("b", "1", "p", "h")
        .listed("a", "1", BizState::Activated)
        .listed("b", "1", BizState::Activated);
    assert_eq!(rig.actions(), ["uninstall b:1 for p"]);
    rig.observed.modules.pop();
    assert_eq!(rig.actions(), ["uninstall a:1 for p"]);
    rig.observed.modules.pop();
    assert_eq!(rig.actions(), ["removed p"]);
    rig.observed.answering = false;
    assert_eq!(rig.actions(), NOTHING, "nobody knows what a silent base has");
}

#[test]
fn a_pod_of_which_nothing_was_installed_is_removed_without_asking_the_base() {
    let mut rig = Rig::new().pod("p", &[("a", "1")]).edit("p", |pod| pod.removal = Removal::Uninstalling);
    rig.observed.answering = false;
    assert_eq!(rig.actions(), ["removed p"]);
}

/// BL-089: where nobody deletes the Pod, nothing but Ready=False tells the endpoints.
#[test]
fn a_new_version_in_place_leaves_the_traffic_first() {
    let rig = Rig::new()
        .pod("p", &[("shop", "2")])
        .owned("shop", "1", "p", "h")
        .listed("shop", "1", BizState::Activated)
        .memory(|memory| memory.pods.entry("p".to_owned()).or_default().running = true);
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::Releasing));
    assert!(rig.plan().views["p"].withdraw);
    let mut rig = rig.memory(|memory| memory.pods.get_mut("p").unwrap().withdrawn = true);
    assert_eq!(rig.actions(), ["uninstall shop:1 for p"]);
    rig.observed.modules.clear();
    assert_eq!(rig.actions(), ["install shop:2 for p"]);
}

#[test]
fn a_restart_replays_in_the_order_of_the_inventory() {
    let mut rig = Rig::new().pod("a", &[("a", "1")]).pod("b", &[("b", "1")]);
    rig = rig.owned("b", "1", "b", "h").owned("a", "1", "a", "h");
    rig = rig.listed("a", "1", BizState::Activated).listed("b", "1", BizState::Activated);
    rig.memory.viewed(&rig.plan().views);
    rig.rules.parallel = 1;
    rig.observed.modules.clear();
    rig.memory.restarted(&rig.desired.clone(), &rules(), at(100));
    rig.now = at(100);
    assert_eq!(rig.actions(), ["install b:1 for b"]);
    let plan = rig.plan();
    assert!(plan.views["a"].running);
    assert_eq!(rig.reason("a"), Some(Reason::Replaying));
    assert_eq!(rig.memory.module("a", "a").unwrap().restarts, 1);
}

#[test]
fn a_module_taken_off_by_hand_comes_back_as_a_restart() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed(
        "shop",
        "1",
        BizState::Activated,
    );
    rig.memory.viewed(&rig.plan().views);
    rig.observed.modules.clear();
    rig.memory.listed(&[], &rig.desired.clone(), rig.now);
    assert_eq!(rig.memory.module("p", "shop").unwrap().restarts, 1);
    assert_eq!(rig.actions(), ["install shop:1 for p"]);
    assert_eq!(rig.reason("p"), Some(Reason::Replaying));
}

#[test]
fn a_silent_base_is_not_touched_and_nothing_counts_as_lost() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed(
        "shop",
        "1",
        BizState::Activated,
    );
    rig.observed.answering = false;
    assert_eq!(rig.actions(), NOTHING);
    assert!(rig.plan().views["p"].installed());
    let new = rig.pod("q", &[("cart", "1")]);
    assert_eq!(new.actions(), NOTHING);
    assert_eq!(new.reason("q"), Some(Reason::WaitingForBase));
}

#[test]
fn a_leaving_base_takes_nothing_new() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]);
    rig.observed.leaving = true;
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::BaseLeaving));
}

#[test]
fn what_its_base_is_stopping_is_neither_stopped_again_nor_switched() {
    let stopping = || {
        let mut biz = biz("shop", "1", BizState::Deactivated);
        let record = |state, reason: &str| StateRecord { at: None, state, reason: reason.to_owned() };
        biz.records = vec![record(BizState::Activated, "Started"), record(BizState::Deactivated, "Killing")];
        biz
    };
    // An agent that was killed after it had sent the uninstall comes back.
    let list = |mut rig: Rig| {
        rig.observed.modules.push(stopping());
        rig.memory.listed(&rig.observed.modules, &rig.desired, rig.now);
        rig
    };
    let mut going = list(
        Rig::new()
            .pod("p", &[("shop", "1")])
            .owned("shop", "1", "p", "h")
            .edit("p", |pod| pod.removal = Removal::Uninstalling),
    );
    assert_eq!(going.actions(), NOTHING);
    assert_eq!(going.plan().wake, Some(at(60)), "as long as an uninstall may take");
    going.now = at(60);
    assert_eq!(going.actions(), ["uninstall shop:1 for p"]);
    going.observed.modules.clear();
    going.memory.listed(&[], &going.desired, going.now);
    assert_eq!(going.actions(), ["removed p"]);

    let mut staying = list(Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h"));
    assert_eq!((staying.actions(), staying.reason("p")), (vec![], Some(Reason::Uninstalling)));
    staying.now = at(60);
    assert_eq!(staying.actions(), ["uninstall shop:1 for p"]);
    staying.observed.modules.clear();
    staying.memory.listed(&[], &staying.desired, staying.now);
    assert_eq!(staying.actions(), ["install shop:1 for p"]);

    let foreign = list(Rig::new().pod("p", &[("shop", "1")]));
    assert_eq!(foreign.actions(), NOTHING, "it is not adopted on its way out");
}
