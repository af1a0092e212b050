//! `POST /scheduler/bind`: binds a Pod after one more look at the base.
//!
//! Between `filter` and the binding other Pods are placed. Here the look and the record of it happen under one lock, and
//! the record stays until the Pod is seen on its base; so rules that no count of slots expresses hold exactly. Calls are
//! answered alike when repeated: kube-scheduler and its users must not see a second binding as a failure.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use policy::contract::{ModulePod, PodKind, classify};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout_at;

use super::{Extender, Fault, json as answered};
use crate::placement::{Judge, module_pod};

const VERB: &str = "bind";
/// Names and a UID; more is no such request.
const BODY_LIMIT: usize = 64 * 1024;

#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(rename = "PodName", alias = "podName", alias = "podname")]
    name: String,
    #[serde(rename = "PodNamespace", alias = "podNamespace", alias = "podnamespace")]
    namespace: String,
    #[serde(rename = "PodUID", alias = "podUID", alias = "poduid")]
    uid: String,
    #[serde(rename = "Node", alias = "node")]
    node: String,
}

pub(super) async fn handle(State(extender): State<Arc<Extender>>, body: Body) -> Response {
    let started = Instant::now();
    let until = tokio::time::Instant::now() + extender.limits.deadline;
    let result = bind(&extender, body, until).await;
    let outcome = result.as_ref().map_or_else(Fault::code, |()| "answered");
    extender.metrics.request(VERB, outcome, started.elapsed());
    let error = result.err().map(|fault| {
        tracing::warn!(verb = VERB, %fault, "not bound");
        fault.plain()
    });
    answered(json!({"Error": error.unwrap_or_default()}).to_string().into_bytes())
}

async fn bind(extender: &Extender, body: Body, until: tokio::time::Instant) -> Result<(), Fault> {
    let client = extender.client.as_ref().ok_or(Fault::NoClient)?;
    let body = timeout_at(until, axum::body::to_bytes(body, BODY_LIMIT)).await.map_err(|_| Fault::Late)?;
    let body = body.map_err(|_| Fault::Body)?;
    let asked: Asked = serde_json::from_slice(&body).map_err(crate::wire::QuestionError::from)?;
    let api: Api<Pod> = Api::namespaced(client.clone(), &asked.namespace);
    let late = |_| Fault::Late;
    let (kind, bound) = match known(extender, &asked)? {
        Some(known) => known,
        None => timeout_at(until, fetch(&api, &asked)).await.map_err(late)??,
    };
    match bound.as_deref() {
        Some(node) if node == asked.node => return Ok(()),
        Some(_) => return Err(Fault::BoundElsewhere),
        None => {}
    }
    commit(extender, &kind, &asked)?;
    // When the time is up the binding may still happen: what was recorded stays until it is seen or too old.
    match timeout_at(until, post(client, &asked)).await.map_err(late)? {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let (_, bound) =
                timeout_at(until, fetch(&api, &asked)).await.map_err(late)?.inspect_err(|fault| {
                    if matches!(fault, Fault::PodGone) {
                        extender.reservations().release(&asked.uid);
                    }
                })?;
            if bound.as_deref() == Some(&asked.node) {
                return Ok(());
            }
            extender.reservations().release(&asked.uid);
            Err(if bound.is_some() { Fault::BoundElsewhere } else { Fault::Api(status.message.clone()) })
        }
        Err(kube::Error::Api(status)) => {
            // Any other failure is doubtful: it may have come after the binding.
            if (400..500).contains(&status.code) {
                extender.reservations().release(&asked.uid);
            }
            Err(Fault::Api(status.message.clone()))
        }
        Err(error) => Err(Fault::Api(error.to_string())),
    }
}

/// What a Pod is, and the node it is bound to.
type Known = (PodKind, Option<Arc<str>>);

/// The Pod as the cache has it; `None` where it has none of this UID.
fn known(extender: &Extender, asked: &Asked) -> Result<Option<Known>, Fault> {
    let snapshot = extender.snapshot(Instant::now())?;
    let pod = snapshot.pods.get(&format!("{}/{}", asked.namespace, asked.name));
    let pod = pod.filter(|pod| *pod.uid == *asked.uid);
    Ok(pod.map(|pod| (PodKind::Module(Box::new(ModulePod::clone(pod))), pod.node_name.clone())))
}

async fn fetch(api: &Api<Pod>, asked: &Asked) -> Result<Known, Fault> {
    let pod = match api.get(&asked.name).await {
        Ok(pod) => pod,
        Err(kube::Error::Api(status)) if status.code == 404 => return Err(Fault::PodGone),
        Err(error) => return Err(Fault::Api(error.to_string())),
    };
    if pod.metadata.uid.as_deref() != Some(&asked.uid) {
        return Err(Fault::PodGone);
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).map(Arc::from);
    Ok((classify(&pod), node))
}

/// Looks at the base once more and records the placement, as one step.
fn commit(extender: &Extender, kind: &PodKind, asked: &Asked) -> Result<(), Fault> {
    let now = Instant::now();
    let policy = extender.policy();
    let mut reservations = extender.reservations();
    // Loaded under the lock: what another call recorded and was seen since is in it.
    let snapshot = extender.snapshot(now)?;
    reservations.settle(&snapshot, now);
    reservations.release(&asked.uid);
    let judge = Judge::new(kind, &snapshot, &policy.policy, &reservations);
    judge.confirm(&asked.node).map_err(|refusal| Fault::Refused(refusal.text()))?;
    if let Some(pod) = module_pod(kind) {
        reservations.reserve(pod, &asked.node, now);
    }
    extender.metrics.reservations(reservations.len());
    Ok(())
}

async fn post(client: &Client, asked: &Asked) -> kube::Result<()> {
    let Asked { name, namespace, uid, node } = asked;
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let answer: kube::Result<serde_json::Value> =
        api.create_subresource("binding", name, &PostParams::default(), &binding).await;
    answer.map(drop)
}
