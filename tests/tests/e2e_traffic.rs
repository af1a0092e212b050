//! Traffic without loss: constant load on a Service whose endpoints are modules, through everything that people do with
//! modules and bases. The client picks its targets from real EndpointSlices and never tries again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod styles;
mod vpods;

use std::time::Duration;

use harness::{
    Failure, TestResult,
    kubelet::is_ready,
    load::{Load, Lost},
    stage::{BaseSet, ModuleSet, Stage},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::DeleteParams};
use vpods::*;

/// How often in a row each operation is done.
const ROUNDS: usize = 10;

const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop"},
    "spec": {"selector": {"app": "shop"}, "ports": [{"port": 80, "targetPort": 8080}]}}"#;

/// A module that serves the path `/shop`, and takes a moment to start and to stop.
fn shop(stage: &Stage, version: &str) -> Result<String, Failure> {
    let jar = stage.artifacts.module("shop", version).serves(8080).start_millis(200);
    Ok(jar.with(|jar| jar.context_path("/shop").stops_in(Duration::from_millis(100))).url()?)
}

async fn load(stage: &Stage) -> Result<Load, Failure> {
    Ok(Load::on(stage.client(), stage.default_ns(), "shop", "/shop/cart").await?)
}

/// Three replicas of the module behind a Service, under load.
async fn three_replicas(stage: &Stage) -> Result<Load, Failure> {
    stage.apply(SERVICE).await?;
    let set = ModuleSet::deployment("shop", "1.0.0", &shop(stage, "1.0.0")?).replicas(3);
    stage.apply(&set.yaml()).await?;
    stage.wait_pods_ready("app=shop", 3).await?;
    load(stage).await
}

async fn rolled_out(stage: &Stage) -> TestResult {
    stage.kubectl()?.run(&["rollout", "status", "deployment/shop", "--timeout=90s"]).await?;
    Ok(())
}

/// Base replacement: a rollout of the bases' own Deployment, two at a time, which waits for the modules by the gate
/// `stowage.dev/modules-ready`; kubelet gives each base its `preStop` time, and that is enough.
#[tokio::test]
async fn a_rollout_of_the_bases_loses_no_request() -> TestResult {
    let bases = BaseSet::deployment("base", "2.1.0", 3).surge(2).gated().pre_stop(5);
    let bases = bases.pod_spec(|pod| pod["terminationGracePeriodSeconds"] = 20.into());
    let stage = Stage::builder().base_set(bases).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let load = three_replicas(&stage).await?;
    let kubectl = stage.base_kubectl()?;
    for round in 1..=ROUNDS {
        kubectl.run(&["rollout", "restart", "deployment/base"]).await?;
        kubectl.run(&["rollout", "status", "deployment/base", "--timeout=120s"]).await?;
        stage.wait_bases_ready(3).await?;
        stage.wait_vnodes_ready(3).await?;
        stage
            .wait_pods("app=shop", "three Ready Pods and no other", SOON, |pods| {
                let ready = pods.iter().filter(|pod| is_ready(pod)).count();
                let names: Vec<_> = pods.iter().map(|pod| pod.name_any()).collect();
                if (ready, pods.len()) == (3, 3) { Ok(()) } else { Err(format!("{ready} of {names:?}")) }
            })
            .await?;
        load.lossless().map_err(|error| format!("round {round}: {error}"))?;
    }
    let report = load.stop().await;
    println!("base replacement: {report}");
    assert_eq!(report.lost(), 0, "{report}");
    assert_eq!(stage.all_bases().len(), 3 + 3 * ROUNDS, "each base was replaced each time");
    Ok(())
}

