//! Release in place: another version in the same VPod.

use super::super::restart::Cause;
use super::super::state::{Operation, PodView};
use super::*;

const NOTHING: [&str; 0] = [];

/// One VPod with two modules, installed and Ready.
fn of_two_modules() -> Rig {
    let mut rig = Rig::new()
        .pod("p", &[("shop", "1"), ("cart", "1")])
        .owned("shop", "1", "p", "h")
        .listed("shop", "1", BizState::Activated)
        .owned("cart", "1", "p", "h")
        .listed("cart", "1", BizState::Activated);
    let views = rig.plan().views;
    rig.memory.viewed(&views);
    assert!(views["p"].running && !views["p"].withdraw);
    rig
}

#[test]
fn a_release_in_place_is_one_restart_after_the_traffic_was_left() {
    let mut rig = of_two_modules();
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

/// A module that is changed after the others have left the traffic is told that it ends, as they were.
#[test]
fn what_is_changed_during_a_release_waits_for_its_own_hook() {
    let mut rig = of_two_modules();
    let both = |shop, cart| Want::Modules(vec![wanted("shop", shop, "h"), wanted("cart", cart, "h")]);
    rig = rig.edit("p", |pod| pod.want = both("2", "1"));
    rig.memory.changed("p", "shop");
    rig.memory.pods.get_mut("p").unwrap().withdrawn = true;
    assert_eq!(rig.actions(), ["uninstall shop:1 for p"]);
    rig = rig.edit("p", |pod| pod.want = both("2", "2"));
    rig.memory.changed("p", "cart");
    assert_eq!(rig.actions(), NOTHING);
    assert_eq!(rig.reason("p"), Some(Reason::Releasing));
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

/// A base that runs versions side by side, with `shop` in one version for each VPod.
fn side_by_side(pods: &[(&str, &str)]) -> Rig {
    let mut rig = Rig::new();
    rig.observed.multi_version = true;
    rig.rules.versions_per_module = pods.len();
    for (uid, version) in pods {
        rig = rig.pod(uid, &[("shop", version)]).owned("shop", version, uid, "h").listed(
            "shop",
            version,
            BizState::Activated,
        );
    }
    let views = rig.plan().views;
    rig.memory.viewed(&views);
    rig
}

fn change(mut rig: Rig, uid: &str, version: &str) -> Rig {
    rig = rig.edit(uid, |pod| pod.want = Want::Modules(vec![wanted("shop", version, "h")]));
    rig.memory.changed(uid, "shop");
    rig
}

/// Carries out all that is planned until nothing is, everything leaving the traffic at once.
fn carried_out(rig: &mut Rig) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..20 {
        let plan = rig.plan();
        rig.memory.viewed(&plan.views);
        for (uid, _) in plan.views.iter().filter(|(_, view)| view.withdraw) {
            rig.memory.pods.get_mut(uid).unwrap().withdrawn = true;
        }
        let Some(action) = rig.plan().actions.into_iter().next() else { continue };
        done.push(shown(&action));
        rig.begin(&action);
        match action {
            Action::Install { uid, module } => {
                rig.observed.modules.push(biz("shop", &module.id.version, BizState::Activated));
                rig.end(Operation::Install, &uid, &module.id, Outcome::Done);
            }
            Action::Uninstall { id, uid } => {
                rig.observed.modules.retain(|biz| biz.version != id.version);
                rig.end(Operation::Uninstall, &uid.unwrap(), &id, Outcome::Done);
            }
            other => panic!("{other:?}"),
        }
    }
    done
}

#[test]
fn vpods_changed_to_each_others_versions_all_let_go_first() {
    let mut rig = side_by_side(&[("p", "1"), ("q", "2")]);
    rig = change(change(rig, "p", "2"), "q", "1");
    let views = rig.plan().views;
    assert!(views["p"].withdraw && views["q"].withdraw, "both leave the traffic");
    let done = carried_out(&mut rig);
    assert_eq!(done.iter().filter(|deed| deed.starts_with("uninstall")).count(), 2, "{done:?}");
    assert_eq!(done.iter().filter(|deed| deed.starts_with("install")).count(), 2, "{done:?}");
    assert!(rig.plan().views.values().all(PodView::installed), "{done:?}");

    let mut three = side_by_side(&[("p", "1"), ("q", "2"), ("r", "3")]);
    three = change(change(change(three, "p", "2"), "q", "3"), "r", "1");
    assert_eq!(carried_out(&mut three).len(), 6);
    assert!(three.plan().views.values().all(PodView::installed));
}

/// Two containers of one module: what one of them runs already keeps the other one's old version from nothing.
#[test]
fn an_old_version_beside_a_wanted_one_is_released() {
    let two = |second| {
        let container =
            |name: &str, version| Wanted { container: name.to_owned(), ..wanted("shop", version, "h") };
        Want::Modules(vec![container("left", "1"), container("right", second)])
    };
    for order in [["1", "0"], ["0", "1"]] {
        let mut rig = Rig::new().pod("p", &[]).edit("p", |pod| pod.want = two("0"));
        rig.observed.multi_version = true;
        rig.rules.versions_per_module = 2;
        for version in order {
            rig = rig.owned("shop", version, "p", "h").listed("shop", version, BizState::Activated);
        }
        rig.memory.viewed(&rig.plan().views);
        rig = rig.edit("p", |pod| pod.want = two("2"));
        rig.memory.changed("p", "right");
        assert!(rig.plan().views["p"].withdraw, "{order:?}");
        rig.memory.pods.get_mut("p").unwrap().withdrawn = true;
        assert_eq!(rig.actions(), ["uninstall shop:0 for p"], "{order:?}");
    }
}

#[test]
fn nothing_is_given_up_for_a_version_that_stays_with_another_vpod() {
    // What q wants belongs to r, which stays: so q stays, and p does not let go for it either.
    let rig = side_by_side(&[("p", "1"), ("q", "2"), ("r", "3")]);
    let rig = change(change(rig, "p", "2"), "q", "3");
    let plan = rig.plan();
    assert_eq!(rig.actions(), NOTHING);
    assert!(plan.views.values().all(|view| !view.withdraw));
    assert_eq!(
        (rig.reason("p"), rig.reason("q")),
        (Some(Reason::WaitingForOldVersion), Some(Reason::SameModule))
    );
}
