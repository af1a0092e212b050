//! `POST /scheduler/preempt`: on which of these nodes would an eviction help this Pod.
//!
//! kube-scheduler tries evictions with its own filters only. Without this verb it would evict for a place that our filter
//! refuses afterwards. We only take nodes away, never add nodes or victims. There is no `Error` in the answer, so a fault
//! is a 503, and nothing is evicted.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use policy::contract::classify;

use super::{Extender, Fault, Request, STRIDE, serve, unavailable};
use crate::placement::Judge;
use crate::wire::{PreemptAnswer, PreemptQuestion};

const VERB: &str = "preempt";

pub(super) async fn handle(State(extender): State<Arc<Extender>>, body: Body) -> Response {
    serve(extender, VERB, body, answer, unavailable).await
}

fn answer(extender: &Extender, body: &[u8], request: &mut Request) -> Result<Vec<u8>, Fault> {
    let PreemptQuestion { pod, candidates } = PreemptQuestion::parse(body)?;
    let policy = extender.policy();
    let kind = classify(&pod);
    let (reservations, snapshot) = extender.settled(Instant::now())?;
    let judge = Judge::new(&kind, &snapshot, &policy.policy, &reservations);
    let mut answer = PreemptAnswer::default();
    for (index, candidate) in candidates.into_iter().enumerate() {
        if index % STRIDE == STRIDE - 1 && Instant::now() >= request.until {
            return Err(Fault::Late);
        }
        let victims: Vec<&str> = candidate.victims.iter().map(String::as_str).collect();
        if judge.would_fit_without(&candidate.node, &victims) {
            answer.candidates.push(candidate);
        }
    }
    drop(reservations);
    answer.to_json().map_err(|_| Fault::Internal)
}
