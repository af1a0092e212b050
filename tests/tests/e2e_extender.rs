//! The extender in trouble: down, silent, with a bad policy; and what kube-scheduler does meanwhile.

#![allow(clippy::expect_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::{collections::BTreeSet, time::Duration};

use futures::future::try_join_all;
use harness::{
    TestResult,
    namespace::SCOPE,
    stage::{BaseSet, Daemon, ModuleSet, PATIENCE, POLICY, Stage, StageError, describe_pod, pod_condition},
    wait,
};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::json;
use tokio::time::Instant;

/// Makes Nodes that nothing runs on: Pods can be bound to them.
async fn add_plain_nodes(stage: &Stage, count: usize) -> TestResult {
    let nodes = (0..count).map(|number| {
        let node = json!({
            "metadata": {"name": format!("plain-{number}"), "labels": {"plain": "yes", (SCOPE): stage.default_ns()}},
            "status": {
                "allocatable": {"pods": "110", "cpu": "16", "memory": "64Gi"},
                "capacity": {"pods": "110", "cpu": "16", "memory": "64Gi"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "-"}],
            },
        });
        let node: Node = serde_json::from_value(node).expect("a Node");
        let nodes = stage.nodes();
        async move { nodes.create(&PostParams::default(), &node).await }
    });
    try_join_all(nodes).await?;
    let selected = ListParams::default().labels("plain=yes");
    wait::until("plain Nodes without taints", PATIENCE, async || {
        let nodes = stage.nodes().list(&selected).await.map_err(|error| error.to_string())?;
        let tainted = |node: &&Node| node.spec.as_ref().is_some_and(|spec| spec.taints.is_some());
        let tainted = nodes.iter().filter(tainted).count();
        if nodes.items.len() == count && tainted == 0 {
            Ok(())
        } else {
            Err(format!("{tainted} have taints"))
        }
    })
    .await?;
    Ok(())
}

