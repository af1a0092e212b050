//! The readiness gate of a base for its modules: a base rollout, and the base's `PodDisruptionBudget`, wait for them.
//!
//! It opens when nothing is [awaited](Fleet::awaited) any more, or when the policy's limit is over, and stays open until
//! the base container starts anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use policy::contract::names;
use serde_json::json;
use tokio::time::Instant;

use super::{Fleet, Input};
use crate::base::{Event, EventKind};
use crate::discovery::{BaseSpec, ModulesGate};
use crate::named::some;

/// A new VNode is given this long to be seen by controllers and kube-scheduler: before that no Pod means nothing.
pub(super) const SETTLE: Duration = Duration::from_secs(10);
/// How soon a write is repeated that failed, or whose effect no watch has shown.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest time one write may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Names in a message.
const SHOWN: usize = 3;
const LIMIT_PASSED: &str = "LimitPassed";

/// What the condition must say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    status: bool,
    reason: &'static str,
    message: String,
}

/// What the fleet remembers of a gate that is not open, by UID of the base Pod.
#[derive(Debug, Default)]
pub(super) struct Gates(BTreeMap<String, Pending>);

#[derive(Debug)]
struct Pending {
    registered: Option<Instant>,
    not_before: Instant,
    writing: bool,
}

/// What the verdict depends on.
#[derive(Debug)]
struct Facts {
    /// Since when its VNode has been Ready.
    registered: Option<Instant>,
    /// What is [awaited](Fleet::awaited), by name.
    missing: Vec<String>,
    /// When the limit is over.
    until: Option<Timestamp>,
}

fn judge(facts: &Facts, now: Instant, wall: Timestamp) -> Wanted {
    let wait = |reason, message: String| Wanted { status: false, reason, message };
    let verdict = match facts.registered {
        None => wait("BaseNotReady", "waits until the VNode of this base is Ready".to_owned()),
        Some(_) if !facts.missing.is_empty() => wait(
            "ModulesNotReady",
            format!("waits for {}", some(facts.missing.iter().map(String::as_str), SHOWN)),
        ),
        Some(since) if now.saturating_duration_since(since) < SETTLE => {
            wait("Settling", "waits for modules that may be meant for this base".to_owned())
        }
        Some(_) => Wanted {
            status: true,
            reason: "ModulesReady",
            message: "all modules meant for this base are ready".to_owned(),
        },
    };
    if !verdict.status && facts.until.is_some_and(|until| until <= wall) {
        return Wanted {
            status: true,
            reason: LIMIT_PASSED,
            message: format!("gates.modulesReadyLimit is over; {}", verdict.message),
        };
    }
    verdict
}

/// Whether the gate was opened since this start of the base container. Times of the API server and of a kubelet differ,
/// so the time written is never earlier than the start.
fn is_open(gate: &ModulesGate, started_at: Option<Timestamp>) -> bool {
    let Some(condition) = gate.condition.as_ref().filter(|condition| condition.status) else { return false };
    started_at.zip(condition.since).is_some_and(|(start, since)| since >= start)
}

/// Whether there is anything to write: a condition that is absent counts as False.
fn differs(gate: &ModulesGate, wanted: &Wanted) -> bool {
    match &gate.condition {
        // True here is from an earlier start: also the same is written anew.
        Some(condition) if condition.status => true,
        Some(condition) => {
            wanted.status || condition.reason != wanted.reason || condition.message != wanted.message
        }
        None => wanted.status || wanted.reason == "ModulesNotReady",
    }
}

impl Fleet {
    /// Looks at every gate that is not open.
    pub(super) fn look_at_gates(&mut self, now: Instant) {
        // A sidecar does not know what is meant for its base: the agent of the fleet does.
        if !self.begun || self.context.observe || self.context.own.is_some() {
            return;
        }
        let gated: Vec<Arc<BaseSpec>> = self
            .bases
            .values()
            .filter(|spec| {
                spec.gate.is_some() && spec.leaving.is_none() && !self.losses.is_missing(&spec.uid)
            })
            .cloned()
            .collect();
        self.gates.0.retain(|uid, _| gated.iter().any(|spec| spec.uid == *uid));
        for spec in gated {
            self.look_at_gate(&spec, now);
        }
    }

