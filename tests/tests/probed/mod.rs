//! Modules whose probes give them up, and modules that require others.

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    sync::{Arc, mpsc},
};

use harness::{
    Failure, TestResult,
    kubelet::is_ready,
    stage::{ModuleSet, Stage, pod_condition},
    wait,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Resource;
use policy::contract::names;
use rustls::{ServerConfig, ServerConnection, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{vnodes::wait_brake, vpods::*};

/// A probe of `/shop` on the base, each second.
fn probe(failures: u32) -> Value {
    json!({"httpGet": {"path": "/shop/health", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5,
        "failureThreshold": failures})
}

fn container(pod: &Pod) -> &ContainerStatus {
    containers(pod).first().expect("a container")
}

async fn apply_shop(stage: &Stage, change: impl FnOnce(ModuleSet) -> ModuleSet) -> TestResult {
    let url = stage.artifacts.module("shop", "1.0.0").serves(8080).url()?;
    stage.apply(&change(ModuleSet::deployment("shop", "1.0.0", &url)).pod_yaml("shop")).await?;
    Ok(())
}

/// A failing `livenessProbe` installs the module again, once, in the same Pod; the Pod tells why. A neighbour on the same
/// base stays.
#[tokio::test]
async fn a_failing_liveness_probe_installs_the_module_again() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(2).build().await?;
    let url = jar(&stage, "cart", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("cart", "1.0.0", &url).pod_yaml("cart")).await?;
    apply_shop(&stage, |set| set.field("livenessProbe", probe(5))).await?;
    let before = pod_ready(&stage, "shop").await?;
    pod_ready(&stage, "cart").await?;
    assert_eq!(restarts(&before), [0]);
    let base = stage.base("base-0")?;
    base.faults()?.serve_status("shop", Some(500));
    base.journal()?.until(SOON, |journal| journal.uninstalls("shop") == 1).await?;
    // Its successor is well.
    base.faults()?.serve_status("shop", None);
    let after =
        pod_is(&stage, "shop", "Ready Pod that was restarted", |pod| is_ready(pod) && restarts(pod) == [1])
            .await?;
    assert_eq!((uid(&after), phase(&after)), (uid(&before), "Running"));
    let last = container(&after)
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.clone())
        .expect("a last state");
    assert_eq!(last.reason.as_deref(), Some("LivenessProbeFailed"));
    assert_eq!(last.message.as_deref(), Some("Liveness probe failed: HTTP 500"));
    event(&stage, "shop", "Unhealthy: container shop: Liveness probe failed: HTTP 500").await?;
    event(&stage, "shop", "Reinstalling: container shop: Liveness probe failed: HTTP 500").await?;
    // Many more periods of the probe pass.
    queried(&base, 8).await?;
    let deeds: Vec<_> = deeds(&base)?.into_iter().filter(|deed| deed.contains("shop")).collect();
    assert_eq!(deeds, ["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0", "installBiz shop:1.0.0"]);
    assert_eq!((stage.installs("cart")?, stage.uninstalls("cart")?), (1, 0));
    Ok(())
}

/// Answers HTTPS on the base's address, with a certificate that nobody trusts; gives back the port and what is asked.
fn https(ip: IpAddr) -> Result<(u16, mpsc::Receiver<String>), Failure> {
    let made = rcgen::generate_simple_self_signed(vec!["elsewhere.example".to_owned()])?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let config = Arc::new(config);
    let listener = TcpListener::bind((ip, 0))?;
    let port = listener.local_addr()?.port();
    let (told, asked) = mpsc::channel();
    let answer = move |mut socket: TcpStream| -> std::io::Result<String> {
        let mut session = ServerConnection::new(Arc::clone(&config)).map_err(std::io::Error::other)?;
        let mut stream = rustls::Stream::new(&mut session, &mut socket);
        let mut head = vec![0; 1024];
        let read = stream.read(&mut head)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
        stream.flush()?;
        Ok(String::from_utf8_lossy(&head[..read]).into_owned())
    };
    std::thread::spawn(move || {
        for head in listener.incoming().flatten().filter_map(|socket| answer(socket).ok()) {
            if told.send(head).is_err() {
                return;
            }
        }
    });
    Ok((port, asked))
}

/// A `startupProbe` that fails as often as its threshold says installs the module again, after its `preStop` hook; and an
/// HTTPS readiness probe is asked over TLS.
#[tokio::test]
async fn a_failing_startup_probe_installs_the_module_again() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let base = stage.base("base-0")?;
    base.faults()?.serve_status("shop", Some(503));
    let mut tasks = JoinSet::new();
    let (port, mut asked) = hook(base.ip(), &mut tasks).await?;
    let stop = json!({"preStop": {"httpGet": {"port": port, "path": "/drain"}}});
    let (secured, heard) = https(base.ip())?;
    let ready =
        json!({"httpGet": {"scheme": "HTTPS", "port": secured, "path": "/ready"}, "periodSeconds": 1});
    let fields = |set: ModuleSet| set.field("startupProbe", probe(3)).field("readinessProbe", ready);
    apply_shop(&stage, |set| fields(set).field("lifecycle", stop)).await?;
    base.journal()?.until(SOON, |journal| journal.uninstalls("shop") == 1).await?;
    base.faults()?.serve_status("shop", None);
    let after =
        pod_is(&stage, "shop", "Ready Pod that was restarted", |pod| is_ready(pod) && restarts(pod) == [1]);
    let after = after.await?;
    let last = container(&after).last_state.as_ref().and_then(|state| state.terminated.clone());
    assert_eq!(last.and_then(|last| last.reason).as_deref(), Some("StartupProbeFailed"));
    let hooked = tokio::time::timeout(SOON, asked.wait_for(Option::is_some)).await??.expect("it was called");
    assert!(hooked < uninstalled_at(&stage, "base-0")?, "the hook comes first");
    assert!(heard.recv_timeout(SOON)?.starts_with("GET /ready HTTP/1.1\r\n"), "read over TLS");
    let deeds = deeds(&base)?;
    assert_eq!(deeds, ["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0", "installBiz shop:1.0.0"]);
    Ok(())
}

