//! What is found on the base, and what is done then: the table of the contract, row by row, and answers that lie.

use std::time::Duration;

use harness::{
    Failure, TestResult,
    arklet::{BizState, Fault, On, Options, SecondVersion, Throwable},
    stage::{Builder, ModuleSet, Stage},
    usage, wait,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{ResourceExt, api::DeleteParams};
use policy::contract::names;
use serde_json::json;

use crate::vpods::*;

/// One base, and Pods that are bound to it by name: the scheduler would keep them from what is found there.
async fn one_base(change: impl FnOnce(Builder) -> Builder) -> Result<Stage, Failure> {
    Ok(change(Stage::builder().bases(1)).build().await?)
}

async fn bound(stage: &Stage, version: &str) -> TestResult {
    let url = jar(stage, "shop", version)?;
    let node = json!(stage.vnode_of("base-0"));
    let set = ModuleSet::deployment("shop", version, &url).pod_field("nodeName", node);
    stage.apply(&set.pod_yaml("shop")).await?;
    Ok(())
}

/// BL-040: another version that we did not install is left alone: the Pod waits with `ForeignModule`, and goes on
/// when the foreign one was taken off.
#[tokio::test]
async fn a_foreign_version_is_left_alone() -> TestResult {
    let stage = one_base(|builder| builder).await?;
    let base = stage.base("base-0")?;
    install_by_hand(&base, "shop", "0.9.0", &jar(&stage, "shop", "0.9.0")?).await?;
    bound(&stage, "1.0.0").await?;
    pod_waits(&stage, "shop", "ForeignModule").await?;
    event(&stage, "shop", "ForeignModule").await?;
    if stage.is_simulated() {
        queried(&base, 3).await?;
        assert_eq!(deeds(&base)?, ["installBiz shop:0.9.0"]);
    }
    stage.assert_bases_hold(&[("base-0", &["shop:0.9.0"])]).await?;
    uninstall_by_hand(&base, "shop", "0.9.0").await?;
    pod_ready(&stage, "shop").await?;
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// With `install.foreign: replace` the foreign version is uninstalled first.
#[tokio::test]
async fn a_foreign_version_is_replaced_if_the_policy_says_so() -> TestResult {
    let policy = policy(&[("install: {", "install: {foreign: replace, ")]);
    let stage = one_base(|builder| builder.policy(&policy)).await?;
    let base = stage.base("base-0")?;
    install_by_hand(&base, "shop", "0.9.0", &jar(&stage, "shop", "0.9.0")?).await?;
    bound(&stage, "1.0.0").await?;
    pod_ready(&stage, "shop").await?;
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    if stage.is_simulated() {
        let story = ["installBiz shop:0.9.0", "uninstallBiz shop:0.9.0", "installBiz shop:1.0.0"];
        assert_eq!(deeds(&base)?, story);
    }
    Ok(())
}

/// A foreign module that nobody asks for stays where it is, whatever comes and goes beside it.
#[tokio::test]
async fn a_foreign_module_stays_beside_ours() -> TestResult {
    let stage = one_base(|builder| builder).await?;
    let base = stage.base("base-0")?;
    install_by_hand(&base, "tool", "1.0.0", &jar(&stage, "tool", "1.0.0")?).await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.assert_bases_hold(&[("base-0", &["tool:1.0.0"])]).await?;
    Ok(())
}

/// The wanted version is active already and nobody owns it: it is adopted without a call, and goes with its Pod.
#[tokio::test]
async fn the_wanted_version_is_adopted() -> TestResult {
    let stage = one_base(|builder| builder).await?;
    let base = stage.base("base-0")?;
    install_by_hand(&base, "shop", "1.0.0", &jar(&stage, "shop", "1.0.0")?).await?;
    bound(&stage, "1.0.0").await?;
    let pod = pod_ready(&stage, "shop").await?;
    if stage.is_simulated() {
        assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0"]);
    }
    let owned = |node: Option<&Node>| {
        node.and_then(|node| node.annotations().get(names::INVENTORY))
            .is_some_and(|text| text.contains(&uid(&pod)))
    };
    wait::object(&stage.nodes(), &stage.vnode_of("base-0"), "Node with the owner", SOON, owned).await?;
    stage.kubectl()?.run(&["delete", "pod", "shop", "--wait=false"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    Ok(())
}

/// The wanted version is active and belongs to a Pod that vanished while the agent was down: with the same image and
/// arguments it is adopted, with others it is uninstalled and installed anew.
#[tokio::test]
async fn the_module_of_a_pod_that_vanished_is_adopted_or_replaced() -> TestResult {
    for (args, story) in [
        (json!(["--same"]), vec!["installBiz shop:1.0.0"]),
        (
            json!(["--other"]),
            vec!["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0", "installBiz shop:1.0.0"],
        ),
    ] {
        let mut stage = one_base(|builder| builder).await?;
        let url = jar(&stage, "shop", "1.0.0")?;
        let node = json!(stage.vnode_of("base-0"));
        let set = ModuleSet::deployment("shop", "1.0.0", &url).pod_field("nodeName", node);
        stage.apply(&set.clone().field("args", json!(["--same"])).pod_yaml("old")).await?;
        pod_ready(&stage, "old").await?;
        stage.agent(0)?.kill9();
        stage.api::<Pod>().delete("old", &DeleteParams::default().grace_period(0)).await?;
        stage.apply(&set.field("args", args).pod_yaml("new")).await?;
        stage.agents().first_mut().expect("an agent").restart()?;
        pod_ready(&stage, "new").await?;
        stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
        if stage.is_simulated() {
            assert_eq!(deeds(&*stage.base("base-0")?)?, story);
        }
    }
    Ok(())
}

/// Another version that belongs to a Pod which lives is waited for, and the new one comes when it has gone.
#[tokio::test]
async fn the_version_of_a_living_pod_is_waited_for() -> TestResult {
    let stage = one_base(|builder| builder.pods_per_base(2)).await?;
    let node = json!(stage.vnode_of("base-0"));
    for (name, version) in [("old", "1.0.0"), ("new", "2.0.0")] {
        let url = jar(&stage, "shop", version)?;
        let set = ModuleSet::deployment("shop", version, &url).pod_field("nodeName", node.clone());
        stage.apply(&set.pod_yaml(name)).await?;
        if name == "old" {
            pod_ready(&stage, "old").await?;
        }
    }
    let waits = pod_is(&stage, "new", "Pod that waits", |pod| !waiting(pod).is_empty()).await?;
    let reason = waiting(&waits)[0].reason.clone().unwrap_or_default();
    assert!(["WaitingForOldVersion", "PolicyRejected"].contains(&reason.as_str()), "{reason}");
    stage.api::<Pod>().delete("old", &DeleteParams::default()).await?;
    pod_ready(&stage, "new").await?;
    if stage.is_simulated() {
        let story = ["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0", "installBiz shop:2.0.0"];
        assert_eq!(deeds(&*stage.base("base-0")?)?, story);
    }
    Ok(())
}

/// BL-049, BL-050: a base that keeps what failed to start refuses a second install of it. It is uninstalled first,
/// then installed, and broken is never shown as running.
#[tokio::test]
async fn a_broken_module_is_uninstalled_before_the_next_try() -> TestResult {
    let keep = |builder: Builder| {
        builder.simulators(|_, address| Options { keep_broken: true, ..Options::at(address) })
    };
    let stage = one_base(keep).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    let failure = Throwable::new("java.lang.IllegalStateException", "no database");
    base.faults()?.next(1, On::install(), Fault::MainThrows(failure));
    bound(&stage, "1.0.0").await?;
    let waits = pod_is(&stage, "shop", "Pod that waits", |pod| waits_for(pod, "InstallBackOff")).await?;
    assert_ne!(phase(&waits), "Running");
    assert_eq!(base.simulator()?.state("shop", "1.0.0"), Some(BizState::Broken));
    pod_ready(&stage, "shop").await?;
    let story = ["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0", "installBiz shop:1.0.0"];
    assert_eq!(deeds(&base)?, story);
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-053: the module is listed as starting for longer than `install.timeout`. The Pod says so, no second install is
/// sent, and when the module gets active after all the Pod is Running.
#[tokio::test]
async fn a_module_that_starts_for_ever_is_waited_for() -> TestResult {
    let policy = policy(&[("timeout: 2m", "timeout: 2s")]);
    let stage = one_base(|builder| builder.policy(&policy)).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    base.faults()?.next(1, On::install(), Fault::Slow(Duration::from_secs(8)));
    bound(&stage, "1.0.0").await?;
    let late = pod_waits(&stage, "shop", "InstallTimeout").await?;
    assert_eq!(phase(&late), "Pending");
    assert_eq!(status_of(&late, "module.koupleless.io/installed"), "False");
    event(&stage, "shop", "InstallTimeout").await?;
    pod_ready(&stage, "shop").await?;
    assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0"]);
    Ok(())
}

/// The wanted version is loaded but not the active one, and no other is there: it is switched to, once.
#[tokio::test]
async fn a_deactivated_module_is_switched_on() -> TestResult {
    let stage = one_base(|builder| builder).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    for version in ["0.9.0", "1.0.0"] {
        install_by_hand(&base, "shop", version, &jar(&stage, "shop", version)?).await?;
    }
    uninstall_by_hand(&base, "shop", "0.9.0").await?;
    assert_eq!(base.simulator()?.state("shop", "1.0.0"), Some(BizState::Deactivated));
    base.journal()?.clear();
    bound(&stage, "1.0.0").await?;
    pod_ready(&stage, "shop").await?;
    assert_eq!(deeds(&base)?, ["switchBiz shop:1.0.0"]);
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// The base says SUCCESS and the module is gone right after: the list is believed, and it is installed again.
#[tokio::test]
async fn success_without_a_module_is_a_failure() -> TestResult {
    let stage = one_base(|builder| builder).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    base.faults()?.next(1, On::install(), Fault::Vanish);
    bound(&stage, "1.0.0").await?;
    assert!(event(&stage, "shop", "InstallFailed").await?.contains("NotActive"));
    pod_ready(&stage, "shop").await?;
    assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0", "installBiz shop:1.0.0"]);
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// The answer of an install is lost, in three ways: the truth is read, and the install is not sent again.
#[tokio::test]
async fn an_install_whose_answer_is_lost_is_not_repeated() -> TestResult {
    let policy = policy(&[("timeout: 2m", "timeout: 2s")]);
    for fault in [Fault::LoseAnswer, Fault::WithholdAnswer, Fault::Truncate] {
        let stage = one_base(|builder| builder.policy(&policy)).await?;
        if !stage.is_simulated() {
            return Ok(());
        }
        let base = stage.base("base-0")?;
        base.faults()?.next(1, On::install(), fault.clone());
        bound(&stage, "1.0.0").await?;
        pod_ready(&stage, "shop").await?;
        queried(&base, 2).await?;
        assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0"], "{fault:?}");
    }
    Ok(())
}

/// BL-046: answers that nobody can read, to queries and to installs: not JSON, megabytes, wrong types, half of it, a proxy's
/// page. The agent lives, tries again, and never installs twice what is there.
#[tokio::test]
async fn unreadable_answers_are_survived() -> TestResult {
    let stage = one_base(|builder| builder).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    let faults = base.faults()?;
    let kinds = [
        Fault::Text("<html>not JSON</html>".to_owned()),
        Fault::Oversize(40 << 20),
        Fault::WrongTypes,
        Fault::Truncate,
        Fault::Status(502),
        Fault::Reset,
    ];
    for fault in &kinds {
        faults.next(1, On::query(), fault.clone());
    }
    for fault in &kinds[..5] {
        faults.next(1, On::install(), fault.clone());
    }
    bound(&stage, "1.0.0").await?;
    pod_ready(&stage, "shop").await?;
    stage.assert_no_double_install()?;
    for fault in kinds {
        faults.next(1, On::query(), fault);
    }
    queried(&base, 8).await?;
    pod_ready(&stage, "shop").await?;
    assert_eq!(stage.installs("shop")?, 1);
    let agent = stage.agent(0)?;
    assert!(agent.exit_status().is_none(), "the agent lives");
    // It does not hold what it does not read: two answers of 40 MiB each were sent.
    let peak = usage::peak_memory_mib(agent.id())?;
    assert!(peak < 64.0, "{peak} MiB");
    Ok(())
}

/// The base says that an operation on the module is running already: tried again until it is not, which is no failure of
/// the module.
#[tokio::test]
async fn a_conflict_is_waited_out() -> TestResult {
    let stage = one_base(|builder| builder).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    base.faults()?.next(3, On::install(), Fault::Conflict);
    bound(&stage, "1.0.0").await?;
    pod_ready(&stage, "shop").await?;
    assert_eq!(stage.installs("shop")?, 4);
    Ok(())
}

/// The jar registers another module than the Pod names: Failed, and what was registered is taken off the base again.
#[tokio::test]
async fn a_module_of_another_identity_is_taken_off_again() -> TestResult {
    let stage = one_base(|builder| builder).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    base.faults()?.next(1, On::install(), Fault::Identity("mall".to_owned(), "3.0.0".to_owned()));
    bound(&stage, "1.0.0").await?;
    let (reason, message) = pod_failed(&stage, "shop").await?;
    assert_eq!(reason, "IdentityDiffers");
    assert!(message.contains("mall:3.0.0"), "{message}");
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0", "uninstallBiz mall:3.0.0"]);
    Ok(())
}

/// One name and version for two Pods on one base: never twice, and the second one gets its turn when the first is gone.
#[tokio::test]
async fn one_module_is_never_twice_on_a_base() -> TestResult {
    let both = |builder: Builder| {
        builder.pods_per_base(2).simulators(|_, address| Options {
            second_version: SecondVersion::BothActive,
            ..Options::at(address)
        })
    };
    let stage = one_base(both).await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    let node = json!(stage.vnode_of("base-0"));
    let set = ModuleSet::deployment("shop", "1.0.0", &url).pod_field("nodeName", node);
    stage.apply(&set.pod_yaml("one")).await?;
    pod_ready(&stage, "one").await?;
    stage.apply(&set.pod_yaml("two")).await?;
    let waits = pod_is(&stage, "two", "Pod that waits", |pod| !waiting(pod).is_empty()).await?;
    let reason = waiting(&waits)[0].reason.clone().unwrap_or_default();
    assert!(["SameModule", "PolicyRejected"].contains(&reason.as_str()), "{reason}");
    stage.kubectl()?.run(&["delete", "pod", "one", "--wait=false"]).await?;
    pod_ready(&stage, "two").await?;
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    stage.assert_no_double_install()?;
    Ok(())
}
