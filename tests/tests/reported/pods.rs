//! VPods: edits, deletions, rollouts, and Pods as people write them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use harness::{
    Failure, TestResult,
    arklet::{Fault, On},
    kubelet::is_ready,
    stage::{BaseSet, ModuleSet, PATIENCE, Stage, VNODES, describe_pod},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use policy::contract::names;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::vnodes::{Lookout, inventory};
use crate::vpods::*;

fn described(pods: &[&Pod]) -> String {
    pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n")
}

/// The most Pods on one Node that have not ended, those that are leaving included.
fn most_on_a_node(pods: &[&Pod]) -> usize {
    let mut counts = BTreeMap::<String, usize>::new();
    for pod in pods.iter().filter(|pod| !matches!(phase(pod), "Failed" | "Succeeded")) {
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
            *counts.entry(node).or_default() += 1;
        }
    }
    counts.into_values().max().unwrap_or(0)
}

/// BL-071, BL-073: somebody edits a running VPod all the time while the base answers every operation with an error. No
/// edit is an install, the Pod stays Running, and its readiness follows the module although each write may meet another.
#[tokio::test]
async fn edits_of_a_vpod_change_nothing_and_hide_nothing() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").serves(8080).url()?;
    let probe =
        json!({"httpGet": {"path": "/shop", "port": 8080}, "periodSeconds": 1, "failureThreshold": 1});
    let set = ModuleSet::deployment("shop", "1.0.0", &url).field("readinessProbe", probe);
    stage.apply(&set.pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    let faults = stage.base("base-0")?.faults()?.clone();
    for on in [On::install(), On::uninstall()] {
        faults.always(on, Fault::Status(500));
    }
    let not_running = |pod: &Pod| (phase(pod) != "Running").then(|| describe_pod(pod));
    let running = Lookout::on(stage.api::<Pod>(), "app=shop", not_running).await;
    let (pods, edits) = (stage.api::<Pod>(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&edits);
    let mut editor = JoinSet::new();
    editor.spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        loop {
            ticks.tick().await;
            let number = count.load(Ordering::Relaxed).to_string();
            let body = json!({"metadata": {"annotations": {"edited": number}, "labels": {"edited": number}}});
            if pods.patch("shop", &PatchParams::default(), &Patch::Merge(body)).await.is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for _ in 0..3 {
        faults.serve_status("shop", Some(503));
        pod_is(&stage, "shop", "Pod that is not Ready", |pod| !is_ready(pod)).await?;
        faults.serve_status("shop", None);
        pod_ready(&stage, "shop").await?;
    }
    drop(editor);
    assert!(edits.load(Ordering::Relaxed) >= 5, "{edits:?} edits");
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 0));
    running.assert_quiet();
    Ok(())
}

/// BL-041, BL-066, BL-069: a VPod with a long grace period and a module that takes its time to stop. It keeps its place
/// until the module is gone, nobody else gets it before, it is never Failed or Unknown meanwhile, and it goes as soon as
/// the module has gone, not when the grace period ends.
#[tokio::test]
async fn a_vpod_keeps_its_place_until_its_module_is_gone_and_no_longer() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let slow = stage.artifacts.module("shop", "1.0.0").with(|jar| jar.stops_in(Duration::from_secs(3)));
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &slow.url()?).grace(300).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    let next = ModuleSet::deployment("cart", "1.0.0", &jar(&stage, "cart", "1.0.0")?);
    stage.apply(&next.pod_yaml("cart")).await?;
    let began = Instant::now();
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    let mut seen_leaving = false;
    stage
        .wait_pods(names::MODULE_POD, "the second module in the place of the first", PATIENCE, |pods| {
            assert!(most_on_a_node(pods) <= 1, "two on one base:\n{}", described(pods));
            let old = pods.iter().find(|pod| pod.name_any() == "shop");
            if let Some(old) = old {
                seen_leaving |= old.metadata.deletion_timestamp.is_some();
                assert!(["Running", "Succeeded"].contains(&phase(old)), "{}", describe_pod(old));
            }
            let new = pods.iter().find(|pod| pod.name_any() == "cart");
            let done = old.is_none() && new.is_some_and(|pod| is_ready(pod));
            if done { Ok(()) } else { Err(described(pods)) }
        })
        .await?;
    assert!(seen_leaving, "it was never seen to leave");
    assert!(began.elapsed() < Duration::from_mins(1), "it took {:?}", began.elapsed());
    if stage.is_simulated() {
        let story = ["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0", "installBiz cart:1.0.0"];
        assert_eq!(deeds(&*stage.base("base-0")?)?, story);
    }
    Ok(())
}

