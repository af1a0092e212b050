//! What the VNode of a base must show, sent only when it changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use policy::contract::inventory::{Inventory, InventoryModule, ModuleState, Owner, RecentFailure};
use policy::contract::names;
use tokio::sync::oneshot;

use super::actor::Actor;
use super::message::{Publish, Report};
use super::state::{ModuleId, Ownership};
use crate::arklet::{Biz, BizState};
use crate::discovery::BaseSpec;
use crate::healing::{self, Load};

/// Metaspace figures alone are sent at most this often.
const METASPACE_EVERY: SignedDuration = SignedDuration::from_secs(60);
/// Capabilities that a base may declare.
const PROVIDES: usize = 64;

/// What the base Pod declares in `stowage.dev/provides`: `name=version` pairs joined by commas; what is no
/// pair is skipped.
pub(super) fn provided(spec: &BaseSpec) -> BTreeMap<String, String> {
    let declared = spec.annotations.get(names::PROVIDES).map(String::as_str).unwrap_or_default();
    let pairs = declared.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, version)| (name.trim().to_owned(), version.trim().to_owned()))
        .filter(|(name, version)| (1..=64).contains(&name.len()) && (1..=64).contains(&version.len()))
        .take(PROVIDES)
        .collect()
}

impl Actor {
    /// Sends a report when it differs from the last one.
    pub(super) fn publish(&mut self) {
        // Before the base was asked, an earlier process knew more than this one.
        let unasked = self.spec.started && !self.checks.known();
        if unasked && self.shown.is_none() && !self.observed.leaving {
            return;
        }
        let report = self.report();
        let now = self.now();
        if let Some(shown) = &self.shown {
            if **shown == report {
                return;
            }
            let mut same_figures = report.clone();
            same_figures.inventory.metaspace = shown.inventory.metaspace;
            if same_figures == **shown {
                let due = self.shown_metaspace_at.and_then(|at| at.checked_add(METASPACE_EVERY).ok());
                if let Some(due) = due.filter(|due| *due > now) {
                    self.wake_at(due);
                    return;
                }
            }
        }
        self.send(report, None);
    }

    /// Sends a report whatever was sent before, and answers when it is written.
    pub(super) fn publish_and_tell(&mut self) -> oneshot::Receiver<Result<(), String>> {
        let (written, receiver) = oneshot::channel();
        let report = self.report();
        self.send(report, Some(written));
        receiver
    }

    fn send(&mut self, report: Report, written: Option<oneshot::Sender<Result<(), String>>>) {
        let report = Arc::new(report);
        self.shown = Some(Arc::clone(&report));
        self.shown_metaspace_at = Some(self.now());
        // Nobody listens only while the process ends.
        let _ = self.context.publish.send(Publish { node: self.spec.node.clone(), report, written });
    }

    fn report(&mut self) -> Report {
        let bound = self.living();
        let leaving = self.observed.leaving;
        let ours = self.memory.owners.iter().filter(|(id, _)| self.observed.find(id).is_some()).count();
        Report {
            health: self.checks.health(self.spec.started),
            inventory: self.inventory_now(),
            bound,
            full: leaving || self.memory.exhausted,
            drained: leaving && bound == 0 && (self.gone || ours == 0 || self.checks.silent()),
            unhealthy: self.given_up(),
            load: self.load(),
            started_at: self.spec.started_at,
        }
    }

    fn load(&self) -> Load {
        let overload = self.policy.operations.overload;
        let detector = &self.checks.detector;
        detector
            .load(healing::Limits { high_percent: overload.metaspace_high_percent, cycles: overload.cycles })
    }

    pub(super) fn inventory_now(&mut self) -> Inventory {
        let mut modules: Vec<_> = self
            .memory
            .owners
            .iter()
            .map(|(id, owner)| entry(id, self.observed.find(id), Some(owner)))
            .collect();
        let mut foreign = Vec::new();
        for biz in &self.observed.modules {
            let id = ModuleId { name: biz.name.clone(), version: biz.version.clone() };
            if self.memory.owner(&id).is_none() {
                foreign.push(entry(&id, Some(biz), None));
            }
        }
        // Our own stand in the order of their installs, which a later process replays. A base lists its modules in any
        // order, and a mere change of that writes no Node.
        foreign.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        modules.append(&mut foreign);
        let mut provides = provided(&self.spec);
        if let Some(version) = self.checks.java_version() {
            provides.entry("jdk".to_owned()).or_insert_with(|| version.to_owned());
        }
        Inventory {
            modules,
            metaspace: self.checks.metaspace().map(policy::contract::Metaspace::rounded),
            failures: self.recent_failures(),
            provides,
            context_path: self.spec.annotations.get(names::CONTEXT_PATH).map(|path| path.as_str().into()),
            multi_version: self.observed.multi_version,
            truncated: false,
        }
    }

