//! Time for an actor: the API server's clock when it began, moved by the runtime's monotonic clock. A wall clock that
//! jumps cannot fire a back-off or end a grace period, and tests with paused time move it.

use jiff::Timestamp;
use tokio::time::Instant;

use crate::beat;

#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    wall: Timestamp,
    since: Instant,
}

impl Clock {
    /// A clock that shows `wall` now.
    pub(super) fn start(wall: Timestamp) -> Self {
        Self { wall, since: Instant::now() }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.wall.checked_add(self.since.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// The first beat that is not before `at`.
    pub(super) fn beat(&self, at: Timestamp) -> Timestamp {
        let instant = self.instant(at);
        let wait = beat::after(instant).saturating_duration_since(instant);
        at.checked_add(wait).unwrap_or(at)
    }

    /// The instant at which this clock shows `at`; at once when it is past.
    pub(super) fn instant(&self, at: Timestamp) -> Instant {
        let wait = std::time::Duration::try_from(at.duration_since(self.now())).unwrap_or_default();
        Instant::now() + wait.min(std::time::Duration::from_hours(24))
    }
}
