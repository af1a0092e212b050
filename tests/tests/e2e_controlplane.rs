//! The harness itself, on a real control plane: what the other end-to-end tests take for granted.

use std::{
    net::IpAddr,
    path::Path,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use harness::{
    Failure, TestResult,
    controlplane::{Component, ControlPlane, Options, configuration},
    kubelet::{Exit, Idle, Kubelet, Running, Runtime, RuntimeError, Start, is_ready},
    logs,
    namespace::Namespace,
    process::Process,
    wait,
    workdir::Workdir,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace as NamespaceObject, Node, Pod},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

const SOON: Duration = Duration::from_mins(1);

/// A base that does nothing but note when it was told to end, and may ignore SIGTERM.
#[derive(Default, Clone)]
struct Witness {
    stubborn: bool,
    signals: Arc<Mutex<Vec<Signal>>>,
}

/// Pod, signal, when.
type Signal = (String, &'static str, Instant);

struct Watched {
    pod: String,
    witness: Witness,
    exit: Exit,
}

impl Runtime for Witness {
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Box<dyn Running>, RuntimeError>> {
        let watched = Watched { pod: start.pod.name_any(), witness: self.clone(), exit: Exit::new() };
        Box::pin(async { Ok(Box::new(watched) as Box<dyn Running>) })
    }
}

impl Watched {
    fn note(&self, signal: &'static str) {
        self.witness.signals.lock().unwrap_or_else(PoisonError::into_inner).push((
            self.pod.clone(),
            signal,
            Instant::now(),
        ));
    }
}

impl Running for Watched {
    fn port(&self) -> Option<u16> {
        Some(4242)
    }

    fn terminate(&self) {
        self.note("TERM");
        if !self.witness.stubborn {
            self.exit.terminate();
        }
    }

    fn kill(&self) {
        self.note("KILL");
        self.exit.kill();
    }

    fn ended(&self) -> BoxFuture<'static, i32> {
        self.exit.ended()
    }
}

fn status_field(pod: &Pod, read: impl Fn(&k8s_openapi::api::core::v1::ContainerStatus) -> i32) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.and_then(|statuses| statuses.first()).map_or(-1, read)
}

async fn ready_pods(pods: &Api<Pod>, count: usize) -> Result<Vec<Pod>, Failure> {
    let what = format!("{count} Ready Pods");
    let found = wait::until(&what, SOON, async || {
        let found = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        if found.len() == count && found.iter().all(is_ready) { Ok(found) } else { Err(wait::yaml(&found)) }
    });
    Ok(found.await?)
}

#[tokio::test]
async fn base_pods_run_and_end_as_real_ones() -> TestResult {
    let cluster = ControlPlane::shared().await?;
    let namespace = cluster.namespace("run").await?;
    let client = cluster.client()?;
    let witness = Witness::default();
    let kubelet = Kubelet::start(client.clone(), namespace.scope(), witness.clone()).await?;
    let node = kubelet.add_node("node-a").await?;
    namespace
        .kubectl(cluster)?
        .apply(
            "
apiVersion: apps/v1
kind: Deployment
metadata: {name: base}
spec:
  replicas: 2
  selector: {matchLabels: {app: base}}
  template:
    metadata: {labels: {app: base}}
    spec:
      containers:
      - name: base
        image: base
        lifecycle: {preStop: {sleep: {seconds: 1}}}
---
apiVersion: v1
kind: Service
metadata: {name: base}
spec:
  selector: {app: base}
  ports: [{port: 80}]
",
        )
        .await?;

    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace.name());
    let running = ready_pods(&pods, 2).await?;
    let mut addresses: Vec<String> = Vec::new();
    for pod in &running {
        let status = pod.status.as_ref().unwrap();
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(pod.spec.as_ref().unwrap().node_name.as_ref(), Some(&node));
        assert_eq!(pod.annotations().get("stowage.dev/arklet-port").map(String::as_str), Some("4242"));
        let ip: IpAddr = status.pod_ip.as_ref().unwrap().parse()?;
        assert_eq!(kubelet.ip(namespace.name(), &pod.name_any())?, ip);
        assert!(ip.to_string().starts_with("10.244."), "{ip}");
        std::net::TcpListener::bind((ip, 0))?;
        addresses.push(ip.to_string());
    }
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace.name());
    let in_service = async |expected: &[String]| {
        wait::until("ready endpoints", SOON, async || {
            let slices = slices.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let mut ready: Vec<String> = slices
                .iter()
                .flat_map(|slice| &slice.endpoints)
                .filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|c| c.ready == Some(true)))
                .flat_map(|endpoint| endpoint.addresses.clone())
                .collect();
            ready.sort();
            if ready == expected { Ok(()) } else { Err(wait::yaml(&slices)) }
        })
        .await
    };
    addresses.sort();
    in_service(&addresses).await?;

    let deleted = Instant::now();
    let deployments: Api<Deployment> = Api::namespaced(client, namespace.name());
    deployments.delete("base", &DeleteParams::background()).await?;
    in_service(&[]).await?;
    for pod in &running {
        wait::gone(&pods, &pod.name_any(), SOON).await?;
    }
    let signals = witness.signals.lock().unwrap();
    assert_eq!(signals.len(), 2, "one SIGTERM each, no SIGKILL");
    for (pod, signal, at) in signals.iter() {
        assert_eq!(*signal, "TERM", "{pod}");
        assert!(*at >= deleted + Duration::from_secs(1), "{pod}: preStop was not honoured");
    }
    Ok(())
}

