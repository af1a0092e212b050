//! The fleet: which bases, VNodes and VPods there are, and who looks after each. One task owns it all; watches,
//! actors and keepers talk to it through mailboxes, and it waits for none of them.
//!
//! It runs on a standby too, so that a new leader begins with everything in hand; actors and keepers exist only
//! during a term.

mod awaited;
mod bases;
mod calls;
mod diag;
mod drift;
mod endpoints;
mod follow;
mod gate;
mod heal;
mod hold;
mod losses;
mod mirror;
mod place;
mod pods;
mod scale;
mod sidecars;
mod slots;
mod successors;
#[cfg(test)]
mod tests;
mod unhealthy;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use service::server_clock::ServerClock;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use awaited::Unplaced;
pub use endpoints::{Endpoints, Slice};
pub use follow::{Following, WatchBoard, follow};
pub use mirror::{Delta, Feed, Mirror};
pub use workloads::Workload;

use crate::base::{EventSink, Message, Publish};
use crate::brake::Brake;
use crate::discovery::BaseSpec;
use crate::journal::Journal;
use crate::lease::node::NodeLeases;
use crate::lease::{LeaderHandle, Term};
use crate::metrics::Metrics;
use crate::rules::Rules;
use crate::sidecar::OwnBase;
use crate::vnode::{Frame, HostFacts, SeenNode};
use bases::BaseKey;
use losses::Losses;
use slots::Slot;

/// How often the fleet looks at what is due.
const TICK: Duration = Duration::from_secs(1);
/// Calls of the fleet's own at once: look-ups of base Pods and real nodes, deletions of left-over VPods.
const CALLS_AT_ONCE: usize = 16;
/// Node writes at once that installs wait for. Each call has a connection of its own.
const OWNER_CALLS: usize = 16;
/// Other Node writes at once: few, so that in a burst they do not take the API server from those above.
const NODE_CALLS: usize = 8;
/// Renewals of Leases at once.
const LEASE_CALLS: usize = 32;

/// Every VNode's name begins so, which sorts out other Pods as they arrive.
pub fn is_vnode_name(name: &str) -> bool {
    name.starts_with("virtual-node-")
}

/// What the fleet is told, by watches and by its own calls.
#[derive(Debug)]
pub enum Input {
    /// The watch of base Pods with this number.
    BasePod(usize, Feed<Box<Pod>>),
    /// The watch of our Nodes.
    Node(Feed<SeenNode>),
    /// The watch of Pods on VNodes.
    Pod(Feed<Arc<Pod>>),
    /// The watch of Pods without a Node.
    Unplaced(Feed<Arc<Unplaced>>),
    /// The watch of `DaemonSets`.
    DaemonSet(Feed<Arc<Workload>>),
    /// The watch of Deployments.
    Deployment(Feed<Arc<Workload>>),
    /// A Deployment that follows its bases was scaled, or was not.
    Scaled {
        /// Its UID.
        uid: String,
        /// How it ended.
        scaled: scale::Scaled,
    },
    /// The eviction of a VPod of an overloaded base, or of the base Pod, was asked for.
    Evicted {
        /// UID of the base Pod.
        base: String,
        /// UID of the Pod.
        pod: String,
        /// Why it was refused.
        error: Option<String>,
    },
    /// The condition behind the readiness gate of a base was written, or was not.
    GateWritten {
        /// UID of the base Pod.
        uid: String,
        /// What it says.
        wanted: gate::Wanted,
        /// Why it was not.
        error: Option<String>,
    },
    /// A base Pod was looked up by name.
    Found {
        /// UID of the base Pod that was looked for.
        uid: String,
        /// What has its name now, if anything.
        pod: Option<Box<Pod>>,
    },
    /// A real node was looked up; `None`: it is not there, or the call failed.
    Host {
        /// Its name.
        name: String,
        /// What is known of it.
        facts: Option<HostFacts>,
        /// When it is looked up again.
        due: Instant,
    },
    /// An actor ended.
    ActorEnded {
        /// Its VNode.
        node: String,
        /// UID of its base Pod.
        uid: String,
    },
    /// The VPods left on a VNode were deleted, as far as possible.
    Cleaned {
        /// The VNode.
        node: String,
    },
    /// The one base of this agent ended for good.
    BaseEnded,
    /// Somebody asks for `/diag`.
    Diag(oneshot::Sender<serde_json::Value>),
}

