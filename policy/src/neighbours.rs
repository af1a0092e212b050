//! Which Pods can stand in each other's way on a base, whatever the base.
//!
//! For callers that ask about thousands of bases and know of Pods that may be on their way to any of them: a Pod that
//! can hinder nobody need not be put into each [`crate::BaseView`].

use crate::{
    contract::ModulePod,
    model::{ModulePattern, Policy},
};

/// Whether `other`, which is on its way to a base or just arrived there, could make a rule refuse `pod` where `pod` would
/// fit without it. Says yes where that depends on the base; a no holds for every base.
pub fn may_hinder(policy: &Policy, pod: &ModulePod, other: &ModulePod) -> bool {
    // Limits and metaspace are counted. A path may be known only from the inventory, and only through its owner.
    limits_modules(policy)
        || (pod.metaspace.is_some() && other.metaspace.is_some())
        || pod.modules.iter().any(|module| module.context_path.is_some())
        || pod.modules.iter().any(|module| other.modules.iter().any(|theirs| theirs.name == module.name))
        || objects(policy, pod, other)
        || objects(policy, other, pod)
}

fn limits_modules(policy: &Policy) -> bool {
    policy.defaults.modules_per_base.is_some()
        || policy.limits.iter().any(|entry| entry.values.modules_per_base.is_some())
}

/// Whether `one` conflicts with modules of these names, in any version: which one is on the base only the agent may know.
fn objects(policy: &Policy, one: &ModulePod, other: &ModulePod) -> bool {
    let named = |pattern: &ModulePattern, pod: &ModulePod| {
        pod.modules.iter().any(|module| pattern.matches(&module.name, None) != Some(false))
    };
    let meant = |patterns: &[ModulePattern]| patterns.iter().any(|pattern| named(pattern, other));
    meant(&one.requirements.conflicts)
        || policy
            .compatibility
            .iter()
            .any(|entry| meant(&entry.requirements.conflicts) && named(&entry.module, one))
}
