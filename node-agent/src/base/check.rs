//! Whether the base answers: one query per interval, misses counted, silence told after several.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use policy::contract::inventory::{Inventory, Metaspace};
use policy::contract::names;
use tokio::time::Instant;

use super::actor::Actor;
use super::context::{Event, EventKind};
use super::message::Health;
use super::operation::Listed;
use super::state::{Observed, Operation};
use super::told::Told;
use crate::arklet::{Biz, BizState, CallError, Endpoint, Jvm, Limits};
use crate::beat::BEAT;
use crate::healing::{Detector, Sample};

/// The JVM is asked this many checks apart: its figures move slowly, and all queries cost the base a worker.
const JVM_EVERY: u32 = 6;

/// How often it is told that a base has never answered: Events are forgotten after an hour.
const TELL_EVERY: Duration = Duration::from_mins(10);

/// How a check ended.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) asked: Instant,
    pub(super) answer: Result<Vec<Biz>, CallError>,
}

/// Whether the base has been silent for too many checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Silence {
    #[default]
    None,
    /// It is, and so may be many others, for a reason of ours.
    Told,
    /// It is, and the brake let that pass.
    Counts,
}

/// What is known of the base's answers.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, none excludes another")]
pub(super) struct Checks {
    running: bool,
    next: Option<Timestamp>,
    misses: u32,
    missed_since: Option<Timestamp>,
    why: String,
    good: Option<Timestamp>,
    /// The base has answered once, to this process or to one before it.
    answered: bool,
    silence: Silence,
    /// When it was last told that the base has never answered.
    told: Option<Timestamp>,
    /// When the list in use was asked for; an answer to an earlier question is out of date.
    listed: Option<Instant>,
    count: u32,
    asking_jvm: bool,
    /// A module just came or went: the next check asks the JVM too.
    jvm_wanted: bool,
    jvm: Option<Jvm>,
    java: Option<String>,
    /// What the Node said before this process had asked the JVM.
    inherited: Option<Metaspace>,
    unloaded: Option<i64>,
    lowest: Option<i64>,
    /// Whether the metaspace is used up.
    pub(super) detector: Detector,
}

impl Checks {
    pub(super) fn last_good(&self) -> Option<Timestamp> {
        self.good
    }

    /// The last check was missed.
    pub(super) fn missing(&self) -> bool {
        self.misses > 0
    }

    pub(super) fn silent(&self) -> bool {
        self.silence != Silence::None
    }

    /// Since when the base has been silent, once that may be acted on.
    pub(super) fn silent_since(&self) -> Option<Timestamp> {
        self.missed_since.filter(|_| self.silence_counts())
    }

    /// The base is silent, and so few others are that it is no accident.
    pub(super) fn silence_counts(&self) -> bool {
        self.silence == Silence::Counts
    }

    pub(super) fn count_silence(&mut self) {
        if self.silent() {
            self.silence = Silence::Counts;
        }
    }

    /// Too many checks were missed. A base that never answered is not silent, it has not come up: it has no VNode, and
    /// many such are no broken network.
    fn mute(&mut self, why: String) {
        if self.answered && !self.silent() {
            self.why = why;
            self.silence = Silence::Told;
        }
    }

    /// What an earlier process learnt of the JVM holds until this one has asked: a restart changes no Node.
    pub(super) fn inherit(&mut self, inventory: &Inventory) {
        self.answered = true;
        if self.jvm.is_some() {
            return;
        }
        self.java = inventory.provides.get("jdk").cloned();
        self.inherited = inventory.metaspace;
        self.lowest = inventory.metaspace.and_then(|metaspace| i64::try_from(metaspace.lowest).ok());
    }

    pub(super) fn known(&self) -> bool {
        self.good.is_some() || self.silent()
    }

    pub(super) fn restarted(&mut self) {
        self.next = None;
        self.jvm = None;
        self.inherited = None;
        self.unloaded = None;
        self.lowest = None;
        self.count = 0;
        self.detector.restarted();
    }

    /// The next check asks the JVM, too.
    pub(super) fn want_jvm(&mut self) {
        self.jvm_wanted = true;
    }

    /// The next check is due at once.
    pub(super) fn hurry(&mut self) {
        self.next = None;
    }

    pub(super) fn health(&self, started: bool) -> Health {
        if self.silent() {
            return Health::Silent {
                since: self.missed_since.unwrap_or(Timestamp::UNIX_EPOCH),
                reason: self.why.clone(),
            };
        }
        if self.good.is_some() && started { Health::Answering } else { Health::Starting }
    }

