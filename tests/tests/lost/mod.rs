//! Deletions while somebody is away: the agent, the base, or the Pod itself.

use std::time::Duration;

use harness::{
    Failure, TestResult,
    arklet::{BizState, Fault, On},
    kubelet::is_ready,
    stage::{ModuleSet, Stage},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::vpods::*;

async fn shop(stage: &Stage, grace: u32) -> Result<Pod, Failure> {
    let url = jar(stage, "shop", "1.0.0")?;
    let set = ModuleSet::deployment("shop", "1.0.0", &url).grace(grace);
    stage.apply(&set.pod_yaml("shop")).await?;
    pod_ready(stage, "shop").await
}

/// BL-108: a base that hangs, or whose port is closed, does not hold a deletion for ever: past the grace period and
/// `drain.forceAfter` the object goes. The debt is remembered: when the base answers again the module is uninstalled.
#[tokio::test]
async fn a_silent_base_delays_a_deletion_only_so_long() -> TestResult {
    let policy = policy(&[("forceAfter: 10s", "forceAfter: 3s"), ("timeout: 5s", "timeout: 1s")]);
    let stage = Stage::builder().bases(2).policy(&policy).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let pods: Api<Pod> = stage.api();
    for name in ["hangs", "refuses"] {
        let url = jar(&stage, name, "1.0.0")?;
        stage.apply(&ModuleSet::deployment(name, "1.0.0", &url).grace(3).pod_yaml(name)).await?;
    }
    let hanging = base_of(&stage, &pod_ready(&stage, "hangs").await?);
    let refusing = base_of(&stage, &pod_ready(&stage, "refuses").await?);
    hanging.faults()?.always(On::any(), Fault::Hang);
    refusing.faults()?.refuse(true);
    for name in ["hangs", "refuses"] {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    let began = Timestamp::now();
    for (name, base) in [("hangs", &hanging), ("refuses", &refusing)] {
        wait::gone(&pods, name, SOON).await?;
        let took = Timestamp::now().duration_since(began).as_secs();
        assert!(took >= 5, "gone after {took} s, before the force limit of 3 + 3 s");
        assert!(base.simulator()?.state(name, "1.0.0").is_some(), "the module could not be uninstalled");
    }
    refusing.faults()?.clear();
    wait::until("end of the debt", SOON, async || match refusing.modules().await {
        Some(modules) if modules.is_empty() => Ok(()),
        modules => Err(format!("{modules:?}")),
    })
    .await?;
    Ok(())
}

/// BL-108: base and VPod are deleted at once, the base by force: nothing is left of either.
#[tokio::test]
async fn a_base_that_is_gone_does_not_hold_a_deletion() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    let pod = shop(&stage, 30).await?;
    let base = base_of(&stage, &pod);
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    let now = DeleteParams::default().grace_period(0);
    stage.base_pods().delete(base.pod(), &now).await?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    stage.wait_vnodes_ready(2).await?;
    stage.wait_modules(&[]).await?;
    Ok(())
}

fn stateful_set(url: &str, grace: u32) -> Result<String, Failure> {
    let set = ModuleSet::deployment("web", "1.0.0", url).grace(grace);
    let mut object: Value = serde_json::from_str(&set.yaml())?;
    object["kind"] = json!("StatefulSet");
    let spec = object["spec"].as_object_mut().expect("a spec");
    spec.remove("strategy");
    spec.insert("serviceName".to_owned(), json!("web"));
    Ok(object.to_string())
}

async fn successor(stage: &Stage, old: &Pod) -> Result<Pod, Failure> {
    pod_is(stage, "web-0", "successor of web-0", |pod| pod.uid() != old.uid() && is_ready(pod)).await
}

/// BL-057: a `StatefulSet` makes `web-0` again within the grace period of the old one. Whatever is still due for the old
/// one does not hit the new one, which lives on past the old grace period and force limit.
#[tokio::test]
async fn a_deletion_never_hits_the_successor_of_the_same_name() -> TestResult {
    let policy = policy(&[("forceAfter: 10s", "forceAfter: 1s")]);
    let stage = Stage::builder().bases(1).policy(&policy).build().await?;
    let url = jar(&stage, "web", "1.0.0")?;
    stage.apply(&stateful_set(&url, 4)?).await?;
    let first = pod_ready(&stage, "web-0").await?;
    stage.api::<Pod>().delete("web-0", &DeleteParams::default()).await?;
    let second = successor(&stage, &first).await?;
    // Past 4 s of grace and 1 s of force.
    let lives = async || match stage.api::<Pod>().get("web-0").await {
        Ok(pod) if pod.uid() == second.uid() && pod.metadata.deletion_timestamp.is_none() => Ok(()),
        Ok(pod) => Err(format!("{:?} {:?}", pod.uid(), pod.metadata.deletion_timestamp)),
        Err(error) => Err(error.to_string()),
    };
    wait::throughout("life of the successor", Duration::from_secs(6), lives).await?;

    // The harder form: the object is taken away by force while the agent is stopped in the middle of its removal.
    let agent = stage.agent(0)?;
    stage.api::<Pod>().delete("web-0", &DeleteParams::default()).await?;
    agent.pause()?;
    let now = DeleteParams::default().grace_period(0);
    stage.api::<Pod>().delete("web-0", &now).await?;
    let third = pod_is(&stage, "web-0", "successor of web-0", |pod| pod.uid() != second.uid()).await?;
    agent.resume()?;
    let ready = successor(&stage, &second).await?;
    assert_eq!(uid(&ready), uid(&third));
    stage.wait_bases_hold(&[("base-0", &["web:1.0.0"])]).await?;
    if stage.is_simulated() {
        stage.assert_no_double_install()?;
    }
    Ok(())
}

/// BL-060, BL-109: a VPod is deleted by force while the agent is down. The agent finds a module that it installed and
/// that nobody wants, and uninstalls it; a module that somebody installed by hand stays.
#[tokio::test]
async fn a_module_whose_pod_vanished_meanwhile_is_uninstalled() -> TestResult {
    let mut stage = Stage::builder().bases(1).build().await?;
    shop(&stage, 30).await?;
    let base = stage.base("base-0")?;
    install_by_hand(&base, "tool", "1.0.0", &jar(&stage, "tool", "1.0.0")?).await?;
    stage.agent(0)?.kill9();
    let now = DeleteParams::default().grace_period(0);
    stage.api::<Pod>().delete("shop", &now).await?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    stage.agents().first_mut().expect("an agent").restart()?;
    stage.wait_bases_hold(&[("base-0", &["tool:1.0.0"])]).await?;
    if stage.is_simulated() {
        queried(&base, 3).await?;
        let story = ["installBiz shop:1.0.0", "installBiz tool:1.0.0", "uninstallBiz shop:1.0.0"];
        assert_eq!(deeds(&base)?, story);
    }
    Ok(())
}

/// BL-067: the agent is killed while the base uninstalls a module, and started again when that has ended. The Pod goes
/// though the base does not know the module any more.
#[tokio::test]
async fn a_removal_goes_on_where_a_killed_agent_left_it() -> TestResult {
    let mut stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    let url = stage.artifacts.module("shop", "1.0.0").with(|jar| jar.stops_in(Duration::from_secs(1)));
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url.url()?).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    base.journal()?.until(SOON, |journal| journal.uninstalls("shop") == 1).await?;
    stage.agent(0)?.kill9();
    stage.wait_bases_hold(&[("base-0", &[])]).await?;
    stage.api::<Pod>().get("shop").await?;
    stage.agents().first_mut().expect("an agent").restart()?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    assert_eq!(stage.installs("shop")?, 1);
    Ok(())
}

