//! From a Pod of the base cluster to a [`BaseSpec`]. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use policy::contract::{names, node_name};

use super::{BaseSpec, Controller, GateCondition, Leaving, ModulesGate};

/// arklet's port where nothing else is said.
pub const DEFAULT_PORT: u16 = 1238;
/// Name of the base container where nothing else is said.
const BASE_CONTAINER: &str = "base";
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Why a Pod is no base yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotABase {
    /// An object without name, namespace or UID.
    #[error("the Pod has no name, namespace or UID")]
    Unnamed,
    /// It has no IP yet.
    #[error("the Pod has no IP")]
    NoIp,
    /// It does not run yet.
    #[error("the Pod does not run yet")]
    NotRunning,
    /// It has no container.
    #[error("the Pod has no container")]
    NoContainer,
    /// The annotation does not name a port.
    #[error("the annotation {key} is no port: {value:?}", key = names::ARKLET_PORT)]
    Port {
        /// The value found.
        value: String,
    },
}

/// Reads a base Pod. `before` is what was known of the same Pod: an IP that is gone from the status of an ended Pod is
/// still the one that counts, and a base that was ready once since its start stays so.
///
/// # Errors
/// When the Pod is no base (yet).
pub fn from_pod(pod: &Pod, cluster: &str, before: Option<&BaseSpec>) -> Result<BaseSpec, NotABase> {
    let meta = &pod.metadata;
    let (Some(name), Some(namespace), Some(uid)) = (&meta.name, &meta.namespace, &meta.uid) else {
        return Err(NotABase::Unnamed);
    };
    let before = before.filter(|spec| spec.uid == *uid);
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or_default();
    let leaving = if matches!(phase, "Succeeded" | "Failed") {
        Some(Leaving::Ended)
    } else {
        meta.deletion_timestamp.as_ref().map(|_| Leaving::Deleted)
    };
    if phase != "Running" && leaving.is_none() {
        return Err(NotABase::NotRunning);
    }
    let ips = match (ips(&status), before) {
        (ips, Some(before)) if ips.is_empty() => before.ips.clone(),
        (ips, _) => ips,
    };
    let ip = *ips.first().ok_or(NotABase::NoIp)?;

    let annotations = meta.annotations.clone().unwrap_or_default();
    let labels = meta.labels.clone().unwrap_or_default();
    let container = base_container(pod, &annotations).ok_or(NotABase::NoContainer)?;
    let state = status.container_statuses.iter().flatten().find(|state| state.name == container.name);
    let restarts = state.map_or(0, |state| state.restart_count);
    let started_at = state.and_then(running_since);
    let ready_now = state.is_some_and(|state| state.ready);
    let started =
        ready_now || before.is_some_and(|spec| spec.started && same_start(spec, restarts, started_at));
    let stack = label(&labels, names::STACK).unwrap_or(names::DEFAULT_STACK).to_owned();
    Ok(BaseSpec {
        cluster: cluster.to_owned(),
        node: node_name(&stack, namespace, name, cluster),
        port: port(&annotations)?,
        ip,
        ips,
        host_ip: status.host_ip.clone(),
        host: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        version: label(&labels, names::VERSION)
            .or_else(|| label(&labels, names::KOUPLELESS_VERSION))
            .map(str::to_owned),
        stack,
        started,
        ready: condition_is_true(&status, "Ready"),
        restarts,
        started_at,
        leaving,
        pre_stop: stops_slowly(container),
        resources: resources(container),
        revision: revision(pod, &labels),
        controller: controller(pod),
        created: meta.creation_timestamp.as_ref().map(|time| time.0),
        gate: modules_gate(pod, &status),
        annotations: annotations.into_iter().filter(|(key, _)| key.starts_with(names::PREFIX)).collect(),
        labels,
        namespace: namespace.clone(),
        pod: name.clone(),
        uid: uid.clone(),
    })
}

/// Whether the base container of a Pod has a `preStop` hook.
pub fn has_pre_stop(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    base_container(pod, &annotations).is_some_and(stops_slowly)
}

fn stops_slowly(container: &Container) -> bool {
    container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
}

/// Whether the base container still runs since the same start. A container that is down between two starts keeps its
/// restart count, so both must agree.
fn same_start(before: &BaseSpec, restarts: i32, started_at: Option<Timestamp>) -> bool {
    before.restarts == restarts && (started_at.is_none() || before.started_at == started_at)
}