    pub(super) fn jvm(&mut self, jvm: Option<Jvm>) {
        self.asking_jvm = false;
        let Some(jvm) = jvm else { return };
        if let Some(sample) = sample(&jvm) {
            self.detector.sample(sample);
        }
        if let Some(used) = jvm.metaspace_used {
            // Only a collection tells what is really needed; until one was seen the lowest use is the best guess.
            let collected = jvm.unloaded_classes > self.unloaded && self.unloaded.is_some();
            self.lowest = Some(match self.lowest {
                Some(lowest) if !collected => lowest.min(used),
                _ => used,
            });
            self.unloaded = jvm.unloaded_classes;
        }
        if jvm.java_version.is_some() {
            self.java.clone_from(&jvm.java_version);
        }
        self.inherited = None;
        self.jvm = Some(jvm);
    }

    pub(super) fn java_version(&self) -> Option<&str> {
        self.java.as_deref()
    }

    pub(super) fn metaspace(&self) -> Option<Metaspace> {
        let Some(jvm) = self.jvm.as_ref() else { return self.inherited };
        let bytes = |figure: i64| u64::try_from(figure).ok();
        let used = bytes(jvm.metaspace_used?)?;
        Some(Metaspace {
            max: jvm.metaspace_max.and_then(bytes),
            used,
            lowest: self.lowest.and_then(bytes).unwrap_or(used),
        })
    }
}

