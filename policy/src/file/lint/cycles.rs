//! Modules that require each other in a circle: none of them could be the first on a base.

use std::collections::VecDeque;

use super::{Notes, Place, compatibility::covers_pattern, named};
use crate::model::{CompatibilityEntry, ModulePattern, Policy};

/// One error for each circle, at its first entry.
pub(super) fn check(policy: &Policy, at: &[Place], notes: &mut Notes<'_>) {
    let all = &policy.compatibility;
    let next: Vec<Vec<(usize, &ModulePattern)>> = all.iter().map(|entry| required(entry, all)).collect();
    let mut told = vec![false; all.len()];
    for index in 0..all.len() {
        if told.get(index).is_none_or(|told| *told) {
            continue;
        }
        let Some(circle) = circle(&next, index) else { continue };
        let mut words = Vec::with_capacity(circle.len());
        for (entry, need) in &circle {
            if let Some(told) = told.get_mut(*entry) {
                *told = true;
            }
            words.push(format!("{} requires `{need}`", named(at, *entry)));
        }
        let message = format!("a circle, so none of these modules can be the first: {}", words.join(", "));
        notes.error(at, index, message);
    }
}

/// Entries whose modules are the only ones that fulfil a need of this entry. A need that a module of the entry may
/// fulfil itself holds nobody back.
fn required<'a>(
    entry: &'a CompatibilityEntry,
    all: &[CompatibilityEntry],
) -> Vec<(usize, &'a ModulePattern)> {
    let own = &entry.module.name;
    let mut found = Vec::new();
    for need in &entry.requirements.modules {
        let itself = match (own.has_wildcard(), need.name.has_wildcard()) {
            (true, true) => true,
            (true, false) => own.matches(need.name.as_str()),
            (false, _) => need.name.matches(own.as_str()),
        };
        if itself {
            continue;
        }
        let meant = all.iter().enumerate().filter(|(_, other)| covers_pattern(&other.module, need));
        found.extend(meant.map(|(index, _)| (index, need)));
    }
    found
}

/// The shortest way from an entry back to it: the entries on it, each with the need by which it goes on.
fn circle<'a>(
    next: &[Vec<(usize, &'a ModulePattern)>],
    from: usize,
) -> Option<Vec<(usize, &'a ModulePattern)>> {
    let mut came: Vec<Option<(usize, &ModulePattern)>> = vec![None; next.len()];
    let mut left = VecDeque::from([from]);
    while let Some(index) = left.pop_front() {
        for (to, need) in next.get(index).into_iter().flatten() {
            let Some(slot) = came.get_mut(*to).filter(|slot| slot.is_none()) else { continue };
            *slot = Some((index, need));
            left.push_back(*to);
        }
    }
    let mut way = Vec::new();
    let mut at = from;
    loop {
        let (before, need) = came.get(at).copied().flatten()?;
        way.push((before, need));
        if before == from {
            way.reverse();
            return Some(way);
        }
        at = before;
    }
}
