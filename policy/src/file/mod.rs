//! The policy file: YAML, one or more documents, checked as a whole with all errors at once.

mod duration;
mod lint;
mod operations;
mod placement;
mod reader;
mod schema;
mod tree;

use std::fmt;

pub use schema::{operations_schema, placement_schema};

use crate::model::Policy;
use reader::{Field, Report};

/// Version of the format.
pub const API_VERSION: &str = "policy.stowage.dev/v1alpha1";
/// Kind of the documents about placement.
pub const PLACEMENT: &str = "PlacementPolicy";
/// Kind of the document about the agent.
pub const OPERATIONS: &str = "OperationsPolicy";
/// Most bytes of a file.
pub const LONGEST: usize = 1024 * 1024;

/// A policy file that is in order.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says.
    pub policy: Policy,
    /// What is allowed, but probably not meant.
    pub warnings: Vec<Problem>,
}

/// Something in a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The field, such as `limits[0].podsPerBase`; empty for the whole file.
    pub path: String,
    /// The text in question, cut to 80 characters.
    pub text: String,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, " (`{}`)", self.text) }
    }
}

/// Reads a whole policy file.
///
/// # Errors
/// Everything that is wrong with it, in the order of the text.
pub fn load(text: &str) -> Result<Loaded, Vec<Problem>> {
    let mut report = Report::default();
    let documents = tree::documents(text, &mut report);
    let mut policy = Policy::default();
    let mut placement = placement::Placement::default();
    let mut seen_operations = false;
    let mut known = 0usize;
    for document in &documents {
        let field = Field::document(document);
        match kind(&field, &mut report) {
            Some(PLACEMENT) => placement.read(&field, &mut report, &mut policy),
            Some(OPERATIONS) if seen_operations => {
                report.problem(&field, "a second OperationsPolicy: there may be one");
            }
            Some(OPERATIONS) => {
                seen_operations = true;
                operations::read(&field, &mut report, &mut policy.operations);
            }
            _ => continue,
        }
        known += 1;
    }
    if known == 0 && report.problems.is_empty() {
        report.at_start("the file holds no document");
    }
    placement.finish(&mut policy);
    if report.problems.is_empty() {
        lint::check(&policy, &placement, &mut report);
    }
    if !report.problems.is_empty() {
        report.problems.sort_by_key(|problem| (problem.line, problem.column));
        return Err(report.problems);
    }
    report.warnings.sort_by_key(|problem| (problem.line, problem.column));
    Ok(Loaded { policy, warnings: report.warnings })
}

/// What a document is; what else it says is of no interest where this is wrong.
fn kind(document: &Field<'_>, report: &mut Report) -> Option<&'static str> {
    let head = document.head(report)?;
    let version =
        head.required("apiVersion", report).and_then(|field| field.one_of(&[(API_VERSION, ())], report));
    let kinds = [(PLACEMENT, PLACEMENT), (OPERATIONS, OPERATIONS)];
    let kind = head.required("kind", report).and_then(|field| field.one_of(&kinds, report));
    version.and(kind)
}

#[cfg(test)]
mod tests;
