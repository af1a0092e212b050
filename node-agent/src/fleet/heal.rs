//! Self-healing: finds overloaded bases, asks [`judge`] what is next, and carries it out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use policy::contract::names;
use policy::model::{OverloadMode, WithoutPlace};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Fleet, Input};
use crate::base::{Event, EventKind};
use crate::discovery::{BaseSpec, Controller};
use crate::healing::{Cause, Facts, Healing, Hindrance, Load, Next, Notes, Outlook, Step, Wish, judge};
use crate::vnode::SeenNode;
use crate::vpod::write::{self, Eviction};

/// How soon an eviction is asked for again.
const AGAIN: Duration = Duration::from_secs(3);
/// How soon a base is looked at again that only room elsewhere, or its successor, can help: to look is dear, and neither
/// comes in a moment.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Longest time one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Step of what only a dry run, or an observer, has found.
const DRY_RUN: &str = "HealingDryRun";
/// Step of a base that has gone and whose successor is awaited.
const SUCCESSOR: &str = "HealingAwaitsSuccessor";

/// All that heals, by UID of the base Pod, and the successors that are awaited. Owned by the fleet.
#[derive(Debug, Default)]
pub(super) struct Heals {
    cases: BTreeMap<String, Case>,
    /// `None` before they were read from the Lease.
    pub(super) notes: Option<Notes>,
    /// Since when the VNodes of awaited successors have been complete.
    pub(super) complete: BTreeMap<String, Instant>,
    /// When successors are looked for again.
    successors_due: Option<Instant>,
}

/// One overloaded base.
#[derive(Debug)]
struct Case {
    node: String,
    healing: Healing,
    /// Only in words.
    dry: bool,
    hindrance: Option<Hindrance>,
    told: Option<(Step, Option<Hindrance>)>,
    /// When the eviction of a Pod may be asked for again.
    asked: BTreeMap<String, Instant>,
    /// When it is looked at again, where that is not at once.
    due: Option<Instant>,
}

impl Case {
    fn new(spec: &BaseSpec, healing: Healing, dry: bool, told: Option<(Step, Option<Hindrance>)>) -> Self {
        let asked = BTreeMap::new();
        Self { node: spec.node.clone(), healing, dry, hindrance: None, told, asked, due: None }
    }

    /// What its Node says of what hinders it. While it goes on, what is waited for changes often, and each change would be
    /// a write; that there is no room is said all the same, because that lasts until a person makes some.
    fn shown_hindrance(&self) -> Option<Hindrance> {
        self.hindrance.filter(|hindrance| !self.healing.has_begun() || *hindrance == Hindrance::NoPlace)
    }
}

impl Heals {
    /// What the Node of a base shows of it.
    pub(super) fn shown(&self, base: &str) -> Option<(Healing, Option<Hindrance>)> {
        let case = self.cases.get(base).filter(|case| !case.dry)?;
        Some((case.healing.clone(), case.shown_hindrance()))
    }

    /// Whether VPods of this base go because it heals.
    pub(super) fn has_begun(&self, base: &str) -> bool {
        self.cases.get(base).is_some_and(|case| !case.dry && case.healing.has_begun())
    }

    /// Whether a base is overloaded, healed or not.
    pub(super) fn has(&self, base: &str) -> bool {
        self.cases.contains_key(base)
    }

    pub(super) fn diag(&self) -> Value {
        let cases = self.cases.values().map(|case| {
            json!({
                "node": case.node,
                "step": if case.dry { DRY_RUN } else { case.healing.step.as_str() },
                "cause": case.healing.cause.as_str(),
                "found": case.healing.found.to_string(),
                "begun": case.healing.begun.map(|at| at.to_string()),
                "hindrance": case.hindrance.map(Hindrance::as_str),
            })
        });
        let awaited = self.notes.iter().flat_map(|notes| &notes.0).map(|awaited| &awaited.base);
        json!({"bases": cases.collect::<Vec<_>>(), "awaited": awaited.collect::<Vec<_>>()})
    }
}

impl Fleet {
    /// A term ended, or another one begins.
    pub(super) fn forget_heals(&mut self) {
        self.heals = Heals::default();
        self.context.leader.note.leave();
    }

