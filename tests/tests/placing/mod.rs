//! A control plane with virtual nodes that nothing runs on, a scheduler and our extender: for tests about placement alone.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State};
use futures::{StreamExt, TryStreamExt, stream};
use harness::{
    Failure, TestResult,
    controlplane::{ControlPlane, Extender, Options, Scheduler, configuration},
    fetch, network,
    program::Program,
    proxy::{ApiFaults, ApiProxy},
    samples::samples,
    wait,
    workdir::Workdir,
};
use http::{StatusCode, Uri};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

/// How long anything may take on a busy machine.
pub const SOON: Duration = Duration::from_mins(3);
/// The namespace of all module Pods.
pub const NAMESPACE: &str = "shop";
/// The namespace of the shipped programs.
const OURS: &str = "stowage-system";
/// Writes in flight.
const AT_ONCE: usize = 16;

/// How the field is laid out.
#[derive(Clone, Copy, Default)]
pub struct Layout<'a> {
    /// For logs.
    pub name: &'a str,
    /// The policy file.
    pub policy: &'a str,
    /// Schedulers with an extender each, of which one leads; at least one.
    pub pairs: usize,
    /// `bindVerb`.
    pub bind: bool,
    /// `preemptVerb`, and preemption.
    pub preempt: bool,
    /// Extenders that share the work of the first scheduler, each request going to the next one; 0 means 1.
    pub sharing: usize,
    /// A proxy stands between the extenders and the API server.
    pub proxied: bool,
}

/// The fields are in the order in which they must end.
pub struct Field {
    /// Scheduler `n` asks extender `n`.
    pub schedulers: Vec<Scheduler>,
    pub extenders: Vec<Program>,
    /// Of the last scheduler.
    settings: Value,
    /// Where extender `n` shows its metrics.
    metrics: Vec<String>,
    policy: PathBuf,
    pub client: Client,
    proxy: Option<ApiProxy>,
    _balancers: JoinSet<()>,
    cluster: ControlPlane,
    _workdir: Workdir,
}

impl Field {
    /// With these virtual nodes.
    pub async fn new(layout: Layout<'_>, nodes: Vec<Value>) -> Result<Self, Failure> {
        let Layout { name, policy: text, pairs, bind, preempt, sharing, proxied } = layout;
        let cluster = ControlPlane::start(Options::api_only(name)).await?;
        let client = cluster.client()?;
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let workdir = Workdir::new(name)?;
        let policy = workdir.write("policy.yaml", text)?;
        let all: Api<Node> = Api::all(client.clone());
        let nodes = nodes.into_iter().map(serde_json::from_value::<Node>).collect::<Result<Vec<_>, _>>()?;
        let parameters = PostParams::default();
        let created = nodes.iter().map(|node| all.create(&parameters, node));
        stream::iter(created).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
        let (mut extenders, mut schedulers, mut metrics) = (Vec::new(), Vec::new(), Vec::new());
        let mut settings = Value::Null;
        let mut balancers = JoinSet::new();
        let account = account(&cluster, &layout).await?;
        let proxy = if proxied { Some(ApiProxy::start(&account).await?) } else { None };
        let kubeconfig = proxy.as_ref().map_or(account.as_path(), ApiProxy::kubeconfig);
        for number in 0..pairs.max(1) {
            let mut urls = Vec::new();
            for _ in 0..sharing.max(1) {
                let (port, admin) = (network::free_port()?, network::free_port()?);
                let extender = Program::new("stowage-extender")
                    .arg(format!("--listen=127.0.0.1:{port}"))
                    .arg(format!("--admin-address=127.0.0.1:{admin}"))
                    .arg(format!("--policy-file={}", policy.display()))
                    .arg(format!("--kubeconfig={}", kubeconfig.display()))
                    .arg(format!("--pod-namespace={OURS}"))
                    .args((sharing > 1).then_some("--shared-placements"))
                    .start()?;
                extender.wait_http(&format!("http://127.0.0.1:{admin}/readyz")).await?;
                extenders.push(extender);
                metrics.push(format!("http://127.0.0.1:{admin}/metrics"));
                urls.push(format!("http://127.0.0.1:{port}"));
            }
            let url = match urls.as_slice() {
                [url] => url.clone(),
                _ => balance(urls, &mut balancers).await?,
            };
            let extender = Extender { bind, preempt, ..Extender::new(&format!("{url}/scheduler")) };
            settings = serde_json::from_str(&configuration("stowage-scheduler", Some(&extender)))?;
            settings["clientConnection"] = json!({"qps": 200, "burst": 400});
            if pairs > 1 {
                settings["leaderElection"] = json!({
                    "leaderElect": true, "resourceName": "stowage-scheduler", "resourceNamespace": "kube-system",
                    "leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s",
                });
            }
            let scheduler =
                cluster.start_scheduler(&format!("{name}-{number}"), &settings.to_string()).await?;
            schedulers.push(scheduler);
        }
        Ok(Self {
            schedulers,
            extenders,
            settings,
            metrics,
            policy,
            client,
            proxy,
            _balancers: balancers,
            cluster,
            _workdir: workdir,
        })
    }

