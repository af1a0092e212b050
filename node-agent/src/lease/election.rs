//! Who may act, decided from what the Lease said and when *this* machine's monotonic clock saw it say so.
//!
//! The times inside a Lease are written by other machines and never compared with a clock of ours: a Lease is dead
//! when it has not *changed* for its duration, as far as we could see.

use std::time::Duration;

use tokio::time::Instant;

/// How long a Lease is good for others after its last change.
pub const DURATION: Duration = Duration::from_secs(15);
/// How often the holder renews it.
pub const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How long the holder acts after the last renewal that it *began* and that succeeded.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// How often a standby looks, and how soon a failed renewal is tried again.
pub const RETRY_EVERY: Duration = Duration::from_secs(2);
/// A Lease that claims to be good for longer than this is not believed.
const LONGEST: Duration = Duration::from_mins(1);

/// What identifies one state of the Lease; any difference is a sign of life of its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `spec.holderIdentity`; empty or absent when released.
    pub holder: Option<String>,
    /// `spec.renewTime` in microseconds; compared for equality only.
    pub renewed: Option<i64>,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// `spec.leaseDurationSeconds`.
    pub duration: Option<i32>,
}

/// What this agent knows of the Lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Election {
    identity: String,
    seen: Option<(Record, Instant)>,
    /// Beginning of the last successful renewal, while we are the holder.
    renewed: Option<Instant>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Read the Lease.
    Look,
    /// Write ourselves in as the holder.
    Take,
    /// Write a new renew time.
    Renew,
    /// The term is over: stop everything, then look again.
    StepDown,
    /// Nothing until then.
    Wait(Instant),
}

impl Election {
    /// Knows nothing yet.
    pub fn new(identity: String) -> Self {
        Self { identity, seen: None, renewed: None }
    }

    /// Whether this agent is the holder as far as it knows.
    pub fn leads(&self) -> bool {
        self.renewed.is_some()
    }

    /// Until when it may act.
    pub fn good_until(&self) -> Option<Instant> {
        self.renewed.map(|at| at + GIVE_UP_AFTER)
    }

    /// The Lease was read. `None`: there is none.
    pub fn observe(&mut self, record: Option<Record>, now: Instant) {
        self.seen = match (record, self.seen.take()) {
            (None, _) => None,
            (Some(new), Some((old, since))) if new == old => Some((old, since)),
            (Some(new), _) => Some((new, now)),
        };
    }

    /// A write that began at `began` was taken by the API server.
    pub fn wrote(&mut self, record: Record, began: Instant) {
        self.renewed = Some(began);
        self.seen = Some((record, began));
    }

    /// The term is over.
    pub fn stepped_down(&mut self) {
        self.renewed = None;
    }

    /// What to do now. `last` is when the last call ended, whatever came of it; `None` before the first.
    pub fn step(&self, last: Option<Instant>, now: Instant) -> Step {
        let Some(last) = last else { return Step::Look };
        if let Some(renewed) = self.renewed {
            return self.step_as_holder(renewed, last, now);
        }
        if self.is_free(now) && self.seen.as_ref().is_none_or(|(_, since)| *since <= now) {
            return Step::Take;
        }
        let next = last + RETRY_EVERY;
        if next <= now { Step::Look } else { Step::Wait(next) }
    }

    fn step_as_holder(&self, renewed: Instant, last: Instant, now: Instant) -> Step {
        let taken =
            self.seen.as_ref().is_none_or(|(record, _)| record.holder.as_deref() != Some(&self.identity));
        if now >= renewed + GIVE_UP_AFTER || taken {
            return Step::StepDown;
        }
        // After a failure `last` is later than the renewal: try again soon, but not in a loop.
        let next = (renewed + RENEW_EVERY).max(if last > renewed + RENEW_EVERY {
            last + RETRY_EVERY / 2
        } else {
            last
        });
        if next <= now { Step::Renew } else { Step::Wait(next.min(renewed + GIVE_UP_AFTER)) }
    }

