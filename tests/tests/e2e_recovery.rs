//! Restarts, take-overs and bases that come and go: what an agent finds, keeps, and does not touch.

use std::time::Duration;

use harness::{
    TestResult,
    arklet::{Fault, On},
    kubelet::is_ready,
    stage::{Stage, StageError, describe_pod},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use policy::contract::{inventory::ModuleState, names};
use serde_json::json;

mod vnodes;
use vnodes::*;

/// Longer than an agent needs to come back.
const SLOW_INSTALL: Duration = Duration::from_secs(6);

/// Three replicas, each in the middle of an install.
async fn installing(stage: &Stage) -> TestResult {
    for base in stage.all_bases() {
        base.faults()?.always(On::install(), Fault::Slow(SLOW_INSTALL));
    }
    stage.apply(&shop(stage, 3)?.yaml()).await?;
    for base in stage.all_bases() {
        base.journal()?.until(SOON, |journal| journal.installs("shop") > 0).await?;
    }
    Ok(())
}

/// The three are ready, and each was installed once.
async fn installed_once(stage: &Stage) -> TestResult {
    stage.wait_pods_ready("app=shop", 3).await?;
    stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 0));
    Ok(stage.assert_no_double_install()?)
}

/// BL-105: killed with -9 while every base installs, and started again: nothing twice, nothing lost.
#[tokio::test]
async fn an_agent_killed_during_installs_goes_on() -> TestResult {
    let mut stage = Stage::builder().bases(3).build().await?;
    installing(&stage).await?;
    let known = Lookout::vnodes_known(&stage).await;
    stage.agents()[0].restart()?;

    installed_once(&stage).await?;
    known.assert_quiet();
    Ok(())
}

/// The same with the standby taking over, in less than 20 s and before any `VNode` turns Unknown.
#[tokio::test]
async fn the_standby_takes_over_during_installs() -> TestResult {
    let mut stage = Stage::builder().bases(3).agents(2).build().await?;
    wait_leader(&stage, "agent-0", SOON).await?;
    let nodes = vnode_names(&stage).await?;
    installing(&stage).await?;
    let known = Lookout::vnodes_known(&stage).await;
    let killed = Timestamp::now();
    stage.agents()[0].kill9();

    wait_renewed(&stage, &nodes, killed, "agent-1", TAKEOVER).await?;
    wait_leader(&stage, "agent-1", Duration::from_secs(5)).await?;
    installed_once(&stage).await?;
    known.assert_quiet();
    Ok(())
}

/// An agent that is asked to end lets its Lease go: the standby takes over at once, and nobody notices.
#[tokio::test]
async fn an_agent_that_ends_hands_over_at_once() -> TestResult {
    let mut stage = Stage::builder().bases(2).agents(2).build().await?;
    wait_leader(&stage, "agent-0", SOON).await?;
    run_shop(&stage, 2).await?;
    let (nodes, pods) = (Lookout::vnodes_ready(&stage).await, Lookout::pods_ready(&stage, "app=shop").await);
    let asked = Timestamp::now();
    let status = stage.agents()[0].term(Duration::from_secs(20)).await?;
    assert!(status.success(), "{status}");
    wait_leader(&stage, "agent-1", Duration::from_secs(10)).await?;
    let names = vnode_names(&stage).await?;
    wait_renewed(&stage, &names, asked, "agent-1", SOON).await?;
    assert_eq!(stage.installs("shop")?, 2);
    nodes.assert_quiet();
    pods.assert_quiet();
    Ok(())
}

