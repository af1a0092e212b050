//! Supervised tasks: when one that matters ends or panics, the process ends, loudly.
//!
//! A program that keeps answering probes while the task that feeds it is dead is the worst of both worlds, so every
//! long-running task is started here and [`Tasks::run`] watches over all of them.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

use clap::Args;
use futures::future::BoxFuture;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a shutdown may take.
#[derive(Debug, Clone, Args)]
pub struct ShutdownFlags {
    /// Longest time from SIGTERM until the process ends, with what is still running cut off
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = humantime::parse_duration)]
    pub shutdown_limit: Duration,
}

/// Why the process ends other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum TasksError {
    /// A task returned without being asked to.
    #[error("task {0} ended, which it must never do")]
    Ended(&'static str),
    /// A task gave up.
    #[error("task {task} failed: {message}")]
    Failed {
        /// Its name.
        task: &'static str,
        /// Its error, sources included.
        message: String,
    },
    /// A task panicked.
    #[error("task {task} panicked: {message}")]
    Panicked {
        /// Its name.
        task: &'static str,
        /// The panic's message.
        message: String,
    },
    /// Tasks did not end in time after a shutdown was asked for.
    #[error("cut off after {limit:?}: {}", tasks.join(", "))]
    CutOff {
        /// How long was waited.
        limit: Duration,
        /// Their names.
        tasks: Vec<&'static str>,
    },
    /// No signal handler could be installed.
    #[error("cannot listen for SIGTERM and SIGINT: {0}")]
    Signals(#[source] std::io::Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Must not end; a shutdown waits for it.
    Critical,
    /// Must not end; a shutdown does not wait for it.
    Companion,
}

type Outcome = Result<(), String>;

/// The tasks of a process. One owner: `main`, until [`Tasks::run`] takes it.
pub struct Tasks {
    set: JoinSet<Outcome>,
    names: HashMap<Id, (&'static str, Kind)>,
    shutdown: CancellationToken,
    farewell: Option<BoxFuture<'static, ()>>,
    signals: Option<Signals>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// No tasks yet.
    pub fn new() -> Self {
        Self {
            set: JoinSet::new(),
            names: HashMap::new(),
            shutdown: CancellationToken::new(),
            farewell: None,
            signals: None,
        }
    }

    /// Cancelled when the process is to end. Cancelling it asks for that.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Starts a task that must run until the shutdown, and that a shutdown waits for.
    pub fn critical<E: Display>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.spawn(name, Kind::Critical, task);
    }

    /// Starts a task that must run until the shutdown, and is then simply dropped (the admin server, watches).
    pub fn companion<E: Display>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.spawn(name, Kind::Companion, task);
    }

    /// What is still done after a signal, while all tasks go on as before it; it counts towards the limit.
    pub fn farewell(&mut self, farewell: impl Future<Output = ()> + Send + 'static) {
        self.farewell = Some(Box::pin(farewell));
    }

    /// Does what must be done before there are tasks, as long as it takes; `None` when SIGTERM or SIGINT comes first. The
    /// first process of a container would not hear of them else.
    ///
    /// # Errors
    /// When nobody could hear of them.
    pub async fn unless_signalled<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, TasksError> {
        let mut signals = self.listen()?;
        let done = tokio::select! {
            name = signals.received() => {
                tracing::info!(signal = name, "shutting down");
                None
            }
            done = work => Some(done),
        };
        self.signals = Some(signals);
        Ok(done)
    }

    /// One listener for all the time: what comes between two would be heard by none.
    fn listen(&mut self) -> Result<Signals, TasksError> {
        self.signals.take().map_or_else(Signals::listen, Ok).map_err(TasksError::Signals)
    }

    fn spawn<E: Display>(
        &mut self,
        name: &'static str,
        kind: Kind,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let handle = self.set.spawn(async move { task.await.map_err(|error| format!("{error:#}")) });
        self.names.insert(handle.id(), (name, kind));
    }

    /// Runs until SIGTERM, SIGINT or a cancelled [`Tasks::shutdown`], then waits at most `limit` for critical tasks.
    /// A second signal ends the wait. A [farewell](Self::farewell) comes first and may take four fifths of the limit.
    ///
    /// # Errors
    /// When a task ended or panicked unasked (the others are still shut down in order), or some had to be cut off.
    pub async fn run(mut self, limit: Duration) -> Result<(), TasksError> {
        let mut signals = self.listen()?;
        let asked = self.shutdown();
        let mut end = None;
        let first = tokio::select! {
            name = signals.received() => {
                tracing::info!(signal = name, "shutting down");
                let now = Instant::now();
                end = Some(now + limit);
                self.part(&mut signals, now + limit.mul_f64(0.8)).await
            }
            () = asked.cancelled() => Ok(()),
            error = self.first_to_end() => unless_asked(&asked, error),
        };
        if let Err(error) = &first {
            tracing::error!(%error, "shutting down");
        }
        self.shutdown.cancel();
        let drained = tokio::select! {
            () = self.critical_ended() => true,
            () = tokio::time::sleep_until(end.unwrap_or_else(|| Instant::now() + limit)) => false,
            _ = signals.received() => false,
        };
        first?;
        if drained {
            return Ok(());
        }
        let mut tasks: Vec<_> = self.still_critical().collect();
        tasks.sort_unstable();
        Err(TasksError::CutOff { limit, tasks })
    }

    /// The farewell, until it is over, another signal comes, or its time is.
    async fn part(&mut self, signals: &mut Signals, until: Instant) -> Result<(), TasksError> {
        let Some(farewell) = self.farewell.take() else { return Ok(()) };
        let asked = self.shutdown();
        tokio::select! {
            () = farewell => Ok(()),
            () = asked.cancelled() => Ok(()),
            () = tokio::time::sleep_until(until) => {
                tracing::warn!("the farewell was not over in time");
                Ok(())
            }
            _ = signals.received() => Ok(()),
            error = self.first_to_end() => unless_asked(&asked, error),
        }
    }

    async fn first_to_end(&mut self) -> TasksError {
        match self.set.join_next_with_id().await {
            Some(ended) => {
                let (name, outcome) = self.take(ended);
                match outcome {
                    Ok(Ok(())) => TasksError::Ended(name),
                    Ok(Err(message)) => TasksError::Failed { task: name, message },
                    Err(error) => TasksError::Panicked { task: name, message: panic_message(error) },
                }
            }
            // Without tasks there is nothing to watch: only a signal ends the process.
            None => std::future::pending().await,
        }
    }

    async fn critical_ended(&mut self) {
        while self.still_critical().next().is_some() {
            let Some(ended) = self.set.join_next_with_id().await else { return };
            let (name, outcome) = self.take(ended);
            match outcome {
                Ok(Ok(())) => tracing::debug!(task = name, "ended"),
                Ok(Err(message)) => tracing::warn!(task = name, message, "failed while shutting down"),
                Err(error) => {
                    tracing::error!(
                        task = name,
                        message = panic_message(error),
                        "panicked while shutting down"
                    );
                }
            }
        }
    }

    fn still_critical(&self) -> impl Iterator<Item = &'static str> {
        self.names.values().filter(|(_, kind)| *kind == Kind::Critical).map(|(name, _)| *name)
    }

    fn take(
        &mut self,
        ended: Result<(Id, Outcome), JoinError>,
    ) -> (&'static str, Result<Outcome, JoinError>) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, Ok(outcome)),
            Err(error) => (error.id(), Err(error)),
        };
        let name = self.names.remove(&id).map_or("unknown", |(name, _)| name);
        (name, outcome)
    }
}