    /// Goes on where the Node of a base says that an earlier agent stopped. Gives back whether its JVM is known to take no
    /// more modules.
    pub(super) fn restore_heal(&mut self, spec: &BaseSpec, seen: &SeenNode) -> bool {
        let healing = seen.annotation(names::HEALING).and_then(Healing::parse);
        let Some(healing) = healing.filter(|healing| healing.base == spec.uid && is_of_start(healing, spec))
        else {
            return false;
        };
        let exhausted = healing.cause == Cause::Exhausted;
        tracing::info!(node = spec.node, step = healing.step.as_str(), "the healing of a base goes on");
        let told = Some((healing.step, None));
        let case = Case::new(spec, healing, false, told);
        self.heals.cases.entry(spec.uid.clone()).or_insert(case);
        exhausted
    }

    /// Looks at every overloaded base.
    pub(super) fn look_at_heals(&mut self, now: Instant) {
        let known = self.deployments.is_synced() && self.daemon_sets.is_synced() && self.unplaced.is_synced();
        if !self.begun || !known {
            return;
        }
        let wall = self.context.base_clock.now();
        let mode = if self.context.observe { OverloadMode::DryRun } else { self.rules.overload().mode };
        self.end_heals(mode);
        if mode != OverloadMode::Disabled {
            self.find_overloaded(mode, wall);
        }
        if self.heals.successors_due.is_none_or(|due| due <= now) {
            self.look_for_successors(now, wall);
            let awaits = self.heals.notes.as_ref().is_some_and(|notes| !notes.0.is_empty());
            self.heals.successors_due = awaits.then_some(now + LOOK_AGAIN);
        }
        let mut cases: Vec<(Timestamp, String)> =
            self.heals.cases.iter().map(|(uid, case)| (case.healing.found, uid.clone())).collect();
        cases.sort();
        for (_, uid) in cases {
            self.heal(&uid, now, wall);
        }
        self.count_heals();
    }

    /// Ends what has no reason any more.
    fn end_heals(&mut self, mode: OverloadMode) {
        let ends = |uid: &String, case: &Case| {
            let Some(spec) = self.bases.get(uid) else { return true };
            if spec.leaving.is_some() {
                return false;
            }
            let load = self.load_of(spec);
            let relieved = load == Some(Load::Fine) && case.healing.cause == Cause::NotFreed;
            !is_of_start(&case.healing, spec)
                || (relieved && !case.healing.has_begun())
                || case.dry != (mode == OverloadMode::DryRun)
                || mode == OverloadMode::Disabled
                || (case.healing.has_begun() && opts_out(spec))
        };
        let over: Vec<String> = self
            .heals
            .cases
            .iter()
            .filter(|(uid, case)| ends(uid, case))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in over {
            let Some(case) = self.heals.cases.remove(&uid) else { continue };
            if !self.bases.contains_key(&uid) {
                if self.heals.notes.as_ref().is_some_and(|notes| notes.has(&uid)) {
                    let says = "the base Pod is gone; the next base waits until the modules of its successor are Ready";
                    self.context.metrics.healing_step(SUCCESSOR);
                    self.tell_node(&case.node, EventKind::Normal, SUCCESSOR, says.to_owned());
                }
                continue;
            }
            if let Some(notes) = &mut self.heals.notes {
                notes.0.retain(|awaited| awaited.base != uid);
            }
            if !case.dry {
                let says = "the base is not overloaded any more, or shall not be healed".to_owned();
                self.tell_node(&case.node, EventKind::Normal, "HealingEnded", says);
                self.show(&case.node, Vec::new());
            }
        }
    }

    /// What the actor says of the JVM that runs now.
    fn load_of(&self, spec: &BaseSpec) -> Option<Load> {
        let report = self.slots.get(&spec.node)?.report.as_ref()?;
        (report.started_at == spec.started_at).then_some(report.load)
    }

