//! VPods that were changed in place to each other's versions: each has what another one wants, and none gives up what it
//! has before what it wants is free. Found here, so that all of them let go at once.

use std::collections::{BTreeMap, BTreeSet};

use super::requirements::{Base, Requirements};
use super::state::{Desired, Memory, ModuleId, Observed, Removal, Want};

/// VPods, by UID and module name, whose old version stands in nobody's way for longer than it takes to leave the traffic,
/// and who get what they want once all of them have let go.
pub(super) type Moving = BTreeSet<(String, String)>;

/// A VPod that wants another version of a module than the one it has.
struct Mover<'a> {
    has: &'a ModuleId,
    wants: &'a ModuleId,
}

/// Finds the largest set of VPods that are free to go on when all of them give up what they have.
pub(super) fn moving(base: &Base<'_>, requirements: &Requirements) -> Moving {
    let mut movers = movers(base, requirements);
    loop {
        let gone: BTreeSet<&ModuleId> = movers.values().map(|mover| mover.has).collect();
        let blocked: Vec<_> = movers
            .iter()
            .filter(|(_, mover)| !comes_free(base, mover.wants, &gone))
            .map(|(key, _)| key.clone())
            .collect();
        if blocked.is_empty() {
            return movers.into_keys().collect();
        }
        // What stays may block another one.
        for key in blocked {
            movers.remove(&key);
        }
    }
}

fn movers<'a>(base: &Base<'a>, requirements: &Requirements) -> BTreeMap<(String, String), Mover<'a>> {
    let mut movers = BTreeMap::new();
    for pod in base.desired.values().filter(|pod| moves(base, pod)) {
        for module in pod.modules() {
            let wants = &module.id;
            let has = unwanted(base.memory, base.observed, pod, wants);
            let there = base.observed.find(wants).is_some()
                && base.memory.owner(wants).is_some_and(|owner| owner.uid == pod.uid);
            let has = has.filter(|_| base.claims.get(wants) == Some(&pod.uid) && !there);
            // What cannot come back does not go.
            if let Some(has) = has
                && requirements.wait(&pod.uid, &module.container).is_none()
            {
                movers.insert((pod.uid.clone(), wants.name.clone()), Mover { has, wants });
            }
        }
    }
    movers
}

fn moves(base: &Base<'_>, pod: &Desired) -> bool {
    let failing = base.memory.pods.get(&pod.uid).is_some_and(|memory| memory.failing.is_some());
    pod.living()
        && pod.removal == Removal::None
        && !pod.paused
        && !failing
        && matches!(pod.want, Want::Modules(_))
}

/// The version under this name that the VPod has and does not want any more.
pub(super) fn unwanted<'a>(
    memory: &'a Memory,
    observed: &Observed,
    pod: &'a Desired,
    wants: &ModuleId,
) -> Option<&'a ModuleId> {
    let wanted = |id: &ModuleId| pod.modules().iter().any(|module| module.id == *id);
    memory.owned_by(&pod.uid).find(|id| id.name == wants.name && !wanted(id) && observed.find(id).is_some())
}

/// Whether this module is not there and has room once those are gone.
fn comes_free(base: &Base<'_>, id: &ModuleId, gone: &BTreeSet<&ModuleId>) -> bool {
    let stays =
        |name: &str, version: &str| !gone.iter().any(|gone| gone.name == name && gone.version == version);
    if base.observed.find(id).is_some_and(|biz| stays(&biz.name, &biz.version)) {
        return false;
    }
    let others = base.observed.others(id).filter(|biz| stays(&biz.name, &biz.version)).count();
    others == 0 || (base.observed.multi_version && others < base.rules.versions_per_module)
}
