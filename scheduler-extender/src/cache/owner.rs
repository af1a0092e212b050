//! The one task that changes the state and publishes it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use service::readiness::ReadyCheck;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Snapshot;
use super::state::State;
use super::watch::Change;
use crate::metrics::Metrics;

/// How many changes may wait for the owner.
const MAILBOX: usize = 1024;
/// How many changes go into one snapshot at most.
const BATCH: usize = 512;

/// What a request holds: always the newest snapshot. Clones see the same.
#[derive(Clone, Default)]
pub struct CacheView {
    snapshot: Arc<ArcSwap<Snapshot>>,
    published: Arc<watch::Sender<()>>,
}

impl CacheView {
    /// The newest snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Publishes a state. Called by the owner; public for tests and benches that own a state themselves.
    pub fn publish(&self, state: State) {
        self.snapshot.store(Arc::new(state));
        self.published.send_replace(());
    }

    /// Says when a snapshot newer than the ones published so far is there.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.published.subscribe()
    }
}

/// The owner of the state.
pub struct Cache {
    state: State,
    changes: mpsc::Receiver<Change>,
    view: CacheView,
    synced: ReadyCheck,
    metrics: Metrics,
}

impl Cache {
    /// An empty cache, the mailbox for its watches, and what requests read.
    pub fn new(synced: ReadyCheck, metrics: Metrics) -> (Self, mpsc::Sender<Change>, CacheView) {
        let (sender, changes) = mpsc::channel(MAILBOX);
        let view = CacheView::default();
        (Self { state: State::default(), changes, view: view.clone(), synced, metrics }, sender, view)
    }

    /// Takes changes in until no watch is left.
    ///
    /// # Errors
    /// Never; the type fits [`service::tasks::Tasks`].
    pub async fn run(mut self) -> Result<(), Infallible> {
        let mut batch = Vec::with_capacity(BATCH);
        let started = Instant::now();
        while self.changes.recv_many(&mut batch, BATCH).await > 0 {
            let was_synced = self.state.synced();
            for change in batch.drain(..) {
                self.metrics.watch_event(&change);
                self.state.apply(change);
            }
            if self.state.synced() && !was_synced {
                let took: Duration = started.elapsed();
                tracing::info!(
                    nodes = self.state.nodes.len(),
                    module_pods = self.state.pods.len(),
                    ?took,
                    "synced"
                );
                self.synced.set(true);
            }
            self.metrics.cache_size(&self.state);
            self.view.publish(self.state.clone());
        }
        Ok(())
    }
}

impl std::fmt::Debug for CacheView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheView").field("nodes", &self.snapshot().nodes.len()).finish()
    }
}
