//! Modules that run again: why the last run ended, and how long the next one waits when probes ended it.

use std::time::Duration;

use jiff::Timestamp;

use super::state::{ModuleMemory, Removal};
use crate::vpod::probe::{Failing, Kind};

/// The first wait of a module that does not stay well; a kubelet's.
const FIRST: Duration = Duration::from_secs(10);
/// The longest; a kubelet's.
const LONGEST: Duration = Duration::from_mins(5);

/// Why a module that was active is not any more. Closed; the texts of [`Cause::as_str`] are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its liveness probe failed.
    LivenessProbe,
    /// Its startup probe failed.
    StartupProbe,
    /// The base restarted.
    BaseRestarted,
    /// It is gone from the base, and we did not do it.
    Vanished,
    /// Taken off for what replaces it in the same VPod.
    Replaced,
}

impl Cause {
    /// The probe that ended a run, by what the status says of it.
    pub(super) fn of_probe(text: &str) -> Option<Self> {
        [Self::LivenessProbe, Self::StartupProbe].into_iter().find(|cause| cause.as_str() == text)
    }

    /// Stable text for status and docs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LivenessProbe => "LivenessProbeFailed",
            Self::StartupProbe => "StartupProbeFailed",
            Self::BaseRestarted => "BaseRestarted",
            Self::Vanished => "Vanished",
            Self::Replaced => "Replaced",
        }
    }
}

/// How the last run of a module ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Why.
    pub cause: Cause,
    /// For people.
    pub message: String,
    /// When that was found.
    pub at: Timestamp,
}

/// The back-off of a module whose probes fail again and again, as a kubelet does it: the first restart is at once, then
/// 10 s doubling to 5 min, forgotten after twice the longest wait without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashLoop {
    /// The wait.
    pub wait: Duration,
    /// Its end.
    pub until: Timestamp,
}

impl CrashLoop {
    /// One more run was ended by a probe.
    pub fn after(known: Option<Self>, now: Timestamp) -> Self {
        let wait = match known {
            Some(known) if now < later(known.until, LONGEST.saturating_mul(2)) => {
                known.wait.saturating_mul(2).clamp(FIRST, LONGEST)
            }
            _ => Duration::ZERO,
        };
        Self { wait, until: later(now, wait) }
    }
}

impl CrashLoop {
    /// What an earlier process must have known, from what it wrote into the status of a container: how often it was
    /// restarted, and its last run. Restarts of other kinds count too, so this is the longest wait that may have been
    /// due; a run of ten minutes shows that the module had been well.
    pub(super) fn taken_over(restarts: i32, began: Option<Timestamp>, ended: Timestamp) -> Self {
        let well = began.is_some_and(|began| ended >= later(began, LONGEST.saturating_mul(2)));
        let doublings = u32::try_from(restarts.saturating_sub(2)).ok().filter(|_| !well);
        let wait = doublings.map_or(Duration::ZERO, |doublings| {
            FIRST.saturating_mul(2_u32.saturating_pow(doublings.min(10))).min(LONGEST)
        });
        Self { wait, until: later(ended, wait) }
    }
}

impl ModuleMemory {
    /// It is not active any more. What its probes said is why, where they said something.
    pub(super) fn ended(&mut self, cause: Cause, message: &str, now: Timestamp) {
        self.active = false;
        self.restarts = self.restarts.saturating_add(1);
        let failing = self.unhealthy.take();
        if failing.is_some() {
            self.crashes = Some(CrashLoop::after(self.crashes, now));
        }
        self.ending = Some(match failing {
            Some(failing) => Ending { cause: cause_of(failing.kind), message: failing.to_string(), at: now },
            None => Ending { cause, message: message.to_owned(), at: now },
        });
    }

    /// It is not active any more without our doing. What is being removed does not come back: that is no restart.
    pub(super) fn lost(&mut self, removal: Removal, cause: Cause, message: &str, now: Timestamp) {
        if removal == Removal::None {
            self.ended(cause, message, now);
        } else {
            self.active = false;
        }
    }

    /// The back-off that has not ended yet.
    pub(super) fn crash_loop(&self, now: Timestamp) -> Option<CrashLoop> {
        self.crashes.filter(|crashes| crashes.until > now)
    }

    /// What its probes say of the run that is shown.
    pub(super) fn failing(&self) -> Option<&Failing> {
        self.unhealthy.as_ref().filter(|_| self.active)
    }
}

fn cause_of(kind: Kind) -> Cause {
    match kind {
        Kind::Startup => Cause::StartupProbe,
        Kind::Liveness | Kind::Readiness => Cause::LivenessProbe,
    }
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn the_back_off_doubles_from_ten_seconds_to_five_minutes() {
        let mut known = None;
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let next = CrashLoop::after(known, now);
            waits.push(next.wait.as_secs());
            known = Some(next);
            now = next.until + jiff::SignedDuration::from_secs(30);
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn an_agent_that_restarts_goes_on_with_the_back_off() {
        let taken_over = |restarts| CrashLoop::taken_over(restarts, Some(at(0)), at(30));
        let waits = [1, 2, 3, 7, 50].map(|restarts| taken_over(restarts).wait.as_secs());
        assert_eq!(waits, [0, 10, 20, 300, 300]);
        assert_eq!(taken_over(3).until, at(50), "it began when the run ended");
        let next = CrashLoop::after(Some(taken_over(3)), at(80));
        assert_eq!(next.wait.as_secs(), 40, "and goes on doubling");
        let well = CrashLoop::taken_over(9, Some(at(0)), at(600));
        assert_eq!((well.wait, well.until), (Duration::ZERO, at(600)));
        assert_eq!(CrashLoop::taken_over(3, None, at(30)).wait.as_secs(), 20);
    }

    #[test]
    fn a_module_that_stayed_well_begins_anew() {
        let known = CrashLoop { wait: Duration::from_secs(160), until: at(0) };
        assert_eq!(CrashLoop::after(Some(known), at(599)).wait, LONGEST);
        let anew = CrashLoop::after(Some(known), at(600));
        assert_eq!(anew, CrashLoop { wait: Duration::ZERO, until: at(600) });
    }

    #[test]
    fn what_probes_said_is_why_a_run_ended_and_nothing_else_backs_off() {
        let failing = Failing { kind: Kind::Liveness, why: "HTTP 500".to_owned() };
        let mut module = ModuleMemory { active: true, unhealthy: Some(failing), ..ModuleMemory::default() };
        module.ended(Cause::Replaced, "x", at(5));
        let ending = module.ending.clone().unwrap();
        assert_eq!((ending.cause.as_str(), ending.at), ("LivenessProbeFailed", at(5)));
        assert_eq!(ending.message, "Liveness probe failed: HTTP 500");
        assert!(module.crashes.is_some() && module.unhealthy.is_none() && !module.active);
        assert_eq!(module.crash_loop(at(5)), None, "the first restart is at once");

        let mut module = ModuleMemory { active: true, ..ModuleMemory::default() };
        module.ended(Cause::Vanished, "gone", at(5));
        assert_eq!((module.restarts, module.crashes), (1, None));
        assert_eq!(module.ending.unwrap().cause.as_str(), "Vanished");

        let mut module = ModuleMemory { active: true, ..ModuleMemory::default() };
        module.lost(Removal::Draining, Cause::Vanished, "gone", at(5));
        assert_eq!((module.restarts, module.active, module.ending), (0, false, None), "it goes anyway");
    }
}