    fn find_overloaded(&mut self, mode: OverloadMode, wall: Timestamp) {
        let found: Vec<(Arc<BaseSpec>, Cause)> = self
            .bases
            .values()
            .filter(|spec| spec.leaving.is_none() && !self.heals.cases.contains_key(&spec.uid))
            .filter_map(|spec| match self.load_of(spec)? {
                Load::Overloaded(cause) => Some((Arc::clone(spec), cause)),
                Load::Unknown | Load::Fine => None,
            })
            .collect();
        for (spec, cause) in found {
            let (node, base) = (&spec.node, format!("{}/{}", spec.namespace, spec.pod));
            tracing::warn!(node, base, cause = cause.as_str(), "a base is overloaded");
            let healing = Healing::found(&spec.uid, spec.started_at, cause, wall);
            let dry = mode == OverloadMode::DryRun;
            let case = Case::new(&spec, healing, dry, None);
            self.heals.cases.insert(spec.uid.clone(), case);
            self.context.metrics.healing_step(if dry { DRY_RUN } else { Step::Waiting.as_str() });
            self.tell_node(
                node,
                EventKind::Warning,
                cause.as_str(),
                format!("the base {base} is overloaded"),
            );
            if !dry {
                self.show(node, Vec::new());
            }
        }
    }

    /// Takes one base a step further.
    fn heal(&mut self, uid: &str, now: Instant, wall: Timestamp) {
        let Some(spec) = self.bases.get(uid).filter(|spec| spec.leaving.is_none()).cloned() else { return };
        let budget = self.has_budget(uid);
        let Some(case) = self.heals.cases.get(uid) else { return };
        if case.due.is_some_and(|due| now < due) {
            return;
        }
        let (healing, dry) = (case.healing.clone(), case.dry);
        // What is not on the Node yet could be lost with this process.
        let stands = dry || self.stands(&healing, &spec.node);
        if !stands || (!dry && (self.is_held(&spec.node) || self.is_paused_for(&spec))) {
            return;
        }
        let opted_out = opts_out(&spec);
        let replaceable = spec.controller.as_ref().is_some_and(Controller::replaces);
        // To look for places is dear: only where it can matter.
        let waits = healing.step == Step::Waiting && (!budget || opted_out || !replaceable);
        let tenants =
            if waits || healing.step == Step::Replacing { Vec::new() } else { self.tenants(&spec.node) };
        let controller = healing.evicted.as_ref().and_then(|evicted| evicted.controller.as_deref());
        let facts = Facts {
            opted_out,
            replaceable,
            budget,
            tenants,
            last: controller.map(|controller| self.replicas(&spec.node, controller)),
        };
        let overload = self.rules.overload();
        let wish = Wish {
            deadline: overload.eviction_deadline,
            without_place: overload.without_place == WithoutPlace::Proceed,
        };
        let Outlook { next, hindrance } = judge(&healing, &facts, &wish, wall);
        let lasts = hindrance == Some(Hindrance::NoPlace) && next == Next::Wait;
        if let Some(case) = self.heals.cases.get_mut(uid) {
            case.due = (dry || lasts).then_some(now + LOOK_AGAIN);
        }
        if dry {
            self.tell_dry_run(uid, hindrance);
            return;
        }
        self.take_hindrance(uid, hindrance);
        match next {
            Next::Write(healing) => self.write_heal(uid, healing),
            Next::Evict(pods) => {
                for pod in pods {
                    self.evict_tenant(&spec, &pod, now);
                }
            }
            Next::Replace => self.replace(&spec, now),
            Next::Wait => {}
        }
    }

    /// Whether the Node shows this already.
    fn stands(&self, healing: &Healing, node: &str) -> bool {
        let seen = self.seen.get(node).and_then(|seen| seen.annotation(names::HEALING));
        seen.is_some_and(|seen| seen == healing.to_annotation())
    }

    /// Whether a namespace that matters is paused: that of a VPod on it, or that of the base. Pauses are those of the module
    /// cluster: a namespace of another cluster that happens to have the base's name is none of its business.
    fn is_paused_for(&self, spec: &BaseSpec) -> bool {
        let paused = self.context.paused.borrow();
        let pods = self.pods_on.get(&spec.node).into_iter().flat_map(|pods| pods.values());
        let mut namespaces = pods.filter_map(|pod| pod.metadata.namespace.as_ref());
        (self.context.one_cluster && paused.contains(&spec.namespace))
            || namespaces.any(|namespace| paused.contains(namespace))
    }

