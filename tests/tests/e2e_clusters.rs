//! Bases in one API server, `VNode`s and `VPod`s in another; and several base clusters behind one module cluster.

use std::time::Duration;

use harness::{
    Failure, TestResult,
    controlplane::{Component, ControlPlane},
    stage::{BASES, BaseSet, Stage, VNODES},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::ListParams};
use policy::contract::{names, node_name};

mod vnodes;
use vnodes::*;

/// Whether the agent's account may do something in a cluster.
async fn may(cluster: &ControlPlane, action: &[&str]) -> Result<bool, Failure> {
    let account = cluster.kubeconfig_for_service_account(SYSTEM, "stowage-agent").await?;
    let question = [&["auth", "can-i"], action].concat();
    Ok(cluster.kubectl_as(&account)?.output(&question, "").await?.status.success())
}

/// The whole path over two API servers, with exactly the shipped rights in each: each has its own objects
/// only, and the agent's credentials of one do not serve for the objects of the other.
#[tokio::test]
async fn bases_and_modules_live_in_two_clusters() -> TestResult {
    let stage = Stage::builder().two_clusters().bases(2).build().await?;
    run_shop(&stage, 2).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    let everything = ListParams::default();
    let in_base_cluster =
        Api::<Node>::all(stage.base_client()).list(&ListParams::default().labels(VNODES)).await?;
    assert!(in_base_cluster.items.is_empty(), "VNodes in the base cluster");
    let modules = stage.base_pods().list(&ListParams::default().labels(names::MODULE_POD)).await?;
    assert!(modules.items.is_empty(), "VPods in the base cluster");
    let bases = stage.api::<Pod>().list(&ListParams::default().labels(BASES)).await?;
    assert!(bases.items.is_empty(), "base Pods in the module cluster");
    assert_eq!(
        node_leases(stage.base_client()).list(&ListParams::default().labels(VNODES)).await?.items.len(),
        0
    );
    assert_eq!(agent_leases(stage.base_client()).list(&everything).await?.items.len(), 0);
    let (base_cluster, module_cluster) = (stage.base_cluster()?, stage.cluster()?);
    for (cluster, action, expected) in [
        (base_cluster, ["list", "pods", "--all-namespaces"].as_slice(), true),
        (base_cluster, &["create", "nodes"], false),
        (base_cluster, &["delete", "pods", "--all-namespaces"], false),
        (base_cluster, &["create", "leases", "--namespace=kube-node-lease"], false),
        (base_cluster, &["get", "secrets", "--all-namespaces"], false),
        (module_cluster, &["create", "nodes"], true),
        (module_cluster, &["get", "secrets", "--all-namespaces"], false),
        (module_cluster, &["create", "pods", "--all-namespaces"], false),
    ] {
        assert_eq!(may(cluster, action).await?, expected, "{action:?}");
    }
    let token = base_cluster.kubeconfig_for_service_account(SYSTEM, "stowage-agent").await?;
    let elsewhere = format!("--server={}", module_cluster.server());
    let crossed = ["--insecure-skip-tls-verify", &elsewhere, "get", "nodes"];
    let output = module_cluster.kubectl_as(&token)?.output(&crossed, "").await?;
    assert!(!output.status.success(), "the credentials of the base cluster are good in the module cluster");

    let refused = stage.agent(0)?.metric("stowage_agent_api_calls_total", &["result=\"Forbidden\""]).await?;
    assert!(refused < 0.5, "{refused} calls were refused");

    // Both directions: a module goes, and a base goes.
    stage.kubectl()?.run(&["scale", "deployment", "shop", "--replicas=1"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    stage.base_kubectl()?.run(&["scale", "statefulset", "base", "--replicas=1"]).await?;
    wait::gone(&stage.nodes(), &stage.vnode_of("base-1"), SOON).await?;
    wait::gone(&node_leases(stage.client()), &stage.vnode_of("base-1"), SOON).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    Ok(())
}

/// The base cluster's API server is away for a while: bases that are known stay, are kept alive and work on.
#[tokio::test]
async fn a_base_cluster_that_is_away_stops_nothing() -> TestResult {
    let stage = Stage::builder().two_clusters().bases(2).build().await?;
    run_shop(&stage, 1).await?;
    let (nodes, pods) = (Lookout::vnodes_ready(&stage).await, Lookout::pods_ready(&stage, "app=shop").await);
    stage.base_cluster()?.stop(Component::ApiServer)?;
    let names = vnode_names(&stage).await?;
    wait_renewed(&stage, &names, Timestamp::now(), "agent-0", SOON).await?;
    let url = stage.artifacts.module("cart", "1.0.0").url()?;
    stage.apply(&harness::stage::ModuleSet::deployment("cart", "1.0.0", &url).yaml()).await?;
    stage.wait_pods_ready("app=cart", 1).await?;

    stage.base_cluster()?.restart(Component::ApiServer).await?;
    stage.base_kubectl()?.run(&["scale", "statefulset", "base", "--replicas=3"]).await?;
    stage.wait_vnodes_ready(3).await?;
    nodes.assert_quiet();
    pods.assert_quiet();
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 0));
    Ok(())
}

