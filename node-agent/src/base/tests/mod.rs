//! The planner and its memory, without any I/O, and what the actor does around them.

mod actor;
mod converge;
mod failures;
mod lethal;
mod release;
mod requirements;
mod table;
mod unhealthy;
mod upheaval;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use policy::model::{Glob, ModulePattern};
use policy::version::Range;

use super::plan::plan;
use super::state::{
    Action, Desired, Memory, ModuleId, ModuleState, Observed, Ownership, Plan, Reason, Removal, Rules, Want,
    Wanted,
};
use super::transition::{Ended, Outcome};
use crate::arklet::{Biz, BizState};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn id(name: &str, version: &str) -> ModuleId {
    ModuleId { name: name.to_owned(), version: version.to_owned() }
}

fn rules() -> Rules {
    Rules {
        parallel: 2,
        install_timeout: Duration::from_mins(5),
        attempts: 5,
        backoff_initial: Duration::from_secs(2),
        backoff_max: Duration::from_mins(5),
        replace_foreign: false,
        lethal_restarts: 3,
        lethal_within: Duration::from_mins(1),
        pods_per_base: 10,
        versions_per_module: 1,
    }
}

fn biz(name: &str, version: &str, state: BizState) -> Biz {
    Biz {
        name: name.to_owned(),
        version: version.to_owned(),
        state,
        web_context_path: None,
        records: Vec::new(),
    }
}

fn wanted(name: &str, version: &str, hash: &str) -> Wanted {
    Wanted {
        container: name.to_owned(),
        id: id(name, version),
        url: format!("https://repo/{name}-{version}.jar"),
        args: Vec::new(),
        hash: hash.to_owned(),
    }
}

fn owner(uid: &str, hash: &str) -> Ownership {
    Ownership {
        uid: uid.to_owned(),
        namespace: "shop".to_owned(),
        name: uid.to_owned(),
        hash: hash.to_owned(),
        doubtful_until: None,
    }
}

/// A base with its VPods, as a test builds it.
struct Rig {
    desired: BTreeMap<String, Desired>,
    observed: Observed,
    memory: Memory,
    rules: Rules,
    now: Timestamp,
}

impl Rig {
    fn new() -> Self {
        Self {
            desired: BTreeMap::new(),
            observed: Observed { answering: true, ..Observed::default() },
            memory: Memory { synced: true, ..Memory::default() },
            rules: rules(),
            now: at(0),
        }
    }

    fn pod(mut self, uid: &str, modules: &[(&str, &str)]) -> Self {
        let modules = modules.iter().map(|(name, version)| wanted(name, version, "h")).collect();
        let created = at(self.desired.len().try_into().unwrap());
        self.desired.insert(
            uid.to_owned(),
            Desired {
                uid: uid.to_owned(),
                namespace: "shop".to_owned(),
                name: uid.to_owned(),
                created: Some(created),
                want: Want::Modules(modules),
                terminal: false,
                removal: Removal::None,
                rejected: None,
                paused: false,
                not_before: None,
                needs: BTreeMap::new(),
            },
        );
        self
    }

    /// All modules of a VPod require a module of this name.
    fn needs(self, uid: &str, name: &str, versions: Option<&str>) -> Self {
        let need = ModulePattern {
            name: Glob::new(name),
            versions: versions.map(|versions| Range::parse(versions).unwrap()),
        };
        self.edit(uid, |pod| {
            let containers: Vec<_> = pod.modules().iter().map(|module| module.container.clone()).collect();
            for container in containers {
                pod.needs.entry(container).or_default().push(need.clone());
            }
        })
    }

    fn edit(mut self, uid: &str, edit: impl FnOnce(&mut Desired)) -> Self {
        edit(self.desired.get_mut(uid).unwrap());
        self
    }

    fn listed(mut self, name: &str, version: &str, state: BizState) -> Self {
        self.observed.modules.push(biz(name, version, state));
        self.memory.listed(&self.observed.modules, &self.desired, self.now);
        self
    }

    fn owned(mut self, name: &str, version: &str, uid: &str, hash: &str) -> Self {
        self.memory.own(&id(name, version), owner(uid, hash));
        self
    }

    fn memory(mut self, edit: impl FnOnce(&mut Memory)) -> Self {
        edit(&mut self.memory);
        self
    }

    fn plan(&self) -> Plan {
        plan(&self.desired, &self.observed, &self.memory, &self.rules, self.now)
    }

    fn actions(&self) -> Vec<String> {
        self.plan().actions.iter().map(shown).collect()
    }

    fn reason(&self, uid: &str) -> Option<Reason> {
        let plan = self.plan();
        plan.views[uid].modules.iter().find_map(|(_, state)| match state {
            ModuleState::Waiting { reason, .. } => Some(*reason),
            ModuleState::Active { .. } => None,
        })
    }

    fn begin(&mut self, action: &Action) {
        self.memory.begin(action, &self.desired, self.now);
    }

    /// An operation of the container `name` ended with this outcome, and the base lists what it lists.
    fn end(&mut self, kind: super::state::Operation, uid: &str, module: &ModuleId, outcome: Outcome) {
        let ended = Ended {
            kind,
            id: module.clone(),
            uid: Some(uid.to_owned()),
            container: Some(module.name.clone()),
            outcome,
        };
        self.memory.ended(&ended, &self.observed, &self.rules, 0.5, self.now);
        self.memory.listed(&self.observed.modules.clone(), &self.desired, self.now);
    }
}

fn shown(action: &Action) -> String {
    match action {
        Action::Install { uid, module } => format!("install {} for {uid}", module.id),
        Action::Switch { uid, id, .. } => format!("switch {id} for {uid}"),
        Action::Uninstall { id, uid } => match uid {
            Some(uid) => format!("uninstall {id} for {uid}"),
            None => format!("uninstall {id}"),
        },
        Action::Adopt { uid, module } => format!("adopt {} for {uid}", module.id),
        Action::Fail { uid, reason, .. } => format!("fail {uid} {reason}"),
        Action::Removed { uid } => format!("removed {uid}"),
    }
}
