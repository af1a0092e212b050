//! The operations that users know: release, rollback, removal, scaling with the bases, replay.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod shown;
mod vpods;

use harness::{
    TestResult,
    kubelet::is_ready,
    stage::{BaseSet, ModuleSet, Stage, describe_pod},
    wait,
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use policy::contract::names;
use vpods::*;

/// Release (image and version), rollback by `kubectl rollout undo`, removal: after each the bases hold what they should
/// and nothing else, and each step costs one install and one uninstall per replica.
#[tokio::test]
async fn a_release_a_rollback_and_a_removal_leave_what_they_should() -> TestResult {
    let stage = Stage::builder().bases(3).build().await?;
    let (first, second) = (jar(&stage, "shop", "1.0.0")?, jar(&stage, "shop", "2.0.0")?);
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &first).replicas(2).yaml()).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    let before = stage.wait_pods_ready("app=shop", 2).await?;

    stage.apply(&ModuleSet::deployment("shop", "2.0.0", &second).replicas(2).yaml()).await?;
    stage.wait_modules(&[("shop:2.0.0", 2)]).await?;
    let after = stage.wait_pods_ready("app=shop", 2).await?;
    assert!(
        after.iter().all(|pod| before.iter().all(|old| uid(old) != uid(pod))),
        "a release makes new Pods"
    );
    for pod in &after {
        let id = containers(pod)[0].container_id.clone().unwrap_or_default();
        assert!(id.ends_with(":shop:2.0.0"), "{id}");
    }

    let kubectl = stage.kubectl()?;
    kubectl.run(&["rollout", "undo", "deployment/shop"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    kubectl.run(&["rollout", "status", "deployment/shop", "--timeout=30s"]).await?;

    kubectl.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.assert_bases_hold(&[("base-0", &[]), ("base-1", &[]), ("base-2", &[])]).await?;
    if stage.is_simulated() {
        assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (6, 6));
        stage.assert_no_double_install()?;
    }
    Ok(())
}

/// BL-052: a release on the only base. The old version is off the base before the new one comes, so that no install is
/// ever refused for it.
#[tokio::test]
async fn a_release_on_the_only_base_uninstalls_first() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    for version in ["1.0.0", "1.1.0"] {
        let url = stage.artifacts.module("shop", version).serves(8080).with(|jar| jar.context_path("/shop"));
        stage.apply(&ModuleSet::deployment("shop", version, &url.url()?).yaml()).await?;
        stage.wait_modules(&[(&format!("shop:{version}"), 1)]).await?;
    }
    let [pod] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    let story = stage.events_of(&pod.name_any()).await?;
    assert!(!story.iter().any(|event| event.starts_with("InstallFailed")), "{story:?}");
    if stage.is_simulated() {
        let story = ["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0", "installBiz shop:1.1.0"];
        assert_eq!(deeds(&*stage.base("base-0")?)?, story);
    }
    Ok(())
}

/// A version that cannot be installed stops the rollout, and `rollout undo` brings the old one back at once: failures
/// that are remembered never block a rollback.
#[tokio::test]
async fn a_rollback_is_not_blocked_by_remembered_failures() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(2).yaml()).await?;
    stage.wait_pods_ready("app=shop", 2).await?;

    let nowhere = stage.artifacts.url("nowhere.jar");
    stage.apply(&ModuleSet::deployment("shop", "2.0.0", &nowhere).replicas(2).yaml()).await?;
    stage
        .wait_pods("app=shop", "a Failed Pod", SOON, |pods| {
            let failed = pods.iter().any(|pod| phase(pod) == "Failed");
            if failed { Ok(()) } else { Err(pods.iter().map(|pod| describe_pod(pod)).collect()) }
        })
        .await?;
    stage.kubectl()?.run(&["rollout", "undo", "deployment/shop"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    stage
        .wait_pods("app=shop", "two Ready Pods", SOON, |pods| {
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            if ready == 2 { Ok(()) } else { Err(pods.iter().map(|pod| describe_pod(pod)).collect()) }
        })
        .await?;
    Ok(())
}

/// A module group is one Pod: its modules come in the order of the Pod, and go together.
#[tokio::test]
async fn a_module_group_comes_and_goes_as_one() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let (shop, cart) = (jar(&stage, "shop", "1.0.0")?, jar(&stage, "cart", "0.9.2")?);
    let group = ModuleSet::deployment("shop", "1.0.0", &shop).module("cart", "0.9.2", &cart);
    stage.apply(&group.yaml()).await?;
    let [pod] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0", "cart:0.9.2"])]).await?;
    assert_eq!(containers(&pod).len(), 2);
    assert!(containers(&pod).iter().all(|container| container.ready), "{}", describe_pod(&pod));

    stage.kubectl()?.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    if stage.is_simulated() {
        let deeds = deeds(&*stage.base("base-0")?)?;
        assert_eq!(deeds[..2], ["installBiz shop:1.0.0", "installBiz cart:0.9.2"]);
        let mut gone = deeds[2..].to_vec();
        gone.sort();
        assert_eq!(gone, ["uninstallBiz cart:0.9.2", "uninstallBiz shop:1.0.0"]);
    }
    Ok(())
}

