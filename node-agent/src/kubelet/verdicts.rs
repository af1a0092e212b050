//! Answers of the API server, remembered for a short while and in a bounded number.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Answers kept at most.
const MOST: usize = 1_024;

/// Remembered answers.
#[derive(Debug)]
pub(super) struct Verdicts<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for Verdicts<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Clone> Verdicts<K, V> {
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.all().get(key).filter(|(_, until)| *until > now).map(|(verdict, _)| verdict.clone())
    }

    pub(super) fn keep(&self, key: K, verdict: V, lasts: Duration, now: Instant) {
        let mut all = self.all();
        if all.len() >= MOST {
            all.retain(|_, (_, until)| *until > now);
        }
        // So many callers within seconds are no ordinary ones: all are asked about anew.
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(key, (verdict, now + lasts));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<K, (V, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_and_are_bounded() {
        let (verdicts, now) = (Verdicts::default(), Instant::now());
        let second = Duration::from_secs(1);
        verdicts.keep("a", true, second, now);
        assert_eq!(verdicts.get(&"a", now), Some(true));
        assert_eq!(verdicts.get(&"a", now + second), None, "its time is over");
        let numbers = Verdicts::default();
        for number in 0..5_000 {
            numbers.keep(number, number, second, now);
            assert!(numbers.all().len() <= MOST);
        }
        assert_eq!(numbers.get(&4_999, now), Some(4_999));
        numbers.keep(1, 1, second * 9, now);
        for number in 5_000..5_000 + MOST - 1 {
            numbers.keep(number, number, second, now + second * 2);
        }
        assert_eq!(numbers.get(&1, now + second * 2), Some(1), "what is over goes first");
    }
}
