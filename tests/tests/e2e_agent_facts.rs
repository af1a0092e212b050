//! What Kubernetes does with Nodes that no kubelet stands for and Pods that no kubelet runs, as far as the agent relies
//! on it or must live with it. docs/agent-facts.md lists the facts.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at what it did not expect")]

mod facts;
mod vnodes;
mod vpods;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use harness::{
    Failure, TestResult,
    arklet::{Options, Simulator},
    network,
    stage::{ModuleSet, Stage},
    wait,
};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use policy::contract::names;
use serde_json::{Value, json};
use vnodes::{Lookout, SOON, holder, leases, node_leases, renewed, run_shop, shop};
use vpods::{jar, node_of, phase, pod_failed, pod_is, pod_ready, queried, uid};

const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop"},
    "spec": {"selector": {"app": "shop"}, "ports": [{"port": 80, "targetPort": 8080}]}}"#;

/// Where the Service sends traffic: each Pod that an EndpointSlice calls ready, and its address.
async fn traffic(stage: &Stage) -> Result<BTreeMap<String, String>, Failure> {
    let of = ListParams::default().labels("kubernetes.io/service-name=shop");
    let slices = stage.api::<EndpointSlice>().list(&of).await?;
    let mut ready = BTreeMap::new();
    for endpoint in slices.into_iter().flat_map(|slice| slice.endpoints) {
        let is_ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true);
        if let (true, Some(target), Some(address)) =
            (is_ready, endpoint.target_ref, endpoint.addresses.first())
        {
            ready.insert(target.name.unwrap_or_default(), address.clone());
        }
    }
    Ok(ready)
}

async fn wait_traffic(stage: &Stage, wanted: &[(&str, IpAddr)]) -> TestResult {
    let wanted: BTreeMap<String, String> =
        wanted.iter().map(|(pod, ip)| ((*pod).to_owned(), ip.to_string())).collect();
    wait::until(&format!("traffic to {wanted:?}"), SOON, async || {
        let traffic = traffic(stage).await.map_err(|error| error.to_string())?;
        if traffic == wanted { Ok(()) } else { Err(format!("{traffic:?}")) }
    })
    .await?;
    Ok(())
}

/// A module Pod bound to the VNode of a base.
async fn bind(stage: &Stage, name: &str, module: &str, version: &str, base: &str) -> TestResult {
    let set = ModuleSet::deployment(module, version, &jar(stage, module, version)?).named("shop");
    let set = set.pod_field("nodeName", json!(stage.vnode_of(base)));
    stage.apply(&set.pod_yaml(name)).await?;
    Ok(())
}

/// A base Pod that no kubelet of ours runs, at any address.
async fn base_at(stage: &Stage, name: &str, ip: IpAddr) -> Result<Simulator, Failure> {
    let base = Simulator::start(Options::at(SocketAddr::new(ip, 1238))).await?;
    let host: Node = serde_json::from_value(json!({"metadata": {"name": "no-kubelet"}}))?;
    stage.nodes().create(&PostParams::default(), &host).await?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {(names::STACK): "java", (names::VERSION): "2.1.0"}},
        "spec": {"nodeName": "no-kubelet", "tolerations": [{"operator": "Exists"}],
                 "containers": [{"name": "base", "image": "x"}]},
    }))?;
    stage.base_pods().create(&PostParams::default(), &pod).await?;
    let status = json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "10.244.0.200",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "base", "image": "x", "imageID": "", "ready": true, "restartCount": 0,
                               "state": {"running": {"startedAt": jiff::Timestamp::now().to_string()}}}],
    }});
    stage.base_pods().patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(base)
}

/// One Pod with an address that EndpointSlices refuse would freeze its whole Service. A base at such an address gets its
/// module, and the Service goes on following the others: Pods of one base share its address, each as an endpoint.
#[tokio::test]
async fn one_bad_address_freezes_no_service() -> TestResult {
    let stage = Stage::builder().bases(2).pods_per_base(2).build().await?;
    network::ensure()?;
    let _local = base_at(&stage, "local", IpAddr::V4(Ipv4Addr::new(127, 0, 0, 78))).await?;
    stage.wait_vnodes_ready(3).await?;
    stage.apply(SERVICE).await?;
    bind(&stage, "bad", "shop", "1.0.0", "local").await?;
    pod_is(&stage, "bad", "installed Pod", |pod| vpods::status_of(pod, names::INSTALLED_CONDITION) == "True")
        .await?;

    let (first, second) = (stage.base("base-0")?.ip(), stage.base("base-1")?.ip());
    bind(&stage, "good", "shop", "1.0.0", "base-0").await?;
    wait_traffic(&stage, &[("good", first)]).await?;
    bind(&stage, "other", "cart", "1.0.0", "base-0").await?;
    wait_traffic(&stage, &[("good", first), ("other", first)]).await?;
    bind(&stage, "new", "shop", "1.0.0", "base-1").await?;
    wait_traffic(&stage, &[("good", first), ("new", second), ("other", first)]).await?;
    stage.kubectl()?.run(&["delete", "pod", "good", "--wait=false"]).await?;
    wait_traffic(&stage, &[("new", second), ("other", first)]).await?;
    let bad = stage.api::<Pod>().get("bad").await?;
    assert_eq!(bad.status.and_then(|status| status.pod_ip), None);
    Ok(())
}

