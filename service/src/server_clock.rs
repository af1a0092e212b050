//! The time as an API server has it.
//!
//! Times in objects come from the clocks of the cluster. Compared with a clock of ours that is off, a grace period would
//! be over before it began. So the `Date` of each answer is compared with what it should be, and a clock of ours that
//! jumps does not matter at all.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::DATE;
use http::{HeaderMap, Request};
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;

/// `Date` has whole seconds, and leap seconds are smeared: less than this says nothing.
const NOISE: SignedDuration = SignedDuration::from_secs(3);
/// The middle of the second that a `Date` names.
const HALF: SignedDuration = SignedDuration::from_millis(500);
/// API servers whose clocks differ would be told of with every other answer.
const TOLD_EVERY: Duration = Duration::from_mins(1);

static DATES: DateTimeParser = DateTimeParser::new();

/// A clock that follows an API server's. Cheap to clone; all clones are the same clock.
#[derive(Debug, Clone)]
pub struct ServerClock(Arc<Mutex<Reading>>);

/// What is known of the server's time.
#[derive(Debug, Clone, Copy)]
struct Reading {
    anchor: Anchor,
    /// A server has answered: before that the time is our own, and any answer knows better.
    learned: bool,
    /// What the last answer said, where it disagreed. Several servers behind one address may have several clocks: only
    /// two answers in a row that agree with each other move the anchor. Where two servers answer twice each in turn it
    /// still moves to and fro; nothing here says which of them is right.
    doubt: Option<Anchor>,
    told: Option<Instant>,
}

/// What the clock showed at a moment.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    shown: Timestamp,
    at: Instant,
}

impl Anchor {
    fn at(self, moment: Instant) -> Timestamp {
        let passed = moment.checked_duration_since(self.at);
        let shown = match passed {
            Some(passed) => self.shown.checked_add(passed),
            None => self.shown.checked_sub(self.at.duration_since(moment)),
        };
        shown.unwrap_or(self.shown)
    }

    /// Whether a `Date` in an answer is what this clock shows. The answer may have been long on its way, or have lain
    /// here while we did not run.
    fn agrees(self, date: Timestamp, sent: Instant, received: Instant) -> bool {
        let early = self.at(sent).duration_since(date) > NOISE;
        let late = date.duration_since(self.at(received)) > NOISE;
        !early && !late
    }
}

/// What is worth a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    /// How far the server is ahead of what was expected.
    ahead: SignedDuration,
    /// Its time is followed from now on.
    followed: bool,
}

impl Reading {
    fn from(shown: Timestamp, at: Instant) -> Self {
        Self { anchor: Anchor { shown, at }, learned: false, doubt: None, told: None }
    }

    /// Learns from a `Date`.
    fn learn(&mut self, date: Timestamp, sent: Instant, received: Instant) -> Option<Told> {
        let first = !std::mem::replace(&mut self.learned, true);
        if self.anchor.agrees(date, sent, received) {
            self.doubt = None;
            return None;
        }
        let ahead = date.duration_since(self.anchor.at(received));
        let said = Anchor { shown: date.checked_add(HALF).unwrap_or(date), at: received };
        let followed = first || self.doubt.is_some_and(|doubt| doubt.agrees(date, sent, received));
        if followed {
            self.anchor = said;
        }
        self.doubt = (!followed).then_some(said);
        if self.told.is_some_and(|told| received.saturating_duration_since(told) < TOLD_EVERY) {
            return None;
        }
        self.told = Some(received);
        Some(Told { ahead, followed })
    }
}

impl Default for ServerClock {
    /// Our own time, until the first answer.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Reading::from(Timestamp::now(), Instant::now()))))
    }
}

impl ServerClock {
    /// The server's time, give or take some seconds.
    pub fn now(&self) -> Timestamp {
        let anchor = self.0.lock().unwrap_or_else(PoisonError::into_inner).anchor;
        anchor.at(Instant::now())
    }

