//! What the Node of a base must show. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeAddress, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use policy::contract::{BaseRevision, names};
use policy::model::Quantity as Amount;

use crate::base::{Health, Report};
use crate::discovery::BaseSpec;
use crate::healing::{Healing, Hindrance, Step};

/// Version of Kubernetes whose Node contract is kept; a valid version, because controllers parse it.
const KUBELET_VERSION: &str = concat!("v1.33.0-stowage-", env!("CARGO_PKG_VERSION"));
const LONGEST_LABEL: usize = 63;
const REGION: &str = "topology.kubernetes.io/region";
const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// What the flags say about every VNode.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Value of the virtual-node taint.
    pub taint_value: String,
    /// Whether the real node's topology labels are copied.
    pub copy_topology: bool,
    /// Capacity where nothing else is known.
    pub default_capacity: BTreeMap<String, Amount>,
    /// This agent's kubelet endpoint, where it is served.
    pub kubelet: Option<ServedEndpoint>,
}

/// Where this agent serves what a kubelet serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedEndpoint {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
    /// Every VNode leads to it, by its address instead of the base's; else only the one whose base has this address
    /// anyway, because the agent runs in its Pod.
    pub for_all: bool,
}

/// What the policy says about one base.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// `capacity.pods`.
    pub pods: u32,
    /// What the base itself needs, by resource.
    pub reserved: BTreeMap<String, Amount>,
    /// From this lowest use on metaspace is shown as short, in percent of max.
    pub metaspace_high_percent: u32,
}

/// What is known of the real node under a base.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostFacts {
    /// Its zone.
    pub zone: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Its operating system; `linux` unless known.
    pub os: Option<String>,
    /// Its architecture; `amd64` unless known.
    pub arch: Option<String>,
    /// What Pods may use of it.
    pub allocatable: BTreeMap<String, String>,
}

/// All that decides how the Node of one base looks.
#[derive(Debug, Clone, PartialEq)]
pub struct Show {
    /// The base.
    pub spec: Arc<BaseSpec>,
    /// Its real node.
    pub host: Arc<HostFacts>,
    /// The policy for it.
    pub limits: Limits,
    /// What its actor says.
    pub report: Arc<Report>,
    /// The brake holds the verdict that the base is silent: Ready stays as it is.
    pub silence_held: bool,
    /// The healing of the base, and what hinders it.
    pub healing: Option<(Healing, Option<Hindrance>)>,
}

/// One condition, without times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub type_: &'static str,
    /// Whether it holds.
    pub status: bool,
    /// `CamelCase`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What the Node must show. Labels, annotations and taints of others are not in here.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Labels of ours and of the base.
    pub labels: BTreeMap<String, String>,
    /// Annotations of ours; `None`: must not be there.
    pub annotations: BTreeMap<&'static str, Option<String>>,
    /// Taints of ours.
    pub taints: Vec<Taint>,
    /// Nothing new may come.
    pub leaving: bool,
    /// `spec.providerID`.
    pub provider_id: String,
    /// Addresses.
    pub addresses: Vec<NodeAddress>,
    /// `status.daemonEndpoints.kubeletEndpoint.Port`; 0: nobody serves it.
    pub kubelet_port: i32,
    /// What the base has.
    pub capacity: BTreeMap<String, Quantity>,
    /// What Pods may use.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Conditions; Ready is missing while there is no verdict, and then stays as it is.
    pub conditions: Vec<Condition>,
    /// `status.nodeInfo`.
    pub node_info: NodeSystemInfo,
}

impl Wanted {
    /// Nothing new may come any more.
    pub fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.taints.push(leaving_taint());
        }
    }
}

/// Renders the Node of a base.
pub fn render(show: &Show, frame: &Frame) -> Wanted {
    let Show { spec, host, report, healing, .. } = show;
    let (capacity, allocatable) = resources(show, frame);
    let endpoint = frame.kubelet.filter(|endpoint| endpoint.for_all || endpoint.ip == spec.ip);
    Wanted {
        labels: labels(spec, host, frame.copy_topology),
        annotations: annotations(spec, report, healing.as_ref().map(|(healing, _)| healing)),
        taints: taints(spec, frame, healing.as_ref().map(|(healing, _)| healing.step)),
        leaving: spec.leaving.is_some(),
        provider_id: format!("{}{}/{}/{}", names::PROVIDER_SCHEME, spec.cluster, spec.namespace, spec.uid),
        addresses: addresses(spec, endpoint),
        kubelet_port: endpoint.map_or(0, |endpoint| endpoint.port.into()),
        capacity,
        allocatable,
        conditions: conditions(show),
        node_info: NodeSystemInfo {
            architecture: architecture(host).to_owned(),
            operating_system: operating_system(host).to_owned(),
            kubelet_version: KUBELET_VERSION.to_owned(),
            container_runtime_version: format!(
                "arklet://{}",
                report.inventory.provides.get("arklet").map_or("unknown", String::as_str)
            ),
            machine_id: spec.uid.clone(),
            system_uuid: spec.uid.clone(),
            os_image: format!("{} base", spec.stack),
            ..NodeSystemInfo::default()
        },
    }
}

