//! How VPods go: out of the traffic, off the base, and only then out of the API, whatever is wrong meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod kept;
mod lost;
mod vpods;

use std::time::Duration;

use futures::StreamExt;
use harness::{
    TestResult,
    arklet::{Fault, On, Options, Throwable},
    artifact::Trouble,
    kubelet::is_ready,
    stage::{ModuleSet, Stage},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use policy::contract::names;
use serde_json::json;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
};
use vpods::*;

/// When slices last called any Pod ready, as far as is known.
#[derive(Debug, Clone, Copy, Default)]
struct Slices {
    ready: bool,
    /// Since then no slice has called a Pod ready.
    clear: Option<Timestamp>,
}

/// Follows the `EndpointSlices` of a Service.
fn follow_slices(stage: &Stage, tasks: &mut JoinSet<()>) -> (watch::Receiver<Slices>, AbortHandle) {
    let (told, slices) = watch::channel(Slices::default());
    let api: Api<EndpointSlice> = stage.api();
    let config = watcher::Config::default().labels("kubernetes.io/service-name=shop");
    let handle = tasks.spawn(async move {
        let mut events = std::pin::pin!(watcher(api, config).default_backoff());
        while let Some(event) = events.next().await {
            let Ok(watcher::Event::Apply(slice) | watcher::Event::InitApply(slice)) = event else { continue };
            let ready = slice.endpoints.iter().any(|endpoint| {
                endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
            });
            told.send_modify(|slices| {
                slices.clear = (!ready).then(|| slices.clear.unwrap_or_else(Timestamp::now));
                slices.ready = ready;
            });
        }
    });
    (slices, handle)
}

const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop"},
    "spec": {"selector": {"app": "shop"}, "ports": [{"port": 80, "targetPort": 8080}]}}"#;

/// BL-087, BL-077: a VPod leaves the traffic before its module goes. First its `preStop`, then no EndpointSlice may
/// call it ready, then the drain wait of the policy, then `uninstallBiz`; Ready stays as the probes say, so that it
/// still serves meanwhile; and all of it fits into the grace period.
#[tokio::test]
async fn a_module_leaves_the_traffic_before_it_is_uninstalled() -> TestResult {
    const WAIT: i64 = 3;
    let policy = policy(&[("wait: 1s", "wait: 3s")]);
    let stage = Stage::builder().bases(1).policy(&policy).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let mut tasks = JoinSet::new();
    let (port, asked) = hook(stage.base("base-0")?.ip(), &mut tasks).await?;
    let (mut slices, _watch) = follow_slices(&stage, &mut tasks);
    stage.apply(SERVICE).await?;
    let url = stage.artifacts.module("shop", "1.0.0").serves(8080).url()?;
    let stop = json!({"preStop": {"httpGet": {"port": port, "path": "/drain"}}});
    let set = ModuleSet::deployment("shop", "1.0.0", &url).grace(20).field("lifecycle", stop);
    stage.apply(&set.pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    tokio::time::timeout(SOON, slices.wait_for(|slices| slices.ready)).await??;

    let began = Timestamp::now();
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    let serving = pod_is(&stage, "shop", "terminating Pod", |pod| pod.metadata.deletion_timestamp.is_some());
    assert!(is_ready(&serving.await?), "it serves on while it drains");
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    let ended = Timestamp::now();
    let (hooked, uninstalled) =
        (asked.borrow().expect("preStop was called"), uninstalled_at(&stage, "base-0")?);
    let clear = slices.borrow().clear.expect("no slice calls it ready any more");
    assert!(hooked < uninstalled);
    // The slice was seen here a moment before or after the agent saw it.
    let drained = uninstalled.duration_since(clear).as_millis();
    assert!(drained >= i128::from(WAIT * 1000 - 700), "uninstalled {drained} ms after the slices were clear");
    assert!(ended.duration_since(began).as_secs() <= 20, "within the grace period");
    assert_eq!(stage.uninstalls("shop")?, 1);
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    Ok(())
}

/// BL-088: a foreign readiness gate, as a load balancer's controller has it, is waited for too, and so is the end of
/// the grace period where it never lets go.
#[tokio::test]
async fn a_module_waits_for_the_gate_of_a_load_balancer() -> TestResult {
    const GATE: &str = "example.com/load-balancer";
    let stage = Stage::builder().bases(2).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let pods: Api<Pod> = stage.api();
    let set = async |pod: &str, status: &str| {
        let body = json!({"status": {"conditions": [{"type": GATE, "status": status}]}});
        pods.patch_status(pod, &PatchParams::default(), &Patch::Strategic(body)).await
    };
    let gates = json!([{"conditionType": names::READY_GATE}, {"conditionType": GATE}]);
    for (name, grace) in [("shop", 60), ("stuck", 5)] {
        let url = jar(&stage, name, "1.0.0")?;
        let pod = ModuleSet::deployment(name, "1.0.0", &url).grace(grace);
        stage.apply(&pod.pod_field("readinessGates", gates.clone()).pod_yaml(name)).await?;
        let running = pod_is(&stage, name, "Running Pod", |pod| phase(pod) == "Running").await?;
        assert!(!is_ready(&running), "the load balancer does not know it yet");
        set(name, "True").await?;
        pod_ready(&stage, name).await?;
    }
    let base_of = |pod: &Pod| {
        let node = node_of(pod);
        stage.all_bases().into_iter().find(|base| stage.vnode_of(base.pod()) == node).expect("a base")
    };
    let base = base_of(&pods.get("shop").await?);
    for name in ["shop", "stuck"] {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    // Longer than the drain wait: this gate is what it waits for.
    wait::gone(&pods, "stuck", SOON).await?;
    queried(&base, 2).await?;
    assert_eq!(stage.uninstalls("shop")?, 0, "the gate is still True");
    assert_eq!(stage.uninstalls("stuck")?, 1, "the grace period ends every wait");
    set("shop", "False").await?;
    wait::gone(&pods, "shop", SOON).await?;
    stage.assert_bases_hold(&[("base-0", &[]), ("base-1", &[])]).await?;
    Ok(())
}

/// A Pod that is deleted while its module is being installed ends with the module gone.
#[tokio::test]
async fn a_deletion_during_an_install_ends_with_the_module_gone() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    let url = stage.artifacts.module("shop", "1.0.0").start_millis(3000).url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    base.journal()?.until(SOON, |journal| journal.installs("shop") == 1).await?;
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    assert_eq!(base.simulator()?.state("shop", "1.0.0"), None);
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 1));
    // The base is free for the next one.
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("next")).await?;
    pod_ready(&stage, "next").await?;
    stage.assert_no_double_install()?;
    Ok(())
}