    /// Learns from the head of an answer to a request.
    fn learn(&self, head: &HeaderMap, sent: Instant, received: Instant) {
        let date = head.get(DATE).and_then(|date| date.to_str().ok());
        let Some(date) = date.and_then(|date| DATES.parse_timestamp(date).ok()) else { return };
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner).learn(date, sent, received);
        if let Some(Told { ahead, followed }) = told {
            tracing::warn!(
                seconds = ahead.as_secs(),
                followed,
                "an API server's clock is not where it was expected; times of objects are read by the clock that two \
                 answers in a row agree on"
            );
        }
    }

    /// A client from whose answers this clock learns.
    #[must_use]
    pub fn listening(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let clock = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, clock, sent) = (client.clone(), clock.clone(), Instant::now());
            async move {
                let answer = client.send(request).await?;
                clock.learn(answer.headers(), sent, Instant::now());
                Ok::<_, kube::Error>(answer)
            }
        });
        Client::new(service, namespace)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn clock_at(text: &str) -> ServerClock {
        let shown = text.parse().expect("a time");
        ServerClock(Arc::new(Mutex::new(Reading::from(shown, Instant::now()))))
    }

    fn head(date: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(DATE, HeaderValue::from_static(date))])
    }

    #[tokio::test(start_paused = true)]
    async fn a_difference_is_learned_and_small_ones_are_noise() {
        let clock = clock_at("1994-11-06T08:49:38.9Z");
        let answered = |date| clock.learn(&head(date), Instant::now(), Instant::now());
        answered("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(clock.now().to_string(), "1994-11-06T08:49:38.9Z");
        answered("Sun, 06 Nov 1994 09:49:37 GMT");
        assert_eq!(clock.now().to_string(), "1994-11-06T08:49:38.9Z", "one answer may be another server's");
        answered("Sun, 06 Nov 1994 09:49:37 GMT");
        assert_eq!(clock.now().to_string(), "1994-11-06T09:49:37.5Z");
        tokio::time::advance(Duration::from_mins(1)).await;
        answered("Sun, 06 Nov 1994 09:50:36 GMT");
        assert_eq!(clock.now().to_string(), "1994-11-06T09:50:37.5Z", "it does not tremble");
        answered("Sun, 06 Nov 1994 08:50:37 GMT");
        answered("Sun, 06 Nov 1994 08:50:37 GMT");
        assert_eq!(clock.now().to_string(), "1994-11-06T08:50:37.5Z", "it was put right");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_knows_better_than_our_own_clock() {
        let clock = clock_at("1994-11-06T08:49:37Z");
        clock.learn(&head("Sun, 06 Nov 1994 09:49:37 GMT"), Instant::now(), Instant::now());
        assert_eq!(clock.now().to_string(), "1994-11-06T09:49:37.5Z");
    }

    /// Two servers behind one address, an hour apart, asked in turn for ten minutes.
    #[test]
    fn two_servers_in_turn_do_not_move_the_clock_and_are_told_of_once_a_minute() {
        let (start, shown) = (Instant::now(), "1994-11-06T08:49:37Z".parse::<Timestamp>().expect("a time"));
        let mut reading = Reading::from(shown, start);
        let mut told = 0;
        for second in 0..600_u32 {
            let now = start + Duration::from_secs(second.into());
            let hours = i64::from(second % 2);
            let date =
                shown + SignedDuration::from_secs(i64::from(second)) + SignedDuration::from_hours(hours);
            told += usize::from(reading.learn(date, now, now).is_some());
            assert_eq!(reading.anchor.shown, shown, "after {second} s");
        }
        assert_eq!(told, 10);
        // The other one alone, from now on.
        let now = start + Duration::from_mins(11);
        let date = shown + SignedDuration::from_mins(11) + SignedDuration::from_hours(1);
        let expected = Told { ahead: SignedDuration::from_hours(1), followed: true };
        assert_eq!(reading.learn(date, now, now), Some(expected), "the last answer said so too");
        assert_eq!(reading.learn(date, now, now), None);
        assert_eq!(reading.anchor.at(now), date + HALF);
    }

    /// Two servers that answer twice each in turn: the clock is always that of one of them, and goes to and fro.
    #[test]
    fn two_servers_in_pairs_move_the_clock() {
        let (start, shown) = (Instant::now(), "1994-11-06T08:49:37Z".parse::<Timestamp>().expect("a time"));
        let mut reading = Reading::from(shown, start);
        let mut hours = Vec::new();
        for second in 0..8_u32 {
            let now = start + Duration::from_secs(second.into());
            let date = shown
                + SignedDuration::from_secs(i64::from(second))
                + SignedDuration::from_hours(i64::from(second / 2 % 2));
            reading.learn(date, now, now);
            hours.push(reading.anchor.at(now).duration_since(shown).as_hours());
        }
        assert_eq!(hours, [0, 0, 0, 1, 1, 0, 0, 1]);
    }

    /// The answer says what time it was when it was written, which may be long ago.
    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_no_difference() {
        let clock = clock_at("1994-11-06T08:49:37.5Z");
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(40)).await;
        clock.learn(&head("Sun, 06 Nov 1994 08:49:37 GMT"), sent, Instant::now());
        clock.learn(&head("Sun, 06 Nov 1994 08:49:37 GMT"), sent, Instant::now());
        clock.learn(&head("Sun, 06 Nov 1994 08:50:17 GMT"), sent, Instant::now());
        assert_eq!(clock.now().to_string(), "1994-11-06T08:50:17.5Z");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_read_is_ignored() {
        let clock = clock_at("1994-11-06T08:49:37Z");
        for date in ["", "yesterday", "Sun, 06 Nov 1994", "9999999999"] {
            clock.learn(&head(date), Instant::now(), Instant::now());
        }
        clock.learn(&HeaderMap::new(), Instant::now(), Instant::now());
        assert_eq!(clock.now().to_string(), "1994-11-06T08:49:37Z");
    }
}
