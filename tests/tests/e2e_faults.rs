//! Silent bases, and an API server that stops, hangs or forgets.

#![allow(clippy::expect_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use harness::{
    Failure, TestResult,
    arklet::{self, Fault, On},
    controlplane::{Component, Options},
    kubelet::is_ready,
    stage::{Base, ModuleSet, Stage, describe_pod, pod_condition},
    wait,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::{Node, Pod},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    ResourceExt,
    api::ListParams,
    core::{Selector, SelectorExt},
};
use policy::contract::names;
use serde_json::json;

mod vnodes;
use vnodes::*;

/// Checks fail fast, so that silence is seen soon.
fn quick() -> String {
    policy(&[("timeout: 5s", "timeout: 1s")])
}

async fn wait_silent(stage: &Stage, base: &str) -> Result<Node, Failure> {
    let is_silent = |node: Option<&Node>| node.is_some_and(|node| readiness(node) == ("False", "BaseSilent"));
    let name = stage.vnode_of(base);
    let node = wait::object(&stage.nodes(), &name, "silent VNode", SOON, is_silent).await?;
    Ok(node.expect("it is there"))
}

async fn wait_answering(stage: &Stage, base: &str) -> TestResult {
    let answers = |node: Option<&Node>| node.is_some_and(|node| readiness(node) == ("True", "BaseAnswering"));
    wait::object(&stage.nodes(), &stage.vnode_of(base), "answering VNode", SOON, answers).await?;
    Ok(())
}

/// A base falls silent in some way: its `VNode` turns `NotReady` with the reason, not at the first missed check; its `VPod`
/// is not Ready; nothing is deleted or uninstalled, neighbours notice nothing; and all is well again afterwards.
async fn goes_silent_and_comes_back(
    silence: impl Fn(&Base) -> TestResult,
    misses: impl Fn(&Base) -> Result<usize, Failure>,
) -> TestResult {
    let stage = Stage::builder().bases(3).policy(&quick()).build().await?;
    let pods = run_shop(&stage, 3).await?;
    let base: Arc<Base> = stage.base("base-0")?;
    let name = stage.vnode_of("base-0");
    let others = Lookout::on(stage.nodes(), harness::stage::VNODES, {
        let name = name.clone();
        move |node: &Node| {
            (node.name_any() != name && readiness(node).0 != "True")
                .then(|| format!("{} is not Ready", node.name_any()))
        }
    })
    .await;
    let before = misses(&base)?;
    silence(&base)?;
    let node = wait_silent(&stage, "base-0").await?;
    let asked = misses(&base)? - before;
    assert!(asked == 0 || asked >= 3, "NotReady after {asked} missed checks");
    let message = condition(&node, "Ready").and_then(|ready| ready.message.clone()).unwrap_or_default();
    assert!(message.contains("not answered since") && message.contains("1238"), "{message}");
    let not_ready = stage.wait_pods("app=shop", "two Ready Pods", SOON, |pods| {
        let bad: Vec<_> = pods.iter().filter(|pod| !is_ready(pod)).collect();
        match bad.as_slice() {
            [pod] if pods.len() == 3 && node_of(pod) == name => Ok((**pod).clone()),
            _ => Err(pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n")),
        }
    });
    let not_ready = not_ready.await?;
    let status = not_ready.status.as_ref().expect("a status");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let ready = pod_condition(&not_ready, "ContainersReady").expect("the condition");
    assert_eq!(ready.reason.as_deref(), Some("BaseNotAnswering"));
    wait::throughout("a silent base with its VPod", SETTLED, async || {
        let there = uids(&stage.pods("app=shop").await?);
        if there == uids(&pods) { Ok(()) } else { Err(NotYet(format!("{there:?}"))) }
    })
    .await?;
    let node = stage.nodes().get(&name).await?;
    assert!(
        !taints(&node).iter().any(|taint| taint.starts_with(names::LEAVING_TAINT)),
        "{:?}",
        taints(&node)
    );

    base.faults()?.clear();
    wait_answering(&stage, "base-0").await?;
    let after = stage.wait_pods_ready("app=shop", 3).await?;
    assert_eq!(uids(&after), uids(&pods));
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 0));
    others.assert_quiet();
    Ok(())
}

/// BL-097: a base that reads requests and never answers.
#[tokio::test]
async fn a_base_that_hangs_is_shown_as_silent() -> TestResult {
    let hang = |base: &Base| -> TestResult {
        base.faults()?.always(On::any(), Fault::Hang);
        Ok(())
    };
    Box::pin(goes_silent_and_comes_back(hang, |base| Ok(base.journal()?.count("queryAllBiz")))).await
}

