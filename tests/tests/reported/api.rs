//! An API server that refuses some things, or is cut off, seen by the agent alone.

use std::time::Duration;

use harness::{
    Failure, TestResult,
    kubelet::is_ready,
    proxy::{ApiFault, ApiProxy, Calls},
    stage::{ModuleSet, Stage, describe_pod},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use serde_json::json;

use crate::vnodes::{self, NotYet, SYSTEM, node_leases, run_shop, wait_renewed};
use crate::vpods::*;

/// An agent behind a proxy that has its rights.
async fn behind_a_proxy(stage: &mut Stage) -> Result<ApiProxy, Failure> {
    let account = stage.cluster()?.kubeconfig_for_service_account(SYSTEM, "stowage-agent").await?;
    let proxy = ApiProxy::start(&account).await?;
    let flag = format!("--module-kubeconfig={}", proxy.kubeconfig().display());
    stage.start_agent(&[&flag]).await?;
    Ok(proxy)
}

fn refused(code: u16) -> ApiFault {
    ApiFault::Status { code, retry_after: None }
}

/// BL-019: the Node of a base was deleted and may not be made again. Its Lease is not kept alive without it, the neighbour's
/// is; the agent tells of the refusal, goes on trying, and all is well when it may.
#[tokio::test]
async fn a_node_that_may_not_be_made_has_no_lease() -> TestResult {
    let mut stage = Stage::builder().bases(2).agents(0).build().await?;
    let proxy = behind_a_proxy(&mut stage).await?;
    stage.wait_vnodes_ready(2).await?;
    let (gone, stays) = (stage.vnode_of("base-0"), stage.vnode_of("base-1"));
    let forbidden = proxy.faults().always(Calls::writes("nodes"), refused(403));
    stage.nodes().delete(&gone, &DeleteParams::default()).await?;
    wait::until("an Event about the refusal", SOON, async || {
        let events = stage.events_of_node(&gone).await?;
        if events.iter().any(|event| event.starts_with("NodeRefused:")) {
            return Ok(());
        }
        Err(NotYet(format!("{events:?}")))
    })
    .await?;
    let since = Timestamp::now();
    wait_renewed(&stage, std::slice::from_ref(&stays), since, "agent-0", Duration::from_secs(20)).await?;
    if let Some(lease) = node_leases(stage.client()).get_opt(&gone).await? {
        assert!(vnodes::renewed(&lease) < since, "a Lease without its Node is kept alive");
    }
    proxy.faults().remove(forbidden);
    stage.wait_vnodes_ready(2).await?;
    wait_renewed(&stage, &[gone, stays], Timestamp::now(), "agent-0", Duration::from_secs(20)).await?;
    Ok(())
}

/// BL-063: the API server refuses every write of a status for good. A VPod that is deleted meanwhile is uninstalled and
/// removed all the same.
#[tokio::test]
async fn a_status_that_is_refused_stops_no_removal() -> TestResult {
    let mut stage = Stage::builder().bases(2).agents(0).build().await?;
    let proxy = behind_a_proxy(&mut stage).await?;
    stage.wait_vnodes_ready(2).await?;
    for name in ["shop", "cart"] {
        let url = jar(&stage, name, "1.0.0")?;
        stage.apply(&ModuleSet::deployment(name, "1.0.0", &url).pod_yaml(name)).await?;
        pod_ready(&stage, name).await?;
    }
    let refusal = proxy.faults().always(Calls::writes("status"), refused(422));
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    stage.wait_modules(&[("cart:1.0.0", 1)]).await?;
    assert_eq!((stage.uninstalls("shop")?, stage.uninstalls("cart")?), (1, 0));
    proxy.faults().remove(refusal);
    let url = jar(&stage, "next", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("next", "1.0.0", &url).pod_yaml("next")).await?;
    pod_ready(&stage, "next").await?;
    pod_ready(&stage, "cart").await?;
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-091: while the agent can neither watch nor list, a VPod and a base are deleted. As soon as it can, nothing is left of
/// either: no module, no VNode, no Lease.
#[tokio::test]
async fn what_went_while_the_watches_were_cut_is_cleaned() -> TestResult {
    let mut stage = Stage::builder().bases(3).agents(0).build().await?;
    let proxy = behind_a_proxy(&mut stage).await?;
    stage.wait_vnodes_ready(3).await?;
    run_shop(&stage, 3).await?;
    // Watches under way end when they expire, which takes a watch that was opened with this fault.
    let expiring = proxy.faults().always(Calls::watch(None), ApiFault::Expired(Duration::from_secs(1)));
    stage.agents()[0].term(Duration::from_secs(20)).await?;
    stage.agents()[0].restart()?;
    stage.agent(0)?.wait_ready().await?;
    stage.wait_pods_ready("app=shop", 3).await?;
    proxy.faults().remove(expiring);
    let cut = [Calls::watch(None), Calls::list("pods"), Calls::list("nodes")];
    let cut: Vec<_> = cut.into_iter().map(|calls| proxy.faults().always(calls, ApiFault::Reset)).collect();
    let tried = proxy.faults().count(&Calls::list("pods"));
    wait::until("lists that fail", SOON, async || {
        let now = proxy.faults().count(&Calls::list("pods")) - tried;
        if now >= 4 { Ok(()) } else { Err(NotYet(format!("{now} lists"))) }
    })
    .await?;
    let uninstalls = stage.uninstalls("shop")?;
    stage.kubectl()?.run(&["scale", "deployment", "shop", "--replicas=1"]).await?;
    stage.base_kubectl()?.run(&["scale", "statefulset", "base", "--replicas=2"]).await?;
    stage.wait_bases_ready(2).await?;
    let lost = stage.vnode_of("base-2");
    stage.nodes().get(&lost).await?;
    assert_eq!(stage.uninstalls("shop")?, uninstalls, "nobody has told the agent");
    for fault in cut {
        proxy.faults().remove(fault);
    }
    wait::gone(&stage.nodes(), &lost, SOON).await?;
    wait::gone(&node_leases(stage.client()), &lost, SOON).await?;
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    stage.wait_vnodes_ready(2).await?;
    assert_eq!(stage.agent(0)?.exit_status(), None);
    Ok(())
}

/// BL-119: a dozen VPods turn not Ready at once, and Ready again. Each change is one write, and nothing is read before it.
#[tokio::test]
async fn a_change_of_readiness_is_one_write() -> TestResult {
    const MODULES: usize = 12;
    let mut stage = Stage::builder().bases(1).pods_per_base(12).agents(0).build().await?;
    let proxy = behind_a_proxy(&mut stage).await?;
    stage.wait_vnodes_ready(1).await?;
    let probe = json!({"tcpSocket": {"port": 9999}, "periodSeconds": 1, "failureThreshold": 1, "successThreshold": 1});
    let address = (stage.base("base-0")?.ip(), 9999);
    let listener = tokio::net::TcpListener::bind(address).await?;
    for number in 0..MODULES {
        let name = format!("m{number}");
        let url = jar(&stage, &name, "1.0.0")?;
        let set = ModuleSet::deployment(&name, "1.0.0", &url).label("many", "yes");
        stage.apply(&set.field("readinessProbe", probe.clone()).pod_yaml(&name)).await?;
    }
    stage.wait_pods_ready("many=yes", MODULES).await?;
    queried(&*stage.base("base-0")?, 3).await?;
    let (writes, reads) = (Calls::writes("pods"), Calls::list("pods"));
    let asked = || (proxy.faults().count(&writes), proxy.faults().count(&reads));
    let before = asked();
    drop(listener);
    stage
        .wait_pods("many=yes", "Pods that are not Ready", SOON, |pods| {
            pods.iter().find(|pod| is_ready(pod)).map_or(Ok(()), |pod| Err(describe_pod(pod)))
        })
        .await?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    stage.wait_pods_ready("many=yes", MODULES).await?;
    drop(listener);
    let now = asked();
    let changes = 2 * MODULES;
    assert!((changes..=changes + changes / 5).contains(&(now.0 - before.0)), "{} writes", now.0 - before.0);
    assert_eq!(now.1, before.1, "nothing is read before a write");
    Ok(())
}
