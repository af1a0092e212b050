//! VPods: read into modules, rendered into status, written, removed, probed.

mod conditions;
pub mod delete;
pub mod ended;
pub mod fields;
pub mod probe;
pub mod read;
pub mod render;
pub mod write;

use k8s_openapi::api::core::v1::Pod;

/// Whether it ran to its end, well or not.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}
