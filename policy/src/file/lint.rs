//! What is allowed, but probably not meant.

use super::{Problem, placement::Placement, reader::Report, tree::Position};
use crate::model::{BaseSelector, LimitEntry, Policy, Quantity, ReservedValues};

pub(super) fn check(policy: &Policy, placement: &Placement, report: &mut Report) {
    let mut warn = |at: Option<&(Position, String)>, message: &str| {
        let (line, column, path) =
            at.map_or((1, 1, String::new()), |(at, path)| (at.line, at.column, path.clone()));
        report.warnings.push(Problem {
            line,
            column,
            path,
            text: String::new(),
            message: message.to_owned(),
        });
    };
    if placement.any && policy.access.is_none() {
        warn(None, "without `access` every namespace may use every base");
    }
    if policy.access.as_ref().is_some_and(|access| access.iter().all(|entry| entry.namespaces.is_empty())) {
        warn(None, "`access` names no namespace, so no base takes a module");
    }
    if policy.artifacts.as_ref().is_some_and(Vec::is_empty) {
        warn(None, "`artifacts.allow` names nothing, so no module may come from anywhere");
    }
    for (index, entry) in policy.limits.iter().enumerate() {
        if never_matters(&policy.limits, index, entry) {
            warn(placement.limits_at.get(index), "this entry can never matter: others are always as strict");
        }
    }
    for (index, entry) in policy.compatibility.iter().enumerate() {
        let needs = &entry.requirements;
        let base = entry.base.as_ref().is_some_and(|base| !base.is_every_base());
        if !base && needs.provides.is_empty() && needs.modules.is_empty() && needs.conflicts.is_empty() {
            warn(placement.compatibility_at.get(index), "this entry asks for nothing");
        }
    }
}

/// Whether each number of the entry is as strict in an entry that speaks of at least the same bases. Of two equal
/// entries the later one is superfluous.
fn never_matters(all: &[LimitEntry], index: usize, entry: &LimitEntry) -> bool {
    let wider: Vec<&LimitEntry> = all
        .iter()
        .enumerate()
        .filter(|(other, candidate)| {
            *other != index
                && covers(&candidate.bases, &entry.bases)
                && (*candidate != entry || *other < index)
        })
        .map(|(_, candidate)| candidate)
        .collect();
    let strict = |mine: Option<u32>, theirs: fn(&LimitEntry) -> Option<u32>| {
        mine.is_none_or(|mine| wider.iter().any(|other| theirs(other).is_some_and(|theirs| theirs <= mine)))
    };
    let large = |mine: Option<Quantity>, theirs: fn(&ReservedValues) -> Option<Quantity>| {
        mine.is_none_or(|mine| wider.iter().any(|other| theirs(&other.values.reserved) >= Some(mine)))
    };
    let reserved = entry.values.reserved;
    strict(entry.values.pods_per_base, |other| other.values.pods_per_base)
        && strict(entry.values.modules_per_base, |other| other.values.modules_per_base)
        && strict(entry.values.versions_per_module, |other| other.values.versions_per_module)
        && large(reserved.cpu, |other| other.cpu)
        && large(reserved.memory, |other| other.memory)
        && large(reserved.ephemeral_storage, |other| other.ephemeral_storage)
}

fn covers(wide: &BaseSelector, narrow: &BaseSelector) -> bool {
    wide.stack.as_ref().is_none_or(|stack| narrow.stack.as_ref() == Some(stack))
        && wide.version.as_ref().is_none_or(|version| narrow.version.as_ref() == Some(version))
        && wide.labels.iter().all(|(key, value)| narrow.labels.get(key) == Some(value))
}