/// BL-013, BL-014, BL-082: an agent that was stopped past its lease and goes on never acts beside the one that has
/// taken over; there is exactly one holder, back and forth. What is ordered meanwhile is done once, by the holder.
#[tokio::test]
async fn an_agent_stopped_past_its_lease_does_not_act() -> TestResult {
    let stage = Stage::builder().bases(3).agents(2).build().await?;
    wait_leader(&stage, "agent-0", SOON).await?;
    run_shop(&stage, 1).await?;
    let nodes = vnode_names(&stage).await?;
    let known = Lookout::vnodes_known(&stage).await;
    for round in 0..3 {
        let (old, new) = (round % 2, (round + 1) % 2);
        let stopped = Timestamp::now();
        stage.agent(old)?.pause()?;
        // Something to do for whoever leads: one more, and in the last round one less.
        let replicas = if round == 2 { "--replicas=2" } else { &format!("--replicas={}", round + 2) };
        stage.kubectl()?.run(&["scale", "deployment", "shop", replicas]).await?;
        let holder = format!("agent-{new}");
        wait_renewed(&stage, &nodes, stopped, &holder, SOON).await?;
        let wanted = if round == 2 { 2 } else { round + 2 };
        stage.wait_pods_ready("app=shop", wanted).await?;
        let done = (stage.installs("shop")?, stage.uninstalls("shop")?);

        stage.agent(old)?.resume()?;
        wait_metric(stage.agent(old)?, "stowage_agent_leader", &[], 0.0).await?;
        wait::throughout("single holder", Duration::from_secs(5), async || {
            let leases = leases(&stage).await?;
            let others: Vec<_> = leases.values().map(vnodes::holder).filter(|name| *name != holder).collect();
            if others.is_empty() { Ok(()) } else { Err(NotYet(format!("held by {others:?}"))) }
        })
        .await?;
        assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), done, "round {round}");
        for number in [old, new] {
            assert_eq!(stage.agent(number)?.exit_status(), None, "agent {number}, round {round}");
        }
    }
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    // Three replicas at most, and the one that was taken away.
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 1));
    stage.assert_no_double_install()?;
    known.assert_quiet();
    Ok(())
}

/// BL-008: a restarted agent adopts its Nodes and Leases: renewals go on within 10 s, `VPods` stay Ready all the time, and
/// no module is installed again.
#[tokio::test]
async fn a_restarted_agent_adopts_what_is_there() -> TestResult {
    let mut stage = Stage::builder().bases(5).build().await?;
    let pods = run_shop(&stage, 5).await?;
    let nodes = vnode_names(&stage).await?;
    let before = uids(&stage.nodes().list(&ListParams::default()).await?.items);
    let (ready, known) = (Lookout::pods_ready(&stage, "app=shop").await, Lookout::vnodes_ready(&stage).await);
    let killed = Timestamp::now();
    stage.agents()[0].restart()?;
    stage.agent(0)?.wait_ready().await?;
    // The killed one's Lease must run out first.
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 1.0).await?;
    wait_renewed(&stage, &nodes, killed, "agent-0", Duration::from_secs(10)).await?;
    // A whole round of checks later.
    let checks = stage.agent(0)?.metric("stowage_agent_checks_total", &[]).await?;
    wait::until("a round of checks", SOON, async || {
        let now = stage.agent(0)?.metric("stowage_agent_checks_total", &[]).await?;
        if now > checks + 15.0 { Ok(()) } else { Err(NotYet(format!("{now} checks"))) }
    })
    .await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (5, 0));
    assert_eq!(uids(&stage.nodes().list(&ListParams::default()).await?.items), before);
    assert_eq!(uids(&stage.pods("app=shop").await?), uids(&pods));
    ready.assert_quiet();
    known.assert_quiet();
    Ok(())
}

/// BL-018: bases that are slow to answer when the agent starts do not delay the Leases of the others, nor lose their
/// own; nothing is uninstalled.
#[tokio::test]
async fn slow_bases_at_a_restart_delay_nobody() -> TestResult {
    let mut stage = Stage::builder().bases(4).build().await?;
    run_shop(&stage, 4).await?;
    let nodes = vnode_names(&stage).await?;
    for base in ["base-0", "base-1"] {
        stage.base(base)?.faults()?.always(On::any(), Fault::Latency(Duration::from_secs(4)));
    }
    let ready = Lookout::pods_ready(&stage, "app=shop").await;
    let known = Lookout::vnodes_ready(&stage).await;
    stage.agents()[0].restart()?;
    let started = Timestamp::now();
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 1.0).await?;
    wait_renewed(&stage, &nodes, started, "agent-0", Duration::from_secs(10)).await?;
    // Until the slow ones have answered too.
    for base in ["base-0", "base-1"] {
        let journal = stage.base(base)?.journal()?.clone();
        let asked = journal.count("queryAllBiz");
        journal.until(SOON, |journal| journal.count("queryAllBiz") > asked + 2).await?;
    }
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (4, 0));
    ready.assert_quiet();
    known.assert_quiet();
    Ok(())
}

