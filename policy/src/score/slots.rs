//! Terms `spread` and `pack`: free and used slots of the base.

use super::Share;
use crate::{contract::ModulePod, model::Policy, view::BaseView};

pub(super) fn free(policy: &Policy, pod: &ModulePod, base: &BaseView<'_>) -> Share {
    let Share { part, whole } = used(policy, pod, base);
    Share { part: whole.saturating_sub(part), whole }
}

/// Pods that are there or about to be, of as many as the base may take.
pub(super) fn used(policy: &Policy, pod: &ModulePod, base: &BaseView<'_>) -> Share {
    let limit = policy.limits_for(&base.facts.like()).pods_per_base;
    let taken = base.others(pod).count();
    Share { part: u64::try_from(taken).unwrap_or(u64::MAX), whole: u64::from(limit).max(1) }
}