/// A task that ends because it was asked to may be seen before the request itself.
fn unless_asked(asked: &CancellationToken, error: TasksError) -> Result<(), TasksError> {
    match error {
        TasksError::Ended(_) if asked.is_cancelled() => Ok(()),
        error => Err(error),
    }
}

fn panic_message(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned()),
        Err(error) => error.to_string(),
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    async fn until(shutdown: CancellationToken) -> Result<(), Infallible> {
        shutdown.cancelled().await;
        Ok(())
    }

    #[tokio::test]
    async fn a_task_that_ends_ends_the_process_and_the_others_may_finish() {
        let mut tasks = Tasks::new();
        let finished = Arc::new(AtomicBool::new(false));
        let (shutdown, flag) = (tasks.shutdown(), Arc::clone(&finished));
        tasks.critical("server", async move {
            shutdown.cancelled().await;
            flag.store(true, Ordering::SeqCst);
            Ok::<_, Infallible>(())
        });
        tasks.companion("watch", async { Ok::<_, Infallible>(()) });
        let error = tasks.run(LIMIT).await.expect_err("watch ended");
        assert!(matches!(error, TasksError::Ended("watch")), "{error}");
        assert!(finished.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_panic_ends_the_process_with_its_message() {
        let mut tasks = Tasks::new();
        let shutdown = tasks.shutdown();
        tasks.critical("server", until(shutdown));
        tasks.companion("cache", async {
            assert_eq!(1, 2, "the index is broken");
            Ok::<_, Infallible>(())
        });
        let error = tasks.run(LIMIT).await.expect_err("cache panicked").to_string();
        assert!(error.starts_with("task cache panicked") && error.contains("the index is broken"), "{error}");
    }

    #[tokio::test]
    async fn an_error_ends_the_process() {
        let mut tasks = Tasks::new();
        tasks.critical("server", async { Err("address in use") });
        let error = tasks.run(LIMIT).await.expect_err("server failed").to_string();
        assert_eq!(error, "task server failed: address in use");
    }

    #[tokio::test]
    async fn tasks_that_end_as_asked_are_no_fault_whoever_is_seen_first() {
        for _ in 0..32 {
            let mut tasks = Tasks::new();
            let shutdown = tasks.shutdown();
            tasks.critical("server", until(shutdown.clone()));
            tasks.companion("watch", until(shutdown.clone()));
            shutdown.cancel();
            // They have ended before anybody looks.
            tokio::task::yield_now().await;
            tasks.run(LIMIT).await.expect("asked for");
        }
    }

    #[tokio::test]
    async fn what_comes_before_the_tasks_is_done_unless_a_signal_comes() {
        let mut tasks = Tasks::new();
        assert_eq!(tasks.unless_signalled(async { 7 }).await.expect("signals"), Some(7));
        let shutdown = tasks.shutdown();
        tasks.critical("server", until(shutdown.clone()));
        shutdown.cancel();
        tasks.run(LIMIT).await.expect("asked for");
    }

    /// A farewell may end the process by itself, takes no longer than its share, and an end asked for by a task needs none.
    #[tokio::test(start_paused = true)]
    async fn a_farewell_comes_before_the_end() {
        let signals = || Signals::listen().expect("signals");
        let mut tasks = Tasks::new();
        let shutdown = tasks.shutdown();
        tasks.farewell(async move {
            shutdown.cancel();
            std::future::pending::<()>().await;
        });
        let began = Instant::now();
        tasks.part(&mut signals(), began + LIMIT).await.expect("ended by itself");
        assert_eq!(Instant::now(), began);

        let mut tasks = Tasks::new();
        tasks.farewell(std::future::pending());
        tasks.part(&mut signals(), began + LIMIT).await.expect("cut off");
        assert_eq!(Instant::now(), began + LIMIT);

        let mut tasks = Tasks::new();
        tasks.farewell(std::future::pending());
        tasks.companion("watch", async { Ok::<_, Infallible>(()) });
        let error = tasks.part(&mut signals(), Instant::now() + LIMIT).await.expect_err("a task ended");
        assert!(matches!(error, TasksError::Ended("watch")), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_waits_for_critical_tasks_only_and_not_for_ever() {
        let mut tasks = Tasks::new();
        tasks.companion("admin", std::future::pending::<Result<(), Infallible>>());
        let shutdown = tasks.shutdown();
        tasks.critical("server", until(shutdown.clone()));
        shutdown.cancel();
        tasks.run(LIMIT).await.expect("the server ended, the admin server is not waited for");

        let mut tasks = Tasks::new();
        tasks.critical("stuck", std::future::pending::<Result<(), Infallible>>());
        tasks.shutdown().cancel();
        let error = tasks.run(LIMIT).await.expect_err("stuck never ends");
        assert_eq!(error.to_string(), "cut off after 5s: stuck");
    }
}
