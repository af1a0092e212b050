//! What the fleet asks of a Pod. Pure.

use k8s_openapi::api::core::v1::Pod;
use policy::contract::module::{PodKind, classify};

pub(super) use crate::vpod::has_ended;

/// Neither ended nor on its way out.
pub(super) fn lives(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

/// What its condition says.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// How many modules it stands for: none where it is no module Pod.
pub(super) fn modules_of(pod: &Pod) -> usize {
    match classify(pod) {
        PodKind::Module(pod) => pod.modules.len(),
        PodKind::Incomplete(_) | PodKind::Foreign => 0,
    }
}