    fn recent_failures(&mut self) -> Vec<RecentFailure> {
        let now = self.now();
        let mut next: Option<Timestamp> = None;
        let mut failures = Vec::new();
        // The count outlives the entry for a while, so that the next failure waits longer.
        self.failed_here.retain(|_, failed| failed.until + SignedDuration::from_mins(30) > now);
        for (id, failed) in &mut self.failed_here {
            failed.shown = failed.until > now;
            if failed.shown {
                next = Some(next.map_or(failed.until, |known| known.min(failed.until)));
                failures.push(RecentFailure {
                    module: id.name.as_str().into(),
                    version: id.version.as_str().into(),
                    until: Some(failed.until),
                });
            }
        }
        if let Some(next) = next {
            self.wake_at(next);
        }
        failures
    }
}

fn entry(id: &ModuleId, biz: Option<&Biz>, owner: Option<&Ownership>) -> InventoryModule {
    InventoryModule {
        name: id.name.as_str().into(),
        version: id.version.as_str().into(),
        state: match biz.map(|biz| biz.state) {
            Some(BizState::Activated) => ModuleState::Activated,
            Some(BizState::Deactivated) => ModuleState::Deactivated,
            Some(BizState::Broken) => ModuleState::Broken,
            // An owner without a module is an install on its way.
            Some(BizState::Resolved) | None => ModuleState::Resolved,
            Some(BizState::Unresolved | BizState::Stopped | BizState::Unknown) => ModuleState::Unknown,
        },
        context_path: biz.and_then(|biz| biz.web_context_path.as_deref()).map(Into::into),
        owner: owner.map(|owner| Owner {
            namespace: owner.namespace.as_str().into(),
            name: owner.name.as_str().into(),
            uid: owner.uid.as_str().into(),
        }),
        artifact_hash: owner.filter(|owner| !owner.hash.is_empty()).map(|owner| owner.hash.as_str().into()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::convert::Infallible;

    use policy::Policy;
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::base::{ActorContext, Downloads, EndpointLookup, EventSink, Message, NoMeter, spawn};
    use crate::discovery::{BaseSpec, from_pod};
    use crate::lease::Term;
    use crate::{arklet, audit, failure};

    struct Nobody;

    impl EndpointLookup for Nobody {
        fn ready(&self, _: &str, _: &str) -> bool {
            false
        }
    }

    impl EventSink for Nobody {
        fn emit(&self, _: crate::base::Event) {}
    }

    /// The API server is never asked.
    pub(in crate::base) fn client() -> kube::Client {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        kube::Client::new(service, "default")
    }

    /// Not started, so that nobody asks it.
    fn base() -> BaseSpec {
        let pod = serde_json::json!({
            "metadata": {"namespace": "shop", "name": "base-0", "uid": "u-1"},
            "spec": {"nodeName": "worker", "containers": [{"name": "base"}]},
            "status": {"phase": "Running", "podIP": "10.244.1.7", "containerStatuses": [{"name": "base", "ready": false,
                "restartCount": 0, "image": "", "imageID": "", "state": {"running": {}}}]},
        });
        let spec = from_pod(&serde_json::from_value(pod).expect("a Pod"), "default", None).expect("a base");
        BaseSpec { started: false, ..spec }
    }

    /// Of a base that nobody asks, with this way to the API server.
    pub(in crate::base) fn context(
        client: kube::Client,
        publish: mpsc::UnboundedSender<crate::base::Publish>,
    ) -> ActorContext {
        ActorContext {
            spec: Arc::new(base()),
            client,
            pod_calls: Arc::new(tokio::sync::Semaphore::new(1)),
            arklet: arklet::Client::new(),
            policy: watch::channel(Arc::new(Policy::default())).1,
            paused: watch::channel(Arc::default()).1,
            publish,
            endpoints: Arc::new(Nobody),
            events: Arc::new(Nobody),
            meter: Arc::new(NoMeter),
            audit: audit::AuditLog::default(),
            journal: crate::journal::Journal::default(),
            downloads: Arc::new(Downloads::new(1)),
            failures: Arc::new(failure::Memory::new()),
            observe: false,
            clock: service::server_clock::ServerClock::default(),
            term: Term::unlimited(),
        }
    }

    /// What a version that failed is kept away by, over a restart of the agent: the entry stands until its time and no
    /// longer, though nothing else happens.
    #[tokio::test(start_paused = true)]
    async fn a_recent_failure_is_shown_until_its_time() {
        let (publish, mut published) = mpsc::unbounded_channel();
        let context = context(client(), publish);
        let mailbox = spawn(context);
        let began = tokio::time::Instant::now();
        let until = Timestamp::now() + SignedDuration::from_secs(60);
        let failed = RecentFailure { module: "shop".into(), version: "1".into(), until: Some(until) };
        let inventory = Inventory { failures: vec![failed.clone()], ..Inventory::default() };
        mailbox.send(Message::Inventory(Some(Box::new(inventory)))).expect("it lives");

        let mut shown = Vec::new();
        while shown.last().is_none_or(|(failures, _): &(Vec<RecentFailure>, _)| !failures.is_empty()) {
            let report = published.recv().await.expect("it lives").report;
            shown.push((report.inventory.failures.clone(), began.elapsed().as_secs()));
            // The first report may come before the actor has read its mail.
            if shown == [(Vec::new(), 0)] {
                shown.clear();
            }
        }
        let [(first, at), (last, end)] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!((first, *at), (&vec![failed], 0));
        assert!(last.is_empty() && (59..=61).contains(end), "{shown:?}");
    }
}