/// A Pod that is deleted while its install backs off goes at once, and nothing more of it is sent to the base.
#[tokio::test]
async fn a_deletion_during_back_off_is_quick() -> TestResult {
    let policy = policy(&[("initial: 1s, max: 10s", "initial: 60s, max: 60s")]);
    let stage = Stage::builder().bases(1).policy(&policy).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.artifacts.always(Some("shop-1.0.0.jar"), Trouble::Status(503));
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    pod_waits(&stage, "shop", "InstallBackOff").await?;
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), "shop", Duration::from_secs(20)).await?;
    if stage.is_simulated() {
        assert_eq!(deeds(&*stage.base("base-0")?)?, ["installBiz shop:1.0.0"]);
    }
    Ok(())
}

/// BL-061: a Deployment is deleted, in the foreground, in the background, or with its namespace: one uninstall per
/// replica, no Pod left, and the bases are free again.
#[tokio::test]
async fn every_way_to_delete_a_deployment_uninstalls_its_modules() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    let yaml = ModuleSet::deployment("shop", "1.0.0", &url).replicas(2).yaml();
    let elsewhere = format!("{}-modules", stage.default_ns());
    let kubectl = stage.cluster()?.kubectl()?;
    kubectl.run(&["create", "namespace", &elsewhere]).await?;
    kubectl.run(&["label", "namespace", &elsewhere, &format!("{}=enabled", names::MODULES)]).await?;
    let there = kubectl.in_namespace(&elsewhere);
    let delete = ["delete", "--wait=false"];
    for (round, way) in [
        (1, vec!["deployment/shop", "--cascade=background"]),
        (2, vec!["deployment/shop", "--cascade=foreground"]),
        (3, vec!["namespace", &elsewhere]),
    ] {
        there.apply(&yaml).await?;
        stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
        there.run(&["wait", "--for=condition=Available", "deployment/shop", "--timeout=45s"]).await?;
        there.run(&[&delete[..], &way].concat()).await?;
        stage.wait_modules(&[]).await?;
        let pods: Api<Pod> = Api::namespaced(stage.client(), &elsewhere);
        wait::until("end of all Pods", SOON, async || {
            let left = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            if left.items.is_empty() { Ok(()) } else { Err(format!("{} Pods", left.items.len())) }
        })
        .await?;
        if stage.is_simulated() {
            assert_eq!(
                (stage.installs("shop")?, stage.uninstalls("shop")?),
                (2 * round, 2 * round),
                "{way:?}"
            );
        }
    }
    Ok(())
}

/// BL-059: an uninstall fails, twice. The Pod stays Terminating, the uninstall is sent again, and no module is ever left
/// without its Pod.
#[tokio::test]
async fn an_uninstall_that_fails_is_sent_again() -> TestResult {
    let keep = |_: &Pod, address| Options { keep_broken_on_stop: true, ..Options::at(address) };
    let stage = Stage::builder().bases(1).simulators(keep).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    let failure = Throwable::new("java.lang.IllegalStateException", "pool is in use");
    base.faults()?.next(2, On::uninstall(), Fault::StopThrows(failure));
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    assert!(event(&stage, "shop", "UninstallFailed").await?.contains("pool is in use"));
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    assert_eq!(base.simulator()?.state("shop", "1.0.0"), None, "gone before its Pod");
    assert_eq!(stage.uninstalls("shop")?, 3);
    Ok(())
}

/// BL-058: the base answers an uninstall with success and goes on listing the module. The Pod stays, with a Warning
/// Event, and the uninstall is tried again until the module is really gone.
#[tokio::test]
async fn a_pod_stays_until_its_module_is_really_gone() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    base.faults()?.next(2, On::uninstall(), Fault::Pretend);
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    base.journal()?.until(SOON, |journal| journal.uninstalls("shop") == 1).await?;
    assert!(event(&stage, "shop", "UninstallFailed").await?.contains("StillListed"));
    stage.api::<Pod>().get("shop").await?;
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    assert_eq!(stage.uninstalls("shop")?, 3);
    assert!(stage.agent(0)?.metric("stowage_agent_uninstalls_total", &["StillListed"]).await? >= 2.0);
    Ok(())
}