/// A started actor.
pub struct Started {
    /// Its mailbox.
    pub mailbox: mpsc::UnboundedSender<Message>,
    /// Ends with it.
    pub done: BoxFuture<'static, ()>,
}

/// Starts the actor of a base, which acts and lives while the term does.
pub type StartActor = Arc<dyn Fn(Arc<BaseSpec>, Term) -> Started + Send + Sync>;

/// What the fleet is given.
pub struct FleetContext {
    /// `--base-cluster-id`.
    pub cluster: String,
    /// The one base that this agent looks after; without it all that its watches show.
    pub own: Option<OwnBase>,
    /// Ends the process, which an agent of one base does when its base is gone.
    pub shutdown: CancellationToken,
    /// Who holds the Leases.
    pub identity: String,
    /// What the flags say about every VNode.
    pub frame: Arc<Frame>,
    /// `--observe`.
    pub observe: bool,
    /// Watches of base Pods, one per namespace or one for all.
    pub base_watches: usize,
    /// Client of the base cluster.
    pub base_client: kube::Client,
    /// Its time.
    pub base_clock: ServerClock,
    /// The base cluster is the module cluster, so that a namespace is the same one for both.
    pub one_cluster: bool,
    /// Client of the module cluster.
    pub module_client: kube::Client,
    /// Namespace and name of the agent's Lease, on which Events of the brake are shown.
    pub lease: (String, String),
    /// The rules in force.
    pub rules: watch::Receiver<Arc<Rules>>,
    /// Namespaces that are paused.
    pub paused: watch::Receiver<Arc<BTreeSet<String>>>,
    /// The term, and the operator's hand on the brake.
    pub leader: LeaderHandle,
    /// Starts actors.
    pub start_actor: StartActor,
    /// Where Events go.
    pub events: Arc<dyn EventSink>,
    /// Forgets VPods that are gone.
    pub journal: Journal,
    /// Counts.
    pub metrics: Arc<Metrics>,
}

/// The mailboxes of the fleet, for those that write to it.
#[derive(Debug, Clone)]
pub struct FleetHandle {
    /// From watches; full when the fleet is behind, which slows the watches down.
    pub inbox: mpsc::Sender<Input>,
    /// From actors; never full, because fleet and actors must not wait for each other.
    pub publish: mpsc::UnboundedSender<Publish>,
}

/// The reading ends.
pub struct Mailboxes {
    inbox: mpsc::Receiver<Input>,
    publish: mpsc::UnboundedReceiver<Publish>,
}

/// Makes the mailboxes.
pub fn mailboxes() -> (FleetHandle, Mailboxes) {
    let (inbox, inbox_end) = mpsc::channel(1_024);
    let (publish, publish_end) = mpsc::unbounded_channel();
    (FleetHandle { inbox, publish }, Mailboxes { inbox: inbox_end, publish: publish_end })
}

