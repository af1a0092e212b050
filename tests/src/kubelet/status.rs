//! The status of a base Pod: pure.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use policy::contract::names;

/// What is with the base container.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum State {
    /// Not running: at first, and between two starts.
    Waiting { reason: &'static str, message: String },
    /// Running since.
    Running { since: Timestamp },
    /// Ended, and not started again.
    Ended { code: i32, at: Timestamp },
}

/// All the kubelet knows of a base Pod.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) ip: IpAddr,
    pub(super) host_ip: IpAddr,
    pub(super) started: Timestamp,
    pub(super) state: State,
    pub(super) ready: bool,
    pub(super) restarts: u32,
    /// How the container ended the last time, if it was restarted: exit code, when.
    pub(super) last: Option<(i32, Timestamp)>,
}

/// Whether the Pod's condition Ready is True.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// A condition of a Pod.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// The container that is the base: the annotated one, else `base`, else the first.
pub(super) fn base_container(pod: &Pod) -> Option<&Container> {
    let containers = &pod.spec.as_ref()?.containers;
    let named = [names::CONTAINER, names::KOUPLELESS_CONTAINER_NAME]
        .into_iter()
        .find_map(|key| pod.annotations().get(key))
        .map_or("base", String::as_str);
    containers.iter().find(|container| container.name == named).or(containers.first())
}

/// The status to write. Conditions keep their transition times where they did not change; those of readiness gates
/// are not touched.
pub(super) fn render(pod: &Pod, view: &View, now: Timestamp) -> PodStatus {
    let running = matches!(view.state, State::Running { .. });
    let containers_ready = running && view.ready;
    let closed_gate = closed_gate(pod);
    let phase = match view.state {
        State::Ended { code: 0, .. } => "Succeeded",
        State::Ended { .. } => "Failed",
        State::Waiting { .. } if view.restarts == 0 => "Pending",
        State::Waiting { .. } | State::Running { .. } => "Running",
    };
    let not_ready =
        (!containers_ready).then_some(("ContainersNotReady", "the base container is not ready".to_owned()));
    let gates = closed_gate.map(|gate| {
        (
            "ReadinessGatesNotReady",
            format!(
                "corresponding condition of pod readiness gate \"{gate}\" does not exist or is not True."
            ),
        )
    });
    let conditions = [
        ("PodReadyToStartContainers", true, None),
        ("Initialized", true, None),
        ("ContainersReady", containers_ready, not_ready.clone()),
        ("Ready", containers_ready && closed_gate.is_none(), not_ready.or(gates)),
    ];
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(
            conditions.into_iter().map(|(kind, holds, why)| transition(pod, kind, holds, why, now)).collect(),
        ),
        pod_ip: Some(view.ip.to_string()),
        pod_ips: Some(vec![PodIP { ip: view.ip.to_string() }]),
        host_ip: Some(view.host_ip.to_string()),
        host_ips: Some(vec![HostIP { ip: view.host_ip.to_string() }]),
        start_time: Some(Time(view.started)),
        container_statuses: Some(container_statuses(pod, view)),
        ..PodStatus::default()
    }
}

fn closed_gate(pod: &Pod) -> Option<&str> {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref())?;
    let open = |kind: &str| condition(pod, kind).is_some_and(|condition| condition.status == "True");
    gates.iter().map(|gate| gate.condition_type.as_str()).find(|kind| !open(kind))
}

fn transition(
    pod: &Pod,
    kind: &str,
    holds: bool,
    why: Option<(&'static str, String)>,
    now: Timestamp,
) -> PodCondition {
    let status = if holds { "True" } else { "False" };
    let since = condition(pod, kind)
        .filter(|before| before.status == status)
        .and_then(|before| before.last_transition_time.clone());
    let (reason, message) = why.unzip();
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.map(str::to_owned),
        message,
        last_transition_time: Some(since.unwrap_or(Time(now))),
        ..PodCondition::default()
    }
}

fn container_statuses(pod: &Pod, view: &View) -> Vec<ContainerStatus> {
    let base = base_container(pod).map(|container| container.name.as_str());
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    containers
        .iter()
        .map(|container| {
            // Containers beside the base are pretended: they run as long as the Pod does.
            let is_base = base == Some(container.name.as_str());
            let state = match &view.state {
                State::Waiting { .. } if !is_base => State::Running { since: view.started },
                state => state.clone(),
            };
            let running = matches!(state, State::Running { .. });
            let restarts = if is_base { view.restarts } else { 0 };
            let id = container_id(pod, &container.name, restarts);
            ContainerStatus {
                name: container.name.clone(),
                image: container.image.clone().unwrap_or_default(),
                image_id: String::new(),
                ready: running && (view.ready || !is_base),
                started: Some(running),
                restart_count: i32::try_from(restarts).unwrap_or(i32::MAX),
                state: Some(container_state(&state, view.started, &id)),
                last_state: view.last.filter(|_| is_base).map(|(code, at)| {
                    let before = container_id(pod, &container.name, restarts.saturating_sub(1));
                    container_state(&State::Ended { code, at }, view.started, &before)
                }),
                container_id: running.then_some(id),
                ..ContainerStatus::default()
            }
        })
        .collect()
}