/// The same, and the agent is back while the base still stops the module: it looks again and again, and sends no second
/// order. What follows when the module has stopped is not waited for: the test above has that.
#[tokio::test]
async fn a_removal_under_way_is_not_ordered_a_second_time() -> TestResult {
    let mut stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    let url = stage.artifacts.module("shop", "1.0.0").with(|jar| jar.stops_in(Duration::from_secs(35)));
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url.url()?).grace(60).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    base.journal()?.until(SOON, |journal| journal.uninstalls("shop") == 1).await?;
    stage.agents().first_mut().expect("an agent").restart()?;
    queried(&base, 3).await?;
    assert!(base.simulator()?.state("shop", "1.0.0").is_some(), "too slow: it has stopped already");
    stage.api::<Pod>().get("shop").await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 1));
    Ok(())
}

/// BL-064: the install takes longer than the grace period of a Pod that is deleted meanwhile. The Pod goes in time, and
/// when the base has finished the install the stray module is uninstalled.
#[tokio::test]
async fn an_install_that_ends_after_its_pod_is_undone() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    let url = stage.artifacts.module("shop", "1.0.0").start_millis(8000).url()?;
    let set = ModuleSet::deployment("shop", "1.0.0", &url).grace(2);
    stage.apply(&set.pod_yaml("shop")).await?;
    base.journal()?.until(SOON, |journal| journal.installs("shop") == 1).await?;
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    let found = base.simulator()?.state("shop", "1.0.0");
    assert_eq!(found, Some(BizState::Resolved), "the Pod went before its install had ended");
    base.journal()?.until(SOON, |journal| journal.uninstalls("shop") == 1).await?;
    stage.wait_bases_hold(&[("base-0", &[])]).await?;
    wait::until("end of the module", SOON, async || match base.simulator() {
        Ok(simulator) if simulator.modules().iter().all(|module| module.name != "shop") => Ok(()),
        _ => Err("it is there"),
    })
    .await?;
    Ok(())
}

