//! Terms `spread` and `pack`: free and used slots of the base.

use super::Share;
use crate::{contract::ModulePod, model::Limits, view::BaseView};

pub(super) fn free(pod: &ModulePod, base: &BaseView<'_>, limits: &Limits) -> Share {
    let Share { part, whole } = used(pod, base, limits);
    Share { part: whole.saturating_sub(part), whole }
}

/// Pods that are there or about to be, of as many as the base may take.
pub(super) fn used(pod: &ModulePod, base: &BaseView<'_>, limits: &Limits) -> Share {
    let taken = base.others(pod).count();
    Share { part: u64::try_from(taken).unwrap_or(u64::MAX), whole: u64::from(limits.pods_per_base).max(1) }
}