    fn look_at_gate(&mut self, spec: &Arc<BaseSpec>, now: Instant) {
        let Some(gate) = &spec.gate else { return };
        if is_open(gate, spec.started_at) {
            self.gates.0.remove(&spec.uid);
            return;
        }
        let known = self.daemon_sets.is_synced() && self.unplaced.is_synced();
        let ready = spec.started && known && self.is_vnode_ready(&spec.node);
        let wall = self.context.base_clock.now();
        let missing = if ready { self.awaited(spec, wall) } else { Vec::new() };
        let pending = self.gates.0.entry(spec.uid.clone()).or_insert(Pending {
            registered: None,
            not_before: now,
            writing: false,
        });
        pending.registered = if ready { pending.registered.or(Some(now)) } else { None };
        let since = gate.waiting_since.or(spec.started_at).filter(|_| spec.started);
        let until =
            since.zip(self.rules.gate_limit()).and_then(|(since, limit)| since.checked_add(limit).ok());
        let wanted = judge(&Facts { registered: pending.registered, missing, until }, now, wall);
        if pending.writing || now < pending.not_before || !differs(gate, &wanted) {
            return;
        }
        pending.writing = true;
        self.write_gate(spec, gate, wanted, wall);
    }

    pub(super) fn is_vnode_ready(&self, node: &str) -> bool {
        let ready = self.seen.get(node).and_then(|seen| seen.condition("Ready"));
        ready.is_some_and(|ready| ready.status == "True")
    }

    fn write_gate(&self, spec: &Arc<BaseSpec>, gate: &ModulesGate, wanted: Wanted, wall: Timestamp) {
        let Some(term) = self.term.clone() else { return };
        let kept = gate.condition.as_ref().filter(|before| !before.status && !wanted.status);
        let since =
            kept.and_then(|before| before.since).unwrap_or_else(|| wall.max(spec.started_at.unwrap_or(wall)));
        let patch = json!({
            "metadata": {"uid": spec.uid},
            "status": {"conditions": [{
                "type": names::MODULES_READY_GATE,
                "status": if wanted.status { "True" } else { "False" },
                "reason": wanted.reason,
                "message": wanted.message,
                "lastTransitionTime": format!("{:.0}", since),
            }]},
        });
        let api: Api<Pod> = Api::namespaced(self.context.base_client.clone(), &spec.namespace);
        let (own, calls, spec) = (self.own.clone(), Arc::clone(&self.calls), Arc::clone(spec));
        let metrics = Arc::clone(&self.context.metrics);
        let token = term.token().clone();
        term.tracker().clone().spawn(token.run_until_cancelled_owned(async move {
            let Ok(_permit) = calls.acquire().await else { return };
            if !term.holds() {
                return;
            }
            let (patch, parameters) = (Patch::Strategic(&patch), PatchParams::default());
            let call = api.patch_status(&spec.pod, &parameters, &patch);
            let error = match tokio::time::timeout(CALL_LIMIT, call).await {
                Ok(result) => {
                    metrics.api("pods", "patch_status", &result);
                    result.err().map(|error| error.to_string())
                }
                Err(_) => Some(format!("no answer in {CALL_LIMIT:?}")),
            };
            let _ = own.send(Input::GateWritten { uid: spec.uid.clone(), wanted, error });
        }));
    }