async fn single_base(name: &str) -> Result<(&'static ControlPlane, Namespace, Api<Pod>), Failure> {
    let cluster = ControlPlane::shared().await?;
    let namespace = cluster.namespace(name).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, namespace.name());
    Ok((cluster, namespace, pods))
}

#[tokio::test]
async fn containers_restart_crash_and_turn_not_ready() -> TestResult {
    let (cluster, namespace, pods) = single_base("restart").await?;
    let kubelet = Kubelet::start(cluster.client()?, namespace.scope(), Witness::default()).await?;
    kubelet.add_node("node-a").await?;
    let base: Pod = serde_json::from_value(json!({
        "metadata": {"name": "base"},
        "spec": {
            "containers": [{"name": "base", "image": "base"}],
            "readinessGates": [{"conditionType": "stowage.dev/modules-ready"}],
        },
    }))?;
    pods.create(&kube::api::PostParams::default(), &base).await?;
    let wait_ready = async |ready: bool| {
        wait::object(&pods, "base", "Ready as wanted", SOON, |pod| {
            pod.is_some_and(|pod| status_field(pod, |_| 0) == 0 && is_ready(pod) == ready)
        })
        .await
    };
    let containers_ready = |pod: &Pod| status_field(pod, |container| i32::from(container.ready)) == 1;
    wait::object(&pods, "base", "ready container", SOON, |pod| pod.is_some_and(containers_ready)).await?;
    let held = pods.get("base").await?;
    assert!(!is_ready(&held), "the gate holds it back");
    let gate = json!({"status": {"conditions": [{"type": "stowage.dev/modules-ready", "status": "True"}]}});
    pods.patch_status("base", &PatchParams::default(), &Patch::Strategic(gate)).await?;
    wait_ready(true).await?;

    kubelet.set_ready(namespace.name(), "base", false).await?;
    assert!(!is_ready(&pods.get("base").await?));
    kubelet.set_ready(namespace.name(), "base", true).await?;
    assert!(is_ready(&pods.get("base").await?));

    let ip = kubelet.ip(namespace.name(), "base")?;
    kubelet.restart_container(namespace.name(), "base").await?;
    let restarted = pods.get("base").await?;
    assert_eq!(status_field(&restarted, |container| container.restart_count), 1);
    assert!(is_ready(&restarted));
    kubelet.crash_container(namespace.name(), "base")?;
    let crashed = wait::object(&pods, "base", "Ready after a crash", SOON, |pod| {
        pod.is_some_and(|pod| status_field(pod, |container| container.restart_count) == 2 && is_ready(pod))
    })
    .await?;
    let code = status_field(&crashed.unwrap(), |container| {
        container
            .last_state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .map_or(-1, |end| end.exit_code)
    });
    assert_eq!(code, 137);
    assert_eq!(kubelet.ip(namespace.name(), "base")?, ip, "the Pod keeps its address");

    // By force: the object is gone at once, and the container is killed.
    pods.delete("base", &DeleteParams::default().grace_period(0)).await?;
    wait::until("end of the container", SOON, async || {
        kubelet.ip(namespace.name(), "base").map_or(Ok(()), |ip| Err(format!("it runs at {ip}")))
    })
    .await?;
    Ok(())
}