/// BL-065: Pods that are deleted at any moment after they were made: at once, when they are bound, when their install is
/// on its way, when it has ended. At rest no Pod and no module is left.
#[tokio::test]
async fn pods_that_come_and_go_quickly_leave_nothing() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let url = stage.artifacts.module("shop", "1.0.0").start_millis(150).url()?;
    let pods: Api<Pod> = stage.api();
    for round in 0..12_usize {
        let (name, before) = (format!("shop-{round}"), stage.installs("shop")?);
        let pod: Pod = serde_json::from_str(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml(&name))?;
        pods.create(&PostParams::default(), &pod).await?;
        let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        match round % 4 {
            0 => {}
            1 => drop(pod_is(&stage, &name, "bound Pod", bound).await?),
            2 => {
                // Or it has taken over what the Pod before it left on the base.
                wait::until("another install", SOON, async || {
                    let installs = stage.installs("shop").map_err(|error| error.to_string())?;
                    let pod = pods.get(&name).await.map_err(|error| error.to_string())?;
                    if installs > before || is_ready(&pod) {
                        Ok(())
                    } else {
                        Err(format!("{installs} installs"))
                    }
                })
                .await?;
            }
            _ => drop(pod_ready(&stage, &name).await?),
        }
        pods.delete(&name, &DeleteParams::default()).await?;
    }
    stage.wait_no_pods("app=shop").await?;
    stage.wait_bases_hold(&[("base-0", &[]), ("base-1", &[])]).await?;
    for base in stage.all_bases() {
        assert_eq!(base.simulator()?.modules(), [], "{}", base.pod());
    }
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-062: five VPods are deleted while the agent is down. It finishes the deletions when it starts.
#[tokio::test]
async fn deletions_that_began_while_the_agent_was_down_are_finished() -> TestResult {
    let mut stage = Stage::builder().bases(5).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(5).yaml()).await?;
    stage.wait_pods_ready("app=shop", 5).await?;
    stage.agent(0)?.kill9();
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    stage
        .wait_pods("app=shop", "five terminating Pods", SOON, |pods| {
            let leaving = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
            if leaving == 5 { Ok(()) } else { Err(format!("{leaving} of {}", pods.len())) }
        })
        .await?;
    stage.agents().first_mut().expect("an agent").restart()?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[]).await?;
    if stage.is_simulated() {
        assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (5, 5));
    }
    Ok(())
}

