//! `compatibility`: entries without effect, and modules that fit nowhere because two entries contradict each other.

use super::{Notes, Place, covers_names, named};
use crate::{
    model::{BaseSelector, CompatibilityEntry, ModulePattern, Policy},
    version::Range,
};

pub(super) fn check(policy: &Policy, at: &[Place], notes: &mut Notes<'_>) {
    let all = &policy.compatibility;
    for (index, entry) in all.iter().enumerate() {
        alone(index, entry, at, notes);
        if all.iter().take(index).any(|earlier| earlier == entry) {
            notes.entry(at, index, "this entry can never matter: it stands here twice");
            continue;
        }
        // Of a pair that contradicts each other the later one is named, where both speak of the same modules; else the
        // narrower one, whose modules fit nowhere.
        let others = all.iter().enumerate().filter(|(other, candidate)| {
            *other != index
                && covers_pattern(&candidate.module, &entry.module)
                && (*other < index || !covers_pattern(&entry.module, &candidate.module))
        });
        for (other, candidate) in others {
            if let Some(what) = contradiction(entry, candidate) {
                let place = named(at, other);
                notes.entry(at, index, format!("contradicts {place}, so these modules fit nowhere: {what}"));
            }
        }
        for (other, candidate) in all.iter().enumerate().filter(|(other, _)| *other != index) {
            if let Some(needed) = unwelcome(entry, candidate) {
                let place = named(at, other);
                let message = format!("contradicts {place}, by which `{needed}` does not bear these modules");
                notes.entry(at, index, message);
            }
        }
    }
}

/// What is wrong with an entry by itself.
fn alone(index: usize, entry: &CompatibilityEntry, at: &[Place], notes: &mut Notes<'_>) {
    let needs = &entry.requirements;
    let base = entry.base.as_ref().is_some_and(|base| !base.is_every_base());
    if !base && needs.provides.is_empty() && needs.modules.is_empty() && needs.conflicts.is_empty() {
        notes.entry(at, index, "this entry asks for nothing");
    }
    let own = &entry.module.name;
    for needed in needs.modules.iter().filter(|need| need.versions.is_none()) {
        if covers_names(&needed.name, own) {
            notes.entry(at, index, format!("`{}` always holds: the module itself is meant", needed.name));
        }
    }
    for unwanted in &needs.conflicts {
        if !own.has_wildcard() && unwanted.name == *own {
            let message = format!("`{own}` can never match: a module does not conflict with its own name");
            notes.entry(at, index, message);
        }
    }
    for needed in &needs.modules {
        // The module's own name is no conflict, so a need that it may fulfil itself contradicts nothing.
        let others = !needed.name.matches(own.as_str()) && !needed.name.has_wildcard();
        if others && needs.conflicts.iter().any(|unwanted| covers_pattern(unwanted, needed)) {
            let message =
                format!("requires `{}` and conflicts with it, so these modules fit nowhere", needed.name);
            notes.entry(at, index, message);
        }
    }
    for (place, need) in needs.provides.iter().enumerate() {
        let earlier = needs.provides.iter().take(place).filter(|other| other.name == need.name);
        if earlier.into_iter().any(|other| apart(need.versions.as_ref(), other.versions.as_ref())) {
            let message = format!("two ranges of `{}` have no version in common", need.name);
            notes.entry(at, index, message);
        }
    }
}

/// What two entries that speak of the same modules cannot both have.
fn contradiction(a: &CompatibilityEntry, b: &CompatibilityEntry) -> Option<String> {
    if let (Some(a), Some(b)) = (&a.base, &b.base)
        && let Some(what) = other_bases(a, b)
    {
        return Some(what);
    }
    for need in &a.requirements.provides {
        let mut others = b.requirements.provides.iter().filter(|other| other.name == need.name);
        if others.any(|other| apart(need.versions.as_ref(), other.versions.as_ref())) {
            return Some(format!("the ranges of `{}` have no version in common", need.name));
        }
    }
    for (needs, conflicts) in [(a, b), (b, a)] {
        let own = a.module.name.as_str();
        for needed in &needs.requirements.modules {
            let other = !needed.name.has_wildcard() && !needed.name.matches(own);
            let mut unwanted = conflicts.requirements.conflicts.iter();
            if other && unwanted.any(|unwanted| covers_pattern(unwanted, needed)) {
                return Some(format!("`{}` is required and a conflict", needed.name));
            }
        }
    }
    None
}

fn other_bases(a: &BaseSelector, b: &BaseSelector) -> Option<String> {
    if let (Some(a), Some(b)) = (&a.stack, &b.stack)
        && a != b
    {
        return Some(format!("no base has the stacks `{a}` and `{b}`"));
    }
    if apart(a.version.as_ref(), b.version.as_ref()) {
        return Some("the ranges of base versions have no version in common".to_owned());
    }
    let differs =
        a.labels.iter().find(|(key, value)| b.labels.get(*key).is_some_and(|other| other != *value));
    differs.map(|(key, _)| format!("no base has two values of the label `{key}`"))
}

/// A module that `entry` requires, and that by `other` does not bear the modules of `entry`.
fn unwelcome<'a>(entry: &'a CompatibilityEntry, other: &CompatibilityEntry) -> Option<&'a str> {
    let bears_not =
        other.requirements.conflicts.iter().any(|unwanted| covers_pattern(unwanted, &entry.module));
    let mut needs = entry.requirements.modules.iter();
    let needed = needs.find(|need| !need.name.has_wildcard() && covers_pattern(&other.module, need));
    let same = |name: &str| entry.module.name.matches(name);
    needed.filter(|_| bears_not).map(|need| need.name.as_str()).filter(|name| !same(name))
}

/// Whether every module that `narrow` means is meant by `wide`.
pub(super) fn covers_pattern(wide: &ModulePattern, narrow: &ModulePattern) -> bool {
    let versions = |wide: &Range| narrow.versions.as_ref().is_some_and(|narrow| narrow.is_within(wide));
    covers_names(&wide.name, &narrow.name) && wide.versions.as_ref().is_none_or(versions)
}

/// Whether two ranges that are both given have nothing in common.
fn apart(a: Option<&Range>, b: Option<&Range>) -> bool {
    a.zip(b).is_some_and(|(a, b)| a.is_disjoint(b))
}