/// The measure itself: where the drain wait is shorter than the clients' lag, and where a module is uninstalled past the
/// agent while slices still name it, requests are lost, and the client says how.
#[tokio::test]
async fn what_is_done_in_the_wrong_order_is_seen() -> TestResult {
    let hasty = policy(&[("wait: 1s", "wait: 0s")]);
    let stage = Stage::builder().bases(2).policy(&hasty).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    stage.apply(SERVICE).await?;
    let url = shop(&stage, "1.0.0")?;
    for name in ["first", "second"] {
        stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml(name)).await?;
        pod_ready(&stage, name).await?;
    }
    let lag = Duration::from_secs(2);
    let load = Load::lagging(stage.client(), stage.default_ns(), "shop", "/shop/cart", lag).await?;
    stage.api::<Pod>().delete("first", &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), "first", SOON).await?;
    wait::until("a lost request", SOON, async || {
        let report = load.so_far();
        if report.lost() > 0 { Ok(()) } else { Err(report) }
    })
    .await?;
    let report = load.stop().await;
    assert!(report.served() > 0, "{report}");
    let told = |lost: &Lost| matches!(lost, Lost::NotConnected(_) | Lost::Broken | Lost::Status(404));
    assert!(report.reasons().keys().all(told), "{report}");

    let load = self::load(&stage).await?;
    let base = base_of(&stage, &stage.api::<Pod>().get("second").await?);
    uninstall_by_hand(&base, "shop", "1.0.0").await?;
    wait::until("a lost request", SOON, async || {
        let report = load.so_far();
        if report.lost() > 0 { Ok(()) } else { Err(report) }
    })
    .await?;
    assert!(load.lossless().is_err());
    Ok(())
}

/// BL-087: a rolling release, and `kubectl rollout undo`, on bases that are all full: each old instance leaves the traffic before
/// it is uninstalled, and its successor takes part when it serves.
#[tokio::test]
async fn releases_and_rollbacks_lose_no_request() -> TestResult {
    let stage = Stage::builder().bases(3).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let load = three_replicas(&stage).await?;
    let next = ModuleSet::deployment("shop", "2.0.0", &shop(&stage, "2.0.0")?).replicas(3);
    for _ in 0..ROUNDS {
        stage.apply(&next.yaml()).await?;
        rolled_out(&stage).await?;
        stage.kubectl()?.run(&["rollout", "undo", "deployment/shop"]).await?;
        rolled_out(&stage).await?;
        load.lossless()?;
    }
    let report = load.stop().await;
    println!("releases and rollbacks: {report}");
    assert_eq!(report.lost(), 0, "{report}");
    assert!(report.served_by("shop:1.0.0") > 0 && report.served_by("shop:2.0.0") > 0, "{report}");
    stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
    assert_eq!(stage.installs("shop")?, 3 + 2 * 3 * ROUNDS);
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-087: scaling down takes modules out of the traffic first, like any other end of a Pod.
#[tokio::test]
async fn scaling_down_loses_no_request() -> TestResult {
    let stage = Stage::builder().bases(3).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let load = three_replicas(&stage).await?;
    for _ in 0..ROUNDS {
        for count in [1, 3] {
            let replicas = format!("--replicas={count}");
            stage.kubectl()?.run(&["scale", "deployment/shop", &replicas]).await?;
            stage.wait_pods_ready("app=shop", count).await?;
        }
        load.lossless()?;
    }
    let report = load.stop().await;
    println!("scaling: {report}");
    assert_eq!(report.lost(), 0, "{report}");
    assert_eq!(stage.uninstalls("shop")?, 2 * ROUNDS);
    Ok(())
}

/// BL-087: `kubectl drain` of a VNode: cordoned, its VPods evicted within their budget, and gone when it returns.
#[tokio::test]
async fn draining_a_vnode_loses_no_request() -> TestResult {
    let stage = Stage::builder().bases(4).pods_per_base(2).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    stage
        .apply(
            r#"{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "shop"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "shop"}}}}"#,
        )
        .await?;
    let cart = jar(&stage, "cart", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("cart", "1.0.0", &cart).replicas(2).yaml()).await?;
    let load = three_replicas(&stage).await?;
    let kubectl = stage.kubectl()?;
    for _ in 0..ROUNDS {
        let pods = stage.wait_pods_ready("app=shop", 3).await?;
        stage.wait_pods_ready("app=cart", 2).await?;
        let node = node_of(&pods[0]);
        kubectl.run(&["drain", &node, "--timeout=80s"]).await?;
        let left = base_of(&stage, &pods[0]).modules().await;
        assert_eq!(left, Some(std::collections::BTreeSet::new()), "nothing is left on a drained base");
        kubectl.run(&["uncordon", &node]).await?;
        load.lossless()?;
    }
    stage.wait_pods_ready("app=shop", 3).await?;
    let report = load.stop().await;
    println!("drain: {report}");
    assert_eq!(report.lost(), 0, "{report}");
    Ok(())
}
