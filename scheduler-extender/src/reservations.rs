//! Placements just made and not yet seen in the cache.
//!
//! kube-scheduler assumes a placement at once and binds it later; we see it when the watch delivers it, 10 ms to
//! seconds after. A Pod that is filtered in between could be sent to the same place. So each filter leaves a
//! reservation by Pod UID: on the one node it answered, or a claim on all of them, because kube-scheduler does not
//! tell which it took. It ends when the Pod is seen bound, when the Pod is filtered anew, when the Pod is gone, or
//! after a time in which the Pod would have been seen even by a watch that hung for as long as that goes unnoticed.
//! Where we bind ourselves it does not end when the Pod is filtered anew: a binding without answer may yet happen.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use policy::contract::ModulePod;

use crate::cache::{Mark, NodeSet, Snapshot};

/// Claims remembered at most. A Pod beyond is told to come again: to forget a claim would give its place away twice.
const CLAIMS: usize = 4_000;

/// More Pods are on their way than can be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many Pods were just given several nodes")]
pub struct TooMany;

#[derive(Debug, Clone)]
struct Reservation {
    /// Of no other.
    number: u64,
    pod: Arc<ModulePod>,
    made: Instant,
    /// Whether the cache had the Pod. One that reached kube-scheduler before us is not gone because we do not have it.
    seen: bool,
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    On(Arc<str>),
    Among(Arc<NodeSet>),
    /// Its binding was sent, and nobody said a clear no: it may happen even after the Pod was asked about again.
    Binding(Arc<str>),
}

/// Much longer than a binding takes, and the watch to show it.
const OVERDUE: Duration = Duration::from_secs(2);

/// API servers end requests after a minute.
const LONGEST_REQUEST: Duration = Duration::from_mins(1);

impl Place {
    fn is_on(&self, node: &str) -> bool {
        matches!(self, Self::On(on) | Self::Binding(on) if **on == *node)
    }

    /// For how long it may still come true after kube-scheduler has given it up.
    fn delay(&self) -> Duration {
        if matches!(self, Self::Binding(_)) { LONGEST_REQUEST } else { Duration::ZERO }
    }
}

/// Pods that each went to one of the same nodes.
#[derive(Debug, Clone)]
struct Claim {
    nodes: Arc<NodeSet>,
    pods: Vec<Arc<ModulePod>>,
}

impl Claim {
    fn as_far_as(&self, matters: impl Fn(&ModulePod) -> bool) -> Option<Claimed<'_>> {
        let interesting = self.pods.iter().filter(|pod| matters(pod)).count();
        let pods = match interesting {
            0 => return None,
            all if all == self.pods.len() => Cow::Borrowed(self.pods.as_slice()),
            _ => Cow::Owned(self.pods.iter().filter(|pod| matters(pod)).cloned().collect()),
        };
        Some(Claimed { nodes: &self.nodes, pods })
    }
}

/// Pods that each went to one of the same nodes, as far as somebody cares about them.
#[derive(Debug, Clone)]
pub struct Claimed<'a> {
    nodes: &'a NodeSet,
    pods: Cow<'a, [Arc<ModulePod>]>,
}

impl Claimed<'_> {
    /// Those that may have gone to this node.
    pub fn on(&self, node: Mark) -> &[Arc<ModulePod>] {
        if self.nodes.contains(node) { &self.pods } else { &[] }
    }
}

/// The reservations. One owner: the filter, under one lock that is never held across an await. A clone is for looking.
#[derive(Debug, Clone)]
pub struct Reservations {
    /// One that a filter left, and one for each binding.
    by_uid: HashMap<Arc<str>, Vec<Reservation>, RandomState>,
    by_node: HashMap<Arc<str>, Vec<Arc<ModulePod>>, RandomState>,
    claims: Vec<Claim>,
    claiming: usize,
    lifetime: Duration,
    /// How many were ever made.
    made: u64,
}

impl Reservations {
    /// None yet; each lives at most `lifetime`.
    pub fn new(lifetime: Duration) -> Self {
        Self {
            by_uid: HashMap::default(),
            by_node: HashMap::default(),
            claims: Vec::new(),
            claiming: 0,
            lifetime,
            made: 0,
        }
    }

