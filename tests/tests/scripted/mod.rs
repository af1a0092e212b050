//! A real kube-scheduler with an extender that answers whatever a test wants: for tests about kube-scheduler alone.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Path, State},
    response::Response,
    routing::post,
};
use futures::{StreamExt, TryStreamExt, stream};
use harness::{
    Failure, TestResult,
    controlplane::{ControlPlane, ControlPlaneError, Extender, Options, Scheduler, configuration},
    wait,
};
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod, PodCondition};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

/// How long anything may take on a busy machine.
pub const SOON: Duration = Duration::from_mins(3);
/// The namespace of all Pods.
pub const NAMESPACE: &str = "shop";
/// Writes in flight.
const AT_ONCE: usize = 16;

/// One call of kube-scheduler.
#[derive(Debug, Clone)]
pub struct Call {
    pub verb: String,
    /// Name of the Pod that it is about.
    pub pod: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The other end of the connection.
    pub peer: SocketAddr,
    pub at: Instant,
}

impl Call {
    /// The nodes asked about.
    pub fn names(&self) -> Value {
        let question: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        question["NodeNames"].clone()
    }
}

/// What the extender does with a call.
pub enum Reply {
    Json(Value),
    Raw(StatusCode, Bytes),
    /// Keeps the connection open and says nothing.
    Silence,
    /// Binds the Pod as it was asked, and then does this.
    Bound(Box<Reply>),
}

/// The usual answer: every node fits, and none is better.
pub fn willing(call: &Call) -> Reply {
    match call.verb.as_str() {
        "filter" => Reply::Json(fits(call)),
        "prioritize" => Reply::Json(Value::Array(Vec::new())),
        _ => Reply::Json(json!({})),
    }
}

/// Every node that was asked about.
pub fn fits(call: &Call) -> Value {
    json!({"Nodes": null, "NodeNames": call.names(), "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""})
}

/// No node, each for the same reason.
pub fn fits_nowhere(call: &Call, map: &str, reason: &str) -> Value {
    fits_nowhere_because(call, map, |_| reason.to_owned())
}

/// No node, each for a reason of its own.
pub fn fits_nowhere_because(call: &Call, map: &str, reason: impl Fn(&str) -> String) -> Value {
    let names = call.names();
    let names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
    let failed: serde_json::Map<_, _> = names.map(|name| (name.to_owned(), json!(reason(name)))).collect();
    json!({"NodeNames": [], map: failed})
}

type Script = dyn Fn(&Call) -> Reply + Send + Sync;

struct Shared {
    calls: Mutex<Vec<Call>>,
    script: Box<Script>,
    client: Client,
}

/// The fields are in the order in which they must end.
pub struct Scene {
    schedulers: Vec<Scheduler>,
    server: JoinHandle<()>,
    address: SocketAddr,
    shared: Arc<Shared>,
    pub client: Client,
    cluster: ControlPlane,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Scene {
    /// With Nodes `n0`, `n1` and so on, and no scheduler yet.
    pub async fn new(
        name: &str,
        nodes: usize,
        script: impl Fn(&Call) -> Reply + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        let cluster = ControlPlane::start(Options::api_only(name)).await?;
        let client = cluster.client()?;
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let all: Api<Node> = Api::all(client.clone());
        let (parameters, nodes) =
            (PostParams::default(), (0..nodes).map(|number| node(&format!("n{number}"))));
        let nodes: Vec<Node> = nodes.collect();
        let created = nodes.iter().map(|node| all.create(&parameters, node));
        stream::iter(created).buffered(AT_ONCE).try_collect::<Vec<_>>().await?;
        let shared = Shared { calls: Mutex::default(), script: Box::new(script), client: client.clone() };
        let shared = Arc::new(shared);
        let router = Router::new()
            .route("/scheduler/{verb}", post(answer))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move { axum::serve(listener, service).await.unwrap_or_default() });
        Ok(Self { schedulers: Vec::new(), server, address, shared, client, cluster })
    }

    /// What kube-scheduler is told, before a test changes it: back-off is one second, always.
    pub fn configuration(&self, name: &str, extender: &Extender) -> Result<Value, Failure> {
        let extender =
            Extender { url_prefix: format!("http://{}/scheduler", self.address), ..extender.clone() };
        let mut settings: Value = serde_json::from_str(&configuration(name, Some(&extender)))?;
        settings["podInitialBackoffSeconds"] = json!(1);
        settings["podMaxBackoffSeconds"] = json!(1);
        Ok(settings)
    }

    /// Starts a scheduler of this name.
    pub async fn schedule(&mut self, name: &str, extender: &Extender) -> TestResult {
        let settings = self.configuration(name, extender)?;
        Ok(self.start(name, &settings).await?)
    }

    /// Starts a scheduler with a configuration.
    pub async fn start(&mut self, name: &str, settings: &Value) -> Result<(), ControlPlaneError> {
        self.start_with(name, settings, &[]).await
    }

    /// Starts a scheduler with a configuration, and flags.
    pub async fn start_with(
        &mut self,
        name: &str,
        settings: &Value,
        flags: &[&str],
    ) -> Result<(), ControlPlaneError> {
        let scheduler = self.cluster.start_scheduler_with(name, &settings.to_string(), flags).await?;
        self.schedulers.push(scheduler);
        Ok(())
    }

    /// The one that was started last.
    pub fn scheduler(&self) -> Option<&Scheduler> {
        self.schedulers.last()
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub async fn create(&self, pod: Value) -> TestResult {
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    /// All calls so far about a Pod.
    pub fn calls(&self, verb: &str, pod: &str) -> Vec<Call> {
        let calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().filter(|call| call.verb == verb && call.pod == pod).cloned().collect()
    }

    /// Waits until a Pod is bound, and returns its node.
    pub async fn bound(&self, name: &str) -> Result<String, Failure> {
        let what = format!("place for {name}");
        let node = wait::until(&what, SOON, async || {
            let pod = self.pods().get(name).await.map_err(|error| error.to_string())?;
            pod.spec.and_then(|spec| spec.node_name).ok_or_else(|| format!("{:?}", pod.status))
        });
        Ok(node.await?)
    }

    /// Waits until `PodScheduled` of a Pod is false for this reason, and returns the message.
    pub async fn unscheduled(&self, name: &str, reason: &str) -> Result<String, Failure> {
        let what = format!("{reason} of {name}");
        let message = wait::until(&what, SOON, async || {
            let pod = self.pods().get(name).await.map_err(|error| error.to_string())?;
            let condition =
                scheduled(&pod).filter(|c| c.status == "False" && c.reason.as_deref() == Some(reason));
            condition.and_then(|c| c.message).ok_or_else(|| format!("{:?}", pod.status))
        });
        Ok(message.await?)
    }

    /// Waits for an Event about a Pod, and returns its text.
    pub async fn event(&self, pod: &str, reason: &str) -> Result<String, Failure> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let selected = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        let what = format!("Event {reason} of {pod}");
        let text = wait::until(&what, SOON, async || {
            let found = events.list(&selected).await.map_err(|error| error.to_string())?.items;
            let event = found.iter().find(|event| event.reason.as_deref() == Some(reason));
            event.and_then(|event| event.message.clone()).ok_or_else(|| format!("{} others", found.len()))
        });
        Ok(text.await?)
    }
}

/// The condition `PodScheduled`.
pub fn scheduled(pod: &Pod) -> Option<PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "PodScheduled").cloned()
}

/// So large that no Pod makes a difference to kube-scheduler's own scores.
pub fn node(name: &str) -> Node {
    let resources = json!({"pods": "110", "cpu": "100000", "memory": "100Ti"});
    let node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "allocatable": resources, "capacity": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "-"}],
        },
    });
    serde_json::from_value(node).unwrap_or_default()
}

