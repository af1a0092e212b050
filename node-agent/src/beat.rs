//! Beats at which what is due for many bases begins together. A process that wakes for each of a thousand bases alone
//! spends more on waking than on what it does then.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

/// From one beat to the next: far shorter than anything that is done once in a while, and long enough for some of a
/// thousand bases to meet.
pub(crate) const BEAT: Duration = Duration::from_millis(100);

static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How long after the last beat this is.
fn past(at: Instant) -> Duration {
    let nanos = at.saturating_duration_since(*FIRST).as_nanos() % BEAT.as_nanos();
    Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
}

/// The last beat that is not after `at`.
pub(crate) fn before(at: Instant) -> Instant {
    at.checked_sub(past(at)).unwrap_or(at)
}

/// The first beat that is not before `at`.
pub(crate) fn after(at: Instant) -> Instant {
    match past(at) {
        Duration::ZERO => at,
        past => at + BEAT.saturating_sub(past),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_are_the_same_for_all() {
        let now = Instant::now() + Duration::from_hours(1);
        let beats: Vec<Instant> = (0..BEAT.as_millis())
            .map(|millis| after(before(now) + Duration::from_millis(u64::try_from(millis).unwrap())))
            .collect();
        assert_eq!(beats[0], before(now));
        assert!(beats[1..].iter().all(|beat| *beat == before(now) + BEAT));
        assert!(before(now) <= now && now < before(now) + BEAT);
        assert_eq!(before(before(now)), before(now));
    }
}
