//! One module of one VPod: what was found on the base, and so what is done next.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::lethal::{Caution, Flying};
use super::moving::{Moving, unwanted};
use super::state::{
    Desired, Memory, ModuleId, ModuleMemory, Observed, Operation, Reason, Removal, Rules, Want, Wanted,
    on_its_way,
};
use crate::arklet::{Biz, BizState};
use crate::vpod::probe::Failing;

/// Everything the next step of a module depends on.
pub(super) struct Surroundings<'a> {
    pub(super) desired: &'a BTreeMap<String, Desired>,
    pub(super) observed: &'a Observed,
    pub(super) memory: &'a Memory,
    pub(super) rules: &'a Rules,
    pub(super) now: Timestamp,
    pub(super) claims: &'a BTreeMap<ModuleId, String>,
    pub(super) moving: &'a Moving,
    pub(super) pod: &'a Desired,
    pub(super) module: &'a Wanted,
    /// An earlier container of the Pod that is not active.
    pub(super) before: Option<&'a str>,
    /// A required module that is not active, in words.
    pub(super) requires: Option<&'a str>,
    pub(super) name_busy: bool,
    pub(super) pod_busy: bool,
    pub(super) slot_free: bool,
    pub(super) flying: Flying,
}

impl Surroundings<'_> {
    /// What it wants comes free once it lets go of what it has, and whoever waits for that does the same.
    fn moves(&self) -> bool {
        self.moving.contains(&(self.pod.uid.clone(), self.module.id.name.clone()))
    }
}

/// What is done next for a module.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Active {
        since: Option<Timestamp>,
    },
    Wait {
        reason: Reason,
        message: String,
        until: Option<Timestamp>,
    },
    Adopt,
    Install,
    Switch,
    /// The removal may have to wait its turn; reason and message hold either way.
    Uninstall {
        id: ModuleId,
        reason: Reason,
        message: String,
    },
}

fn wait(reason: Reason, message: impl Into<String>) -> Step {
    Step::Wait { reason, message: message.into(), until: None }
}

pub(super) fn step(at: &Surroundings<'_>) -> Step {
    let id = &at.module.id;
    if !at.observed.answering {
        // A silent base does not make what was active inactive; whether it is ready is another question.
        return match at.observed.find(id) {
            Some(biz) if biz.state == BizState::Activated && ours(at) => {
                Step::Active { since: biz.activated_at() }
            }
            _ => wait(Reason::WaitingForBase, "the base does not answer yet"),
        };
    }
    if at.claims.get(id) != Some(&at.pod.uid) {
        return wait(Reason::SameModule, format!("{id} belongs to another VPod on this base"));
    }
    match at.observed.find(id) {
        Some(biz) => listed(at, biz),
        None => absent(at),
    }
}

fn ours(at: &Surroundings<'_>) -> bool {
    at.memory.owner(&at.module.id).is_some_and(|owner| owner.uid == at.pod.uid)
}

fn listed(at: &Surroundings<'_>, biz: &Biz) -> Step {
    let id = &at.module.id;
    if at.name_busy {
        return busy(at);
    }
    if let Some(step) = stopping(at, biz) {
        return step;
    }
    let Some(owner) = at.memory.owner(id) else { return adopt(at) };
    let same = owner.hash.is_empty() || owner.hash == at.module.hash;
    if owner.uid != at.pod.uid {
        if let Some(other) = at.desired.get(&owner.uid).filter(|pod| pod.living()) {
            if let Some(old) = own_old(at) {
                return release(at, old);
            }
            // One that cannot be read (any more) may want it still; whoever can be read does not, or it would claim it.
            let goes = other.removal != Removal::None
                || at.memory.pods.get(&other.uid).is_some_and(|memory| memory.failing.is_some())
                || matches!(other.want, Want::Modules(_));
            let reason = if goes { Reason::WaitingForOldVersion } else { Reason::SameModule };
            return wait(reason, format!("{id} still belongs to another VPod on this base"));
        }
        if same {
            return adopt(at);
        }
        if !at.memory.synced {
            return wait(Reason::Queued, "waits until all Pods of this base are known");
        }
        return replace(
            at,
            id.clone(),
            Reason::Queued,
            format!("{id} of an older VPod with another image or arguments goes first"),
        );
    }
    if !same {
        // What cannot come back does not go.
        return match at.requires {
            Some(needed) => wait(Reason::WaitingForModule, needed),
            None => release(at, id.clone()),
        };
    }
    match biz.state {
        BizState::Activated => unhealthy(at).unwrap_or(Step::Active { since: biz.activated_at() }),
        BizState::Deactivated => deactivated(at),
        BizState::Broken => broken(at),
        state if on_its_way(state) => starting(at),
        _ => wait(Reason::Installing, "in a state that is not known"),
    }
}

