//! The values that a base's planner works on: what VPods want, what the base lists, what is remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use policy::model::ModulePattern;

use super::lethal::{Key, Suspect, Tried};
pub use super::reason::Reason;
use super::restart::{CrashLoop, Ending};
use crate::arklet::{Biz, BizState, Failure};
use crate::vpod::probe::Failing;

/// A module by name and version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId {
    /// Name of the biz.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl std::fmt::Display for ModuleId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.name, self.version)
    }
}

/// One container of a VPod, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the container.
    pub container: String,
    /// Name and version of the module.
    pub id: ModuleId,
    /// URL of the jar; may carry credentials.
    pub url: String,
    /// Arguments of the module's main.
    pub args: Vec<String>,
    /// Hash of URL and arguments, kept with `owner`.
    pub hash: String,
}

/// What a bound Pod asks for, as far as it could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// Not read yet: a `ConfigMap` or a Secret is being fetched.
    Reading,
    /// Modules, in the order of the Pod.
    Modules(Vec<Wanted>),
    /// Cannot be installed as it stands; `Pending` with this reason.
    Unreadable {
        /// Why, stable.
        reason: Reason,
        /// For people.
        message: String,
    },
    /// No module Pod: Failed with reason `NotAModule`.
    NotAModule {
        /// For people; names the container.
        message: String,
    },
}

/// How far the removal of a VPod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Removal {
    /// Not being deleted.
    None,
    /// Leaves the traffic; its modules stay as they are.
    Draining,
    /// Its modules are uninstalled.
    Uninstalling,
}

/// A bound VPod as the planner sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// What it asks for.
    pub want: Want,
    /// Phase is Succeeded or Failed.
    pub terminal: bool,
    /// How far its removal has come.
    pub removal: Removal,
    /// The policy's objection, while nothing of it has been installed yet.
    pub rejected: Option<String>,
    /// Its namespace is paused.
    pub paused: bool,
    /// The memory of failures lets nothing of its template be tried before this.
    pub not_before: Option<Timestamp>,
    /// By container: modules that must be active before its own is installed.
    pub needs: BTreeMap<String, Vec<ModulePattern>>,
}

impl Desired {
    /// Whether it still stands for modules on the base.
    pub fn living(&self) -> bool {
        !self.terminal
    }

    /// Its modules, none while they could not be read.
    pub fn modules(&self) -> &[Wanted] {
        match &self.want {
            Want::Modules(modules) => modules,
            _ => &[],
        }
    }
}

/// What is known of the base right now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observed {
    /// The list below was read since the base (re)started and it still answers.
    pub answering: bool,
    /// Modules as last listed.
    pub modules: Vec<Biz>,
    /// Versions of one name may be active side by side (read from the base's declaration or seen).
    pub multi_version: bool,
    /// The base takes nothing new: it is leaving.
    pub leaving: bool,
}

impl Observed {
    /// The listed module.
    pub fn find(&self, id: &ModuleId) -> Option<&Biz> {
        self.modules.iter().find(|biz| biz.name == id.name && biz.version == id.version)
    }

    /// Listed under this name in other versions.
    pub fn others<'a>(&'a self, id: &'a ModuleId) -> impl Iterator<Item = &'a Biz> {
        self.modules.iter().filter(|biz| biz.name == id.name && biz.version != id.version)
    }
}

/// For which VPod we installed (or adopted) a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// `metadata.uid` of the VPod.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Hash of URL and arguments; empty where unknown.
    pub hash: String,
    /// An install whose answer was lost may still come true until then: the entry stays though nothing is listed.
    pub doubtful_until: Option<Timestamp>,
}

/// An operation on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// What is done.
    pub kind: Operation,
    /// The module.
    pub id: ModuleId,
    /// For which VPod; `None` for what nobody wants.
    pub uid: Option<String>,
    /// Since when.
    pub since: Timestamp,
}

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `installBiz`.
    Install,
    /// `switchBiz`.
    Switch,
    /// `uninstallBiz`.
    Uninstall,
}

