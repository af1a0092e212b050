//! `POST /scheduler/bind`: binds a Pod after one more look at the base.
//!
//! Between `filter` and the binding other Pods are placed. Here the look and the record of it happen under one lock, and
//! the record stays until the Pod is seen on its base; so rules that no count of slots expresses hold exactly. Calls are
//! answered alike when repeated: kube-scheduler and its users must not see a second binding as a failure.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use policy::contract::{ModulePod, PodKind, classify};
use serde_json::json;
use tokio::time::timeout_at;

use super::{Extender, Fault, Snapshot, json as answered};
use crate::placement::{Judge, module_pod};
use crate::reservations::Reservations;
use crate::shared::{Page, Placement, SharedError, SharedPlacements};
use crate::wire::BindQuestion;

const VERB: &str = "bind";
/// Names and a UID; more is no such request.
const BODY_LIMIT: usize = 64 * 1024;

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
    let asked = BindQuestion::parse(&body)?;
    let api: Api<Pod> = Api::namespaced(client.clone(), &asked.namespace);
    let late = |_| Fault::Late;
    let (kind, bound) = match known(extender, &asked)? {
        Some(known) => known,
        None => timeout_at(until, fetch(&api, &asked.name, &asked.uid)).await.map_err(late)??,
    };
    match bound.as_deref() {
        Some(node) if node == asked.node => return Ok(()),
        Some(_) => return Err(Fault::BoundElsewhere),
        None => {}
    }
    let records = match &extender.shared {
        Some(shared) => {
            timeout_at(until, commit_shared(extender, shared, &kind, &asked)).await.map_err(late)??
        }
        None => commit(extender, &kind, &asked)?,
    };
    // When the time is up the binding may still happen: what was recorded stays until it is seen or too old.
    match timeout_at(until, post(client, &api, &asked)).await.map_err(late)? {
        Ok(()) => Ok(()),
        Err(Failed::Doubtful(fault)) => Err(fault),
        Err(Failed::Surely(fault)) => {
            if let Some(number) = records.own {
                extender.change_reservations(|all| all.unbind(&asked.uid, number));
            }
            if let (Some(shared), Some(at)) = (&extender.shared, records.shared) {
                let withdraw = |page: &mut Page| page.withdraw(&asked.uid, &asked.node, at);
                // Where that fails it ends by time.
                let _ = timeout_at(until, change(shared, &asked.node, withdraw)).await;
            }
            Err(fault)
        }
        Err(Failed::Forever(fault)) => {
            extender.change_reservations(|all| all.give_up(&asked.uid, &asked.node));
            if let Some(shared) = &extender.shared {
                let all = |placement: &Placement| placement.uid == asked.uid && placement.node == asked.node;
                let give_up = |page: &mut Page| page.prune(Timestamp::now(), all);
                let _ = timeout_at(until, change(shared, &asked.node, give_up)).await;
            }
            Err(fault)
        }
    }
}

/// Where one binding is recorded. An earlier one of the same Pod has records of its own, and may happen though this one is
/// refused.
struct Records {
    /// In this process.
    own: Option<u64>,
    /// In the Lease: when it was written.
    shared: Option<Timestamp>,
}

/// What a Pod is, and the node it is bound to.
type Known = (PodKind, Option<Arc<str>>);

/// The Pod as the cache has it; `None` where it has none of this UID.
fn known(extender: &Extender, asked: &BindQuestion) -> Result<Option<Known>, Fault> {
    let snapshot = extender.snapshot(Instant::now())?;
    let pod = snapshot.pods.get(&format!("{}/{}", asked.namespace, asked.name));
    let pod = pod.filter(|pod| *pod.uid == *asked.uid);
    Ok(pod.map(|pod| (PodKind::Module(Box::new(ModulePod::clone(pod))), pod.node_name.clone())))
}

async fn fetch(api: &Api<Pod>, name: &str, uid: &str) -> Result<Known, Fault> {
    let pod = match api.get(name).await {
        Ok(pod) => pod,
        // Any other 404 is not the API server's word.
        Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => {
            return Err(Fault::PodGone);
        }
        Err(error) => return Err(Fault::Api(error.to_string())),
    };
    if pod.metadata.uid.as_deref() != Some(uid) {
        return Err(Fault::PodGone);
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).map(Arc::from);
    Ok((classify(&pod), node))
}

/// Looks at the base once more and records the placement, as one step.
fn commit(extender: &Extender, kind: &PodKind, asked: &BindQuestion) -> Result<Records, Fault> {
    let now = Instant::now();
    let policy = extender.policy();
    let (mut reservations, snapshot) = extender.settled(now)?;
    reservations.release(&asked.uid);
    let judge = Judge::new(kind, &snapshot, &policy.policy, &reservations);
    judge.confirm(&asked.node).map_err(|refusal| Fault::Refused(refusal.text()))?;
    let own = module_pod(kind).map(|pod| reservations.bind(pod, &asked.node, &snapshot, now));
    extender.metrics.reservations(reservations.len());
    Ok(Records { own, shared: None })
}