/// BL-041, BL-086: a rollout is taken back while the first Pods of the old version still drain. All settle on the old
/// version, none is left draining, and at no instant a base has two.
#[tokio::test]
async fn a_rollout_that_is_taken_back_midway_settles() -> TestResult {
    let policy = policy(&[("drain: {wait: 1s", "drain: {wait: 4s")]);
    let stage = Stage::builder().bases(3).policy(&policy).build().await?;
    let set = |version: &str| -> Result<ModuleSet, Failure> {
        Ok(ModuleSet::deployment("shop", version, &jar(&stage, "shop", version)?).replicas(3))
    };
    stage.apply(&set("1.0.0")?.yaml()).await?;
    stage.wait_pods_ready("app=shop", 3).await?;
    stage.apply(&set("2.0.0")?.yaml()).await?;
    stage
        .wait_pods("app=shop", "draining Pod", SOON, |pods| {
            let leaving = pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some());
            if leaving { Ok(()) } else { Err(described(pods)) }
        })
        .await?;
    let kubectl = stage.kubectl()?;
    kubectl.run(&["rollout", "undo", "deployment/shop"]).await?;
    stage
        .wait_pods("app=shop", "three Ready Pods of the old version", PATIENCE, |pods| {
            assert!(most_on_a_node(pods) <= 1, "two on one base:\n{}", described(pods));
            let old = |pod: &&&Pod| {
                let id = containers(pod).first().and_then(|container| container.container_id.clone());
                pod.metadata.deletion_timestamp.is_none()
                    && is_ready(pod)
                    && id.is_some_and(|id| id.ends_with(":1.0.0"))
            };
            let settled = pods.len() == 3 && pods.iter().filter(old).count() == 3;
            if settled { Ok(()) } else { Err(described(pods)) }
        })
        .await?;
    kubectl.run(&["rollout", "status", "deployment/shop", "--timeout=30s"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-108: a VPod is deleted at the moment at which its base restarts and loses the module. The Pod goes, nothing is
/// installed for it again, and the base takes the next one.
#[tokio::test]
async fn a_deletion_and_a_restart_of_the_base_at_once_end_well() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    let pod = pod_ready(&stage, "shop").await?;
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    stage.kubelet.restart_container(stage.default_ns(), "base-0").await?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    assert!(
        pod.metadata.finalizers.unwrap_or_default().is_empty(),
        "nothing of ours can hold a Pod for ever"
    );
    assert_eq!(stage.installs("shop")?, 1);
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("next")).await?;
    pod_ready(&stage, "next").await?;
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// BL-106: the only base is lost with its machine and comes back under another name. The VPod on the dead one goes, its
/// successor is placed on the new one and runs, and nothing is left of the old.
#[tokio::test]
async fn a_power_cycle_of_the_only_base_is_survived() -> TestResult {
    let stage = Stage::builder().base_set(BaseSet::deployment("base", "2.1.0", 1)).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    let [old] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    let [base] = stage.wait_bases_ready(1).await?.try_into().expect("one base");
    let force = DeleteParams::default().grace_period(0);
    stage.base_pods().delete(&base.name_any(), &force).await?;
    wait::gone(&stage.nodes(), &node_of(&old), SOON).await?;
    let new = stage
        .wait_pods("app=shop", "Ready Pod on another VNode", PATIENCE, |pods| match pods {
            [pod] if is_ready(pod) && uid(pod) != uid(&old) => Ok((*pod).clone()),
            _ => Err(described(pods)),
        })
        .await?;
    assert_ne!(node_of(&new), node_of(&old));
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    assert_eq!(stage.nodes().list(&ListParams::default().labels(VNODES)).await?.items.len(), 1);
    Ok(())
}

/// BL-040: somebody installed another version past Kubernetes. The Node tells of it, so that the Pod is not sent there to be
/// turned away: it waits for a place, with the reason, and gets it when the foreign module has gone.
#[tokio::test]
async fn a_foreign_module_makes_no_loop_of_placing_and_refusing() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let base = stage.base("base-0")?;
    install_by_hand(&base, "shop", "0.9.0", &jar(&stage, "shop", "0.9.0")?).await?;
    let told = |node: Option<&k8s_openapi::api::core::v1::Node>| {
        node.is_some_and(|node| inventory(node).modules.iter().any(|module| &*module.name == "shop"))
    };
    wait::object(&stage.nodes(), &stage.vnode_of("base-0"), "foreign module", SOON, told).await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    stage.wait_refused("app=shop", "version of module shop is still on the base").await?;
    let [waits] = stage.pods("app=shop").await?.try_into().expect("one Pod");
    uninstall_by_hand(&base, "shop", "0.9.0").await?;
    let [runs] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    assert_eq!(uid(&runs), uid(&waits), "it was never turned away");
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// A Pod without labels and annotations, which no admission policy completes.
fn bare(stage: &Stage, name: &str, tolerations: &Value, modules: &[&str]) -> Result<Value, Failure> {
    let mut containers = Vec::new();
    for module in modules {
        containers.push(json!({
            "name": module, "image": jar(stage, module, "1.0.0")?,
            "env": [{"name": "MODULE_VERSION", "value": "1.0.0"}, {"name": "WITHOUT_VALUE"}],
            "resources": {"requests": {"cpu": "0", "memory": "0"}},
        }));
    }
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": names::SCHEDULER, "tolerations": tolerations, "containers": containers},
    }))
}

