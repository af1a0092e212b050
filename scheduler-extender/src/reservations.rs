//! Placements just made and not yet seen in the cache.
//!
//! kube-scheduler assumes a placement at once and binds it later; we see it when the watch delivers it, 10 ms to
//! seconds after. A Pod that is filtered in between would take the same place again. So a filter that leaves exactly
//! one node records it here, by Pod UID. Nobody tells us what became of it: it ends when the Pod is seen bound, when
//! the Pod is filtered anew, when the Pod is gone, or after a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use policy::contract::ModulePod;

use crate::cache::Snapshot;

/// A Pod may reach kube-scheduler's watch before ours; only after this long is one we do not see taken as deleted.
const WATCH_LAG: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Reservation {
    node: Arc<str>,
    pod: Arc<ModulePod>,
    made: Instant,
}

/// The reservations. One owner: the filter, under one lock that is never held across an await.
#[derive(Debug)]
pub struct Reservations {
    by_uid: HashMap<Arc<str>, Reservation>,
    by_node: HashMap<Arc<str>, Vec<Arc<ModulePod>>>,
    lifetime: Duration,
}

impl Reservations {
    /// None yet; each lives at most `lifetime`.
    pub fn new(lifetime: Duration) -> Self {
        Self { by_uid: HashMap::new(), by_node: HashMap::new(), lifetime }
    }

    /// Pods placed on a node and not yet seen there.
    pub fn on(&self, node: &str) -> &[Arc<ModulePod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// Drops what has come true, what can no longer, and what is too old.
    pub fn settle(&mut self, snapshot: &Snapshot, now: Instant) {
        let lifetime = self.lifetime;
        let over = |reservation: &Reservation| {
            let age = now.saturating_duration_since(reservation.made);
            let seen = snapshot.pods.get(&reservation.pod.key()).filter(|pod| pod.uid == reservation.pod.uid);
            age >= lifetime || seen.map_or(age >= WATCH_LAG, |pod| pod.node_name.is_some() || pod.deleting)
        };
        let ended: Vec<Arc<str>> = self
            .by_uid
            .iter()
            .filter(|(_, reservation)| over(reservation))
            .map(|(uid, _)| Arc::clone(uid))
            .collect();
        for uid in ended {
            self.release(&uid);
        }
    }

    /// Records that `pod` goes to `node`, instead of what was recorded for it before. A Pod without UID is not one
    /// that kube-scheduler will bind.
    pub fn reserve(&mut self, pod: &ModulePod, node: &str, now: Instant) {
        self.release(&pod.uid);
        if pod.uid.is_empty() {
            return;
        }
        let (pod, node): (Arc<ModulePod>, Arc<str>) = (Arc::new(pod.clone()), node.into());
        self.by_node.entry(Arc::clone(&node)).or_default().push(Arc::clone(&pod));
        self.by_uid.insert(Arc::clone(&pod.uid), Reservation { node, pod, made: now });
    }

    /// Forgets what was recorded for a Pod.
    pub fn release(&mut self, uid: &str) {
        let Some(Reservation { node, .. }) = self.by_uid.remove(uid) else { return };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|pod| *pod.uid != *uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
}
