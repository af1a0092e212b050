//! What is not kept of Pods: the parts that are large, that nobody here reads, and that every object has.

use k8s_openapi::api::core::v1::Pod;

/// kubectl keeps a copy of the whole object here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A Pod as it is kept: however it came here, so that one is the same as the other.
pub(crate) fn pod(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    pod
}
