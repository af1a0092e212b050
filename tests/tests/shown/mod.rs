//! What a VPod shows: it follows the base, the probes and the gates, whoever else writes, and is quiet otherwise.

use std::collections::BTreeMap;

use harness::{
    Failure, TestResult,
    kubelet::is_ready,
    stage::{ModuleSet, Stage, describe_pod},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use policy::contract::names;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::vpods::*;

/// Patches conditions of a Pod's status, as other controllers do.
async fn set_condition(stage: &Stage, pod: &str, condition: &str, status: &str) -> Result<Pod, Failure> {
    let pods: Api<Pod> = stage.api();
    let body = json!({"status": {"conditions": [{"type": condition, "status": status}]}});
    Ok(pods.patch_status(pod, &PatchParams::default(), &Patch::Strategic(body)).await?)
}

async fn one_shop(stage: &Stage, change: impl FnOnce(ModuleSet) -> ModuleSet) -> Result<Pod, Failure> {
    let url = stage.artifacts.module("shop", "1.0.0").serves(8080).url()?;
    let set = change(ModuleSet::deployment("shop", "1.0.0", &url));
    stage.apply(&set.pod_yaml("shop")).await?;
    pod_ready(stage, "shop").await
}

/// BL-072: somebody else, as the node controller does, writes Ready=False while nothing is wrong with the module.
/// The agent restores the truth, every time.
#[tokio::test]
async fn ready_that_was_overwritten_is_restored() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    one_shop(&stage, |set| set).await?;
    for _ in 0..2 {
        let written = set_condition(&stage, "shop", "Ready", "False").await?;
        assert!(!is_ready(&written));
        pod_ready(&stage, "shop").await?;
    }
    if stage.is_simulated() {
        assert_eq!(stage.installs("shop")?, 1);
    }
    Ok(())
}

/// BL-076: a module is uninstalled behind the agent's back. The VPod is shown not Ready, the module is installed again,
/// and the Pod is the same all the time and never Failed.
#[tokio::test]
async fn a_module_that_vanished_is_installed_again() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let before = one_shop(&stage, |set| set).await?;
    let fallen = pod_is(&stage, "shop", "Pod that is not Ready", |pod| {
        assert_ne!(phase(pod), "Failed");
        !is_ready(pod)
    });
    let vanish = async { uninstall_by_hand(&*stage.base("base-0")?, "shop", "1.0.0").await };
    tokio::try_join!(fallen, vanish)?;
    let pod = pod_ready(&stage, "shop").await?;
    assert_eq!((uid(&pod), phase(&pod), restarts(&pod)), (uid(&before), "Running", vec![1]));
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    if stage.is_simulated() {
        assert_eq!(stage.installs("shop")?, 2);
    }
    Ok(())
}

/// BL-080: a foreign readiness gate and the module's own health flip against each other. Ready is True exactly when the
/// containers are ready and every gate is True, after each of the flips.
#[tokio::test]
async fn ready_follows_containers_and_every_gate() -> TestResult {
    const FOREIGN: &str = "example.com/load-balancer";
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let url = stage.artifacts.module("shop", "1.0.0").serves(8080).url()?;
    let gates = json!([{"conditionType": names::READY_GATE}, {"conditionType": FOREIGN}]);
    let probe =
        json!({"httpGet": {"path": "/shop", "port": 8080}, "periodSeconds": 1, "failureThreshold": 1});
    let set = ModuleSet::deployment("shop", "1.0.0", &url).pod_field("readinessGates", gates);
    stage.apply(&set.field("readinessProbe", probe).pod_yaml("shop")).await?;
    pod_is(&stage, "shop", "Pod whose containers are ready", |pod| {
        status_of(pod, "ContainersReady") == "True"
    })
    .await?;
    let faults = stage.base("base-0")?.faults()?.clone();
    let (mut gate, mut healthy) = (false, true);
    for flip in 0..24_u32 {
        // Gates flip often; health costs a probe's period, so it flips now and then.
        if flip % 6 == 5 {
            healthy = !healthy;
            faults.serve_status("shop", (!healthy).then_some(503));
        } else {
            gate = !gate;
            set_condition(&stage, "shop", FOREIGN, if gate { "True" } else { "False" }).await?;
        }
        let wanted = |yes: bool| if yes { "True" } else { "False" };
        let what = format!("Pod with gate {gate} and health {healthy} (flip {flip})");
        pod_is(&stage, "shop", &what, |pod| {
            status_of(pod, FOREIGN) == wanted(gate)
                && status_of(pod, "ContainersReady") == wanted(healthy)
                && status_of(pod, "Ready") == wanted(gate && healthy)
        })
        .await?;
    }
    Ok(())
}