/// Creates ordinary Pods of the default scheduler and returns how long it took until all were bound.
async fn ordinary_pods(stage: &Stage, name: &str, count: usize) -> Result<Duration, harness::Failure> {
    let start = Instant::now();
    let pods = (0..count).map(|number| {
        let pod = json!({
            "metadata": {"name": format!("{name}-{number}"), "labels": {"app": name}},
            "spec": {"nodeSelector": {"plain": "yes"}, "containers": [{"name": "main", "image": "example/tool"}]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a Pod");
        let pods = stage.api::<Pod>();
        async move { pods.create(&PostParams::default(), &pod).await }
    });
    try_join_all(pods).await?;
    stage
        .wait_pods(&format!("app={name}"), &format!("{count} bound Pods"), PATIENCE, |pods| {
            let bound = pods.iter().filter(|pod| is_bound(pod)).count();
            if bound == count { Ok(()) } else { Err(format!("{bound} are bound")) }
        })
        .await?;
    Ok(start.elapsed())
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// Waits until `count` Pods could not be scheduled because the extender gave no verdict, and returns the texts.
async fn wait_no_verdict(stage: &Stage, selector: &str, count: usize) -> Result<Vec<String>, StageError> {
    let what = format!("{count} Pods without a verdict of {selector}");
    stage
        .wait_pods(selector, &what, PATIENCE, |pods| {
            assert!(pods.iter().all(|pod| !is_bound(pod)), "a Pod was placed without a verdict");
            let failed = pods.iter().filter_map(|pod| pod_condition(pod, "PodScheduled"));
            let failed = failed.filter(|condition| condition.reason.as_deref() == Some("SchedulerError"));
            let texts: Vec<String> =
                failed.map(|condition| condition.message.clone().unwrap_or_default()).collect();
            if texts.len() == count {
                return Ok(texts);
            }
            Err(pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n"))
        })
        .await
}

async fn filter_calls(extender: &Daemon) -> Result<f64, StageError> {
    extender.metric("stowage_extender_requests_total", &["verb=\"filter\""]).await
}

/// Case 15, BL-126: the extender is killed: modules wait and nothing is placed without it; when it is back they are placed.
#[tokio::test]
async fn modules_wait_for_an_extender_that_is_gone() -> TestResult {
    let mut stage = Stage::builder().bases(2).build().await?;
    stage.extender.kill9();
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(2).yaml()).await?;
    let texts = wait_no_verdict(&stage, "app=shop", 2).await?;
    assert!(texts.iter().all(|text| text.contains("connection refused")), "{texts:?}");
    stage.extender.restart()?;
    stage.extender.wait_ready().await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    stage.assert_no_double_install()?;
    Ok(())
}

/// Cases 24, 27, 42: the extender is killed again and again in the middle of a burst and forgets what it promised; still no base gets the
/// module twice.
#[tokio::test]
async fn an_extender_that_restarts_in_a_burst_gives_no_place_twice() -> TestResult {
    let mut stage = Stage::builder().bases(6).pods_per_base(8).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let shop = ModuleSet::deployment("shop", "1.0.0", &url).label("burst", "yes");
    let pods: Vec<String> = (0..9).map(|number| shop.pod_yaml(&format!("shop-{number}"))).collect();
    stage.apply(&pods.join("\n---\n")).await?;
    for wanted in [1, 3, 5] {
        let what = format!("{wanted} placed modules");
        stage
            .wait_pods("burst=yes", &what, PATIENCE, |pods| {
                let bound = pods.iter().filter(|pod| is_bound(pod)).count();
                if bound >= wanted { Ok(()) } else { Err(format!("{bound} are placed")) }
            })
            .await?;
        stage.extender.restart()?;
    }
    stage.wait_modules(&[("shop:1.0.0", 6)]).await?;
    let nodes: Vec<String> =
        stage.pods("burst=yes").await?.into_iter().filter_map(|pod| pod.spec?.node_name).collect();
    let apart: BTreeSet<&String> = nodes.iter().collect();
    assert_eq!((nodes.len(), apart.len()), (6, 6), "{nodes:?}");
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-028, BL-126: an extender that accepts connections and never answers stops modules only. Fifty ordinary Pods of
/// the default scheduler are bound as fast as before, and the modules follow when it answers again.
#[tokio::test]
async fn ordinary_pods_never_wait_for_the_extender() -> TestResult {
    let stage = Stage::builder().bases(4).build().await?;
    add_plain_nodes(&stage, 1).await?;
    let usual = ordinary_pods(&stage, "before", 50).await?;
    let before = filter_calls(&stage.extender).await?;
    stage.extender.pause()?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(4).yaml()).await?;
    let texts = wait_no_verdict(&stage, "app=shop", 4).await?;
    assert!(texts.iter().all(|text| text.contains("context deadline exceeded")), "{texts:?}");
    let meanwhile = ordinary_pods(&stage, "meanwhile", 50).await?;
    // A machine that other tests use as well gets two seconds; one call that hangs would cost as much per Pod.
    assert!(meanwhile < 2 * usual + Duration::from_secs(2), "{meanwhile:?}, and {usual:?} before");
    stage.extender.resume()?;
    stage.wait_pods_ready("app=shop", 4).await?;
    stage.wait_modules(&[("shop:1.0.0", 4)]).await?;
    // It heard of the modules and of nothing else.
    let calls = filter_calls(&stage.extender).await? - before;
    assert!((4.0..50.0).contains(&calls), "{calls} calls");
    Ok(())
}

/// A bad policy file replaces nothing: the last good one decides on, in the extender and in the agent. Metric and log of
/// both say so with every error, `/diag` of the extender and an Event too; a good file takes effect without a restart.
#[tokio::test]
async fn a_bad_policy_file_never_replaces_a_good_one() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let extender = stage.extender.id();
    stage.rewrite_policy(&POLICY.replace("podsPerBase: 1", "podsPerBase: many, podsPerBses: 3"))?;
    for program in [&stage.extender, stage.agent(0)?] {
        wait::until("refused policy file", PATIENCE, async || {
            let refused = program.metric("policy_reload_failures_total", &[]).await?;
            if refused >= 1.0 { Ok(()) } else { Err(StageError::Broken("not refused".to_owned())) }
        })
        .await?;
        let log = program.log_tail(200);
        let lines: Vec<&str> =
            log.lines().filter(|line| line.contains("last good one stays in force")).collect();
        assert_eq!(lines.len(), 1, "{log}");
        // All errors at once.
        assert!(lines[0].contains("many") && lines[0].contains("podsPerBses"), "{lines:?}");
    }
    let diag = stage.extender.get("/diag").await?;
    assert!(diag.contains("podsPerBses"), "{diag}");
    let events: Api<Event> = Api::namespaced(stage.client(), "stowage-system");
    wait::until("Event about the policy", PATIENCE, async || {
        let events = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        // The agent says the same of its own file.
        let of_extender = |event: &&Event| {
            event.reporting_component.as_deref() == Some(policy::contract::names::EXTENDER_CONTROLLER)
        };
        let said =
            events.iter().filter(of_extender).find(|event| event.reason.as_deref() == Some("PolicyRefused"));
        let note = said.and_then(|event| event.message.clone()).unwrap_or_default();
        if note.contains("podsPerBses") {
            Ok(())
        } else {
            Err(format!("{} Events {note}", events.items.len()))
        }
    })
    .await?;
    let url = |name: &str| stage.artifacts.module(name, "1.0.0").url();
    let shop = ModuleSet::deployment("shop", "1.0.0", &url("shop")?).yaml();
    let cart = ModuleSet::deployment("cart", "1.0.0", &url("cart")?).yaml();
    stage.apply(&shop).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    stage.apply(&cart).await?;
    stage.wait_refused("app=cart", "1 Too many pods").await?;

    // The agent raises the capacity, and the extender lets only two modules in.
    stage.rewrite_policy(&POLICY.replace("podsPerBase: 1,", "podsPerBase: 3, modulesPerBase: 2,"))?;
    stage.wait_pods_ready("app=cart", 1).await?;
    stage.apply(&ModuleSet::deployment("mail", "1.0.0", &url("mail")?).yaml()).await?;
    stage.wait_refused("app=mail", "1 the base has no room for more modules").await?;
    let generation = stage.extender.metric("policy_generation", &[]).await?;
    assert!((1.5..2.5).contains(&generation), "the second good file: {generation}");
    assert_eq!(stage.extender.id(), extender, "no restart");
    assert!(stage.extender.exit_status().is_none() && stage.agent(0)?.exit_status().is_none());
    Ok(())
}

/// A policy that lets more in wakes the modules that only the old one kept out, though no Node and no Pod changes:
/// kube-scheduler would come back to them after five minutes.
#[tokio::test]
async fn a_relaxed_policy_places_what_waits() -> TestResult {
    let tight = POLICY.replace("podsPerBase: 1,", "podsPerBase: 8, modulesPerBase: 1,");
    let stage = Stage::builder().bases(1).policy(&tight).build().await?;
    let set = |name: &str| -> Result<String, StageError> {
        Ok(ModuleSet::deployment(name, "1.0.0", &stage.artifacts.module(name, "1.0.0").url()?).yaml())
    };
    stage.apply(&set("shop")?).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    stage.apply(&set("cart")?).await?;
    stage.wait_refused("app=cart", "1 the base has no room for more modules").await?;
    stage.rewrite_policy(&tight.replace("modulesPerBase: 1,", "modulesPerBase: 2,"))?;
    stage.wait_pods_ready("app=cart", 1).await?;
    stage.wait_modules(&[("shop:1.0.0", 1), ("cart:1.0.0", 1)]).await?;
    Ok(())
}

/// Case 2: a Pod that we refuse is asked about a few times and then rests: reasons are constant, and every Node is
/// looked at (100 % sampling, or the counts in the message would change from attempt to attempt and wake the Pod again).
#[tokio::test]
async fn a_refused_pod_makes_no_hot_loop() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    // More than the 100 that kube-scheduler always looks at.
    add_plain_nodes(&stage, 250).await?;
    let before = filter_calls(&stage.extender).await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).base_range(">=9").yaml()).await?;
    let text = "0/253 nodes are available: 2 the base version is outside the wanted range, \
                251 module Pods run on virtual nodes only.";
    let reason = stage.wait_refused("app=shop", text).await?;
    assert!(!reason.contains('%'), "{reason}");
    rests(&stage, "app=shop", before).await?;
    let often = stage.extender.metric("stowage_extender_pods_filtered_too_often_total", &[]).await?;
    assert!(often < 0.5, "{often}");
    Ok(())
}

