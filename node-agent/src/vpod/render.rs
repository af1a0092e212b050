//! The status of a VPod: pure, from what the planner found and what the Pod shows already.
//!
//! Conditions that are not ours pass through untouched; times are kept where nothing changed, so that an
//! unchanged VPod renders to exactly what it shows, and nothing is written.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use policy::contract::names;

use super::conditions::Conditions;
use super::probe::Verdict;
use crate::arklet::without_credentials;
use crate::base::restart::Ending;
use crate::base::state::{ModuleState, PodView, Wanted};

/// Where a VPod runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// The base Pod's IP.
    pub ip: IpAddr,
    /// All of its IPs, `ip` first.
    pub ips: Vec<IpAddr>,
    /// IP of the real node.
    pub host_ip: Option<String>,
}

/// What a VPod that lives shows.
#[derive(Debug)]
pub struct Live<'a> {
    /// The Pod as last seen.
    pub pod: &'a Pod,
    /// Where it runs.
    pub place: &'a Place,
    /// What the planner found.
    pub view: &'a PodView,
    /// Its modules; empty while they could not be read.
    pub modules: &'a [Wanted],
    /// Why there are none, as reason and message.
    pub unreadable: Option<(&'static str, &'a str)>,
    /// By container: how often it had to be installed again.
    pub restarts: &'a BTreeMap<String, i32>,
    /// By container, where it is active and has probes: what they say.
    pub probes: &'a BTreeMap<String, Verdict>,
    /// By container: how its last run ended.
    pub endings: &'a BTreeMap<String, Ending>,
    /// Why the base does not count as answering, as reason and message; nothing is ready then.
    pub silent: Option<(&'static str, &'a str)>,
    /// When the agent first saw the binding.
    pub started: Timestamp,
    /// Now.
    pub now: Timestamp,
}

/// Seconds are all that the API keeps; a finer time would differ from what comes back.
pub(super) fn whole(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// Renders a VPod that lives.
pub fn live(facts: &Live<'_>) -> PodStatus {
    let before = facts.pod.status.clone().unwrap_or_default();
    let statuses: Vec<_> = containers(facts, &before);
    let not_ready: Vec<_> =
        statuses.iter().filter(|status| !status.ready).map(|status| status.name.clone()).collect();
    let installed = facts.view.installed();

    let mut conditions = Conditions::of(&before, facts.now);
    conditions.set("PodScheduled", true, None, None);
    conditions.set("Initialized", true, None, None);
    match first_waiting(facts) {
        Some((reason, message)) if !installed => {
            conditions.set(names::INSTALLED_CONDITION, false, Some(reason), Some(message));
        }
        _ if installed => conditions.set(names::INSTALLED_CONDITION, true, None, None),
        _ => conditions.set(names::INSTALLED_CONDITION, false, Some("Reading"), None),
    }
    let healthy = !statuses.is_empty() && not_ready.is_empty();
    if healthy {
        conditions.set(names::READY_GATE, true, None, None);
        conditions.set("ContainersReady", true, None, None);
    } else {
        let (reason, message) = why_not_ready(facts, &not_ready);
        conditions.set(names::READY_GATE, false, Some(reason), Some(message.clone()));
        let reason = if facts.silent.is_some() { reason } else { "ContainersNotReady" };
        conditions.set("ContainersReady", false, Some(reason), Some(message));
    }
    ready(&mut conditions, facts, healthy, &not_ready);

    let mut after = before.clone();
    place(&mut after, facts.pod, facts.place);
    after.conditions = Some(conditions.into_list());
    after.container_statuses = Some(statuses);
    after.phase = Some(if facts.view.running { "Running" } else { "Pending" }.to_owned());
    after.start_time = before.start_time.or_else(|| Some(whole(facts.started)));
    after.observed_generation = facts.pod.metadata.generation.or(after.observed_generation);
    after
}

pub(super) fn known<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    status.container_statuses.iter().flatten().find(|status| status.name == container)
}

