//! Placements just made and not yet seen in the cache.
//!
//! kube-scheduler assumes a placement at once and binds it later; we see it when the watch delivers it, 10 ms to
//! seconds after. A Pod that is filtered in between could be sent to the same place. So each filter leaves a
//! reservation by Pod UID: on the one node it answered, or a claim on all of them, because kube-scheduler does not
//! tell which it took. It ends when the Pod is seen bound, when the Pod is filtered anew, when the Pod is gone, or
//! after a time.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use policy::contract::ModulePod;

use crate::cache::Snapshot;

/// Names of nodes.
pub type Names = HashSet<Arc<str>, RandomState>;

/// Claims on several nodes remembered at most; each may name thousands.
const CLAIMS: usize = 64;

/// A Pod may reach kube-scheduler's watch before ours; only after this long is one we do not see taken as deleted.
const WATCH_LAG: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Reservation {
    pod: Arc<ModulePod>,
    made: Instant,
    place: Place,
}

#[derive(Debug)]
enum Place {
    On(Arc<str>),
    Among(Names),
}

/// The reservations. One owner: the filter, under one lock that is never held across an await.
#[derive(Debug)]
pub struct Reservations {
    by_uid: HashMap<Arc<str>, Reservation, RandomState>,
    by_node: HashMap<Arc<str>, Vec<Arc<ModulePod>>, RandomState>,
    claims: usize,
    lifetime: Duration,
}

impl Reservations {
    /// None yet; each lives at most `lifetime`.
    pub fn new(lifetime: Duration) -> Self {
        Self { by_uid: HashMap::default(), by_node: HashMap::default(), claims: 0, lifetime }
    }

    /// Pods placed on this node, and not yet seen there.
    pub fn on(&self, node: &str) -> &[Arc<ModulePod>] {
        if self.by_node.is_empty() {
            return &[];
        }
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    /// Pods that were placed on this node or may have been.
    pub fn maybe_on(&self, node: &str) -> Cow<'_, [Arc<ModulePod>]> {
        let on = self.on(node);
        if self.claims == 0 {
            return Cow::Borrowed(on);
        }
        let among = |reservation: &&Reservation| matches!(&reservation.place, Place::Among(names) if names.contains(node));
        let mut claiming =
            self.by_uid.values().filter(among).map(|reservation| Arc::clone(&reservation.pod)).peekable();
        if claiming.peek().is_none() {
            return Cow::Borrowed(on);
        }
        Cow::Owned(on.iter().cloned().chain(claiming).collect())
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

    /// Records that `pod` goes to `node`, instead of what was recorded for it before.
    pub fn reserve(&mut self, pod: &ModulePod, node: &str, now: Instant) {
        let node: Arc<str> = node.into();
        if let Some(pod) = self.record(pod, Place::On(Arc::clone(&node)), now) {
            self.by_node.entry(node).or_default().push(pod);
        }
    }

    /// Records that `pod` goes to one of `names`, instead of what was recorded for it before.
    pub fn claim(&mut self, pod: &ModulePod, names: Names, now: Instant) {
        if names.is_empty() {
            return self.release(&pod.uid);
        }
        if self.claims >= CLAIMS {
            let claims = self.by_uid.iter().filter(|(_, old)| matches!(old.place, Place::Among(_)));
            if let Some(oldest) = claims.min_by_key(|(_, old)| old.made).map(|(uid, _)| Arc::clone(uid)) {
                self.release(&oldest);
            }
        }
        if self.record(pod, Place::Among(names), now).is_some() {
            self.claims += 1;
        }
    }

    /// A Pod without UID is not one that kube-scheduler will bind.
    fn record(&mut self, pod: &ModulePod, place: Place, made: Instant) -> Option<Arc<ModulePod>> {
        self.release(&pod.uid);
        if pod.uid.is_empty() {
            return None;
        }
        let pod = Arc::new(pod.clone());
        self.by_uid.insert(Arc::clone(&pod.uid), Reservation { pod: Arc::clone(&pod), made, place });
        Some(pod)
    }

    /// Forgets what was recorded for a Pod.
    pub fn release(&mut self, uid: &str) {
        let Some(Reservation { place, .. }) = self.by_uid.remove(uid) else { return };
        let node = match place {
            Place::Among(_) => {
                self.claims -= 1;
                return;
            }
            Place::On(node) => node,
        };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|pod| *pod.uid != *uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
}
