//! The loop around [`Election`]: reads and writes the agent's Lease, opens and ends terms.
//!
//! It is the only writer of that Lease. Every write replaces the object as it was last read, with its
//! resourceVersion, so that two agents can never both succeed and annotations of others survive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::PostParams;
use policy::contract::names;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::election::{DURATION, Election, Record, Step};
use super::note::Wanted;
use super::{LeaseNote, Term};
use crate::metrics::{ApiResult, Metrics};

/// Longest time one call may take; shorter than what is left of a term when a renewal begins.
const CALL_LIMIT: Duration = Duration::from_secs(4);
/// How long the tasks of a term may take to end before the Lease is left to expire instead of released.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Value of the annotation that lets the brake go.
const RELEASE: &str = "release";

/// What went wrong with the Lease. Logged; the loop goes on.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("cannot {action} the Lease: {source}")]
    Call { action: &'static str, source: Box<kube::Error> },
    #[error("cannot {action} the Lease: no answer in {CALL_LIMIT:?}")]
    Late { action: &'static str },
}

impl LeaseError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Call { source, .. }
            if matches!(source.as_ref(), kube::Error::Api(status) if status.is_conflict() || status.is_already_exists()))
    }
}

/// The side of the loop that the fleet sees. Clones share it.
#[derive(Debug, Clone)]
pub struct LeaderHandle {
    /// The term that is on, if one is.
    pub term: watch::Receiver<Option<Term>>,
    /// Rises whenever the Lease carries the annotation that lets the brake go.
    pub release: watch::Receiver<u64>,
    /// What this agent keeps on the Lease for the next one.
    pub note: LeaseNote,
    acted: Arc<AtomicBool>,
    renewed_at: Arc<AtomicU64>,
    origin: Instant,
}

impl LeaderHandle {
    /// The brake has been let go: the annotation is taken off with the next write.
    pub fn released(&self) {
        self.acted.store(true, Ordering::Release);
    }

    /// A handle that leads without a Lease, for `--observe`; keep the senders alive.
    pub fn without_lease() -> (Self, watch::Sender<Option<Term>>, watch::Sender<u64>) {
        let (terms, term) = watch::channel(Some(Term::unlimited()));
        let (releases, release) = watch::channel(0);
        let handle = Self {
            term,
            release,
            note: LeaseNote::alone(),
            acted: Arc::default(),
            renewed_at: Arc::default(),
            origin: Instant::now(),
        };
        (handle, terms, releases)
    }

    /// Seconds since the Lease was last renewed by us; `None` when we do not hold it.
    pub fn lease_age(&self) -> Option<Duration> {
        let age = self.origin.elapsed();
        self.term.borrow().as_ref()?;
        Some(age.saturating_sub(Duration::from_millis(self.renewed_at.load(Ordering::Acquire))))
    }
}

/// The loop. One per process; owns the Lease.
pub struct Leader {
    api: Api<Lease>,
    name: String,
    identity: String,
    owner: Option<OwnerReference>,
    labels: Vec<(&'static str, String)>,
    election: Election,
    lease: Option<Lease>,
    last_call: Option<Instant>,
    terms: watch::Sender<Option<Term>>,
    releases: watch::Sender<u64>,
    note: LeaseNote,
    acted: Arc<AtomicBool>,
    renewed_at: Arc<AtomicU64>,
    origin: Instant,
    metrics: Arc<Metrics>,
}

impl Leader {
    /// A loop that has not begun, and what the fleet sees of it.
    pub fn new(
        api: Api<Lease>,
        name: String,
        identity: String,
        cluster: String,
        metrics: Arc<Metrics>,
    ) -> (Self, LeaderHandle) {
        let (terms, term) = watch::channel(None);
        let (releases, release) = watch::channel(0);
        let handle = LeaderHandle {
            term,
            release,
            note: LeaseNote::default(),
            acted: Arc::default(),
            renewed_at: Arc::default(),
            origin: Instant::now(),
        };
        let leader = Self {
            api,
            name,
            election: Election::new(identity.clone()),
            identity,
            owner: None,
            labels: vec![(names::MANAGED_BY, names::MANAGER.to_owned()), (names::BASE_CLUSTER, cluster)],
            lease: None,
            last_call: None,
            terms,
            releases,
            note: handle.note.clone(),
            acted: Arc::clone(&handle.acted),
            renewed_at: Arc::clone(&handle.renewed_at),
            origin: handle.origin,
            metrics,
        };
        (leader, handle)
    }

