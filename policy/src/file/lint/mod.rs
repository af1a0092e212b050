//! What is allowed, but probably not meant: entries that can never match or matter, and entries that contradict each
//! other. A warning is given only where it is sure, whatever the bases and modules are; so is the one error, of modules that
//! require each other in a circle.

mod access;
mod artifacts;
mod compatibility;
mod cycles;
mod limits;

use super::{Problem, placement::Placement, reader::Report, tree::Position};
use crate::model::{BaseSelector, Glob, Policy};

/// Entries of longer lists are not compared with each other: the work grows with the square.
const MOST_COMPARED: usize = 1000;

/// Where an entry stands.
type Place = (Position, String);

/// Takes warnings in.
struct Notes<'a> {
    report: &'a mut Report,
}

impl Notes<'_> {
    /// About the entry `index` of those that stand `at`: the policy cannot be meant, and is not taken.
    fn error(&mut self, at: &[Place], index: usize, message: String) {
        let (Position { line, column }, path) =
            at.get(index).cloned().unwrap_or_else(|| (Position { line: 1, column: 1 }, String::new()));
        self.report.problems.push(Problem { line, column, path, text: String::new(), message });
    }

    /// About the whole file.
    fn whole(&mut self, message: &str) {
        self.note(Position { line: 1, column: 1 }, String::new(), message.to_owned());
    }

    /// About the entry `index` of those that stand `at`.
    fn entry(&mut self, at: &[Place], index: usize, message: impl Into<String>) {
        let (at, path) =
            at.get(index).cloned().unwrap_or_else(|| (Position { line: 1, column: 1 }, String::new()));
        self.note(at, path, message.into());
    }

    fn note(&mut self, at: Position, path: String, message: String) {
        let Position { line, column } = at;
        self.report.warnings.push(Problem { line, column, path, text: String::new(), message });
    }
}

pub(super) fn check(policy: &Policy, placement: &Placement, report: &mut Report) {
    let mut notes = Notes { report };
    if placement.any && policy.access.is_none() {
        notes.whole("without `access` every namespace may use every base");
    }
    let lengths = [
        policy.limits.len(),
        policy.compatibility.len(),
        policy.access.as_ref().map_or(0, Vec::len),
        policy.artifacts.as_ref().map_or(0, Vec::len),
    ];
    if lengths.into_iter().any(|length| length > MOST_COMPARED) {
        notes.whole("a list has more than 1000 entries, so entries were not compared with each other");
        return;
    }
    access::check(policy, &placement.access_at, &mut notes);
    artifacts::check(policy, &placement.artifacts_at, &mut notes);
    limits::check(policy, &placement.limits_at, &mut notes);
    compatibility::check(policy, &placement.compatibility_at, &mut notes);
    cycles::check(policy, &placement.compatibility_at, &mut notes);
}

/// Whether every base that `narrow` means is meant by `wide`.
fn covers(wide: &BaseSelector, narrow: &BaseSelector) -> bool {
    wide.stack.as_ref().is_none_or(|stack| narrow.stack.as_ref() == Some(stack))
        && wide.version.as_ref().is_none_or(|version| narrow.version.as_ref() == Some(version))
        && wide.labels.iter().all(|(key, value)| narrow.labels.get(key) == Some(value))
}

/// Whether every name that `narrow` matches is matched by `wide`.
fn covers_names(wide: &Glob, narrow: &Glob) -> bool {
    wide == narrow || wide.is_everything() || !narrow.has_wildcard() && wide.matches(narrow.as_str())
}

/// The place of an entry in words.
fn named(at: &[Place], index: usize) -> &str {
    at.get(index).map_or("another entry", |(_, path)| path.as_str())
}

#[cfg(test)]
mod tests;