/// BL-097: a base whose port is closed.
#[tokio::test]
async fn a_base_that_refuses_is_shown_as_silent() -> TestResult {
    let refuse = |base: &Base| -> TestResult {
        base.faults()?.refuse(true);
        Ok(())
    };
    // Refused connections are not seen by the base.
    Box::pin(goes_silent_and_comes_back(refuse, |_| Ok(0))).await
}

/// BL-097, BL-129: a base that answers nonsense.
#[tokio::test]
async fn a_base_that_talks_nonsense_is_shown_as_silent() -> TestResult {
    let nonsense = |base: &Base| -> TestResult {
        base.faults()?.always(On::query(), Fault::WrongTypes);
        Ok(())
    };
    Box::pin(goes_silent_and_comes_back(nonsense, |base| Ok(base.journal()?.count("queryAllBiz")))).await
}

/// BL-097: one or two missed checks are no silence.
#[tokio::test]
async fn a_short_pause_of_a_base_is_not_shown() -> TestResult {
    let stage = Stage::builder().bases(2).policy(&quick()).build().await?;
    run_shop(&stage, 2).await?;
    let (nodes, pods) = (Lookout::vnodes_ready(&stage).await, Lookout::pods_ready(&stage, "app=shop").await);
    let base = stage.base("base-0")?;
    for _ in 0..3 {
        base.faults()?.next(2, On::query(), Fault::Reset);
        let asked = base.journal()?.count("queryAllBiz");
        base.journal()?.until(SOON, |journal| journal.count("queryAllBiz") >= asked + 4).await?;
    }
    nodes.assert_quiet();
    pods.assert_quiet();
    Ok(())
}

/// A base that does not answer while it runs our own install is busy, not silent.
#[tokio::test]
async fn a_base_busy_with_our_install_is_not_silent() -> TestResult {
    let stage = Stage::builder().bases(1).policy(&quick()).build().await?;
    let base = stage.base("base-0")?;
    base.faults()?.next(1, On::install(), Fault::Slow(Duration::from_secs(8)));
    let nodes = Lookout::vnodes_ready(&stage).await;
    stage.apply(&shop(&stage, 1)?.yaml()).await?;
    base.journal()?.until(SOON, |journal| journal.installs("shop") == 1).await?;
    let busy = base.faults()?.always(On::query(), Fault::Hang);
    base.journal()?
        .until(SOON, |journal| {
            journal.operations().iter().any(|entry| entry.command == "installBiz" && entry.answer.is_some())
        })
        .await?;
    base.faults()?.remove(busy);
    stage.wait_pods_ready("app=shop", 1).await?;
    assert_eq!(stage.installs("shop")?, 1);
    nodes.assert_quiet();
    Ok(())
}

/// BL-098: when the agent is cut off from all bases at once, that is our fault until shown otherwise: nothing is removed,
/// nothing turns `NotReady`, an alarm is raised; and all is well when the network is.
#[tokio::test]
async fn bases_cut_off_at_once_are_left_alone() -> TestResult {
    let begun = Timestamp::now();
    let stage = Stage::builder().bases(5).policy(&quick()).build().await?;
    run_shop(&stage, 5).await?;
    let (nodes, pods) = (Lookout::vnodes_ready(&stage).await, Lookout::pods_ready(&stage, "app=shop").await);
    for base in stage.all_bases() {
        base.faults()?.always(On::any(), Fault::Hang);
    }
    wait_brake(stage.agent(0)?, "bases", true).await?;
    let names = vnode_names(&stage).await?;
    wait_renewed(&stage, &names, Timestamp::now(), "agent-0", SOON).await?;
    nodes.assert_quiet();
    pods.assert_quiet();
    let events = events_of_agents(&stage, begun).await?;
    assert!(events.iter().any(|event| event.starts_with("BrakeClosed:")), "{events:?}");

    for base in stage.all_bases() {
        base.faults()?.clear();
    }
    wait_brake(stage.agent(0)?, "bases", false).await?;
    wait_metric(stage.agent(0)?, "stowage_agent_silent_bases", &[], 0.0).await?;
    nodes.assert_quiet();
    pods.assert_quiet();
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (5, 0));
    // And it works as before.
    stage.kubectl()?.run(&["scale", "deployment", "shop", "--replicas=4"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 4)]).await?;
    Ok(())
}