/// A Pod for the scheduler of this name. Nobody takes the taint off that the API server puts on new Nodes.
pub fn pod(name: &str, scheduler: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "schedulerName": scheduler,
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "example/tool"}],
        },
    })
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path(verb): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let question: Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = question["Pod"]["metadata"]["name"].as_str().or(question["PodName"].as_str());
    let call =
        Call { verb, pod: name.unwrap_or_default().to_owned(), headers, body, peer, at: Instant::now() };
    let mut reply = (shared.script)(&call);
    shared.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    loop {
        reply = match reply {
            Reply::Json(value) => Reply::Raw(StatusCode::OK, value.to_string().into()),
            Reply::Silence => std::future::pending().await,
            Reply::Bound(then) => match bind(&shared.client, &question).await {
                Ok(()) => *then,
                Err(error) => Reply::Json(json!({"Error": error.to_string()})),
            },
            Reply::Raw(status, body) => {
                let mut response = Response::new(Body::from(body));
                *response.status_mut() = status;
                return response;
            }
        };
    }
}

/// What an extender that binds does.
pub async fn bind(client: &Client, asked: &Value) -> kube::Result<()> {
    let [name, namespace, uid, node] =
        ["PodName", "PodNamespace", "PodUID", "Node"].map(|key| asked[key].as_str().unwrap_or_default());
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let answer: kube::Result<Value> =
        pods.create_subresource("binding", name, &PostParams::default(), &binding).await;
    answer.map(drop)
}

/// Names of Pods that are being deleted.
pub async fn leaving(scene: &Scene) -> Result<Vec<String>, Failure> {
    let pods = scene.pods().list(&ListParams::default()).await?;
    Ok(pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some())
        .map(ResourceExt::name_any)
        .collect())
}
