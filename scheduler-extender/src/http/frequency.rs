//! Notices a Pod that comes to the filter more often than kube-scheduler's back-off explains.
//!
//! Back-off alone makes fewer than ten attempts in a minute. More means that something wakes the Pod each time: Nodes and
//! bound Pods that change all the time, sampling below 100 %, writes to the Pod itself. Our own reasons are constant.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Calls in a [`WINDOW`] that are too many.
pub(super) const TOO_OFTEN: u32 = 30;
/// The time in which they are counted.
pub(super) const WINDOW: Duration = Duration::from_mins(1);
/// Pods remembered at most; beyond it those of past windows are forgotten, then all.
const REMEMBERED: usize = 10_000;

/// Counts calls by Pod UID.
#[derive(Debug, Default)]
pub(super) struct Frequency {
    calls: HashMap<String, (Instant, u32)>,
}

impl Frequency {
    /// Counts a call; true once per window, with the call that makes it too many.
    pub(super) fn record(&mut self, uid: &str, now: Instant) -> bool {
        let current = |since: Instant| now.saturating_duration_since(since) < WINDOW;
        if let Some((since, count)) = self.calls.get_mut(uid) {
            if !current(*since) {
                (*since, *count) = (now, 0);
            }
            *count += 1;
            return *count == TOO_OFTEN;
        }
        if self.calls.len() >= REMEMBERED {
            self.calls.retain(|_, (since, _)| current(*since));
            if self.calls.len() >= REMEMBERED {
                self.calls.clear();
            }
        }
        self.calls.insert(uid.to_owned(), (now, 1));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn said_once_a_window() {
        let (mut frequency, start) = (Frequency::default(), Instant::now());
        let burst =
            |frequency: &mut Frequency, at: Instant| (0..100).filter(|_| frequency.record("u", at)).count();
        assert_eq!(burst(&mut frequency, start), 1);
        assert_eq!(burst(&mut frequency, start + WINDOW), 1);
        assert!((0..10).all(|attempt| !frequency.record("quiet", start + Duration::from_secs(attempt))));
    }

    #[test]
    fn memory_is_bounded() {
        let (mut frequency, start) = (Frequency::default(), Instant::now());
        for pod in 0..3 * REMEMBERED {
            frequency.record(&pod.to_string(), start);
        }
        assert!(frequency.calls.len() <= REMEMBERED);
    }
}