/// Peer scaling: a `DaemonSet` of modules follows its bases up and down, and what a base that went had is not left over.
#[tokio::test]
async fn a_daemon_set_follows_the_bases_both_ways() -> TestResult {
    let stage = Stage::builder().base_set(BaseSet::deployment("base", "2.1.0", 2)).build().await?;
    let url = jar(&stage, "audit", "1.0.0")?;
    stage.apply(&ModuleSet::daemon_set("audit", "1.0.0", &url).yaml()).await?;
    let bases = stage.base_kubectl()?;
    for count in [2, 5, 3] {
        bases.run(&["scale", "deployment/base", &format!("--replicas={count}")]).await?;
        stage.wait_modules(&[("audit:1.0.0", count)]).await?;
        stage.wait_pods_ready("app=audit", count).await?;
        stage.wait_vnodes_ready(count).await?;
    }
    let leases: Api<Lease> = Api::namespaced(stage.client(), "kube-node-lease");
    let vnodes = async || {
        let leases = leases.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let names: Vec<_> = leases.iter().map(ResourceExt::name_any).collect();
        let left = names.iter().filter(|name| name.starts_with("virtual-node-")).count();
        if left == 3 { Ok(()) } else { Err(format!("{names:?}")) }
    };
    wait::until("three Leases of VNodes", SOON, vnodes).await?;
    if stage.is_simulated() {
        assert_eq!(stage.installs("audit")?, 5, "each base got it once");
        stage.assert_no_double_install()?;
    }
    Ok(())
}

/// BL-078: replay. The base's container restarts in its Pod. The VPods stay, are not Ready for a while and Ready
/// again; each module is installed exactly once more, in the order of the inventory, also by an agent that did not
/// install them.
#[tokio::test]
async fn a_restarted_base_gets_its_modules_back_in_order() -> TestResult {
    let policy =
        policy(&[("podsPerBase: 1", "podsPerBase: 3"), ("parallelPerBase: 2", "parallelPerBase: 1")]);
    let mut stage = Stage::builder().bases(1).policy(&policy).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    // Not in the order of their names.
    let modules = ["pear", "fig", "apple"];
    for name in modules {
        let url = stage.artifacts.module(name, "1.0.0").start_millis(300).url()?;
        stage.apply(&ModuleSet::deployment(name, "1.0.0", &url).pod_yaml(name)).await?;
        pod_ready(&stage, name).await?;
    }
    let before = stage.pods(names::MODULE_POD).await?;
    assert_eq!(before.len(), 3);

    let once: Vec<_> = modules.iter().map(|name| format!("installBiz {name}:1.0.0")).collect();
    for round in 1..=2 {
        if round == 2 {
            stage.agents()[0].restart()?;
            let agent = stage.agent(0)?;
            agent.wait_live().await?;
            wait::until("the later agent at work", SOON, async || {
                let leads =
                    agent.metric("stowage_agent_leader", &[]).await.map_err(|error| error.to_string())?;
                if leads > 0.0 { Ok(()) } else { Err("it does not lead".to_owned()) }
            })
            .await?;
        }
        let restart = async {
            stage.kubelet.restart_container(stage.default_ns(), "base-0").await?;
            Ok::<_, harness::Failure>(())
        };
        let fallen = async {
            for name in modules {
                pod_is(&stage, name, "Pod that is not Ready", |pod| !is_ready(pod)).await?;
            }
            Ok::<_, harness::Failure>(())
        };
        tokio::try_join!(fallen, restart)?;
        for old in &before {
            let pod = pod_ready(&stage, &old.name_any()).await?;
            assert_eq!(uid(&pod), uid(old), "the same VPod");
            assert_eq!((phase(&pod), restarts(&pod)), ("Running", vec![round]));
        }
        let expected: Vec<_> = (0..=round).flat_map(|_| once.clone()).collect();
        let base = stage.base("base-0")?;
        assert_eq!(deeds(&base)?, expected, "round {round}");
    }
    stage.assert_no_double_install()?;
    Ok(())
}

/// A base Pod is deleted: its module runs elsewhere, its VNode and Lease are gone, and the successor is a new VNode.
#[tokio::test]
async fn a_deleted_base_hands_its_module_over() -> TestResult {
    let stage = Stage::builder().base_set(BaseSet::deployment("base", "2.1.0", 2)).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    let [pod] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    let node = node_of(&pod);
    let base = stage.base_pods().list(&ListParams::default()).await?.items.into_iter();
    let base = base.map(|pod| pod.name_any()).find(|name| stage.vnode_of(name) == node);
    let base = base.expect("a base stands behind the VNode");

    stage.base_pods().delete(&base, &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), &pod.name_any(), SOON).await?;
    let [moved] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    assert_ne!(node_of(&moved), node);
    wait::gone(&stage.nodes(), &node, SOON).await?;
    let leases: Api<Lease> = Api::namespaced(stage.client(), "kube-node-lease");
    wait::gone(&leases, &node, SOON).await?;
    stage.wait_vnodes_ready(2).await?;
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    if stage.is_simulated() {
        assert_eq!(stage.installs("shop")?, 2);
    }
    Ok(())
}

/// The same where the successor has the base's name, as in a `StatefulSet`: the VNode of that name stands for the new
/// base, and the module comes back on it.
#[tokio::test]
async fn a_base_that_returns_under_its_name_is_another() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    let [pod] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    let first = stage.base("base-0")?;
    stage.base_pods().delete("base-0", &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), &pod.name_any(), SOON).await?;
    let [moved] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    let second = stage.base("base-0")?;
    assert_ne!(first.uid(), second.uid());
    let node = stage.nodes().get(&stage.vnode_of("base-0")).await?;
    assert_eq!(node.annotations()[names::BASE_UID], second.uid());
    let ip = moved.status.as_ref().and_then(|status| status.pod_ip.clone());
    assert_eq!(ip, Some(second.ip().to_string()));
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    if stage.is_simulated() {
        assert_eq!((first.journal()?.installs("shop"), second.journal()?.installs("shop")), (1, 1));
    }
    Ok(())
}
