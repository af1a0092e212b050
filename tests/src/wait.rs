//! Waiting for conditions: the only place in the tests where time passes.
//!
//! Tests never sleep. They name what they wait for and for how long at most; when the time is up, the error says
//! what was last seen. [`object`] follows a Kubernetes object by a watch, [`until`] asks again and again.

use std::{fmt, time::Duration};

use futures::StreamExt;
use kube::{Api, Resource, runtime::watcher};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, timeout_at};

/// Pause between two questions of [`until`].
const POLL: Duration = Duration::from_millis(20);

/// What was waited for did not come. `{:?}` prints like `{}`, so that `unwrap` in a test is readable.
#[derive(thiserror::Error)]
#[error("no {what} within {limit:?}; last seen:\n{last}")]
pub struct TimedOut {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub limit: Duration,
    /// The last seen state.
    pub last: String,
}

impl fmt::Debug for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Asks `probe` every 20 ms until it answers `Ok`, at most `limit` long. `Err` means "not yet" and carries the state
/// seen, which the failure shows.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::{cell::Cell, time::Duration};
/// let calls = Cell::new(0);
/// let third = harness::wait::until("a third call", Duration::from_secs(5), async || {
///     calls.set(calls.get() + 1);
///     if calls.get() < 3 { Err(format!("{} calls", calls.get())) } else { Ok(calls.get()) }
/// });
/// assert_eq!(third.await.unwrap(), 3);
/// # });
/// ```
pub async fn until<T, E: fmt::Display>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, TimedOut> {
    let deadline = Instant::now() + limit;
    let mut last = "nothing, the first question was not answered".to_owned();
    loop {
        match timeout_at(deadline, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(state)) => last = state.to_string(),
            Err(_) => return Err(TimedOut { what: what.to_owned(), limit, last }),
        }
        if Instant::now() + POLL >= deadline {
            return Err(TimedOut { what: what.to_owned(), limit, last });
        }
        sleep(POLL).await;
    }
}

/// Requires that `probe` answers `Ok` all through `span`, asked every 20 ms; the error carries what it saw instead.
/// For "nothing happens" assertions.
pub async fn throughout<E: fmt::Display>(
    what: &str,
    span: Duration,
    mut probe: impl AsyncFnMut() -> Result<(), E>,
) -> Result<(), TimedOut> {
    let end = Instant::now() + span;
    loop {
        if let Err(state) = probe().await {
            return Err(TimedOut { what: format!("lasting {what}"), limit: span, last: state.to_string() });
        }
        if Instant::now() >= end {
            return Ok(());
        }
        sleep(POLL).await;
    }
}

/// Follows one object by a watch until `accept` says yes, and returns it. `accept` gets `None` while the object does
/// not exist, and accepting that returns `None`. The failure shows the last seen object as YAML.
///
/// ```no_run
/// # async fn example(pods: kube::Api<k8s_openapi::api::core::v1::Pod>) {
/// use std::time::Duration;
/// let running = |pod: &k8s_openapi::api::core::v1::Pod| {
///     pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
/// };
/// let pod = harness::wait::object(&pods, "base-0", "running Pod", Duration::from_secs(20), |pod| {
///     pod.is_some_and(running)
/// });
/// pod.await.unwrap();
/// # }
/// ```
pub async fn object<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    mut accept: impl FnMut(Option<&K>) -> bool,
) -> Result<Option<K>, TimedOut>
where
    K: Resource + Clone + DeserializeOwned + Serialize + fmt::Debug + Send + 'static,
{
    let deadline = Instant::now() + limit;
    let mut last = "nothing".to_owned();
    let mut states = std::pin::pin!(watcher::watch_object(api.clone(), name));
    while let Ok(next) = timeout_at(deadline, states.next()).await {
        match next {
            Some(Ok(state)) if accept(state.as_ref()) => return Ok(state),
            Some(Ok(Some(state))) => last = yaml(&state),
            Some(Ok(None)) => last = format!("there is no {name}"),
            Some(Err(error)) => {
                last = format!("{last}\nand the watch failed: {error}");
                sleep(POLL).await;
            }
            None => break,
        }
    }
    Err(TimedOut { what: format!("{what} ({name})"), limit, last })
}

/// Waits until the object is gone.
pub async fn gone<K>(api: &Api<K>, name: &str, limit: Duration) -> Result<(), TimedOut>
where
    K: Resource + Clone + DeserializeOwned + Serialize + fmt::Debug + Send + 'static,
{
    object(api, name, "deletion", limit, |object| object.is_none()).await.map(drop)
}

/// An object as people read it.
pub fn yaml(object: &impl Serialize) -> String {
    serde_saphyr::to_string(object).unwrap_or_else(|error| format!("(no YAML: {error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn until_says_what_was_last_seen() {
        let failure = until("good news", Duration::from_secs(1), async || Err::<(), _>("bad news")).await;
        assert_eq!(format!("{:?}", failure.unwrap_err()), "no good news within 1s; last seen:\nbad news");
    }

    #[tokio::test(start_paused = true)]
    async fn until_does_not_wait_for_a_probe_that_hangs() {
        let hangs = async || std::future::pending::<Result<(), String>>().await;
        assert!(until("answer", Duration::from_secs(1), hangs).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn throughout_fails_at_the_first_deviation() {
        let mut left = 3;
        let probe = async || {
            left -= 1;
            if left == 0 { Err("it moved") } else { Ok(()) }
        };
        assert!(throughout("silence", Duration::from_secs(1), probe).await.is_err());
        assert!(throughout("silence", Duration::from_secs(1), async || Ok::<(), String>(())).await.is_ok());
    }
}
