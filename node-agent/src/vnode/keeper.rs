//! The one place that writes a VNode and its Lease. One task per VNode, started by the fleet, living for a term.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::Api;
use kube::runtime::wait::{await_condition, conditions::is_deleted};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::write::{CALL_LIMIT, KeepError};
use super::{Frame, HEARTBEAT_EVERY, SeenNode, Show, Wanted, render};
use crate::base::{Event, EventKind, EventSink};
use crate::lease::Term;
use crate::lease::node::{NodeLease, NodeLeases, phase};
use crate::metrics::Metrics;

const FIRST_BACKOFF: Duration = Duration::from_millis(200);
/// A deleted Node must be back within 10 s, so no pause is longer than this while the API server may recover.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// What the API server refuses does not get better soon.
const REFUSED_BACKOFF: Duration = Duration::from_secs(30);

/// What a keeper is told. Sent by the fleet only.
#[derive(Debug)]
pub enum Order {
    /// What the Node must show from now on, and whom to tell when it does.
    Show(Box<Show>, Vec<oneshot::Sender<Result<(), String>>>),
    /// The Node as the watch has it.
    Seen(SeenNode),
    /// The Node with this UID is gone.
    Deleted(String),
    /// The base is gone: nothing new may come to the Node, whatever else it must show.
    Leave,
    /// Delete Node and Lease, then end.
    Remove,
}

/// What all keepers share.
#[derive(Clone)]
pub struct KeeperContext {
    /// Nodes of the module cluster.
    pub nodes: Arc<Api<Node>>,
    /// Leases in `kube-node-lease`.
    pub leases: Arc<NodeLeases>,
    /// Holder of the Leases.
    pub identity: Arc<str>,
    /// `--base-cluster-id`.
    pub cluster: Arc<str>,
    /// What the flags say about every VNode.
    pub frame: Arc<Frame>,
    /// The term in which this keeper may write.
    pub term: Term,
    /// Log instead of writing.
    pub observe: bool,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Where Events go.
    pub events: Arc<dyn EventSink>,
    /// Node writes at once that an install waits for.
    pub owner_calls: Arc<Semaphore>,
    /// All other Node writes at once.
    pub node_calls: Arc<Semaphore>,
    /// Lease writes at once; apart from Node writes, which must never delay them.
    pub lease_calls: Arc<Semaphore>,
    /// Says that Node and Lease are gone: the name, and the UID of the Node.
    pub removed: mpsc::UnboundedSender<(String, Option<String>)>,
}

/// What others may look at. Written by the keeper only.
#[derive(Debug, Default)]
pub struct KeeperState {
    origin: OnceLock<Instant>,
    renewed: AtomicU64,
}

impl KeeperState {
    fn renewed(&self, at: Instant) {
        let origin = *self.origin.get_or_init(|| at);
        let millis = u64::try_from(at.saturating_duration_since(origin).as_millis()).unwrap_or(u64::MAX);
        self.renewed.store(millis, Ordering::Release);
    }

    /// How long ago the Lease was renewed by us; `None`: never.
    pub fn lease_age(&self, now: Instant) -> Option<Duration> {
        let origin = self.origin.get()?;
        let renewed = Duration::from_millis(self.renewed.load(Ordering::Acquire));
        Some(now.saturating_duration_since(*origin + renewed))
    }
}

/// The task.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, none excludes another")]
pub struct Keeper {
    pub(super) context: KeeperContext,
    pub(super) state: Arc<KeeperState>,
    pub(super) name: String,
    pub(super) shown: Option<Box<Show>>,
    pub(super) seen: Option<SeenNode>,
    /// UID of the last Node of ours: after one was there it comes back whether or not the base answers.
    pub(super) stood: Option<String>,
    pub(super) leaving: bool,
    pub(super) removing: bool,
    pub(super) dirty: bool,
    /// UID of a Node of this name that is not ours, or not any more: the watch does not tell when it goes.
    pub(super) stranger: Option<String>,
    pub(super) waiting: Vec<oneshot::Sender<Result<(), String>>>,
    pub(super) lease: NodeLease,
    pub(super) failures: u32,
    pub(super) not_before: Instant,
    pub(super) heartbeat_at: Instant,
    pub(super) inventory_at: Option<Instant>,
    pub(super) observed: Option<String>,
    pub(super) warned_cidr: bool,
    pub(super) warned_stop: bool,
}