/// `podIPs` merges by key: a strategic merge of another address is invalid. An address that somebody else wrote is put
/// right by the agent all the same, since it replaces the list.
#[tokio::test]
async fn a_changed_address_is_written() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    bind(&stage, "shop", "shop", "1.0.0", "base-0").await?;
    pod_ready(&stage, "shop").await?;
    let other = json!({"status": {"podIP": "10.244.250.250", "podIPs": [{"ip": "10.244.250.250"}]}});
    let pods: Api<Pod> = stage.api();
    let refused = pods.patch_status("shop", &PatchParams::default(), &Patch::Strategic(&other)).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 422), "{refused:?}");
    let written = pods.patch_status("shop", &PatchParams::default(), &Patch::Merge(&other)).await?;
    assert_eq!(written.status.and_then(|status| status.pod_ip).as_deref(), Some("10.244.250.250"));
    let ip = stage.base("base-0")?.ip().to_string();
    pod_is(&stage, "shop", "Pod with the address of its base", |pod| {
        let status = pod.status.clone().unwrap_or_default();
        let all: Vec<String> = status.pod_ips.into_iter().flatten().map(|ip| ip.ip).collect();
        status.pod_ip.as_deref() == Some(&ip) && all == [ip.as_str()]
    })
    .await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 0));
    Ok(())
}

/// The API takes Running after Failed, and a Failed Pod holds no slot: two Pods would live on one. What has failed stays
/// so, over a restart of the agent and though the artifact is there by then; its place is another's.
#[tokio::test]
async fn a_failed_pod_is_never_revived() -> TestResult {
    let mut stage = Stage::builder().bases(1).build().await?;
    let missing = stage.artifacts.url("shop-1.0.0.jar");
    let node = json!(stage.vnode_of("base-0"));
    let set = ModuleSet::deployment("shop", "1.0.0", &missing).pod_field("nodeName", node);
    stage.apply(&set.pod_yaml("failed")).await?;
    pod_failed(&stage, "failed").await?;
    let before = stage.api::<Pod>().get("failed").await?;
    assert_eq!(stage.installs("shop")?, 1);

    jar(&stage, "shop", "1.0.0")?;
    stage.agents()[0].kill9();
    stage.agents()[0].restart()?;
    run_cart(&stage).await?;
    queried(&*stage.base("base-0")?, 5).await?;
    let after = stage.api::<Pod>().get("failed").await?;
    assert_eq!((phase(&after), after.resource_version()), ("Failed", before.resource_version()));
    assert_eq!(stage.installs("shop")?, 1);
    stage.assert_bases_hold(&[("base-0", &["cart:1.0.0"])]).await?;
    Ok(())
}

/// One replica through the scheduler.
async fn run_cart(stage: &Stage) -> TestResult {
    stage.apply(&ModuleSet::deployment("cart", "1.0.0", &jar(stage, "cart", "1.0.0")?).yaml()).await?;
    stage.wait_pods_ready("app=cart", 1).await?;
    Ok(())
}

/// A Node whose Lease is gone stays Ready by its status only until that is old. The agent makes the Lease again, for
/// the same Node.
#[tokio::test]
async fn a_node_without_its_lease_gets_another() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let name = stage.vnode_of("base-0");
    let node = stage.nodes().get(&name).await?;
    let ready = Lookout::vnodes_ready(&stage).await;
    let before = leases(&stage).await?.remove(&name).expect("a Lease");
    let api = node_leases(stage.client());
    api.delete(&name, &DeleteParams::default()).await?;
    let again = wait::object(&api, &name, "new Lease", SOON, |lease| {
        lease.is_some_and(|lease| lease.uid() != before.uid() && renewed(lease) > renewed(&before))
    });
    let again = again.await?.expect("it is there");
    assert_eq!(holder(&again), holder(&before));
    let owner = again.owner_references().first().map(|owner| owner.uid.clone());
    assert_eq!(owner, node.uid());
    assert_eq!(stage.nodes().get(&name).await?.uid(), node.uid());
    ready.assert_quiet();
    Ok(())
}