/// BL-118: while nothing changes nothing is written. The Pods keep their resourceVersion over many health checks.
#[tokio::test]
async fn nothing_is_written_while_nothing_changes() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(2).yaml()).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    let base = stage.base("base-0")?;
    let versions = async || -> Result<BTreeMap<_, _>, Failure> {
        let pods = stage.pods("app=shop").await?;
        Ok(pods.iter().map(|pod| (pod.name_any(), pod.resource_version())).collect())
    };
    queried(&base, 2).await?;
    let before = versions().await?;
    let writes = stage.agent(0)?.metric("stowage_agent_status_writes_total", &[]).await?;
    assert!(writes >= 2.0, "the metric is there: {writes}");
    queried(&base, 8).await?;
    assert_eq!(versions().await?, before);
    let more = stage.agent(0)?.metric("stowage_agent_status_writes_total", &[]).await? - writes;
    assert!(more.abs() < 0.5, "{more} writes");
    Ok(())
}

/// BL-084: `readinessProbe` with `httpGet`: Ready follows what the module answers; the module itself is left alone.
#[tokio::test]
async fn an_http_probe_decides_whether_a_module_is_ready() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let probe =
        json!({"httpGet": {"path": "/shop/health", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2});
    one_shop(&stage, |set| set.field("readinessProbe", probe)).await?;
    let faults = stage.base("base-0")?.faults()?.clone();
    for _ in 0..2 {
        faults.serve_status("shop", Some(500));
        let down = pod_is(&stage, "shop", "Pod that is not Ready", |pod| !is_ready(pod)).await?;
        assert_eq!(phase(&down), "Running");
        assert_eq!(status_of(&down, "module.koupleless.io/installed"), "True", "{}", describe_pod(&down));
        faults.serve_status("shop", None);
        let up = pod_ready(&stage, "shop").await?;
        assert_eq!(restarts(&up), [0]);
    }
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 0));
    Ok(())
}

/// `readinessProbe` with `tcpSocket`: Ready as long as the port of the base is open.
#[tokio::test]
async fn a_tcp_probe_decides_whether_a_module_is_ready() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let url = jar(&stage, "shop", "1.0.0")?;
    let probe = json!({"tcpSocket": {"port": 9999}, "periodSeconds": 1, "failureThreshold": 1});
    let set = ModuleSet::deployment("shop", "1.0.0", &url).field("readinessProbe", probe);
    stage.apply(&set.pod_yaml("shop")).await?;
    let closed = pod_is(&stage, "shop", "Running Pod", |pod| phase(pod) == "Running").await?;
    assert!(!is_ready(&closed), "nobody listens yet");
    let listener = TcpListener::bind((stage.base("base-0")?.ip(), 9999)).await?;
    pod_ready(&stage, "shop").await?;
    drop(listener);
    pod_is(&stage, "shop", "Pod that is not Ready", |pod| !is_ready(pod)).await?;
    Ok(())
}

/// A template with one field of its container, or of its environment, replaced.
fn changed(set: &ModuleSet, name: &str, change: impl FnOnce(&mut Value)) -> Result<String, Failure> {
    let mut pod: Value = serde_json::from_str(&set.pod_yaml(name))?;
    change(&mut pod["spec"]["containers"][0]);
    Ok(pod.to_string())
}

/// BL-132: a version that comes from a `ConfigMap` which is not there yet: the Pod waits and says for what; it goes
/// on by itself when the `ConfigMap` appears. The version stays that of the install when the `ConfigMap` changes.
#[tokio::test]
async fn a_version_may_come_from_a_config_map_that_appears_later() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let url = jar(&stage, "shop", "1.4.0")?;
    let set = ModuleSet::deployment("shop", "-", &url);
    let pod = changed(&set, "shop", |container| {
        let source = json!({"configMapKeyRef": {"name": "versions", "key": "shop"}});
        container["env"] = json!([{"name": "MODULE_VERSION", "valueFrom": source}]);
    })?;
    stage.apply(&pod).await?;
    let waits = pod_waits(&stage, "shop", "MissingReference").await?;
    let message = waiting(&waits)[0].message.clone().unwrap_or_default();
    assert!(message.contains("versions") && message.contains("shop"), "{message}");
    assert_eq!(phase(&waits), "Pending");

    let kubectl = stage.kubectl()?;
    kubectl.run(&["create", "configmap", "versions", "--from-literal=shop=1.4.0"]).await?;
    pod_ready(&stage, "shop").await?;
    stage.assert_bases_hold(&[("base-0", &["shop:1.4.0"])]).await?;

    let patch = r#"{"data":{"shop":"9.9.9"}}"#;
    kubectl.run(&["patch", "configmap", "versions", "--patch", patch]).await?;
    if stage.is_simulated() {
        queried(&*stage.base("base-0")?, 3).await?;
        assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 0));
    }
    stage.assert_bases_hold(&[("base-0", &["shop:1.4.0"])]).await?;
    Ok(())
}

