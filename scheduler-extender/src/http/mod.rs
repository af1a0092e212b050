//! The HTTP side: one file per verb.
//!
//! A fault of `filter` is an HTTP 200 with `Error`: kube-scheduler throws the body of any other status away, retries
//! both within seconds, and shows users the text. `prioritize` has no such field, so its fault is a 503, which
//! kube-scheduler logs and then goes on without our scores; so is that of `preempt`, after which nothing is evicted. Nothing
//! ever fails open.

mod bind;
mod explain;
mod fault;
mod filter;
mod frequency;
mod preempt;
mod prepared;
mod prioritize;
mod refusals;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kube::Client;
use policy::Policy;
use policy::contract::ModulePod;
use service::policy_file::Versioned;
use tokio::sync::{Notify, Semaphore, watch};
use tower_http::catch_panic::CatchPanicLayer;

pub use fault::Fault;
pub use refusals::Due;

use crate::cache::{CacheView, Snapshot};
use crate::kinds::Kinds;
use crate::metrics::Metrics;
use crate::reservations::Reservations;
use crate::shared::SharedPlacements;
use crate::waiting::Waiting;
use frequency::Frequency;
use prepared::Prepared;

/// Larger bodies are read on a thread of their own, so that the runtime keeps turning.
const LARGE: usize = 1024 * 1024;

/// How long a request waits until placements just made are seen. kube-scheduler schedules nothing meanwhile.
const PATIENCE: Duration = Duration::from_millis(250);
/// How many Pods are explained at once. Each takes a processor for a while, which the filter needs.
const EXPLAINED_AT_ONCE: usize = 1;
/// How many nodes are judged between two looks at the clock.
const STRIDE: usize = 256;

/// What the handlers share.
pub struct Extender {
    /// What is known of the cluster.
    pub cache: CacheView,
    /// The policy in force.
    pub policy: watch::Receiver<Arc<Versioned<Policy>>>,
    /// The metrics.
    pub metrics: Metrics,
    /// The limits.
    pub limits: Limits,
    /// The way to the API server, for `bind` alone.
    pub client: Option<Client>,
    /// Where `bind` records what it does, when other extenders bind too.
    pub shared: Option<SharedPlacements>,
    /// Notified when a Pod was refused on every node.
    pub refusals: Notify,
    frequency: Mutex<Frequency>,
    reservations: Mutex<Reservations>,
    kinds: Mutex<Kinds>,
    waiting: Mutex<Waiting>,
    explaining: Arc<Semaphore>,
    prepared: Mutex<Option<Prepared>>,
}

/// The handlers' limits.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest time for one request, below kube-scheduler's `httpTimeout`.
    pub deadline: Duration,
    /// Largest body in bytes.
    pub body: usize,
    /// How long a watch may fail before verdicts would be guesses.
    pub stale_after: Duration,
    /// How long a placement that is not seen counts: longer than a binding takes and a watch hangs unnoticed.
    pub reservation: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(1500),
            body: 64 << 20,
            stale_after: Duration::from_secs(30),
            reservation: Duration::from_mins(1),
        }
    }
}

impl Extender {
    /// The shared state of the handlers.
    pub fn new(
        cache: CacheView,
        policy: watch::Receiver<Arc<Versioned<Policy>>>,
        metrics: Metrics,
        limits: Limits,
    ) -> Self {
        let reservations = Mutex::new(Reservations::new(limits.reservation));
        Self {
            cache,
            policy,
            metrics,
            limits,
            client: None,
            shared: None,
            refusals: Notify::new(),
            frequency: Mutex::default(),
            reservations,
            kinds: Mutex::default(),
            waiting: Mutex::default(),
            explaining: Arc::new(Semaphore::new(EXPLAINED_AT_ONCE)),
            prepared: Mutex::default(),
        }
    }

    /// With a client, so that `bind` can bind.
    #[must_use]
    pub fn with_client(self, client: Client) -> Self {
        Self { client: Some(client), ..self }
    }

    /// With placements that are shared with other extenders.
    #[must_use]
    pub fn sharing(self, shared: Option<SharedPlacements>) -> Self {
        Self { shared, ..self }
    }

    /// The snapshot to decide on, if it can be believed.
    fn snapshot(&self, now: Instant) -> Result<Arc<Snapshot>, Fault> {
        let snapshot = self.cache.snapshot();
        if !snapshot.synced() {
            return Err(Fault::NotSynced);
        }
        let stale = |health: crate::cache::Health| health.is_stale(now, self.limits.stale_after);
        if stale(snapshot.nodes_health) || stale(snapshot.pods_health) {
            return Err(Fault::Stale);
        }
        Ok(snapshot)
    }

    fn policy(&self) -> Arc<Versioned<Policy>> {
        Arc::clone(&self.policy.borrow())
    }

    /// For records alone: whoever decides takes [`Extender::settled`].
    fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_reservations(&self, change: impl FnOnce(&mut Reservations)) {
        let mut reservations = self.reservations();
        change(&mut reservations);
        self.metrics.reservations(reservations.len());
    }

    /// The placements that are not seen yet, and the snapshot in which they are not. It is loaded under their lock: what
    /// somebody else has seen come true in a newer one, and no longer counts, would otherwise be in neither.
    ///
    /// # Errors
    /// When no snapshot can be believed.
    fn settled(&self, now: Instant) -> Result<(MutexGuard<'_, Reservations>, Arc<Snapshot>), Fault> {
        let mut reservations = self.reservations();
        let snapshot = self.snapshot(now)?;
        reservations.settle(&snapshot, now);
        Ok((reservations, snapshot))
    }

