//! Which namespaces may use which bases.

use super::{BaseLike, BaseSelector, Glob};

/// Namespaces that may enter the bases of a selector.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessEntry {
    /// The bases.
    pub bases: BaseSelector,
    /// The namespaces.
    pub namespaces: Vec<Glob>,
}

impl AccessEntry {
    /// Whether the entry lets `namespace` use `base`.
    pub fn admits(&self, namespace: &str, base: &BaseLike<'_>) -> bool {
        self.bases.matches(base) && self.namespaces.iter().any(|glob| glob.matches(namespace))
    }
}