impl Actor {
    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint { ip: self.spec.ip, port: self.spec.port }
    }

    pub(super) fn limits(&self) -> Limits {
        let operations = &self.policy.operations;
        Limits {
            query: operations.health.timeout,
            operation: operations.install.timeout,
            uninstall: self.rules.longest_uninstall(),
        }
    }

    /// Starts a check when it is due.
    pub(super) fn check(&mut self) {
        if self.gone || !self.spec.started || self.checks.running {
            return;
        }
        let now = self.now();
        if let Some(next) = self.checks.next.filter(|next| *next > now) {
            self.wake_at(next);
            return;
        }
        self.checks.running = true;
        self.checks.next = Some(self.next_check(now));
        let (arklet, base, limits, tell) =
            (self.context.arklet.clone(), self.endpoint(), self.limits(), self.tell.clone());
        let due = self.checks.jvm_wanted || self.checks.count.is_multiple_of(JVM_EVERY);
        let ask_jvm = !self.checks.asking_jvm && due;
        self.checks.jvm_wanted &= !ask_jvm;
        self.checks.count = self.checks.count.wrapping_add(1);
        self.checks.asking_jvm |= ask_jvm;
        self.tasks.spawn(async move {
            let asked = Instant::now();
            let answer = arklet.query_all(base, limits).await;
            tell.send(Told::Checked(Checked { asked, answer }));
            if ask_jvm {
                tell.send(Told::Jvm(arklet.jvm(base, limits).await.ok().flatten()));
            }
        });
    }

    /// A little early or late, so that the checks of a fleet that was started at once spread out.
    fn next_check(&self, now: Timestamp) -> Timestamp {
        let interval = self.policy.operations.health.interval;
        // After a miss, while nothing is known, or after a restart, the answer is wanted soon.
        let base = if self.observed.answering || self.checks.silent() {
            interval.mul_f64(rand::random_range(1.0..1.1))
        } else {
            interval.min(Duration::from_secs(1))
        };
        let next = now.checked_add(base).unwrap_or(Timestamp::MAX);
        // Where a beat is nothing beside the interval.
        if base >= BEAT * 50 { self.clock.beat(next) } else { next }
    }

    pub(super) fn checked(&mut self, checked: Checked) {
        self.checks.running = false;
        self.context.meter.check(checked.answer.is_ok());
        match checked.answer {
            Ok(list) => self.listed((checked.asked, list)),
            Err(error) => self.missed(&error),
        }
    }

    fn missed(&mut self, error: &CallError) {
        // A worker of the base that runs our install does not answer meanwhile. An uninstall is no excuse: it may
        // hang with the base, and a deletion waits for the verdict.
        let installing = self.memory.busy.values().any(|busy| busy.kind != Operation::Uninstall);
        if matches!(error, CallError::Timeout(_)) && installing {
            return;
        }
        let now = self.now();
        self.checks.misses = self.checks.misses.saturating_add(1);
        self.checks.missed_since.get_or_insert(now);
        let why = error.to_string();
        let asked = SocketAddr::new(self.spec.ip, self.spec.port);
        if self.checks.misses == 1 {
            tracing::debug!(base = %self.spec.node, arklet = %asked, error = %why, "check missed");
        }
        let limit = self.policy.operations.health.failures_before_not_ready.max(1);
        if self.checks.misses >= limit {
            if self.checks.misses == limit {
                tracing::warn!(base = %self.spec.node, arklet = %asked, error = %why, "base does not answer");
            }
            self.tell_unregistered(asked, &why, now);
            self.checks.mute(format!("arklet at {asked} does not answer: {why}"));
            self.observed.answering = false;
        }
    }

    /// A base that never answered has no VNode that could show why: its Pod is told, from time to time.
    fn tell_unregistered(&mut self, asked: SocketAddr, why: &str, now: Timestamp) {
        if self.checks.answered || self.checks.told.is_some_and(|told| now < later(told, TELL_EVERY)) {
            return;
        }
        self.checks.told = Some(now);
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(self.spec.namespace.clone()),
            name: Some(self.spec.pod.clone()),
            uid: Some(self.spec.uid.clone()),
            ..ObjectReference::default()
        };
        let note = format!(
            "no VNode is made for this base: arklet at {asked} does not answer: {why}; its port is 1238 unless the \
             annotation {} says otherwise, and network policies must let the agent through",
            names::ARKLET_PORT
        );
        let (kind, reason, action) = (EventKind::Warning, "BaseNotAnswering", "Register");
        self.context.events.emit(Event { regarding, kind, reason, action, note });
    }

    /// Takes a list of modules, unless a newer one is known.
    pub(super) fn listed(&mut self, (asked, list): Listed) {
        if self.checks.listed.is_some_and(|known| known > asked) {
            return;
        }
        let now = self.now();
        if self.checks.silent() {
            tracing::info!(base = %self.spec.node, "base answers again");
        }
        self.checks.listed = Some(asked);
        self.checks.good = Some(now);
        self.checks.answered = true;
        self.checks.misses = 0;
        self.checks.missed_since = None;
        self.checks.silence = Silence::None;
        let before = self.restarts();
        let wanted = self.desired();
        self.memory.listed(&list, &wanted, now);
        self.memory.outlived(&list, self.rules.lethal_within, now);
        self.observed = Observed {
            answering: true,
            multi_version: self.declares_multi_version() || side_by_side(&list),
            leaving: self.observed.leaving,
            modules: list,
        };
        self.tell_lost(&before);
    }

    fn declares_multi_version(&self) -> bool {
        super::report::provided(&self.spec)
            .get("multi-version")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    fn restarts(&self) -> Vec<(String, String, i32)> {
        let pods = self.memory.pods.iter();
        pods.flat_map(|(uid, pod)| {
            pod.modules.iter().map(|(container, module)| (uid.clone(), container.clone(), module.restarts))
        })
        .collect()
    }

    fn tell_lost(&self, before: &[(String, String, i32)]) {
        for (uid, container, restarts) in before {
            let now = self.memory.module(uid, container).map_or(0, |module| module.restarts);
            if now > *restarts && !self.uninstalling(uid) {
                let note =
                    format!("the module in container {container} is gone from the base and comes back");
                self.emit(uid, EventKind::Warning, "Replaying", "Installing", note);
            }
        }
    }
}

/// What the JVM says of its metaspace, where it does.
fn sample(jvm: &Jvm) -> Option<Sample> {
    let bytes = |figure: i64| u64::try_from(figure).ok();
    Some(Sample {
        used: bytes(jvm.metaspace_used?)?,
        max: jvm.metaspace_max.and_then(bytes),
        unloaded: jvm.unloaded_classes,
    })
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Two versions of one name are active: the base allows it.
fn side_by_side(list: &[Biz]) -> bool {
    let mut names: Vec<_> =
        list.iter().filter(|biz| biz.state == BizState::Activated).map(|biz| biz.name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| matches!(pair, [a, b] if a == b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_that_never_answered_is_starting_and_not_silent() {
        let mut checks = Checks::default();
        checks.mute("refused".to_owned());
        assert!(!checks.silent());
        assert!(!checks.known(), "nothing is shown of it");
        assert_eq!(checks.health(true), Health::Starting);
        checks.inherit(&Inventory::default());
        checks.mute("refused".to_owned());
        assert!(matches!(checks.health(true), Health::Silent { reason, .. } if reason == "refused"));
    }
}