/// BL-006 and BL-007: a `VNode` that is deleted by hand is back within 10 s with all it showed; its Lease belongs to the
/// new Node and is renewed; modules and `VPods` stay.
#[tokio::test]
async fn a_deleted_vnode_comes_back() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    run_shop(&stage, 2).await?;
    let name = stage.vnode_of("base-0");
    let active = |node: Option<&Node>| {
        node.is_some_and(|node| inventory(node).modules.iter().any(|m| m.state == ModuleState::Activated))
    };
    let before = wait::object(&stage.nodes(), &name, "active module on the Node", SOON, active).await?;
    let before = before.expect("it is there");
    stage.nodes().delete(&name, &DeleteParams::default()).await?;
    let is_back = |node: Option<&Node>| {
        node.is_some_and(|node| node.uid() != before.uid() && readiness(node).0 == "True")
    };
    let back = wait::object(&stage.nodes(), &name, "new Node", Duration::from_secs(10), is_back).await?;
    let back = back.expect("it is there");
    for label in [names::STACK, names::VERSION, names::MANAGED_BY, names::HOSTNAME] {
        assert_eq!(back.labels().get(label), before.labels().get(label), "{label}");
    }
    assert!(
        taints(&back).contains(&format!("{}=true:NoExecute", names::VIRTUAL_NODE_TAINT)),
        "{:?}",
        taints(&back)
    );
    let capacity = |node: &Node| node.status.as_ref().and_then(|status| status.capacity.clone());
    assert_eq!(capacity(&back), capacity(&before));
    assert_eq!(inventory(&back).modules, inventory(&before).modules);

    let since = Timestamp::now();
    let node_leases = node_leases(stage.client());
    let owned = wait::object(&node_leases, &name, "Lease of the new Node", SOON, |lease| {
        lease.is_some_and(|lease| {
            let owner = lease.metadata.owner_references.iter().flatten().next();
            owner.is_some_and(|owner| Some(&owner.uid) == back.metadata.uid.as_ref())
                && renewed(lease) > since
        })
    });
    let lease = owned.await?.expect("it is there");
    assert_eq!(lease.metadata.owner_references.map(|owners| owners.len()), Some(1));
    // The garbage collector, which deletes what belonged to the old one, must not take it.
    wait_renewed(&stage, &[name], Timestamp::now(), "agent-0", Duration::from_secs(15)).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 0));
    Ok(())
}

/// BL-003: what is left of a base that went while no agent ran is cleaned at the next start; Nodes of others are not
/// touched, not even those that another Stowage manages.
#[tokio::test]
async fn a_base_removed_without_an_agent_is_cleaned_up() -> TestResult {
    let mut stage = Stage::builder().bases(2).build().await?;
    run_shop(&stage, 2).await?;
    let foreign = [
        ("foreign-plain", json!({"type": "virtual-kubelet"})),
        (
            "foreign-stowage",
            json!({(names::MANAGED_BY): names::MANAGER, (names::BASE_CLUSTER): "elsewhere", "type": "virtual-kubelet"}),
        ),
    ];
    for (name, labels) in &foreign {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels, "annotations": {(names::BASE): "nowhere/base-9", (names::BASE_UID): "u"}},
        }))?;
        stage.nodes().create(&PostParams::default(), &node).await?;
    }
    let gone = stage.vnode_of("base-1");
    stage.agents()[0].kill9();
    stage.base_kubectl()?.run(&["scale", "statefulset", "base", "--replicas=1"]).await?;
    stage.wait_bases_ready(1).await?;

    stage.agents()[0].restart()?;
    wait::gone(&stage.nodes(), &gone, SOON).await?;
    wait::gone(&node_leases(stage.client()), &gone, SOON).await?;
    // One replica has no place any more, and says so; nothing is left on the VNode that is gone.
    stage
        .wait_pods("app=shop", "one running and one waiting Pod", SOON, |pods| {
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            let lost = pods
                .iter()
                .filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(&gone));
            if ready == 1 && pods.len() == 2 && lost.count() == 0 {
                return Ok(());
            }
            Err(pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n"))
        })
        .await?;
    assert_eq!(stage.base("base-0")?.journal()?.installs("shop"), 1);
    for (name, _) in &foreign {
        let node = stage.nodes().get(name).await?;
        assert!(
            node.metadata.deletion_timestamp.is_none()
                && taints(&node).iter().all(|taint| !taint.contains("stowage"))
        );
    }
    Ok(())
}