    /// Whether one more base may heal: those on any Node of ours count, and those that have gone.
    fn has_budget(&self, but: &str) -> bool {
        let Some(notes) = &self.heals.notes else { return false };
        let mut healing: BTreeSet<&str> = notes.0.iter().map(|awaited| awaited.base.as_str()).collect();
        let begun = self.heals.cases.iter().filter(|(_, case)| !case.dry && case.healing.has_begun());
        healing.extend(begun.map(|(uid, _)| uid.as_str()));
        let read = |seen: &SeenNode| seen.annotation(names::HEALING).and_then(Healing::parse);
        let written = self.seen.values().filter(|seen| {
            // What this agent knows itself is newer.
            !self.heals.cases.contains_key(seen.base_uid())
                && read(seen).is_some_and(|healing| healing.has_begun() && healing.base == seen.base_uid())
        });
        healing.extend(written.map(SeenNode::base_uid));
        healing.remove(but);
        u32::try_from(healing.len()).unwrap_or(u32::MAX) < self.rules.overload().max_bases_at_once
    }

    fn write_heal(&mut self, uid: &str, healing: Healing) {
        fault_point!(HealingWriting);
        let Some(case) = self.heals.cases.get_mut(uid) else { return };
        let changed = case.healing.step != healing.step;
        case.healing = healing;
        case.hindrance = None;
        case.due = None;
        let (node, step) = (case.node.clone(), case.healing.step);
        if changed {
            case.told = Some((step, None));
            self.context.metrics.healing_step(step.as_str());
            let (kind, says) = match step {
                Step::Waiting => (EventKind::Normal, "healing is about to begin"),
                Step::Evicting => {
                    (EventKind::Normal, "nothing new may come; VPods are evicted one after the other")
                }
                Step::Forcing => (
                    EventKind::Warning,
                    "overload.evictionDeadline has passed; the VPods that are left are deleted",
                ),
                Step::Replacing => {
                    (EventKind::Normal, "the base Pod is evicted; its controller makes a new one")
                }
            };
            tracing::info!(node, step = step.as_str(), "the healing of a base goes on");
            self.tell_node(&node, kind, step.as_str(), says.to_owned());
        }
        self.show(&node, Vec::new());
    }

    /// Tells people what holds it up, when that is another thing than before.
    fn take_hindrance(&mut self, uid: &str, hindrance: Option<Hindrance>) {
        let Some(case) = self.heals.cases.get_mut(uid) else { return };
        if case.hindrance == hindrance {
            return;
        }
        let before = case.shown_hindrance();
        case.hindrance = hindrance;
        let changed = before != case.shown_hindrance();
        let (node, step) = (case.node.clone(), case.healing.step);
        let worth_telling = match hindrance {
            None | Some(Hindrance::Replacement | Hindrance::Draining) => false,
            Some(_) => case.told.replace((step, hindrance)) != Some((step, hindrance)),
        };
        if let Some(hindrance) = hindrance.filter(|_| worth_telling) {
            self.tell_node(&node, EventKind::Warning, step.as_str(), hindrance.text().to_owned());
        }
        if changed {
            self.show(&node, Vec::new());
        }
    }

    fn tell_dry_run(&mut self, uid: &str, hindrance: Option<Hindrance>) {
        let Some(case) = self.heals.cases.get_mut(uid) else { return };
        let told = Some((Step::Waiting, hindrance));
        if case.told == told {
            return;
        }
        case.told = told;
        case.hindrance = hindrance;
        let node = case.node.clone();
        let says = hindrance.map_or("the base would be healed now".to_owned(), |hindrance| {
            format!("the base would be healed, but {}", hindrance.text())
        });
        tracing::info!(node, says, "dry run");
        self.tell_node(&node, EventKind::Normal, DRY_RUN, says);
    }

