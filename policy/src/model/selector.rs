//! Which bases an entry speaks of.

use std::collections::BTreeMap;

use crate::{
    contract::BaseFacts,
    version::{Range, Version},
};

/// What a selector looks at. Both programs pass the labels of the `VNode`.
#[derive(Clone, Copy, Debug)]
pub struct BaseLike<'a> {
    /// Technology of the base.
    pub stack: &'a str,
    /// Version of the base, where it is known.
    pub version: Option<&'a Version>,
    /// Labels of its Node.
    pub labels: &'a BTreeMap<String, String>,
}

/// All parts that are given must hold; none given matches every base.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BaseSelector {
    /// Technology of the base.
    pub stack: Option<String>,
    /// Versions of the base; a base without a version is outside.
    pub version: Option<Range>,
    /// Labels the Node must have.
    pub labels: BTreeMap<String, String>,
}

impl BaseSelector {
    /// Whether `base` is meant.
    pub fn matches(&self, base: &BaseLike<'_>) -> bool {
        self.stack.as_ref().is_none_or(|stack| stack == base.stack)
            && self.version.as_ref().is_none_or(|range| base.version.is_some_and(|v| range.contains(v)))
            && self.labels_match(base.labels)
    }

    /// Whether the labels alone match.
    pub fn labels_match(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }

    /// Whether every base is meant.
    pub fn is_every_base(&self) -> bool {
        *self == Self::default()
    }
}

impl BaseFacts {
    /// The part of the facts that selectors look at.
    pub fn like(&self) -> BaseLike<'_> {
        BaseLike { stack: &self.stack, version: self.version.as_deref(), labels: &self.labels }
    }
}
