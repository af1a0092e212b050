//! The sidecar shape: the agent is a container of a base's Pod and looks after this one base.
//!
//! What needs a view of other bases it leaves to the agent of the fleet, or does not do; see [`alone`].

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client};
use policy::Policy;
use policy::contract::{names, node_name};
use policy::model::OverloadMode;

use crate::named::some;

/// How soon a base Pod that was not found as it must be is asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest time one look-up may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Why an agent cannot be the sidecar of a base. What may get better is waited for instead.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// The flag names a Pod that is not there.
    #[error("--base-pod: there is no Pod {0}")]
    NoPod(PodName),
    /// Another Pod has the name: the one this agent belongs to is gone.
    #[error("--base-pod: the Pod {name} has the UID {found}, not {wanted}: ours is gone")]
    AnotherPod {
        /// The name.
        name: PodName,
        /// UID of the Pod that has it.
        found: String,
        /// UID in `--base-uid`.
        wanted: String,
    },
}

/// `<namespace>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    namespace: String,
    name: String,
}

impl PodName {
    /// Reads `<namespace>/<name>`.
    ///
    /// # Errors
    /// A text for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').ok_or("must be <namespace>/<name>")?;
        let fits = (1..=253).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'));
        let namespace = crate::args::label_name(namespace).map_err(|why| format!("the namespace {why}"))?;
        if fits {
            Ok(Self { namespace, name: name.to_owned() })
        } else {
            Err("must end with the name of a Pod".to_owned())
        }
    }
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The one base of this agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnBase {
    /// Namespace of its Pod.
    pub namespace: String,
    /// Name of its Pod.
    pub pod: String,
    /// UID of its Pod: another one of this name has an agent of its own.
    pub uid: String,
    /// Its VNode.
    pub node: String,
}

impl OwnBase {
    /// What the base Pod says of itself; `None` while it does not say that it has an agent of its own.
    fn of(pod: &Pod, name: &PodName, cluster: &str) -> Option<Self> {
        let labels = pod.metadata.labels.as_ref()?;
        if labels.get(names::SIDECAR).map(String::as_str) != Some(names::SIDECAR_YES) {
            return None;
        }
        let stack = labels.get(names::STACK).filter(|stack| !stack.is_empty());
        let stack = stack.map_or(names::DEFAULT_STACK, String::as_str);
        Some(Self {
            namespace: name.namespace.clone(),
            pod: name.name.clone(),
            uid: pod.metadata.uid.clone()?,
            node: node_name(stack, &name.namespace, &name.name, cluster),
        })
    }