    /// The Lease goes with this object, which must be in its namespace.
    #[must_use]
    pub fn owned_by(mut self, owner: Option<OwnerReference>) -> Self {
        self.owner = owner;
        self
    }

    /// Runs until `shutdown`, then ends the term, waits for its tasks and releases the Lease.
    ///
    /// # Errors
    /// Never; the signature is the one of supervised tasks.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), std::convert::Infallible> {
        while !shutdown.is_cancelled() {
            let now = Instant::now();
            match self.election.step(self.last_call, now) {
                Step::Wait(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until) => {}
                        () = shutdown.cancelled() => {}
                    }
                }
                Step::Look => self.look().await,
                Step::Take => self.take_or_renew("take").await,
                Step::Renew => self.take_or_renew("renew").await,
                Step::StepDown => self.step_down().await,
            }
        }
        self.resign().await;
        Ok(())
    }

    async fn look(&mut self) {
        let result = bounded("read", self.api.get_opt(&self.name)).await;
        self.note("get", &result);
        match result {
            Ok(lease) => {
                let now = Instant::now();
                self.election.observe(lease.as_ref().map(record), now);
                if lease.as_ref().is_none_or(|lease| brake_of(lease).is_none()) {
                    self.acted.store(false, Ordering::Release);
                }
                self.note.saw(lease.as_ref().and_then(note_of));
                self.lease = lease;
                self.last_call = Some(now);
            }
            Err(error) => self.failed(&error),
        }
    }

    async fn take_or_renew(&mut self, action: &'static str) {
        let began = Instant::now();
        let wanted = self.wanted(&self.identity.clone());
        let create = wanted.metadata.resource_version.is_none();
        let parameters = PostParams::default();
        let result = if create {
            bounded(action, self.api.create(&parameters, &wanted)).await
        } else {
            bounded(action, self.api.replace(&self.name, &parameters, &wanted)).await
        };
        self.note(if create { "create" } else { "update" }, &result);
        match result {
            Ok(lease) => {
                self.last_call = Some(Instant::now());
                self.election.wrote(record(&lease), began);
                let since_origin = began.saturating_duration_since(self.origin).as_millis();
                self.renewed_at.store(u64::try_from(since_origin).unwrap_or(u64::MAX), Ordering::Release);
                self.read_annotation(&lease);
                self.note.saw(note_of(&lease));
                self.lease = Some(lease);
                self.open_or_extend(began);
            }
            // Somebody else wrote: a rival, or an operator's annotation. Reading tells which.
            Err(error) if error.is_conflict() => self.look().await,
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &LeaseError) {
        self.last_call = Some(Instant::now());
        tracing::warn!(lease = self.name, leading = self.election.leads(), %error, "the Lease could not be kept");
    }

    fn open_or_extend(&mut self, began: Instant) {
        let Some(good_until) = self.election.good_until() else { return };
        let open = self.terms.borrow().clone();
        if let Some(term) = open {
            term.extend(good_until);
        } else {
            tracing::info!(identity = self.identity, "leading");
            self.metrics.leader.set(1);
            self.terms.send_replace(Some(Term::until(began, good_until)));
        }
    }

    async fn step_down(&mut self) {
        tracing::warn!(identity = self.identity, "no longer leading");
        self.end_term().await;
        self.election.stepped_down();
        self.last_call = None;
    }

    async fn end_term(&mut self) -> bool {
        self.metrics.leader.set(0);
        match self.terms.send_replace(None) {
            Some(term) => term.end(END_LIMIT).await,
            None => true,
        }
    }

    async fn resign(&mut self) {
        let led = self.election.leads();
        let ended = self.end_term().await;
        if !led || self.election.good_until().is_none_or(|until| Instant::now() >= until) {
            return;
        }
        if !ended {
            tracing::warn!("tasks of the term are still running: the Lease is left to expire");
            return;
        }
        let released = self.wanted("");
        let result =
            bounded("release", self.api.replace(&self.name, &PostParams::default(), &released)).await;
        self.note("update", &result);
        match result {
            Ok(_) => tracing::info!("the Lease is released"),
            Err(error) => tracing::warn!(%error, "the Lease is left to expire"),
        }
    }

    /// The Lease with `holder` in it, made from the last one read.
    fn wanted(&mut self, holder: &str) -> Lease {
        let mut lease = self.lease.clone().unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: None,
        });
        lease.metadata.managed_fields = None;
        let labels = lease.metadata.labels.get_or_insert_default();
        for (key, value) in &self.labels {
            labels.insert((*key).to_owned(), value.clone());
        }
        if let Some(owner) = &self.owner {
            lease.metadata.owner_references = Some(vec![owner.clone()]);
        }
        if self.acted.load(Ordering::Acquire)
            && let Some(annotations) = &mut lease.metadata.annotations
        {
            annotations.remove(names::BRAKE);
        }
        match self.note.wanted() {
            Wanted::Text(text) => {
                let annotations = lease.metadata.annotations.get_or_insert_default();
                annotations.insert(names::HEALING.to_owned(), text);
            }
            Wanted::Nothing => {
                if let Some(annotations) = &mut lease.metadata.annotations {
                    annotations.remove(names::HEALING);
                }
            }
            Wanted::AsItIs => {}
        }
        let old = lease.spec.take().unwrap_or_default();
        lease.spec = Some(renewed(old, holder, Timestamp::now()));
        lease
    }

    /// One annotation lets the brake go once: it counts as acted on until a Lease without it was seen, however many
    /// writes that takes.
    fn read_annotation(&self, lease: &Lease) {
        let acted = self.acted.load(Ordering::Acquire);
        match brake_of(lease) {
            Some(RELEASE) if !acted => self.releases.send_modify(|count| *count += 1),
            None if acted => self.acted.store(false, Ordering::Release),
            _ => {}
        }
    }

    fn note<T>(&self, verb: &'static str, result: &Result<T, LeaseError>) {
        let outcome = match result {
            Ok(_) => ApiResult::Ok,
            Err(LeaseError::Call { source, .. }) => ApiResult::of(source),
            Err(LeaseError::Late { .. }) => ApiResult::Timeout,
        };
        self.metrics.api_call("leases", verb, outcome);
    }
}

