//! What failures do to a VPod.

use super::super::state::Operation;
use super::*;
use crate::arklet::{Code, Failure};

fn failure(code: Code) -> Outcome {
    Outcome::Failed(Failure::new(code, "java.io.IOException: x"))
}

fn installing() -> Rig {
    let mut rig = Rig::new().pod("p", &[("shop", "1")]);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    rig
}

#[test]
fn transient_failures_back_off_and_end_after_the_attempts() {
    let mut rig = installing();
    let mut waits = Vec::new();
    for attempt in 1..=5 {
        rig.end(Operation::Install, "p", &id("shop", "1"), failure(Code::ArtifactServer));
        if attempt == 5 {
            break;
        }
        assert_eq!(rig.reason("p"), Some(Reason::InstallBackOff));
        let wake = rig.plan().wake.unwrap();
        waits.push(wake.duration_since(rig.now).as_secs());
        rig.now = wake;
        assert_eq!(rig.actions(), ["install shop:1 for p"]);
        let action = rig.plan().actions.remove(0);
        rig.begin(&action);
    }
    assert_eq!(waits, [2, 4, 8, 16]);
    assert_eq!(rig.actions(), ["fail p ArtifactServer"]);
}

/// BL-055: who waits for another try sees how many there were and when the next one is.
#[test]
fn the_back_off_names_attempts_and_the_next_time() {
    let mut rig = installing();
    rig.end(Operation::Install, "p", &id("shop", "1"), failure(Code::ArtifactServer));
    let plan = rig.plan();
    let ModuleState::Waiting { message, .. } = &plan.views["p"].modules[0].1 else { panic!() };
    assert!(message.starts_with("java.io.IOException: x; attempt 1 of 5, next after 20"), "{message}");
}

#[test]
fn a_permanent_failure_takes_the_whole_group_off_before_it_is_told() {
    let mut rig = Rig::new().pod("p", &[("good", "1"), ("bad", "1")]).owned("good", "1", "p", "h").listed(
        "good",
        "1",
        BizState::Activated,
    );
    assert_eq!(rig.actions(), ["install bad:1 for p"]);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    rig.end(Operation::Install, "p", &id("bad", "1"), failure(Code::ArtifactNotFound));
    assert_eq!(rig.actions(), ["uninstall good:1 for p"]);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    assert_eq!(rig.actions(), Vec::<String>::new());
    rig.observed.modules.clear();
    rig.end(Operation::Uninstall, "p", &id("good", "1"), Outcome::Done);
    assert_eq!(rig.actions(), ["fail p ArtifactNotFound"]);
}

#[test]
fn only_the_failing_module_is_tried_again() {
    let mut rig = Rig::new()
        .pod("p", &[("good", "1"), ("bad", "1"), ("last", "1")])
        .owned("good", "1", "p", "h")
        .listed("good", "1", BizState::Activated);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    rig.end(Operation::Install, "p", &id("bad", "1"), failure(Code::StartFailed));
    assert_eq!(rig.actions(), Vec::<String>::new());
    rig.now = at(10);
    assert_eq!(rig.actions(), ["install bad:1 for p"]);
}

#[test]
fn a_lost_answer_is_decided_by_the_list() {
    let mut active = installing();
    active.observed.modules.push(biz("shop", "1", BizState::Activated));
    active.end(Operation::Install, "p", &id("shop", "1"), failure(Code::AnswerLost));
    assert!(active.plan().views["p"].installed());
    let mut starting = installing();
    starting.observed.modules.push(biz("shop", "1", BizState::Resolved));
    starting.end(Operation::Install, "p", &id("shop", "1"), failure(Code::AnswerLost));
    starting.now = at(100);
    assert_eq!(starting.actions(), Vec::<String>::new());
    let mut absent = installing();
    absent.end(Operation::Install, "p", &id("shop", "1"), failure(Code::AnswerLost));
    assert_eq!(absent.reason("p"), Some(Reason::InstallBackOff));
    assert!(absent.memory.owner(&id("shop", "1")).is_some(), "it may still come");
}

#[test]
fn success_that_is_not_listed_is_no_success() {
    let mut rig = installing();
    rig.end(Operation::Install, "p", &id("shop", "1"), Outcome::Done);
    assert_eq!(rig.reason("p"), Some(Reason::InstallBackOff));
}

#[test]
fn another_identity_is_taken_off_and_the_pod_fails() {
    let mut rig = installing();
    rig.observed.modules.push(biz("other", "9", BizState::Activated));
    rig.end(Operation::Install, "p", &id("shop", "1"), Outcome::Other(id("other", "9")));
    assert_eq!(rig.actions(), ["uninstall other:9 for p"]);
    rig.observed.modules.clear();
    assert_eq!(rig.actions(), ["fail p IdentityDiffers"]);
}

#[test]
fn a_poisoned_base_takes_nothing_more_and_the_module_is_not_to_blame() {
    let mut rig = installing().pod("q", &[("cart", "1")]);
    for round in 0..20 {
        rig.end(Operation::Install, "p", &id("shop", "1"), failure(Code::MetaspaceExhausted));
        rig.now = at(round * 1000);
    }
    assert_eq!(rig.actions(), Vec::<String>::new());
    assert_eq!(rig.reason("q"), Some(Reason::MetaspaceExhausted));
    rig.memory.restarted(&rig.desired.clone(), &rules(), rig.now);
    rig.now = at(100_000);
    assert_eq!(rig.actions(), ["install shop:1 for p", "install cart:1 for q"]);
}

#[test]
fn an_operation_of_an_earlier_life_is_waited_for() {
    let mut rig = installing();
    for _ in 0..20 {
        rig.end(Operation::Install, "p", &id("shop", "1"), failure(Code::Conflict));
        assert_eq!(rig.reason("p"), Some(Reason::InstallBackOff));
        rig.now = rig.plan().wake.unwrap();
    }
    assert_eq!(rig.memory.module("p", "shop").unwrap().attempts, 0);
}

#[test]
fn an_uninstall_that_fails_is_sent_again_later() {
    let mut rig = Rig::new().owned("shop", "1", "old", "h").listed("shop", "1", BizState::Activated);
    let action = rig.plan().actions.remove(0);
    rig.begin(&action);
    rig.end(Operation::Uninstall, "old", &id("shop", "1"), failure(Code::StillListed));
    assert_eq!(rig.actions(), Vec::<String>::new());
    assert_eq!(rig.plan().wake, Some(at(2)));
    rig.now = at(2);
    assert_eq!(rig.actions(), ["uninstall shop:1"]);
}

#[test]
fn a_template_that_is_slowed_down_waits_as_pending() {
    let rig = Rig::new().pod("p", &[("shop", "1")]).edit("p", |pod| pod.not_before = Some(at(60)));
    assert_eq!(rig.actions(), Vec::<String>::new());
    assert_eq!(rig.reason("p"), Some(Reason::InstallBackOff));
    assert_eq!(rig.plan().wake, Some(at(60)));
}

#[test]
fn what_nobody_could_read_afterwards_is_not_counted() {
    let mut rig = installing();
    rig.observed.answering = false;
    rig.end(Operation::Install, "p", &id("shop", "1"), Outcome::Done);
    assert_eq!(rig.memory.module("p", "shop").unwrap().attempts, 0);
    rig.observed.answering = true;
    rig.observed.modules.push(biz("shop", "1", BizState::Activated));
    rig.memory.listed(&rig.observed.modules.clone(), &rig.desired.clone(), rig.now);
    assert!(rig.plan().views["p"].installed());
}
