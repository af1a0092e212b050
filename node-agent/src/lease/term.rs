//! A term: the time during which this agent holds the Lease and may act.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// One term. Clones speak of the same one. Everything that acts is started on its tracker and ends with its token;
/// whatever is about to write looks at [`Term::holds`] first, because a process that was stopped and goes on knows
/// nothing of the time in between until its timers fire.
#[derive(Debug, Clone)]
pub struct Term {
    token: CancellationToken,
    tracker: TaskTracker,
    origin: Instant,
    /// Milliseconds after `origin` until which the term is good. Written by the leader task only.
    good_until: Arc<AtomicU64>,
}

impl Term {
    /// A term that is good until then.
    pub fn until(now: Instant, good_until: Instant) -> Self {
        let term = Self {
            token: CancellationToken::new(),
            tracker: TaskTracker::new(),
            origin: now,
            good_until: Arc::new(AtomicU64::new(0)),
        };
        term.extend(good_until);
        term
    }

    /// A term without a Lease behind it: `--observe` writes nothing, so nothing can clash.
    pub fn unlimited() -> Self {
        let now = Instant::now();
        let term = Self::until(now, now);
        term.good_until.store(u64::MAX, Ordering::Release);
        term
    }

    /// Whether this agent may still act.
    pub fn holds(&self) -> bool {
        self.holds_at(Instant::now())
    }

    /// Whether this agent may act at that time.
    pub fn holds_at(&self, now: Instant) -> bool {
        let elapsed = millis(now.saturating_duration_since(self.origin));
        !self.token.is_cancelled() && elapsed < self.good_until.load(Ordering::Acquire)
    }

    /// Cancelled when the term ends.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// The tasks that act in this term.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    pub(super) fn extend(&self, good_until: Instant) {
        self.good_until.store(millis(good_until.saturating_duration_since(self.origin)), Ordering::Release);
    }

    /// Ends the term and waits until its tasks have ended, at most `limit`. Says whether they have.
    pub(super) async fn end(&self, limit: Duration) -> bool {
        self.token.cancel();
        self.tracker.close();
        tokio::time::timeout(limit, self.tracker.wait()).await.is_ok()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_term_is_over_at_its_deadline_whatever_the_timers_do() {
        let start = Instant::now();
        let term = Term::until(start, start + Duration::from_secs(10));
        assert!(term.holds_at(start + Duration::from_millis(9_999)));
        assert!(!term.holds_at(start + Duration::from_secs(10)));
        term.extend(start + Duration::from_secs(20));
        assert!(term.holds_at(start + Duration::from_secs(15)));
        assert!(term.end(Duration::from_secs(1)).await);
        assert!(!term.holds_at(start));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_the_tasks() {
        let term = Term::unlimited();
        let token = term.token().clone();
        term.tracker().spawn(async move { token.cancelled().await });
        assert!(term.end(Duration::from_secs(1)).await);
        let stuck = Term::unlimited();
        stuck.tracker().spawn(std::future::pending::<()>());
        assert!(!stuck.end(Duration::from_secs(1)).await);
    }
}
