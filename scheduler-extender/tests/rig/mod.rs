//! What the extender's tests share: objects as the API server has them, and a router over a cache filled with them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod tls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use policy::Policy;
use prometheus_client::registry::Registry;
use scheduler_extender::cache::{CacheView, Change, NodeUpdate, PodUpdate, Source, State};
use scheduler_extender::http::{Extender, Limits, router};
use scheduler_extender::metrics::Metrics;
use scheduler_extender::shared::SharedPlacements;
use serde_json::{Value, json};
use service::policy_file::Versioned;
use tokio::sync::watch;
use tower::ServiceExt;

/// A ready `VNode` with the given inventory.
pub fn vnode_with(name: &str, inventory: &Value) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/managed-by": "stowage",
                "basement.koupleless.io/stack": "java",
                "basement.koupleless.io/version": "2.1.0",
            },
            "annotations": {
                "stowage.dev/base": format!("bases/{name}"),
                "stowage.dev/base-uid": format!("uid-{name}"),
                "stowage.dev/inventory": inventory.to_string(),
            },
        },
        "spec": {"taints": [{"key": "schedule.koupleless.io/virtual-node", "value": "true", "effect": "NoExecute"}]},
        "status": {"allocatable": {"pods": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// A ready `VNode` without modules.
pub fn vnode(name: &str) -> Value {
    vnode_with(name, &json!({"v": 1}))
}

/// A Node that stands for no base.
pub fn ordinary_node(name: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// A module Pod with one module, not bound.
pub fn module_pod(name: &str, module: &str, version: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "biz", "uid": format!("uid-{name}")},
        "spec": {
            "schedulerName": "stowage-scheduler",
            "tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
            "containers": [{
                "name": module,
                "image": format!("https://repo.example.com/{module}-{version}-ark-biz.jar"),
                "env": [{"name": "MODULE_VERSION", "value": version}],
            }],
        },
        "status": {"phase": "Pending"},
    })
}

/// The same, bound.
pub fn bound(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = json!(node);
    pod
}

/// A Pod that is none of ours.
pub fn ordinary_pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "web", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "nginx", "image": "nginx"}]},
    })
}

pub fn node(value: &Value) -> Change {
    let node: Node = serde_json::from_value(value.clone()).expect("a Node");
    Change::Node(NodeUpdate::from(&node))
}

pub fn pod(value: &Value) -> Change {
    let pod: Pod = serde_json::from_value(value.clone()).expect("a Pod");
    Change::Pod(PodUpdate::from(&pod))
}

/// A state with both lists complete.
pub fn state(nodes: &[Value], pods: &[Value]) -> State {
    let mut state = State::default();
    for value in nodes {
        state.apply(node(value));
    }
    for value in pods {
        state.apply(pod(value));
    }
    state.apply(Change::ListEnds(Source::Nodes, Instant::now()));
    state.apply(Change::ListEnds(Source::Pods, Instant::now()));
    state
}

/// An extender over a cache that the test fills.
pub struct Rig {
    pub view: CacheView,
    pub policy: watch::Sender<Arc<Versioned<Policy>>>,
    pub registry: Registry,
    pub extender: Arc<Extender>,
    pub router: Router,
}

pub const LIMITS: Limits = Limits {
    deadline: Duration::from_secs(20),
    body: 64 << 20,
    stale_after: Duration::from_secs(30),
    reservation: Duration::from_secs(15),
};

impl Rig {
    pub fn new(state: State) -> Self {
        Self::with_limits(state, LIMITS)
    }

    pub fn with_limits(state: State, limits: Limits) -> Self {
        Self::build(state, limits, None)
    }

    pub fn with_client(state: State, client: kube::Client) -> Self {
        Self::build(state, LIMITS, Some(client))
    }

    pub fn build(state: State, limits: Limits, client: Option<kube::Client>) -> Self {
        Self::assemble(state, limits, client, None)
    }

    /// One that binds beside others.
    pub fn sharing(state: State, client: kube::Client, shared: SharedPlacements) -> Self {
        Self::assemble(state, LIMITS, Some(client), Some(shared))
    }

    fn assemble(
        state: State,
        limits: Limits,
        client: Option<kube::Client>,
        shared: Option<SharedPlacements>,
    ) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let view = CacheView::default();
        view.publish(state);
        let versioned = Versioned { generation: 1, hash: "h".to_owned(), policy: Policy::default() };
        let (policy, current) = watch::channel(Arc::new(versioned));
        let mut extender = Extender::new(view.clone(), current, metrics, limits).sharing(shared);
        extender.client = client;
        let extender = Arc::new(extender);
        Self { view, policy, registry, router: router(Arc::clone(&extender)), extender }
    }

    pub fn set_policy(&self, text: &str) {
        self.set_policy_as(2, text);
    }

    pub fn set_policy_as(&self, generation: u64, text: &str) {
        let policy = policy::file::load(text).unwrap_or_else(|problems| panic!("{problems:?}")).policy;
        self.policy.send_replace(Arc::new(Versioned { generation, hash: "g".to_owned(), policy }));
    }

    pub fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("text");
        text
    }

    pub async fn send(&self, verb: &str, body: impl Into<Body>) -> (StatusCode, String) {
        self.call(Request::post(format!("/scheduler/{verb}")).body(body.into()).expect("request")).await
    }

    pub async fn call(&self, request: Request<Body>) -> (StatusCode, String) {
        let answer = self.router.clone().oneshot(request).await.expect("answer");
        let status = answer.status();
        let bytes = answer.into_body().collect().await.expect("body").to_bytes();
        (status, String::from_utf8(bytes.to_vec()).expect("text"))
    }

    /// A filter call with names; the answer must be HTTP 200.
    pub async fn filter(&self, pod: &Value, names: &[&str]) -> Value {
        let body = json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string();
        let (status, text) = self.send("filter", body).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// A prioritize call with names; the answer must be HTTP 200.
    pub async fn prioritize(&self, pod: &Value, names: &[&str]) -> Value {
        let body = json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string();
        let (status, text) = self.send("prioritize", body).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// What an API server answers.
pub fn answered(code: u16, answer: &Value) -> Response<Body> {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(Body::from(answer.to_string())).expect("an answer")
}

/// What an API server answers when it does not do it.
pub fn failure(code: u16, message: &str) -> Value {
    let reason = if code == 404 { "NotFound" } else { "Other" };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code})
}

/// Asks to bind a Pod. The error text; empty when it is bound.
pub async fn bind(rig: &Rig, pod: &str, node: &str) -> String {
    let uid = format!("uid-{pod}");
    let body = json!({"PodName": pod, "PodNamespace": "biz", "PodUID": uid, "Node": node}).to_string();
    let (status, text) = rig.send("bind", body).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    answer["Error"].as_str().expect("a text").to_owned()
}
