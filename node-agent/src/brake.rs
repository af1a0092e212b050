//! The brake: too many bases or modules that vanish at once are an accident (an etcd restore, a typo in a selector, a
//! broken network of ours) until shown otherwise, and nothing is removed for an accident.
//!
//! Pure: the fleet says what seems lost and what came back, and asks which losses may be acted on. A loss waits for a
//! moment, so that the first of many is judged together with the rest; while the brake is on, all wait. Losses that
//! somebody ordered (a deletionTimestamp was seen) are never brought here.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// Losses this far apart are no common accident.
pub const WINDOW: Duration = Duration::from_mins(1);

/// When a brake closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// More than this share of all, in percent, closes it.
    pub share_percent: u32,
    /// Fewer than this many in all never close it.
    pub at_least: usize,
}

/// One brake, over bases or over modules. Keys are UIDs; a loss weighs as much as what hangs on it.
#[derive(Debug, Default)]
pub struct Brake {
    waiting: BTreeMap<String, Loss>,
    passed: VecDeque<Passed>,
    on: bool,
}

#[derive(Debug, Clone, Copy)]
struct Loss {
    settle: Duration,
    settled: Instant,
    weight: usize,
}

/// A loss that was acted on a moment ago.
#[derive(Debug)]
struct Passed {
    key: String,
    at: Instant,
    weight: usize,
}

/// What changed with a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// As before.
    None,
    /// The brake closed.
    Closed,
    /// The brake opened: enough came back.
    Opened,
}

/// A judgement.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Losses that may be acted on now; they are forgotten here.
    pub pass: Vec<String>,
    /// Whether the brake closed or opened.
    pub change: Change,
}

impl Brake {
    /// Something seems lost. Said again for the same key changes nothing. It waits `settle` long for others that are
    /// lost by the same accident.
    pub fn lost(&mut self, key: &str, weight: usize, settle: Duration, now: Instant) {
        self.waiting.entry(key.to_owned()).or_insert(Loss { settle, settled: now + settle, weight });
    }

    /// It came back, or its loss was ordered after all. One that was acted on does not count any more either: it is
    /// among what is left now.
    pub fn back(&mut self, key: &str) {
        self.waiting.remove(key);
        self.passed.retain(|passed| passed.key != key);
    }

    /// All about a loss is done: it does not wait any more, but if it was acted on just now it still counts.
    pub fn done(&mut self, key: &str) {
        self.waiting.remove(key);
    }

    /// Whether this loss is not acted on yet.
    pub fn holds(&self, key: &str) -> bool {
        self.waiting.contains_key(key)
    }

    /// Whether the brake is on.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Keys of the losses that wait.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &str> {
        self.waiting.keys().map(String::as_str)
    }

    /// Judges. `left` is the weight of all that is there and not lost.
    pub fn judge(&mut self, left: usize, limits: Limits, now: Instant) -> Verdict {
        while self.passed.front().is_some_and(|passed| now.saturating_duration_since(passed.at) >= WINDOW) {
            self.passed.pop_front();
        }
        let waiting: usize = self.waiting.values().map(|loss| loss.weight).sum();
        // What passed a moment ago belongs to the same accident as what is lost now.
        let passed: usize =
            if waiting == 0 { 0 } else { self.passed.iter().map(|passed| passed.weight).sum() };
        let lost = waiting + passed;
        let all = left + lost;
        let too_many =
            waiting > 0 && all >= limits.at_least.max(1) && exceeds(lost, all, limits.share_percent);
        let change = match (self.on, too_many) {
            (false, true) => Change::Closed,
            (true, false) => Change::Opened,
            _ => Change::None,
        };
        self.on = too_many;
        if change == Change::Opened {
            // What is not back yet may be about to come: it waits once more.
            for loss in self.waiting.values_mut() {
                loss.settled = now + loss.settle;
            }
        }
        // So few can never close it, so none of them needs to wait.
        let few = all < limits.at_least;
        Verdict { pass: if too_many { Vec::new() } else { self.pass(few, now) }, change }
    }

    /// An operator lets go: all that waits may be acted on, and does not count any more.
    pub fn release(&mut self) -> Vec<String> {
        self.on = false;
        self.passed.clear();
        std::mem::take(&mut self.waiting).into_keys().collect()
    }

    fn pass(&mut self, few: bool, now: Instant) -> Vec<String> {
        let settled = |loss: &Loss| few || loss.settled <= now;
        let pass: Vec<String> =
            self.waiting.iter().filter(|(_, loss)| settled(loss)).map(|(key, _)| key.clone()).collect();
        for key in &pass {
            if let Some(loss) = self.waiting.remove(key) {
                self.passed.push_back(Passed { key: key.clone(), at: now, weight: loss.weight });
            }
        }
        pass
    }
}