impl Keeper {
    /// A keeper for the VNode of this name; `seen` when it was there at the start.
    pub fn new(
        context: KeeperContext,
        name: String,
        seen: Option<SeenNode>,
        state: Arc<KeeperState>,
    ) -> Self {
        let now = Instant::now();
        let lease = NodeLease::new(
            context.leases.clone(),
            name.clone(),
            context.identity.clone(),
            context.cluster.clone(),
            seen.is_some(),
            now,
        );
        Self {
            heartbeat_at: now + HEARTBEAT_EVERY.min(Duration::from_secs(30)) + phase(&name, HEARTBEAT_EVERY),
            stood: seen.as_ref().map(|seen| seen.uid().to_owned()),
            context,
            state,
            name,
            shown: None,
            seen,
            leaving: false,
            removing: false,
            dirty: false,
            stranger: None,
            waiting: Vec::new(),
            lease,
            failures: 0,
            not_before: now,
            inventory_at: None,
            observed: None,
            warned_cidr: false,
            warned_stop: false,
        }
    }

    /// Runs until the term ends, the fleet lets go, or the VNode is removed.
    pub fn run(self, orders: mpsc::UnboundedReceiver<Order>) -> impl Future<Output = ()> + Send {
        let token = self.context.term.token().clone();
        // Boxed: the futures would carry it several times over.
        let keep = Box::new(self).keep(orders);
        async move {
            token.run_until_cancelled(keep).await;
        }
    }

    async fn keep(mut self: Box<Self>, mut orders: mpsc::UnboundedReceiver<Order>) {
        self.warn_of_cidr();
        // Kept from pass to pass: each new one lists and watches anew.
        let (mut waited, mut goes) = (None, gone(&self.context.nodes, &self.name, None));
        loop {
            let wake = self.wake();
            if waited != self.stranger {
                waited.clone_from(&self.stranger);
                goes = gone(&self.context.nodes, &self.name, waited.as_ref());
            }
            tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    self.take(order);
                    while let Ok(order) = orders.try_recv() {
                        self.take(order);
                    }
                }
                () = &mut goes => {
                    (waited, goes) = (None, gone(&self.context.nodes, &self.name, None));
                    self.stranger_gone();
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            if !self.context.term.holds() {
                return;
            }
            let now = Instant::now();
            if self.removing {
                if now >= self.not_before && Box::pin(self.remove()).await {
                    // The fleet ends before its keepers only with the process.
                    let _ = self.context.removed.send((self.name.clone(), self.stood.take()));
                    return;
                }
                continue;
            }
            if self.seen.is_some() && now >= self.lease.due() {
                Box::pin(self.renew()).await;
            }
            if (self.dirty || now >= self.heartbeat_at) && Instant::now() >= self.not_before {
                Box::pin(self.write(&mut orders)).await;
            }
        }
    }

