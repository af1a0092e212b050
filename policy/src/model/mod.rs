//! The policy as values: what a checked policy file says, ready to be asked.

mod access;
mod artifacts;
mod compatibility;
mod glob;
mod limits;
mod operations;
mod patterns;
mod quantity;
mod scoring;
mod selector;

pub use access::AccessEntry;
pub use artifacts::{ArtifactEntry, allowed_by_default};
pub use compatibility::{CapabilityNeed, CompatibilityEntry, ModulePattern, Requirements};
pub use glob::Glob;
pub use limits::{LimitEntry, LimitValues, Limits, Reserved, ReservedValues};
pub use operations::{
    BackoffPolicy, BrakePolicy, DrainPolicy, ForeignModules, GatesPolicy, HealthPolicy, InstallPolicy,
    LethalPolicy, OperationsPolicy, OverloadMode, OverloadPolicy, WithoutPlace,
};
pub(crate) use patterns::Patterns;
pub use quantity::{Quantity, QuantityError};
pub use scoring::{Prefer, ScoreTerm, Term};
pub use selector::{BaseLike, BaseSelector};

use crate::version::Version;

/// A whole policy. The default is what holds without a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Limits where a selector matches.
    pub limits: Vec<LimitEntry>,
    /// Limits where no entry names one.
    pub defaults: Limits,
    /// Which namespaces may use which bases; `None`: every one.
    pub access: Option<Vec<AccessEntry>>,
    /// Where modules may come from; `None`: the default rule.
    pub artifacts: Option<Vec<ArtifactEntry>>,
    /// What modules need and what they do not bear.
    pub compatibility: Vec<CompatibilityEntry>,
    /// Weighted terms of the score; empty: every score is 0.
    pub scoring: Vec<ScoreTerm>,
    /// The filter answers with the best node only.
    pub decisive: bool,
    /// How the agent works.
    pub operations: OperationsPolicy,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            defaults: Limits::default(),
            access: None,
            artifacts: None,
            compatibility: Vec::new(),
            scoring: vec![ScoreTerm { term: Term::Spread, weight: 1 }],
            decisive: false,
            operations: OperationsPolicy::default(),
        }
    }
}

impl Policy {
    /// The limits of a base: of all entries that match the strictest number, else the default.
    pub fn limits_for(&self, base: &BaseLike<'_>) -> Limits {
        limits::strictest(&self.limits, &self.defaults, base)
    }

    /// The largest number of Pods that any base may have.
    pub fn most_pods_per_base(&self) -> u32 {
        let entries = self.limits.iter().filter_map(|entry| entry.values.pods_per_base);
        entries.chain([self.defaults.pods_per_base]).max().unwrap_or_default()
    }

    /// Modules that must be active before a module of this name and version is installed.
    pub fn required_modules<'a>(
        &'a self,
        name: &'a str,
        version: Option<&'a Version>,
    ) -> impl Iterator<Item = &'a ModulePattern> {
        let entries = self.compatibility.iter();
        entries
            .filter(move |entry| entry.module.matches(name, version) == Some(true))
            .flat_map(|entry| &entry.requirements.modules)
    }
}
