//! Watches that notice by themselves when they are told nothing any more, or not everything.
//!
//! A watch that hangs looks like one to which nothing happens. So each watch asks the API server to end it after
//! [`ROUND`]; bookmarks let the next one go on where it ended, without a list, and one that is silent for
//! [`SILENCE`] is taken for dead. Events that were lost on the way are found by a list now and then. A list also follows
//! when the API server was away: it may come back with an older state, as after a restore of etcd, and a watch from a
//! version that is in its future would be silent until the version is reached, and then have missed what led there.

use std::fmt::Debug;
use std::time::Duration;

use clap::Args;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

/// After how long the API server ends a watch, which then begins again where it was.
pub const ROUND: Duration = Duration::from_secs(ROUND_SECONDS as u64);
const ROUND_SECONDS: u32 = 30;

/// After how long without anything, not even a bookmark, a watch counts as dead: a round and the margin of the client.
pub const SILENCE: Duration = Duration::from_secs(ROUND_SECONDS as u64 + 5);

/// How watches are kept honest.
#[derive(Debug, Clone, Args)]
pub struct WatchFlags {
    /// How often everything that is watched is listed anew, for events that were lost on the way; give or take a fifth
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = interval)]
    pub relist_interval: Duration,
}

const SHORTEST: Duration = Duration::from_secs(1);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < SHORTEST {
        return Err(format!("must be at least {}", humantime::format_duration(SHORTEST)));
    }
    Ok(interval)
}

/// Watches for ever, in rounds, and lists anew `relist` after each list, give or take a fifth: not all programs of a
/// cluster at once. Errors are passed on; the caller sees to pauses after them.
pub fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    relist: Duration,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = config.timeout(ROUND_SECONDS);
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let rounds = Rounds { events: begin(), begin, due: None, relist };
    stream::unfold(rounds, async |mut rounds| rounds.next().await.map(|event| (event, rounds)))
}

struct Rounds<K, F> {
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    begin: F,
    /// When everything is listed anew; not while it is being listed.
    due: Option<Instant>,
    relist: Duration,
}

impl<K, F> Rounds<K, F>
where
    F: Fn() -> BoxStream<'static, watcher::Result<Event<K>>>,
{
    async fn next(&mut self) -> Option<watcher::Result<Event<K>>> {
        let event = match self.due {
            Some(due) if due <= Instant::now() => self.anew().await,
            Some(due) => match timeout_at(due, self.events.next()).await {
                Ok(event) => event,
                Err(_) => self.anew().await,
            },
            None => self.events.next().await,
        };
        match &event {
            Some(Ok(Event::Init)) => self.due = None,
            Some(Err(watcher::Error::WatchStartFailed(error))) if was_away(error) => {
                self.due = Some(Instant::now());
            }
            Some(Ok(Event::InitDone)) => {
                let factor = 0.8 + 0.4 * rand::random::<f64>();
                self.due = Some(Instant::now() + self.relist.mul_f64(factor));
            }
            _ => {}
        }
        event
    }

    async fn anew(&mut self) -> Option<watcher::Result<Event<K>>> {
        self.due = None;
        self.events = (self.begin)();
        self.events.next().await
    }
}

/// Whether there was nobody to answer, or nobody behind who did; as opposed to an answer that we may not like.
fn was_away(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use axum::body::Body as Answer;
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Node;
    use kube::Client;
    use kube::client::Body;

    use super::*;

    const LIST: &str = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},
        "items":[{"metadata":{"name":"a","resourceVersion":"1"}}]}"#;

    /// An API server whose watches are accepted and then silent for ever, and what it was asked.
    fn hanging() -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let book = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let watches = query.contains("watch=true");
            book.lock().expect("the book").push(query);
            let body = if watches {
                Answer::from_stream(stream::pending::<Result<&str, Infallible>>())
            } else {
                Answer::from(LIST)
            };
            std::future::ready(Response::builder().body(body))
        });
        (Client::new(service, "default"), asked)
    }

    fn count(asked: &Mutex<Vec<String>>, of: &str) -> usize {
        asked.lock().expect("the book").iter().filter(|query| query.contains(of)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_hangs_is_opened_again_without_a_list() {
        let (client, asked) = hanging();
        let events = watch(Api::<Node>::all(client), watcher::Config::default(), Duration::from_hours(1));
        let mut events = pin!(events);
        for _ in 0..3 {
            events.next().await.expect("it goes on").expect("no error");
        }
        let more = tokio::time::timeout(SILENCE * 3 + Duration::from_secs(1), events.next()).await;
        assert!(more.is_err(), "nothing happened: {more:?}");
        assert_eq!(count(&asked, "watch=true"), 4);
        assert_eq!(count(&asked, "timeoutSeconds=30"), 4, "{asked:?}");
        assert_eq!(count(&asked, "allowWatchBookmarks=true"), 4);
        assert_eq!(asked.lock().expect("the book").len(), 5, "one list");
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_listed_anew_now_and_then() {
        let (client, asked) = hanging();
        let events = watch(Api::<Node>::all(client), watcher::Config::default(), Duration::from_mins(10));
        let mut events = pin!(events);
        let start = Instant::now();
        let mut kinds = Vec::new();
        for _ in 0..6 {
            kinds.push(match events.next().await.expect("it goes on").expect("no error") {
                Event::Init => "begin",
                Event::InitApply(_) => "object",
                Event::InitDone => "end",
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(kinds, ["begin", "object", "end", "begin", "object", "end"]);
        let passed = start.elapsed().as_secs();
        assert!((480..=720).contains(&passed), "{passed} s");
        let watches = count(&asked, "watch=true");
        assert_eq!(asked.lock().expect("the book").len() - watches, 2);
    }

    /// After an API server that was away comes a list: nobody knows what it remembers.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_away_is_asked_anew() {
        for (code, lists) in [(503_u16, 2), (429, 1)] {
            let asked = Arc::<Mutex<Vec<String>>>::default();
            let book = Arc::clone(&asked);
            let service = tower::service_fn(move |request: Request<Body>| {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let watches = query.contains("watch=true");
                let mut book = book.lock().expect("the book");
                book.push(query);
                let answer = match (watches, book.len()) {
                    (false, _) => Response::builder().body(Answer::from(LIST)),
                    (true, 2) => Response::builder().status(code).body(Answer::empty()),
                    (true, _) => Response::builder()
                        .body(Answer::from_stream(stream::pending::<Result<&str, Infallible>>())),
                };
                std::future::ready(answer)
            });
            let client = Client::new(service, "default");
            let events = watch(Api::<Node>::all(client), watcher::Config::default(), Duration::from_hours(1));
            let mut events = pin!(events);
            let minute = tokio::time::sleep(Duration::from_mins(1));
            let mut kinds = Vec::new();
            let mut minute = pin!(minute);
            loop {
                tokio::select! {
                    event = events.next() => kinds.push(event.expect("it goes on").is_ok()),
                    () = &mut minute => break,
                }
            }
            assert_eq!(kinds.iter().filter(|good| !**good).count(), 1, "{code}: {kinds:?}");
            let watches = count(&asked, "watch=true");
            assert_eq!(asked.lock().expect("the book").len() - watches, lists, "{code}: {asked:?}");
        }
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("10m"), Ok(Duration::from_mins(10)));
        assert!(interval("10ms").is_err() && interval("often").is_err());
    }
}