/// What its probes give up is taken off; the next turn finds it absent. While nothing may be changed it is left running.
fn unhealthy(at: &Surroundings<'_>) -> Option<Step> {
    let memory = at.memory.module(&at.pod.uid, &at.module.container)?;
    let failing = memory.failing().filter(|_| held(at).is_none())?;
    let (id, message) = (at.module.id.clone(), given_up(failing));
    Some(Step::Uninstall { id, reason: Reason::Unhealthy, message })
}

fn given_up(failing: &Failing) -> String {
    format!("{failing}; it is uninstalled and installed again")
}

/// Owners change only when nothing is held and everything is known.
fn adopt(at: &Surroundings<'_>) -> Step {
    if at.memory.held || at.pod.paused {
        return wait(Reason::Paused, "installs are paused");
    }
    Step::Adopt
}

fn replace(at: &Surroundings<'_>, id: ModuleId, reason: Reason, message: String) -> Step {
    match held(at) {
        Some(step) => step,
        None => Step::Uninstall { id, reason, message },
    }
}

/// The same VPod wants something else now: it leaves the traffic, then the old one goes.
fn release(at: &Surroundings<'_>, old: ModuleId) -> Step {
    if let Some(step) = held(at) {
        return step;
    }
    let message = format!("{old} goes before the new version comes");
    if at.memory.pods.get(&at.pod.uid).is_some_and(|memory| memory.withdrawn || !memory.running) {
        Step::Uninstall { id: old, reason: Reason::Releasing, message }
    } else {
        wait(Reason::Releasing, message)
    }
}

fn held(at: &Surroundings<'_>) -> Option<Step> {
    if at.memory.held || at.pod.paused {
        return Some(wait(Reason::Paused, "installs are paused"));
    }
    if at.observed.leaving {
        return Some(wait(Reason::BaseLeaving, "the base is leaving"));
    }
    None
}

fn busy(at: &Surroundings<'_>) -> Step {
    let name = &at.module.id.name;
    match at.memory.busy.get(name) {
        Some(busy) if busy.uid.as_deref() == Some(at.pod.uid.as_str()) && busy.id == at.module.id => {
            let (reason, message) = match busy.kind {
                Operation::Install => (Reason::Installing, "being installed"),
                Operation::Switch => (Reason::Installing, "loaded; being made the active version"),
                Operation::Uninstall => {
                    if let Some(failing) = memory(at).failing() {
                        return wait(Reason::Unhealthy, given_up(failing));
                    }
                    (Reason::Queued, "what was left of an earlier try is being uninstalled")
                }
            };
            wait(reason, message)
        }
        Some(busy) if busy.kind == Operation::Uninstall => {
            wait(Reason::WaitingForOldVersion, format!("{} is being uninstalled", busy.id))
        }
        // Planned in this very turn: what is listed under the name is what goes.
        None if at.observed.find(&at.module.id).is_none()
            && at.observed.others(&at.module.id).next().is_some() =>
        {
            wait(Reason::WaitingForOldVersion, format!("another version of {name} is being uninstalled"))
        }
        _ => wait(Reason::Queued, format!("another operation on {name} is on its way")),
    }
}

/// Whoever sent the uninstall: it is waited for, as long as one may take, before what is left is asked to go again.
fn stopping(at: &Surroundings<'_>, biz: &Biz) -> Option<Step> {
    if !biz.is_stopping() {
        return None;
    }
    let id = &at.module.id;
    let until = at.memory.stopping_until(id, at.rules).filter(|until| *until > at.now);
    let message = format!("{id} is being stopped by its base");
    if until.is_some() {
        return Some(Step::Wait { reason: Reason::Uninstalling, message, until });
    }
    ours(at).then(|| replace(at, id.clone(), Reason::Uninstalling, message))
}

fn starting(at: &Surroundings<'_>) -> Step {
    let until = at
        .memory
        .starting
        .get(&at.module.id)
        .and_then(|since| since.checked_add(at.rules.install_timeout).ok());
    match until {
        Some(until) if until <= at.now => {
            wait(Reason::InstallTimeout, "still starting after the time limit; not tried again while it is")
        }
        until => Step::Wait { reason: Reason::Installing, message: "starting".to_owned(), until },
    }
}

fn deactivated(at: &Surroundings<'_>) -> Step {
    let id = &at.module.id;
    if let Some(other) = at.observed.others(id).next() {
        return obstacle(at, other);
    }
    if let Some(step) = held(at).or_else(|| delayed(at)) {
        return step;
    }
    if memory(at).switched {
        return wait(Reason::Deactivated, "loaded, but the base did not make it the active version");
    }
    slot(at).unwrap_or(Step::Switch)
}

fn broken(at: &Surroundings<'_>) -> Step {
    if let Some(step) = held(at).or_else(|| delayed(at)) {
        return step;
    }
    let id = at.module.id.clone();
    let message = format!("{id} is broken on the base; it is uninstalled before the next try");
    Step::Uninstall { id, reason: Reason::Queued, message }
}