/// A base that ignores SIGTERM is killed when its grace period is over, and not before.
#[tokio::test]
async fn a_base_that_ignores_sigterm_is_killed_after_its_grace_period() -> TestResult {
    let (cluster, namespace, pods) = single_base("stubborn").await?;
    let witness = Witness { stubborn: true, ..Witness::default() };
    let kubelet = Kubelet::start(cluster.client()?, namespace.scope(), witness.clone()).await?;
    kubelet.add_node("node-a").await?;
    let base: Pod = serde_json::from_value(json!({
        "metadata": {"name": "base"},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [{"name": "base", "image": "base"}]},
    }))?;
    pods.create(&kube::api::PostParams::default(), &base).await?;
    wait::object(&pods, "base", "Ready Pod", SOON, |pod| pod.is_some_and(is_ready)).await?;

    let deleted = Instant::now();
    pods.delete("base", &DeleteParams::default()).await?;
    wait::gone(&pods, "base", SOON).await?;
    let signals = witness.signals.lock().unwrap();
    let kinds: Vec<_> = signals.iter().map(|(_, signal, _)| *signal).collect();
    assert_eq!(kinds, ["TERM", "KILL"]);
    let killed = signals[1].2.duration_since(deleted);
    assert!(killed >= Duration::from_secs(2), "killed after {killed:?}");
    Ok(())
}

#[tokio::test]
async fn pods_stay_in_their_scope() -> TestResult {
    let cluster = ControlPlane::shared().await?;
    let (ours, theirs) = (cluster.namespace("ours").await?, cluster.namespace("theirs").await?);
    let kubelet = Kubelet::start(cluster.client()?, theirs.scope(), Idle).await?;
    let their_node = kubelet.add_node("node-a").await?;
    for namespace in [&ours, &theirs] {
        namespace.kubectl(cluster)?.run(&["run", "base", "--image=base"]).await?;
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, theirs.name());
    wait::object(&pods, "base", "Ready Pod", SOON, |pod| pod.is_some_and(is_ready)).await?;
    assert_eq!(pods.get("base").await?.spec.unwrap().node_name, Some(their_node.clone()));
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, ours.name());
    let refused = wait::object(&pods, "base", "refusal of the scheduler", SOON, |pod| {
        let refused = pod.and_then(|pod| harness::kubelet::condition(pod, "PodScheduled"));
        refused.is_some_and(|condition| condition.status == "False")
    })
    .await?;
    assert_eq!(refused.unwrap().spec.unwrap().node_name, None);
    drop((kubelet, theirs));
    let nodes: Api<Node> = Api::all(cluster.client()?);
    wait::gone(&nodes, &their_node, SOON).await?;
    Ok(())
}

#[tokio::test]
async fn a_second_scheduler_binds() -> TestResult {
    let (cluster, namespace, pods) = single_base("scheduler").await?;
    let kubelet = Kubelet::start(cluster.client()?, namespace.scope(), Idle).await?;
    let node = kubelet.add_node("node-a").await?;
    let name = format!("second-{}", namespace.name());
    let mut scheduler = cluster.start_scheduler(&name, &configuration(&name, None)).await?;
    let pod = async |pod: &str| -> TestResult {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
            "spec": {"schedulerName": name, "containers": [{"name": "base", "image": "base"}]},
        });
        namespace.kubectl(cluster)?.apply(&manifest.to_string()).await?;
        Ok(())
    };
    pod("first").await?;
    let first = wait::object(&pods, "first", "Ready Pod", SOON, |pod| pod.is_some_and(is_ready)).await?;
    assert_eq!(first.unwrap().spec.unwrap().node_name, Some(node));

    scheduler.stop();
    pod("second").await?;
    let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    assert!(!bound(&pods.get("second").await?), "nobody else schedules it");
    scheduler.restart(cluster).await?;
    wait::object(&pods, "second", "bound Pod", SOON, |pod| pod.is_some_and(bound)).await?;
    assert_eq!(scheduler.exit_status(), None);
    Ok(())
}

