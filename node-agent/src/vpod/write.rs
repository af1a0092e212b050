//! Writes to VPods: status by merge patch on the version that was rendered, deletion by UID. One place does it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use tokio::time::timeout;

use crate::lease::Term;
use crate::trim;

/// Why nothing is written by an agent that another one may have replaced by now.
const OVER: &str = "this agent does not lead any more";
/// Longest time one call may take: few are under way at once. One that is given up may have been taken all the same; the
/// next try finds that.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Why a call gave nothing.
struct NoAnswer {
    /// Of the API server's answer, where there is one.
    code: Option<u16>,
    /// Free of credentials.
    text: String,
}

/// Waits for an answer, but not for ever.
async fn answer<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, NoAnswer> {
    match timeout(CALL_LIMIT, call).await {
        Ok(answer) => answer.map_err(|error| NoAnswer {
            code: if let kube::Error::Api(status) = &error { Some(status.code) } else { None },
            text: crate::arklet::without_credentials(&error.to_string()),
        }),
        Err(_) => Err(NoAnswer { code: None, text: format!("no answer in {CALL_LIMIT:?}") }),
    }
}

/// How a write of a status ended.
#[derive(Debug)]
pub enum Written {
    /// Taken; the Pod as it is now.
    Done(Box<Pod>),
    /// The Pod had changed; the Pod as it is now, to be rendered again.
    Conflict(Box<Pod>),
    /// The Pod (of this UID) is gone.
    Gone,
    /// The API server does not take such a write; the text is free of credentials.
    Refused(String),
    /// It was away, or could not answer; the text is free of credentials.
    Failed(String),
}

impl Written {
    /// Stable text for metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Done(_) => "ok",
            Self::Conflict(_) => "conflict",
            Self::Gone => "gone",
            Self::Refused(_) | Self::Failed(_) => "error",
        }
    }
}

/// The parts of a status that the agent owns, compared to see whether there is anything to write.
pub fn differs(pod: &Pod, status: &PodStatus) -> bool {
    pod.status.as_ref() != Some(status)
}

/// Writes a status onto exactly the version that it was rendered from. Lists are replaced as a whole, so a
/// Pod that has changed since must be rendered again: otherwise a gate set by someone else in between would
/// be taken back.
pub async fn status(client: &kube::Client, term: &Term, pod: &Pod, status: &PodStatus) -> Written {
    if !term.holds() {
        return Written::Failed(OVER.to_owned());
    }
    let (Some(namespace), Some(name)) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref())
    else {
        return Written::Gone;
    };
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let patch = json!({
        "metadata": {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version},
        "status": status,
    });
    match answer(api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))).await {
        Ok(pod) => Written::Done(Box::new(trim::pod(pod))),
        Err(NoAnswer { code: Some(404), .. }) => Written::Gone,
        Err(NoAnswer { code: Some(409), .. }) => match answer(api.get_opt(name)).await {
            Ok(Some(now)) if now.metadata.uid == pod.metadata.uid => {
                Written::Conflict(Box::new(trim::pod(now)))
            }
            Ok(_) => Written::Gone,
            Err(error) => Written::Failed(error.text),
        },
        Err(NoAnswer { code: Some(400 | 403 | 422), text }) => Written::Refused(text),
        Err(error) => Written::Failed(error.text),
    }
}

/// What came of an eviction that was not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// The Pod goes for it.
    Granted,
    /// The Pod was gone before.
    Gone,
}

/// Asks for the eviction of exactly this Pod, so that its budgets hold.
pub async fn evict(
    client: &kube::Client,
    term: &Term,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<Eviction, String> {
    if !term.holds() {
        return Err(OVER.to_owned());
    }
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let parameters = EvictParams {
        delete_options: Some(DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }),
        ..EvictParams::default()
    };
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    match answer(api.evict(name, &parameters)).await {
        Ok(_) => Ok(Eviction::Granted),
        Err(NoAnswer { code: Some(404 | 409), .. }) => Ok(Eviction::Gone),
        Err(error) => Err(error.text),
    }
}

/// Deletes exactly this Pod. `grace` is `None` for the Pod's own grace period. `Ok` also when it is gone.
pub async fn delete(
    client: &kube::Client,
    term: &Term,
    namespace: &str,
    name: &str,
    uid: &str,
    grace: Option<u32>,
) -> Result<(), String> {
    if !term.holds() {
        return Err(OVER.to_owned());
    }
    let parameters = DeleteParams {
        grace_period_seconds: grace,
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
        ..DeleteParams::default()
    };
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    match answer(api.delete(name, &parameters)).await {
        // 409: another Pod has the name.
        Ok(_) | Err(NoAnswer { code: Some(404 | 409), .. }) => Ok(()),
        Err(error) => Err(error.text),
    }
}