/// BL-072, BL-112: the node controller marks the Pods of an Unknown `VNode` not Ready, and nobody but the agent takes
/// that back.
#[tokio::test]
async fn ready_is_written_again_after_a_silent_agent() -> TestResult {
    let options = Options {
        node_monitor_grace_period: Some(Duration::from_secs(16)),
        node_monitor_period: Some(Duration::from_secs(2)),
        ..Options::named("short-grace")
    };
    let mut stage = Stage::builder().exclusive(options).bases(2).build().await?;
    let pods = run_shop(&stage, 2).await?;
    stage.agents()[0].kill9();
    stage
        .wait_vnodes("Unknown VNodes", SOON, |nodes| {
            let unknown = nodes.iter().filter(|node| readiness(node).0 == "Unknown").count();
            if unknown == 2 { Ok(()) } else { Err(format!("{unknown} Unknown")) }
        })
        .await?;
    stage
        .wait_pods("app=shop", "Pods marked by the node controller", SOON, |pods| {
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            if ready == 0 { Ok(()) } else { Err(format!("{ready} Ready")) }
        })
        .await?;
    stage.agents()[0].restart()?;
    stage.wait_vnodes_ready(2).await?;
    let after = stage.wait_pods_ready("app=shop", 2).await?;
    assert_eq!(uids(&after), uids(&pods));
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 0));
    Ok(())
}

/// An API server that is stopped and started again: the agent ends no task, loses and repeats nothing, and does at once
/// what was ordered meanwhile.
#[tokio::test]
async fn a_restarted_api_server_is_survived() -> TestResult {
    let stage = Stage::builder().exclusive(Options::named("restarted")).bases(3).build().await?;
    let pods = run_shop(&stage, 2).await?;
    let cluster = stage.cluster()?;
    for _ in 0..2 {
        cluster.restart(Component::ApiServer).await?;
    }
    let since = Timestamp::now();
    let names = vnode_names(&stage).await?;
    wait_renewed(&stage, &names, since, "agent-0", SOON).await?;
    stage.kubectl()?.run(&["scale", "deployment", "shop", "--replicas=3"]).await?;
    let after = stage.wait_pods_ready("app=shop", 3).await?;
    for pod in &pods {
        assert!(uids(&after).contains(&uid(pod)), "{} was replaced", pod.name_any());
    }
    stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 0));
    assert_eq!(stage.agent(0)?.exit_status(), None);
    Ok(())
}

/// BL-016: an API server that hangs for 20 s with its connections open: the agent stops acting, because its Lease may
/// be another's by then, goes on afterwards, and nothing is done twice.
#[tokio::test]
async fn a_hanging_api_server_is_survived() -> TestResult {
    let stage = Stage::builder().exclusive(Options::named("hanging")).bases(3).build().await?;
    let pods = run_shop(&stage, 3).await?;
    let cluster = stage.cluster()?;
    cluster.pause(Component::ApiServer)?;
    let agent = stage.agent(0)?;
    wait_metric(agent, "stowage_agent_leader", &[], 0.0).await?;
    let operations = stage.installs("shop")? + stage.uninstalls("shop")?;
    // 20 s in all, of which the Lease took ten.
    let calls = agent.metric("stowage_agent_checks_total", &[]).await?;
    wait::throughout("an agent without a term", Duration::from_secs(10), async || {
        let now = agent.metric("stowage_agent_checks_total", &[]).await?;
        if now <= calls + 3.0 { Ok(()) } else { Err(NotYet(format!("{calls} checks, now {now}"))) }
    })
    .await?;
    assert_eq!(stage.installs("shop")? + stage.uninstalls("shop")?, operations);
    cluster.resume(Component::ApiServer)?;
    wait_metric(agent, "stowage_agent_leader", &[], 1.0).await?;
    stage.wait_vnodes_ready(3).await?;
    let after = stage.wait_pods_ready("app=shop", 3).await?;
    assert_eq!(uids(&after), uids(&pods));
    stage.kubectl()?.run(&["scale", "deployment", "shop", "--replicas=2"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 1));
    assert_eq!(agent.exit_status(), None);
    Ok(())
}