    fn evict_tenant(&mut self, spec: &BaseSpec, uid: &str, now: Instant) {
        let pod = self.pods_on.get(&spec.node).and_then(|pods| pods.get(uid)).cloned();
        let Some(pod) = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else { return };
        if !self.may_ask(&spec.uid, uid, now) {
            return;
        }
        let note = format!("the base {}/{} is overloaded and will be replaced", spec.namespace, spec.pod);
        let (kind, reason) = (EventKind::Normal, "EvictedFromOverloadedBase");
        let says = Event { regarding: pod.object_ref(&()), kind, reason, action: "Heal", note };
        let (namespace, name) = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        let client = self.context.module_client.clone();
        self.evict(client, &spec.uid, (namespace, name, uid.to_owned()), Some(says));
    }

    /// Whether the eviction of a Pod may be asked for now; then it is.
    pub(super) fn may_ask(&mut self, base: &str, pod: &str, now: Instant) -> bool {
        let Some(case) = self.heals.cases.get_mut(base) else { return false };
        if case.asked.get(pod).is_some_and(|not_before| now < *not_before) {
            return false;
        }
        case.asked.insert(pod.to_owned(), now + CALL_LIMIT + AGAIN);
        true
    }

    /// Asks for the eviction of a Pod (namespace, name and UID), and says so of it once that was granted.
    pub(super) fn evict(
        &self,
        client: kube::Client,
        base: &str,
        (namespace, name, uid): (String, String, String),
        says: Option<Event>,
    ) {
        let Some(term) = self.term.clone() else { return };
        let (own, calls, base) = (self.own.clone(), Arc::clone(&self.calls), base.to_owned());
        let events = Arc::clone(&self.context.events);
        let token = term.token().clone();
        term.tracker().clone().spawn(token.run_until_cancelled_owned(async move {
            let Ok(_permit) = calls.acquire().await else { return };
            fault_point!(HealingEvicting);
            let call = write::evict(&client, &term, &namespace, &name, &uid);
            let error = match tokio::time::timeout(CALL_LIMIT, call).await {
                Ok(Ok(answer)) => {
                    if let Some(says) = says.filter(|_| answer == Eviction::Granted) {
                        events.emit(says);
                    }
                    None
                }
                Ok(Err(error)) => Some(error),
                Err(_) => Some(format!("no answer in {CALL_LIMIT:?}")),
            };
            fault_point!(HealingEvicted);
            let _ = own.send(Input::Evicted { base, pod: uid, error });
        }));
    }

    pub(super) fn on_evicted(&mut self, base: &str, pod: &str, error: Option<String>) {
        self.context.metrics.healing_eviction(if error.is_some() { "refused" } else { "ok" });
        let Some(case) = self.heals.cases.get_mut(base) else { return };
        case.asked.insert(pod.to_owned(), Instant::now() + AGAIN);
        if let Some(error) = error {
            tracing::info!(node = case.node, pod_uid = pod, error, "an eviction is asked for again");
        }
    }

    fn count_heals(&self) {
        let cases = || self.heals.cases.values();
        let at = |step: Step| cases().filter(|case| !case.dry && case.healing.step == step).count();
        let metrics = &self.context.metrics;
        for step in [Step::Waiting, Step::Evicting, Step::Forcing, Step::Replacing] {
            metrics.healing(step.as_str(), at(step));
        }
        metrics.healing(DRY_RUN, cases().filter(|case| case.dry).count());
        let awaited = self.heals.notes.iter().flat_map(|notes| &notes.0);
        metrics.healing(SUCCESSOR, awaited.filter(|awaited| !self.bases.contains_key(&awaited.base)).count());
    }

    fn tell_node(&self, node: &str, kind: EventKind, reason: &'static str, says: String) {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: self.seen.get(node).map(|seen| seen.uid().to_owned()),
            ..ObjectReference::default()
        };
        self.context.events.emit(Event { regarding, kind, reason, action: "Heal", note: says });
    }
}

/// Whether this is about the JVM that runs now.
fn is_of_start(healing: &Healing, spec: &BaseSpec) -> bool {
    healing.started.is_none() || spec.started_at.is_none() || healing.started == spec.started_at
}

fn opts_out(spec: &BaseSpec) -> bool {
    spec.annotations.get(names::OVERLOAD).is_some_and(|value| value == names::OVERLOAD_IGNORE)
}
