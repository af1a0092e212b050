//! `POST /scheduler/prioritize`: how good each of these nodes is for this Pod.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;

use policy::contract::{ModulePod, classify};

use super::{Extender, Fault, Request, STRIDE, serve, unavailable};
use crate::placement::{Judge, module_pod};
use crate::wire::{Question, priorities};

const VERB: &str = "prioritize";

pub(super) async fn handle(State(extender): State<Arc<Extender>>, body: Body) -> Response {
    serve(extender, VERB, body, answer, unavailable).await
}

fn answer(extender: &Extender, body: &[u8], request: &mut Request) -> Result<Vec<u8>, Fault> {
    let now = Instant::now();
    let policy = extender.policy();
    if let Some(prepared) = extender.prepared().as_ref()
        && let Some(answer) = prepared.to(body, &policy, now)
    {
        extender.note_question(VERB, prepared.nodes, false);
        return Ok(answer.to_vec());
    }
    let question = Question::parse(body)?;
    extender.note_question(VERB, question.names.len(), !question.by_name);
    let kind = classify(&question.pod);
    let (reservations, snapshot) = extender.settled(now)?;
    let bound =
        |pod: &ModulePod| snapshot.pods.get(&pod.key()).is_some_and(|known| known.node_name.is_some());
    let mut kinds = extender.kinds();
    let mut memory = module_pod(&kind).filter(|pod| !bound(pod)).and_then(|pod| kinds.memory(pod, &policy));
    let scorer = Judge::new(&kind, &snapshot, &policy.policy, &reservations).scorer();
    let mut points = Vec::with_capacity(question.names.len());
    for (index, host) in question.names.iter().enumerate() {
        if index % STRIDE == STRIDE - 1 && Instant::now() >= request.until {
            return Err(Fault::Late);
        }
        // What we know nothing of is worth 0, as what is no base.
        let known = scorer.as_ref().zip(snapshot.nodes.get(host));
        points.push(known.map_or(0, |(scorer, entry)| scorer.score(host, entry, memory.as_mut())));
    }
    drop(scorer);
    drop(kinds);
    drop(reservations);
    priorities(&question.names, &points).map_err(|_| Fault::Internal)
}