/// The Pod of a selector is neither asked about often nor written. A loop makes twenty calls and writes a second.
async fn rests(stage: &Stage, selector: &str, before: f64) -> TestResult {
    let pods = stage.pods(selector).await?;
    let name = pods.first().expect("a Pod").name_any();
    let mut writes = BTreeSet::new();
    wait::throughout("rest of a refused Pod", Duration::from_secs(8), async || {
        let calls = filter_calls(&stage.extender).await? - before;
        let pod =
            stage.api::<Pod>().get(&name).await.map_err(|error| StageError::Broken(error.to_string()))?;
        writes.insert(pod.resource_version());
        if calls <= 6.0 && writes.len() <= 4 {
            return Ok(());
        }
        Err(StageError::Broken(format!("{calls} calls, {} writes: {}", writes.len(), describe_pod(&pod))))
    })
    .await?;
    Ok(())
}

/// The same for a Pod that would fit only where kube-scheduler itself does not let it go: the extender, which is never
/// asked about that base, does not wake it again and again.
#[tokio::test]
async fn a_pod_with_wishes_that_exclude_each_other_makes_no_hot_loop() -> TestResult {
    let newer = BaseSet::deployment("base-2-2-0", "2.2.0", 1);
    let stage = Stage::builder().bases(1).base_set(newer).build().await?;
    let before = filter_calls(&stage.extender).await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let shop = ModuleSet::deployment("shop", "1.0.0", &url).base_range(">=2.2").on_base_version("2.1.0");
    stage.apply(&shop.yaml()).await?;
    stage.wait_refused("app=shop", "1 the base version is outside the wanted range").await?;
    rests(&stage, "app=shop", before).await
}

