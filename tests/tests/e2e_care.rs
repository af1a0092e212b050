//! What the agent does for modules beyond installing them: what it does not disturb, what a base waits for, who follows
//! the bases.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at what it did not expect")]

use std::{collections::BTreeMap, time::Duration};

use harness::{
    Failure, TestResult,
    arklet::{Fault, On},
    controlplane::Options,
    kubelet::is_ready,
    program::Program,
    stage::{BaseSet, ModuleSet, Stage, describe_pod, pod_condition},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};
use policy::contract::names;
use serde_json::json;

mod probed;
mod vnodes;
mod vpods;
use vnodes::*;

/// Resource versions of all VNodes, by name.
async fn versions(stage: &Stage) -> Result<Vec<(String, Option<String>)>, Failure> {
    let nodes = stage.nodes().list(&ListParams::default().labels(harness::stage::VNODES)).await?;
    Ok(nodes.iter().map(|node| (node.name_any(), node.resource_version())).collect())
}

/// A restarted agent knows from the Nodes what its predecessor had read of the JVMs, and writes none of them.
#[tokio::test]
async fn a_restarted_agent_writes_no_node() -> TestResult {
    let mut stage = Stage::builder().bases(3).build().await?;
    run_shop(&stage, 2).await?;
    // Figures of the JVMs are read with every sixth check.
    let asked = async |stage: &Stage, at_least: usize| -> TestResult {
        for base in stage.all_bases() {
            base.journal()?.until(SOON, |journal| journal.count("health") >= at_least).await?;
        }
        Ok(())
    };
    asked(&stage, 1).await?;
    wait::until("inventories with a JDK", SOON, async || {
        let nodes = stage.nodes().list(&ListParams::default().labels(harness::stage::VNODES)).await?;
        let known = nodes.iter().filter(|node| inventory(node).provides.contains_key("jdk")).count();
        if known == 3 { Ok(()) } else { Err(Failure::from(format!("{known} of 3"))) }
    })
    .await?;
    stage.agents()[0].kill9();
    let before = versions(&stage).await?;
    let mut health = 0;
    for base in stage.all_bases() {
        health = health.max(base.journal()?.count("health"));
    }
    stage.agents()[0].restart()?;
    asked(&stage, health + 1).await?;
    let checks = 12.0;
    wait::until("rounds of checks", SOON, async || {
        let now = stage.agent(0)?.metric("stowage_agent_checks_total", &[]).await?;
        if now > checks { Ok(()) } else { Err(Failure::from(format!("{now} checks"))) }
    })
    .await?;
    assert_eq!(versions(&stage).await?, before);
    assert_eq!(stage.installs("shop")?, 2);
    Ok(())
}

