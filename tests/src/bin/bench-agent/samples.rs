//! What one measurement gives, and its quantiles.

use std::time::Duration;

use jiff::Timestamp;

/// An agent that has nothing to do.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Idle {
    pub(crate) memory_mib: f64,
    /// Of that, what is not the program's own text.
    pub(crate) anonymous_mib: f64,
    /// The most that was held so far.
    pub(crate) peak_mib: f64,
    /// Of one core.
    pub(crate) processor_percent: f64,
    pub(crate) lease_writes_per_s: f64,
    pub(crate) other_writes_per_s: f64,
}

/// Times of Pods, one entry for each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies {
    /// From the binding, as its sender began it, to the bound Pod in a watch of this program.
    pub(crate) to_watch: Vec<Duration>,
    /// From the bound Pod in that watch to the whole `installBiz` request at the base: without what the API server takes
    /// to tell anybody. Zero where the agent saw it first.
    pub(crate) watch_to_install: Vec<Duration>,
    /// From the binding, as its sender began it, to the whole `installBiz` request at the base.
    pub(crate) to_install: Vec<Duration>,
    /// From the base's answer to the Ready Pod, as a watch shows it.
    pub(crate) to_ready: Vec<Duration>,
}

/// What the API server does by itself of that which a burst takes, and the burst.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rates {
    /// All bindings, the agent at work beside them.
    pub(crate) bindings: Duration,
    /// As many writes of Nodes, before the burst, by this program.
    pub(crate) node_writes: Duration,
    /// From the first binding to the last `installBiz`.
    pub(crate) installs: Duration,
}

/// An agent that was killed and started again with everything installed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Restart {
    /// Until every base had been asked again.
    pub(crate) all_asked: Duration,
    pub(crate) installs: usize,
    pub(crate) uninstalls: usize,
    /// Pods that were once seen not Ready.
    pub(crate) not_ready: usize,
}

/// The smallest value that at least `share` of all are not above; zero if there are none.
pub(crate) fn quantile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small count"
    )]
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// From one time to another; zero where clocks were set in between.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let values: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&values, 0.5), Duration::from_millis(100));
        assert_eq!(quantile(&values, 0.99), Duration::from_millis(198));
        assert_eq!(quantile(&values, 1.0), Duration::from_millis(200));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }
}