    /// Starts one more scheduler, for Pods that name it, which asks the extender of the last one.
    pub async fn add_scheduler(&mut self, name: &str) -> TestResult {
        let mut settings = self.settings.clone();
        settings["profiles"][0]["schedulerName"] = json!(name);
        self.schedulers.push(self.cluster.start_scheduler(name, &settings.to_string()).await?);
        Ok(())
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// What goes wrong between the extenders and the API server.
    pub fn faults(&self) -> &ApiFaults {
        self.proxy.as_ref().expect("a layout with a proxy").faults()
    }

    /// How often the extenders were asked.
    pub async fn calls(&self, verb: &str) -> Result<u64, Failure> {
        Ok(self.calls_of_each(verb).await?.into_iter().sum())
    }

    /// How often each extender was asked.
    pub async fn calls_of_each(&self, verb: &str) -> Result<Vec<u64>, Failure> {
        let mut calls = Vec::new();
        for number in 0..self.metrics.len() {
            calls.push(self.calls_of(number, verb).await?);
        }
        Ok(calls)
    }

    /// How often one of the extenders was asked.
    pub async fn calls_of(&self, number: usize, verb: &str) -> Result<u64, Failure> {
        let text = self.metrics(number).await?;
        let verb = format!("verb=\"{verb}\"");
        Ok(samples(&text, "stowage_extender_requests_total", &[&verb])
            .map(str::parse::<u64>)
            .sum::<Result<_, _>>()?)
    }

    /// What one of the extenders shows.
    pub async fn metrics(&self, number: usize) -> Result<String, Failure> {
        let url = self.metrics.get(number).ok_or_else(|| Failure::from(format!("no extender {number}")))?;
        Ok(fetch::get(url, SOON).await?.1)
    }

    /// Replaces the policy file at once.
    pub fn rewrite_policy(&self, text: &str) -> TestResult {
        let new = self.policy.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, &self.policy)?;
        Ok(())
    }

    /// Creates Pods.
    pub async fn create(&self, pods: Vec<Value>) -> TestResult {
        let api = self.pods();
        let pods = pods.into_iter().map(serde_json::from_value::<Pod>).collect::<Result<Vec<_>, _>>()?;
        let parameters = PostParams::default();
        let created = pods.iter().map(|pod| api.create(&parameters, pod));
        stream::iter(created).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
        Ok(())
    }

