//! A policy against a snapshot, before and after.

use std::collections::BTreeMap;

use crate::{contract::ModulePod, decide::decide, model::Policy, view::BaseView};

/// Where a Pod fits under two policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Bases that take it under the first policy.
    pub before: usize,
    /// Bases that take it under the second.
    pub after: usize,
    /// How often each reason's code is said under the second.
    pub rejected_after: BTreeMap<&'static str, usize>,
}

/// Asks both policies about every base.
pub fn compare(before: &Policy, after: &Policy, pod: &ModulePod, bases: &[BaseView<'_>]) -> Fit {
    let mut fit = Fit { before: 0, after: 0, rejected_after: BTreeMap::new() };
    for base in bases {
        fit.before += usize::from(decide(before, pod, base).is_ok());
        match decide(after, pod, base) {
            Ok(()) => fit.after += 1,
            Err(rejection) => *fit.rejected_after.entry(rejection.reason.code()).or_default() += 1,
        }
    }
    fit
}