    fn wake(&self) -> Instant {
        let mut wake = self.heartbeat_at.max(self.not_before);
        if self.dirty || self.removing {
            wake = wake.min(self.not_before);
        }
        if self.seen.is_some() && !self.removing {
            wake = wake.min(self.lease.due());
        }
        wake
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Show(show, written) => {
                let changed = self
                    .shown
                    .as_ref()
                    .is_none_or(|before| *before != show && self.wanted(before) != self.wanted(&show));
                self.shown = Some(show);
                self.waiting.extend(written);
                // Whoever waits must hear of the Node as it is, so the look is not skipped.
                if changed || !self.waiting.is_empty() {
                    self.dirty = true;
                    if changed && self.failures == 0 {
                        self.not_before = Instant::now();
                    }
                }
            }
            Order::Seen(seen) => {
                if !self.is_next(&seen) && self.seen.as_ref().is_none_or(|before| seen.is_newer_than(before))
                {
                    self.see(seen);
                    self.dirty |= self.shown.is_some() || self.leaving;
                }
            }
            Order::Deleted(uid) => {
                if self.seen.as_ref().is_some_and(|seen| seen.uid() == uid) {
                    tracing::warn!(node = self.name, "the Node is gone");
                    self.seen = None;
                    self.dirty |= self.shown.is_some();
                }
            }
            Order::Leave => {
                self.leaving = true;
                self.dirty = true;
                self.not_before = Instant::now();
            }
            Order::Remove => {
                self.removing = true;
                self.not_before = Instant::now();
                self.answer(|| Err("the VNode is being removed".to_owned()));
            }
        }
    }

    /// Made when it is needed: kept, it would be the larger part of what a base costs.
    fn wanted(&self, show: &Show) -> Wanted {
        let mut wanted = render(show, &self.context.frame);
        if self.leaving {
            wanted.leave();
        }
        wanted
    }

    /// The name is free again, whatever the pause after what was refused.
    fn stranger_gone(&mut self) {
        let uid = self.stranger.take();
        tracing::warn!(node = self.name, "a Node that was not ours is gone");
        if self.seen.as_ref().is_some_and(|seen| Some(seen.uid()) == uid.as_deref()) {
            self.seen = None;
        }
        self.dirty |= self.shown.is_some();
        self.failures = 0;
        self.not_before = Instant::now();
    }

    /// Whether this Node came after the one that leaves: another agent may have made it, and looks after it then.
    pub(super) fn is_next(&self, seen: &SeenNode) -> bool {
        (self.leaving || self.removing) && self.stood.as_deref().is_some_and(|stood| stood != seen.uid())
    }

    pub(super) fn see(&mut self, seen: SeenNode) {
        if self.seen.as_ref().is_some_and(|before| before.uid() != seen.uid()) {
            self.lease.forget(Instant::now());
        }
        self.stood = Some(seen.uid().to_owned());
        self.seen = Some(seen);
        self.warn_of_cidr();
    }

    async fn renew(&mut self) {
        let uid = self.seen.as_ref().map(|seen| seen.uid().to_owned()).unwrap_or_default();
        if self.context.observe {
            self.lease.forget(Instant::now() + crate::lease::node::RENEW_EVERY);
            return;
        }
        let Ok(_permit) = self.context.lease_calls.clone().acquire_owned().await else { return };
        if !self.context.term.holds() {
            return;
        }
        match tokio::time::timeout(CALL_LIMIT, self.lease.renew(&uid, &self.context.metrics)).await {
            Ok(Ok(())) => {
                if let Some(at) = self.lease.renewed() {
                    self.state.renewed(at);
                }
            }
            Ok(Err(error)) => tracing::warn!(node = self.name, %error, "the Lease was not renewed"),
            Err(_) => {
                tracing::warn!(node = self.name, "the Lease was not renewed: no answer in {CALL_LIMIT:?}");
            }
        }
    }

    async fn write(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) {
        if self.shown.is_none() {
            if self.leaving && self.dirty {
                match self.leave().await {
                    Ok(()) => self.failures = 0,
                    Err(error) => self.failed(&error),
                }
                return;
            }
            // Nothing is known of the base yet: what stands there stays.
            self.heartbeat_at = Instant::now() + HEARTBEAT_EVERY;
            self.dirty = false;
            return;
        }
        let Some(_permit) = self.permit(orders).await else { return };
        let Some(show) = self.shown.clone() else { return };
        let wanted = self.wanted(&show);
        match self.bring_about(&show, &wanted).await {
            Ok(()) => {
                self.failures = 0;
                self.stranger = None;
                self.answer(|| Ok(()));
                self.warn_of_stop(&show);
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Waits for its turn. An install waits for the Node when an owner must stand on it first: such a write does not
    /// stand in line behind others. What is told meanwhile is taken, so that one write does for all of it.
    async fn permit(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) -> Option<OwnedSemaphorePermit> {
        loop {
            let urgent = !self.waiting.is_empty();
            let calls = if urgent { &self.context.owner_calls } else { &self.context.node_calls };
            let mut permit = std::pin::pin!(Arc::clone(calls).acquire_owned());
            loop {
                let due = self.lease.due();
                tokio::select! {
                    permit = &mut permit => return permit.ok(),
                    order = orders.recv() => {
                        self.take(order?);
                        if self.removing {
                            return None;
                        }
                        if !urgent && !self.waiting.is_empty() {
                            break;
                        }
                    }
                    // The place in the queue is kept meanwhile.
                    () = tokio::time::sleep_until(due), if self.seen.is_some() => {
                        if !self.context.term.holds() {
                            return None;
                        }
                        Box::pin(self.renew()).await;
                    }
                }
            }
        }
    }

    pub(super) fn failed(&mut self, error: &KeepError) {
        let now = Instant::now();
        let text = error.to_string();
        if let Some(seen) = self.seen.as_ref().filter(|seen| !seen.is_ours(&self.context.cluster)) {
            self.stranger = Some(seen.uid().to_owned());
        }
        let first = self.failures == 0;
        self.failures = self.failures.saturating_add(1);
        self.not_before = now
            + match error {
                KeepError::NoVerdict(_) | KeepError::Leaving(_) => HEARTBEAT_EVERY,
                KeepError::Taken(_) => REFUSED_BACKOFF,
                _ if matches!(error.code(), Some(400 | 403 | 422)) => {
                    FIRST_BACKOFF.saturating_mul(1 << self.failures.min(10)).min(REFUSED_BACKOFF)
                }
                _ => FIRST_BACKOFF.saturating_mul(1 << self.failures.min(10)).min(LONGEST_BACKOFF),
            };
        match error {
            KeepError::NoVerdict(_) | KeepError::Leaving(_) => {
                self.failures = 0;
                self.dirty = false;
            }
            KeepError::Taken(_) => self.warn("NodeNameTaken", "Register", text.clone()),
            _ if matches!(error.code(), Some(400 | 403 | 422)) => {
                self.warn("NodeRefused", "Register", text.clone());
            }
            _ if first => tracing::info!(node = self.name, error = text, "tried again"),
            _ => tracing::warn!(node = self.name, error = text, failures = self.failures, "tried again"),
        }
        self.answer(|| Err(text.clone()));
    }

    fn answer(&mut self, result: impl Fn() -> Result<(), String>) {
        for waiting in self.waiting.drain(..) {
            // An actor that ended does not wait any more.
            let _ = waiting.send(result());
        }
    }

    pub(super) fn observe(&mut self, action: &'static str, objects: &[Option<&serde_json::Value>]) {
        let text = objects.iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let line = format!("{action} {text}");
        if self.observed.as_ref() != Some(&line) {
            tracing::info!(node = self.name, would = action, object = text, "observed");
            self.observed = Some(line);
        }
    }

    fn warn_of_cidr(&mut self) {
        let has = self.seen.as_ref().is_some_and(SeenNode::has_pod_cidr);
        if has && !self.warned_cidr {
            self.warned_cidr = true;
            let note = "the cluster handed out a Pod CIDR to this VNode, which needs none: VNodes use up the ranges of \
                        real nodes; turn off --allocate-node-cidrs or exclude VNodes";
            self.warn("PodCIDRAllocated", "Register", note.to_owned());
        }
    }

    fn warn_of_stop(&mut self, show: &Show) {
        if !self.warned_stop && !show.spec.pre_stop && self.seen.is_some() {
            self.warned_stop = true;
            let note = "the base container has no preStop hook: when its Pod is deleted, requests to modules may be \
                        lost; add preStop: {sleep} of at least drain.wait";
            self.warn("NoPreStop", "Register", note.to_owned());
        }
    }

    fn warn(&self, reason: &'static str, action: &'static str, note: String) {
        let uid = self.seen.as_ref().map(|seen| seen.uid().to_owned());
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            uid: uid.or_else(|| Some(self.name.clone())),
            ..ObjectReference::default()
        };
        self.context.events.emit(Event { regarding, kind: EventKind::Warning, reason, action, note });
    }
}

/// Ends when no Node of this name has this UID any more; never where there is none to wait for. Costs nothing where there
/// is none, which is nearly always.
fn gone(nodes: &Api<Node>, name: &str, uid: Option<&String>) -> BoxFuture<'static, ()> {
    let Some(uid) = uid.cloned() else { return Box::pin(std::future::pending()) };
    let (nodes, name) = (nodes.clone(), name.to_owned());
    Box::pin(async move {
        while await_condition(nodes.clone(), &name, is_deleted(&uid)).await.is_err() {
            tokio::time::sleep(LONGEST_BACKOFF).await;
        }
    })
}

#[cfg(test)]
mod tests;
