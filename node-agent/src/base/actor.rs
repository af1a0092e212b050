//! The task of one base: takes messages in, keeps what is known, plans, and starts what was planned.
//!
//! The loop never waits for a call: queries, operations, reads and writes run as tasks and come back as
//! [`Told`]. Whatever is still on its way when the actor ends is dropped with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use policy::Policy;
use policy::contract::inventory::Inventory;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::bound::Bound;
use super::check::Checks;
use super::clock::Clock;
use super::context::{ActorContext, Event, EventKind};
use super::message::{Hold, Message, Report};
use super::rules::rules;
use super::state::{Action, Memory, ModuleId, Observed, Ownership, PodView, Removal, Rules};
use super::story::Story;
use super::told::{Tell, Told};
use crate::discovery::BaseSpec;
use crate::failure::FailedPod;
use crate::vpod::probe::Heard;
use crate::vpod::read::{self, Values};

/// Orphans whose VPod was not seen leaving are left alone this long, so that a brake can close first.
const ORPHAN_DELAY: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

/// Starts the actor of a base. It ends when its mailbox is closed, when the base is gone and its VPods are
/// deleted, or at shutdown; the sender is closed then.
pub fn spawn(context: ActorContext) -> mpsc::UnboundedSender<Message> {
    let (sender, mailbox) = mpsc::unbounded_channel();
    tokio::spawn(run(context, mailbox));
    sender
}

/// Runs the actor of a base until it ends; for callers that supervise the task themselves.
pub async fn run(context: ActorContext, mailbox: mpsc::UnboundedReceiver<Message>) {
    let shutdown = context.term.token().clone();
    // Boxed: the future would carry it several times over.
    let actor = Box::new(Actor::new(context));
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = actor.run(mailbox) => {}
    }
}

/// A version that failed for good here, shown to the extender until its back-off ends.
#[derive(Debug, Clone)]
pub(super) struct FailedHere {
    pub(super) until: Timestamp,
    pub(super) count: u32,
    pub(super) shown: bool,
}

pub(super) struct Actor {
    pub(super) context: ActorContext,
    pub(super) spec: Arc<BaseSpec>,
    pub(super) policy: Arc<Policy>,
    pub(super) rules: Rules,
    pub(super) clock: Clock,
    pub(super) pods: BTreeMap<String, Bound>,
    pub(super) memory: Memory,
    pub(super) observed: Observed,
    pub(super) checks: Checks,
    pub(super) paused: Arc<BTreeSet<String>>,
    pub(super) hold: Hold,
    /// The Node's inventory was read: owners are known.
    pub(super) informed: bool,
    pub(super) gone: bool,
    pub(super) failed_here: BTreeMap<ModuleId, FailedHere>,
    pub(super) views: BTreeMap<String, PodView>,
    pub(super) shown: Option<Arc<Report>>,
    pub(super) shown_metaspace_at: Option<Timestamp>,
    pub(super) tell: Tell,
    pub(super) probed: mpsc::UnboundedSender<Box<Heard>>,
    /// Runs of modules that were probed so far.
    pub(super) probe_runs: u64,
    /// Times that hooks were called for a release in place.
    pub(super) hook_calls: u64,
    pub(super) tasks: JoinSet<()>,
    /// What an observer has said that it would do.
    pub(super) would: Vec<Action>,
    /// What the journal has told.
    pub(super) story: Story,
    /// When to look again though nothing happened.
    pub(super) wake: Option<Timestamp>,
}

impl Actor {
    pub(super) fn new(context: ActorContext) -> Self {
        let policy = Arc::clone(&context.policy.borrow());
        let spec = Arc::clone(&context.spec);
        let rules = rules(&policy, &spec);
        let clock = Clock::start(context.clock.now());
        let paused = Arc::clone(&context.paused.borrow());
        Self {
            rules,
            policy,
            clock,
            pods: BTreeMap::new(),
            memory: Memory::default(),
            observed: Observed { leaving: spec.leaving.is_some(), ..Observed::default() },
            checks: Checks::default(),
            paused,
            hold: Hold::default(),
            informed: false,
            gone: false,
            failed_here: BTreeMap::new(),
            views: BTreeMap::new(),
            shown: None,
            shown_metaspace_at: None,
            // Replaced by `run`, which owns the receiving ends.
            tell: Tell::channel().0,
            probed: mpsc::unbounded_channel().0,
            probe_runs: 0,
            hook_calls: 0,
            tasks: JoinSet::new(),
            would: Vec::new(),
            story: Story::default(),
            wake: None,
            spec,
            context,
        }
    }

