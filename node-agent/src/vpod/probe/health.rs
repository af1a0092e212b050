//! What the answers of probes mean: thresholds, periods, and what waits for what. Pure; times are the age of the module,
//! counted from when it became active.

use std::time::Duration;

use super::spec::{Check, Kind, Probes};

/// A probe that failed as often as its threshold says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// Which.
    pub kind: Kind,
    /// What it saw; short and free of credentials.
    pub why: String,
}

impl std::fmt::Display for Failing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} probe failed: {}", self.kind.as_str(), self.why)
    }
}

/// What was shown of a module before its probes began: by an earlier process of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Before {
    /// Its startup probe had succeeded.
    pub started: bool,
    /// It was ready.
    pub ready: bool,
}

/// What holds of a module now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Its startup probe has succeeded, or it has none.
    pub started: bool,
    /// Why it takes no traffic; `None`: it does.
    pub unready: Option<String>,
    /// Why it must be installed again. Stays until the probe succeeds again.
    pub failing: Option<Failing>,
}

/// The probes of one run of a module.
#[derive(Debug)]
pub struct Health {
    startup: Option<Line>,
    liveness: Option<Line>,
    readiness: Option<Line>,
    started: bool,
    ready: bool,
    failing: Option<Failing>,
    /// The first words of what keeps it from being ready: a text that changes must not write the Pod each time.
    why: Option<String>,
}

/// One probe.
#[derive(Debug)]
struct Line {
    check: Check,
    next: Duration,
    asking: bool,
    last: Option<bool>,
    row: u32,
}

impl Line {
    fn new(check: Check, age: Duration) -> Self {
        Self { next: check.initial_delay.max(age), check, asking: false, last: None, row: 0 }
    }

    fn due(&mut self, age: Duration) -> Option<Check> {
        if self.asking || self.next > age {
            return None;
        }
        self.asking = true;
        self.next = age.saturating_add(self.check.period);
        Some(self.check.clone())
    }

    /// Counts an answer. Gives back whether it is the first of its row, and whether the row is as long as it must be.
    fn count(&mut self, well: bool, age: Duration) -> (bool, bool) {
        self.asking = false;
        // An answer that took longer than a period does not bring two questions at once.
        self.next = self.next.max(age);
        let first = self.last != Some(well);
        self.row = if first { 1 } else { self.row.saturating_add(1) };
        self.last = Some(well);
        (first, self.row >= if well { self.check.successes } else { self.check.failures })
    }
}

impl Health {
    /// Probes of a module that has been active for `age`.
    pub fn new(probes: &Probes, before: Before, age: Duration) -> Self {
        let line = |check: &Option<Check>| check.clone().map(|check| Line::new(check, age));
        Self {
            startup: line(&probes.startup),
            liveness: line(&probes.liveness),
            readiness: line(&probes.readiness),
            started: before.started || probes.startup.is_none(),
            ready: before.ready || probes.readiness.is_none(),
            failing: None,
            why: None,
        }
    }

    fn line(&mut self, kind: Kind) -> Option<&mut Line> {
        match kind {
            Kind::Startup => self.startup.as_mut(),
            Kind::Liveness => self.liveness.as_mut(),
            Kind::Readiness => self.readiness.as_mut(),
        }
    }