/// A broken network of ours: all bases are silent, and neither VNodes nor VPods are shown as not ready; one silent base is
/// shown as it is.
#[tokio::test]
async fn vpods_of_bases_that_are_silent_together_stay_ready() -> TestResult {
    let stage = Stage::builder().bases(4).build().await?;
    run_shop(&stage, 4).await?;
    let (ready, known) = (Lookout::pods_ready(&stage, "app=shop").await, Lookout::vnodes_ready(&stage).await);
    for base in stage.all_bases() {
        base.faults()?.always(On::any(), Fault::Reset);
    }
    wait_brake(stage.agent(0)?, "bases", true).await?;
    wait::throughout("VPods Ready", SETTLED, async || {
        wait_metric(stage.agent(0)?, "stowage_agent_silent_bases", &[], 4.0).await
    })
    .await?;
    ready.assert_quiet();
    known.assert_quiet();
    for base in stage.all_bases() {
        base.faults()?.clear();
    }
    wait_brake(stage.agent(0)?, "bases", false).await?;
    ready.assert_quiet();

    stage.base("base-0")?.faults()?.always(On::any(), Fault::Reset);
    let node = stage.vnode_of("base-0");
    stage
        .wait_pods("app=shop", "the VPod of the silent base not Ready, the others Ready", SOON, |pods| {
            let wrong = |pod: &&&Pod| is_ready(pod) == (node_of(pod) == node);
            if pods.iter().any(|pod| wrong(&pod)) {
                return Err(pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n"));
            }
            Ok(())
        })
        .await?;
    Ok(())
}

/// `health.evictSilentAfter`: the module of a base that stays silent goes elsewhere.
#[tokio::test]
async fn modules_of_a_base_that_stays_silent_are_evicted() -> TestResult {
    let evicting =
        policy(&[("failuresBeforeNotReady: 3", "failuresBeforeNotReady: 3, evictSilentAfter: 5s")]);
    let stage = Stage::builder().bases(3).policy(&evicting).build().await?;
    let pods = run_shop(&stage, 1).await?;
    let node = node_of(&pods[0]);
    let base =
        stage.all_bases().into_iter().find(|base| stage.vnode_of(base.pod()) == node).expect("its base");
    base.faults()?.always(On::any(), Fault::Reset);
    stage
        .wait_pods("app=shop", "one Ready VPod elsewhere", SOON, |pods| {
            let elsewhere = pods.iter().any(|pod| is_ready(pod) && node_of(pod) != node);
            if elsewhere {
                return Ok(());
            }
            Err(pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n"))
        })
        .await?;
    let events = stage.events_of(&pods[0].name_any()).await?;
    assert!(events.iter().any(|event| event.starts_with("EvictedFromSilentBase:")), "{events:?}");
    Ok(())
}

fn gated(name: &str, replicas: u32) -> BaseSet {
    BaseSet::deployment(name, "2.1.0", replicas).gated()
}

/// Status and reason of the gate's condition, and whether the Pod is Ready.
fn gate(pod: &Pod) -> (String, String, bool) {
    let condition = pod_condition(pod, names::MODULES_READY_GATE);
    let (status, reason) = condition.map_or(("-", "-"), |condition| {
        (condition.status.as_str(), condition.reason.as_deref().unwrap_or("-"))
    });
    (status.to_owned(), reason.to_owned(), is_ready(pod))
}

async fn wait_gates(stage: &Stage, wanted: (&str, &str, bool), count: usize) -> TestResult {
    wait::until(&format!("{count} bases with {wanted:?}"), SOON, async || {
        let pods = stage.base_pods().list(&ListParams::default().labels("app=gated")).await?;
        let gates: Vec<_> = pods.iter().map(gate).collect();
        let is = |(status, reason, ready): &&(String, String, bool)| {
            (status.as_str(), reason.as_str(), *ready) == wanted
        };
        if gates.len() == count && gates.iter().filter(is).count() == count {
            return Ok(());
        }
        Err(Failure::from(format!("{gates:?}")))
    })
    .await?;
    Ok(())
}

/// A base with the gate is Ready only when the module of every `DaemonSet` meant for it is.
#[tokio::test]
async fn a_base_waits_for_its_modules() -> TestResult {
    let stage = Stage::builder().without_waiting().build().await?;
    stage.agent(0)?.wait_ready().await?;
    let url = stage.artifacts.module("audit", "1.0.0").url()?;
    stage.apply(&ModuleSet::daemon_set("audit", "1.0.0", &url).yaml()).await?;
    stage.apply_bases(&gated("gated", 1)).await?;
    wait::until("a simulated base", SOON, async || {
        let base = stage.all_bases().pop().ok_or("none")?;
        base.faults()
            .map_err(|error| error.to_string())?
            .always(On::install(), Fault::Slow(Duration::from_secs(8)));
        Ok::<(), String>(())
    })
    .await?;
    wait_gates(&stage, ("False", "ModulesNotReady", false), 1).await?;
    stage.wait_pods_ready("app=audit", 1).await?;
    wait_gates(&stage, ("True", "ModulesReady", true), 1).await?;
    assert_eq!(stage.installs("audit")?, 1);
    Ok(())
}

/// A base waits for module Pods that have no Node yet and could come, and for those that its rollout has put on another
/// base.
#[tokio::test]
async fn a_base_waits_for_modules_on_their_way() -> TestResult {
    let stage = Stage::builder().without_waiting().build().await?;
    stage.agent(0)?.wait_ready().await?;
    stage.apply_bases(&gated("gated", 1)).await?;
    wait_gates(&stage, ("True", "ModulesReady", true), 1).await?;
    let first = stage.all_bases().remove(0);
    first.faults()?.always(On::install(), Fault::Slow(Duration::from_secs(25)));
    // The first base has room for one.
    stage.apply(&shop(&stage, 2)?.yaml()).await?;
    first.journal()?.until(SOON, |journal| journal.installs("shop") == 1).await?;
    stage.wait_unschedulable("app=shop", 1).await?;
    stage.scheduler.pause()?;
    stage.base_kubectl()?.run(&["scale", "deployment/gated", "--replicas=2"]).await?;
    wait::until("a base that waits for both", SOON, async || {
        let pods = stage.base_pods().list(&ListParams::default().labels("app=gated")).await?;
        let said =
            pods.iter().filter_map(|pod| pod_condition(pod, names::MODULES_READY_GATE)?.message.clone());
        let said: Vec<_> = said.collect();
        let both =
            |text: &&String| text.contains(", which has no Node yet") && text.contains(" on another base");
        if said.iter().any(|text| both(&text)) { Ok(()) } else { Err(Failure::from(format!("{said:?}"))) }
    })
    .await?;
    stage.scheduler.resume()?;
    stage.wait_pods_ready("app=shop", 2).await?;
    wait_gates(&stage, ("True", "ModulesReady", true), 2).await?;
    Ok(())
}

/// A module that never comes does not hold a base for ever.
#[tokio::test]
async fn a_base_waits_for_its_modules_up_to_the_limit() -> TestResult {
    let limited = policy(&[("drain: {", "gates: {modulesReadyLimit: 15s}\ndrain: {")]);
    let stage = Stage::builder().policy(&limited).without_waiting().build().await?;
    stage.agent(0)?.wait_ready().await?;
    let missing = stage.artifacts.url("modules/audit-1.0.0-ark-biz.jar");
    stage.apply(&ModuleSet::daemon_set("audit", "1.0.0", &missing).yaml()).await?;
    stage.apply_bases(&gated("gated", 1)).await?;
    wait_gates(&stage, ("True", "LimitPassed", true), 1).await?;
    let pod = stage.base_pods().list(&ListParams::default().labels("app=gated")).await?.items.remove(0);
    let events = stage.events_of_node(&stage.vnode_of(&pod.name_any())).await?;
    assert!(events.iter().any(|event| event.starts_with("LimitPassed:")), "{events:?}");
    Ok(())
}

/// The agent's program with a command, as an operator runs it: whether it succeeded, and what it said.
async fn stowage(stage: &Stage, words: &[&str]) -> Result<(bool, String), Failure> {
    let kubeconfig = format!("--module-kubeconfig={}", stage.cluster()?.kubeconfig_path().display());
    let program = Program::find("stowage-agent")?;
    let output = tokio::process::Command::new(program).args(words).arg(kubeconfig).output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.success(), text(&output.stdout) + &text(&output.stderr)))
}