    /// Looks the base Pod up, as long as it takes: an agent that gave up would take its base out of the traffic.
    ///
    /// # Errors
    /// When the Pod is not there, or is not the one with this UID.
    pub async fn look_up(
        client: &Client,
        name: &PodName,
        uid: Option<&str>,
        cluster: &str,
    ) -> Result<Self, SidecarError> {
        let api: Api<Pod> = Api::namespaced(client.clone(), &name.namespace);
        loop {
            match tokio::time::timeout(CALL_LIMIT, api.get_opt(&name.name)).await {
                Ok(Ok(None)) => return Err(SidecarError::NoPod(name.clone())),
                Ok(Ok(Some(pod))) => {
                    let found = pod.metadata.uid.as_deref().unwrap_or_default();
                    if let Some(wanted) = uid.filter(|wanted| *wanted != found) {
                        let (found, wanted) = (found.to_owned(), wanted.to_owned());
                        return Err(SidecarError::AnotherPod { name: name.clone(), found, wanted });
                    }
                    if let Some(own) = Self::of(&pod, name, cluster) {
                        return Ok(own);
                    }
                    tracing::error!(pod = %name, "the base Pod lacks the label {}={}", names::SIDECAR, names::SIDECAR_YES);
                }
                Ok(Err(error)) => tracing::warn!(pod = %name, %error, "the base Pod was not looked up"),
                Err(_) => {
                    tracing::warn!(pod = %name, "the base Pod was not looked up: no answer in {CALL_LIMIT:?}");
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Whether the base goes for good, asked when the agent is told to end: else it only starts anew. kubelet ends this
    /// container when those of the base have ended.
    pub async fn is_ending(&self, client: &Client) -> bool {
        let api: Api<Pod> = Api::namespaced(client.clone(), &self.namespace);
        match tokio::time::timeout(CALL_LIMIT, api.get_opt(&self.pod)).await {
            Ok(Ok(pod)) => pod.is_none_or(|pod| {
                pod.metadata.uid.as_deref() != Some(&self.uid)
                    || pod.metadata.deletion_timestamp.is_some()
                    || pod
                        .status
                        .and_then(|status| status.phase)
                        .is_some_and(|phase| matches!(phase.as_str(), "Succeeded" | "Failed"))
            }),
            Ok(Err(_)) | Err(_) => false,
        }
    }

    /// Its Pod as the owner of an object in the same namespace.
    pub fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: self.pod.clone(),
            uid: self.uid.clone(),
            ..OwnerReference::default()
        }
    }
}

/// The policy as one agent for one base can keep it, and what is said of the rest, once.
pub fn alone(mut policy: Policy) -> (Policy, Option<String>) {
    let operations = &mut policy.operations;
    let (mut off, mut narrowed) = (Vec::new(), Vec::new());
    if operations.overload.mode != OverloadMode::Disabled {
        operations.overload.mode = OverloadMode::Disabled;
        off.push("self-healing (overload.mode)");
    }
    if operations.health.evict_silent_after.take().is_some() {
        off.push("health.evictSilentAfter");
    }
    if operations.install.downloads_at_once > 0 {
        narrowed.push("install.downloadsAtOnce");
    }
    narrowed.push("install.templateBackoff");
    let text = (!off.is_empty()).then(|| {
        format!(
            "an agent for one base does without {}; {} count for this base alone",
            some(off.into_iter(), usize::MAX),
            some(narrowed.into_iter(), usize::MAX)
        )
    });
    (policy, text)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};

    use super::*;

    /// Answers the n-th request with the n-th of these, the last one for ever.
    fn client(answers: Vec<(u16, Value)>) -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let at = count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
            let (status, body) = answers[at].clone();
            let body = kube::client::Body::from(body.to_string().into_bytes());
            async move {
                Ok::<_, Infallible>(http::Response::builder().status(status).body(body).expect("response"))
            }
        });
        (Client::new(service, "default"), asked)
    }

    fn status(code: u16) -> (u16, Value) {
        let reason = if code == 404 { "NotFound" } else { "InternalError" };
        (code, json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code}))
    }

    fn pod(labels: &Value) -> (u16, Value) {
        (200, json!({"metadata": {"namespace": "shop", "name": "base-0", "uid": "u", "labels": labels}}))
    }

    fn name() -> PodName {
        PodName::parse("shop/base-0").expect("a name")
    }

    #[test]
    fn a_pod_is_named_with_its_namespace() {
        assert_eq!(name().to_string(), "shop/base-0");
        for wrong in ["", "base-0", "/base-0", "shop/", "Shop/base", "shop/a/b", "shop/a_b"] {
            assert!(PodName::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_base_pod_is_waited_for_until_it_says_that_it_has_an_agent() {
        let (client, asked) = client(vec![
            status(500),
            status(403),
            pod(&json!({})),
            pod(&json!({names::SIDECAR: "true", names::STACK: "java"})),
        ]);
        let own = OwnBase::look_up(&client, &name(), Some("u"), "default").await.expect("found");
        assert_eq!(asked.load(Ordering::SeqCst), 4);
        assert_eq!((own.node.as_str(), own.uid.as_str()), ("virtual-node-java-shop-base-0", "u"));
        assert_eq!((own.owner().kind, own.owner().uid), ("Pod".to_owned(), "u".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_whose_pod_is_gone_does_not_start() {
        let (gone, _) = client(vec![status(404)]);
        assert!(matches!(
            OwnBase::look_up(&gone, &name(), None, "default").await,
            Err(SidecarError::NoPod(_))
        ));
        let (other, _) = client(vec![pod(&json!({names::SIDECAR: "true"}))]);
        let error = OwnBase::look_up(&other, &name(), Some("v"), "default").await.expect_err("another");
        assert!(error.to_string().contains("not v"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_starts_anew_is_told_from_one_whose_base_ends() {
        let own = OwnBase {
            namespace: "shop".to_owned(),
            pod: "base-0".to_owned(),
            uid: "u".to_owned(),
            node: "n".to_owned(),
        };
        let with = |uid: &str, deleted: bool, phase: &str| {
            let mut pod = json!({"metadata": {"name": "base-0", "uid": uid}, "status": {"phase": phase}});
            if deleted {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            client(vec![(200, pod)]).0
        };
        assert!(!own.is_ending(&with("u", false, "Running")).await);
        assert!(!own.is_ending(&with("u", false, "Pending")).await, "its base has not started yet");
        assert!(own.is_ending(&with("u", true, "Running")).await);
        assert!(own.is_ending(&with("u", false, "Failed")).await);
        assert!(own.is_ending(&with("v", false, "Running")).await);
        assert!(own.is_ending(&client(vec![status(404)]).0).await);
        assert!(!own.is_ending(&client(vec![status(500)]).0).await, "nothing is known");
    }

    #[test]
    fn what_needs_other_bases_is_off_and_said() {
        let mut policy = Policy::default();
        policy.operations.health.evict_silent_after = Some(Duration::from_mins(1));
        let (policy, said) = alone(policy);
        assert_eq!(policy.operations.overload.mode, OverloadMode::Disabled);
        assert_eq!(policy.operations.health.evict_silent_after, None);
        let said = said.expect("a warning");
        for part in ["overload.mode", "health.evictSilentAfter", "install.downloadsAtOnce"] {
            assert!(said.contains(part), "{said}");
        }

        let mut modest = Policy::default();
        modest.operations.overload.mode = OverloadMode::Disabled;
        assert!(modest.operations.install.downloads_at_once > 0);
        assert_eq!(alone(modest).1, None, "nothing is off that was asked for");
    }
}