/// The same where other extenders bind too: the look is at what the API server knows, and the record is in a Lease.
async fn commit_shared(
    extender: &Extender,
    shared: &SharedPlacements,
    kind: &PodKind,
    asked: &BindQuestion,
) -> Result<Records, Fault> {
    let BindQuestion { name, namespace, uid, node } = asked;
    let _turn = shared.turn(node).await.ok_or(Fault::Internal)?;
    let written = loop {
        let mut page = shared.read(node).await.map_err(of_shared)?;
        let bound = shared.pods_on(node).await.map_err(of_shared)?;
        let now = Timestamp::now();
        let (mut coming, mut gone): (Vec<Arc<ModulePod>>, HashSet<String>) = Default::default();
        for placement in page.on(node, uid, now) {
            let is_known = |pods: &[Arc<ModulePod>]| pods.iter().any(|pod| *pod.uid == *placement.uid);
            if is_known(&bound) || is_known(&coming) || gone.contains(&placement.uid) {
                continue;
            }
            match coming_pod(extender, placement).await? {
                Some(pod) => coming.push(pod),
                None => _ = gone.insert(placement.uid.clone()),
            }
        }
        let policy = extender.policy();
        let snapshot = extender.snapshot(Instant::now())?;
        // What this process promised is in the Lease too.
        let nobody = Reservations::new(Duration::ZERO);
        let judge = Judge::new(kind, &snapshot, &policy.policy, &nobody);
        judge.confirm_among(node, &bound, &coming).map_err(|refusal| Fault::Refused(refusal.text()))?;
        page.prune(now, |placement| {
            let settled = gone.contains(&placement.uid) || bound.iter().any(|pod| *pod.uid == *placement.uid);
            (placement.node == *node && settled) || is_bound(&snapshot, placement)
        });
        let (uid, name, namespace, node) = (uid.clone(), name.clone(), namespace.clone(), node.clone());
        page.add(Placement { uid, namespace, name, node, at: now, earlier: Vec::new() })
            .map_err(of_shared)?;
        if shared.write(page).await.map_err(of_shared)? {
            break now;
        }
    };
    let mut reservations = extender.reservations();
    let snapshot = extender.cache.snapshot();
    let own = module_pod(kind).map(|pod| reservations.bind(pod, node, &snapshot, Instant::now()));
    extender.metrics.reservations(reservations.len());
    Ok(Records { own, shared: Some(written) })
}

/// Whether the cache shows a Pod on a node, where it was placed or elsewhere: then so does every list from now on, and no
/// other binding of it can happen.
fn is_bound(snapshot: &Snapshot, placement: &Placement) -> bool {
    let pod = snapshot.pods.get(&format!("{}/{}", placement.namespace, placement.name));
    pod.is_some_and(|pod| *pod.uid == *placement.uid && pod.node_name.is_some())
}

/// The Pod of a placement that may still be bound there; `None` where there is no such Pod any more, where it has ended,
/// or went elsewhere. The cache may have it for longer than it lives, which only keeps its place a while longer.
async fn coming_pod(extender: &Extender, placement: &Placement) -> Result<Option<Arc<ModulePod>>, Fault> {
    let Placement { uid, namespace, name, node, .. } = placement;
    let snapshot = extender.snapshot(Instant::now())?;
    let known = snapshot.pods.get(&format!("{namespace}/{name}")).filter(|pod| *pod.uid == **uid);
    let is_elsewhere = |bound: Option<&str>| bound.is_some_and(|bound| bound != node);
    if let Some(pod) = known {
        return Ok((!is_elsewhere(pod.node_name.as_deref())).then(|| Arc::clone(pod)));
    }
    let client = extender.client.as_ref().ok_or(Fault::NoClient)?;
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    match fetch(&api, name, uid).await {
        Ok((PodKind::Module(pod), bound)) if !pod.terminal && !is_elsewhere(bound.as_deref()) => {
            Ok(Some(Arc::from(pod)))
        }
        Ok(_) | Err(Fault::PodGone) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Changes the Lease of a node.
async fn change(shared: &SharedPlacements, node: &str, change: impl Fn(&mut Page)) -> Result<(), Fault> {
    let _turn = shared.turn(node).await.ok_or(Fault::Internal)?;
    loop {
        let mut page = shared.read(node).await.map_err(of_shared)?;
        change(&mut page);
        if shared.write(page).await.map_err(of_shared)? {
            return Ok(());
        }
    }
}

fn of_shared(error: SharedError) -> Fault {
    match error {
        SharedError::Api(kube::Error::Api(status)) => Fault::Api(status.message.clone()),
        error => Fault::Api(error.to_string()),
    }
}

/// A Pod that was not bound.
enum Failed {
    /// And will not be by this binding.
    Surely(Fault),
    /// And will not be by any: it is gone or elsewhere.
    Forever(Fault),
    /// As far as we know.
    Doubtful(Fault),
}

async fn post(client: &Client, api: &Api<Pod>, asked: &BindQuestion) -> Result<(), Failed> {
    match binding(client, asked).await {
        Ok(()) => Ok(()),
        // Somebody else's word may be behind it, of a proxy or a webhook: the Pod itself tells.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => {
            match fetch(api, &asked.name, &asked.uid).await {
                Ok((_, Some(bound))) if *bound == *asked.node => Ok(()),
                Ok((_, Some(_))) => Err(Failed::Forever(Fault::BoundElsewhere)),
                Ok((_, None)) => Err(Failed::Surely(Fault::Api(status.message.clone()))),
                Err(Fault::PodGone) => Err(Failed::Forever(Fault::PodGone)),
                Err(fault) => Err(Failed::Doubtful(fault)),
            }
        }
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
            Err(Failed::Surely(Fault::Api(status.message.clone())))
        }
        // Any other failure may have come after the binding.
        Err(kube::Error::Api(status)) => Err(Failed::Doubtful(Fault::Api(status.message.clone()))),
        Err(error) => Err(Failed::Doubtful(Fault::Api(error.to_string()))),
    }
}

async fn binding(client: &Client, asked: &BindQuestion) -> kube::Result<()> {
    let BindQuestion { name, namespace, uid, node } = asked;
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
