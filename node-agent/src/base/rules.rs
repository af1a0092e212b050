//! What the policy says for one base.

use policy::Policy;
use policy::model::ForeignModules;

use super::state::Rules;
use crate::discovery::BaseSpec;

/// The rules of a base.
pub(super) fn rules(policy: &Policy, spec: &BaseSpec) -> Rules {
    let limits = crate::rules::allowed(policy, spec);
    let install = &policy.operations.install;
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    Rules {
        parallel: count(install.parallel_per_base).max(1),
        install_timeout: install.timeout,
        attempts: install.attempts.max(1),
        backoff_initial: install.backoff.initial,
        backoff_max: install.backoff.max,
        replace_foreign: install.foreign == ForeignModules::Replace,
        lethal_restarts: install.lethal.restarts.max(1),
        lethal_within: install.lethal.within,
        pods_per_base: count(limits.pods_per_base),
        versions_per_module: count(limits.versions_per_module).max(1),
    }
}
