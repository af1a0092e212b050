//! What one measurement gives, and its quantiles.

use std::time::Duration;

use jiff::Timestamp;

/// An agent that has nothing to do.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Idle {
    pub(crate) memory_mib: f64,
    /// Of one core.
    pub(crate) processor_percent: f64,
    pub(crate) lease_writes_per_s: f64,
    pub(crate) other_writes_per_s: f64,
}

/// Times of Pods, one entry for each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies {
    /// From the binding, as its sender began it, to the whole `installBiz` request at the base.
    pub(crate) to_install: Vec<Duration>,
    /// From the base's answer to the Ready Pod, as a watch shows it.
    pub(crate) to_ready: Vec<Duration>,
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
