//! What modules need and what they do not bear.

use super::{BaseSelector, Glob};
use crate::version::{Range, Version};

/// Needs and conflicts of some modules.
#[derive(Clone, Debug, PartialEq)]
pub struct CompatibilityEntry {
    /// The modules, by name and version.
    pub module: ModulePattern,
    /// What the base must be.
    pub base: Option<BaseSelector>,
    /// The rest.
    pub requirements: Requirements,
}

/// What must and what must not be on a base.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// Capabilities that the base must provide.
    pub provides: Vec<CapabilityNeed>,
    /// Modules that must be active there, or in the same Pod.
    pub modules: Vec<ModulePattern>,
    /// Modules that must not be there.
    pub conflicts: Vec<ModulePattern>,
}

/// A capability in some version.
#[derive(Clone, Debug, PartialEq)]
pub struct CapabilityNeed {
    /// Its name, such as `jdk`.
    pub name: String,
    /// Its versions; `None`: any.
    pub versions: Option<Range>,
}

/// Modules by name and version.
#[derive(Clone, Debug, PartialEq)]
pub struct ModulePattern {
    /// Names.
    pub name: Glob,
    /// Versions; `None`: all.
    pub versions: Option<Range>,
}

impl ModulePattern {
    /// `None` where the name matches and the version decides, but is not known.
    pub fn matches(&self, name: &str, version: Option<&Version>) -> Option<bool> {
        if !self.name.matches(name) {
            return Some(false);
        }
        let Some(range) = &self.versions else { return Some(true) };
        version.map(|version| range.contains(version))
    }
}

impl std::fmt::Display for ModulePattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.name)?;
        self.versions.as_ref().map_or(Ok(()), |versions| write!(f, " {versions}"))
    }
}
