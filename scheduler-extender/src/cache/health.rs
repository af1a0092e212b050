//! Whether a watch can be believed.

use std::time::{Duration, Instant};

use service::watching::ROUND;

/// The failures of one watch. A watch that is quiet is healthy; one whose attempts fail or hang is stale after a while,
/// until there is proof that one succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Health {
    /// Its first list is complete.
    pub synced: bool,
    failing: Option<Failing>,
    /// When the API server last accepted a watch, or gave the list that one begins from.
    accepted: Option<Instant>,
    /// When the last list began.
    began: Option<Instant>,
    /// When the API server accepted the first watch after the last list. What happened since that list began comes then.
    resumed: Option<Instant>,
    /// Up to when something may have been missed, as far as that is over.
    doubted: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failing {
    first: Instant,
    /// Since when an attempt is open that has not failed yet.
    opened: Option<Instant>,
}

/// An attempt that was accepted may fail at once, so it counts as good only after this time, by which it has delivered what
/// was missed. A watch that is resumed without a change says nothing at all.
const SETTLED: Duration = Duration::from_secs(5);

/// A watch that begins anew later than this did not end by itself, and may have been silent long before.
const LATE: Duration = Duration::from_secs(3);

/// The end of a round may come late, and the next one takes a moment to be accepted.
const HESITATION: Duration = Duration::from_secs(15);

impl Health {
    /// The watch delivered something.
    pub fn succeeded(&mut self) {
        self.failing = None;
    }

    /// A list begins at `now`, and the watch before it is over.
    pub fn lists(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// A list was complete at `now`: the watch is accepted next. A list that was only due is no sign that anything was
    /// missed before.
    pub fn listed(&mut self, now: Instant) {
        if self.is_failing(now) {
            self.doubted = Some(now);
        }
        self.succeeded();
        self.synced = true;
        self.accepted = Some(now);
        self.resumed = None;
    }

    /// Whether the cache is still as old as the beginning of the last list, however long that took.
    pub fn is_catching_up(&self, now: Instant) -> bool {
        self.resumed.is_none_or(|at| now.saturating_duration_since(at) < SETTLED)
    }

    /// The last moment of which it is known that something may have been missed before it. Somebody who looks now and then
    /// does not see each time of failing.
    pub fn doubted_until(&self) -> Option<Instant> {
        self.doubted
    }

    /// The API server accepted an attempt at `now`. What was missed while the one before hung is still to come.
    pub fn opened(&mut self, now: Instant) {
        let is_behind = self.resumed.is_none() && self.began.is_some_and(|began| now > began + HESITATION);
        if is_behind || self.hangs_for(now) > LATE {
            self.doubted = Some(now);
        }
        self.resumed.get_or_insert(now);
        self.failing = self.failing.filter(|failing| !failing.over(now));
        let hung = self.hangs_for(now) > HESITATION;
        let ended = self.accepted.replace(now).map(|before| before + ROUND).filter(|_| hung);
        if let (None, Some(first)) = (&self.failing, ended) {
            self.failing = Some(Failing { first, opened: None });
        }
        if let Some(failing) = &mut self.failing {
            failing.opened.get_or_insert(now);
            self.doubted = Some(now);
        }
    }

    /// The watch failed at `now`.
    pub fn failed(&mut self, now: Instant) {
        let first = self.failing.filter(|failing| !failing.over(now)).map_or(now, |failing| failing.first);
        self.failing = Some(Failing { first, opened: None });
    }

    /// Whether the last attempt failed, or is not known to succeed, or the watch hangs.
    pub fn is_failing(&self, now: Instant) -> bool {
        self.failing.is_some_and(|failing| !failing.over(now)) || self.hangs_for(now) > HESITATION
    }

    /// For how long the watch should have begun anew.
    fn hangs_for(&self, now: Instant) -> Duration {
        self.accepted.map_or(Duration::ZERO, |at| now.saturating_duration_since(at).saturating_sub(ROUND))
    }

    /// Whether the watch has been failing for longer than `limit`.
    pub fn is_stale(&self, now: Instant, limit: Duration) -> bool {
        let failing = self.failing.filter(|failing| !failing.over(now));
        failing.is_some_and(|failing| now.saturating_duration_since(failing.first) >= limit)
            || self.hangs_for(now) > limit.max(HESITATION)
    }
}

impl Failing {
    fn over(self, now: Instant) -> bool {
        self.opened.is_some_and(|opened| now.saturating_duration_since(opened) >= SETTLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// An attempt that hangs says nothing for minutes; only one that was accepted and lasts is a success.
    #[test]
    fn silence_is_no_success() {
        let (mut health, start) = (Health::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        health.failed(start);
        assert!(health.is_failing(at(1)) && !health.is_stale(at(29), LIMIT));
        assert!(health.is_stale(at(30), LIMIT) && health.is_stale(at(310), LIMIT));
        health.opened(at(400));
        assert!(health.is_stale(at(404), LIMIT), "it may fail at once");
        health.failed(at(404));
        assert!(health.is_stale(at(409), LIMIT), "and that is no new start");
        health.opened(at(420));
        assert!(!health.is_failing(at(425)) && !health.is_stale(at(450), LIMIT));
        health.failed(at(450));
        assert!(health.is_failing(at(450)) && !health.is_stale(at(479), LIMIT), "a new failure");
        health.succeeded();
        assert!(!health.is_failing(at(460)));
    }

    /// A watch that was accepted and then hangs fails at nothing; but it does not end and begin anew as it should.
    #[test]
    fn a_watch_that_does_not_end_hangs() {
        let (mut health, start) = (Health::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        health.listed(start);
        assert!(!health.is_failing(at(45)) && !health.is_stale(at(60), LIMIT));
        assert!(health.is_failing(at(46)) && health.is_stale(at(61), LIMIT));
        health.opened(at(70));
        assert!(health.is_failing(at(70)) && health.is_stale(at(70), LIMIT), "it has delivered nothing yet");
        let mut delivering = health;
        delivering.succeeded();
        assert!(!delivering.is_failing(at(70)) && !delivering.is_stale(at(70), LIMIT));
        assert_eq!(delivering.doubted_until(), Some(at(70)));
        assert!(!health.is_failing(at(75)) && !health.is_stale(at(130), LIMIT));
        health.opened(at(140));
        assert!(health.is_failing(at(140)), "once more, though it never delivered anything");
    }
}
