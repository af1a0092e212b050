//! `artifacts.allow`.

use super::{Notes, Place, covers_names, named};
use crate::model::{ArtifactEntry, Policy};

pub(super) fn check(policy: &Policy, at: &[Place], notes: &mut Notes<'_>) {
    let Some(artifacts) = &policy.artifacts else { return };
    if artifacts.is_empty() {
        notes.whole("`artifacts.allow` names nothing, so no module may come from anywhere");
    }
    for (index, entry) in artifacts.iter().enumerate() {
        if entry.scheme == "file" && entry.host.as_ref().is_some_and(|host| !host.is_everything()) {
            notes.entry(at, index, "this entry can never match: a `file` URL has no host");
        }
        if entry.port.is_some() && entry.scheme == "file" {
            notes.entry(at, index, "this entry can never match: a `file` URL has no port");
        }
        let wider = artifacts.iter().enumerate().find(|(other, candidate)| {
            *other != index && admits_all(candidate, entry) && (*candidate != entry || *other < index)
        });
        if let Some((other, _)) = wider {
            let message = format!("this entry can never matter: {} allows the same", named(at, other));
            notes.entry(at, index, message);
        }
    }
}

/// Link-local hosts only where they are written out in both: no `*` reaches them.
fn admits_all(wide: &ArtifactEntry, narrow: &ArtifactEntry) -> bool {
    let hosts = match (&wide.host, &narrow.host) {
        (None, None) => true,
        (Some(wide), Some(narrow)) => wide == narrow || narrow.has_wildcard() && covers_names(wide, narrow),
        (None, Some(narrow)) => narrow.has_wildcard(),
        (Some(_), None) => false,
    };
    wide.scheme == narrow.scheme && hosts && (wide.port.is_none() || wide.port == narrow.port)
}