/// What is remembered of one container of a VPod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleMemory {
    /// Transient failures in a row that count.
    pub attempts: u32,
    /// Failures in a row that are nobody's fault (base, lock); they only slow down.
    pub nudges: u32,
    /// Not tried again before this.
    pub next_try: Option<Timestamp>,
    /// The last failure of the row.
    pub failure: Option<Failure>,
    /// It was listed active when last looked at.
    pub active: bool,
    /// The module that was last listed active for this container.
    pub running: Option<ModuleId>,
    /// It has been active once for this VPod.
    pub was_active: bool,
    /// Times it vanished and had to be installed again.
    pub restarts: i32,
    /// `switchBiz` was tried since it was last active.
    pub switched: bool,
    /// Its probes say that it must be installed again, and that may be done.
    pub unhealthy: Option<Failing>,
    /// How its last run ended, as far as this process saw it.
    pub ending: Option<Ending>,
    /// Its probes fail again and again.
    pub crashes: Option<CrashLoop>,
}

/// What is remembered of one VPod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodMemory {
    /// By container name.
    pub modules: BTreeMap<String, ModuleMemory>,
    /// All of its modules have been active once: its phase is Running from then on.
    pub running: bool,
    /// Something of it was sent to the base: the policy is not asked again.
    pub accepted: bool,
    /// A module failed for good: the container's name and why. Everything is uninstalled, then it is Failed.
    pub failing: Option<(String, Failure)>,
    /// Release in place: it has left the traffic, the old version may go.
    pub withdrawn: bool,
}

/// What is remembered of the base: survives lists, restarts of its container and changes of the policy.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    /// All Pods bound at the start are known; before it nothing is uninstalled.
    pub synced: bool,
    /// Brake or pause: nothing is installed or uninstalled.
    pub held: bool,
    /// Namespaces that are paused: nothing of their VPods is uninstalled, wherever these are.
    pub paused: Arc<BTreeSet<String>>,
    /// Orphans whose VPod was not seen leaving are left alone until then.
    pub orphans_after: Option<Timestamp>,
    /// Owners in the order of their installs; replay follows it.
    pub owners: Vec<(ModuleId, Ownership)>,
    /// VPods seen leaving by a deletionTimestamp or a phase: their orphans need no delay.
    pub departed: BTreeSet<String>,
    /// Operations on their way, by module name.
    pub busy: BTreeMap<String, Busy>,
    /// By UID of the VPod.
    pub pods: BTreeMap<String, PodMemory>,
    /// Since when a module has been listed as starting.
    pub starting: BTreeMap<ModuleId, Timestamp>,
    /// Since when a module has been listed as being stopped.
    pub stopping: BTreeMap<ModuleId, Timestamp>,
    /// Uninstalls that failed: how often in a row and when the next may be sent.
    pub stuck: BTreeMap<ModuleId, (u32, Timestamp)>,
    /// What may have killed the base.
    pub lethal: BTreeMap<Key, Suspect>,
    /// The last installs, for `lethal`.
    pub recent: BTreeMap<Key, Tried>,
    /// Class memory is used up: nothing more is installed before the base was healed or restarted.
    pub exhausted: bool,
}

impl Memory {
    /// The owner of a module.
    pub fn owner(&self, id: &ModuleId) -> Option<&Ownership> {
        self.owners.iter().find(|(owned, _)| owned == id).map(|(_, owner)| owner)
    }

    /// Writes an owner down; an entry that exists keeps its place in the order.
    pub fn own(&mut self, id: &ModuleId, owner: Ownership) {
        match self.owners.iter_mut().find(|(owned, _)| owned == id) {
            Some((_, entry)) => *entry = owner,
            None => self.owners.push((id.clone(), owner)),
        }
    }

    /// Modules owned by this VPod, in the order of their installs.
    pub fn owned_by<'a>(&'a self, uid: &'a str) -> impl DoubleEndedIterator<Item = &'a ModuleId> {
        self.owners.iter().filter(move |(_, owner)| owner.uid == uid).map(|(id, _)| id)
    }

    /// What is remembered of one container.
    pub fn module(&self, uid: &str, container: &str) -> Option<&ModuleMemory> {
        self.pods.get(uid)?.modules.get(container)
    }