/// `stowage-agent retire` refuses while an agent acts, says what it would do, and leaves nothing of ours and all of others'.
#[tokio::test]
async fn retire_removes_what_an_agent_made() -> TestResult {
    let mut stage = Stage::builder().bases(2).exclusive(Options::named("retire")).build().await?;
    run_shop(&stage, 2).await?;
    let (done, said) = stowage(&stage, &["retire"]).await?;
    assert!(
        !done && said.contains("would remove 2 VNodes, 2 VPods and 2 Leases") && said.contains("--yes"),
        "{said}"
    );
    assert_eq!(vnode_names(&stage).await?.len(), 2);
    let (done, said) = stowage(&stage, &["retire", "--yes"]).await?;
    assert!(!done && said.contains("(agent-0) still acts"), "{said}");
    assert_eq!(vnode_names(&stage).await?.len(), 2);

    stage.remove_agents();
    let (done, said) = stowage(&stage, &["retire", "--yes", "--base-cluster-id=other"]).await?;
    assert!(done && vnode_names(&stage).await?.len() == 2, "those of another base cluster: {said}");
    let (done, said) = stowage(&stage, &["retire", "--yes"]).await?;
    assert!(done, "{said}");
    assert_eq!(vnode_names(&stage).await?, Vec::<String>::new());
    assert!(leases(&stage).await?.is_empty());
    assert!(agent_leases(stage.client()).get_opt("stowage-agent").await?.is_none());
    let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    assert!(!stage.pods("app=shop").await?.iter().any(bound), "no VPod is left on a Node that is gone");
    assert!(!stage.nodes().list(&ListParams::default()).await?.items.is_empty(), "Nodes of others stay");
    assert_eq!(stage.wait_bases_ready(2).await?.len(), 2, "so do base Pods");
    Ok(())
}

