//! `access`.

use super::{Notes, Place, covers, covers_names, named};
use crate::model::{AccessEntry, Glob, Policy};

/// Most characters of a namespace's name.
const LONGEST: usize = 63;

pub(super) fn check(policy: &Policy, at: &[Place], notes: &mut Notes<'_>) {
    let Some(access) = &policy.access else { return };
    if access.iter().all(|entry| entry.namespaces.is_empty()) {
        notes.whole("`access` names no namespace, so no base takes a module");
        return;
    }
    for (index, entry) in access.iter().enumerate() {
        if entry.namespaces.is_empty() {
            notes.entry(at, index, "this entry can never match: it names no namespace");
        }
        for namespace in entry.namespaces.iter().filter(|namespace| !can_be(namespace)) {
            let message = format!("`{namespace}` can never match: no namespace can have such a name");
            notes.entry(at, index, message);
        }
        let wider = access.iter().enumerate().find(|(other, candidate)| {
            *other != index && admits_all(candidate, entry) && (*candidate != entry || *other < index)
        });
        if let Some((other, _)) = wider.filter(|_| !entry.namespaces.is_empty()) {
            let message = format!("this entry can never matter: {} admits the same", named(at, other));
            notes.entry(at, index, message);
        }
    }
}

/// Lower-case letters, digits and `-`.
fn can_be(namespace: &Glob) -> bool {
    let text = namespace.as_str();
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '*');
    text.chars().all(fits)
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.chars().filter(|c| *c != '*').count() <= LONGEST
}

fn admits_all(wide: &AccessEntry, narrow: &AccessEntry) -> bool {
    covers(&wide.bases, &narrow.bases)
        && narrow
            .namespaces
            .iter()
            .all(|namespace| wide.namespaces.iter().any(|other| covers_names(other, namespace)))
}