fn running_since(state: &ContainerStatus) -> Option<Timestamp> {
    state.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(|time| time.0)
}

fn label<'a>(labels: &'a BTreeMap<String, String>, key: &str) -> Option<&'a str> {
    labels.get(key).map(String::as_str).filter(|value| !value.is_empty())
}

fn port(annotations: &BTreeMap<String, String>) -> Result<u16, NotABase> {
    match annotations.get(names::ARKLET_PORT) {
        None => Ok(DEFAULT_PORT),
        Some(value) => match value.trim().parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(NotABase::Port { value: value.chars().take(64).collect() }),
        },
    }
}

/// The container that is the base: annotated, else annotated for Koupleless, else named `base`, else the first. An
/// annotation that names no container of the Pod is passed over.
fn base_container<'a>(pod: &'a Pod, annotations: &BTreeMap<String, String>) -> Option<&'a Container> {
    let containers = &pod.spec.as_ref()?.containers;
    let named = |name: &str| containers.iter().find(|container| container.name == name);
    [names::CONTAINER, names::KOUPLELESS_CONTAINER_NAME]
        .iter()
        .filter_map(|key| annotations.get(*key))
        .find_map(|name| named(name.trim()))
        .or_else(|| named(BASE_CONTAINER))
        .or_else(|| containers.first())
}

fn ips(status: &k8s_openapi::api::core::v1::PodStatus) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    let all = status.pod_ip.iter().chain(status.pod_ips.iter().flatten().map(|entry| &entry.ip));
    for ip in all.filter_map(|ip| ip.parse().ok()) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    ips
}

fn condition_is_true(status: &k8s_openapi::api::core::v1::PodStatus, type_: &str) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == type_ && condition.status == "True")
}

fn resources(container: &Container) -> BTreeMap<String, String> {
    let Some(declared) = &container.resources else { return BTreeMap::new() };
    let amount = |name: &str| {
        let limit = declared.limits.as_ref().and_then(|limits| limits.get(name));
        limit.or_else(|| declared.requests.as_ref().and_then(|requests| requests.get(name)))
    };
    RESOURCES.iter().filter_map(|name| Some(((*name).to_owned(), amount(name)?.0.clone()))).collect()
}

/// The readiness gate for modules, where the Pod has it.
fn modules_gate(pod: &Pod, status: &k8s_openapi::api::core::v1::PodStatus) -> Option<ModulesGate> {
    let mut gates = pod.spec.as_ref()?.readiness_gates.iter().flatten();
    gates.find(|gate| gate.condition_type == names::MODULES_READY_GATE)?;
    let condition =
        |type_: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == type_);
    let ready = condition("ContainersReady").filter(|condition| condition.status == "True");
    Some(ModulesGate {
        condition: condition(names::MODULES_READY_GATE).map(|condition| GateCondition {
            status: condition.status == "True",
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
            since: condition.last_transition_time.as_ref().map(|time| time.0),
        }),
        waiting_since: ready.and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0),
    })
}

/// The controller of the Pod.
pub fn controller(pod: &Pod) -> Option<Controller> {
    let owner =
        pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(Controller { kind: owner.kind.clone(), uid: owner.uid.clone() })
}

/// The workload behind the Pod and the hash of its template. The controller of a Deployment's Pods is a `ReplicaSet`
/// named after the Deployment and the hash.
fn revision(pod: &Pod, labels: &BTreeMap<String, String>) -> Option<(String, String)> {
    let owner =
        pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    if let Some(hash) = label(labels, names::POD_TEMPLATE_HASH) {
        let workload = owner.name.strip_suffix(hash).and_then(|name| name.strip_suffix('-'));
        return Some((workload.unwrap_or(&owner.name).to_owned(), hash.to_owned()));
    }
    let hash = label(labels, names::CONTROLLER_REVISION_HASH)?;
    // A StatefulSet writes `<name>-<hash>` into the label, a DaemonSet the hash alone.
    let bare = hash.strip_prefix(owner.name.as_str()).and_then(|rest| rest.strip_prefix('-')).unwrap_or(hash);
    Some((owner.name.clone(), bare.to_owned()))
}

#[cfg(test)]
mod tests;