/// BL-001: the selector's label taken off a base means that it leaves: the `VPod` is drained, Node and Lease go, nobody
/// calls the base any more, and the base Pod is not touched. Put back, it is a base again.
#[tokio::test]
async fn a_base_whose_label_is_taken_off_leaves() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    run_shop(&stage, 2).await?;
    let name = stage.vnode_of("base-0");
    let base = stage.base("base-0")?;
    let uid_before = stage.base_pods().get("base-0").await?.uid();
    let kubectl = stage.base_kubectl()?;
    kubectl.run(&["label", "pod", "base-0", &format!("{}-", names::STACK)]).await?;
    wait::gone(&stage.nodes(), &name, SOON).await?;
    wait::gone(&node_leases(stage.client()), &name, SOON).await?;
    stage.wait_bases_hold(&[("base-1", &["shop:1.0.0"])]).await?;
    assert_eq!(base.journal()?.uninstalls("shop"), 1);
    let calls = |base: &harness::stage::Base| -> Result<usize, StageError> {
        Ok(base.journal()?.count("queryAllBiz") + base.journal()?.count("health"))
    };
    let asked = calls(&base)?;
    wait::throughout("silence towards the base", Duration::from_secs(4), async || {
        let now = calls(&base)?;
        // One question may have been under way.
        if now <= asked + 1 { Ok(()) } else { Err(NotYet(format!("{asked} calls, now {now}"))) }
    })
    .await?;
    let pod = stage.base_pods().get("base-0").await?;
    assert!(pod.uid() == uid_before && pod.metadata.deletion_timestamp.is_none() && is_ready(&pod));

    kubectl.run(&["label", "pod", "base-0", &format!("{}=java", names::STACK)]).await?;
    stage.wait_vnodes_ready(2).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    stage.wait_bases_hold(&[("base-0", &["shop:1.0.0"]), ("base-1", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// BL-005: a `VPod` belongs to its `VNode` whatever its labels say: changed labels change nothing, and its deletion
/// uninstalls the module that its containers name.
#[tokio::test]
async fn a_vpod_without_its_labels_is_still_ours() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let pods = run_shop(&stage, 1).await?;
    let name = pods[0].name_any();
    let labels = json!({"metadata": {"labels": {"app": "other", (names::MODULE_POD): null}}});
    // Without a controller, which would make another Pod for the one it lost.
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--cascade=orphan"]).await?;
    stage.kubectl()?.run(&["delete", "replicaset", "-l", "app=shop", "--cascade=orphan"]).await?;
    stage.api::<Pod>().patch(&name, &PatchParams::default(), &Patch::Merge(labels)).await?;
    let base = stage.base("base-0")?;
    let asked = base.journal()?.count("queryAllBiz");
    base.journal()?.until(SOON, |journal| journal.count("queryAllBiz") > asked + 2).await?;
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    assert!(is_ready(&stage.api::<Pod>().get(&name).await?));

    stage.api::<Pod>().delete(&name, &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), &name, SOON).await?;
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 1));
    Ok(())
}

/// BL-036: a base Pod that is deleted by force and comes back under its name is another base: its `VPod` is replaced, the
/// `VNode` is made anew, nothing of the old one is believed, and the module is installed on the new one.
#[tokio::test]
async fn a_base_that_comes_back_under_its_name_is_another() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    let before = run_shop(&stage, 2).await?;
    let name = stage.vnode_of("base-1");
    let (node, old) = (stage.nodes().get(&name).await?, stage.base("base-1")?);
    stage.base_kubectl()?.run(&["delete", "pod", "base-1", "--grace-period=0", "--force"]).await?;
    let is_new =
        |new: Option<&Node>| new.is_some_and(|new| new.uid() != node.uid() && readiness(new).0 == "True");
    let new = wait::object(&stage.nodes(), &name, "VNode of the new base", SOON, is_new).await?;
    let new = new.expect("it is there");
    let pod = stage.base_pods().get("base-1").await?;
    assert_ne!(uid(&pod), old.uid());
    assert_eq!(new.annotations().get(names::BASE_UID), Some(&uid(&pod)));
    let after = stage.wait_pods_ready("app=shop", 2).await?;
    let kept = before.iter().filter(|pod| uids(&after).contains(&uid(*pod))).count();
    assert_eq!(kept, 1, "the neighbour's VPod stays, the other is replaced");
    stage.wait_bases_hold(&[("base-0", &["shop:1.0.0"]), ("base-1", &["shop:1.0.0"])]).await?;
    assert_eq!(stage.base("base-0")?.journal()?.installs("shop"), 1);
    assert_eq!(stage.base("base-1")?.journal()?.installs("shop"), 1);
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-075: a base that restarts while no agent runs has lost its modules: the agent that comes installs them again,
/// once, for the same `VPods`.
#[tokio::test]
async fn a_base_restarted_without_an_agent_is_replayed() -> TestResult {
    let mut stage = Stage::builder().bases(2).build().await?;
    let pods = run_shop(&stage, 2).await?;
    stage.agents()[0].kill9();
    let namespace = stage.default_ns().to_owned();
    stage.kubelet.restart_container(&namespace, "base-0").await?;
    stage.assert_bases_hold(&[("base-1", &["shop:1.0.0"])]).await?;
    stage.agents()[0].restart()?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    let after = stage.wait_pods_ready("app=shop", 2).await?;
    assert_eq!(uids(&after), uids(&pods));
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 0));
    assert_eq!(stage.base("base-1")?.journal()?.installs("shop"), 1);
    // Nobody has to guess that it happened.
    let restarted = after.iter().find(|pod| node_of(pod) == stage.vnode_of("base-0")).expect("its VPod");
    let statuses = restarted.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    assert_eq!(statuses.and_then(|list| list.first()).map(|status| status.restart_count), Some(1));
    Ok(())
}

