//! The status of a VPod that has ended: pure, like that of one that lives. What is written here is never taken back.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use policy::contract::names;

use super::conditions::Conditions;
use super::render::{Place, known, place, whole};
use crate::arklet::without_credentials;

/// Reason of what ended because its module was taken off on purpose: no failure of its template.
pub const UNINSTALLED: &str = "Uninstalled";

/// What a JVM answers to the signal that ends its container (128 + SIGTERM), and so what a module that was told to end
/// answers: a Pod that ends so is Failed, and no run of a Job that came to its end.
const TOLD_TO_END: i32 = 143;

/// Renders a VPod that failed for good: `reason` is stable, `message` is for people.
pub fn failed(pod: &Pod, place_at: Option<&Place>, reason: &str, message: &str, now: Timestamp) -> PodStatus {
    let mut after = ended(pod, now, &End { reason, message, exit_code: 1 });
    if let Some(place_at) = place_at {
        place(&mut after, pod, place_at);
    }
    after.reason = Some(reason.to_owned());
    after.message = Some(message.to_owned());
    after
}

/// Renders the last status of a VPod whose modules are off the base while its object stays, as a kubelet does when the
/// containers of a Pod that is being deleted have ended. `why` is for people.
pub fn taken_off(pod: &Pod, why: &str, now: Timestamp) -> PodStatus {
    ended(pod, now, &End { reason: UNINSTALLED, message: why, exit_code: TOLD_TO_END })
}

struct End<'a> {
    reason: &'a str,
    message: &'a str,
    exit_code: i32,
}

fn ended(pod: &Pod, now: Timestamp, end: &End<'_>) -> PodStatus {
    let before = pod.status.clone().unwrap_or_default();
    let mut conditions = Conditions::of(&before, now);
    conditions.set(names::INSTALLED_CONDITION, false, Some(end.reason), Some(end.message.to_owned()));
    conditions.set(names::READY_GATE, false, Some("PodFailed"), None);
    conditions.set("ContainersReady", false, Some("PodFailed"), None);
    conditions.set("Ready", false, Some("PodFailed"), None);
    let mut after = before.clone();
    after.phase = Some("Failed".to_owned());
    after.start_time = before.start_time.clone().or_else(|| Some(whole(now)));
    after.observed_generation = pod.metadata.generation.or(after.observed_generation);
    after.conditions = Some(conditions.into_list());
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let statuses = containers.map(|container| {
        let known = known(&before, &container.name);
        let container_id = known.and_then(|status| status.container_id.clone());
        ContainerStatus {
            name: container.name.clone(),
            image: without_credentials(container.image.as_deref().unwrap_or_default()),
            ready: false,
            started: Some(false),
            restart_count: known.map_or(0, |status| status.restart_count),
            last_state: known.and_then(|status| status.last_state.clone()),
            container_id: container_id.clone(),
            state: Some(ContainerState {
                terminated: Some(terminated(known, container_id, now, end)),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        }
    });
    after.container_statuses = Some(statuses.collect());
    after
}

/// What never ran has a start all the same, the time of its end: without one, clients show the year 1.
fn terminated(
    known: Option<&ContainerStatus>,
    container_id: Option<String>,
    now: Timestamp,
    end: &End<'_>,
) -> ContainerStateTerminated {
    let running = known.and_then(|status| status.state.as_ref()?.running.as_ref()?.started_at.clone());
    ContainerStateTerminated {
        exit_code: end.exit_code,
        reason: Some(end.reason.to_owned()),
        message: Some(end.message.to_owned()),
        finished_at: Some(whole(now)),
        started_at: running.or_else(|| Some(whole(now))),
        container_id,
        ..ContainerStateTerminated::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Timestamp {
        "2026-01-02T03:04:05.678Z".parse().unwrap()
    }

    /// One container has run, the other one never did.
    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "generation": 3,
                "finalizers": ["batch.kubernetes.io/job-tracking"], "deletionTimestamp": "2026-01-02T03:04:00Z"},
            "spec": {"containers": [{"name": "shop", "image": "https://u:p@repo/shop.jar?sig=x"},
                {"name": "cart", "image": "https://repo/cart.jar"}]},
            "status": status,
        }))
        .unwrap()
    }

    fn running() -> Pod {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-02T03:00:00Z"});
        let conditions = ["PodScheduled", "Initialized", "x.io/lb", "Ready"].map(condition);
        pod(&json!({
            "phase": "Running", "podIP": "10.244.0.7", "startTime": "2026-01-02T02:59:00Z",
            "conditions": conditions,
            "containerStatuses": [{"name": "shop", "image": "", "imageID": "", "ready": true, "started": true,
                "restartCount": 2, "containerID": "arklet://10.244.0.7:shop:1.0",
                "lastState": {"terminated": {"exitCode": 1, "reason": "Vanished"}},
                "state": {"running": {"startedAt": "2026-01-02T03:00:00Z"}}},
                {"name": "cart", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "InstallBackOff"}}}],
        }))
    }

    #[test]
    fn a_pod_that_stays_without_its_modules_is_told_as_ended() {
        insta::assert_yaml_snapshot!(taken_off(&running(), "the Pod was deleted", now()));
    }

    #[test]
    fn what_has_ended_has_valid_times() {
        for status in [
            taken_off(&running(), "x", now()),
            taken_off(&pod(&json!({})), "x", now()),
            failed(&pod(&json!({})), None, "X", "x", now()),
            failed(&running(), None, "X", "x", now()),
        ] {
            assert!(status.start_time.is_some());
            for container in status.container_statuses.unwrap() {
                let end = container.state.unwrap().terminated.unwrap();
                let (start, finish) = (end.started_at.unwrap(), end.finished_at.unwrap());
                assert!(start <= finish && finish == whole(now()), "{start:?} {finish:?}");
                assert_eq!(start != finish, container.restart_count > 0, "the true start of what ran");
            }
        }
    }
}
