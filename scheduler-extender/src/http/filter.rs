//! `POST /scheduler/filter`: which of these nodes may take this Pod.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use policy::contract::classify;

use super::prepared::Prepared;
use super::{Extender, Fault, Request, STRIDE, json, serve};
use crate::cache::{NodeSet, Snapshot};
use crate::kinds::Memory;
use crate::placement::{Judge, Refusal, Scorer, module_pod};
use crate::reservations::Reservations;
use crate::wire::{self, FilterAnswer, Question};

const VERB: &str = "filter";

pub(super) async fn handle(State(extender): State<Arc<Extender>>, body: Body) -> Response {
    // Only texts go into it, so this cannot fail; an empty body would still be an error to kube-scheduler.
    let of_fault =
        |fault: &Fault| json(FilterAnswer::fault(&fault.to_string()).to_json().unwrap_or_default());
    serve(extender, VERB, body, answer, of_fault).await
}

fn answer(extender: &Extender, body: &[u8], request: &mut Request) -> Result<Vec<u8>, Fault> {
    let question = Question::parse(body)?;
    let now = Instant::now();
    if request.first {
        extender.note_question(VERB, question.names.len(), !question.by_name);
    }
    let policy = extender.policy();
    let kind = classify(&question.pod);
    let Some(pod) = module_pod(&kind) else {
        let snapshot = extender.snapshot(now)?;
        let none = Reservations::new(Duration::ZERO);
        let judge = Judge::new(&kind, &snapshot, &policy.policy, &none);
        return decide(&question, &snapshot, &judge, None, None, request)?
            .0
            .to_json()
            .map_err(|_| Fault::Internal);
    };
    if request.first {
        extender.note_call(pod, question.names.len(), now);
    }
    // Held until the placement is recorded: two Pods must not both find the last place free.
    let (mut reservations, snapshot) = extender.settled(now)?;
    // What it was promised before counts for nothing: it asks anew.
    reservations.release(&pod.uid);
    let judge = Judge::new(&kind, &snapshot, &policy.policy, &reservations);
    // A Pod that is bound already is among the Pods of a node, where it does not count against itself: not of a kind.
    let bound = snapshot.pods.get(&pod.key()).is_some_and(|known| known.node_name.is_some());
    let mut kinds = extender.kinds();
    let memory = if bound { None } else { kinds.memory(pod, &policy) };
    let scorer = if question.names.len() > 1 { judge.scorer() } else { None };
    let (mut answer, found) = decide(&question, &snapshot, &judge, memory, scorer.as_ref(), request)?;
    drop(kinds);
    if answer.names.is_empty() {
        extender.refused(pod, &snapshot, &policy, now);
    } else {
        extender.placed(&pod.uid);
    }
    if policy.policy.decisive {
        keep_best(&mut answer, &found.scores);
    }
    drop(scorer);
    match answer.names.as_slice() {
        [node] => reservations.reserve(pod, node, &snapshot, now),
        _ => reservations.claim(pod, found.fitting, &snapshot, now).map_err(|_| Fault::Reserved)?,
    }
    extender.metrics.reservations(reservations.len());
    drop(reservations);
    let list = answer.list().map_err(|_| Fault::Internal)?;
    let json = answer.to_json_with(list.as_deref()).map_err(|_| Fault::Internal)?;
    if answer.names.len() > 1
        && let Some(list) = list
    {
        let next = wire::priorities(&answer.names, &found.scores).map_err(|_| Fault::Internal)?;
        let prepared = Prepared::new(question.pod_text, list, answer.names.len(), next, &policy, now);
        *extender.prepared() = Some(prepared);
    }
    Ok(json)
}

