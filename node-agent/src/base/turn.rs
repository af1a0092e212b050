//! One turn of an actor: look at what is due, plan, start what was planned.

use std::sync::Arc;

use policy::contract::names;

use super::actor::{Actor, FailedHere};
use super::context::EventKind;
use super::operation::{Call, Report};
use super::plan::plan;
use super::state::{Action, ModuleId, Operation, Plan, Wanted};
use super::told::Told;
use super::transition::{Ended, Outcome};
use crate::arklet::{BizState, Code, Install};
use crate::audit;
use crate::failure::Backoff;

/// Adoptions change what is planned next; more rounds than modules in a Pod are never needed.
const ROUNDS: usize = 64;

impl Actor {
    /// Everything that can be done now is done or started.
    pub(super) fn turn(&mut self) {
        self.wake = None;
        // Whoever only observes plans as if it acted.
        self.memory.held = self.stopped();
        self.memory.paused = Arc::clone(&self.paused);
        self.check();
        self.removals();
        self.rereads();
        self.objections();
        self.unhealthy();
        // Before owners are known, a module could be taken for foreign, or installed a second time.
        if self.informed && self.memory.synced && !self.gone {
            let plan = self.plan();
            self.memory.viewed(&plan.views);
            self.views = plan.views;
            for bound in self.pods.values_mut() {
                bound.outdated = false;
            }
            self.tell_first(plan.first);
            if let Some(wake) = plan.wake {
                self.wake_at(wake);
            }
        }
        self.proven();
        self.probes();
        self.statuses();
        self.tell_story();
        self.publish();
    }

    fn plan(&mut self) -> Plan {
        let mut last = Plan::default();
        for _ in 0..ROUNDS {
            let desired = self.desired();
            let now = self.now();
            last = plan(&desired, &self.observed, &self.memory, &self.rules, now);
            if self.context.observe {
                let actions = std::mem::take(&mut last.actions);
                self.would(actions);
                break;
            }
            let mut again = false;
            for action in std::mem::take(&mut last.actions) {
                again |= self.act(&action);
            }
            if !again {
                break;
            }
        }
        last
    }

    /// Starts an action. Gives back whether the plan is out of date by it.
    fn act(&mut self, action: &Action) -> bool {
        let desired = self.desired();
        let now = self.now();
        match action {
            Action::Adopt { uid, module } => {
                tracing::info!(base = %self.spec.node, module = %module.id, pod_uid = %uid, "module adopted");
                let subject = self.subject(audit::Operation::Adopt, &module.id, Some(uid));
                self.context.audit.record(audit::Record::new(now, subject, "ok"));
                self.memory.begin(action, &desired, now);
                let modules = std::mem::take(&mut self.observed.modules);
                self.memory.listed(&modules, &desired, now);
                self.observed.modules = modules;
                true
            }
            Action::Install { uid, module } => {
                if let Err(until) = self.admitted(uid) {
                    if let Some(bound) = self.pods.get_mut(uid) {
                        bound.desired.not_before = Some(until);
                    }
                    return true;
                }
                fault_point!(InstallPlanned);
                self.memory.begin(action, &desired, now);
                let note = format!("installing {} in container {}", module.id, module.container);
                self.emit(uid, EventKind::Normal, "Installing", "Installing", note);
                self.install(uid, module);
                false
            }
            Action::Switch { uid, container, id } => {
                fault_point!(SwitchPlanned);
                self.memory.begin(action, &desired, now);
                let call = self.call(Operation::Switch, id, Some(uid), Some(container));
                self.start(call.switch());
                false
            }
            Action::Uninstall { id, uid } => {
                fault_point!(UninstallPlanned);
                self.memory.begin(action, &desired, now);
                if let Some(uid) = uid {
                    self.tell_given_up(uid, id);
                    self.emit(
                        uid,
                        EventKind::Normal,
                        "Uninstalling",
                        "Uninstalling",
                        format!("uninstalling {id}"),
                    );
                } else {
                    tracing::info!(base = %self.spec.node, module = %id, "uninstalling what no VPod wants");
                }
                let call = self.call(Operation::Uninstall, id, uid.as_deref(), None);
                self.start(call.uninstall());
                false
            }
            Action::Fail { uid, reason, message } => {
                fault_point!(FailedPlanned);
                if let Some(bound) = self.pods.get_mut(uid) {
                    bound.failed.get_or_insert((reason, message.clone()));
                }
                false
            }
            Action::Removed { uid } => {
                self.take_away(uid);
                false
            }
        }
    }

