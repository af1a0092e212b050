//! The brake, the pauses and `--observe`: what an agent does not do.

use harness::{
    Failure, TestResult,
    kubelet::is_ready,
    stage::{ModuleSet, Stage, describe_pod},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use policy::contract::names;
use serde_json::json;

mod vnodes;
use vnodes::*;

/// One of them waits, because its installs are paused.
fn is_paused(pods: &[&Pod]) -> Result<(), String> {
    let text: String = pods.iter().map(|pod| describe_pod(pod)).collect();
    if text.contains("Paused") { Ok(()) } else { Err(text) }
}

/// The brake: a selector that matches nothing removes nothing, until an operator lets the brake go, once; the annotation
/// is taken off then.
#[tokio::test]
async fn a_selector_that_matches_nothing_removes_nothing() -> TestResult {
    let begun = Timestamp::now();
    let mut stage = Stage::builder().bases(4).build().await?;
    let pods = run_shop(&stage, 4).await?;
    let nodes = vnode_names(&stage).await?;
    stage.agents()[0].kill9();
    stage.start_agent(&["--base-selector=app=nothing"]).await?;
    let started = Timestamp::now();
    wait_brake(stage.agent(1)?, "bases", true).await?;
    let (ready, known) = (Lookout::pods_ready(&stage, "app=shop").await, Lookout::vnodes_ready(&stage).await);
    wait::throughout("modules on their bases", SETTLED, async || {
        stage
            .assert_bases_hold(&[
                ("base-0", &["shop:1.0.0"]),
                ("base-1", &["shop:1.0.0"]),
                ("base-2", &["shop:1.0.0"]),
                ("base-3", &["shop:1.0.0"]),
            ])
            .await
    })
    .await?;
    wait_renewed(&stage, &nodes, started, "agent-1", SOON).await?;
    ready.assert_quiet();
    known.assert_quiet();
    assert_eq!(uids(&stage.pods("app=shop").await?), uids(&pods));
    let events = events_of_agents(&stage, begun).await?;
    assert!(events.iter().any(|event| event.starts_with("BrakeClosed:")), "{events:?}");

    release_brake(&stage).await?;
    wait_brake(stage.agent(1)?, "bases", false).await?;
    stage.wait_modules(&[]).await?;
    stage
        .wait_vnodes("no VNodes", SOON, |nodes| if nodes.is_empty() { Ok(()) } else { Err(String::new()) })
        .await?;
    let agents = agent_leases(stage.client());
    wait::object(&agents, "stowage-agent", "Lease without annotation", SOON, |lease| {
        lease.is_some_and(|lease| !lease.annotations().contains_key(names::BRAKE))
    })
    .await?;
    assert_eq!(stage.wait_bases_ready(4).await?.len(), 4, "base Pods themselves are never touched");
    Ok(())
}

/// Most bases lose their label at once (a typo in somebody's script): nothing is removed, and when the labels are back
/// nothing was.
#[tokio::test]
async fn labels_taken_off_most_bases_are_an_accident() -> TestResult {
    let stage = Stage::builder().bases(4).build().await?;
    let pods = run_shop(&stage, 4).await?;
    let (ready, known) = (Lookout::pods_ready(&stage, "app=shop").await, Lookout::vnodes_ready(&stage).await);
    let label = async |value: Option<&str>| -> TestResult {
        let patch = Patch::Merge(json!({"metadata": {"labels": {(names::STACK): value}}}));
        for base in ["base-0", "base-1", "base-2"] {
            stage.base_pods().patch(base, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    };
    label(None).await?;
    wait_brake(stage.agent(0)?, "bases", true).await?;
    let names = vnode_names(&stage).await?;
    wait_renewed(&stage, &names, Timestamp::now(), "agent-0", SOON).await?;
    label(Some("java")).await?;
    wait_brake(stage.agent(0)?, "bases", false).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (4, 0));
    assert_eq!(uids(&stage.pods("app=shop").await?), uids(&pods));
    ready.assert_quiet();
    known.assert_quiet();
    Ok(())
}

/// The brake over modules: `VPods` that nobody ordered to end and that are gone at a start (an etcd restore) keep their
/// modules, until an operator lets the brake go.
#[tokio::test]
async fn a_mass_uninstall_at_a_start_is_held() -> TestResult {
    let few = policy(&[("minModules: 10", "minModules: 4")]);
    let mut stage = Stage::builder().bases(4).policy(&few).build().await?;
    run_shop(&stage, 4).await?;
    stage.agents()[0].kill9();
    // Without a trace, as after a restore of an older state.
    let kubectl = stage.kubectl()?;
    kubectl.run(&["delete", "deployment", "shop", "--cascade=orphan"]).await?;
    kubectl.run(&["delete", "replicaset", "-l", "app=shop", "--cascade=orphan"]).await?;
    let now = DeleteParams::default().grace_period(0);
    stage.api::<Pod>().delete_collection(&now, &ListParams::default().labels("app=shop")).await?;
    stage.wait_no_pods("app=shop").await?;

    stage.agents()[0].restart()?;
    stage.agent(0)?.wait_live().await?;
    wait_brake(stage.agent(0)?, "modules", true).await?;
    wait::throughout("modules on their bases", SETTLED, async || {
        let uninstalls = stage.uninstalls("shop")?;
        if uninstalls == 0 { Ok(()) } else { Err(NotYet(format!("{uninstalls} uninstalls"))) }
    })
    .await?;
    stage.wait_modules(&[("shop:1.0.0", 4)]).await?;

    release_brake(&stage).await?;
    stage.wait_modules(&[]).await?;
    assert_eq!(stage.uninstalls("shop")?, 4);
    Ok(())
}

/// What is deleted in the ordinary way is nobody's accident: the brake does not hold it.
#[tokio::test]
async fn an_ordered_mass_uninstall_is_not_held() -> TestResult {
    let begun = Timestamp::now();
    let few = policy(&[("minModules: 10", "minModules: 4")]);
    let stage = Stage::builder().bases(4).policy(&few).build().await?;
    run_shop(&stage, 4).await?;
    stage.kubectl()?.run(&["delete", "deployment", "shop"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[]).await?;
    assert!(stage.agent(0)?.metric("stowage_agent_brake", &[]).await? < 0.5);
    // So is the end of all bases.
    stage.base_kubectl()?.run(&["scale", "statefulset", "base", "--replicas=0"]).await?;
    stage.wait_vnodes_ready(0).await?;
    let events = events_of_agents(&stage, begun).await?;
    assert!(!events.iter().any(|event| event.starts_with("BrakeClosed:")), "{events:?}");
    Ok(())
}

/// `--observe` queries the bases and says what it would do, but writes nothing and changes nothing on a base.
#[tokio::test]
async fn an_observer_changes_nothing() -> TestResult {
    let mut stage = Stage::builder().bases(3).build().await?;
    let pods = run_shop(&stage, 2).await?;
    stage.remove_agents();
    // Things to do: a Pod that is to end, one that is to begin, a base that lost its modules, and a base without VNode.
    stage.kubectl()?.run(&["delete", "pod", &pods[0].name_any(), "--wait=false"]).await?;
    let replacement = stage.wait_pods("app=shop", "a bound replacement", SOON, |pods| {
        let bound = pods.iter().find(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && !is_ready(pod)
                && pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
        });
        bound.map(|pod| pod.name_any()).ok_or_else(|| pods.iter().map(|pod| describe_pod(pod)).collect())
    });
    let replacement = replacement.await?;
    stage.base_kubectl()?.run(&["scale", "statefulset", "base", "--replicas=4"]).await?;
    stage.wait_bases_ready(4).await?;
    let operations = (stage.installs("shop")?, stage.uninstalls("shop")?);
    let versions = async |stage: &Stage| -> Result<Vec<Option<String>>, Failure> {
        let ours = ListParams::default().labels(harness::stage::VNODES);
        let mut versions: Vec<_> =
            stage.nodes().list(&ours).await?.iter().map(ResourceExt::resource_version).collect();
        versions.extend(leases(stage).await?.values().map(ResourceExt::resource_version));
        versions.extend(stage.pods("app=shop").await?.iter().map(ResourceExt::resource_version));
        Ok(versions)
    };
    let before = versions(&stage).await?;

    let observer = stage.start_agent(&["--observe"]).await?;
    observer.wait_ready().await?;
    wait_metric(observer, "stowage_agent_bases", &[], 4.0).await?;
    wait::until("checks of all bases", SOON, async || {
        let checks = stage.agent(0)?.metric("stowage_agent_checks_total", &[]).await?;
        if checks > 15.0 { Ok(()) } else { Err(NotYet(format!("{checks} checks"))) }
    })
    .await?;
    assert_eq!(versions(&stage).await?, before);
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), operations);
    for verb in ["create", "patch", "update", "apply", "delete"] {
        let verb = format!("verb=\"{verb}\"");
        let calls = stage.agent(0)?.metric("stowage_agent_api_calls_total", &[&verb]).await?;
        assert!(calls < 0.5, "{verb}: {calls}");
    }
    let log = stage.agent(0)?.log_tail(10_000);
    assert!(log.contains(&stage.vnode_of("base-3")), "the VNode to be is not spoken of");
    assert!(log.contains("observed") || log.contains("would"), "what would be done is not spoken of");
    assert_ne!(replacement, pods[0].name_any());
    Ok(())
}