/// BL-122: modules from the base's own disk and from link-local addresses, where clouds keep credentials, are refused
/// unless the policy allows them: by the extender, and by the agent where the scheduler was passed by. No base is called.
#[tokio::test]
async fn local_and_link_local_modules_are_refused() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    for (name, url) in [
        ("disk", "file:///etc/passwd"),
        ("metadata", "http://169.254.169.254/latest/shop.jar"),
        ("metadata6", "http://[fe80::1]/shop.jar"),
    ] {
        let set = ModuleSet::deployment(name, "1.0.0", url);
        stage.apply(&set.yaml()).await?;
        let selector = format!("app={name}");
        // A VNode that is new has a taint of the node controller, which the scheduler tells first.
        let is_refused = |pods: &[&Pod]| {
            let text: String = pods.iter().map(|pod| describe_pod(pod)).collect();
            if text.contains("does not allow the image URL") { Ok(()) } else { Err(text) }
        };
        stage.wait_pods(&selector, "a refused Pod", SOON, is_refused).await?;
        stage.kubectl()?.run(&["delete", "deployment", name]).await?;
        stage.wait_no_pods(&selector).await?;

        let forced =
            set.named(&format!("{name}-forced")).pod_field("nodeName", json!(stage.vnode_of("base-0")));
        stage.kubectl()?.apply(&forced.pod_yaml(&format!("{name}-forced"))).await?;
        stage
            .wait_pods(&format!("app={name}-forced"), "a refused VPod", SOON, |pods| {
                let text: String = pods.iter().map(|pod| describe_pod(pod)).collect();
                if text.contains("PolicyRejected") { Ok(()) } else { Err(text) }
            })
            .await?;
        stage.kubectl()?.run(&["delete", "pod", &format!("{name}-forced")]).await?;
    }
    assert!(stage.base("base-0")?.journal()?.operations().is_empty(), "the base was called");
    Ok(())
}