/// A namespace goes while one of its modules is being installed and another backs off: it is not held up, and the base is
/// empty afterwards.
#[tokio::test]
async fn a_namespace_goes_whatever_its_modules_are_doing() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(3).build().await?;
    let elsewhere = format!("{}-modules", stage.default_ns());
    let kubectl = stage.cluster()?.kubectl()?;
    kubectl.run(&["create", "namespace", &elsewhere]).await?;
    let there = kubectl.in_namespace(&elsewhere);
    let slow = stage.artifacts.module("slow", "1.0.0").start_millis(2000).url()?;
    let nowhere = stage.artifacts.url("nowhere.jar");
    let good = jar(&stage, "good", "1.0.0")?;
    for (name, url) in [("good", &good), ("slow", &slow), ("nowhere", &nowhere)] {
        there.apply(&ModuleSet::deployment(name, "1.0.0", url).pod_yaml(name)).await?;
    }
    let pods: Api<Pod> = Api::namespaced(stage.client(), &elsewhere);
    wait::object(&pods, "good", "Ready Pod", SOON, |pod| pod.is_some_and(is_ready)).await?;
    kubectl_delete(&stage, &elsewhere).await?;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(stage.client());
    wait::gone(&namespaces, &elsewhere, SOON).await?;
    stage.wait_bases_hold(&[("base-0", &[])]).await?;
    Ok(())
}

async fn kubectl_delete(stage: &Stage, namespace: &str) -> TestResult {
    stage.cluster()?.kubectl()?.run(&["delete", "namespace", namespace, "--wait=false"]).await?;
    Ok(())
}

/// Forced deletions (`--grace-period=0`) while the agent runs: the module goes as soon as the base lets it, a foreign one
/// stays, and the next Pod gets the module's name, also where the base hung and never answered the uninstall.
#[tokio::test]
async fn a_forced_deletion_leaves_neither_a_module_nor_a_lock() -> TestResult {
    let policy = policy(&[("timeout: 2m", "timeout: 6s"), ("timeout: 5s", "timeout: 1s")]);
    let stage = Stage::builder().bases(1).policy(&policy).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let (base, pods) = (stage.base("base-0")?, stage.api::<Pod>());
    install_by_hand(&base, "tool", "1.0.0", &jar(&stage, "tool", "1.0.0")?).await?;
    for hangs in [false, true] {
        let first = shop(&stage, 30).await?;
        let before = base.journal()?.uninstalls("shop");
        if hangs {
            base.faults()?.always(On::any(), Fault::Hang);
        }
        pods.delete("shop", &DeleteParams::default().grace_period(0)).await?;
        wait::gone(&pods, "shop", SOON).await?;
        base.journal()?.until(SOON, |journal| journal.uninstalls("shop") > before).await?;
        if hangs {
            wait::object(&stage.nodes(), &node_of(&first), "silent VNode", SOON, |node| {
                let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
                conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "False")
            })
            .await?;
            base.faults()?.clear();
        }
        let next = shop(&stage, 30).await?;
        assert_ne!(uid(&next), uid(&first));
        stage.assert_bases_hold(&[("base-0", &["shop:1.0.0", "tool:1.0.0"])]).await?;
        pods.delete("shop", &DeleteParams::default()).await?;
        wait::gone(&pods, "shop", SOON).await?;
        stage.assert_bases_hold(&[("base-0", &["tool:1.0.0"])]).await?;
    }
    stage.assert_no_double_install()?;
    Ok(())
}