fn absent(at: &Surroundings<'_>) -> Step {
    if at.name_busy {
        return busy(at);
    }
    if let Some(step) = held(at) {
        return step;
    }
    if let Some(needed) = at.requires {
        return wait(Reason::WaitingForModule, needed);
    }
    let id = &at.module.id;
    // Also where versions may stand side by side: a release in place replaces.
    if let Some(old) = own_old(at) {
        return release(at, old);
    }
    let others: Vec<_> = at.observed.others(id).collect();
    let beside = at.observed.multi_version && others.len() < at.rules.versions_per_module;
    if let Some(other) = others.first().filter(|_| !beside) {
        return obstacle(at, other);
    }
    if let Some(container) = at.before {
        return wait(Reason::WaitingForModule, format!("waits for container {container} of this Pod"));
    }
    let caution = at.memory.caution(&at.pod.uid, at.module, at.flying, at.rules, at.now);
    if caution == Some(Caution::Held) {
        return wait(
            Reason::Lethal,
            "the base restarted shortly after each install of this module; held until its Pod is replaced, its image \
             changes, or stowage.dev/retry is set",
        );
    }
    if at.memory.exhausted {
        return wait(
            Reason::MetaspaceExhausted,
            "the base's class memory is used up; it must be replaced first",
        );
    }
    if let Some(step) = delayed(at).or_else(|| slot(at)) {
        return step;
    }
    caution.map_or(Step::Install, cautious)
}

fn cautious(caution: Caution) -> Step {
    let message =
        "the base died shortly after an install; what may have killed it is installed by itself".to_owned();
    let until = match caution {
        Caution::Until(until) => Some(until),
        Caution::Held | Caution::Alone => None,
    };
    Step::Wait { reason: Reason::Queued, message, until }
}

/// What another version under the same name, where it stands in the way, means for this one.
fn obstacle(at: &Surroundings<'_>, other: &Biz) -> Step {
    let id = ModuleId { name: other.name.clone(), version: other.version.clone() };
    match at.memory.owner(&id) {
        // Another VPod wants just this one, and is about to adopt it.
        None if at.claims.get(&id).is_some_and(|uid| *uid != at.pod.uid) => {
            wait(Reason::WaitingForOldVersion, format!("{id} is still on the base"))
        }
        None if at.rules.replace_foreign => {
            replace(at, id.clone(), Reason::Queued, format!("{id}, which is foreign, is replaced"))
        }
        None => wait(
            Reason::ForeignModule,
            format!("{id} is on the base and was not installed by us; it is left alone"),
        ),
        Some(owner) if owner.uid == at.pod.uid && !at.pod.modules().iter().any(|module| module.id == id) => {
            release(at, id)
        }
        Some(_) => wait(Reason::WaitingForOldVersion, format!("{id} is still on the base")),
    }
}

/// What the VPod has under this name and does not want any more, where it may go.
fn own_old(at: &Surroundings<'_>) -> Option<ModuleId> {
    unwanted(at.memory, at.observed, at.pod, &at.module.id).filter(|_| at.moves()).cloned()
}

fn memory(at: &Surroundings<'_>) -> ModuleMemory {
    at.memory.module(&at.pod.uid, &at.module.container).cloned().unwrap_or_default()
}

/// Back-off, of this Pod or of its template.
fn delayed(at: &Surroundings<'_>) -> Option<Step> {
    let memory = memory(at);
    if let Some(crashes) = memory.crash_loop(at.now) {
        let why = memory.ending.as_ref().map_or("its probes failed", |ending| &ending.message);
        let (wait, until) = (crashes.wait.as_secs(), crashes.until);
        let message =
            format!("back-off {wait}s before it is installed again: {why}; next after {}", shown(until));
        return Some(Step::Wait { reason: Reason::CrashLoopBackOff, message, until: Some(until) });
    }
    let own = memory.next_try.filter(|next| *next > at.now);
    let template = at.pod.not_before.filter(|next| *next > at.now);
    let until = own.max(template)?;
    let message = match (&memory.failure, own) {
        (Some(failure), Some(_)) => format!(
            "{failure}; attempt {} of {}, next after {}",
            memory.attempts,
            at.rules.attempts,
            shown(until)
        ),
        _ => format!("Pods of this template failed on several bases; next try after {}", shown(until)),
    };
    Some(Step::Wait { reason: Reason::InstallBackOff, message, until: Some(until) })
}

fn shown(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

fn slot(at: &Surroundings<'_>) -> Option<Step> {
    if at.pod_busy {
        return Some(wait(Reason::Queued, "another module of this Pod is being worked on"));
    }
    if !at.slot_free {
        return Some(wait(Reason::Queued, "as many installs as the policy allows are running on this base"));
    }
    None
}
