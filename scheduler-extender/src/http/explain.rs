//! `GET /explain?namespace=&pod=`: why a Pod goes or does not go to each base, for people. Changes nothing.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use policy::contract::{ModulePod, PodKind};
use policy::explain::{Verdict, table};
use serde::{Deserialize, Serialize};

use super::{Extender, Fault};
use crate::placement::Judge;

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    namespace: String,
    pod: String,
}

/// What is answered as JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    namespace: String,
    pod: String,
    /// Where the Pod is bound to already.
    node: Option<String>,
    policy_generation: u64,
    policy_hash: String,
    nodes: Vec<Verdict>,
}

pub(super) async fn handle(
    State(extender): State<Arc<Extender>>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Response {
    let turn = Arc::clone(&extender.explaining).acquire_owned();
    let Ok(Ok(turn)) = tokio::time::timeout(extender.limits.deadline, turn).await else {
        let text = "other Pods are being explained, try again\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let wants_json =
        headers.get(header::ACCEPT).is_some_and(|accept| accept.as_bytes() == b"application/json");
    // Every rule for every base takes long: neither the runtime nor the filter waits for it.
    let walk = move || {
        let _turn = turn;
        match explain(&extender, &asked) {
            Ok(explanation) if wants_json => Json(explanation).into_response(),
            Ok(explanation) => readable(&explanation).into_response(),
            Err(refusal) => refusal.into_response(),
        }
    };
    tokio::task::spawn_blocking(walk).await.unwrap_or_else(|_| {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", Fault::Internal)).into_response()
    })
}

fn explain(extender: &Extender, asked: &Asked) -> Result<Explanation, (StatusCode, String)> {
    let policy = extender.policy();
    let unavailable = |fault: Fault| (StatusCode::SERVICE_UNAVAILABLE, format!("{fault}\n"));
    let (reservations, snapshot) = extender
        .settled(Instant::now())
        .map(|(reservations, snapshot)| (reservations.clone(), snapshot))
        .map_err(unavailable)?;
    let Some(pod) = snapshot.pods.get(&format!("{}/{}", asked.namespace, asked.pod)) else {
        let text = "no such module Pod: it is not there, has finished, or is no module Pod\n";
        return Err((StatusCode::NOT_FOUND, text.to_owned()));
    };
    let kind = PodKind::Module(Box::new(ModulePod::clone(pod)));
    let mut nodes = Judge::new(&kind, &snapshot, &policy.policy, &reservations).explain();
    nodes.sort_by(|a, b| (Reverse(a.score), &a.node).cmp(&(Reverse(b.score), &b.node)));
    Ok(Explanation {
        namespace: pod.namespace.to_string(),
        pod: pod.name.to_string(),
        node: pod.node_name.as_ref().map(ToString::to_string),
        policy_generation: policy.generation,
        policy_hash: policy.hash.clone(),
        nodes,
    })
}

fn readable(explanation: &Explanation) -> String {
    let Explanation { namespace, pod, node, policy_generation, policy_hash, nodes } = explanation;
    let place = node.as_ref().map_or("not bound".to_owned(), |node| format!("bound to {node}"));
    let fitting = nodes.iter().filter(|node| node.fits).count();
    format!(
        "Pod {namespace}/{pod}, {place}; policy generation {policy_generation} {policy_hash}\n\
         {fitting} of {} virtual nodes fit\n\n{}",
        nodes.len(),
        table(nodes, false)
    )
}
