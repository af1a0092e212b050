//! From a snapshot and a policy to a verdict on one node: pure.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use policy::contract::{BaseError, BaseFacts, InventoryModule, Known, ModuleIndex, ModulePod, PodKind};
use policy::explain::{Facts, Objection, Said, Slots, Verdict, explain_base};
use policy::score::{among, own};
use policy::{Applicant, BaseView, FleetView, Limits, Policy, Reason, may_hinder, rule};

use crate::cache::{NodeEntry, NodeKind, Snapshot};
use crate::kinds::Memory;
use crate::reservations::{Claimed, Reservations};

/// Why a node is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// kube-scheduler knows a Node that our watch has not delivered yet, or no longer knows.
    UnknownNode,
    /// A `VNode` that does not say which base it stands for.
    MalformedNode,
    /// A rule of the policy.
    Rule(Reason),
    /// It would fit, were it not for a Pod that was just placed there and may yet not come.
    Reserved(Reason),
    /// The last slot was given away, by another scheduler or by a binding that may yet happen though kube-scheduler has given
    /// it up. Only `bind` counts all slots; for `filter` kube-scheduler does.
    NoSlot,
}

impl Refusal {
    /// Stable code for metrics and documents.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownNode => "UnknownNode",
            Self::MalformedNode => "MalformedNode",
            Self::NoSlot => "NoSlot",
            Self::Rule(reason) | Self::Reserved(reason) => reason.code(),
        }
    }

    /// Whether the node may fit later without being another node.
    pub fn resolvable(&self) -> bool {
        match self {
            Self::UnknownNode | Self::NoSlot => true,
            Self::MalformedNode => false,
            Self::Rule(reason) | Self::Reserved(reason) => reason.resolvable(),
        }
    }

    /// Whether a Pod that was placed there is in the way: it is seen there some time, or does not come.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Reserved(_) | Self::NoSlot)
    }

    /// What a person can act on; constant, without names of nodes, numbers and percent signs.
    pub fn text(&self) -> String {
        match self {
            Self::UnknownNode => "node is not yet known to stowage-extender".to_owned(),
            Self::MalformedNode => "the virtual node does not say which base it stands for".to_owned(),
            Self::NoSlot => "the virtual node has no slot left".to_owned(),
            Self::Rule(reason) | Self::Reserved(reason) => reason.text(),
        }
    }
}

/// Judges nodes for one Pod.
#[derive(Clone)]
pub struct Judge<'a> {
    kind: &'a PodKind,
    /// The Pod, where it is a module Pod.
    applicant: Option<Applicant<'a>>,
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    reservations: &'a Reservations,
    /// Of Pods that could stand in this one's way.
    claims: Vec<Claimed<'a>>,
    /// Whether the policy allows any base more than one slot.
    several_slots: bool,
}

impl<'a> Judge<'a> {
    /// A judge for this Pod.
    pub fn new(
        kind: &'a PodKind,
        snapshot: &'a Snapshot,
        policy: &'a Policy,
        reservations: &'a Reservations,
    ) -> Self {
        let claims = module_pod(kind)
            .map(|pod| reservations.claims(|other| may_hinder(policy, pod, other)))
            .unwrap_or_default();
        let applicant = module_pod(kind).map(|pod| Applicant::new(policy, pod));
        let several_slots = policy.most_pods_per_base() > 1;
        Self { kind, applicant, snapshot, policy, reservations, claims, several_slots }
    }