fn container_id(pod: &Pod, container: &str, restarts: u32) -> String {
    format!("harness://{}-{container}-{restarts}", pod.uid().unwrap_or_default())
}

fn container_state(state: &State, started: Timestamp, id: &str) -> ContainerState {
    match state {
        State::Waiting { reason, message } => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some((*reason).to_owned()),
                message: Some(message.clone()).filter(|message| !message.is_empty()),
            }),
            ..ContainerState::default()
        },
        State::Running { since } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(*since)) }),
            ..ContainerState::default()
        },
        State::Ended { code, at } => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: *code,
                reason: Some(if *code == 0 { "Completed" } else { "Error" }.to_owned()),
                started_at: Some(Time(started)),
                finished_at: Some(Time(*at)),
                container_id: Some(id.to_owned()),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use serde_json::json;

    use super::*;

    fn pod(extra: &serde_json::Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "base", "uid": "u"},
            "spec": {"containers": [{"name": "agent", "image": "a"}, {"name": "base", "image": "b"}]},
        });
        for (key, value) in extra.as_object().unwrap() {
            pod[key] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn view(state: State) -> View {
        View {
            ip: Ipv4Addr::new(10, 244, 1, 1).into(),
            host_ip: Ipv4Addr::new(10, 244, 0, 1).into(),
            started: Timestamp::UNIX_EPOCH,
            state,
            ready: true,
            restarts: 0,
            last: None,
        }
    }

    fn status_of(status: &PodStatus, kind: &str) -> String {
        let conditions = status.conditions.as_ref().unwrap();
        conditions.iter().find(|condition| condition.type_ == kind).unwrap().status.clone()
    }

    #[test]
    fn a_running_base_is_ready() {
        let now = Timestamp::from_second(5).unwrap();
        let status = render(&pod(&json!({})), &view(State::Running { since: now }), now);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status_of(&status, "Ready"), "True");
        assert_eq!(status.pod_ip.as_deref(), Some("10.244.1.1"));
        assert!(status.container_statuses.unwrap().iter().all(|container| container.ready));
    }

    #[test]
    fn a_gate_holds_back_ready_but_not_the_containers() {
        let mut base = pod(&json!({}));
        base.spec.as_mut().unwrap().readiness_gates =
            serde_json::from_value(json!([{"conditionType": "stowage.dev/modules-ready"}])).unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let status = render(&base, &view(State::Running { since: now }), now);
        assert_eq!(status_of(&status, "ContainersReady"), "True");
        assert_eq!(status_of(&status, "Ready"), "False");
        base.status = serde_json::from_value(
            json!({"conditions": [{"type": "stowage.dev/modules-ready", "status": "True"}]}),
        )
        .unwrap();
        let status = render(&base, &view(State::Running { since: now }), now);
        assert_eq!(status_of(&status, "Ready"), "True");
        assert_eq!(status.conditions.unwrap().len(), 4, "the gate's condition is its writer's");
    }

    #[test]
    fn a_crash_waits_with_a_reason_and_keeps_the_phase() {
        let state = State::Waiting { reason: "CrashLoopBackOff", message: String::new() };
        let view = View { restarts: 1, last: Some((1, Timestamp::UNIX_EPOCH)), ..view(state) };
        let status = render(&pod(&json!({})), &view, Timestamp::UNIX_EPOCH);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status_of(&status, "Ready"), "False");
        let base = &status.container_statuses.unwrap()[1];
        assert_eq!(base.restart_count, 1);
        assert_eq!(base.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 1);
    }

    #[test]
    fn transition_times_move_with_the_status_only() {
        let base = pod(&json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            {"type": "ContainersReady", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"},
        ]}}));
        let now = Timestamp::from_second(5).unwrap();
        let conditions = render(&base, &view(State::Running { since: now }), now).conditions.unwrap();
        let time = |kind: &str| {
            let found = conditions.iter().find(|condition| condition.type_ == kind).unwrap();
            found.last_transition_time.clone().unwrap().0
        };
        assert_ne!(time("Ready"), now);
        assert_eq!(time("ContainersReady"), now);
    }

    #[test]
    fn the_annotation_names_the_base_container() {
        let named =
            pod(&json!({"metadata": {"name": "b", "annotations": {"stowage.dev/container": "agent"}}}));
        assert_eq!(base_container(&named).unwrap().name, "agent");
        assert_eq!(base_container(&pod(&json!({}))).unwrap().name, "base");
    }
}
