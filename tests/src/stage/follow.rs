//! Waits on all objects of a kind at once, by a watch.

use std::{collections::BTreeMap, fmt, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::wait::TimedOut;

/// Follows the objects of a label selector until `accept` answers `Ok`. It gets them in the order of namespace and
/// name, at the first list and at each change after it; its `Err` says what is not yet so.
pub(super) async fn objects<K, T>(
    api: Api<K>,
    selector: &str,
    what: &str,
    limit: Duration,
    mut accept: impl FnMut(&[&K]) -> Result<T, String>,
) -> Result<T, TimedOut>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    let deadline = Instant::now() + limit;
    let mut last = "nothing: the objects could not be listed".to_owned();
    let mut known: BTreeMap<(Option<String>, String), K> = BTreeMap::new();
    let mut listed = false;
    let events = watcher::watcher(api, watcher::Config::default().labels(selector)).default_backoff();
    let mut events = std::pin::pin!(events);
    let key = |object: &K| (object.namespace(), object.name_any());
    while let Ok(Some(event)) = timeout_at(deadline, events.next()).await {
        match event {
            Ok(Event::Init) => {
                known.clear();
                listed = false;
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                known.insert(key(&object), object);
            }
            Ok(Event::InitDone) => listed = true,
            Ok(Event::Delete(object)) => {
                known.remove(&key(&object));
            }
            Err(error) => last = format!("the watch failed: {error}"),
        }
        if listed {
            match accept(&known.values().collect::<Vec<_>>()) {
                Ok(value) => return Ok(value),
                Err(state) => last = state,
            }
        }
    }
    Err(TimedOut { what: what.to_owned(), limit, last })
}