fn exceeds(part: usize, all: usize, percent: u32) -> bool {
    part as u128 * 100 > all as u128 * u128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASES: Limits = Limits { share_percent: 50, at_least: 4 };
    const SETTLE: Duration = Duration::from_secs(3);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// (bases in all, lost at once, brake expected)
    #[tokio::test(start_paused = true)]
    async fn the_share_decides_from_four_bases_on() {
        for (all, lost, closed) in [
            (1, 1, false),
            (3, 3, false),
            (4, 2, false),
            (4, 3, true),
            (4, 4, true),
            (10, 5, false),
            (10, 6, true),
        ] {
            let now = Instant::now();
            let mut brake = Brake::default();
            for base in 0..lost {
                brake.lost(&base.to_string(), 1, SETTLE, now);
            }
            let at = now + SETTLE;
            let verdict = brake.judge(all - lost, BASES, at);
            assert_eq!(brake.is_on(), closed, "{lost} of {all}");
            assert_eq!(verdict.pass.len(), if closed { 0 } else { lost }, "{lost} of {all}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_waits_for_the_others_of_its_accident() {
        let now = Instant::now();
        let mut brake = Brake::default();
        brake.lost("a", 1, SETTLE, now);
        assert_eq!(brake.judge(3, BASES, now), Verdict { pass: vec![], change: Change::None });
        brake.lost("b", 1, SETTLE, now + secs(1));
        brake.lost("c", 1, SETTLE, now + secs(2));
        assert_eq!(brake.judge(1, BASES, now + secs(2)).change, Change::Closed);
        assert_eq!(brake.judge(1, BASES, now + secs(600)), Verdict { pass: vec![], change: Change::None });
    }

    #[tokio::test(start_paused = true)]
    async fn losses_within_a_minute_add_up_and_older_ones_do_not() {
        let now = Instant::now();
        let mut brake = Brake::default();
        for (at, key) in [(0, "a"), (20, "b")] {
            brake.lost(key, 1, SETTLE, now + secs(at));
            assert_eq!(brake.judge(3, BASES, now + secs(at + 3)).pass, [key]);
            brake.done(key);
        }
        brake.lost("c", 1, SETTLE, now + secs(40));
        // Two passed, one waits, one is left.
        assert_eq!(brake.judge(1, BASES, now + secs(43)).change, Change::Closed);

        let mut slow = Brake::default();
        for (at, key) in [(0, "a"), (70, "b"), (140, "c")] {
            slow.lost(key, 1, SETTLE, now + secs(at));
            assert_eq!(slow.judge(3, BASES, now + secs(at + 3)).pass, [key], "{key}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_when_enough_came_back() {
        let now = Instant::now();
        let mut brake = Brake::default();
        for key in ["a", "b", "c", "d"] {
            brake.lost(key, 1, SETTLE, now);
        }
        assert_eq!(brake.judge(0, BASES, now + secs(3)).change, Change::Closed);
        brake.back("a");
        assert_eq!(brake.judge(1, BASES, now + secs(4)).change, Change::None);
        brake.back("b");
        let verdict = brake.judge(2, BASES, now + secs(5));
        assert_eq!(verdict, Verdict { pass: vec![], change: Change::Opened });
        brake.back("c");
        assert_eq!(brake.judge(3, BASES, now + secs(5) + SETTLE).pass, ["d"]);
        assert!(!brake.holds("c"));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_comes_and_goes_is_one() {
        let now = Instant::now();
        let mut brake = Brake::default();
        for round in 0..5 {
            let at = now + secs(round * 5);
            brake.lost("a", 1, SETTLE, at);
            assert_eq!(brake.judge(3, BASES, at + SETTLE).pass, ["a"], "round {round}");
            brake.back("a");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_lets_go_once() {
        let now = Instant::now();
        let mut brake = Brake::default();
        for key in ["a", "b", "c", "d"] {
            brake.lost(key, 1, SETTLE, now);
        }
        brake.judge(0, BASES, now + secs(3));
        assert_eq!(brake.release(), ["a", "b", "c", "d"]);
        assert!(!brake.is_on());
        for key in ["e", "f", "g", "h"] {
            brake.lost(key, 1, SETTLE, now + secs(5));
        }
        assert_eq!(brake.judge(0, BASES, now + secs(8)).change, Change::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn weights_count_modules() {
        let limits = Limits { share_percent: 20, at_least: 10 };
        let now = Instant::now();
        let mut brake = Brake::default();
        brake.lost("pod", 3, secs(1), now);
        assert_eq!(brake.judge(6, limits, now).pass, ["pod"], "nine in all are too few to wait for");
        let mut brake = Brake::default();
        brake.lost("pod", 3, secs(1), now);
        assert_eq!(brake.judge(7, limits, now + secs(1)).change, Change::Closed);
    }
}