    /// The verdict on one node of the snapshot. With `memory` verdicts are taken from there and kept there; it must be that
    /// of this Pod's kind under this policy.
    ///
    /// # Errors
    /// Why the Pod may not go there.
    pub fn judge(
        &self,
        name: &str,
        entry: &NodeEntry,
        mut memory: Option<&mut Memory<'_>>,
    ) -> Result<(), Refusal> {
        let kind = entry.kind.as_ref().ok_or(Refusal::UnknownNode)?;
        let on_vnode = !matches!(kind, NodeKind::Ordinary);
        let pod = rule::kind::check(self.kind, on_vnode).map_err(Refusal::Rule)?;
        let (Some(pod), Some(applicant)) = (pod, &self.applicant) else { return Ok(()) };
        let base = base_view(entry, &[]).ok_or(Refusal::MalformedNode)?;
        let known = memory.as_ref().and_then(|memory| memory.kind.verdict(entry.mark));
        known.unwrap_or_else(|| {
            let verdict = self.decide(applicant, entry, &base, memory.as_deref_mut()).map_err(Refusal::Rule);
            if let Some(memory) = memory.as_deref_mut() {
                memory.kind.note_verdict(entry.mark, &verdict);
            }
            verdict
        })?;
        if self.is_taken_up(pod, name, &base) {
            return Err(Refusal::NoSlot);
        }
        if self.has_only_slot(entry, &base, memory.as_deref_mut()) {
            return Ok(());
        }
        let reserved = self.reservations.on_or_claimed(name, entry.mark, &self.claims);
        if reserved.is_empty() {
            return Ok(());
        }
        let crowded = BaseView { reserved: &reserved, ..base };
        self.decide(applicant, entry, &crowded, memory).map_err(Refusal::Reserved)
    }

    fn decide(
        &self,
        applicant: &Applicant<'_>,
        entry: &NodeEntry,
        base: &BaseView<'_>,
        memory: Option<&mut Memory<'_>>,
    ) -> Result<(), Reason> {
        let limits = limits_of(self.policy, entry, base, memory);
        applicant.decide(base, &limits).map_err(|rejection| rejection.reason)
    }

    /// Whether a Pod that stands in the way on a node was placed so lately that it is seen there any moment.
    pub fn is_awaited(&self, name: &str, entry: &NodeEntry, now: Instant) -> bool {
        let coming = self.reservations.on_or_claimed(name, entry.mark, &self.claims);
        coming.iter().any(|pod| self.reservations.is_awaited(&pod.uid, now))
    }

    /// Whether bindings that may yet happen take the last slots. kube-scheduler counts them too, until it gives them up.
    fn is_taken_up(&self, pod: &ModulePod, name: &str, base: &BaseView<'_>) -> bool {
        let mut coming = self.reservations.being_bound(name).peekable();
        coming.peek().is_some() && !has_slot(pod, base, coming)
    }

    /// Whether the base has an only slot, which is free, and by the policy will have no more. Then kube-scheduler alone keeps
    /// a second Pod away while the first is on its way: it counts slots with the Pods it has just placed, for as long as it
    /// has not given up to bind them. Where none is free and it asks all the same, it knows of slots that are not seen
    /// here yet.
    fn has_only_slot(&self, entry: &NodeEntry, base: &BaseView<'_>, memory: Option<&mut Memory<'_>>) -> bool {
        entry.is_its_only_slot_free()
            && (!self.several_slots || limits_of(self.policy, entry, base, memory).pods_per_base <= 1)
    }

    /// What every rule and every term says about each virtual node, for people; empty for a Pod that is no module Pod.
    pub fn explain(&self) -> Vec<Verdict> {
        let (Some(pod), Some(applicant)) = (module_pod(self.kind), &self.applicant) else {
            return Vec::new();
        };
        let fleet = self.fleet(pod);
        let explained = |(name, entry): (&Arc<str>, &'a NodeEntry)| match entry.kind.as_ref()? {
            NodeKind::Ordinary => None,
            NodeKind::Malformed(error) => Some(malformed(name, entry, error)),
            NodeKind::Base(_) => {
                let base = base_view(entry, &[])?;
                let has_only_slot = self.has_only_slot(entry, &base, None);
                let reserved = if has_only_slot {
                    self.reservations.being_bound(name).cloned().collect()
                } else {
                    self.reservations.maybe_on(name, entry.mark)
                };
                let verdict = explain_base(applicant, &BaseView { reserved: &reserved, ..base }, &fleet);
                Some(if self.is_taken_up(pod, name, &base) { without_slot(verdict) } else { verdict })
            }
        };
        self.snapshot.nodes.iter().filter_map(explained).collect()
    }