    pub(super) fn on_gate_written(&mut self, uid: &str, wanted: &Wanted, error: Option<String>) {
        if let Some(pending) = self.gates.0.get_mut(uid) {
            pending.writing = false;
            pending.not_before = Instant::now() + AGAIN;
        }
        let Some(spec) = self.bases.get(uid) else { return };
        let (namespace, pod) = (&spec.namespace, &spec.pod);
        if let Some(error) = error {
            tracing::warn!(namespace, pod, error, "the readiness gate of a base was not written");
            return;
        }
        tracing::info!(
            namespace,
            pod,
            status = wanted.status,
            reason = wanted.reason,
            "readiness gate written"
        );
        if wanted.reason == LIMIT_PASSED {
            let regarding = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(spec.node.clone()),
                uid: self.seen.get(&spec.node).map(|seen| seen.uid().to_owned()),
                ..ObjectReference::default()
            };
            let note =
                format!("the base {namespace}/{pod} counts as ready without its modules: {}", wanted.message);
            let kind = EventKind::Warning;
            self.context.events.emit(Event { regarding, kind, reason: LIMIT_PASSED, action: "Gate", note });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::GateCondition;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("time")
    }

    #[tokio::test(start_paused = true)]
    async fn the_gate_opens_when_nothing_is_missing_or_the_limit_is_over() {
        let start = Instant::now();
        let secs = Duration::from_secs;
        let missing = |count: usize| (0..count).map(|number| format!("Pod a/{number}")).collect::<Vec<_>>();
        for (what, registered, count, until, after, expected) in [
            ("no VNode", None, 0, None, 60, (false, "BaseNotReady")),
            ("just registered", Some(start), 0, None, 9, (false, "Settling")),
            ("settled", Some(start), 0, None, 10, (true, "ModulesReady")),
            ("a module is missing", Some(start), 1, None, 60, (false, "ModulesNotReady")),
            ("the limit is not over", Some(start), 1, Some(at(61)), 60, (false, "ModulesNotReady")),
            ("the limit is over", Some(start), 1, Some(at(60)), 60, (true, "LimitPassed")),
            ("over without a VNode", None, 0, Some(at(60)), 60, (true, "LimitPassed")),
            ("ready after the limit", Some(start), 0, Some(at(60)), 90, (true, "ModulesReady")),
        ] {
            let facts = Facts { registered, missing: missing(count), until };
            let wanted = judge(&facts, start + secs(after), at(i64::try_from(after).expect("small")));
            assert_eq!((wanted.status, wanted.reason), expected, "{what}");
        }
        let facts = Facts { registered: Some(start), missing: missing(5), until: None };
        let message = judge(&facts, start, at(0)).message;
        assert_eq!(message, "waits for Pod a/0, Pod a/1, Pod a/2 and 2 more");
    }

    fn gate(status: bool, since: i64) -> ModulesGate {
        let condition = GateCondition {
            status,
            reason: "ModulesNotReady".to_owned(),
            message: "waits for Pod a/0".to_owned(),
            since: Some(at(since)),
        };
        ModulesGate { condition: Some(condition), waiting_since: None }
    }

    #[test]
    fn an_opened_gate_stays_so_until_the_base_starts_anew() {
        assert!(is_open(&gate(true, 10), Some(at(10))));
        assert!(is_open(&gate(true, 20), Some(at(10))));
        assert!(!is_open(&gate(true, 9), Some(at(10))), "of an earlier start");
        assert!(!is_open(&gate(true, 20), None), "the container is down");
        assert!(!is_open(&gate(false, 20), Some(at(10))));
        assert!(!is_open(&ModulesGate::default(), Some(at(10))));
    }

    #[test]
    fn only_what_tells_something_is_written() {
        let wanted = |status, reason, message: &str| Wanted { status, reason, message: message.to_owned() };
        let absent = ModulesGate::default();
        assert!(!differs(&absent, &wanted(false, "Settling", "")));
        assert!(differs(&absent, &wanted(false, "ModulesNotReady", "waits for Pod a/0")));
        assert!(differs(&absent, &wanted(true, "ModulesReady", "")));
        assert!(!differs(&gate(false, 0), &wanted(false, "ModulesNotReady", "waits for Pod a/0")));
        assert!(differs(&gate(false, 0), &wanted(false, "ModulesNotReady", "waits for Pod a/1")));
        assert!(differs(&gate(true, 0), &wanted(false, "BaseNotReady", "")), "a start that is over");
    }
}
