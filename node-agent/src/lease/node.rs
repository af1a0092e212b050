//! The Lease that keeps a VNode alive for the node controller. Owned and renewed by the keeper of its VNode.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Client};
use policy::contract::names;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::beat;
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

/// The way to the Leases of all VNodes. One for all keepers.
pub struct NodeLeases {
    client: Client,
    api: Api<Lease>,
}

impl NodeLeases {
    /// Those of the cluster that this client leads to.
    pub fn new(client: Client) -> Self {
        Self { api: Api::namespaced(client.clone(), NAMESPACE), client }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, kube::Error> {
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }
}

/// What the next renewal needs of the Lease as the API server took it. The rest is neither read nor kept: there is one
/// for every base, every ten seconds.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Held {
    metadata: HeldMeta,
    spec: HeldSpec,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HeldMeta {
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct HeldSpec {
    renew_time: Option<MicroTime>,
}

/// The Lease of one VNode.
pub struct NodeLease {
    leases: Arc<NodeLeases>,
    node: String,
    identity: Arc<str>,
    cluster: Arc<str>,
    held: Option<Held>,
    due: Instant,
    renewals: u32,
    renewed: Option<Instant>,
}

impl NodeLease {
    /// A Lease that is due at once (a new VNode), or within a few seconds (one of many found at a start).
    pub fn new(
        leases: Arc<NodeLeases>,
        node: String,
        identity: Arc<str>,
        cluster: Arc<str>,
        found: bool,
        now: Instant,
    ) -> Self {
        let due = if found { now + phase(&node, START_SPREAD) } else { now };
        Self { leases, node, identity, cluster, held: None, due, renewals: 0, renewed: None }
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
            lease(self.held.as_ref(), &self.node, node_uid, &self.identity, &self.cluster, Timestamp::now());
        let leases = Request::new(self.leases.api.resource_url());
        let result: Result<Held, kube::Error> = if wanted.metadata.resource_version.is_some() {
            let body = serde_json::to_vec(&wanted).map_err(kube::Error::SerdeError)?;
            let result = self.leases.send(leases.replace(&self.node, &PostParams::default(), body)).await;
            metrics.api("leases", "update", &result);
            result
        } else {
            // Makes it or takes it over, in one call and whatever state it is in.
            let parameters = PatchParams::apply(FIELD_MANAGER).force();
            let result =
                self.leases.send(leases.patch(&self.node, &parameters, &Patch::Apply(&wanted))).await;
            metrics.api("leases", "apply", &result);
            result
        };
        match result {
            Ok(held) => {
                self.held = Some(held);
                self.renewed = Some(began);
                self.due = beat::before(began + self.next_interval());
                self.renewals = self.renewals.saturating_add(1);
                Ok(())
            }
            Err(error) => {
                // Changed or gone: the next try does not rely on what was read.
                self.held = None;
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
        self.held = None;
        self.due = now;
    }

    /// Deletes the Lease of the Node with this UID; one that is not there is fine. One of another Node stays: the agent
    /// that made that Node may have taken this very object over.
    ///
    /// # Errors
    /// When the API server did not take it, or somebody wrote it between the look and the deletion.
    pub async fn delete(&self, node_uid: Option<&str>, metrics: &Metrics) -> Result<(), kube::Error> {
        let Some(node_uid) = node_uid else { return Ok(()) };
        let found = self.leases.api.get_opt(&self.node).await;
        metrics.api("leases", "get", &found);
        let Some(ObjectMeta { uid, resource_version, owner_references, .. }) =
            found?.map(|lease| lease.metadata)
        else {
            return Ok(());
        };
        if owner_references.iter().flatten().any(|owner| owner.uid != node_uid) {
            return Ok(());
        }
        let preconditions = Some(Preconditions { uid, resource_version });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        let result = self.leases.api.delete(&self.node, &parameters).await;
        metrics.api("leases", "delete", &result);
        match result {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
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
    before: Option<&Held>,
    node: &str,
    node_uid: &str,
    identity: &str,
    cluster: &str,
    now: Timestamp,
) -> Lease {
    let last = before.and_then(|held| held.spec.renew_time.clone());
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
            resource_version: before.and_then(|held| held.metadata.resource_version.clone()),
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
        let json = serde_json::to_string(&made).expect("JSON");
        let held: Held = serde_json::from_str(&json).expect("what is read of it");
        let again = lease(Some(&held), "n", "uid-2", "agent", "west", earlier);
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
    async fn only_the_lease_of_the_node_is_deleted() {
        let owned =
            |uid: &str| serde_json::json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid}]);
        let read = serde_json::json!({"uid": "l-1", "resourceVersion": "7"});
        for (node_uid, owners, deleted) in [
            (Some("n-1"), owned("n-1"), Some(read.clone())),
            (Some("n-1"), serde_json::Value::Null, Some(read.clone())),
            (Some("n-1"), owned("n-2"), None),
            (None, owned("n-2"), None),
        ] {
            let calls = Arc::new(Mutex::new(None));
            let (book, mut metadata) = (Arc::clone(&calls), read.clone());
            metadata["ownerReferences"] = owners.clone();
            let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let (book, metadata) = (Arc::clone(&book), metadata.clone());
                async move {
                    if request.method() == http::Method::DELETE {
                        let sent = request.into_body().collect_bytes().await.expect("body");
                        let sent: serde_json::Value = serde_json::from_slice(&sent).expect("JSON");
                        *book.lock().expect("lock") = Some(sent["preconditions"].clone());
                    }
                    let answer = serde_json::json!({"metadata": metadata}).to_string().into_bytes();
                    Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::from(answer)))
                }
            });
            let leases = Arc::new(NodeLeases::new(Client::new(service, "default")));
            let (name, me, cluster) = ("n".to_owned(), "agent".into(), "west".into());
            let lease = NodeLease::new(leases, name, me, cluster, true, Instant::now());
            let metrics = Metrics::new(&mut prometheus_client::registry::Registry::default());
            lease.delete(node_uid, &metrics).await.expect("done");
            assert_eq!(*calls.lock().expect("lock"), deleted, "{node_uid:?}, {owners}");
        }
    }
}
