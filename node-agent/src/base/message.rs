//! What goes into a base's actor and what comes out of it.
//!
//! The fleet writes [`Message`]s into the mailbox; the actor writes a [`Report`] whenever what it knows of the
//! base changed. Nothing else is shared between the two.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use policy::contract::inventory::Inventory;
use tokio::sync::oneshot;

use crate::discovery::BaseSpec;
use crate::healing::Load;

/// What a base's actor is told. Sent by the fleet only.
#[derive(Debug)]
pub enum Message {
    /// The base Pod as discovery sees it now: first sighting, restart, new labels, readiness, leaving.
    Base(Arc<BaseSpec>),
    /// The base Pod object is gone (or another Pod has its name): queued calls and debts are dropped unsent,
    /// its VPods are deleted, and the actor ends.
    Gone,
    /// A Pod bound to this VNode, added or changed. Also sent for foreign Pods.
    Pod(Arc<Pod>),
    /// The object of a bound Pod is gone.
    PodGone {
        /// `metadata.uid` of the Pod.
        uid: String,
    },
    /// All Pods bound to this VNode at the start have been sent. Before this nothing is uninstalled.
    PodsSynced,
    /// The brake or a pause closed or opened.
    Hold(Hold),
    /// The silence that was reported last is no accident of many bases: it may be acted on. Forgotten when the base
    /// answers again.
    SilenceCounts,
    /// The fault that probes report of a module is no accident of many: it may be installed again. Forgotten when its
    /// probes find it well, or when it was taken off.
    Reinstall {
        /// `metadata.uid` of the VPod.
        uid: String,
        /// Name of the container.
        container: String,
    },
    /// The class memory of this base is used up, as an earlier process found: no install is tried.
    Exhausted,
    /// The Node as last read from the API server carries this inventory (owners survive an agent restart).
    /// Sent once before the first `Pod`, `None` when there is no Node yet.
    Inventory(Option<Box<Inventory>>),
}

/// What holds a VNode: while anything does, nothing is installed, uninstalled or evicted; queries go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hold {
    /// A brake is closed: what seems lost may be a fault of ours, so nothing is set not ready for it either.
    pub brake: bool,
    /// The policy or someone paused the VNode: the status of its VPods goes on.
    pub pause: bool,
}

impl Hold {
    /// Whether anything holds.
    pub fn any(self) -> bool {
        self.brake || self.pause
    }
}

/// Whether the base answers, as far as its actor can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Not asked yet, or its application has not been ready since its start.
    Starting,
    /// The last `queryAllBiz` was answered, or fewer than the tolerated number were missed.
    Answering,
    /// Too many checks in a row were missed.
    Silent {
        /// First missed check of the row.
        since: Timestamp,
        /// Why, for people; free of credentials.
        reason: String,
    },
}

/// What the VNode of a base must show. Written by the actor only.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Whether the base answers.
    pub health: Health,
    /// Modules, owners, failures, metaspace, provides.
    pub inventory: Inventory,
    /// VPods bound and not terminal; `allocatable.pods` is lowered to it while `full` is set.
    pub bound: u32,
    /// The base must take no more VPods for now (healing, leaving, held).
    pub full: bool,
    /// Set once the base is leaving and none of its VPods is left.
    pub drained: bool,
    /// Modules that their probes give up: UID of the VPod and container. They stay until [`Message::Reinstall`].
    pub unhealthy: BTreeSet<(String, String)>,
    /// Whether its metaspace is used up.
    pub load: Load,
    /// Start of the base container that `load` speaks of.
    pub started_at: Option<Timestamp>,
}

/// A report on its way to the Node object. `written` is answered after the API server took it, so that an
/// owner stands on the Node before its `installBiz` is sent; the error text names the failed action.
#[derive(Debug)]
pub struct Publish {
    /// Name of the VNode.
    pub node: String,
    /// What to show.
    pub report: Arc<Report>,
    /// Where to say that it is written; `None` when the actor does not wait for it.
    pub written: Option<oneshot::Sender<Result<(), String>>>,
}