pub(super) fn place(status: &mut PodStatus, pod: &Pod, place: &Place) {
    // One refused address freezes every Service that selects the Pod, so such a Pod shows none.
    let selectable = pod.metadata.labels.as_ref().is_some_and(|labels| !labels.is_empty());
    let shown = |ip: &IpAddr| !selectable || endpoint_address(*ip);
    if shown(&place.ip) {
        status.pod_ip = Some(place.ip.to_string());
        let ips = place.ips.iter().filter(|ip| shown(ip));
        status.pod_ips = Some(ips.map(|ip| PodIP { ip: ip.to_string() }).collect());
    }
    if let Some(host) = &place.host_ip {
        status.host_ip = Some(host.clone());
        status.host_ips = Some(vec![HostIP { ip: host.clone() }]);
    }
}

/// Whether EndpointSlices accept this address.
pub fn endpoint_address(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local)
}

fn containers(facts: &Live<'_>, before: &PodStatus) -> Vec<ContainerStatus> {
    let containers = facts.pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .map(|container| {
            let state =
                facts.view.modules.iter().find(|(name, _)| *name == container.name).map(|(_, state)| state);
            let module = facts.modules.iter().find(|module| module.container == container.name);
            let known = known(before, &container.name);
            let active = matches!(state, Some(ModuleState::Active { .. }));
            let verdict = facts.probes.get(&container.name).filter(|_| active);
            let restarts = facts.restarts.get(&container.name).copied().unwrap_or(0);
            let shown_restarts = known.map_or(0, |status| status.restart_count);
            let anew = restarts > shown_restarts;
            let id = module.map(|module| {
                format!("{}{}:{}", names::CONTAINER_ID_SCHEME, shown_ip(facts.place.ip), module.id)
            });
            ContainerStatus {
                name: container.name.clone(),
                image: without_credentials(container.image.as_deref().unwrap_or_default()),
                ready: active
                    && facts.silent.is_none()
                    && !facts.view.withdraw
                    && verdict.is_none_or(|verdict| verdict.unready.is_none()),
                started: Some(active && verdict.is_none_or(|verdict| verdict.started)),
                restart_count: restarts.max(shown_restarts),
                last_state: match facts.endings.get(&container.name) {
                    Some(ending) if anew => Some(last_state(known, ending)),
                    // The API server fills it in, empty, where we say nothing: no difference to be written again.
                    _ => known.and_then(|status| status.last_state.clone()),
                },
                container_id: if active { id.clone() } else { known.and_then(|s| s.container_id.clone()) },
                state: Some(container_state(facts, state, || {
                    let same = known.filter(|status| status.container_id == id && !anew);
                    let ended = if anew {
                        facts.endings.get(&container.name).map(|ending| ending.at)
                    } else {
                        known.and_then(|status| {
                            Some(status.last_state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
                        })
                    };
                    (
                        same.and_then(|status| status.state.as_ref()?.running.as_ref()?.started_at.clone()),
                        ended,
                    )
                })),
                ..ContainerStatus::default()
            }
        })
        .collect()
}

fn shown_ip(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// `known`: the start that is shown of this run, and when the run before it ended.
fn container_state(
    facts: &Live<'_>,
    state: Option<&ModuleState>,
    known: impl FnOnce() -> (Option<Time>, Option<Timestamp>),
) -> ContainerState {
    match state {
        Some(ModuleState::Active { since }) => {
            let (shown, ended) = known();
            let told = since.filter(|since| can_be_a_start(*since, facts, ended));
            let started_at = match (told, shown) {
                (Some(told), _) => whole(told),
                // What was shown once must not move with every rendering.
                (None, Some(shown)) => shown,
                (None, None) => whole(facts.now),
            };
            ContainerState {
                running: Some(ContainerStateRunning { started_at: Some(started_at) }),
                ..ContainerState::default()
            }
        }
        Some(ModuleState::Waiting { reason, message }) => waiting(reason.as_str(), message),
        None => {
            let (reason, message) = facts.unreadable.unwrap_or(("Reading", ""));
            waiting(reason, message)
        }
    }
}

/// Whether a module can have started then for this Pod. The base's clock may be off, either way: a start in the future,
/// before the Pod was made, or before its last run had ended, helps nobody.
fn can_be_a_start(at: Timestamp, facts: &Live<'_>, ended: Option<Timestamp>) -> bool {
    let created = facts.pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let earliest = created.max(ended);
    // The API keeps whole seconds.
    at <= facts.now && earliest.is_none_or(|earliest| at.as_second() >= earliest.as_second())
}

/// The run that a restart ended. Whoever reads the Pod later learns from it why there was one.
fn last_state(known: Option<&ContainerStatus>, ending: &Ending) -> ContainerState {
    let running = known.and_then(|status| status.state.as_ref()?.running.as_ref());
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 1,
            reason: Some(ending.cause.as_str().to_owned()),
            message: Some(ending.message.clone()),
            started_at: running.and_then(|running| running.started_at.clone()),
            finished_at: Some(whole(ending.at)),
            container_id: known.and_then(|status| status.container_id.clone()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then(|| message.to_owned()),
        }),
        ..ContainerState::default()
    }
}