    /// Forgets placements that came true, for as long as the process lives. The filter does so too, but a Pod that was
    /// bound and deleted between two questions would be seen by neither, and count as not yet seen.
    ///
    /// # Errors
    /// Never; the type fits [`service::tasks::Tasks`].
    pub async fn settle_as_seen(self: Arc<Self>) -> Result<(), std::convert::Infallible> {
        let mut published = self.cache.changes();
        while published.changed().await.is_ok() {
            let mut reservations = self.reservations();
            if !reservations.is_empty() {
                reservations.settle(&self.cache.snapshot(), Instant::now());
                self.metrics.reservations(reservations.len());
            }
        }
        std::future::pending().await
    }

    /// Taken after [`Extender::reservations`] where both are held.
    fn kinds(&self) -> MutexGuard<'_, Kinds> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepared(&self) -> MutexGuard<'_, Option<Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a question about a Pod, and says when there were too many: what is known, with the likely causes in order.
    fn note_call(&self, pod: &ModulePod, asked_about: usize, now: Instant) {
        let too_often = self.frequency.lock().unwrap_or_else(PoisonError::into_inner).record(&pod.uid, now);
        if too_often {
            self.metrics.filtered_too_often();
            let (calls, window) = (frequency::TOO_OFTEN, frequency::WINDOW);
            tracing::warn!(
                pod = pod.key(),
                calls,
                ?window,
                asked_about,
                nodes = self.cache.snapshot().nodes.len(),
                "filtered too often: something wakes this Pod again and again. Likely causes: Nodes or bound Pods that \
                 change all the time, as in a rollout; a percentageOfNodesToScore below 100, if it is asked about fewer \
                 nodes than there are; somebody who writes the Pod itself"
            );
        }
    }

    fn note_question(&self, verb: &'static str, nodes: usize, full: bool) {
        let calls = self.metrics.question(verb, nodes, full);
        // Once, not with each call: the metric counts on.
        if full && calls == 1 {
            tracing::warn!(
                verb,
                "kube-scheduler sends whole Nodes, which is slow: set nodeCacheCapable: true"
            );
        }
    }
}

/// The verbs under `/scheduler/`, and `/explain` for people.
pub fn router(extender: Arc<Extender>) -> Router {
    Router::new()
        .route("/scheduler/filter", post(filter::handle))
        .route("/scheduler/prioritize", post(prioritize::handle))
        .route("/scheduler/preempt", post(preempt::handle))
        .route("/scheduler/bind", post(bind::handle))
        .route("/explain", get(explain::handle))
        .layer(CatchPanicLayer::new())
        .with_state(extender)
}

/// One request on its way to an answer, which may take several tries.
struct Request {
    /// When to give up.
    until: Instant,
    /// Whether it was not tried before.
    first: bool,
    /// The verdicts of the last try, by code.
    verdicts: Vec<(&'static str, u64)>,
}

/// From a request body to the body of the answer.
type Answer = fn(&Extender, &[u8], &mut Request) -> Result<Vec<u8>, Fault>;

/// Answers one call of a verb: with what `answer` says, or with what `of_fault` makes of the reason why it says nothing.
async fn serve(
    extender: Arc<Extender>,
    verb: &'static str,
    body: Body,
    answer: Answer,
    of_fault: fn(&Fault) -> Response,
) -> Response {
    let started = Instant::now();
    let result = within_deadline(Arc::clone(&extender), body, answer).await;
    let outcome = result.as_ref().map_or_else(Fault::code, |_| "answered");
    extender.metrics.request(verb, outcome, started.elapsed());
    result.map_or_else(
        |fault| {
            tracing::warn!(verb, %fault, "no answer");
            of_fault(&fault)
        },
        json,
    )
}

/// For verbs whose answer has no place for an error.
fn unavailable(fault: &Fault) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, fault.to_string()).into_response()
}

/// Reads the body and answers within the deadline. What is counted is counted once, however often it is tried.
async fn within_deadline(extender: Arc<Extender>, body: Body, answer: Answer) -> Result<Vec<u8>, Fault> {
    let Limits { deadline, body: limit, .. } = extender.limits;
    let mut request = Request { until: Instant::now() + deadline, first: true, verdicts: Vec::new() };
    let work = async {
        let body: Bytes = axum::body::to_bytes(body, limit).await.map_err(|_| Fault::Body)?;
        let patience = Instant::now() + PATIENCE;
        loop {
            let mut published = extender.cache.changes();
            let result = if body.len() <= LARGE {
                answer(&extender, &body, &mut request)
            } else {
                let (extender, body) = (Arc::clone(&extender), body.clone());
                let blocking = tokio::task::spawn_blocking(move || {
                    let result = answer(&extender, &body, &mut request);
                    (result, request)
                });
                let (result, returned) = blocking.await.map_err(|_| Fault::Internal)?;
                request = returned;
                result
            };
            // What other Pods got is usually seen within milliseconds, and then there is a verdict.
            let left = patience.saturating_duration_since(Instant::now());
            let changed = matches!(result, Err(Fault::Reserved))
                && !left.is_zero()
                && matches!(tokio::time::timeout(left, published.changed()).await, Ok(Ok(())));
            if !changed {
                for (verdict, nodes) in request.verdicts {
                    extender.metrics.verdicts(verdict, nodes);
                }
                return result;
            }
            request.first = false;
            request.verdicts.clear();
        }
    };
    tokio::time::timeout(deadline, work).await.map_err(|_| Fault::Late)?
}

fn json(body: Vec<u8>) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