    async fn run(mut self: Box<Self>, mut mailbox: mpsc::UnboundedReceiver<Message>) {
        let (tell, mut told) = Tell::channel();
        let (probed, mut heard) = mpsc::unbounded_channel();
        self.tell = tell;
        self.probed = probed;
        let mut policy = self.context.policy.clone();
        let mut paused = self.context.paused.clone();
        let mut policy_lives = true;
        let mut pause_lives = true;
        loop {
            self.turn();
            if self.gone && self.pods.values().all(Bound::has_ended) && !self.held() {
                return;
            }
            let wake = self.wake.map(|at| self.clock.instant(at));
            tokio::select! {
                message = mailbox.recv() => match message {
                    Some(message) => self.message(message),
                    None => return,
                },
                Some(told) = told.recv() => self.told(*told),
                Some(heard) = heard.recv() => self.heard(*heard),
                changed = policy.changed(), if policy_lives => policy_lives = changed.is_ok(),
                changed = paused.changed(), if pause_lives => pause_lives = changed.is_ok(),
                () = sleep_until(wake) => {}
            }
            // One turn for all that has come in: a list of Pods at the start is one plan, not hundreds.
            while let Ok(message) = mailbox.try_recv() {
                self.message(message);
            }
            while let Ok(told) = told.try_recv() {
                self.told(*told);
            }
            while let Ok(heard) = heard.try_recv() {
                self.heard(*heard);
            }
            while self.tasks.try_join_next().is_some() {}
            if !Arc::ptr_eq(&self.policy, &policy.borrow()) {
                self.policy = Arc::clone(&policy.borrow());
                self.rules = rules(&self.policy, &self.spec);
            }
            self.paused = Arc::clone(&paused.borrow());
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Nothing may be changed on the base or taken from VPods.
    pub(super) fn held(&self) -> bool {
        self.stopped() || self.context.observe
    }

    /// Brake or pause.
    pub(super) fn stopped(&self) -> bool {
        self.hold.any() || self.policy.operations.paused
    }

    pub(super) fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
    }

    pub(super) fn emit(
        &self,
        uid: &str,
        kind: EventKind,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        let Some(bound) = self.pods.get(uid) else { return };
        self.note_event(uid, reason, &note);
        self.context.events.emit(Event { regarding: bound.reference(), kind, reason, action, note });
    }

    fn message(&mut self, message: Message) {
        let now = self.now();
        match message {
            Message::Base(spec) => self.base(spec),
            Message::Gone => {
                self.gone = true;
                self.observed.leaving = true;
                self.tasks.abort_all();
                for bound in self.pods.values_mut() {
                    bound.probes.clear();
                    bound.writing.succeeded();
                    bound.deleting.succeeded();
                }
            }
            Message::Pod(pod) => self.pod(pod),
            Message::PodGone { uid } => self.pod_gone(&uid),
            Message::PodsSynced => {
                self.memory.synced = true;
                self.memory.orphans_after = now.checked_add(ORPHAN_DELAY).ok();
            }
            Message::Hold(hold) => self.hold = hold,
            Message::SilenceCounts => self.checks.count_silence(),
            Message::Reinstall { uid, container } => self.may_reinstall(&uid, &container),
            Message::Exhausted => {
                self.memory.exhausted = true;
                self.checks.detector.exhausted();
            }
            Message::Inventory(inventory) => self.inventory(inventory.as_deref()),
        }
    }

    fn base(&mut self, spec: Arc<BaseSpec>) {
        let restarted = spec.restarts > self.spec.restarts
            || (spec.started_at.is_some()
                && self.spec.started_at.is_some()
                && spec.started_at > self.spec.started_at);
        self.observed.leaving = spec.leaving.is_some();
        self.spec = spec;
        self.rules = rules(&self.policy, &self.spec);
        if restarted {
            tracing::info!(base = %self.spec.node, "base restarted, modules come back");
            let now = self.now();
            let died = self.checks.last_good().map_or(now, |good| good.min(now));
            self.observed.modules.clear();
            self.observed.answering = false;
            let wanted = self.desired();
            self.memory.restarted(&wanted, &self.rules, died);
            self.checks.restarted();
        }
    }

    /// What the Node says of owners; what this process wrote down itself is newer.
    fn inventory(&mut self, inventory: Option<&Inventory>) {
        self.informed = true;
        if let Some(inventory) = inventory {
            self.checks.inherit(inventory);
        }
        for module in inventory.iter().flat_map(|inventory| &inventory.modules) {
            let Some(owner) = &module.owner else { continue };
            let id = ModuleId { name: module.name.to_string(), version: module.version.to_string() };
            if self.memory.owner(&id).is_none() {
                let owner = Ownership {
                    uid: owner.uid.to_string(),
                    namespace: owner.namespace.to_string(),
                    name: owner.name.to_string(),
                    hash: module.artifact_hash.as_deref().unwrap_or_default().to_owned(),
                    // What an earlier process sent may still be on its way.
                    doubtful_until: self.now().checked_add(self.rules.install_timeout).ok(),
                };
                self.memory.own(&id, owner);
            }
        }
        for failure in inventory.iter().flat_map(|inventory| &inventory.failures) {
            let id = ModuleId { name: failure.module.to_string(), version: failure.version.to_string() };
            let until = failure.until.unwrap_or_else(|| self.now());
            self.failed_here.entry(id).or_insert(FailedHere { until, count: 1, shown: true });
        }
    }

    fn pod(&mut self, pod: Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let now = self.now();
        if let Some(bound) = self.pods.get_mut(&uid) {
            if bound.take(pod) {
                self.read(&uid);
            }
        } else {
            self.pods.insert(uid.clone(), Bound::new(pod, now));
            self.remember(&uid);
            self.open_journal(&uid);
            self.read(&uid);
        }
        self.note_failed(&uid);
        if self.pods.get(&uid).is_some_and(|bound| bound.leaving() || bound.desired.terminal) {
            self.memory.departed.insert(uid);
        }
    }

    /// A Pod that we failed counts against its template, also after a restart of the agent.
    pub(super) fn note_failed(&mut self, uid: &str) {
        let Some(bound) = self.pods.get(uid) else { return };
        if !bound.failed_by_us() {
            return;
        }
        let Some(template) = bound.template().cloned() else { return };
        let conditions = bound.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let at = conditions
            .filter_map(|condition| condition.last_transition_time.as_ref())
            .map(|time| time.0)
            .max();
        let failed = FailedPod {
            at: at.unwrap_or_else(|| self.now()),
            namespace: bound.desired.namespace.clone(),
            name: bound.desired.name.clone(),
            uid: uid.to_owned(),
        };
        let too_many = self.context.failures.failed(&template, &self.spec.uid, failed);
        for pod in too_many {
            self.sweep(pod);
        }
    }

    fn pod_gone(&mut self, uid: &str) {
        if let Some(bound) = self.pods.remove(uid)
            && let Some(template) = bound.template()
        {
            self.context.failures.forget_pod(template, uid);
        }
        // The fleet closed it already, maybe before this actor opened it.
        self.context.journal.close(uid);
        self.views.remove(uid);
        self.memory.pod_gone(uid);
        let wanted = self.desired();
        let modules = std::mem::take(&mut self.observed.modules);
        if self.observed.answering {
            self.memory.listed(&modules, &wanted, self.clock.now());
        }
        self.observed.modules = modules;
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Checked(checked) => self.checked(checked),
            Told::Jvm(jvm) => self.checks.jvm(jvm),
            Told::Sent(id) => {
                let now = self.now();
                self.memory.sent(&id, now);
            }
            Told::Ended(report) => self.operation_ended(report),
            Told::Read { uid, values } => self.values(&uid, &values),
            Told::MayWrite { uid, permit } => self.may_write(&uid, permit),
            Told::Written { uid, sent, written } => self.written(&uid, &sent, written),
            Told::Deleted { uid, asked } => self.deleted(&uid, asked),
            Told::Swept { pod, error } => {
                if let Some(error) = error {
                    tracing::warn!(pod = %pod.name, namespace = %pod.namespace, %error, "old Failed VPod not deleted");
                }
            }
            Told::HooksDone { uid, why } => self.hooks_done(&uid, &why),
            Told::Retry { uid, value } => self.controller_says(&uid, value.as_deref()),
        }
    }

