//! The stage itself: bases run, the second scheduler asks our extender, control planes are used again.

use std::time::Duration;

use harness::{
    TestResult,
    stage::{BASES, BaseSet, ModuleSet, POLICY, Stage},
    wait,
};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, ResourceExt, api::ListParams};

#[tokio::test]
async fn bases_run_and_modules_wait_for_a_vnode() -> TestResult {
    let set = BaseSet::deployment("base-2-2-0", "2.2.0", 1).without_pre_stop();
    let stage = Stage::builder().bases(2).base_set(set).agents(0).build().await?;
    let bases = stage.wait_bases_ready(3).await?;
    assert_eq!(bases.iter().filter(|pod| pod.name_any().starts_with("base-2-2-0-")).count(), 1);
    stage.wait_modules(&[]).await?;

    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    let [reason] = stage.wait_unschedulable("app=shop", 1).await?.try_into().expect("one Pod, one reason");
    // The plain Node is the only one, and the extender names it as no place for modules.
    assert!(reason.starts_with("0/1 nodes are available: 1 "), "{reason}");

    if stage.is_simulated() {
        let base = stage.base("base-0")?;
        let lives = base.simulator()?.lives();
        stage.kubelet.restart_container(stage.default_ns(), "base-0").await?;
        assert_eq!(lives.borrow().starts, 2);
        assert!(base.simulator()?.is_up());
    }
    stage.base_kubectl()?.run(&["scale", "statefulset", "base", "--replicas=1"]).await?;
    stage.wait_bases_ready(2).await?;
    stage.wait_held("one base less", Duration::from_secs(30), |held| (held.len() == 2).then_some(())).await?;
    Ok(())
}

/// The second stage gets the control plane of the first, or another; nothing of the first is left on it.
#[tokio::test]
async fn a_stage_finds_its_control_plane_clean() -> TestResult {
    let first = Stage::builder().bases(1).agents(0).build().await?;
    let namespace = first.default_ns().to_owned();
    drop(first);
    let second = Stage::builder().bases(1).agents(0).build().await?;
    assert_ne!(second.default_ns(), namespace);
    assert_eq!(second.wait_bases_ready(1).await?.len(), 1);
    let namespaces: Api<Namespace> = Api::all(second.client());
    wait::until("end of the other namespaces", Duration::from_mins(1), async || {
        let names: Vec<String> = match namespaces.list(&ListParams::default()).await {
            Ok(list) => list.iter().map(ResourceExt::name_any).collect(),
            Err(error) => return Err(error.to_string()),
        };
        let left =
            names.iter().filter(|name| name.starts_with("stage") && *name != second.default_ns()).count();
        if left == 0 { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await?;

    let marked = second.cluster()?.server();
    second.mark_dirty();
    drop(second);
    let third = Stage::builder().agents(0).build().await?;
    assert_ne!(third.cluster()?.server(), marked, "a marked control plane is thrown away");
    Ok(())
}

/// Bases in one API server, VNodes and VPods in another; the accounts of one have no rights in the other.
#[tokio::test]
async fn two_clusters_each_have_their_own_objects() -> TestResult {
    let stage = Stage::builder().two_clusters().bases(2).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(2).yaml()).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    stage.wait_bases_hold(&[("base-0", &["shop:1.0.0"]), ("base-1", &["shop:1.0.0"])]).await?;
    let of_bases: Api<Node> = Api::all(stage.base_client());
    let there: Vec<String> =
        of_bases.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
    assert_eq!(there, [stage.kubelet.node_name("node-a")], "VNodes belong into the other cluster");
    assert!(stage.pods(BASES).await?.is_empty(), "base Pods belong into the other cluster");
    Ok(())
}

/// Two agents: one acts, both live; what they count can be read, and a policy can be replaced.
#[tokio::test]
async fn a_stage_has_as_many_agents_as_are_wanted() -> TestResult {
    let mut stage = Stage::builder().bases(1).agents(2).build().await?;
    stage.agent(0)?.wait_live().await?;
    stage.agent(1)?.wait_live().await?;
    assert!(stage.agent(2).is_err());
    let text = stage.extender.get("/metrics").await?;
    assert!(text.contains("# EOF"), "{text}");
    let loaded = async |stage: &Stage| stage.extender.metric("policy_generation", &[]).await;
    let before = loaded(&stage).await?;
    stage.rewrite_policy(&POLICY.replace("podsPerBase: 1", "podsPerBase: 2"))?;
    wait::until("the new policy in the extender", Duration::from_secs(30), async || {
        match loaded(&stage).await {
            Ok(now) if now > before => Ok(()),
            Ok(now) => Err(format!("generation {now}")),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    stage.remove_agents();
    assert!(stage.agent(0).is_err());
    Ok(())
}
