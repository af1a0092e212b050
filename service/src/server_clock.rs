//! The time as an API server has it.
//!
//! Times in objects come from the clocks of the cluster. Compared with a clock of ours that is off, a grace period would
//! be over before it began. So the `Date` of each answer is compared with what it should be, and a clock of ours that
//! jumps does not matter at all.

use std::sync::{Arc, Mutex, PoisonError};

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

static DATES: DateTimeParser = DateTimeParser::new();

/// A clock that follows an API server's. Cheap to clone; all clones are the same clock.
#[derive(Debug, Clone)]
pub struct ServerClock(Arc<Mutex<Anchor>>);

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
}

impl Default for ServerClock {
    /// Our own time, until the first answer.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Anchor { shown: Timestamp::now(), at: Instant::now() })))
    }
}

impl ServerClock {
    /// The server's time, give or take some seconds.
    pub fn now(&self) -> Timestamp {
        let anchor = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        anchor.at(Instant::now())
    }

    /// Learns from the head of an answer to a request.
    fn learn(&self, head: &HeaderMap, sent: Instant, received: Instant) {
        let date = head.get(DATE).and_then(|date| date.to_str().ok());
        let Some(date) = date.and_then(|date| DATES.parse_timestamp(date).ok()) else { return };
        let mut anchor = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer may have been long on its way, or have lain here while we did not run.
        let early = anchor.at(sent).duration_since(date) > NOISE;
        let late = date.duration_since(anchor.at(received)) > NOISE;
        if !early && !late {
            return;
        }
        let ahead = date.duration_since(anchor.at(received));
        *anchor = Anchor { shown: date.checked_add(HALF).unwrap_or(date), at: received };
        tracing::warn!(
            seconds = ahead.as_secs(),
            "the API server's clock is not where it was expected; times of objects are read by its clock"
        );
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
    use std::time::Duration;

    use http::HeaderValue;

    use super::*;

    fn clock_at(text: &str) -> ServerClock {
        let shown = text.parse().expect("a time");
        ServerClock(Arc::new(Mutex::new(Anchor { shown, at: Instant::now() })))
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
        assert_eq!(clock.now().to_string(), "1994-11-06T09:49:37.5Z");
        tokio::time::advance(Duration::from_mins(1)).await;
        answered("Sun, 06 Nov 1994 09:50:36 GMT");
        assert_eq!(clock.now().to_string(), "1994-11-06T09:50:37.5Z", "it does not tremble");
        answered("Sun, 06 Nov 1994 08:50:37 GMT");
        assert_eq!(clock.now().to_string(), "1994-11-06T08:50:37.5Z", "it was put right");
    }

    /// The answer says what time it was when it was written, which may be long ago.
    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_no_difference() {
        let clock = clock_at("1994-11-06T08:49:37.5Z");
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(40)).await;
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
