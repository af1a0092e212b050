//! Watches: from the API server into a mailbox, for ever, with back-off, trimmed on arrival.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use service::readiness::ReadyCheck;
use tokio_util::sync::CancellationToken;

use super::mirror::Feed;
use crate::metrics::Metrics;

/// How the watches do, for `/diag`. Each watch writes its own entry.
#[derive(Debug, Clone, Default)]
pub struct WatchBoard(Arc<Mutex<BTreeMap<String, WatchEntry>>>);

#[derive(Debug, Clone, Default)]
struct WatchEntry {
    synced: bool,
    events: u64,
    errors: u64,
    last_event: Option<Timestamp>,
    last_error: Option<String>,
}

impl WatchBoard {
    fn change(&self, watch: &str, change: impl FnOnce(&mut WatchEntry)) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(entries.entry(watch.to_owned()).or_default());
    }

    /// All watches as JSON.
    pub fn diag(&self) -> Value {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |entry: &WatchEntry| {
            json!({
                "synced": entry.synced,
                "events": entry.events,
                "errors": entry.errors,
                "lastEvent": entry.last_event.map(|at| at.to_string()),
                "lastError": entry.last_error,
            })
        };
        entries
            .iter()
            .map(|(name, entry)| (name.clone(), one(entry)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// What a watch needs besides its stream.
#[derive(Clone)]
pub struct Following {
    /// Which watch, for metrics: a closed set.
    pub kind: &'static str,
    /// Which watch, for people.
    pub name: String,
    /// Set once the first list is complete.
    pub ready: ReadyCheck,
    /// Where its state is shown.
    pub board: WatchBoard,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Ends it.
    pub shutdown: CancellationToken,
}

/// Follows a watch until the shutdown. `trim` turns an object into what goes on, or drops it; `deliver` hands it over
/// and says whether anybody still listens.
///
/// # Errors
/// Never; the signature is the one of supervised tasks.
pub async fn follow<K, T, D>(
    stream: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
    following: Following,
    trim: impl Fn(K) -> Option<T> + Send,
    deliver: impl Fn(Feed<T>) -> D + Send,
) -> Result<(), std::convert::Infallible>
where
    K: Debug + Send,
    T: Send,
    D: Future<Output = bool> + Send,
{
    let Following { kind, name, ready, board, metrics, shutdown } = following;
    let errors = |error: &watcher::Error| {
        metrics.watch_error(kind);
        tracing::warn!(watch = name, %error, "a watch failed and begins again");
        let text: String = error.to_string().chars().take(300).collect();
        board.change(&name, |entry| {
            entry.errors += 1;
            entry.last_error = Some(text);
        });
    };
    let mut stream = pin!(stream.inspect_err(errors).default_backoff());
    loop {
        let next = tokio::select! {
            next = stream.next() => next,
            () = shutdown.cancelled() => return Ok(()),
        };
        let event = match next {
            Some(Ok(event)) => event,
            // Counted above; the stream goes on after its pause.
            Some(Err(_)) => continue,
            None => {
                shutdown.cancelled().await;
                return Ok(());
            }
        };
        board.change(&name, |entry| {
            entry.events += 1;
            entry.last_event = Some(Timestamp::now());
        });
        let complete = matches!(event, Event::InitDone);
        let feed = match event {
            Event::Init => Some(Feed::Begin),
            Event::InitApply(object) => trim(object).map(Feed::Listed),
            Event::InitDone => Some(Feed::Complete),
            Event::Apply(object) => trim(object).map(Feed::Applied),
            Event::Delete(object) => trim(object).map(Feed::Deleted),
        };
        let Some(feed) = feed else { continue };
        let delivered = tokio::select! {
            delivered = deliver(feed) => delivered,
            () = shutdown.cancelled() => return Ok(()),
        };
        if !delivered {
            shutdown.cancelled().await;
            return Ok(());
        }
        if complete {
            ready.set(true);
            board.change(&name, |entry| entry.synced = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use prometheus_client::registry::Registry;
    use service::readiness::Readiness;
    use tokio::sync::mpsc;

    use super::*;

    /// BL-111, BL-120: an error in the stream is counted, and the stream goes on.
    #[tokio::test(start_paused = true)]
    async fn errors_are_counted_and_do_not_end_the_watch() {
        let readiness = Readiness::new();
        let board = WatchBoard::default();
        let shutdown = CancellationToken::new();
        let following = Following {
            kind: "nodes",
            name: "nodes".to_owned(),
            ready: readiness.register("nodes"),
            board: board.clone(),
            metrics: Arc::new(Metrics::new(&mut Registry::default())),
            shutdown: shutdown.clone(),
        };
        let events = stream::iter([
            Ok(Event::Init),
            Err(watcher::Error::NoResourceVersion),
            Ok(Event::Init),
            Ok(Event::InitApply(1)),
            Ok(Event::InitApply(2)),
            Ok(Event::InitDone),
        ]);
        let (sender, mut receiver) = mpsc::channel(8);
        let task = tokio::spawn(follow(
            events,
            following,
            |number: i32| (number != 1).then_some(number),
            move |feed| {
                let sender = sender.clone();
                async move { sender.send(feed).await.is_ok() }
            },
        ));
        assert!(matches!(receiver.recv().await, Some(Feed::Begin)));
        assert!(matches!(receiver.recv().await, Some(Feed::Begin)));
        assert!(matches!(receiver.recv().await, Some(Feed::Listed(2))));
        assert!(matches!(receiver.recv().await, Some(Feed::Complete)));
        while !readiness.missing().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(board.diag()["nodes"]["errors"], 1);
        assert_eq!(board.diag()["nodes"]["synced"], true);
        shutdown.cancel();
        task.await.expect("no panic").expect("ended");
    }
}