fn operating_system(host: &HostFacts) -> &str {
    host.os.as_deref().unwrap_or("linux")
}

fn architecture(host: &HostFacts) -> &str {
    host.arch.as_deref().unwrap_or("amd64")
}

/// An API server may prefer a host name to an address. Nobody resolves the VNode's, so where it must reach us there is
/// none.
fn addresses(spec: &BaseSpec, endpoint: Option<ServedEndpoint>) -> Vec<NodeAddress> {
    let ip = endpoint.map_or(spec.ip, |endpoint| endpoint.ip);
    let hostname = endpoint.is_none().then(|| address("Hostname", spec.node.clone()));
    std::iter::once(address("InternalIP", ip.to_string())).chain(hostname).collect()
}

fn address(type_: &str, address: String) -> NodeAddress {
    NodeAddress { type_: type_.to_owned(), address }
}

fn labels(spec: &BaseSpec, host: &HostFacts, copy_topology: bool) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = spec
        .labels
        .iter()
        .filter(|(key, _)| is_copied(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut set = |key: &str, value: &str| {
        labels.insert(key.to_owned(), value.to_owned());
    };
    set(names::MANAGED_BY, names::MANAGER);
    set(names::BASE_CLUSTER, &spec.cluster);
    set(names::STACK, &spec.stack);
    set(names::HOSTNAME, &spec.node);
    set("kubernetes.io/os", operating_system(host));
    set("kubernetes.io/arch", architecture(host));
    set("type", "virtual-kubelet");
    set("node.kubernetes.io/exclude-from-external-load-balancers", "true");
    if let Some(version) = &spec.version {
        set(names::VERSION, version);
        set(names::KOUPLELESS_VERSION, version);
        let mut parts = version.split(['.', '-', '_']).map_while(|part| part.parse::<u32>().ok());
        if let Some(major) = parts.next() {
            set(names::VERSION_MAJOR, &major.to_string());
            set(names::VERSION_MINOR, &parts.next().unwrap_or(0).to_string());
        }
    }
    // A Node's name may be longer than a label's value.
    if let Some(name) = spec.host.as_deref().filter(|name| name.len() <= LONGEST_LABEL) {
        set(names::HOST, name);
    }
    if let Some(zone) = &host.zone {
        set(names::ZONE, zone);
    }
    if copy_topology {
        for (key, value) in [(TOPOLOGY_ZONE, &host.zone), (REGION, &host.region)] {
            if let Some(value) = value {
                set(key, value);
            }
        }
    }
    labels
}

/// Whether a label of the base Pod goes to its VNode. Labels with a meaning of their own on Nodes, and ours, do not.
fn is_copied(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    let kubernetes = prefix == "kubernetes.io" || prefix.ends_with(".kubernetes.io");
    let ours = [names::HOST, names::ZONE, names::VERSION_MAJOR, names::VERSION_MINOR, names::BASE_CLUSTER];
    !kubernetes
        && !ours.contains(&key)
        && key != names::POD_TEMPLATE_HASH
        && key != names::CONTROLLER_REVISION_HASH
}

fn annotations(
    spec: &BaseSpec,
    report: &Report,
    healing: Option<&Healing>,
) -> BTreeMap<&'static str, Option<String>> {
    let revision = spec.revision.as_ref().zip(spec.created).map(|((workload, hash), created)| {
        BaseRevision { workload: workload.as_str().into(), hash: hash.as_str().into(), created }.to_string()
    });
    let mut inventory = report.inventory.clone();
    inventory.metaspace = inventory.metaspace.map(policy::contract::Metaspace::rounded);
    [
        (names::BASE, Some(format!("{}/{}", spec.namespace, spec.pod))),
        (names::BASE_UID, Some(spec.uid.clone())),
        (names::BASE_REVISION, revision),
        (names::INVENTORY, Some(inventory.to_annotation())),
        (names::HEALING, healing.map(Healing::to_annotation)),
    ]
    .into()
}

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint { key: key.to_owned(), value: Some(value.to_owned()), effect: effect.to_owned(), time_added: None }
}

/// Keeps new Pods off a VNode: `DaemonSets` ignore `unschedulable`.
pub(super) fn leaving_taint() -> Taint {
    taint(names::LEAVING_TAINT, "true", "NoSchedule")
}

fn taints(spec: &BaseSpec, frame: &Frame, healing: Option<Step>) -> Vec<Taint> {
    let mut taints = vec![taint(names::VIRTUAL_NODE_TAINT, &frame.taint_value, "NoExecute")];
    let effects: &[&str] = match healing {
        None | Some(Step::Waiting) => &[],
        Some(Step::Evicting | Step::Replacing) => &["NoSchedule"],
        Some(Step::Forcing) => &["NoSchedule", "NoExecute"],
    };
    taints.extend(effects.iter().map(|effect| taint(names::OVERLOAD_TAINT, "true", effect)));
    if spec.leaving.is_some() {
        taints.push(leaving_taint());
    }
    taints
}

