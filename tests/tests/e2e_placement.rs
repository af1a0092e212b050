//! Where modules go and where not, with a real kube-scheduler, our extender and our agent.

#![allow(clippy::expect_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::{collections::BTreeMap, time::Duration};

use harness::{
    TestResult,
    controlplane::{Extender, configuration},
    fetch,
    program::Program,
    stage::{BaseSet, ModuleSet, PATIENCE, POLICY, Stage, StageError, describe_pod, pod_condition},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// The most Pods, which have not ended, on one Node.
fn most_on_one_node(pods: &[&Pod]) -> usize {
    let mut counts = BTreeMap::<&str, usize>::new();
    for node in pods.iter().filter(|pod| !is_over(pod)).filter_map(|pod| node_of(pod)) {
        *counts.entry(node).or_default() += 1;
    }
    counts.values().copied().max().unwrap_or(0)
}

/// Waits until so many Pods are Ready and so many refused by kube-scheduler for a reason that contains `text`. At no time
/// may a Node have more than `most` Pods.
async fn settled(
    stage: &Stage,
    selector: &str,
    ready: usize,
    refused: usize,
    text: &str,
    most: usize,
) -> Result<(), StageError> {
    let what = format!("{ready} Ready and {refused} refused Pods of {selector}");
    stage
        .wait_pods(selector, &what, PATIENCE, |pods| {
            assert!(
                most_on_one_node(pods) <= most,
                "more than {most} Pods on one Node:\n{}",
                described(pods)
            );
            let running = pods.iter().filter(|pod| harness::kubelet::is_ready(pod)).count();
            let waiting = pods.iter().filter_map(|pod| refusal(pod)).filter(|why| why.contains(text)).count();
            let done = pods.len() == ready + refused && running == ready && waiting == refused;
            if done { Ok(()) } else { Err(described(pods)) }
        })
        .await
}

/// Why kube-scheduler finds no place for it.
fn refusal(pod: &Pod) -> Option<String> {
    let condition = pod_condition(pod, "PodScheduled")?;
    let refused = condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable");
    refused.then(|| condition.message.clone().unwrap_or_default())
}

fn described(pods: &[&Pod]) -> String {
    pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n")
}

/// Asks the extender by hand, as kube-scheduler does, and returns its answer.
async fn filter(stage: &Stage, pod: &Value, nodes: &[&str]) -> Result<Value, StageError> {
    let question = json!({"Pod": pod, "Nodes": null, "NodeNames": nodes});
    let url = format!("{}/scheduler/filter", stage.extender_url());
    let answer = fetch::post_json(&url, question.to_string().into(), Duration::from_secs(10)).await;
    let (_, body) = answer.map_err(|error| StageError::Broken(error.to_string()))?;
    serde_json::from_str(&body).map_err(|error| StageError::Broken(format!("{error}: {body}")))
}

/// What `stowage-extender explain` prints about a Pod.
async fn explain(stage: &Stage, pod: &str, flags: &[&str]) -> Result<String, harness::Failure> {
    let server = format!("--server={}", stage.extender_url());
    let mut command = tokio::process::Command::new(Program::find("stowage-extender")?);
    let output = command.args(["explain", pod, &server]).args(flags).output().await?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {told}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// A range of base versions: the module goes to the one base that fits; where none does, `kubectl describe` says so
/// in our words; a fitting base that appears gets the module without help.
#[tokio::test]
async fn a_module_goes_only_where_the_base_version_fits() -> TestResult {
    let newer = BaseSet::deployment("base-2-2-0", "2.2.0", 1);
    let stage = Stage::builder().bases(2).base_set(newer).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let shop = ModuleSet::deployment("shop", "1.0.0", &url).base_range(">=2.2 <3");
    stage.apply(&shop.yaml()).await?;
    let pods = stage.wait_pods_ready("app=shop", 1).await?;
    let newer = stage.all_bases().into_iter().find(|base| base.pod().starts_with("base-2-2-0-"));
    let newer = newer.expect("a base of version 2.2.0");
    assert_eq!(node_of(&pods[0]), Some(stage.vnode_of(newer.pod()).as_str()));
    stage.assert_bases_hold(&[(newer.pod(), &["shop:1.0.0"])]).await?;

    let url = stage.artifacts.module("cart", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("cart", "1.0.0", &url).base_range("[3.0,4)").yaml()).await?;
    let reason = "the base version is outside the wanted range";
    let text = stage.wait_refused("app=cart", reason).await?;
    assert!(!text.contains('%'), "{text}");
    let described = wait::until("the reason in `kubectl describe`", Duration::from_secs(30), async || {
        let text = stage.kubectl()?.run(&["describe", "pod", "--selector=app=cart"]).await?;
        let events = text.split("Events:").nth(1).unwrap_or_default().to_owned();
        if events.contains(reason) { Ok(text) } else { Err(StageError::Broken(text)) }
    })
    .await?;
    assert!(described.contains("FailedScheduling"), "{described}");

    // The same for people, from the extender itself.
    let waiting = &stage.pods("app=cart").await?[0];
    let (namespace, name) = (stage.default_ns(), waiting.name_any());
    let url = format!("{}/explain?namespace={namespace}&pod={name}", stage.extender_url());
    let (_, explained) = fetch::get(&url, Duration::from_secs(10)).await?;
    assert_eq!(explained.matches(reason).count(), 3, "{explained}");
    let explained = explain(&stage, &format!("{namespace}/{name}"), &[]).await?;
    assert_eq!(explained.matches(reason).count(), 3, "{explained}");
    let explained: Value =
        serde_json::from_str(&explain(&stage, &format!("{namespace}/{name}"), &["--json"]).await?)?;
    assert_eq!((&explained["namespace"], &explained["pod"]), (&json!(namespace), &json!(name)));
    let nodes = explained["nodes"].as_array().expect("a list");
    assert_eq!(nodes.len(), 3, "{explained}");
    for node in nodes {
        let rules = node["rules"].as_array().expect("a list");
        let version = rules.iter().find(|rule| rule["rule"] == "base version").expect("a rule");
        assert_eq!(node["fits"], false, "{node}");
        assert!(version.to_string().contains(reason), "{node}");
    }

    stage.apply_bases(&BaseSet::deployment("base-3-0-0", "3.0.0", 1)).await?;
    let pods = stage.wait_pods_ready("app=cart", 1).await?;
    let node = node_of(&pods[0]).expect("it is bound");
    let fitting = stage.all_bases().into_iter().find(|base| stage.vnode_of(base.pod()) == node);
    assert!(fitting.expect("its base").pod().starts_with("base-3-0-0-"));
    Ok(())
}

/// BL-039: `podsPerBase: 1`, 12 VPods for 10 bases in one burst: at no time two on one base, two wait and say why;
/// the place of one that goes is taken by one of them.
#[tokio::test]
async fn a_burst_puts_one_module_on_each_base() -> TestResult {
    let stage = Stage::builder().bases(10).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let shop = ModuleSet::deployment("shop", "1.0.0", &url).label("burst", "yes");
    let pods: Vec<String> = (0..12).map(|number| shop.pod_yaml(&format!("shop-{number}"))).collect();
    stage.apply(&pods.join("\n---\n")).await?;
    settled(&stage, "burst=yes", 10, 2, "10 Too many pods", 1).await?;
    stage.wait_modules(&[("shop:1.0.0", 10)]).await?;
    if stage.is_simulated() {
        for base in stage.all_bases() {
            assert_eq!(base.journal()?.installs("shop"), 1, "{}", base.pod());
        }
    }
    let running = stage.pods("burst=yes").await?.into_iter().find(harness::kubelet::is_ready);
    stage
        .kubectl()?
        .run(&["delete", "pod", "--wait=false", &running.expect("a Ready one").name_any()])
        .await?;
    settled(&stage, "burst=yes", 10, 1, "10 Too many pods", 1).await?;
    stage.assert_no_double_install()?;
    Ok(())
}

/// The same where kube-scheduler's count of places does not help: eight places on each base, and never the module twice.
#[tokio::test]
async fn a_burst_of_one_module_never_meets_on_a_base() -> TestResult {
    let stage = Stage::builder().bases(6).pods_per_base(8).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let shop = ModuleSet::deployment("shop", "1.0.0", &url).label("burst", "yes");
    let pods: Vec<String> = (0..9).map(|number| shop.pod_yaml(&format!("shop-{number}"))).collect();
    stage.apply(&pods.join("\n---\n")).await?;
    settled(&stage, "burst=yes", 6, 3, "6 the base already has module shop in this version", 1).await?;
    stage.wait_modules(&[("shop:1.0.0", 6)]).await?;
    stage.assert_no_double_install()?;
    Ok(())
}

/// A scheduler that sends whole Nodes (`nodeCacheCapable: false`) gets the same places.
#[tokio::test]
async fn a_scheduler_that_sends_whole_nodes_is_served_too() -> TestResult {
    let newer = BaseSet::deployment("base-2-2-0", "2.2.0", 1);
    let stage = Stage::builder().bases(2).base_set(newer).build().await?;
    let name = format!("{}-whole", stage.default_ns());
    let mut extender = Extender::new(&format!("{}/scheduler", stage.extender_url()));
    extender.node_cache_capable = false;
    let scheduler = stage.cluster()?.start_scheduler(&name, &configuration(&name, Some(&extender))).await?;
    let set = |module: &str, range: &str| -> Result<String, StageError> {
        let url = stage.artifacts.module(module, "1.0.0").url()?;
        let set = ModuleSet::deployment(module, "1.0.0", &url).base_range(range);
        Ok(set.pod_field("schedulerName", json!(name)).yaml())
    };
    stage.apply(&format!("{}\n---\n{}", set("shop", ">=2.2")?, set("cart", ">=9")?)).await?;
    let pods = stage.wait_pods_ready("app=shop", 1).await?;
    assert_eq!(pods[0].spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()), Some(name.as_str()));
    let newer = stage.all_bases().into_iter().find(|base| base.pod().starts_with("base-2-2-0-"));
    assert_eq!(node_of(&pods[0]), Some(stage.vnode_of(newer.expect("a newer base").pod()).as_str()));
    stage.wait_refused("app=cart", "the base version is outside the wanted range").await?;
    let whole = stage.extender.metric("stowage_extender_full_node_requests_total", &[]).await?;
    assert!(whole >= 2.0, "{whole} requests with whole Nodes");
    drop(scheduler);
    Ok(())
}

/// Two Deployments of one module on bases with eight places: never both on one base, which could not hold it twice.
#[tokio::test]
async fn two_deployments_of_one_module_never_share_a_base() -> TestResult {
    let stage = Stage::builder().bases(3).pods_per_base(8).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let deployment = |name: &str| {
        let set = ModuleSet::deployment("shop", "1.0.0", &url).named(name);
        set.replicas(2).label("module", "shop").yaml()
    };
    stage.apply(&format!("{}\n---\n{}", deployment("red"), deployment("blue"))).await?;
    settled(&stage, "module=shop", 3, 1, "3 the base already has module shop in this version", 1).await?;
    stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
    // One of the other Deployment goes, and its base is free for the one that waits.
    let waiting = stage.pods("module=shop").await?.into_iter().find(|pod| node_of(pod).is_none());
    let waiting = waiting.expect("one without a Node");
    let other = if waiting.labels().get("app").is_some_and(|app| app == "red") { "blue" } else { "red" };
    stage.kubectl()?.run(&["scale", "deployment", other, "--replicas=1"]).await?;
    settled(&stage, "module=shop", 3, 0, "", 2).await?;
    stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
    stage.assert_no_double_install()?;
    Ok(())
}

/// `modulesPerBase` counts every module of a base, those of groups too; what is too much waits until one goes.
#[tokio::test]
async fn a_base_takes_no_more_modules_than_the_policy_says() -> TestResult {
    let policy = POLICY.replace("podsPerBase: 1,", "podsPerBase: 8, modulesPerBase: 3,");
    let stage = Stage::builder().bases(1).policy(&policy).build().await?;
    let url = |name: &str| stage.artifacts.module(name, "1.0.0").url();
    let group = ModuleSet::deployment("cart", "1.0.0", &url("cart")?).module("pay", "1.0.0", &url("pay")?);
    let shop = ModuleSet::deployment("shop", "1.0.0", &url("shop")?);
    stage.apply(&format!("{}\n---\n{}", group.yaml(), shop.yaml())).await?;
    stage.wait_pods_ready("app=cart", 1).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    stage.apply(&ModuleSet::deployment("mail", "1.0.0", &url("mail")?).yaml()).await?;
    stage.wait_refused("app=mail", "1 the base has no room for more modules").await?;
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    stage.wait_pods_ready("app=mail", 1).await?;
    stage.wait_modules(&[("cart:1.0.0", 1), ("pay:1.0.0", 1), ("mail:1.0.0", 1)]).await?;
    Ok(())
}

/// A base that is going away takes no module while its own one drains, though it answers; the base after it does.
#[tokio::test]
async fn a_leaving_base_takes_no_module() -> TestResult {
    let policy = POLICY.replace("podsPerBase: 1", "podsPerBase: 8").replace("wait: 1s", "wait: 6s");
    let old = BaseSet::stateful("old", "2.2.0", 1).pod_spec(|pod| {
        pod["terminationGracePeriodSeconds"] = json!(60);
        pod["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 12}}});
    });
    let stage = Stage::builder().bases(1).base_set(old).policy(&policy).build().await?;
    let url = |name: &str| stage.artifacts.module(name, "1.0.0").url();
    let keep = ModuleSet::deployment("keep", "1.0.0", &url("keep")?).base_range("2.2.*");
    stage.apply(&keep.yaml()).await?;
    stage.wait_pods_ready("app=keep", 1).await?;
    stage.base_kubectl()?.run(&["scale", "statefulset", "old", "--replicas=0"]).await?;

    let vnode = stage.vnode_of("old-0");
    let shop = ModuleSet::deployment("shop", "1.0.0", &url("shop")?).replicas(2);
    let probe: Value = serde_json::from_str(&shop.pod_yaml("probe"))?;
    wait::until("refusal of a leaving base", Duration::from_secs(30), async || {
        let answer = filter(&stage, &probe, &[&vnode]).await?;
        let reason = &answer["FailedAndUnresolvableNodes"][&vnode];
        if reason == "the base is leaving" { Ok(()) } else { Err(StageError::Broken(answer.to_string())) }
    })
    .await?;
    assert!(stage.base("old-0")?.modules().await.is_some(), "the base is still up");
    stage.apply(&shop.yaml()).await?;
    settled(&stage, "app=shop", 1, 1, "the base already has module shop", 1).await?;
    if stage.is_simulated() {
        assert_eq!(stage.base("old-0")?.journal()?.installs("shop"), 0);
    }
    stage.base_kubectl()?.run(&["scale", "statefulset", "old", "--replicas=1"]).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    stage.wait_bases_hold(&[("base-0", &["shop:1.0.0"]), ("old-0", &["keep:1.0.0", "shop:1.0.0"])]).await?;
    Ok(())
}

/// Rule `kind`: a Pod that tolerates everything and is no module Pod goes to ordinary Nodes only, even with our
/// scheduler, and half a module Pod nowhere, with the name of the container in the reason.
#[tokio::test]
async fn only_module_pods_go_to_vnodes() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    let pod = |name: &str, spec: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"schedulerName": "stowage-scheduler", "tolerations": [{"operator": "Exists"}],
                     "containers": [{"name": "main", "image": "example/tool"}]},
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        pod.to_string()
    };
    let on_bases = json!({"nodeSelector": {"basement.koupleless.io/stack": "java"}});
    let half = json!({
        "tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
        "containers": [
            {"name": "shop", "image": "http://x/shop.jar", "env": [{"name": "MODULE_VERSION", "value": "1"}]},
            {"name": "sidecar", "image": "example/sidecar"},
        ],
    });
    stage.apply(&[pod("free", json!({})), pod("bound", on_bases), pod("half", half)].join("\n---\n")).await?;
    let plain = stage.kubelet.node_name("node-a");
    wait::object(&stage.api::<Pod>(), "free", "Pod on the plain Node", PATIENCE, |pod| {
        let node = pod.and_then(node_of);
        assert!(node.is_none_or(|node| node == plain), "on {node:?}");
        node.is_some()
    })
    .await?;
    stage.wait_refused("app=bound", "2 a virtual node takes module Pods only").await?;
    stage
        .wait_refused("app=half", "3 container sidecar has no MODULE_VERSION, so this is no module Pod")
        .await?;
    stage.wait_modules(&[]).await?;
    Ok(())
}