    /// Kinds whose turn it can be: the startup probe until it has succeeded, the others from then on.
    fn kinds(&self) -> &'static [Kind] {
        if self.started { &[Kind::Liveness, Kind::Readiness] } else { &[Kind::Startup] }
    }

    /// What must be asked now. Each counts as asked until [`Health::answered`].
    pub fn due(&mut self, age: Duration) -> Vec<(Kind, Check)> {
        let kinds = self.kinds();
        kinds.iter().filter_map(|kind| Some((*kind, self.line(*kind)?.due(age)?))).collect()
    }

    /// When to ask next, apart from what is being asked; `None`: nothing is left to ask.
    pub fn wake(&mut self) -> Option<Duration> {
        let kinds = self.kinds();
        let waiting = kinds.iter().filter_map(|kind| {
            let line = self.line(*kind)?;
            (!line.asking).then_some(line.next)
        });
        waiting.min()
    }

    /// Takes an answer. Gives back the failure when it is the first of its row.
    pub fn answered(&mut self, kind: Kind, outcome: Result<(), String>, age: Duration) -> Option<Failing> {
        let (first, enough) = self.line(kind)?.count(outcome.is_ok(), age);
        // One that was on its way when the module started counts no more.
        if kind == Kind::Startup && self.started {
            return None;
        }
        match outcome {
            Ok(()) => {
                if enough {
                    self.succeeded(kind);
                }
                None
            }
            Err(why) => {
                let failing = Failing { kind, why };
                self.failed(&failing, enough);
                first.then_some(failing)
            }
        }
    }

    fn succeeded(&mut self, kind: Kind) {
        match kind {
            Kind::Startup => {
                self.started = true;
                self.why = None;
            }
            Kind::Readiness => {
                self.ready = true;
                self.why = None;
            }
            Kind::Liveness => {}
        }
        if self.failing.as_ref().is_some_and(|failing| failing.kind == kind) {
            self.failing = None;
        }
    }

    fn failed(&mut self, failing: &Failing, enough: bool) {
        match failing.kind {
            Kind::Readiness => {
                if enough {
                    self.ready = false;
                }
                if !self.ready {
                    self.why.get_or_insert_with(|| failing.why.clone());
                }
            }
            Kind::Startup | Kind::Liveness => {
                if failing.kind == Kind::Startup {
                    self.why.get_or_insert_with(|| failing.to_string());
                }
                if enough {
                    self.failing.get_or_insert_with(|| failing.clone());
                }
            }
        }
    }

    /// What holds now.
    pub fn verdict(&self) -> Verdict {
        let why = || self.why.clone();
        let unready = match (self.started, self.ready) {
            (true, true) => None,
            (true, false) => Some(why().unwrap_or_else(|| "not probed yet".to_owned())),
            (false, _) => Some(why().unwrap_or_else(|| "its startup probe has not succeeded yet".to_owned())),
        };
        Verdict { started: self.started, unready, failing: self.failing.clone() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const FRESH: Before = Before { started: false, ready: false };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A probe of port 1 with these fields.
    fn probe(fields: &Value) -> Value {
        let mut probe = json!({"tcpSocket": {"port": 1}});
        probe.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        probe
    }

    fn health(fields: &[(&str, Value)], before: Before, age: u64) -> Health {
        let mut container = json!({"name": "shop"});
        for (field, value) in fields {
            container[field] = probe(value);
        }
        let container = serde_json::from_value(container).unwrap();
        Health::new(&Probes::of(&container), before, seconds(age))
    }

    fn kinds(due: &[(Kind, Check)]) -> Vec<Kind> {
        due.iter().map(|(kind, _)| *kind).collect()
    }

    /// Asks what is due and answers it with this.
    fn round(health: &mut Health, age: u64, answer: Result<(), &str>) -> Vec<Kind> {
        let asked = kinds(&health.due(seconds(age)));
        for kind in &asked {
            health.answered(*kind, answer.map_err(str::to_owned), seconds(age));
        }
        asked
    }

    #[test]
    fn without_probes_a_module_is_started_and_ready() {
        let mut health = health(&[], FRESH, 0);
        assert_eq!(health.verdict(), Verdict { started: true, unready: None, failing: None });
        assert_eq!(health.wake(), None);
    }

    #[test]
    fn readiness_follows_both_thresholds_and_keeps_its_first_words() {
        let fields = json!({"successThreshold": 2, "failureThreshold": 2, "periodSeconds": 5});
        let mut health = health(&[("readinessProbe", fields)], FRESH, 0);
        let unready = |health: &Health| health.verdict().unready;
        assert_eq!(unready(&health).as_deref(), Some("not probed yet"));
        round(&mut health, 0, Err("HTTP 503"));
        assert_eq!(unready(&health).as_deref(), Some("HTTP 503"));
        round(&mut health, 5, Ok(()));
        assert!(unready(&health).is_some(), "once is not twice");
        round(&mut health, 10, Ok(()));
        assert_eq!(unready(&health), None);
        round(&mut health, 15, Err("HTTP 500"));
        assert_eq!(unready(&health), None, "once is not twice");
        round(&mut health, 20, Err("HTTP 502"));
        assert_eq!(unready(&health).as_deref(), Some("HTTP 502"));
        round(&mut health, 25, Err("HTTP 501"));
        assert_eq!(unready(&health).as_deref(), Some("HTTP 502"), "the text does not change each time");
        assert_eq!(health.verdict().failing, None, "readiness installs nothing again");
    }

    #[test]
    fn a_startup_probe_holds_the_others_back() {
        let fields = json!({"periodSeconds": 2, "failureThreshold": 3});
        let mut health = health(
            &[
                ("startupProbe", fields.clone()),
                ("livenessProbe", fields.clone()),
                ("readinessProbe", fields),
            ],
            FRESH,
            0,
        );
        assert_eq!(round(&mut health, 0, Err("HTTP 503")), [Kind::Startup]);
        assert_eq!(health.wake(), Some(seconds(2)));
        assert_eq!(round(&mut health, 1, Ok(())), []);
        let verdict = health.verdict();
        assert!(!verdict.started);
        assert_eq!(verdict.unready.as_deref(), Some("Startup probe failed: HTTP 503"));
        assert_eq!(round(&mut health, 2, Ok(())), [Kind::Startup]);
        assert!(health.verdict().started);
        assert_eq!(health.verdict().unready.as_deref(), Some("not probed yet"));
        assert_eq!(round(&mut health, 2, Ok(())), [Kind::Liveness, Kind::Readiness]);
        assert_eq!(health.verdict(), Verdict { started: true, unready: None, failing: None });
        assert_eq!(round(&mut health, 4, Ok(())), [Kind::Liveness, Kind::Readiness], "never startup again");
    }

    #[test]
    fn a_startup_probe_that_never_succeeds_fails_the_module() {
        let fields = json!({"periodSeconds": 1, "failureThreshold": 3});
        let mut health = health(&[("startupProbe", fields)], FRESH, 0);
        for age in 0..2 {
            round(&mut health, age, Err("HTTP 503"));
            assert_eq!(health.verdict().failing, None);
        }
        round(&mut health, 2, Err("HTTP 503"));
        let failing = health.verdict().failing.unwrap();
        assert_eq!(
            (failing.kind, failing.to_string().as_str()),
            (Kind::Startup, "Startup probe failed: HTTP 503")
        );
    }

    #[test]
    fn liveness_fails_by_a_row_and_not_by_a_sum() {
        let fields = json!({"periodSeconds": 1, "failureThreshold": 2});
        let mut health = health(&[("livenessProbe", fields)], FRESH, 0);
        assert_eq!(health.verdict().unready, None, "liveness is no readiness");
        for (age, answer) in [Err("a"), Ok(()), Err("b"), Ok(())].into_iter().enumerate() {
            round(&mut health, age.try_into().unwrap(), answer);
            assert_eq!(health.verdict().failing, None);
        }
        round(&mut health, 4, Err("c"));
        round(&mut health, 5, Err("d"));
        let failing = |why: &str| Some(Failing { kind: Kind::Liveness, why: why.to_owned() });
        assert_eq!(health.verdict().failing, failing("d"));
        round(&mut health, 6, Err("e"));
        assert_eq!(health.verdict().failing, failing("d"), "its first words stay");
        round(&mut health, 7, Ok(()));
        assert_eq!(health.verdict().failing, None, "nothing was done about it, and it is well again");
    }

    #[test]
    fn the_first_failure_of_a_row_is_told() {
        let fields = json!({"periodSeconds": 1});
        let mut health = health(&[("livenessProbe", fields)], FRESH, 0);
        let mut told = Vec::new();
        for (age, well) in [true, false, false, true, false].into_iter().enumerate() {
            let age = seconds(age.try_into().unwrap());
            assert_eq!(health.due(age).len(), 1);
            let answer = if well { Ok(()) } else { Err("x".to_owned()) };
            told.push(health.answered(Kind::Liveness, answer, age).is_some());
        }
        assert_eq!(told, [false, true, false, false, true]);
    }

    #[test]
    fn the_delay_counts_from_when_the_module_became_active() {
        let fields = json!({"initialDelaySeconds": 10, "periodSeconds": 4});
        let mut fresh = health(&[("livenessProbe", fields.clone())], FRESH, 0);
        assert_eq!(fresh.wake(), Some(seconds(10)));
        assert_eq!(round(&mut fresh, 9, Ok(())), []);
        assert_eq!(round(&mut fresh, 10, Ok(())), [Kind::Liveness]);
        assert_eq!(fresh.wake(), Some(seconds(14)));
        let mut known = health(&[("livenessProbe", fields)], FRESH, 300);
        assert_eq!(
            round(&mut known, 300, Ok(())),
            [Kind::Liveness],
            "an agent that restarted does not wait again"
        );
    }

    #[test]
    fn a_slow_answer_delays_its_own_probe_only() {
        let quick = json!({"periodSeconds": 1});
        let mut health = health(&[("livenessProbe", quick.clone()), ("readinessProbe", quick)], FRESH, 0);
        assert_eq!(kinds(&health.due(seconds(0))), [Kind::Liveness, Kind::Readiness]);
        health.answered(Kind::Readiness, Ok(()), seconds(0));
        assert_eq!(health.wake(), Some(seconds(1)), "liveness is still being asked");
        assert_eq!(kinds(&health.due(seconds(1))), [Kind::Readiness]);
        health.answered(Kind::Liveness, Ok(()), seconds(3));
        assert_eq!(kinds(&health.due(seconds(3))), [Kind::Liveness], "once, not for each period that passed");
    }

    #[test]
    fn what_an_earlier_process_showed_holds_until_a_probe_says_otherwise() {
        let fields = json!({"failureThreshold": 2, "periodSeconds": 1});
        let all = [("startupProbe", fields.clone()), ("readinessProbe", fields)];
        let mut health = health(&all, Before { started: true, ready: true }, 100);
        assert_eq!(health.verdict(), Verdict { started: true, unready: None, failing: None });
        assert_eq!(round(&mut health, 100, Err("x")), [Kind::Readiness]);
        assert_eq!(health.verdict().unready, None);
        round(&mut health, 101, Err("x"));
        assert!(health.verdict().unready.is_some());
    }
}