async fn bounded<T>(
    action: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, LeaseError> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(result) => result.map_err(|source| LeaseError::Call { action, source: Box::new(source) }),
        Err(_) => Err(LeaseError::Late { action }),
    }
}

/// What an operator wants of the brake.
fn brake_of(lease: &Lease) -> Option<&str> {
    lease.metadata.annotations.as_ref()?.get(names::BRAKE).map(String::as_str)
}

/// What the agent that led last keeps there.
fn note_of(lease: &Lease) -> Option<&str> {
    lease.metadata.annotations.as_ref()?.get(names::HEALING).map(String::as_str)
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    Record {
        holder: spec.and_then(|spec| spec.holder_identity.clone()),
        renewed: spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0.as_microsecond()),
        transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or_default(),
        duration: spec.and_then(|spec| spec.lease_duration_seconds),
    }
}

/// The spec after `holder` wrote it. renewTime never goes backwards, whatever our clock says.
fn renewed(old: LeaseSpec, holder: &str, now: Timestamp) -> LeaseSpec {
    let changed = old.holder_identity.as_deref().unwrap_or_default() != holder;
    let at = match &old.renew_time {
        Some(MicroTime(last)) if *last >= now => {
            Timestamp::from_microsecond(last.as_microsecond().saturating_add(1)).unwrap_or(*last)
        }
        _ => now,
    };
    let taken = changed && !holder.is_empty();
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: if taken { Some(MicroTime(at)) } else { old.acquire_time },
        lease_transitions: Some(old.lease_transitions.unwrap_or_default().saturating_add(i32::from(taken))),
        renew_time: Some(MicroTime(at)),
        ..old
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn renew_time_never_goes_backwards_and_transitions_count_holders() {
        let now = Timestamp::from_second(1_000).expect("time");
        let first = renewed(LeaseSpec::default(), "a", now);
        assert_eq!((first.lease_transitions, first.holder_identity.as_deref()), (Some(1), Some("a")));
        assert_eq!(first.acquire_time, Some(MicroTime(now)));

        let earlier = Timestamp::from_second(900).expect("time");
        let second = renewed(first.clone(), "a", earlier);
        assert!(second.renew_time > first.renew_time);
        assert_eq!((second.lease_transitions, &second.acquire_time), (Some(1), &first.acquire_time));

        let released = renewed(second, "", now);
        assert_eq!((released.lease_transitions, released.holder_identity.as_deref()), (Some(1), Some("")));
        let third = renewed(released, "b", now);
        assert_eq!(third.lease_transitions, Some(2));
        assert_eq!(third.lease_duration_seconds, Some(15));
    }

    /// A Lease kept by an API server that refuses some of the writes.
    fn api(stored: &Arc<Mutex<serde_json::Value>>, refuse: &Arc<AtomicBool>) -> Api<Lease> {
        let (stored, refuse) = (Arc::clone(stored), Arc::clone(refuse));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (stored, refuse) = (Arc::clone(&stored), Arc::clone(&refuse));
            async move {
                let (parts, body) = request.into_parts();
                let sent = body.collect_bytes().await.expect("body");
                let refused = refuse.swap(false, Ordering::AcqRel);
                let mut stored = stored.lock().expect("lock");
                if parts.method != "GET" && !refused {
                    *stored = serde_json::from_slice(&sent).expect("JSON");
                }
                let status = if refused { 500 } else { 200 };
                let answer = kube::client::Body::from(stored.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(
                    http::Response::builder().status(status).body(answer).expect("response"),
                )
            }
        });
        Api::namespaced(kube::Client::new(service, "default"), "ns")
    }

    #[tokio::test(start_paused = true)]
    async fn one_annotation_lets_the_brake_go_once_whatever_becomes_of_a_write() {
        let annotated = serde_json::json!({"metadata": {"name": "lease", "resourceVersion": "1",
            "annotations": {names::BRAKE: RELEASE}}});
        let stored = Arc::new(Mutex::new(annotated.clone()));
        let refuse = Arc::new(AtomicBool::new(false));
        let metrics = Arc::new(Metrics::new(&mut prometheus_client::registry::Registry::default()));
        let (mut leader, handle) = Leader::new(
            api(&stored, &refuse),
            "lease".to_owned(),
            "me".to_owned(),
            "default".to_owned(),
            metrics,
        );
        let releases = |handle: &LeaderHandle| *handle.release.borrow();
        leader.look().await;
        leader.take_or_renew("take").await;
        assert_eq!(releases(&handle), 1);
        handle.released();
        refuse.store(true, Ordering::Release);
        leader.take_or_renew("renew").await;
        leader.take_or_renew("renew").await;
        assert_eq!(releases(&handle), 1, "the annotation was acted on");
        assert!(stored.lock().expect("lock").pointer("/metadata/annotations/stowage.dev~1brake").is_none());
        // The next one is another.
        *stored.lock().expect("lock") = annotated;
        leader.look().await;
        leader.take_or_renew("renew").await;
        assert_eq!(releases(&handle), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_note_stands_on_the_lease_until_it_is_taken_off() {
        let stored =
            Arc::new(Mutex::new(serde_json::json!({"metadata": {"name": "lease", "resourceVersion": "1",
            "annotations": {names::HEALING: "old", "a": "b"}}})));
        let metrics = Arc::new(Metrics::new(&mut prometheus_client::registry::Registry::default()));
        let (name, me, cluster) = ("lease".to_owned(), "me".to_owned(), "default".to_owned());
        let (mut leader, handle) = Leader::new(api(&stored, &Arc::default()), name, me, cluster, metrics);
        let annotations = || stored.lock().expect("lock")["metadata"]["annotations"].clone();
        leader.look().await;
        assert_eq!(handle.note.stored().as_deref(), Some("old"));
        leader.take_or_renew("take").await;
        assert_eq!(annotations()[names::HEALING], "old", "whoever has said nothing changes nothing");
        handle.note.want(Some("new".to_owned()));
        assert_eq!(handle.note.stored().as_deref(), Some("old"), "not before it is written");
        leader.take_or_renew("renew").await;
        assert_eq!(
            (annotations()[names::HEALING].as_str(), handle.note.stored().as_deref()),
            (Some("new"), Some("new"))
        );
        handle.note.leave();
        leader.take_or_renew("renew").await;
        assert_eq!(annotations()[names::HEALING], "new");
        handle.note.want(None);
        leader.take_or_renew("renew").await;
        assert_eq!((annotations(), handle.note.stored()), (serde_json::json!({"a": "b"}), None));
    }
}
