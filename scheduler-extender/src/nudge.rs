//! Wakes Pods that only we refused, once they would fit: an annotation on the Pod itself is the one change that wakes
//! this Pod and no other.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use policy::contract::names;
use serde_json::json;

use crate::http::Extender;
use crate::waiting::Refused;

/// What wakes kube-scheduler by itself needs no help; it is given this time.
const HEAD_START: Duration = Duration::from_millis(300);
/// Pods woken at most before the next [`HEAD_START`].
const MOST: usize = 20;
/// Pods that may rest are looked at again after this time.
const RESTING: Duration = Duration::from_secs(1);
/// Longest time for one write.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Wakes Pods for as long as the process lives.
///
/// # Errors
/// Never; the type fits [`service::tasks::Tasks`].
pub async fn run(extender: Arc<Extender>, client: Client) -> Result<(), Infallible> {
    let mut published = extender.cache.changes();
    let mut policy = extender.policy.clone();
    let mut again = false;
    loop {
        let rest = if again { RESTING } else { Duration::from_mins(5) };
        tokio::select! {
            Ok(()) = published.changed() => {}
            Ok(()) = policy.changed() => {}
            () = extender.refusals.notified() => {}
            () = tokio::time::sleep(rest) => {}
        }
        tokio::time::sleep(HEAD_START).await;
        // What was published meanwhile is in the snapshot that is looked at now.
        published.mark_unchanged();
        policy.mark_unchanged();
        let due = extender.due(Instant::now(), MOST);
        again = due.more;
        for refused in due.pods {
            if !nudge(&extender, &client, &refused).await {
                extender.not_woken(&refused);
                again = true;
            }
        }
    }
}

/// Whether the Pod need not be woken any more.
async fn nudge(extender: &Extender, client: &Client, refused: &Refused) -> bool {
    let pod = &refused.pod;
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    // With the UID a Pod made anew under the name is left alone.
    let patch =
        json!({"metadata": {"uid": &*pod.uid, "annotations": {names::NUDGED: Timestamp::now().to_string()}}});
    let (patch, parameters) = (Patch::Merge(patch), PatchParams::default());
    let written = tokio::time::timeout(CALL_LIMIT, api.patch_metadata(&pod.name, &parameters, &patch)).await;
    let (outcome, settled) = match written {
        Ok(Ok(_)) => {
            tracing::info!(pod = pod.key(), "woken: it fits now");
            ("woken", true)
        }
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409 | 422) => {
            extender.placed(&pod.uid);
            ("gone", true)
        }
        Ok(Err(error)) => {
            tracing::warn!(pod = pod.key(), %error, "not woken");
            ("failed", false)
        }
        Err(_) => {
            tracing::warn!(pod = pod.key(), "not woken in time");
            ("failed", false)
        }
    };
    extender.metrics.nudge(outcome);
    settled
}