/// BL-024, BL-083, BL-130: Pods with nothing but what must be there, with dots in their names, with a dozen modules, and one
/// that is no module at all and was bound by hand. Each runs, without any gate too, or is refused in words, and the agent
/// goes on.
#[tokio::test]
async fn bare_pods_run_or_are_refused() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(10).build().await?;
    let tolerate = json!([{"key": names::VIRTUAL_NODE_TAINT, "operator": "Exists"}]);
    let many: Vec<String> = (0..12).map(|number| format!("m{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (name, modules) in [("bare.pod-1.0", &["bare"][..]), ("many", &many)] {
        stage.apply(&bare(&stage, name, &tolerate, modules)?.to_string()).await?;
    }
    let nginx = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nginx"},
        "spec": {"nodeName": stage.vnode_of("base-0"), "tolerations": [{"operator": "Exists"}],
                 "containers": [{"name": "nginx", "image": "nginx"}]},
    });
    stage.apply(&nginx.to_string()).await?;
    let refused = pod_is(&stage, "nginx", "Failed Pod", |pod| phase(pod) == "Failed").await?;
    assert_eq!(refused.status.and_then(|status| status.reason).as_deref(), Some("NotAModule"));
    let pod = pod_ready(&stage, "bare.pod-1.0").await?;
    assert_eq!(status_of(&pod, "module.koupleless.io/installed"), "True");
    let pod = pod_ready(&stage, "many").await?;
    assert_eq!(containers(&pod).len(), 12);
    assert!(stage.agent(0)?.exit_status().is_none());
    if stage.is_simulated() {
        assert_eq!(stage.base("base-0")?.journal()?.operations().len(), 13);
        stage.assert_no_double_install()?;
    }
    Ok(())
}

/// BL-135: tolerations as they stand in old texts. The value is `true` in lower case and the effect `NoExecute`, or the key
/// alone; with anything else kube-scheduler says that a taint is in the way.
#[tokio::test]
async fn a_toleration_that_is_nearly_right_is_told() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(10).build().await?;
    let toleration = |value: Option<&str>, effect: Option<&str>| {
        let mut toleration = json!({"key": names::VIRTUAL_NODE_TAINT, "operator": "Exists"});
        if let Some(value) = value {
            toleration = json!({"key": names::VIRTUAL_NODE_TAINT, "operator": "Equal", "value": value});
        }
        if let Some(effect) = effect {
            toleration["effect"] = json!(effect);
        }
        json!([toleration])
    };
    let cases = [
        ("right", toleration(Some("true"), Some("NoExecute")), true),
        ("key-only", toleration(None, None), true),
        ("upper-case", toleration(Some("True"), Some("NoExecute")), false),
        ("other-effect", toleration(Some("true"), Some("NoSchedule")), false),
    ];
    for (name, tolerations, _) in &cases {
        let mut pod = bare(&stage, name, tolerations, &[name])?;
        pod["metadata"]["labels"] = json!({"app": name});
        stage.apply(&pod.to_string()).await?;
    }
    for (name, _, runs) in &cases {
        if *runs {
            pod_ready(&stage, name).await?;
        } else {
            stage.wait_refused(&format!("app={name}"), "untolerated taint").await?;
        }
    }
    stage.wait_bases_hold(&[("base-0", &["right:1.0.0", "key-only:1.0.0"])]).await?;
    Ok(())
}

/// BL-092: a base gets the taint of an overloaded one, which the VPod tolerates for a while. When that is over it is evicted,
/// and its successor does not come back to the same base, though kube-scheduler's own rule for taints would let it.
#[tokio::test]
async fn an_overloaded_base_does_not_get_back_what_was_evicted() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    let for_a_while = json!([
        {"key": names::OVERLOAD_TAINT, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3},
    ]);
    let set = ModuleSet::deployment("shop", "1.0.0", &url).pod_field("tolerations", for_a_while);
    stage.apply(&set.yaml()).await?;
    let [old] = stage.wait_pods_ready("app=shop", 1).await?.try_into().expect("one Pod");
    let node = node_of(&old);
    stage
        .kubectl()?
        .run(&["taint", "node", &node, &format!("{}=true:NoExecute", names::OVERLOAD_TAINT)])
        .await?;
    stage
        .wait_pods("app=shop", "the successor on the other base", PATIENCE, |pods| {
            let back = |pod: &&&Pod| {
                uid(pod) != uid(&old)
                    && pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&node)
            };
            assert_eq!(pods.iter().filter(back).count(), 0, "it came back:\n{}", described(pods));
            match pods {
                [pod] if uid(pod) != uid(&old) && is_ready(pod) => Ok(()),
                _ => Err(described(pods)),
            }
        })
        .await?;
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    Ok(())
}