    /// Pods placed on this node, and not yet seen there.
    pub fn on(&self, node: &str) -> &[Arc<ModulePod>] {
        if self.by_node.is_empty() {
            return &[];
        }
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    /// Nodes with Pods that were placed there and not yet seen.
    pub fn placed(&self) -> impl Iterator<Item = (&str, &[Arc<ModulePod>])> {
        self.by_node.iter().map(|(node, pods)| (&**node, pods.as_slice()))
    }

    /// Pods that were placed on this node or may have been.
    pub fn maybe_on(&self, node: &str, mark: Mark) -> Vec<Arc<ModulePod>> {
        self.on_or_claimed(node, mark, &self.claims(|_| true)).into_owned()
    }

    /// What may have gone to several nodes, of those Pods that matter: for a caller that asks about many nodes.
    pub fn claims(&self, matters: impl Fn(&ModulePod) -> bool) -> Vec<Claimed<'_>> {
        self.claims.iter().filter_map(|claim| claim.as_far_as(&matters)).collect()
    }

    /// Pods that were placed on this node, and those of `claims` that may have been.
    pub fn on_or_claimed<'a>(
        &'a self,
        node: &str,
        mark: Mark,
        claims: &'a [Claimed<'_>],
    ) -> Cow<'a, [Arc<ModulePod>]> {
        let on = self.on(node);
        let mut claimed = claims.iter().map(|claimed| claimed.on(mark)).filter(|pods| !pods.is_empty());
        let Some(first) = claimed.next() else { return Cow::Borrowed(on) };
        if on.is_empty() {
            let Some(second) = claimed.next() else { return Cow::Borrowed(first) };
            return Cow::Owned(first.iter().chain(second).chain(claimed.flatten()).cloned().collect());
        }
        // A Pod whose binding may yet happen here may have been given several nodes since.
        let others = first.iter().chain(claimed.flatten());
        let others = others.filter(|pod| !on.iter().any(|placed| placed.uid == pod.uid));
        Cow::Owned(on.iter().chain(others).cloned().collect())
    }

    /// Whether a Pod was placed so lately that it is seen any moment.
    pub fn is_awaited(&self, uid: &str, now: Instant) -> bool {
        self.held(uid).iter().any(|held| now.saturating_duration_since(held.made) < OVERDUE)
    }

    fn held(&self, uid: &str) -> &[Reservation] {
        self.by_uid.get(uid).map_or(&[], Vec::as_slice)
    }

    /// How many Pods have one.
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// Drops what has come true, what can no longer, and what is too old. While the snapshot may lack Pods nothing ends
    /// by age, and that time makes nothing older: what is not seen then may have come true. The snapshots of later calls
    /// must not be older.
    pub fn settle(&mut self, snapshot: &Snapshot, now: Instant) {
        let (in_doubt, doubted_until) = (snapshot.pods_in_doubt(now), snapshot.pods_health.doubted_until());
        let lifetime = self.lifetime;
        let is_over = |reservation: &mut Reservation| {
            let lifetime = lifetime + reservation.place.delay();
            let since = doubted_until.map_or(reservation.made, |until| until.max(reservation.made));
            let is_old = !in_doubt && now.saturating_duration_since(since) >= lifetime;
            match seen(&reservation.pod, snapshot) {
                Some(pod) => {
                    reservation.seen = true;
                    is_old || pod.node_name.is_some() || pod.deleting
                }
                None => is_old || reservation.seen,
            }
        };
        let mut ended = Vec::new();
        self.by_uid.retain(|_, held| {
            ended.extend(held.extract_if(.., |reservation| is_over(reservation)));
            !held.is_empty()
        });
        for reservation in ended {
            self.vacate(&reservation);
        }
    }

    /// Records that `pod` goes to `node`, instead of what a filter recorded for it before. The snapshot is that of the last
    /// [`Reservations::settle`], or newer.
    pub fn reserve(&mut self, pod: &ModulePod, node: &str, snapshot: &Snapshot, now: Instant) {
        self.place(pod, node, Place::On, snapshot, now);
    }

    /// The same for a binding that is about to be sent: what is recorded outlives the next question about the Pod, and
    /// other bindings of it. The number is for [`Reservations::unbind`].
    pub fn bind(&mut self, pod: &ModulePod, node: &str, snapshot: &Snapshot, now: Instant) -> u64 {
        self.place(pod, node, Place::Binding, snapshot, now);
        self.made
    }

    fn place(
        &mut self,
        pod: &ModulePod,
        node: &str,
        place: fn(Arc<str>) -> Place,
        snapshot: &Snapshot,
        now: Instant,
    ) {
        self.release(&pod.uid);
        let node: Arc<str> = node.into();
        if let Some(pod) = self.record(pod, place(Arc::clone(&node)), snapshot, now) {
            let pods = self.by_node.entry(node).or_default();
            pods.retain(|other| other.uid != pod.uid);
            pods.push(pod);
        }
    }

    /// Pods on their way to this node by a binding that may yet happen, whatever kube-scheduler believes.
    pub fn being_bound(&self, node: &str) -> impl Iterator<Item = &Arc<ModulePod>> {
        self.on(node).iter().filter(move |pod| {
            let held = self.held(&pod.uid);
            held.iter().any(|held| matches!(&held.place, Place::Binding(on) if **on == *node))
        })
    }

    /// Records that `pod` goes to one of `nodes`, instead of what a filter recorded for it before.
    ///
    /// # Errors
    /// When no more can be remembered. Nothing is recorded for the Pod then.
    pub fn claim(
        &mut self,
        pod: &ModulePod,
        nodes: NodeSet,
        snapshot: &Snapshot,
        now: Instant,
    ) -> Result<(), TooMany> {
        self.release(&pod.uid);
        if nodes.is_empty() {
            return Ok(());
        }
        if self.claiming >= CLAIMS {
            return Err(TooMany);
        }
        let known = self.claims.iter().position(|claim| *claim.nodes == nodes);
        let nodes = known
            .and_then(|index| self.claims.get(index))
            .map_or_else(|| Arc::new(nodes), |claim| Arc::clone(&claim.nodes));
        let Some(pod) = self.record(pod, Place::Among(Arc::clone(&nodes)), snapshot, now) else {
            return Ok(());
        };
        self.claiming += 1;
        match known.and_then(|index| self.claims.get_mut(index)) {
            Some(claim) => claim.pods.push(pod),
            None => self.claims.push(Claim { nodes, pods: vec![pod] }),
        }
        Ok(())
    }

    /// A Pod without UID is not one that kube-scheduler will bind.
    fn record(
        &mut self,
        pod: &ModulePod,
        place: Place,
        snapshot: &Snapshot,
        made: Instant,
    ) -> Option<Arc<ModulePod>> {
        if pod.uid.is_empty() {
            return None;
        }
        self.made += 1;
        let held = self.by_uid.entry(Arc::clone(&pod.uid)).or_default();
        // A Pod whose bindings have no answer is tried often.
        let known = held.iter().map(|held| &held.pod).find(|known| ***known == *pod);
        let pod = known.map_or_else(|| Arc::new(pod.clone()), Arc::clone);
        let seen = seen(&pod, snapshot).is_some();
        held.push(Reservation { number: self.made, pod: Arc::clone(&pod), made, seen, place });
        Some(pod)
    }

    /// Forgets what a filter recorded for a Pod. What is being bound may yet be.
    pub fn release(&mut self, uid: &str) {
        self.end(uid, |reservation| !matches!(reservation.place, Place::Binding(_)));
    }

    /// Forgets one binding that will not happen, by what [`Reservations::bind`] returned. Others of the Pod yet may.
    pub fn unbind(&mut self, uid: &str, number: u64) {
        self.end(uid, |reservation| reservation.number == number);
    }

    /// Forgets all that would bring a Pod to a node: it is gone or elsewhere.
    pub fn give_up(&mut self, uid: &str, node: &str) {
        self.end(uid, |reservation| reservation.place.is_on(node));
    }

    fn end(&mut self, uid: &str, ends: impl Fn(&Reservation) -> bool) {
        let Some(held) = self.by_uid.get_mut(uid) else { return };
        let ended: Vec<Reservation> = held.extract_if(.., |reservation| ends(reservation)).collect();
        if held.is_empty() {
            self.by_uid.remove(uid);
        }
        for reservation in ended {
            self.vacate(&reservation);
        }
    }

    fn vacate(&mut self, Reservation { pod, place, .. }: &Reservation) {
        let remove = |pods: &mut Vec<Arc<ModulePod>>| pods.retain(|other| other.uid != pod.uid);
        match place {
            Place::Among(nodes) => {
                self.claiming -= 1;
                if let Some(claim) = self.claims.iter_mut().find(|claim| Arc::ptr_eq(&claim.nodes, nodes)) {
                    remove(&mut claim.pods);
                }
                self.claims.retain(|claim| !claim.pods.is_empty());
            }
            Place::On(node) | Place::Binding(node) => {
                if self.held(&pod.uid).iter().any(|held| held.place.is_on(node)) {
                    return;
                }
                if let Some(pods) = self.by_node.get_mut(node) {
                    remove(pods);
                    if pods.is_empty() {
                        self.by_node.remove(node);
                    }
                }
            }
        }
    }
}

/// The Pod as the cache has it.
fn seen<'a>(pod: &ModulePod, snapshot: &'a Snapshot) -> Option<&'a Arc<ModulePod>> {
    snapshot.pods.get(&pod.key()).filter(|seen| seen.uid == pod.uid)
}