    /// Reads what a Pod wants, at once where everything stands in it.
    pub(super) fn read(&mut self, uid: &str) {
        let pinned = self.pinned(uid);
        let Some(bound) = self.pods.get_mut(uid) else { return };
        let references = read::references(&bound.pod, &pinned);
        if references.is_empty() {
            self.values(uid, &Vec::new());
            return;
        }
        if bound.reading.running {
            return;
        }
        bound.reading.running = true;
        let client = self.context.client.clone();
        let tell = self.tell.clone();
        let namespace = bound.desired.namespace.clone();
        let uid = uid.to_owned();
        self.tasks.spawn(async move {
            let values = read::fetch(&client, &namespace, references).await;
            tell.send(Told::Read { uid, values });
        });
    }

    fn values(&mut self, uid: &str, values: &Values) {
        let pinned = self.pinned(uid);
        let now = self.now();
        let Some(bound) = self.pods.get_mut(uid) else { return };
        let want = read::read(&bound.pod, &pinned, values);
        if read::worth_another_look(&want) {
            bound.reading.failed(now);
        } else {
            bound.reading.succeeded();
        }
        let before = std::mem::replace(&mut bound.desired.want, want);
        bound.needs_by = None;
        let changed: Vec<_> = bound
            .desired
            .modules()
            .iter()
            .filter(|module| match &before {
                super::state::Want::Modules(old) => !old.contains(module),
                _ => false,
            })
            .map(|module| module.container.clone())
            .collect();
        bound.outdated |= !changed.is_empty();
        for container in changed {
            self.memory.changed(uid, &container);
        }
        self.tell_fields(uid);
    }

    pub(super) fn desired(&self) -> BTreeMap<String, super::state::Desired> {
        self.pods.iter().map(|(uid, bound)| (uid.clone(), bound.desired.clone())).collect()
    }

    /// VPods bound and not terminal.
    pub(super) fn living(&self) -> u32 {
        let living = self.pods.values().filter(|bound| !bound.desired.terminal).count();
        u32::try_from(living).unwrap_or(u32::MAX)
    }

    pub(super) fn uninstalling(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|bound| bound.desired.removal == Removal::Uninstalling)
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