    /// Deletes a Pod at once, as an agent does when the module is gone.
    pub async fn delete(&self, name: &str) -> TestResult {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Waits until a Pod is bound, and returns its node.
    pub async fn bound(&self, name: &str, limit: Duration) -> Result<String, Failure> {
        let api = self.pods();
        let what = format!("place for {name}");
        let node = wait::until(&what, limit, async || {
            let pod = api.get(name).await.map_err(|error| error.to_string())?;
            node_of(&pod).ok_or_else(|| format!("{:?}", pod.status))
        });
        Ok(node.await?)
    }

    /// Waits until kube-scheduler says that there is no place for a Pod, and returns why.
    pub async fn refused(&self, name: &str) -> Result<String, Failure> {
        let api = self.pods();
        let what = format!("refusal of {name}");
        let why = wait::until(&what, SOON, async || {
            let pod = api.get(name).await.map_err(|error| error.to_string())?;
            assert_eq!(node_of(&pod), None, "{name} was placed");
            let conditions =
                pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
            let refused =
                conditions.into_iter().find(|condition| condition.reason.as_deref() == Some("Unschedulable"));
            refused.and_then(|condition| condition.message).ok_or_else(|| format!("{:?}", pod.status))
        });
        Ok(why.await?)
    }

    /// Modules by node, of all bound Pods.
    pub async fn placed(&self) -> Result<BTreeMap<String, Vec<String>>, Failure> {
        let mut placed = BTreeMap::<String, Vec<String>>::new();
        for pod in self.pods().list(&ListParams::default()).await? {
            let module = pod.labels().get("module").cloned().unwrap_or_default();
            if let Some(node) = node_of(&pod) {
                placed.entry(node).or_default().push(module);
            }
        }
        Ok(placed)
    }
}

/// The account of the extender, with the rights that the manifests for this layout give it, and no others.
async fn account(cluster: &ControlPlane, layout: &Layout<'_>) -> Result<PathBuf, Failure> {
    const RIGHTS: [&str; 8] = [
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ];
    // In the Pod of its scheduler the extender has the account of that.
    let (overlay, account) = match layout {
        Layout { sharing: 2.., .. } => ("overlays/extender-replicas", "stowage-extender"),
        Layout { bind: true, .. } => ("overlays/extender-bind", "stowage-scheduler"),
        Layout { preempt: true, .. } => ("overlays/extender-preempt", "stowage-scheduler"),
        _ => ("base", "stowage-scheduler"),
    };
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../manifests").join(overlay);
    let kubectl = cluster.kubectl()?;
    let rendered = kubectl.run(&["kustomize", &folder.display().to_string()]).await?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered)?;
    let rights =
        objects.iter().filter(|object| object["kind"].as_str().is_some_and(|kind| RIGHTS.contains(&kind)));
    let rights: Vec<String> = rights.map(Value::to_string).collect();
    kubectl
        .run_with_input(&["apply", "--server-side", "--validate=false", "-f", "-"], &rights.join("\n---\n"))
        .await?;
    Ok(cluster.kubeconfig_for_service_account(OURS, account).await?)
}

/// Hands each request to the next of these servers, as a Service does with connections.
async fn balance(urls: Vec<String>, tasks: &mut JoinSet<()>) -> Result<String, Failure> {
    let turn = AtomicUsize::new(0);
    let shared = Arc::new((urls, turn));
    let forward = async |State(shared): State<Arc<(Vec<String>, AtomicUsize)>>, uri: Uri, body: Bytes| {
        let (urls, turn) = &*shared;
        let next = urls.get(turn.fetch_add(1, Ordering::Relaxed) % urls.len());
        let url = format!("{}{}", next.map_or("", String::as_str), uri.path());
        fetch::post_json(&url, body, SOON).await.map_err(|error| (StatusCode::BAD_GATEWAY, error.to_string()))
    };
    let router = Router::new().fallback(forward).with_state(shared);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap_or_default() });
    Ok(format!("http://{address}"))
}

/// The value of a metric, of the first sample that has this label (`verb="filter"`, or none).
pub fn sample(metrics: &str, name: &str, label: &str) -> Result<f64, Failure> {
    let labels = [label];
    let value = samples(metrics, name, &labels).next();
    Ok(value.ok_or_else(|| Failure::from(format!("no {name} with {label:?} in\n{metrics}")))?.parse()?)
}

pub fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

/// A virtual node as the agent makes it, with so many slots.
pub fn vnode(name: &str, version: &str, slots: usize) -> Value {
    let resources = json!({"pods": slots.to_string(), "cpu": "16", "memory": "64Gi"});
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/managed-by": "stowage",
                "basement.koupleless.io/stack": "java",
                "basement.koupleless.io/version": version,
            },
            "annotations": {
                "stowage.dev/base": format!("bases/{name}"),
                "stowage.dev/base-uid": format!("uid-{name}"),
                "stowage.dev/inventory": json!({"v": 1}).to_string(),
            },
        },
        "spec": {"taints": [{"key": "schedule.koupleless.io/virtual-node", "value": "true", "effect": "NoExecute"}]},
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "-"}],
        },
    })
}

/// A module Pod. Nobody takes the taint off that the API server puts on new Nodes, so it is tolerated.
pub fn module_pod(name: &str, module: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"module": module}},
        "spec": {
            "schedulerName": "stowage-scheduler",
            "tolerations": [
                {"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"},
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
            ],
            "containers": [{
                "name": module,
                "image": format!("https://repo.example.com/{module}-1-ark-biz.jar"),
                "env": [{"name": "MODULE_VERSION", "value": "1"}],
            }],
        },
    })
}
