//! Which Event is written, which is counted into an earlier one, which is dropped. Pure.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::Event;

/// The same Event within this time is one series.
const SERIES: Duration = Duration::from_mins(6);
/// A series is written again at most this often.
const REPEAT: Duration = Duration::from_mins(1);
/// Events of one object: this many at once, then one each [`REFILL`].
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(30);
/// Objects and series remembered; the oldest go first.
const REMEMBERED: usize = 4_096;

/// What makes two Events the same. The note is not part of it: it may carry a count or a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    reason: &'static str,
}

impl Key {
    pub(super) fn of(event: &Event) -> Self {
        let of = &event.regarding;
        Self {
            kind: of.kind.clone(),
            namespace: of.namespace.clone(),
            name: of.name.clone(),
            uid: of.uid.clone(),
            reason: event.reason,
        }
    }

    fn object(&self) -> Self {
        Self { reason: "", ..self.clone() }
    }
}

/// What to do with an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// A new Event object of this name.
    Create(String),
    /// The object of this name gets a new count.
    Count(String, i32),
    /// Nothing now.
    Skip,
}

struct Seen {
    name: String,
    note: String,
    count: i32,
    first: Instant,
    written: Instant,
}

struct Budget {
    tokens: u32,
    refilled: Instant,
}

/// What was written lately. Owned by the recorder's task.
#[derive(Default)]
pub(super) struct Series {
    seen: HashMap<Key, Seen>,
    budgets: HashMap<Key, Budget>,
}

impl Series {
    /// `fresh` names a new object.
    pub(super) fn judge(&mut self, event: &Event, now: Instant, fresh: impl FnOnce() -> String) -> Fate {
        self.forget(now);
        let key = Key::of(event);
        if let Some(seen) = self.seen.get_mut(&key)
            && seen.note == event.note
        {
            seen.count = seen.count.saturating_add(1);
            if now.saturating_duration_since(seen.written) < REPEAT {
                return Fate::Skip;
            }
            seen.written = now;
            return Fate::Count(seen.name.clone(), seen.count);
        }
        if !self.spend(key.object(), now) {
            return Fate::Skip;
        }
        let name = fresh();
        let seen = Seen { name: name.clone(), note: event.note.clone(), count: 1, first: now, written: now };
        self.seen.insert(key, seen);
        Fate::Create(name)
    }

    fn spend(&mut self, object: Key, now: Instant) -> bool {
        let budget = self.budgets.entry(object).or_insert(Budget { tokens: BURST, refilled: now });
        let periods = now.saturating_duration_since(budget.refilled).as_secs() / REFILL.as_secs();
        if let Ok(periods) = u32::try_from(periods)
            && periods > 0
        {
            budget.tokens = budget.tokens.saturating_add(periods).min(BURST);
            budget.refilled = now;
        }
        let has = budget.tokens > 0;
        budget.tokens = budget.tokens.saturating_sub(1);
        has
    }

    fn forget(&mut self, now: Instant) {
        if self.seen.len() >= REMEMBERED {
            self.seen.retain(|_, seen| now.saturating_duration_since(seen.first) < SERIES);
        }
        if self.seen.len() >= REMEMBERED {
            self.seen.clear();
        }
        if self.budgets.len() >= REMEMBERED {
            let full = REFILL * BURST;
            self.budgets.retain(|_, budget| now.saturating_duration_since(budget.refilled) < full);
        }
        if self.budgets.len() >= REMEMBERED {
            self.budgets.clear();
        }
        self.seen.retain(|_, seen| now.saturating_duration_since(seen.written) < SERIES);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;
    use crate::base::EventKind;

    fn event(object: &str, note: &str) -> Event {
        Event {
            regarding: ObjectReference { name: Some(object.to_owned()), ..ObjectReference::default() },
            kind: EventKind::Warning,
            reason: "InstallFailed",
            action: "Install",
            note: note.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_are_counted_not_created() {
        let start = Instant::now();
        let mut series = Series::default();
        let fresh = || "e1".to_owned();
        assert_eq!(series.judge(&event("a", "x"), start, fresh), Fate::Create("e1".to_owned()));
        assert_eq!(series.judge(&event("a", "x"), start, fresh), Fate::Skip);
        let later = start + REPEAT;
        assert_eq!(series.judge(&event("a", "x"), later, fresh), Fate::Count("e1".to_owned(), 3));
        assert_eq!(series.judge(&event("b", "x"), later, fresh), Fate::Create("e1".to_owned()));
        assert_eq!(series.judge(&event("a", "other"), later, fresh), Fate::Create("e1".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn one_object_cannot_flood_and_does_not_silence_others() {
        let start = Instant::now();
        let mut series = Series::default();
        let mut created = 0;
        for n in 0..100 {
            let fate = series.judge(&event("a", &n.to_string()), start, || "e".to_owned());
            created += u32::from(matches!(fate, Fate::Create(_)));
        }
        assert_eq!(created, BURST);
        assert!(matches!(series.judge(&event("b", "x"), start, || "e".to_owned()), Fate::Create(_)));
        let later = start + REFILL;
        assert!(matches!(series.judge(&event("a", "new"), later, || "e".to_owned()), Fate::Create(_)));
        assert_eq!(series.judge(&event("a", "newer"), later, || "e".to_owned()), Fate::Skip);
    }

    /// BL-136: what is remembered of Events does not grow with the objects that were ever seen.
    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let start = Instant::now();
        let mut series = Series::default();
        for n in 0..3 * REMEMBERED {
            series.judge(&event(&n.to_string(), "x"), start, || "e".to_owned());
        }
        assert!(series.seen.len() <= REMEMBERED && series.budgets.len() <= REMEMBERED);
    }
}