    fn fleet(&self, pod: &'a ModulePod) -> FleetView<'a> {
        let (snapshot, modules) = (self.snapshot, &pod.modules);
        let bound = modules.iter().enumerate().flat_map(|(index, module)| {
            // Found by a module before.
            let known = move |other: &ModulePod| {
                modules.iter().take(index).any(|ours| other.modules.iter().any(|m| ours.is_named_as(m)))
            };
            let others = snapshot.with_module(&module.name).iter().filter(move |other| !known(other));
            others
                .filter_map(|other| Some((snapshot.nodes.get(other.node_name.as_ref()?)?.base()?, &**other)))
        });
        let placed = self.reservations.placed().filter_map(|(node, pods)| {
            let entry = snapshot.nodes.get(node)?;
            let facts = entry.base()?;
            let seen = |pod: &ModulePod| entry.pods.iter().any(|bound| bound.uid == pod.uid);
            Some(pods.iter().filter(move |pod| !seen(pod)).map(move |pod| (facts, &**pod)))
        });
        FleetView::new(self.policy, pod, || Cow::Borrowed(snapshot.fleet()), bound.chain(placed.flatten()))
    }

    /// Whether the Pod may be bound to a node now: with what was placed there and is not yet seen, and by the count of
    /// slots too, which another scheduler may have used up.
    ///
    /// # Errors
    /// Why not.
    pub fn confirm(&self, name: &str) -> Result<(), Refusal> {
        let entry = self.snapshot.nodes.get(name).ok_or(Refusal::UnknownNode)?;
        self.confirm_among(name, &entry.pods, self.reservations.on(name))
    }

    /// The same, for a caller who knows better than the cache which Pods are bound to the node, and which may yet be.
    ///
    /// # Errors
    /// Why not.
    pub fn confirm_among(
        &self,
        name: &str,
        bound: &[Arc<ModulePod>],
        placed: &[Arc<ModulePod>],
    ) -> Result<(), Refusal> {
        let entry = self.snapshot.nodes.get(name).ok_or(Refusal::UnknownNode)?;
        let kind = entry.kind.as_ref().ok_or(Refusal::UnknownNode)?;
        let on_vnode = !matches!(kind, NodeKind::Ordinary);
        let pod = rule::kind::check(self.kind, on_vnode).map_err(Refusal::Rule)?;
        let (Some(pod), Some(applicant)) = (pod, &self.applicant) else { return Ok(()) };
        let NodeKind::Base(facts) = kind else { return Err(Refusal::MalformedNode) };
        let base = BaseView { facts, pods: bound, reserved: placed };
        self.decide(applicant, entry, &base, None).map_err(Refusal::Reserved)?;
        if has_slot(pod, &base, placed) { Ok(()) } else { Err(Refusal::NoSlot) }
    }

    /// Whether the Pod could go to a node if these Pods were gone, and what belongs to them on the base with them.
    pub fn would_fit_without(&self, name: &str, victims: &[&str]) -> bool {
        let Some(entry) = self.snapshot.nodes.get(name) else { return false };
        let on_vnode = matches!(entry.kind, Some(NodeKind::Base(_) | NodeKind::Malformed(_)));
        if rule::kind::check(self.kind, on_vnode).is_err() {
            return false;
        }
        let Some(applicant) = &self.applicant else { return entry.kind.is_some() };
        let Some(NodeKind::Base(facts)) = &entry.kind else { return false };
        let stays = |pod: &&Arc<ModulePod>| !victims.contains(&&*pod.uid);
        let pods: Vec<_> = entry.pods.iter().filter(stays).cloned().collect();
        let reserved: Vec<_> = self.reservations.on(name).iter().filter(stays).cloned().collect();
        let facts = without_modules(facts, victims);
        let base = BaseView { facts: &facts, pods: &pods, reserved: &reserved };
        self.decide(applicant, entry, &base, None).is_ok()
    }

    /// Scores nodes for the Pod; `None` for a Pod that is no module Pod.
    pub fn scorer(&self) -> Option<Scorer<'a>> {
        let pod = module_pod(self.kind)?;
        Some(Scorer { pod, policy: self.policy, reservations: self.reservations, fleet: self.fleet(pod) })
    }
}

/// The facts of a base from which the modules of these Pods are gone.
fn without_modules<'a>(facts: &'a BaseFacts, pods: &[&str]) -> Cow<'a, BaseFacts> {
    let theirs =
        |module: &InventoryModule| module.owner.as_ref().is_some_and(|owner| pods.contains(&&*owner.uid));
    let Known::Inventory(inventory) = &facts.inventory else { return Cow::Borrowed(facts) };
    if !inventory.modules.iter().any(theirs) {
        return Cow::Borrowed(facts);
    }
    let mut facts = facts.clone();
    if let Known::Inventory(inventory) = &mut facts.inventory {
        inventory.modules.retain(|module| !theirs(module));
        facts.module_index = ModuleIndex::of(&inventory.modules);
    }
    Cow::Owned(facts)
}

