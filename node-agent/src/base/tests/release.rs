//! Release in place: another version in the same VPod.

use super::super::restart::Cause;
use super::super::state::Operation;
use super::*;

const NOTHING: [&str; 0] = [];

#[test]
fn a_release_in_place_is_one_restart_after_the_traffic_was_left() {
    let mut rig = Rig::new()
        .pod("p", &[("shop", "1"), ("cart", "1")])
        .owned("shop", "1", "p", "h")
        .listed("shop", "1", BizState::Activated)
        .owned("cart", "1", "p", "h")
        .listed("cart", "1", BizState::Activated);
    let views = rig.plan().views;
    rig.memory.viewed(&views);
    assert!(views["p"].running && !views["p"].withdraw);

    let cart = wanted("cart", "1", "h");
    rig = rig.edit("p", |pod| pod.want = Want::Modules(vec![wanted("shop", "2", "h2"), cart]));
    rig.memory.changed("p", "shop");
    let plan = rig.plan();
    assert_eq!(rig.actions(), NOTHING, "Ready=False first");
    assert!(plan.views["p"].withdraw && plan.views["p"].running);
    assert_eq!(rig.reason("p"), Some(Reason::Releasing));
    rig.memory.viewed(&plan.views);

    // No slice lists it any more, and the drain wait is over.
    rig.memory.pods.get_mut("p").unwrap().withdrawn = true;
    assert_eq!(rig.actions(), ["uninstall shop:1 for p"]);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    assert!(rig.plan().views["p"].running);
    rig.observed.modules.retain(|biz| biz.name != "shop");
    rig.end(Operation::Uninstall, "p", &id("shop", "1"), Outcome::Done);
    let module = rig.memory.module("p", "shop").unwrap();
    assert_eq!((module.restarts, module.ending.as_ref().unwrap().cause), (1, Cause::Replaced));

    assert_eq!(rig.actions(), ["install shop:2 for p"]);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    rig.observed.modules.push(biz("shop", "2", BizState::Activated));
    rig.end(Operation::Install, "p", &id("shop", "2"), Outcome::Done);
    let plan = rig.plan();
    assert!(plan.views["p"].installed() && !plan.views["p"].withdraw);
    rig.memory.viewed(&plan.views);
    assert!(!rig.memory.pods["p"].withdrawn, "the next release leaves the traffic anew");
    let restarts = |container: &str| rig.memory.module("p", container).unwrap().restarts;
    assert_eq!((restarts("shop"), restarts("cart")), (1, 0));
    assert_eq!(rig.actions(), NOTHING);
}

#[test]
fn a_release_that_is_taken_back_in_time_takes_nothing_off() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed(
        "shop",
        "1",
        BizState::Activated,
    );
    rig.memory.viewed(&rig.plan().views);
    rig = rig.edit("p", |pod| pod.want = Want::Modules(vec![wanted("shop", "2", "h2")]));
    assert!(rig.plan().views["p"].withdraw);
    rig.memory.pods.get_mut("p").unwrap().withdrawn = true;
    rig = rig.edit("p", |pod| pod.want = Want::Modules(vec![wanted("shop", "1", "h")]));
    let plan = rig.plan();
    assert!(plan.actions.is_empty() && plan.views["p"].installed() && !plan.views["p"].withdraw);
    rig.memory.viewed(&plan.views);
    assert!(!rig.memory.pods["p"].withdrawn);
    assert_eq!(rig.memory.module("p", "shop").unwrap().restarts, 0);
}

#[test]
fn only_other_arguments_are_a_release_too() {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]).owned("shop", "1", "p", "h").listed(
        "shop",
        "1",
        BizState::Activated,
    );
    rig.memory.viewed(&rig.plan().views);
    rig = rig.edit("p", |pod| pod.want = Want::Modules(vec![wanted("shop", "1", "other")]));
    assert_eq!(rig.actions(), NOTHING);
    assert!(rig.plan().views["p"].withdraw);
    rig.memory.pods.get_mut("p").unwrap().withdrawn = true;
    assert_eq!(rig.actions(), ["uninstall shop:1 for p"]);
}
