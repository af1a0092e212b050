//! What is not kept of Pods: the parts that are large, that nobody here reads, and that every object has.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// kubectl keeps a copy of the whole object here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A base Pod, as discovery reads it.
pub(crate) fn base(mut pod: Pod) -> Pod {
    meta(&mut pod.metadata);
    pod
}

/// A VPod, as its actor keeps it: however it came here, so that one is the same as the other.
pub(crate) fn vpod(mut pod: Pod) -> Pod {
    meta(&mut pod.metadata);
    pod
}

fn meta(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
}
