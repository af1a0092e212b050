//! The one place that writes a VNode and its Lease. One task per VNode, started by the fleet, living for a term.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::{FIELD_MANAGER, Frame, HEARTBEAT_EVERY, SeenNode, Show, Wanted, changes, creation, render};
use crate::base::{Event, EventKind, EventSink};
use crate::lease::Term;
use crate::lease::node::{NodeLease, phase};
use crate::metrics::Metrics;

/// Longest time one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Metaspace figures alone are written at most this often: every Node write wakes all Pods an extender rejected.
const METASPACE_EVERY: Duration = Duration::from_secs(60);
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
    /// Delete Node and Lease, then end.
    Remove,
}

/// What all keepers share.
#[derive(Clone)]
pub struct KeeperContext {
    /// Nodes of the module cluster.
    pub nodes: Api<Node>,
    /// Leases in `kube-node-lease`.
    pub leases: Api<Lease>,
    /// Holder of the Leases.
    pub identity: String,
    /// `--base-cluster-id`.
    pub cluster: String,
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
    /// Node writes at once.
    pub node_calls: Arc<Semaphore>,
    /// Lease writes at once; apart from Node writes, which must never delay them.
    pub lease_calls: Arc<Semaphore>,
    /// Says that Node and Lease are gone, by name.
    pub removed: mpsc::UnboundedSender<String>,
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

/// Why a Node is not as it should be.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("cannot {action} Node {node}: {source}")]
    Call { action: &'static str, node: String, source: Box<kube::Error> },
    #[error("cannot {action} Node {node}: no answer in {CALL_LIMIT:?}")]
    Late { action: &'static str, node: String },
    #[error("the name {0} belongs to a Node that is not ours")]
    Taken(String),
    #[error("Node {0} stands for another base and must go first")]
    OtherBase(String),
    #[error("there is no Node {0} yet: its base has not answered")]
    NoVerdict(String),
    #[error("there is no Node {0} any more: its base is leaving")]
    Leaving(String),
}

impl KeepError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Call { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The task.
pub struct Keeper {
    context: KeeperContext,
    state: Arc<KeeperState>,
    name: String,
    shown: Option<(Box<Show>, Wanted)>,
    seen: Option<SeenNode>,
    /// A Node of ours was there before: it comes back whether or not the base answers.
    existed: bool,
    removing: bool,
    dirty: bool,
    waiting: Vec<oneshot::Sender<Result<(), String>>>,
    lease: NodeLease,
    failures: u32,
    not_before: Instant,
    heartbeat_at: Instant,
    inventory_at: Option<Instant>,
    observed: Option<String>,
    warned_cidr: bool,
    warned_stop: bool,
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
            existed: seen.is_some(),
            context,
            state,
            name,
            shown: None,
            seen,
            removing: false,
            dirty: false,
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
    pub async fn run(self, orders: mpsc::UnboundedReceiver<Order>) {
        let token = self.context.term.token().clone();
        token.run_until_cancelled(self.keep(orders)).await;
    }

    async fn keep(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        self.warn_of_cidr();
        loop {
            let wake = self.wake();
            tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    self.take(order);
                    while let Ok(order) = orders.try_recv() {
                        self.take(order);
                    }
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            if !self.context.term.holds() {
                return;
            }
            let now = Instant::now();
            if self.removing {
                if now >= self.not_before && self.remove().await {
                    // The fleet ends before its keepers only with the process.
                    let _ = self.context.removed.send(self.name.clone());
                    return;
                }
                continue;
            }
            if self.seen.is_some() && now >= self.lease.due() {
                self.renew().await;
            }
            if (self.dirty || now >= self.heartbeat_at) && Instant::now() >= self.not_before {
                self.write().await;
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
                let wanted = render(&show, &self.context.frame);
                let changed = self.shown.as_ref().is_none_or(|(_, before)| *before != wanted);
                self.shown = Some((show, wanted));
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
                if self.seen.as_ref().is_none_or(|before| seen.is_newer_than(before)) {
                    self.see(seen);
                    self.dirty |= self.shown.is_some();
                }
            }
            Order::Deleted(uid) => {
                if self.seen.as_ref().is_some_and(|seen| seen.uid() == uid) {
                    tracing::warn!(node = self.name, "the Node is gone");
                    self.seen = None;
                    self.dirty |= self.shown.is_some();
                }
            }
            Order::Remove => {
                self.removing = true;
                self.not_before = Instant::now();
                self.answer(|| Err("the VNode is being removed".to_owned()));
            }
        }
    }

    fn see(&mut self, seen: SeenNode) {
        if self.seen.as_ref().is_some_and(|before| before.uid() != seen.uid()) {
            self.lease.forget(Instant::now());
        }
        self.existed = true;
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
        match tokio::time::timeout(CALL_LIMIT, self.lease.renew(&uid, &self.context.metrics)).await {
            Ok(Ok(())) => {
                if let Some(at) = self.lease.renewed() {
                    self.state.renewed(at);
                }
            }
            Ok(Err(error)) => tracing::warn!(node = self.name, %error, "the Lease was not renewed"),
            Err(_) => {
                tracing::warn!(node = self.name, "the Lease was not renewed: no answer in {CALL_LIMIT:?}")
            }
        }
    }

    async fn write(&mut self) {
        let Some((show, wanted)) = self.shown.clone() else {
            // Nothing is known of the base yet: what stands there stays.
            self.heartbeat_at = Instant::now() + HEARTBEAT_EVERY;
            self.dirty = false;
            return;
        };
        let permits = Arc::clone(&self.context.node_calls);
        let Ok(_permit) = permits.acquire_owned().await else { return };
        match self.bring_about(&show, &wanted).await {
            Ok(()) => {
                self.failures = 0;
                self.answer(|| Ok(()));
                self.warn_of_stop(&show);
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &KeepError) {
        let now = Instant::now();
        let text = error.to_string();
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

    async fn bring_about(&mut self, show: &Show, wanted: &Wanted) -> Result<(), KeepError> {
        let Some(seen) = self.seen.clone() else { return self.create(show, wanted).await };
        if !seen.is_ours(&self.context.cluster) && !seen.has_provider_id(&wanted.provider_id) {
            // Looked at again before the next try: it may have gone.
            self.seen = None;
            return Err(KeepError::Taken(self.name.clone()));
        }
        if seen.base_uid() != show.spec.uid {
            self.seen = self.read().await?;
            return Err(KeepError::OtherBase(self.name.clone()));
        }
        let now = Instant::now();
        let heartbeat = now >= self.heartbeat_at;
        let changes = changes(&seen, wanted, heartbeat, Timestamp::now());
        if changes.only_metaspace
            && let Some(next) = self.inventory_at.map(|at| at + METASPACE_EVERY).filter(|next| *next > now)
        {
            self.not_before = next;
            return Ok(());
        }
        self.dirty = false;
        if changes.is_empty() {
            return Ok(());
        }
        if self.context.observe {
            self.observe("change", &[changes.spec.as_ref(), changes.status.as_ref()]);
            self.heartbeat_at = now + HEARTBEAT_EVERY;
            return Ok(());
        }
        self.dirty = true;
        if let Some(patch) = &changes.spec {
            self.patch("change the spec of", patch, false).await?;
        }
        if let Some(patch) = &changes.status {
            self.patch("change the status of", patch, true).await?;
            if patch.pointer("/metadata/annotations").is_some() {
                self.inventory_at = Some(now);
            }
        }
        self.dirty = false;
        if heartbeat {
            self.heartbeat_at = now + HEARTBEAT_EVERY;
        }
        Ok(())
    }

    async fn create(&mut self, show: &Show, wanted: &Wanted) -> Result<(), KeepError> {
        let verdict = wanted.conditions.iter().find(|condition| condition.type_ == "Ready");
        if show.spec.leaving.is_some() {
            return Err(KeepError::Leaving(self.name.clone()));
        }
        if verdict.is_none_or(|ready| !ready.status && !self.existed) {
            return Err(KeepError::NoVerdict(self.name.clone()));
        }
        let node = creation(&self.name, wanted, Timestamp::now());
        if self.context.observe {
            self.dirty = false;
            self.observe("create", &[serde_json::to_value(&node).ok().as_ref()]);
            return Ok(());
        }
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let result = self.call("create", self.context.nodes.create(&parameters, &node)).await;
        self.note("create", &result);
        match result {
            Ok(node) => {
                tracing::info!(node = self.name, base = %format_args!("{}/{}", show.spec.namespace, show.spec.pod), "VNode registered");
                self.dirty = false;
                self.inventory_at = Some(Instant::now());
                self.see(SeenNode::new(node));
                // The node controller wants it within its grace period; at once is simplest.
                self.lease.forget(Instant::now());
                Ok(())
            }
            Err(error) if error.code() == Some(409) => {
                self.seen = self.read().await?;
                match &self.seen {
                    Some(seen)
                        if !seen.is_ours(&self.context.cluster)
                            && !seen.has_provider_id(&wanted.provider_id) =>
                    {
                        self.seen = None;
                        Err(KeepError::Taken(self.name.clone()))
                    }
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn patch(
        &mut self,
        action: &'static str,
        patch: &serde_json::Value,
        status: bool,
    ) -> Result<(), KeepError> {
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Strategic(patch);
        let result = if status {
            self.call(action, self.context.nodes.patch_status(&self.name, &parameters, &patch)).await
        } else {
            self.call(action, self.context.nodes.patch(&self.name, &parameters, &patch)).await
        };
        self.note(if status { "patch_status" } else { "patch" }, &result);
        match result {
            Ok(node) => {
                self.see(SeenNode::new(node));
                Ok(())
            }
            Err(error) => {
                // Gone, or somebody wrote in between: the next try begins with what is there.
                if matches!(error.code(), Some(404 | 409)) {
                    self.seen = self.read().await?;
                }
                Err(error)
            }
        }
    }

    async fn read(&self) -> Result<Option<SeenNode>, KeepError> {
        let result = self.call("read", self.context.nodes.get_opt(&self.name)).await;
        self.note("get", &result);
        Ok(result?.map(SeenNode::new))
    }

    /// Deletes Node and Lease; says whether both are gone.
    async fn remove(&mut self) -> bool {
        if self.context.observe {
            self.observe("remove", &[]);
            return true;
        }
        let node = match &self.seen {
            None => Ok(()),
            Some(seen) => {
                let preconditions =
                    Preconditions { uid: Some(seen.uid().to_owned()), resource_version: None };
                let parameters =
                    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let result = self.call("delete", self.context.nodes.delete(&self.name, &parameters)).await;
                self.note("delete", &result);
                match result {
                    // Gone, or another Node has the name by now.
                    Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
                    other => other.map(|_| ()),
                }
            }
        };
        let lease = match node {
            Ok(()) => {
                self.seen = None;
                match tokio::time::timeout(CALL_LIMIT, self.lease.delete(&self.context.metrics)).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(source)) => Err(KeepError::Call {
                        action: "delete the Lease of",
                        node: self.name.clone(),
                        source: Box::new(source),
                    }),
                    Err(_) => Err(KeepError::Late { action: "delete the Lease of", node: self.name.clone() }),
                }
            }
            Err(error) => Err(error),
        };
        match lease {
            Ok(()) => {
                tracing::info!(node = self.name, "VNode removed");
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    async fn call<T>(
        &self,
        action: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, KeepError> {
        match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(result) => result.map_err(|source| KeepError::Call {
                action,
                node: self.name.clone(),
                source: Box::new(source),
            }),
            Err(_) => Err(KeepError::Late { action, node: self.name.clone() }),
        }
    }

    fn note<T>(&self, verb: &'static str, result: &Result<T, KeepError>) {
        use crate::metrics::ApiResult;
        let outcome = match result {
            Ok(_) => ApiResult::Ok,
            Err(KeepError::Call { source, .. }) => ApiResult::of(source),
            Err(_) => ApiResult::Timeout,
        };
        self.context.metrics.api_call("nodes", verb, outcome);
    }

    fn answer(&mut self, result: impl Fn() -> Result<(), String>) {
        for waiting in self.waiting.drain(..) {
            // An actor that ended does not wait any more.
            let _ = waiting.send(result());
        }
    }

    fn observe(&mut self, action: &'static str, objects: &[Option<&serde_json::Value>]) {
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
