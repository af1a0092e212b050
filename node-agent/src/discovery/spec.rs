//! What discovery knows of one base: a value made from its Pod, compared to see whether anything changed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use policy::contract::names;

/// A base as its Pod in the base cluster describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct BaseSpec {
    /// `--base-cluster-id`.
    pub cluster: String,
    /// Namespace of the base Pod.
    pub namespace: String,
    /// Name of the base Pod.
    pub pod: String,
    /// UID of the base Pod; every queued call and debt is tied to it.
    pub uid: String,
    /// Name of the VNode that stands for it.
    pub node: String,
    /// The base Pod's IP; the address of arklet.
    pub ip: IpAddr,
    /// All of its IPs, `ip` first.
    pub ips: Vec<IpAddr>,
    /// IP of the real node.
    pub host_ip: Option<String>,
    /// Name of the real node.
    pub host: Option<String>,
    /// arklet's port.
    pub port: u16,
    /// `java` unless labelled.
    pub stack: String,
    /// Version of the base application as labelled.
    pub version: Option<String>,
    /// Labels of the base Pod, unfiltered.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the base Pod that begin with `stowage.dev/`.
    pub annotations: BTreeMap<String, String>,
    /// The base container has been ready once since its start.
    pub started: bool,
    /// The base Pod's own Ready condition, shown but not acted on.
    pub ready: bool,
    /// Restarts of the base container; a rise means that the modules are gone.
    pub restarts: i32,
    /// Start of the running base container.
    pub started_at: Option<Timestamp>,
    /// Why the base is going, once it is.
    pub leaving: Option<Leaving>,
    /// Whether the base container has a `preStop` hook.
    pub pre_stop: bool,
    /// `cpu`, `memory`, `ephemeral-storage` of the base container: limits, else requests.
    pub resources: BTreeMap<String, String>,
    /// Workload name and revision hash (`pod-template-hash`, `controller-revision-hash`), where there is one.
    pub revision: Option<(String, String)>,
    /// The controller of the base Pod, where it has one.
    pub controller: Option<Controller>,
    /// Creation of the base Pod.
    pub created: Option<Timestamp>,
    /// The readiness gate for its modules, where the base Pod declares it.
    pub gate: Option<ModulesGate>,
}

impl BaseSpec {
    /// Whether an agent of its own, a container of its Pod, looks after it.
    pub fn has_sidecar(&self) -> bool {
        self.labels.get(names::SIDECAR).map(String::as_str) == Some(names::SIDECAR_YES)
    }
}

/// The controller of a base Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// Its kind, such as `ReplicaSet`.
    pub kind: String,
    /// Its UID.
    pub uid: String,
}

impl Controller {
    /// Whether it makes a new Pod for one that goes: the Pods of a Job may be its last, and a Node's are files on it.
    pub fn replaces(&self) -> bool {
        !matches!(self.kind.as_str(), "Job" | "Node")
    }
}

/// The readiness gate `stowage.dev/modules-ready` of a base Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModulesGate {
    /// The condition behind it, where there is one yet.
    pub condition: Option<GateCondition>,
    /// Since when the containers of the Pod have been ready, and only gates are waited for.
    pub waiting_since: Option<Timestamp>,
}

/// The condition behind the gate, as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateCondition {
    /// True.
    pub status: bool,
    /// `CamelCase`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Since when its status has been so.
    pub since: Option<Timestamp>,
}

/// Why a base is leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// The base Pod carries a deletionTimestamp.
    Deleted,
    /// The base Pod no longer matches the selector; it is never touched.
    Deselected,
    /// The base Pod ended (Succeeded or Failed).
    Ended,
}