/// The brake over probes: many modules whose probes fail together are left running, and are well again without an install.
#[tokio::test]
async fn modules_that_probes_give_up_together_are_left_running() -> TestResult {
    let stage =
        Stage::builder().bases(3).policy(&policy(&[("minModules: 10", "minModules: 3")])).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").serves(8080).url()?;
    let set = ModuleSet::deployment("shop", "1.0.0", &url).replicas(3).field("livenessProbe", probe(2));
    stage.apply(&set.yaml()).await?;
    stage.wait_pods_ready("app=shop", 3).await?;
    let bases = stage.all_bases();
    for base in &bases {
        base.faults()?.serve_status("shop", Some(500));
    }
    wait_brake(stage.agent(0)?, "probes", true).await?;
    for base in &bases {
        queried(base, 3).await?;
    }
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 0));
    for base in &bases {
        base.faults()?.serve_status("shop", None);
    }
    wait_brake(stage.agent(0)?, "probes", false).await?;
    for base in &bases {
        queried(base, 3).await?;
    }
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 0));
    Ok(())
}

/// Until its `startupProbe` has succeeded a module is neither started nor ready, whatever its readiness probe would say.
#[tokio::test]
async fn a_startup_probe_holds_readiness_back() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let base = stage.base("base-0")?;
    base.faults()?.serve_status("shop", Some(503));
    let always = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    apply_shop(&stage, |set| set.field("startupProbe", probe(600)).field("readinessProbe", always)).await?;
    let starting = pod_is(&stage, "shop", "Running Pod whose startup probe fails", |pod| {
        let ready = pod_condition(pod, names::READY_GATE).and_then(|condition| condition.message.as_deref());
        phase(pod) == "Running" && ready == Some("shop: Startup probe failed: HTTP 503")
    })
    .await?;
    assert_eq!((container(&starting).started, container(&starting).ready), (Some(false), false));
    event(&stage, "shop", "Unhealthy: container shop: Startup probe failed: HTTP 503").await?;
    let version = starting.meta().resource_version.clone();
    queried(&base, 4).await?;
    let still = stage.api::<Pod>().get("shop").await?;
    assert!(!is_ready(&still));
    assert_eq!(still.meta().resource_version, version, "a probe that goes on failing writes nothing");
    base.faults()?.serve_status("shop", None);
    let started = pod_ready(&stage, "shop").await?;
    assert_eq!((container(&started).started, restarts(&started)), (Some(true), vec![0]));
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 0));
    Ok(())
}