/// The module that keeps the Pod from being installed: the first in back-off, else the first that waits.
fn first_waiting(facts: &Live<'_>) -> Option<(&'static str, String)> {
    if let Some((reason, message)) = facts.unreadable {
        return Some((reason, message.to_owned()));
    }
    let waiting = facts.view.modules.iter().filter_map(|(container, state)| match state {
        ModuleState::Waiting { reason, message } => Some((*reason, format!("{container}: {message}"))),
        ModuleState::Active { .. } => None,
    });
    waiting
        .min_by_key(|(reason, _)| *reason == crate::base::state::Reason::WaitingForModule)
        .map(|(reason, message)| (reason.as_str(), message))
}

fn why_not_ready(facts: &Live<'_>, not_ready: &[String]) -> (&'static str, String) {
    if let Some((reason, message)) = facts.silent {
        return (reason, message.to_owned());
    }
    if facts.view.withdraw {
        return ("LeavingTraffic", "the modules leave the traffic before they are replaced".to_owned());
    }
    let active = |container: &String| {
        let mut modules = facts.view.modules.iter();
        modules.any(|(name, state)| name == container && matches!(state, ModuleState::Active { .. }))
    };
    let probes: Vec<_> = facts
        .probes
        .iter()
        .filter(|(container, _)| active(container))
        .filter_map(|(container, verdict)| Some(format!("{container}: {}", verdict.unready.as_ref()?)))
        .collect();
    if facts.view.installed() && !probes.is_empty() {
        return ("ProbeFailed", probes.join("; "));
    }
    ("ModulesNotReady", unready_containers(not_ready))
}

fn unready_containers(not_ready: &[String]) -> String {
    format!("containers with unready status: [{}]", not_ready.join(" "))
}

/// Ready as kubelet computes it: all containers ready and every readiness gate True.
fn ready(conditions: &mut Conditions, facts: &Live<'_>, healthy: bool, not_ready: &[String]) {
    if !healthy {
        let (reason, message) = if facts.silent.is_some() || facts.view.withdraw {
            why_not_ready(facts, not_ready)
        } else {
            ("ContainersNotReady", unready_containers(not_ready))
        };
        conditions.set("Ready", false, Some(reason), Some(message));
        return;
    }
    let gates = facts.pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let closed: Vec<_> = gates
        .filter_map(|gate| match conditions.status(&gate.condition_type) {
            Some("True") => None,
            Some(status) => Some(format!(
                "the status of pod readiness gate \"{}\" is not \"True\", but {status}",
                gate.condition_type
            )),
            None => Some(format!(
                "corresponding condition of pod readiness gate \"{}\" does not exist.",
                gate.condition_type
            )),
        })
        .collect();
    if closed.is_empty() {
        conditions.set("Ready", true, None, None);
    } else {
        conditions.set("Ready", false, Some("ReadinessGatesNotReady"), Some(closed.join(", ")));
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