/// Scores nodes for one module Pod.
pub struct Scorer<'a> {
    pod: &'a ModulePod,
    policy: &'a Policy,
    reservations: &'a Reservations,
    fleet: FleetView<'a>,
}

impl Scorer<'_> {
    /// 0 to 10, greater is better; 0 for what is no base. With `memory`, as for [`Judge::judge`], what a base is worth by
    /// itself is taken from there and kept there.
    pub fn score(&self, name: &str, entry: &NodeEntry, mut memory: Option<&mut Memory<'_>>) -> i64 {
        let Some(base) = base_view(entry, self.reservations.on(name)) else { return 0 };
        // What was just placed there is not part of the entry, and nothing is remembered with it.
        let lasting = base.reserved.is_empty();
        let known = memory.as_ref().filter(|_| lasting).and_then(|memory| memory.kind.score(entry.mark));
        let own = known.map_or_else(
            || {
                let limits = limits_of(self.policy, entry, &base, memory.as_deref_mut());
                let own = own(self.policy, self.pod, &base, &limits);
                if let (Some(memory), Ok(small)) = (memory.filter(|_| lasting), u32::try_from(own)) {
                    memory.kind.note_score(entry.mark, small);
                }
                own
            },
            u128::from,
        );
        among(self.policy, own, &base, &self.fleet)
    }
}

/// Whether a slot is left with those who are bound to a base and those on their way.
fn has_slot<'a>(
    pod: &ModulePod,
    base: &BaseView<'a>,
    coming: impl IntoIterator<Item = &'a Arc<ModulePod>>,
) -> bool {
    let unseen = coming.into_iter().filter(|coming| !base.pods.iter().any(|seen| seen.uid == coming.uid));
    let others = base.pods.iter().chain(unseen).filter(|other| other.uid != pod.uid).count();
    u32::try_from(others).is_ok_and(|others| others < base.facts.allocatable_pods)
}

/// The limits of the base behind an entry, which are the same for every Pod.
fn limits_of(
    policy: &Policy,
    entry: &NodeEntry,
    base: &BaseView<'_>,
    memory: Option<&mut Memory<'_>>,
) -> Limits {
    let afresh = || policy.limits_for(&base.facts.like());
    memory.map_or_else(afresh, |memory| memory.limits.of(entry.mark, afresh))
}

/// The base behind an entry as a decision sees it; `None` where there is none.
fn base_view<'a>(entry: &'a NodeEntry, reserved: &'a [Arc<ModulePod>]) -> Option<BaseView<'a>> {
    entry.base().map(|facts| BaseView { facts, pods: &entry.pods, reserved })
}

/// A `VNode` without a base, which no rule can be asked about.
fn malformed(name: &str, entry: &NodeEntry, error: &BaseError) -> Verdict {
    Verdict {
        node: name.to_owned(),
        fits: false,
        score: None,
        slots: Slots { taken: entry.pods.len(), of: 0 },
        rules: vec![said("node", &Refusal::MalformedNode, Facts::from([("node", error.to_string())]))],
        terms: Vec::new(),
    }
}

/// A base whose last slots are taken by bindings that may yet happen, whatever the rules say.
fn without_slot(mut verdict: Verdict) -> Verdict {
    let Slots { taken, of } = verdict.slots;
    verdict.rules.push(said("slots", &Refusal::NoSlot, Facts::from([("slots", format!("{taken} of {of}"))])));
    Verdict { fits: false, score: None, terms: Vec::new(), ..verdict }
}

fn said(rule: &'static str, refusal: &Refusal, facts: Facts) -> Said {
    let objection =
        Objection { code: refusal.code(), text: refusal.text(), resolvable: refusal.resolvable() };
    Said { rule, objection: Some(objection), facts }
}

/// The module Pod, where the Pod is one.
pub fn module_pod(kind: &PodKind) -> Option<&ModulePod> {
    match kind {
        PodKind::Module(pod) => Some(pod),
        PodKind::Incomplete(_) | PodKind::Foreign => None,
    }
}
