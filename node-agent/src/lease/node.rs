//! The Lease that keeps a VNode alive for the node controller. Owned and renewed by the keeper of its VNode.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use policy::contract::names;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::vnode::FIELD_MANAGER;

/// Where the node controller looks for it.
pub const NAMESPACE: &str = "kube-node-lease";
/// How often it is renewed.
pub const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How long it is good for.
const DURATION_SECONDS: i32 = 40;
/// All Leases found at a start are renewed within this time.
const START_SPREAD: Duration = Duration::from_secs(3);
/// How soon a failed renewal is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The Lease of one VNode.
#[derive(Debug)]
pub struct NodeLease {
    api: Api<Lease>,
    node: String,
    identity: String,
    cluster: String,
    lease: Option<Lease>,
    /// UID of the one that was written here last.
    written: Option<String>,
    due: Instant,
    renewals: u32,
    renewed: Option<Instant>,
}

impl NodeLease {
    /// A Lease that is due at once (a new VNode), or within a few seconds (one of many found at a start).
    pub fn new(
        api: Api<Lease>,
        node: String,
        identity: String,
        cluster: String,
        found: bool,
        now: Instant,
    ) -> Self {
        let due = if found { now + phase(&node, START_SPREAD) } else { now };
        Self { api, node, identity, cluster, lease: None, written: None, due, renewals: 0, renewed: None }
    }

    /// When it must be renewed.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// When it was last renewed by us.
    pub fn renewed(&self) -> Option<Instant> {
        self.renewed
    }

    /// Renews it, or makes it, for the Node with this UID.
    ///
    /// # Errors
    /// When the API server did not take it; it is due again soon.
    pub async fn renew(&mut self, node_uid: &str, metrics: &Metrics) -> Result<(), kube::Error> {
        let began = Instant::now();
        self.due = began + RETRY;
        let wanted =
            lease(self.lease.as_ref(), &self.node, node_uid, &self.identity, &self.cluster, Timestamp::now());
        let result = if wanted.metadata.resource_version.is_some() {
            let result = self.api.replace(&self.node, &PostParams::default(), &wanted).await;
            metrics.api("leases", "update", &result);
            result
        } else {
            // Makes it or takes it over, in one call and whatever state it is in.
            let parameters = PatchParams::apply(FIELD_MANAGER).force();
            let result = self.api.patch(&self.node, &parameters, &Patch::Apply(&wanted)).await;
            metrics.api("leases", "apply", &result);
            result
        };
        match result {
            Ok(lease) => {
                self.written.clone_from(&lease.metadata.uid);
                self.lease = Some(lease);
                self.renewed = Some(began);
                self.due = began + self.next_interval();
                self.renewals = self.renewals.saturating_add(1);
                Ok(())
            }
            Err(error) => {
                // Changed or gone: the next try does not rely on what was read.
                self.lease = None;
                Err(error)
            }
        }
    }

    /// The first interval is shorter, by a part that differs from Lease to Lease: Leases that begin together are
    /// spread over the whole period from then on.
    fn next_interval(&self) -> Duration {
        if self.renewals == 0 {
            START_SPREAD + phase(&self.node, RENEW_EVERY.saturating_sub(START_SPREAD))
        } else {
            RENEW_EVERY
        }
    }

    /// Forgets the object that was read, because the Node behind it is another one now.
    pub fn forget(&mut self, now: Instant) {
        self.lease = None;
        self.due = now;
    }

