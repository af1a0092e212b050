//! What a base's actor is given by the fleet, and how it is started.
//!
//! Everything here is shared or injected; what the actor learns afterwards comes through its mailbox
//! ([`Message`](super::Message)), what it tells goes out through `publish`, Events and the status of VPods.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use policy::Policy;
use service::server_clock::ServerClock;
use tokio::sync::{Semaphore, mpsc, watch};

use super::Publish;
use super::downloads::Downloads;
use crate::arklet;
use crate::audit::AuditLog;
use crate::discovery::BaseSpec;
use crate::failure;
use crate::journal::Journal;
use crate::lease::Term;

/// Writes to VPods at once, of all bases together. Each has a connection of its own to the API server, and few leave it
/// to what installs wait for.
pub const POD_CALLS: usize = 8;

/// Everything an actor needs from outside. One per base; the shared parts are cheap clones.
#[derive(Clone)]
pub struct ActorContext {
    /// The base as discovery saw it first; later sightings come as `Message::Base`.
    pub spec: Arc<BaseSpec>,
    /// Client of the module cluster.
    pub client: kube::Client,
    /// Writes to VPods at once, of all bases together.
    pub pod_calls: Arc<Semaphore>,
    /// The caller of arklet, shared by all actors.
    pub arklet: arklet::Client,
    /// The policy in force.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Namespaces of VPods annotated `stowage.dev/paused: "true"`: nothing is installed or removed for them.
    pub paused: watch::Receiver<Arc<BTreeSet<String>>>,
    /// Where reports go. Unbounded, because fleet and actor must never wait for each other; the actor sends
    /// only on change.
    pub publish: mpsc::UnboundedSender<Publish>,
    /// What EndpointSlices say.
    pub endpoints: Arc<dyn EndpointLookup>,
    /// Where Events go.
    pub events: Arc<dyn EventSink>,
    /// What is counted.
    pub meter: Arc<dyn Meter>,
    /// Who did what.
    pub audit: AuditLog,
    /// What `kubectl logs` shows.
    pub journal: Journal,
    /// Installs in flight, fleet-wide.
    pub downloads: Arc<Downloads>,
    /// Failures by template, fleet-wide.
    pub failures: Arc<failure::Memory>,
    /// `--observe`: decide and log, but write nothing and change nothing.
    pub observe: bool,
    /// The module cluster's time, by which VPods are made and deleted.
    pub clock: ServerClock,
    /// The time in which this agent may act. Looked at right before every write and every call that changes a base;
    /// its token ends the actor at once, without touching anything.
    pub term: Term,
}

/// Whether a VPod still takes new traffic. Answered from a local store, never by a call.
pub trait EndpointLookup: Send + Sync {
    /// `true` while some EndpointSlice lists the Pod (`targetRef.uid`) with `ready: true`, and while the store
    /// has not been filled yet.
    fn ready(&self, namespace: &str, pod_uid: &str) -> bool;
}

/// Kind of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// The story as it should go.
    Normal,
    /// Someone should look.
    Warning,
}

/// One Event, ready to be recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The object it is about.
    pub regarding: ObjectReference,
    /// Normal or Warning.
    pub kind: EventKind,
    /// Stable, CamelCase.
    pub reason: &'static str,
    /// What was being done, CamelCase.
    pub action: &'static str,
    /// For people; at most 1 KiB, free of credentials.
    pub note: String,
}

/// Records Events: aggregated, bounded, never blocking the caller.
pub trait EventSink: Send + Sync {
    /// Takes an Event; it may be dropped when too many wait.
    fn emit(&self, event: Event);
}

/// What is counted. All labels are closed sets.
pub trait Meter: Send + Sync {
    /// An `installBiz` ended; `code` is `ok` or the code of a failure, `seconds` the time it took.
    fn install(&self, code: &'static str, seconds: f64) {
        let _ = (code, seconds);
    }
    /// An `uninstallBiz` ended; `code` as above.
    fn uninstall(&self, code: &'static str) {
        let _ = code;
    }
    /// A VPod's status was written; `code` is `ok`, `conflict`, `gone` or `error`.
    fn status_write(&self, code: &'static str) {
        let _ = code;
    }
    /// A check of a base ended.
    fn check(&self, ok: bool) {
        let _ = ok;
    }
    /// A VPod's uninstall was given up past its force limit and became a debt.
    fn forced(&self) {}
}

/// Counts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMeter;

impl Meter for NoMeter {}