    pub(super) fn template_backoff(&self) -> Backoff {
        let backoff = self.policy.operations.install.template_backoff;
        Backoff { initial: backoff.initial, max: backoff.max }
    }

    /// Asks the memory of failures whether this VPod may be tried now.
    fn admitted(&mut self, uid: &str) -> Result<(), jiff::Timestamp> {
        let now = self.now();
        let backoff = self.template_backoff();
        let Some(bound) = self.pods.get(uid) else { return Ok(()) };
        // What has run here comes back without asking: a replay is no new try.
        if self.memory.pods.get(uid).is_some_and(|memory| memory.running) {
            return Ok(());
        }
        let Some(template) = bound.template().cloned() else { return Ok(()) };
        let value = bound.annotation(names::RETRY).map(ToOwned::to_owned);
        if let Some(value) = value {
            self.context.failures.retry(&template, &value);
        }
        self.context.failures.admit(&template, &bound.artifacts(), backoff, now)
    }

    fn call(&self, kind: Operation, id: &ModuleId, uid: Option<&str>, container: Option<&str>) -> Call {
        let mut others: Vec<_> = self.observed.others(id).map(|biz| biz.version.clone()).collect();
        others.sort_unstable();
        Call {
            arklet: self.context.arklet.clone(),
            base: self.endpoint(),
            limits: self.limits(),
            meter: self.context.meter.clone(),
            audit: self.context.audit.begin(self.subject(audited(kind), id, uid)),
            pen: self.pen(id, uid, container),
            term: self.context.term.clone(),
            kind,
            id: id.clone(),
            uid: uid.map(ToOwned::to_owned),
            container: container.map(ToOwned::to_owned),
            others,
        }
    }

    fn install(&mut self, uid: &str, module: &Wanted) {
        let call = self.call(Operation::Install, &module.id, Some(uid), Some(&module.container));
        let ask = Install {
            biz_name: module.id.name.clone(),
            biz_version: module.id.version.clone(),
            biz_url: module.url.clone(),
            args: module.args.clone(),
        };
        let written = self.publish_and_tell();
        let downloads = self.context.downloads.clone();
        let (tell, id) = (self.tell.clone(), module.id.clone());
        let sent = move || tell.send(Told::Sent(id));
        self.start(call.install(ask, downloads, written, sent));
    }

    fn start(&mut self, operation: impl Future<Output = Report> + Send + 'static) {
        let tell = self.tell.clone();
        self.tasks.spawn(async move {
            tell.send(Told::Ended(operation.await));
        });
    }

    /// An operation ended: what it found is the truth now.
    pub(super) fn operation_ended(&mut self, report: Report) {
        let now = self.now();
        let jitter: f64 = rand::random();
        let Report { ended, list } = report;
        let uid = ended.uid.clone();
        let was_failing = uid.as_deref().is_some_and(|uid| self.failing(uid));
        if let Some(list) = list {
            // The list first (it is ignored when a newer one is known), the judgement on what holds now;
            // while the name is still busy the list alone takes nothing for lost.
            self.listed(list);
            self.memory.ended(&ended, &self.observed, &self.rules, jitter, now);
            let desired = self.desired();
            let modules = std::mem::take(&mut self.observed.modules);
            self.memory.listed(&modules, &desired, now);
            self.observed.modules = modules;
        } else {
            // Nobody knows how it ended. Nothing is done before the truth was read.
            self.observed.answering = false;
            self.checks.hurry();
            self.memory.ended(&ended, &self.observed, &self.rules, jitter, now);
        }
        self.count_cycle(&ended);
        fault_point!(OutcomeNoted);
        let Some(uid) = uid else { return };
        self.tell_outcome(&uid, &ended.id, ended.kind, &ended.outcome);
        if !was_failing && self.failing(&uid) {
            self.count_failure(&ended.id);
        }
    }