/// All that is known. Owned by one task.
pub struct Fleet {
    context: FleetContext,
    nodes_api: Arc<Api<Node>>,
    leases: Arc<NodeLeases>,
    /// For the keepers.
    identity: Arc<str>,
    cluster: Arc<str>,
    rules: Arc<Rules>,
    sources: Vec<Mirror<BaseKey>>,
    bases: BTreeMap<String, Arc<BaseSpec>>,
    /// Pods that match but are no bases, with what was said of them, by UID.
    unreadable: BTreeMap<String, String>,
    losses: Losses,
    /// The one base of this agent is gone.
    own_gone: bool,
    /// UID and name of each.
    nodes: Mirror<(String, String)>,
    seen: BTreeMap<String, SeenNode>,
    pods: Mirror<Arc<Pod>>,
    pods_on: BTreeMap<String, BTreeMap<String, Arc<Pod>>>,
    unplaced: Mirror<Arc<Unplaced>>,
    hosts: calls::Hosts,
    daemon_sets: Mirror<Arc<Workload>>,
    deployments: Mirror<Arc<Workload>>,
    scales: scale::Scales,
    drift: drift::Drift,
    drift_at: Option<Instant>,
    gates: gate::Gates,
    heals: heal::Heals,
    slots: BTreeMap<String, Slot>,
    dirty: BTreeSet<String>,
    term: Option<Term>,
    begun: bool,
    brake: Brake,
    module_brake: Brake,
    probe_brake: Brake,
    calls: Arc<Semaphore>,
    owner_calls: Arc<Semaphore>,
    node_calls: Arc<Semaphore>,
    lease_calls: Arc<Semaphore>,
    own: mpsc::UnboundedSender<Input>,
    own_end: Option<mpsc::UnboundedReceiver<Input>>,
    removed: mpsc::UnboundedSender<(String, Option<String>)>,
    removed_end: Option<mpsc::UnboundedReceiver<(String, Option<String>)>>,
}

impl Fleet {
    /// A fleet that knows nothing yet.
    pub fn new(context: FleetContext) -> Self {
        let (own, own_end) = mpsc::unbounded_channel();
        let rules = context.rules.borrow().clone();
        let (removed, removed_end) = mpsc::unbounded_channel();
        Self {
            nodes_api: Arc::new(Api::all(context.module_client.clone())),
            leases: Arc::new(NodeLeases::new(context.module_client.clone())),
            identity: context.identity.as_str().into(),
            cluster: context.cluster.as_str().into(),
            rules,
            sources: (0..context.base_watches).map(|_| Mirror::default()).collect(),
            context,
            bases: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            losses: Losses::default(),
            own_gone: false,
            nodes: Mirror::default(),
            seen: BTreeMap::new(),
            pods: Mirror::default(),
            pods_on: BTreeMap::new(),
            unplaced: Mirror::default(),
            hosts: calls::Hosts::default(),
            daemon_sets: Mirror::default(),
            deployments: Mirror::default(),
            scales: scale::Scales::default(),
            drift: drift::Drift::default(),
            drift_at: None,
            gates: gate::Gates::default(),
            heals: heal::Heals::default(),
            slots: BTreeMap::new(),
            dirty: BTreeSet::new(),
            term: None,
            begun: false,
            brake: Brake::default(),
            module_brake: Brake::default(),
            probe_brake: Brake::default(),
            calls: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            owner_calls: Arc::new(Semaphore::new(OWNER_CALLS)),
            node_calls: Arc::new(Semaphore::new(NODE_CALLS)),
            lease_calls: Arc::new(Semaphore::new(LEASE_CALLS)),
            own,
            own_end: Some(own_end),
            removed,
            removed_end: Some(removed_end),
        }
    }