/// BL-003: agents of two base clusters share a module cluster: names do not collide, and neither touches what is the
/// other's.
#[tokio::test]
async fn agents_of_two_base_clusters_leave_each_other_alone() -> TestResult {
    let east = BaseSet::stateful("east", "2.1.0", 2).label("region", "east");
    let west = BaseSet::stateful("west", "2.1.0", 2).label("region", "west");
    let mut stage = Stage::builder()
        .base_set(east)
        .base_set(west)
        .agents(0)
        .all_rights()
        .without_waiting()
        .build()
        .await?;
    stage.wait_bases_ready(4).await?;
    stage.start_agent(&["--base-selector=region=east"]).await?;
    stage
        .start_agent(&[
            "--base-selector=region=west",
            "--base-cluster-id=west",
            "--lease-name=stowage-agent-west",
        ])
        .await?;
    stage.wait_vnodes_ready(4).await?;
    let namespace = stage.default_ns().to_owned();
    let of_west = |pod: &str| node_name("java", &namespace, pod, "west");
    for (name, id, agent) in [
        (stage.vnode_of("east-0"), "default", "agent-0"),
        (stage.vnode_of("east-1"), "default", "agent-0"),
        (of_west("west-0"), "west", "agent-1"),
        (of_west("west-1"), "west", "agent-1"),
    ] {
        let node = stage.nodes().get(&name).await?;
        assert_eq!(node.labels()[names::BASE_CLUSTER], id, "{name}");
        let provider = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        assert!(provider.starts_with(&format!("stowage://{id}/")), "{provider}");
        let lease = node_leases(stage.client()).get(&name).await?;
        assert_eq!(vnodes::holder(&lease), agent, "{name}");
    }
    run_shop(&stage, 4).await?;
    let known = Lookout::vnodes_ready(&stage).await;
    // A restart of one with nothing left to look after: the other's VNodes are none of its business.
    stage.agents()[0].restart()?;
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 1.0).await?;
    let names = vnode_names(&stage).await?;
    let east: Vec<String> = names.iter().filter(|name| name.contains("east")).cloned().collect();
    wait_renewed(&stage, &east, Timestamp::now(), "agent-0", SOON).await?;
    wait::throughout("modules where they are", Duration::from_secs(3), async || {
        let done = (stage.installs("shop")?, stage.uninstalls("shop")?);
        if done == (4, 0) { Ok(()) } else { Err(NotYet(format!("{done:?}"))) }
    })
    .await?;
    known.assert_quiet();
    stage.kubectl()?.run(&["delete", "deployment", "shop"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[]).await?;
    Ok(())
}