    /// Until when a module that its base is stopping is waited for: an uninstall that an earlier process sent, or whose
    /// answer was lost, still runs, and is not sent a second time.
    pub(super) fn stopping_until(&self, id: &ModuleId, rules: &Rules) -> Option<Timestamp> {
        self.stopping.get(id)?.checked_add(rules.longest_uninstall()).ok()
    }

    pub(super) fn module_mut(&mut self, uid: &str, container: &str) -> &mut ModuleMemory {
        self.pods.entry(uid.to_owned()).or_default().modules.entry(container.to_owned()).or_default()
    }
}

/// What the policy says about operations on this base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// `install.parallelPerBase`.
    pub parallel: usize,
    /// `install.timeout`.
    pub install_timeout: Duration,
    /// `install.attempts`.
    pub attempts: u32,
    /// `install.backoff.initial`.
    pub backoff_initial: Duration,
    /// `install.backoff.max`.
    pub backoff_max: Duration,
    /// `install.foreign: replace`.
    pub replace_foreign: bool,
    /// `install.lethal.restarts`.
    pub lethal_restarts: u32,
    /// `install.lethal.within`.
    pub lethal_within: Duration,
    /// `limits[].podsPerBase` of this base.
    pub pods_per_base: usize,
    /// `limits[].versionsPerModule` of this base.
    pub versions_per_module: usize,
}

impl Rules {
    /// An uninstall of a base that hangs keeps the module's name this long, not as long as an install.
    pub(super) fn longest_uninstall(&self) -> Duration {
        self.install_timeout.min(Duration::from_mins(1))
    }
}

/// What one container shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModuleState {
    /// Active since then, where the base tells.
    Active {
        /// By the base's clock.
        since: Option<Timestamp>,
    },
    /// Not active, and why.
    Waiting {
        /// Stable.
        reason: Reason,
        /// For people.
        message: String,
    },
}

/// What one VPod shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodView {
    /// By container name, in the order of the Pod.
    pub modules: Vec<(String, ModuleState)>,
    /// Its phase is Running (and stays it).
    pub running: bool,
    /// Leaves the traffic though it is not being deleted.
    pub withdraw: bool,
}

impl PodView {
    /// Whether all modules are active.
    pub fn installed(&self) -> bool {
        !self.modules.is_empty()
            && self.modules.iter().all(|(_, state)| matches!(state, ModuleState::Active { .. }))
    }
}

/// What the actor shall do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Read the truth, send `installBiz`, read the truth.
    Install {
        /// UID of the VPod.
        uid: String,
        /// What.
        module: Wanted,
    },
    /// Send `switchBiz`, read the truth.
    Switch {
        /// UID of the VPod.
        uid: String,
        /// Container of the VPod.
        container: String,
        /// Which module.
        id: ModuleId,
    },
    /// Send `uninstallBiz`, read the truth.
    Uninstall {
        /// Which module.
        id: ModuleId,
        /// For which VPod, where one lives.
        uid: Option<String>,
    },
    /// Write this VPod down as owner.
    Adopt {
        /// UID of the VPod.
        uid: String,
        /// Which module, and its hash.
        module: Wanted,
    },
    /// Write phase Failed: nothing of it is on the base any more.
    Fail {
        /// UID of the VPod.
        uid: String,
        /// Stable reason.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// Nothing of a deleted VPod is on the base any more: remove the object.
    Removed {
        /// UID of the VPod.
        uid: String,
    },
}

/// What the planner decided.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// In the order in which they shall begin.
    pub actions: Vec<Action>,
    /// By UID; terminal Pods have none.
    pub views: BTreeMap<String, PodView>,
    /// When to plan again though nothing happened.
    pub wake: Option<Timestamp>,
    /// The VPod that goes first though its modules and others require each other in a circle, and why.
    pub first: Option<(String, String)>,
    /// Modules of ours that no VPod wants and whose VPod was not seen leaving.
    pub orphans: u32,
}

/// Whether a state means that the module is still on its way.
pub(super) fn on_its_way(state: BizState) -> bool {
    matches!(state, BizState::Resolved | BizState::Unresolved | BizState::Stopped | BizState::Unknown)
}