    /// Whether nobody alive holds the Lease: absent, released, ours from before, or unchanged for its duration.
    fn is_free(&self, now: Instant) -> bool {
        let Some((record, since)) = &self.seen else { return true };
        match record.holder.as_deref() {
            None | Some("") => true,
            Some(holder) if holder == self.identity => true,
            Some(_) => {
                let claimed =
                    record.duration.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
                now.saturating_duration_since(*since) >= claimed.unwrap_or(DURATION).min(LONGEST)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, renewed: i64) -> Record {
        Record { holder: Some(holder.to_owned()), renewed: Some(renewed), transitions: 1, duration: Some(15) }
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_without_living_holder_is_taken() {
        let now = Instant::now();
        let mut me = Election::new("me".to_owned());
        assert_eq!(me.step(None, now), Step::Look);
        let released = Record { holder: Some(String::new()), ..record("x", 1) };
        for free in [None, Some(released), Some(record("me", 1))] {
            me.observe(free, now);
            assert_eq!(me.step(Some(now), now), Step::Take);
        }
    }

    /// BL-017: no clock of another machine counts, and a renewing holder is never robbed.
    #[tokio::test(start_paused = true)]
    async fn a_holder_is_dead_when_nothing_changed_for_the_duration() {
        let start = Instant::now();
        let mut me = Election::new("me".to_owned());
        // The remote clock is years ahead, then goes backwards: only the change counts.
        me.observe(Some(record("other", 9_000_000_000_000_000)), start);
        me.observe(Some(record("other", 5)), start + secs(10));
        assert_eq!(me.step(Some(start + secs(16)), start + secs(16)), Step::Wait(start + secs(18)));
        assert_eq!(me.step(Some(start + secs(16)), start + secs(18)), Step::Look);
        me.observe(Some(record("other", 5)), start + secs(18));
        assert_eq!(me.step(Some(start + secs(24)), start + secs(24)), Step::Wait(start + secs(26)));
        assert_eq!(me.step(Some(start + secs(24)), start + secs(25)), Step::Take);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claimed_duration_is_bounded() {
        let start = Instant::now();
        let mut me = Election::new("me".to_owned());
        for (claimed, free_after) in [(Some(3600), 60), (Some(-5), 15), (None, 15), (Some(30), 30)] {
            me.observe(None, start);
            me.observe(Some(Record { duration: claimed, ..record("other", 1) }), start);
            let at = start + secs(free_after);
            assert_ne!(me.step(Some(at), at - Duration::from_millis(1)), Step::Take, "{claimed:?}");
            assert_eq!(me.step(Some(at), at), Step::Take, "{claimed:?}");
        }
    }

    /// BL-016: renewals that only ever fail end the term before anybody else may begin one.
    #[tokio::test(start_paused = true)]
    async fn the_holder_renews_tries_again_and_gives_up() {
        let start = Instant::now();
        let mut me = Election::new("me".to_owned());
        me.wrote(record("me", 1), start);
        assert_eq!(me.good_until(), Some(start + secs(10)));
        assert_eq!(me.step(Some(start), start), Step::Wait(start + secs(5)));
        assert_eq!(me.step(Some(start), start + secs(5)), Step::Renew);
        // It failed at 6 s: again at 7 s.
        assert_eq!(me.step(Some(start + secs(6)), start + secs(6)), Step::Wait(start + secs(7)));
        assert_eq!(me.step(Some(start + secs(6)), start + secs(7)), Step::Renew);
        assert_eq!(me.step(Some(start + secs(7)), start + secs(10)), Step::StepDown);
        me.wrote(record("me", 2), start + secs(8));
        assert_eq!(me.step(Some(start + secs(8)), start + secs(10)), Step::Wait(start + secs(13)));
        me.stepped_down();
        assert!(!me.leads());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_another_took_ends_the_term_at_once() {
        let start = Instant::now();
        let mut me = Election::new("me".to_owned());
        me.wrote(record("me", 1), start);
        me.observe(Some(record("other", 2)), start + secs(1));
        assert_eq!(me.step(Some(start + secs(1)), start + secs(1)), Step::StepDown);
        me.wrote(record("me", 1), start);
        me.observe(None, start + secs(1));
        assert_eq!(me.step(Some(start + secs(1)), start + secs(1)), Step::StepDown);
    }
}