    /// Runs until the shutdown.
    ///
    /// # Errors
    /// Never; the signature is the one of supervised tasks.
    pub async fn run(
        mut self,
        mailboxes: Mailboxes,
        shutdown: CancellationToken,
    ) -> Result<(), std::convert::Infallible> {
        let Mailboxes { mut inbox, mut publish } = mailboxes;
        let (Some(mut own), Some(mut removed)) = (self.own_end.take(), self.removed_end.take()) else {
            return Ok(());
        };
        let mut rules = self.context.rules.clone();
        let mut term = self.context.leader.term.clone();
        let mut release = self.context.leader.release.clone();
        term.mark_changed();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Ok(()) = term.changed() => {
                    let term = term.borrow_and_update().clone();
                    self.on_term(term);
                }
                Ok(()) = release.changed() => self.on_release(),
                Ok(()) = rules.changed() => {
                    self.rules = rules.borrow_and_update().clone();
                    self.on_rules();
                }
                Some(input) = own.recv() => self.on_input(input),
                Some(report) = publish.recv() => self.on_publish(report),
                Some((node, uid)) = removed.recv() => self.on_removed(&node, uid),
                Some(input) = inbox.recv() => {
                    self.context.metrics.queue_depth.set(i64::try_from(inbox.len()).unwrap_or(i64::MAX));
                    self.on_input(input);
                }
                _ = tick.tick() => self.on_tick(Instant::now()),
            }
            self.settle(Instant::now());
            self.end_with_base();
        }
    }

    fn on_input(&mut self, input: Input) {
        match input {
            Input::BasePod(source, feed) => self.on_base_pod(source, feed),
            Input::Node(feed) => self.on_node(feed),
            Input::Pod(feed) => self.on_pod(feed),
            Input::Unplaced(feed) => {
                self.unplaced.take(feed, |pod| (pod.uid.clone(), Arc::clone(pod)));
            }
            Input::DaemonSet(feed) => {
                self.daemon_sets.take(feed, |set| (set.uid.clone(), Arc::clone(set)));
            }
            Input::Deployment(feed) => {
                self.deployments.take(feed, |set| (set.uid.clone(), Arc::clone(set)));
            }
            Input::Scaled { uid, scaled } => self.on_scaled(&uid, scaled),
            Input::Evicted { base, pod, error } => self.on_evicted(&base, &pod, error),
            Input::GateWritten { uid, wanted, error } => self.on_gate_written(&uid, &wanted, error),
            Input::Found { uid, pod } => self.on_found(&uid, pod),
            Input::Host { name, facts, due } => self.on_host(&name, facts, due),
            Input::ActorEnded { node, uid } => self.on_actor_ended(&node, &uid),
            Input::Cleaned { node } => self.on_cleaned(&node),
            Input::BaseEnded => self.on_base_ended(),
            // Whoever asked may have gone.
            Input::Diag(answer) => drop(answer.send(self.diag())),
        }
    }

    /// Whether all first lists are complete: before that nothing is judged missing.
    fn is_synced(&self) -> bool {
        self.nodes.is_synced() && self.pods.is_synced() && self.sources.iter().all(Mirror::is_synced)
    }

    fn on_term(&mut self, term: Option<Term>) {
        // Actors and keepers of the last term have ended with its token.
        self.slots.clear();
        self.brake = Brake::default();
        self.module_brake = Brake::default();
        self.probe_brake = Brake::default();
        self.gates = gate::Gates::default();
        self.forget_heals();
        self.scales = scale::Scales::default();
        self.forget_drift();
        self.losses.forget_verdicts();
        self.begun = false;
        self.term = term;
    }

    /// Draws the conclusions from what was just learnt.
    fn settle(&mut self, now: Instant) {
        if self.term.is_none() || !self.is_synced() {
            return;
        }
        if !self.begun {
            self.begun = true;
            self.begin(now);
        }
        self.judge(now);
        while let Some(node) = self.dirty.pop_first() {
            self.reconcile(&node, now);
        }
    }

    fn on_node(&mut self, feed: Feed<SeenNode>) {
        let of = |seen: &SeenNode| (seen.uid().to_owned(), seen.name().to_owned());
        let deltas = self.nodes.take(feed, |seen| (seen.uid().to_owned(), of(seen)));
        for delta in deltas {
            match delta {
                Delta::Put(seen) => self.see_node(seen),
                Delta::Gone { kept: (uid, name), .. } => self.miss_node(&name, &uid),
                Delta::Synced => {}
            }
        }
    }

    fn on_tick(&mut self, now: Instant) {
        self.show_counts(now);
        self.forget_gone();
        if self.term.is_none() {
            return;
        }
        self.look_up_due(now);
        self.look_up_hosts();
        self.look_at_gates(now);
        self.look_at_heals(now);
        self.look_at_scales(now);
        self.look_for_drift(now);
        let due: Vec<String> =
            self.slots.iter().filter(|(_, slot)| slot.is_due(now)).map(|(node, _)| node.clone()).collect();
        self.dirty.extend(due);
    }

    fn on_rules(&mut self) {
        let nodes: Vec<String> = self.slots.keys().cloned().collect();
        for node in nodes {
            self.show(&node, Vec::new());
        }
        self.hold_all();
    }
}