/// Each write of a Pod wakes every Pod that an extender rejected, so there are few: one when it is bound, one when its
/// module runs; none for its end, which is a deletion.
#[tokio::test]
async fn the_writes_of_a_life_are_counted() -> TestResult {
    const METRIC: &str = "stowage_agent_status_writes_total";
    let stage = Stage::builder().bases(2).build().await?;
    let written = async || -> Result<f64, Failure> { Ok(stage.agent(0)?.metric(METRIC, &[]).await?) };
    let before = written().await?;
    run_shop(&stage, 2).await?;
    queried(&*stage.base("base-0")?, 3).await?;
    let online = written().await? - before;
    assert!((4.0..=6.0).contains(&online), "{online} writes for two Pods");
    stage.kubectl()?.run(&["delete", "deployment", "shop"]).await?;
    stage.wait_no_pods("app=shop").await?;
    let offline = written().await? - before - online;
    assert!(offline < 4.5, "{offline} writes for the end of two Pods");
    println!("{online} writes for the start of two Pods, {offline} for their end");
    Ok(())
}

/// A Pod that was bound by name and does not tolerate the taint is deleted at once by its cluster, and would stay
/// Terminating for ever, because no kubelet runs it: the agent lets it go, and no base is called.
#[tokio::test]
async fn a_pod_without_the_toleration_does_not_stay() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let node = stage.vnode_of("base-0");
    for (name, module) in [("plain", false), ("module", true)] {
        let mut pod: Value =
            serde_json::from_str(&shop(&stage, 1)?.pod_field("nodeName", json!(node)).pod_yaml(name))?;
        pod["spec"]["tolerations"] = json!([]);
        pod["metadata"]["labels"] = json!({"app": name});
        if !module {
            pod["spec"]["containers"] = json!([{"name": "main", "image": "busybox"}]);
            pod["spec"]["readinessGates"] = json!([]);
        }
        stage.apply(&pod.to_string()).await?;
        wait::gone(&stage.api::<Pod>(), name, SOON).await?;
    }
    assert_eq!(stage.base("base-0")?.journal()?.operations().len(), 0);
    run_shop(&stage, 1).await?;
    Ok(())
}

/// `kubectl cordon` keeps Deployments away from a VNode, and `DaemonSets` not, whose Pods tolerate it. `kubectl drain`
/// respects budgets, and what it evicts is uninstalled in order.
#[tokio::test]
async fn cordon_and_drain_do_what_they_do_to_nodes() -> TestResult {
    let stage = Stage::builder().bases(2).pods_per_base(2).build().await?;
    let kubectl = stage.kubectl()?;
    let (first, second) = (stage.vnode_of("base-0"), stage.vnode_of("base-1"));
    kubectl.run(&["cordon", &first]).await?;
    let pods = run_shop(&stage, 1).await?;
    assert_eq!(node_of(&pods[0]), second);
    stage.apply(&ModuleSet::daemon_set("audit", "1.0.0", &jar(&stage, "audit", "1.0.0")?).yaml()).await?;
    stage.wait_pods_ready("app=audit", 2).await?;

    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "shop"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "shop"}}}});
    stage.apply(&budget.to_string()).await?;
    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> = stage.api();
    wait::object(&budgets, "shop", "budget that is kept", SOON, |budget| {
        let status = budget.and_then(|budget| budget.status.as_ref());
        status.is_some_and(|status| status.current_healthy == 1 && status.disruptions_allowed == 0)
    })
    .await?;
    kubectl.run(&["uncordon", &first]).await?;
    let drain = ["drain", &second, "--ignore-daemonsets", "--force"];
    let refused = kubectl.run(&[&drain[..], &["--timeout=4s"]].concat()).await;
    assert!(refused.is_err(), "the budget does not hold");
    assert_eq!(uid(&stage.wait_pods_ready("app=shop", 1).await?[0]), uid(&pods[0]));
    assert_eq!(stage.uninstalls("shop")?, 0);

    kubectl.run(&["delete", "poddisruptionbudget", "shop"]).await?;
    kubectl.run(&[&drain[..], &["--timeout=60s"]].concat()).await?;
    let pods = stage.wait_pods_ready("app=shop", 1).await?;
    assert_eq!(node_of(&pods[0]), first);
    stage
        .wait_bases_hold(&[("base-0", &["audit:1.0.0", "shop:1.0.0"]), ("base-1", &["audit:1.0.0"])])
        .await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 1));
    Ok(())
}

/// docs/agent-facts.md names tests that are there, and all of this file.
#[test]
fn the_page_names_tests_that_exist() {
    facts::assert_tests_exist("docs/agent-facts.md", include_str!("e2e_agent_facts.rs"));
}