    /// What an operation did to the class memory of the base.
    fn count_cycle(&mut self, ended: &Ended) {
        if self.memory.exhausted {
            self.checks.detector.exhausted();
        }
        let listed = self.observed.answering.then(|| self.observed.find(&ended.id).map(|biz| biz.state));
        match (ended.kind, listed) {
            (Operation::Uninstall, Some(None)) if ended.outcome != Outcome::Unsent => {
                self.checks.detector.uninstalled();
                self.checks.want_jvm();
            }
            (Operation::Install, Some(Some(BizState::Activated))) => {
                self.checks.detector.installed();
                self.checks.want_jvm();
            }
            (Operation::Install | Operation::Switch | Operation::Uninstall, _) => {}
        }
    }

    fn failing(&self, uid: &str) -> bool {
        self.memory.pods.get(uid).is_some_and(|memory| memory.failing.is_some())
    }

    fn tell_outcome(&self, uid: &str, id: &ModuleId, kind: Operation, outcome: &Outcome) {
        let active = self.observed.answering
            && self.observed.find(id).is_some_and(|biz| biz.state == crate::arklet::BizState::Activated);
        match (kind, outcome) {
            (Operation::Install | Operation::Switch, _) if active => {
                self.emit(uid, EventKind::Normal, "Installed", "Installing", format!("{id} is active"));
            }
            (Operation::Install | Operation::Switch, Outcome::Failed(failure)) => {
                if failure.code == Code::BaseUnreachable {
                    return;
                }
                let note = format!("{id}: {failure} ({})", failure.code.as_str());
                self.emit(uid, EventKind::Warning, "InstallFailed", "Installing", note);
            }
            (Operation::Install | Operation::Switch, Outcome::Other(actual)) => {
                let note =
                    format!("{id}: the jar says that it is {actual} ({})", Code::IdentityDiffers.as_str());
                self.emit(uid, EventKind::Warning, "InstallFailed", "Installing", note);
            }
            (Operation::Uninstall, Outcome::Failed(failure)) => {
                let note = format!("{id}: {failure} ({})", failure.code.as_str());
                self.emit(uid, EventKind::Warning, "UninstallFailed", "Uninstalling", note);
            }
            (Operation::Uninstall, Outcome::Done) => {
                self.emit(
                    uid,
                    EventKind::Normal,
                    "Uninstalled",
                    "Uninstalling",
                    format!("{id} is off the base"),
                );
            }
            _ => {}
        }
    }

    /// A version failed for good here: the extender keeps its like away until the back-off ends.
    fn count_failure(&mut self, id: &ModuleId) {
        let now = self.now();
        let backoff = self.template_backoff();
        let failed =
            self.failed_here.entry(id.clone()).or_insert(FailedHere { until: now, count: 0, shown: false });
        let wait =
            backoff.initial.saturating_mul(2_u32.saturating_pow(failed.count.min(16))).min(backoff.max);
        failed.count = failed.count.saturating_add(1);
        failed.until = now.checked_add(wait).unwrap_or(now);
    }

    /// Says once that a circle of requirements is broken, and where.
    fn tell_first(&mut self, first: Option<(String, String)>) {
        let Some((uid, why)) = first else { return };
        let Some(bound) = self.pods.get_mut(&uid) else { return };
        if bound.told_first.as_ref() != Some(&why) {
            bound.told_first = Some(why.clone());
            self.emit(&uid, EventKind::Warning, "RequirementCircle", "Installing", why);
        }
    }

    /// What is active is proven, and its failures are history.
    fn proven(&mut self) {
        let installed: Vec<_> = self
            .views
            .iter()
            .filter(|(uid, view)| view.installed() && self.pods.get(*uid).is_some_and(|bound| !bound.proven))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in installed {
            let Some(bound) = self.pods.get_mut(&uid) else { continue };
            bound.proven = true;
            bound.desired.not_before = None;
            let artifacts = bound.artifacts();
            for artifact in &artifacts {
                let id = ModuleId { name: artifact.name.clone(), version: artifact.version.clone() };
                self.failed_here.remove(&id);
            }
            self.context.failures.active(bound.template(), &artifacts);
        }
    }
}

/// Its name in the audit log.
fn audited(kind: Operation) -> audit::Operation {
    match kind {
        Operation::Install => audit::Operation::Install,
        Operation::Switch => audit::Operation::Switch,
        Operation::Uninstall => audit::Operation::Uninstall,
    }
}