    /// Deletes it; one that is not there is fine. `of_our_node`: a Node of ours had the name, so that the Lease is ours
    /// too; else only one that was written here is, by its UID.
    ///
    /// # Errors
    /// When the API server did not take it.
    pub async fn delete(&self, of_our_node: bool, metrics: &Metrics) -> Result<(), kube::Error> {
        if self.written.is_none() && !of_our_node {
            return Ok(());
        }
        let preconditions =
            self.written.clone().map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let result = self.api.delete(&self.node, &parameters).await;
        metrics.api("leases", "delete", &result);
        match result {
            // Gone, or another one has the name by now.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

/// A part of `within` that is always the same for the same name.
pub fn phase(name: &str, within: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let millis = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(hasher.finish() % millis)
}

fn lease(
    before: Option<&Lease>,
    node: &str,
    node_uid: &str,
    identity: &str,
    cluster: &str,
    now: Timestamp,
) -> Lease {
    let last = before.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
    let at = last.filter(|last| last.0 >= now).unwrap_or(MicroTime(now));
    Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(
                [
                    (names::MANAGED_BY.to_owned(), names::MANAGER.to_owned()),
                    (names::BASE_CLUSTER.to_owned(), cluster.to_owned()),
                ]
                .into(),
            ),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.to_owned(),
                uid: node_uid.to_owned(),
                ..OwnerReference::default()
            }]),
            resource_version: before.and_then(|lease| lease.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(identity.to_owned()),
            lease_duration_seconds: Some(DURATION_SECONDS),
            renew_time: Some(at),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// BL-007: the owner is the Node as it is now, also where another one had the name.
    #[test]
    fn the_lease_belongs_to_the_node_and_names_its_holder() {
        let now = Timestamp::from_second(100).expect("time");
        let made = lease(None, "n", "uid-1", "agent", "west", now);
        let owners = made.metadata.owner_references.clone().expect("owners");
        assert_eq!((owners[0].uid.as_str(), owners[0].kind.as_str()), ("uid-1", "Node"));
        let spec = made.spec.clone().expect("spec");
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("agent"), Some(40)));

        // Another Node under the same name, and a clock that went back.
        let earlier = Timestamp::from_second(90).expect("time");
        let again = lease(Some(&made), "n", "uid-2", "agent", "west", earlier);
        assert_eq!(again.metadata.owner_references.expect("owners")[0].uid, "uid-2");
        assert_eq!(again.spec.expect("spec").renew_time, made.spec.expect("spec").renew_time);
    }

    #[test]
    fn phases_are_stable_and_spread() {
        let phases: Vec<u128> =
            (0..1_000).map(|n| phase(&format!("virtual-node-{n}"), RENEW_EVERY).as_millis()).collect();
        assert_eq!(phase("a", RENEW_EVERY), phase("a", RENEW_EVERY));
        for second in 0..10 {
            let share = phases.iter().filter(|phase| **phase / 1_000 == second).count();
            assert!((50..200).contains(&share), "{share} of 1000 in second {second}");
        }
    }

    #[tokio::test]
    async fn only_a_lease_of_ours_is_deleted() {
        for (written, of_our_node, deleted) in [
            (Some("l-1"), false, Some(serde_json::json!({"uid": "l-1"}))),
            (None, true, Some(serde_json::Value::Null)),
            (None, false, None),
        ] {
            let calls = Arc::new(Mutex::new(None));
            let book = Arc::clone(&calls);
            let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let book = Arc::clone(&book);
                async move {
                    let sent = request.into_body().collect_bytes().await.expect("body");
                    let sent: serde_json::Value = serde_json::from_slice(&sent).expect("JSON");
                    *book.lock().expect("lock") = Some(sent["preconditions"].clone());
                    let body = kube::client::Body::from(b"{\"metadata\": {}}".to_vec());
                    Ok::<_, std::convert::Infallible>(http::Response::new(body))
                }
            });
            let api = Api::namespaced(kube::Client::new(service, "default"), NAMESPACE);
            let (name, me, cluster) = ("n".to_owned(), "agent".to_owned(), "west".to_owned());
            let mut lease = NodeLease::new(api, name, me, cluster, true, Instant::now());
            lease.written = written.map(str::to_owned);
            let metrics = Metrics::new(&mut prometheus_client::registry::Registry::default());
            lease.delete(of_our_node, &metrics).await.expect("done");
            assert_eq!(*calls.lock().expect("lock"), deleted, "{written:?}, {of_our_node}");
        }
    }
}