/// `MODULE_NAME` names a module whose name no container can have; `BIZ_VERSION` is read where `MODULE_VERSION` is not
/// given; names may be as long as Kubernetes allows.
#[tokio::test]
async fn names_that_containers_cannot_have_come_from_the_environment() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let url = jar(&stage, "orderService_1", "1.0.0")?;
    let name = format!("a-pod-{}", "x".repeat(194));
    let pod = changed(&ModuleSet::deployment("orders", "-", &url), &name, |container| {
        container["env"] = json!([
            {"name": "MODULE_NAME", "value": "orderService_1"}, {"name": "BIZ_VERSION", "value": "1.0.0"},
        ]);
    })?;
    stage.apply(&pod).await?;
    let pod = pod_ready(&stage, &name).await?;
    let id = containers(&pod)[0].container_id.clone().unwrap_or_default();
    assert!(id.ends_with(":orderService_1:1.0.0"), "{id}");
    stage.assert_bases_hold(&[("base-0", &["orderService_1:1.0.0"])]).await?;
    stage.kubectl()?.run(&["delete", "pod", &name, "--wait=false"]).await?;
    wait::gone(&stage.api::<Pod>(), &name, SOON).await?;
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    Ok(())
}

/// BL-024, BL-130, BL-132: Pods that no module can be made of: each says what is wrong with it, none reaches the
/// base, and a good one beside them goes on.
#[tokio::test]
async fn pods_that_cannot_be_modules_say_why() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(10).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    let node = stage.vnode_of("base-0");
    let set = ModuleSet::deployment("shop", "1.0.0", &url).pod_field("nodeName", json!(node));
    let env = |container: &mut Value, name: &str, value: &str| {
        container["env"] = json!([{"name": name, "value": value}]);
    };
    let bad = [
        ("no-url", "InvalidImage", changed(&set, "no-url", |c| c["image"] = json!("shop:latest"))?),
        ("path", "InvalidImage", changed(&set, "path", |c| c["image"] = json!("repo.example.com/shop.jar"))?),
        ("spaces", "InvalidVersion", changed(&set, "spaces", |c| env(c, "MODULE_VERSION", "1 0"))?),
        ("long", "InvalidVersion", changed(&set, "long", |c| env(c, "MODULE_VERSION", &"9".repeat(200)))?),
        (
            "secret",
            "SecretForbidden",
            changed(&set, "secret", |c| {
                let source = json!({"secretKeyRef": {"name": "nowhere", "key": "x"}});
                c["env"] = json!([{"name": "MODULE_VERSION", "valueFrom": source}]);
            })?,
        ),
    ];
    for (name, reason, pod) in &bad {
        stage.apply(pod).await?;
        let waits = pod_waits(&stage, name, reason).await?;
        assert_eq!(phase(&waits), "Pending", "{name}");
        assert!(waiting(&waits)[0].message.as_deref().is_some_and(|message| message.contains("shop")));
        event(&stage, name, reason).await?;
    }
    // No version at all, or an empty one: not a module Pod.
    let empty = [
        ("empty", changed(&set, "empty", |c| env(c, "MODULE_VERSION", ""))?),
        ("none", changed(&set, "none", |c| c["env"] = json!([]))?),
    ];
    for (name, pod) in empty {
        stage.apply(&pod).await?;
        let (reason, message) = pod_failed_or_waits(&stage, name).await?;
        assert!(["NotAModule", "InvalidVersion"].contains(&reason.as_str()), "{name}: {reason} {message}");
    }
    let refused = changed(&set, "no-image", |c| {
        c.as_object_mut().expect("a container").remove("image");
    })?;
    match stage.apply(&refused).await {
        Err(refused) => assert!(refused.to_string().contains("image"), "{refused}"),
        Ok(_) => drop(pod_waits(&stage, "no-image", "InvalidImage").await?),
    }
    let good = ModuleSet::deployment("cart", "1.0.0", &jar(&stage, "cart", "1.0.0")?);
    stage.apply(&good.pod_yaml("good")).await?;
    pod_ready(&stage, "good").await?;
    stage.assert_bases_hold(&[("base-0", &["cart:1.0.0"])]).await?;
    if stage.is_simulated() {
        assert_eq!(stage.installs("shop")?, 0);
    }
    Ok(())
}

async fn pod_failed_or_waits(stage: &Stage, name: &str) -> Result<(String, String), Failure> {
    let pod =
        pod_is(stage, name, "Pod with a reason", |pod| phase(pod) == "Failed" || !waiting(pod).is_empty());
    let pod = pod.await?;
    if let Some(waiting) = waiting(&pod).first() {
        return Ok((waiting.reason.clone().unwrap_or_default(), waiting.message.clone().unwrap_or_default()));
    }
    let status = pod.status.clone().unwrap_or_default();
    Ok((status.reason.unwrap_or_default(), status.message.unwrap_or_default()))
}