/// Leaves the node with the best score; of equals the first, because kube-scheduler turns the order from call to call.
fn keep_best(answer: &mut FilterAnswer<'_>, scores: &[i64]) {
    let rated = scores.iter().enumerate().map(|(index, score)| (*score, Reverse(index)));
    let Some((_, Reverse(best))) = rated.max() else { return };
    let only = |index: usize| index == best;
    let mut index = 0..;
    answer.names.retain(|_| index.next().is_some_and(only));
    if let Some(objects) = &mut answer.objects {
        let mut index = 0..;
        objects.retain(|_| index.next().is_some_and(only));
    }
}

/// What was found besides the verdicts.
#[derive(Default)]
struct Found {
    /// The fitting nodes, for a claim.
    fitting: NodeSet,
    /// A score for each fitting node, where they are scored.
    scores: Vec<i64>,
}

/// The verdict on each name, once, in the order of the question.
fn decide<'q>(
    question: &'q Question<'_>,
    snapshot: &Snapshot,
    judge: &Judge<'_>,
    mut memory: Option<Memory<'_>>,
    scorer: Option<&Scorer<'_>>,
    request: &mut Request,
) -> Result<(FilterAnswer<'q>, Found), Fault> {
    let mut found = Found::default();
    let mut answer =
        FilterAnswer { objects: question.objects.as_ref().map(|_| Vec::new()), ..FilterAnswer::default() };
    let (mut fits, mut is_awaited) = (0, false);
    let mut refusals: Vec<Group> = Vec::new();
    let (mut seen, mut strangers) = (NodeSet::default(), HashSet::new());
    let now = Instant::now();
    // Many at once: the memory answers them side by side, but none while a node is thought about.
    let look_up =
        |names: &[Cow<'_, str>]| -> Vec<_> { names.iter().map(|name| snapshot.nodes.get(name)).collect() };
    let entries = question.names.chunks(STRIDE).flat_map(look_up);
    for (index, (name, entry)) in question.names.iter().zip(entries).enumerate() {
        if index % STRIDE == STRIDE - 1 && Instant::now() >= request.until {
            return Err(Fault::Late);
        }
        let name = name.as_ref();
        let is_new = entry.map_or_else(|| strangers.insert(name), |entry| seen.insert(entry.mark));
        if !is_new {
            continue;
        }
        let verdict = entry.ok_or(Refusal::UnknownNode);
        match verdict.and_then(|entry| judge.judge(name, entry, memory.as_mut()).map(|()| entry)) {
            Ok(entry) => {
                fits += 1;
                found.fitting.insert(entry.mark);
                if let Some(scorer) = scorer {
                    found.scores.push(scorer.score(name, entry, memory.as_mut()));
                }
                answer.names.push(name);
                let object = question.objects.as_ref().and_then(|objects| objects.get(index));
                if let (Some(kept), Some(object)) = (&mut answer.objects, object) {
                    kept.push(object);
                }
            }
            Err(refusal) => {
                if refusal.may_pass() && !is_awaited {
                    is_awaited = entry.is_some_and(|entry| judge.is_awaited(name, entry, now));
                }
                let list = if refusal.resolvable() { &mut answer.failed } else { &mut answer.unresolvable };
                list.push((name, group(&mut refusals, refusal)));
            }
        }
    }
    let refused = refusals.iter().map(|group| (group.refusal.code(), group.nodes));
    request.verdicts = std::iter::once(("fits", fits)).chain(refused).collect();
    if fits == 0 && refusals.iter().any(|group| group.refusal.may_pass()) {
        return Err(if is_awaited { Fault::Reserved } else { Fault::Overdue });
    }
    Ok((answer, found))
}

/// Nodes refused for one reason: a handful of texts for thousands of nodes.
struct Group {
    refusal: Refusal,
    text: Arc<str>,
    nodes: u64,
}

fn group(groups: &mut Vec<Group>, refusal: Refusal) -> Arc<str> {
    if let Some(known) = groups.iter_mut().find(|known| known.refusal == refusal) {
        known.nodes += 1;
        return Arc::clone(&known.text);
    }
    let text: Arc<str> = refusal.text().into();
    groups.push(Group { refusal, text: Arc::clone(&text), nodes: 1 });
    text
}
