//! Whether a watch can be believed.

use std::time::{Duration, Instant};

/// The failures of one watch. A watch that is quiet is healthy; one whose attempts keep failing is stale after a while.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Health {
    /// Its first list is complete.
    pub synced: bool,
    failing: Option<Failing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Failing {
    first: Instant,
    last: Instant,
}

/// Attempts are at most 30 s apart (the watcher's back-off); a longer silence after a failure means that the last
/// attempt succeeded, because a watch that is resumed without a change says nothing.
const SILENCE: Duration = Duration::from_secs(75);

impl Health {
    /// The watch delivered something.
    pub fn succeeded(&mut self) {
        self.failing = None;
    }

    /// The watch failed at `now`.
    pub fn failed(&mut self, now: Instant) {
        let first =
            self.failing.filter(|failing| now.duration_since(failing.last) < SILENCE).map(|f| f.first);
        self.failing = Some(Failing { first: first.unwrap_or(now), last: now });
    }

    /// Whether the watch has been failing for longer than `limit`.
    pub fn is_stale(&self, now: Instant, limit: Duration) -> bool {
        self.failing.is_some_and(|failing| {
            now.saturating_duration_since(failing.last) < SILENCE
                && now.saturating_duration_since(failing.first) >= limit
        })
    }
}