/// A `VNode` deleted while no agent runs takes its inventory along: what is on the base and wanted there is adopted.
#[tokio::test]
async fn a_vnode_deleted_without_an_agent_comes_back() -> TestResult {
    let mut stage = Stage::builder().bases(2).build().await?;
    let pods = run_shop(&stage, 2).await?;
    stage.agents()[0].kill9();
    let name = stage.vnode_of("base-0");
    stage.nodes().delete(&name, &DeleteParams::default()).await?;
    stage.agents()[0].restart()?;
    stage.wait_vnodes_ready(2).await?;
    let is_owned = |node: Option<&Node>| {
        node.is_some_and(|node| inventory(node).modules.iter().any(|module| module.owner.is_some()))
    };
    wait::object(&stage.nodes(), &name, "inventory with an owner", SOON, is_owned).await?;
    assert_eq!(uids(&stage.wait_pods_ready("app=shop", 2).await?), uids(&pods));
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 0));
    // It is ours again: it goes with its VPod.
    stage.kubectl()?.run(&["delete", "deployment", "shop"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[]).await?;
    Ok(())
}

/// An agent killed while modules are being uninstalled: each is uninstalled, and its Pod goes, also when the order came
/// before the agent did (BL-062).
#[tokio::test]
async fn an_agent_killed_during_uninstalls_goes_on() -> TestResult {
    let mut stage = Stage::builder().bases(2).build().await?;
    run_shop(&stage, 2).await?;
    for base in stage.all_bases() {
        base.faults()?.always(On::uninstall(), Fault::Latency(SLOW_INSTALL));
    }
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    let base = stage.base("base-0")?;
    base.journal()?.until(SOON, |journal| journal.uninstalls("shop") > 0).await?;
    stage.agents()[0].restart()?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[]).await?;
    assert_eq!(stage.installs("shop")?, 2);

    for base in stage.all_bases() {
        base.faults()?.clear();
    }
    run_shop(&stage, 2).await?;
    stage.agents()[0].kill9();
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    stage
        .wait_pods("app=shop", "terminating Pods", SOON, |pods| {
            let leaving = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
            if leaving == 2 { Ok(()) } else { Err(format!("{leaving} terminating")) }
        })
        .await?;
    stage.agents()[0].restart()?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[]).await?;
    Ok(())
}

/// A selector's label that is off for a moment only: whatever was begun, it ends with a Ready `VNode` and the module.
#[tokio::test]
async fn a_label_off_for_a_moment_ends_well() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    run_shop(&stage, 2).await?;
    let labels = |value: Option<&str>| Patch::Merge(json!({"metadata": {"labels": {(names::STACK): value}}}));
    let parameters = PatchParams::default();
    let (name, base) = (stage.vnode_of("base-0"), stage.base("base-0")?);
    for how_far in ["nothing", "marked", "uninstalled"] {
        let uninstalls = base.journal()?.uninstalls("shop");
        stage.base_pods().patch("base-0", &parameters, &labels(None)).await?;
        match how_far {
            "marked" => {
                let leaving = |node: Option<&Node>| {
                    node.is_none_or(|node| {
                        taints(node).iter().any(|taint| taint.starts_with(names::LEAVING_TAINT))
                    })
                };
                wait::object(&stage.nodes(), &name, "leaving VNode", SOON, leaving).await?;
            }
            "uninstalled" => {
                base.journal()?.until(SOON, |journal| journal.uninstalls("shop") > uninstalls).await?;
            }
            _ => {}
        }
        stage.base_pods().patch("base-0", &parameters, &labels(Some("java"))).await?;
        wait::until("both bases at work", SOON, async || {
            stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"]), ("base-1", &["shop:1.0.0"])]).await
        })
        .await?;
        stage.wait_vnodes_ready(2).await?;
        stage.wait_pods_ready("app=shop", 2).await?;
    }
    assert_eq!(stage.base("base-1")?.journal()?.installs("shop"), 1);
    stage.assert_no_double_install()?;
    Ok(())
}