/// `stowage-agent preflight` on the cluster of the tests: what it lacks is said, and an account without rights is a problem.
#[tokio::test]
async fn preflight_says_what_a_cluster_needs() -> TestResult {
    let stage =
        Stage::builder().base_set(BaseSet::stateful("bare", "2.1.0", 1).without_pre_stop()).build().await?;
    let selector = "--base-selector=app=bare";
    let levels = |text: &str| -> Result<BTreeMap<String, String>, Failure> {
        let json: serde_json::Value = serde_json::from_str(text)?;
        let findings = json["findings"].as_array().cloned().unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        Ok(findings.iter().map(|finding| (text(&finding["code"]), text(&finding["level"]))).collect())
    };
    let (good, said) = stowage(&stage, &["preflight", "-o", "json", selector]).await?;
    let found = levels(&said)?;
    assert!(good, "{said}");
    for (code, level) in
        [("NoPreStop", "warning"), ("APIVersions", "ok"), ("Rights", "ok"), ("ClusterAutoscaler", "ok")]
    {
        assert_eq!(found.get(code).map(String::as_str), Some(level), "{code}: {said}");
    }

    let account = stage.cluster()?.kubeconfig_for_service_account(SYSTEM, "stowage-agent").await?;
    let account = format!("--module-kubeconfig={}", account.display());
    let program = Program::find("stowage-agent")?;
    let run = async |words: &[&str]| tokio::process::Command::new(&program).args(words).output().await;
    let output = run(&["preflight", &account, selector]).await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("has every right"),
        "the shipped roles are enough: {said}"
    );

    let nobody = stage.cluster()?.kubeconfig_for_service_account(SYSTEM, "default").await?;
    let output = run(&["preflight", &format!("--module-kubeconfig={}", nobody.display())]).await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success() && said.contains("PROBLEM Rights"), "{said}");
    assert!(said.contains("create nodes"), "{said}");
    Ok(())
}

/// A Deployment whose replicas follow the bases: the object without `replicas`, with the annotation.
fn follower(stage: &Stage) -> Result<String, Failure> {
    let url = stage.artifacts.module("audit", "1.0.0").url()?;
    let mut object: serde_json::Value =
        serde_json::from_str(&ModuleSet::deployment("audit", "1.0.0", &url).yaml())?;
    object["metadata"]["annotations"] = json!({names::SCALE: names::SCALE_BASES});
    object["spec"].as_object_mut().expect("a spec").remove("replicas");
    Ok(object.to_string())
}

/// Peer scaling by a Deployment: one instance on every base as bases come and go; an autoscaler beside it is told of in
/// words and keeps the say.
#[tokio::test]
async fn a_deployment_follows_its_bases() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    stage.apply(&follower(&stage)?).await?;
    stage.wait_pods_ready("app=audit", 2).await?;
    let scale = async |replicas: &str| {
        stage.base_kubectl()?.run(&["scale", "statefulset", "base", replicas]).await.map_err(Failure::from)
    };
    scale("--replicas=4").await?;
    stage.wait_pods_ready("app=audit", 4).await?;
    stage.wait_modules(&[("audit:1.0.0", 4)]).await?;
    scale("--replicas=1").await?;
    stage.wait_pods_ready("app=audit", 1).await?;
    let events = stage.events_of("audit").await?;
    for step in ["1 to 2", "2 to 4"] {
        let told = format!("ScaledToBases: scaled from {step},");
        assert!(events.iter().any(|event| event.starts_with(&told)), "{step}: {events:?}");
    }

    stage
        .apply(
            &json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "rival"},
                "spec": {"minReplicas": 1, "maxReplicas": 9,
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "audit"}}})
            .to_string(),
        )
        .await?;
    scale("--replicas=2").await?;
    wait::until("the conflict in words", SOON, async || {
        let events = stage.events_of("audit").await?;
        let told = events.iter().any(|event| event.starts_with("ScaleConflict:") && event.contains("rival"));
        if told { Ok(()) } else { Err(Failure::from(format!("{events:?}"))) }
    })
    .await?;
    assert_eq!(stage.pods("app=audit").await?.len(), 1, "the autoscaler has the say");
    stage.kubectl()?.run(&["delete", "horizontalpodautoscaler", "rival"]).await?;
    Ok(())
}

/// The drift report names a module whose VPod is gone, as long as nothing may be uninstalled.
#[tokio::test]
async fn the_drift_report_names_orphans() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let pods = run_shop(&stage, 1).await?;
    change_policy(&stage, &paused_policy()).await?;
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--cascade=orphan"]).await?;
    stage.kubectl()?.run(&["delete", "replicaset", "-l", "app=shop", "--cascade=orphan"]).await?;
    stage.kubectl()?.run(&["delete", "pod", &pods[0].name_any(), "--force", "--grace-period=0"]).await?;
    wait_metric(stage.agent(0)?, "stowage_agent_drift", &["kind=\"orphan\""], 1.0).await?;
    let diag: serde_json::Value = serde_json::from_str(&stage.agent(0)?.get("/diag").await?)?;
    let first = diag["fleet"]["drift"]["orphans"]["first"][0].as_str().unwrap_or_default().to_owned();
    assert!(first.starts_with("shop:1.0.0 on ") && first.ends_with(&pods[0].name_any()), "{first}");
    change_policy(&stage, harness::stage::POLICY).await?;
    wait_metric(stage.agent(0)?, "stowage_agent_drift", &["kind=\"orphan\""], 0.0).await?;
    stage.wait_modules(&[]).await?;
    Ok(())
}