fn resources(show: &Show, frame: &Frame) -> (BTreeMap<String, Quantity>, BTreeMap<String, Quantity>) {
    let Show { spec, host, limits, report, .. } = show;
    let read = |from: &BTreeMap<String, String>, name: &str| {
        from.get(name).and_then(|text| Amount::parse(text).ok())
    };
    let mut capacity = BTreeMap::new();
    for name in RESOURCES {
        let amount = read(&spec.resources, name)
            .or_else(|| read(&host.allocatable, name))
            .or_else(|| frame.default_capacity.get(name).copied());
        if let Some(amount) = amount {
            let reserved = limits.reserved.get(name).copied().unwrap_or_default();
            capacity.insert(name.to_owned(), Quantity(left(amount, reserved)));
        }
    }
    let mut allocatable = capacity.clone();
    let pods = if report.full { report.bound.min(limits.pods) } else { limits.pods };
    capacity.insert("pods".to_owned(), Quantity(limits.pods.to_string()));
    allocatable.insert("pods".to_owned(), Quantity(pods.to_string()));
    (capacity, allocatable)
}

/// What is left of an amount, at least nothing.
fn left(amount: Amount, reserved: Amount) -> String {
    let milli = amount.milli().saturating_sub(reserved.milli());
    if milli.is_multiple_of(1000) { (milli / 1000).to_string() } else { format!("{milli}m") }
}

fn conditions(show: &Show) -> Vec<Condition> {
    let Show { spec, report, limits, silence_held, healing, .. } = show;
    let fine = |type_, reason, message: &str| Condition {
        type_,
        status: false,
        reason,
        message: message.to_owned(),
    };
    let mut conditions: Vec<Condition> = ready(spec, report, *silence_held).into_iter().collect();
    conditions.extend([
        fine("MemoryPressure", "NotMeasured", "the memory of the base is watched by its own kubelet"),
        fine("DiskPressure", "NotMeasured", "the disk of the base is watched by its own kubelet"),
        fine("PIDPressure", "NotMeasured", "the processes of the base are watched by its own kubelet"),
        fine("NetworkUnavailable", "BaseNetwork", "modules use the network of the base Pod"),
        match healing {
            Some((healing, hindrance)) => overloaded(healing, *hindrance),
            None => metaspace(report, limits),
        },
    ]);
    conditions
}

fn ready(spec: &BaseSpec, report: &Report, silence_held: bool) -> Option<Condition> {
    let (status, reason, message) = match &report.health {
        Health::Answering if spec.ready => (true, "BaseAnswering", "the base answers".to_owned()),
        Health::Answering => (
            true,
            "BaseAnswering",
            "the base answers; its own Pod is not Ready, which decides nothing here".to_owned(),
        ),
        // An actor that has not asked yet knows nothing against the base.
        Health::Starting if spec.started => return None,
        Health::Starting => {
            (false, "BaseStarting", "the base container has not been ready since its start".to_owned())
        }
        Health::Silent { .. } if silence_held => return None,
        Health::Silent { since, reason } => {
            (false, "BaseSilent", format!("the base has not answered since {since:.0}: {reason}"))
        }
    };
    Some(Condition { type_: "Ready", status, reason, message })
}

fn overloaded(healing: &Healing, hindrance: Option<Hindrance>) -> Condition {
    let why = match healing.cause {
        crate::healing::Cause::Exhausted => "an install ended in an OutOfMemoryError of class memory",
        crate::healing::Cause::NotFreed => "metaspace is not freed when modules go",
    };
    let on_its_way = match healing.step {
        Step::Waiting => "healing is about to begin",
        Step::Evicting => "its modules are evicted within their budgets",
        Step::Forcing => "overload.evictionDeadline has passed: what is left is deleted",
        Step::Replacing => "the base Pod is evicted within its budget",
    };
    let what = hindrance.map_or(on_its_way, Hindrance::text);
    let (reason, message) = (healing.step.as_str(), format!("{why}; {what}"));
    Condition { type_: names::METASPACE_PRESSURE, status: true, reason, message }
}

fn metaspace(report: &Report, limits: &Limits) -> Condition {
    let figures = report.inventory.metaspace.and_then(|figures| Some((figures.lowest, figures.max?)));
    let (status, reason, message) = match figures {
        None => (false, "MetaspaceUnknown", "the base reports no limit of its metaspace"),
        Some((lowest, max))
            if u128::from(lowest) * 100 > u128::from(max) * u128::from(limits.metaspace_high_percent) =>
        {
            (
                true,
                "MetaspaceHigh",
                "the lowest use of metaspace since classes were unloaded is above the limit",
            )
        }
        Some(_) => (false, "MetaspaceFine", "metaspace is left"),
    };
    Condition { type_: names::METASPACE_PRESSURE, status, reason, message: message.to_owned() }
}

#[cfg(test)]
pub(crate) mod tests;