/// BL-122: the shipped `NetworkPolicy` is valid, selects every base that the shipped agent looks for, and opens arklet's port
/// to nobody but the agent; all other ports stay open.
#[tokio::test]
async fn only_the_agent_reaches_arklet() -> TestResult {
    let stage = Stage::builder().bases(1).agents(0).build().await?;
    let sample = stage.sample("base-network-policy.yaml")?;
    stage.kubectl()?.run_with_input(&["apply", "--validate=strict", "-f", "-"], &sample).await?;
    let policies = stage.api::<NetworkPolicy>().list(&ListParams::default()).await?;
    let [policy] = policies.items.as_slice() else { panic!("one policy is wanted") };
    let spec = policy.spec.as_ref().expect("a spec");
    let selector = spec.pod_selector.as_ref().expect("a selector");
    let selector: Selector = selector.clone().try_into()?;
    let base = stage.base_pods().get("base-0").await?;
    assert!(selector.matches(base.labels()), "the base is not selected");
    let kubectl = stage.cluster()?.kubectl()?;
    let shipped =
        kubectl.run(&["kustomize", concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/base")]).await?;
    assert!(
        shipped.contains("--base-selector=basement.koupleless.io/stack"),
        "the selectors of agent and policy differ"
    );
    let mut open = 0;
    for rule in spec.ingress.iter().flatten() {
        for port in rule.ports.iter().flatten() {
            let first = match &port.port {
                Some(IntOrString::Int(number)) => *number,
                other => panic!("a number is wanted: {other:?}"),
            };
            let last = port.end_port.unwrap_or(first);
            let tcp = port.protocol.as_deref() == Some("TCP");
            let sources = rule.from.as_deref().unwrap_or_default();
            if !(tcp && first <= 1238 && 1238 <= last) {
                assert!(sources.is_empty());
                open += if tcp { last - first + 1 } else { 0 };
                continue;
            }
            let [source] = sources else { panic!("one source is wanted: {sources:?}") };
            assert_eq!((first, last), (1238, 1238));
            let agent: Selector = source.pod_selector.clone().expect("Pods are named").try_into()?;
            let labels = [("app.kubernetes.io/name".to_owned(), "stowage-agent".to_owned())];
            assert!(agent.matches(&labels.into()) && !agent.matches(&BTreeMap::new()));
            assert!(source.namespace_selector.is_some() && source.ip_block.is_none());
        }
    }
    assert_eq!(open, 65_534, "ports that stay open");
    Ok(())
}

/// BL-101 and its kin: what was bound while no agent ran is installed when one starts, on all bases at once.
#[tokio::test]
async fn vpods_bound_without_an_agent_are_installed() -> TestResult {
    let mut stage = Stage::builder().bases(4).pods_per_base(3).build().await?;
    stage.agents()[0].kill9();
    for (module, replicas) in [("shop", 4), ("cart", 4), ("search", 4)] {
        let url = stage.artifacts.module(module, "1.0.0").url()?;
        stage.apply(&ModuleSet::deployment(module, "1.0.0", &url).replicas(replicas).yaml()).await?;
    }
    stage
        .wait_pods("", "twelve bound Pods", SOON, |pods| {
            let bound = |pod: &&&Pod| {
                pod.labels().contains_key(names::MODULE_POD)
                    && pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
            };
            let bound = pods.iter().filter(bound).count();
            if bound == 12 { Ok(()) } else { Err(format!("{bound} bound")) }
        })
        .await?;
    stage.agents()[0].restart()?;
    stage.wait_modules(&[("shop:1.0.0", 4), ("cart:1.0.0", 4), ("search:1.0.0", 4)]).await?;
    for module in ["shop", "cart", "search"] {
        stage.wait_pods_ready(&format!("app={module}"), 4).await?;
        assert_eq!(stage.installs(module)?, 4, "{module}");
    }
    stage.assert_no_double_install()?;
    let ours = ListParams::default().labels(&format!("{}=true", names::MODULE_POD));
    assert_eq!(stage.api::<Pod>().list(&ours).await?.items.len(), 12);
    Ok(())
}

/// When the one container of a `VPod` started, when the run before it ended, and how often it was restarted. The start lies between
/// what came before it and now.
fn start(pod: &Pod) -> (Timestamp, i32) {
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
    let status = status.expect("a container");
    let running = status.state.as_ref().and_then(|state| state.running.as_ref()).expect("it runs");
    let started = running.started_at.as_ref().expect("a start").0;
    let created = pod.metadata.creation_timestamp.as_ref().expect("a creation").0;
    let ended = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let ended = ended.map(|run| run.finished_at.as_ref().expect("an end").0);
    let earliest = ended.map_or(created, |ended| created.max(ended));
    assert!(
        (earliest..=Timestamp::now()).contains(&started),
        "{started} after {earliest}: {}",
        describe_pod(pod)
    );
    (started, status.restart_count)
}

/// The same of several, by UID.
fn starts(pods: &[Pod]) -> BTreeMap<String, (Timestamp, i32)> {
    pods.iter().map(|pod| (uid(pod), start(pod))).collect()
}

/// One base is an hour ahead of the cluster, one behind: the times that `VPod`s show can be, a restart of the base is seen as one,
/// and nothing is done twice or for nothing.
#[tokio::test]
async fn the_clock_of_a_base_may_be_off() -> TestResult {
    let mut stage = Stage::builder()
        .bases(2)
        .simulators(|pod, address| {
            let hours = if pod.name_any() == "base-0" { 1 } else { -1 };
            let clock_offset = SignedDuration::from_hours(hours);
            arklet::Options { clock_offset, ..arklet::Options::at(address) }
        })
        .build()
        .await?;
    let pods = run_shop(&stage, 2).await?;
    let (vnodes, quiet) =
        (Lookout::vnodes_ready(&stage).await, Lookout::pods_ready(&stage, "app=shop").await);
    let first = starts(&pods);
    assert!(first.values().all(|(_, restarts)| *restarts == 0));

    // A new agent reads the same times, and shows what was shown.
    stage.agents()[0].restart()?;
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 1.0).await?;
    let bases = [stage.base("base-0")?, stage.base("base-1")?];
    for base in &bases {
        let seen = base.journal()?.count("queryAllBiz");
        base.journal()?.until(SOON, |journal| journal.count("queryAllBiz") > seen + 2).await?;
    }
    assert_eq!(starts(&stage.wait_pods_ready("app=shop", 2).await?), first);
    vnodes.assert_quiet();
    quiet.assert_quiet();
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 0));

    for base in &bases {
        stage.kubelet.restart_container(stage.default_ns(), base.pod()).await?;
    }
    stage
        .wait_pods("app=shop", "both ready after a restart", SOON, |pods| {
            let counts = |pod: &Pod| {
                let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
                Some(status.restart_count)
            };
            let back = pods.iter().filter(|pod| is_ready(pod) && counts(pod) == Some(1)).count();
            if back == 2 { Ok(()) } else { Err(format!("{back} are back")) }
        })
        .await?;
    let after = starts(&stage.wait_pods_ready("app=shop", 2).await?);
    for (uid, (before, _)) in first {
        let (started, restarts) = after.get(&uid).copied().expect("the same VPod");
        assert!(started > before && restarts == 1, "{started} after {before}, {restarts} restarts");
    }
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (4, 0));
    stage.assert_no_double_install()?;
    Ok(())
}
