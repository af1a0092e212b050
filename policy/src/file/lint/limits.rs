//! `limits`.

use super::{Notes, Place, covers};
use crate::model::{LimitEntry, Policy, Quantity, ReservedValues};

pub(super) fn check(policy: &Policy, at: &[Place], notes: &mut Notes<'_>) {
    for (index, entry) in policy.limits.iter().enumerate() {
        if never_matters(&policy.limits, index, entry) {
            notes.entry(at, index, "this entry can never matter: others are always as strict");
        }
        let values = &entry.values;
        if let (Some(pods), Some(modules)) = (values.pods_per_base, values.modules_per_base)
            && pods > modules
        {
            let message = format!(
                "`podsPerBase` can never be reached: each of {pods} Pods has a module, but only {modules} modules fit"
            );
            notes.entry(at, index, message);
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