/// Preemption is off as shipped: a module of high priority evicts nobody, neither from a base that does not fit nor
/// from a full one that does.
#[tokio::test]
async fn a_module_of_high_priority_evicts_nobody() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                       "metadata": {"name": format!("{}-urgent", stage.default_ns())}, "value": 1_000_000});
    stage.apply(&class.to_string()).await?;
    let url = |name: &str| stage.artifacts.module(name, "1.0.0").url();
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url("shop")?).yaml()).await?;
    let first = stage.wait_pods_ready("app=shop", 1).await?;
    let urgent = |name: &str, range: &str| -> Result<String, StageError> {
        let set = ModuleSet::deployment(name, "1.0.0", &url(name)?).base_range(range);
        Ok(set.pod_field("priorityClassName", class["metadata"]["name"].clone()).yaml())
    };
    stage.apply(&format!("{}\n---\n{}", urgent("fits", ">=2")?, urgent("fits-not", ">=9")?)).await?;
    for selector in ["app=fits", "app=fits-not"] {
        let reason = stage.wait_refused(selector, "1 Too many pods").await?;
        assert!(!reason.contains("victims"), "{reason}");
    }
    wait::throughout("life of a module of low priority", Duration::from_secs(3), async || {
        let pods = stage.pods("app=shop").await?;
        let [pod] = pods.as_slice() else { return Err(StageError::Broken(format!("{} Pods", pods.len()))) };
        let stays = pod.uid() == first[0].uid() && pod.metadata.deletion_timestamp.is_none();
        if stays { Ok(()) } else { Err(StageError::Broken(describe_pod(pod))) }
    })
    .await?;
    for pod in stage.pods("app in (fits,fits-not)").await? {
        let status = pod.status.as_ref();
        assert_eq!(status.and_then(|status| status.nominated_node_name.as_ref()), None);
    }
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    Ok(())
}
