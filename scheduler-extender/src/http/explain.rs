//! `GET /explain?namespace=&pod=`: why a Pod goes or does not go to each base, for people. Changes nothing.

use std::cmp::Reverse;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use policy::contract::PodKind;
use serde::{Deserialize, Serialize};

use super::Extender;
use crate::cache::{NodeKind, Snapshot};
use crate::placement::{Judge, Scorer, trace_rules};

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
    nodes: Vec<NodeExplanation>,
}

#[derive(Debug, Serialize)]
struct NodeExplanation {
    node: String,
    fits: bool,
    score: Option<i64>,
    /// Code and text of the first rule that refuses.
    reason: Option<&'static str>,
    text: Option<String>,
    /// What every rule says: `ok`, or its text.
    rules: Vec<RuleExplanation>,
}

#[derive(Debug, Serialize)]
struct RuleExplanation {
    rule: &'static str,
    says: String,
}

pub(super) async fn handle(
    State(extender): State<Arc<Extender>>,
    Query(Asked { namespace, pod }): Query<Asked>,
    headers: HeaderMap,
) -> Response {
    let snapshot = match extender.snapshot(Instant::now()) {
        Ok(snapshot) => snapshot,
        Err(fault) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{fault}\n")).into_response(),
    };
    let Some(known) = snapshot.pods.get(&format!("{namespace}/{pod}")) else {
        let text = "no such module Pod: it is not there, has finished, or is no module Pod\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    let explanation = explain(&extender, &snapshot, &PodKind::Module(Box::new((**known).clone())));
    let wants_json =
        headers.get(header::ACCEPT).is_some_and(|accept| accept.as_bytes() == b"application/json");
    if wants_json { Json(explanation).into_response() } else { table(&explanation).into_response() }
}

fn explain(extender: &Extender, snapshot: &Snapshot, kind: &PodKind) -> Explanation {
    let policy = extender.policy();
    let reservations = extender.reservations();
    let judge = Judge::new(kind, snapshot, &policy.policy, &reservations);
    let scorer = judge.scorer(None);
    let pod = crate::placement::module_pod(kind);
    let bases = snapshot
        .nodes
        .iter()
        .filter(|(_, entry)| matches!(entry.kind, Some(NodeKind::Base(_) | NodeKind::Malformed(_))));
    let mut nodes: Vec<NodeExplanation> = bases
        .map(|(name, entry)| {
            let verdict = judge.judge(name, None);
            let rules = pod.and_then(|pod| trace_rules(pod, entry, &policy.policy)).unwrap_or_default();
            let says = |result: Result<(), policy::Reason>| {
                result.map_or_else(|reason| reason.text(), |()| "ok".to_owned())
            };
            NodeExplanation {
                node: name.to_string(),
                fits: verdict.is_ok(),
                score: verdict
                    .is_ok()
                    .then(|| scorer.as_ref().map_or(0, |scorer: &Scorer<'_>| scorer.score(name))),
                reason: verdict.as_ref().err().map(crate::placement::Refusal::code),
                text: verdict.as_ref().err().map(crate::placement::Refusal::text),
                rules: rules
                    .into_iter()
                    .map(|(rule, result)| RuleExplanation { rule, says: says(result) })
                    .collect(),
            }
        })
        .collect();
    nodes.sort_by(|a, b| (Reverse(a.score), &a.node).cmp(&(Reverse(b.score), &b.node)));
    Explanation {
        namespace: pod.map(|pod| pod.namespace.to_string()).unwrap_or_default(),
        pod: pod.map(|pod| pod.name.to_string()).unwrap_or_default(),
        node: pod.and_then(|pod| pod.node_name.as_ref()).map(ToString::to_string),
        policy_generation: policy.generation,
        policy_hash: policy.hash.clone(),
        nodes,
    }
}

fn table(explanation: &Explanation) -> String {
    let Explanation { namespace, pod, node, policy_generation, policy_hash, nodes } = explanation;
    let mut text = String::new();
    let place = node.as_ref().map_or("not bound".to_owned(), |node| format!("bound to {node}"));
    let fitting = nodes.iter().filter(|node| node.fits).count();
    let width = nodes.iter().map(|node| node.node.len()).max().unwrap_or(0).max("NODE".len());
    // Writing to a String cannot fail.
    let _ =
        writeln!(text, "Pod {namespace}/{pod}, {place}; policy generation {policy_generation} {policy_hash}");
    let _ = writeln!(text, "{fitting} of {} virtual nodes fit\n", nodes.len());
    let _ = writeln!(text, "{:width$}  SCORE  REASON", "NODE");
    for NodeExplanation { node, score, reason, text: why, .. } in nodes {
        let score = score.map_or("-".to_owned(), |score| score.to_string());
        let why = why.as_deref().map(|why| format!("{}: {why}", reason.unwrap_or_default()));
        let line = format!("{node:width$}  {score:>5}  {}", why.unwrap_or_default());
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