/// `paused: true` in the policy stops installs and uninstalls; Leases and status go on.
#[tokio::test]
async fn a_paused_policy_stops_operations() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    run_shop(&stage, 1).await?;
    change_policy(&stage, &paused_policy()).await?;
    let url = stage.artifacts.module("cart", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("cart", "1.0.0", &url).yaml()).await?;
    stage
        .wait_pods("app=cart", "a paused VPod", SOON, |pods| {
            let text: String = pods.iter().map(|pod| describe_pod(pod)).collect();
            if text.contains("Paused") { Ok(()) } else { Err(text) }
        })
        .await?;
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    let (nodes, since) = (vnode_names(&stage).await?, Timestamp::now());
    wait_renewed(&stage, &nodes, since, "agent-0", SOON).await?;
    assert_eq!((stage.installs("cart")?, stage.uninstalls("shop")?), (0, 0));

    stage.rewrite_policy(harness::stage::POLICY)?;
    stage.wait_pods_ready("app=cart", 1).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[("cart:1.0.0", 1)]).await?;
    Ok(())
}

/// The annotation `stowage.dev/paused` on a `VNode`, or on a namespace, stops operations there only.
#[tokio::test]
async fn pauses_of_vnodes_and_namespaces_are_kept() -> TestResult {
    let stage = Stage::builder().bases(2).pods_per_base(2).build().await?;
    let pause = |paused: &str| {
        Patch::Merge(json!({"metadata": {"annotations": {
            (names::PAUSED): if paused.is_empty() { json!(null) } else { json!(paused) },
        }}}))
    };
    let parameters = PatchParams::default();
    let held = stage.vnode_of("base-0");
    stage.nodes().patch(&held, &parameters, &pause("true")).await?;
    stage.apply(&shop(&stage, 2)?.yaml()).await?;
    stage.wait_bases_hold(&[("base-1", &["shop:1.0.0"])]).await?;
    stage.wait_pods("app=shop", "a VPod paused by its VNode", SOON, is_paused).await?;
    assert_eq!(stage.base("base-0")?.journal()?.installs("shop"), 0);
    stage.nodes().patch(&held, &parameters, &pause("")).await?;
    stage.wait_pods_ready("app=shop", 2).await?;

    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(stage.client());
    namespaces.patch(stage.default_ns(), &parameters, &pause("true")).await?;
    let url = stage.artifacts.module("cart", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("cart", "1.0.0", &url).yaml()).await?;
    stage.wait_pods("app=cart", "a VPod paused by its namespace", SOON, is_paused).await?;
    stage.kubectl()?.run(&["delete", "pod", "-l", "app=shop", "--wait=false"]).await?;
    wait::throughout("modules of a paused namespace", SETTLED, async || {
        let uninstalls = stage.uninstalls("shop")?;
        if uninstalls == 0 { Ok(()) } else { Err(NotYet(format!("{uninstalls} uninstalls"))) }
    })
    .await?;
    namespaces.patch(stage.default_ns(), &parameters, &pause("")).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    stage.wait_modules(&[("shop:1.0.0", 2), ("cart:1.0.0", 1)]).await?;
    assert_eq!(stage.uninstalls("shop")?, 2);
    Ok(())
}