/// The policy of the stage, with room and with one requirement.
fn requiring(module: &str, needed: &str) -> String {
    let entry = format!(
        "compatibility: [{{module: {module}, requires: {{modules: [{{name: {needed}, versions: '>=1.5'}}]}}}}]\n"
    );
    policy(&[("podsPerBase: 1", "podsPerBase: 4"), ("scoring:\n", &format!("{entry}scoring:\n"))])
}

async fn apply_on(stage: &Stage, node: &str, module: &str, version: &str) -> TestResult {
    let set = ModuleSet::deployment(module, version, &jar(stage, module, version)?);
    let mut pod: Value = serde_json::from_str(&set.pod_yaml(module))?;
    pod["spec"]["nodeName"] = json!(node);
    stage.apply(&pod.to_string()).await?;
    Ok(())
}

/// A module that was bound past the scheduler waits for the one that it requires, says so in `kubectl describe`, and goes
/// on by itself when that is active.
#[tokio::test]
async fn a_module_waits_for_the_one_that_it_requires() -> TestResult {
    let stage = Stage::builder().bases(1).policy(&requiring("payments", "ledger")).build().await?;
    let (base, node) = (stage.base("base-0")?, stage.vnode_of("base-0"));
    apply_on(&stage, &node, "payments", "1.0.0").await?;
    let pod = pod_waits(&stage, "payments", "WaitingForModule").await?;
    let wanted = "requires module ledger [1.5,), which is not active on this base";
    assert_eq!(waiting(&pod).first().and_then(|waiting| waiting.message.as_deref()), Some(wanted));
    let told = stage.kubectl()?.run(&["describe", "pod", "payments"]).await?;
    assert!(told.contains("WaitingForModule"), "{told}");
    queried(&base, 3).await?;
    assert_eq!(deeds(&base)?, Vec::<String>::new(), "no call was made for it");
    apply_on(&stage, &node, "ledger", "1.6.0").await?;
    pod_ready(&stage, "payments").await?;
    assert_eq!(deeds(&base)?, ["installBiz ledger:1.6.0", "installBiz payments:1.0.0"]);
    Ok(())
}

/// A base that restarts gets back first what the others require, whatever was installed first before.
#[tokio::test]
async fn a_replay_installs_what_is_required_first() -> TestResult {
    let roomy = policy(&[("podsPerBase: 1", "podsPerBase: 4")]);
    let stage = Stage::builder().bases(1).policy(&roomy).build().await?;
    let (base, node) = (stage.base("base-0")?, stage.vnode_of("base-0"));
    for (module, version) in [("payments", "1.0.0"), ("ledger", "1.6.0")] {
        apply_on(&stage, &node, module, version).await?;
        pod_ready(&stage, module).await?;
    }
    let generation = async || {
        stage
            .agent(0)?
            .metric("policy_generation", &[])
            .await
            .map_err(|error| Failure::from(error.to_string()))
    };
    let before = generation().await?;
    stage.rewrite_policy(&requiring("payments", "ledger"))?;
    wait::until("the new policy", SOON, async || {
        let now = generation().await?;
        if now > before { Ok(()) } else { Err(Failure::from(format!("generation {now}"))) }
    })
    .await?;
    queried(&base, 3).await?;
    assert_eq!(deeds(&base)?.len(), 2, "what runs stays: {:?}", deeds(&base)?);
    base.journal()?.clear();
    stage.kubelet.restart_container(stage.default_ns(), "base-0").await?;
    for module in ["payments", "ledger"] {
        pod_is(&stage, module, "Ready Pod that was restarted", |pod| is_ready(pod) && restarts(pod) == [1])
            .await?;
    }
    assert_eq!(deeds(&base)?, ["installBiz ledger:1.6.0", "installBiz payments:1.0.0"]);
    let pod = stage.api::<Pod>().get("payments").await?;
    let last =
        container(&pod).last_state.as_ref().and_then(|state| state.terminated.clone()).expect("a last state");
    assert_eq!(last.reason.as_deref(), Some("BaseRestarted"));
    Ok(())
}