fn is_forbidden(answer: &Result<impl Sized, kube::Error>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

async fn client_of(kubeconfig: &Path) -> Result<Client, Failure> {
    let config = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let config =
        kube::Config::from_custom_kubeconfig(config, &kube::config::KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

#[tokio::test]
async fn identities_have_the_rights_that_rbac_gives() -> TestResult {
    let (cluster, namespace, _) = single_base("rights").await?;
    let kubectl = namespace.kubectl(cluster)?;
    kubectl.run(&["create", "serviceaccount", "agent"]).await?;
    kubectl.run(&["create", "role", "reader", "--verb=list", "--resource=pods"]).await?;
    let account = format!("--serviceaccount={}:agent", namespace.name());
    kubectl.run(&["create", "rolebinding", "reader", "--role=reader", &account]).await?;
    let agent = client_of(&cluster.kubeconfig_for_service_account(namespace.name(), "agent").await?).await?;
    let stranger = client_of(&cluster.kubeconfig_for_user("stranger", None)?).await?;
    let pods = |client: &Client| Api::<Pod>::namespaced(client.clone(), namespace.name());
    assert!(pods(&agent).list(&ListParams::default()).await?.items.is_empty());
    assert!(is_forbidden(&Api::<Node>::all(agent).list(&ListParams::default()).await));
    assert!(is_forbidden(&pods(&stranger).list(&ListParams::default()).await));
    Ok(())
}

/// Processes whose command line mentions the text.
fn processes_with(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) {
            found.push(line);
        }
    }
    found
}

#[tokio::test]
async fn components_fail_and_come_back() -> TestResult {
    let cluster = ControlPlane::start(Options::api_only("outage")).await?;
    let directory = cluster.kubeconfig_path().parent().unwrap().display().to_string();
    let mut config = cluster.config();
    config.read_timeout = Some(Duration::from_secs(1));
    let namespaces: Api<NamespaceObject> = Api::all(Client::try_from(config)?);
    let list = async || namespaces.list(&ListParams::default()).await.map(drop);
    list().await?;
    cluster.pause(Component::ApiServer)?;
    assert!(list().await.is_err(), "nobody answers");
    cluster.resume(Component::ApiServer)?;
    wait::until("answer after the pause", SOON, list).await?;
    let before = cluster.process_id(Component::ApiServer)?;
    cluster.stop(Component::ApiServer)?;
    assert!(list().await.is_err(), "nobody listens");
    cluster.restart(Component::ApiServer).await?;
    assert_ne!(cluster.process_id(Component::ApiServer)?, before);
    list().await?;
    assert!(cluster.pause(Component::Scheduler).is_err(), "it has none");

    // A cluster of one's own without controllers runs Pods that name their node, over an outage.
    let namespace = cluster.namespace("alone").await?;
    let kubelet = Kubelet::start(cluster.client()?, namespace.scope(), Idle).await?;
    let node = kubelet.add_node("node-a").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, namespace.name());
    let base: Pod = serde_json::from_value(json!({
        "metadata": {"name": "base"},
        "spec": {"nodeName": node, "containers": [{"name": "base", "image": "base"}]},
    }))?;
    pods.create(&kube::api::PostParams::default(), &base).await?;
    wait::object(&pods, "base", "Ready Pod", SOON, |pod| pod.is_some_and(is_ready)).await?;
    cluster.stop(Component::ApiServer)?;
    let restarting = kubelet.restart_container(namespace.name(), "base");
    let (restarted, served) = tokio::join!(restarting, cluster.restart(Component::ApiServer));
    restarted?;
    served?;
    let restarts = status_field(&pods.get("base").await?, |container| container.restart_count);
    assert_eq!(restarts, 1, "the kubelet tried until the API server took it");
    drop((kubelet, namespace));

    assert_eq!(processes_with(&directory).len(), 2, "etcd and kube-apiserver");
    drop(cluster);
    assert_eq!(processes_with(&directory), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn nothing_outlives_a_program_that_is_killed() -> TestResult {
    let workdir = Workdir::new("killed")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_controlplane"));
    command.arg("run");
    let log = workdir.path().join("log");
    let program = Process::spawn("controlplane", command, &log)?;
    let directory = wait::until("kubeconfig", 2 * SOON, async || {
        let text = logs::tail(&log, 1);
        let path = Path::new(text.trim());
        match path.parent().filter(|_| path.is_file()) {
            Some(parent) => Ok(parent.display().to_string()),
            None => Err(text),
        }
    })
    .await?;
    assert_eq!(processes_with(&directory).len(), 4);
    program.kill();
    wait::until("end of all processes", SOON, async || {
        let left = processes_with(&directory);
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    })
    .await?;
    wait::until("removal of its files", SOON, async || {
        if Path::new(&directory).exists() { Err(directory.clone()) } else { Ok(()) }
    })
    .await?;
    Ok(())
}

/// Who has no Go and names no folder reads one sentence that says what to do.
#[test]
fn without_go_one_sentence_says_what_is_missing() -> TestResult {
    // A cargo target directory of its own, where nothing was built. A link, not a copy: on the same file system.
    let target = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    std::fs::write(target.path().join("CACHEDIR.TAG"), "")?;
    let program = target.path().join("controlplane-program");
    std::fs::hard_link(env!("CARGO_BIN_EXE_controlplane"), &program)?;
    let output = Command::new(&program)
        .arg("build")
        .env("PATH", "")
        .env_remove("STOWAGE_CONTROLPLANE")
        .env_remove("KUBEBUILDER_ASSETS")
        .env_remove("RUST_BACKTRACE")
        .env_remove("RUST_LIB_BACKTRACE")
        .output()?;
    let (told, printed) = (String::from_utf8(output.stderr)?, String::from_utf8(output.stdout)?);
    assert_eq!((output.status.code(), printed.as_str()), (Some(1), ""), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("needs Go 1.26 or newer on the PATH"), "{told}");
    assert!(told.contains("STOWAGE_CONTROLPLANE"), "{told}");
    Ok(())
}
