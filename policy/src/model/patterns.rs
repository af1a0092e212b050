//! Patterns that are asked together.

use super::ModulePattern;
use crate::version::Version;

/// Any of some patterns. Most name one module, and are found by it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns<'a> {
    /// Those without `*`, by [`order`].
    exact: Vec<&'a ModulePattern>,
    /// The others.
    wild: Vec<&'a ModulePattern>,
}

impl Patterns<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wild.is_empty()
    }

    /// Whether one of them may mean a module: a version that is not known may be the one.
    pub(crate) fn may_mean(&self, name: &str, version: Option<&Version>) -> bool {
        let from = self.exact.partition_point(|pattern| order(pattern.name.as_str()) < order(name));
        let named = self.exact.iter().skip(from).take_while(|pattern| pattern.name.as_str() == name);
        named.chain(&self.wild).any(|pattern| pattern.matches(name, version) != Some(false))
    }
}

impl<'a> FromIterator<&'a ModulePattern> for Patterns<'a> {
    fn from_iter<I: IntoIterator<Item = &'a ModulePattern>>(patterns: I) -> Self {
        let (wild, mut exact): (Vec<_>, Vec<_>) =
            patterns.into_iter().partition(|pattern| pattern.name.has_wildcard());
        exact.sort_by(|a, b| order(a.name.as_str()).cmp(&order(b.name.as_str())));
        Self { exact, wild }
    }
}

/// Lengths first: they lie beside the pointer, and mostly differ.
fn order(name: &str) -> (usize, &str) {
    (name.len(), name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{model::Glob, version::Range};

    proptest! {
        #[test]
        fn as_each_of_them_would_say(
            patterns in prop::collection::vec(("[ab*]{0,3}", prop::option::of(prop::sample::select(&["1.*", "2"][..]))), 0..8),
            name in "[ab]{0,3}",
            version in prop::option::of(prop::sample::select(&["1.4", "2"][..])),
        ) {
            let patterns: Vec<_> = patterns
                .iter()
                .map(|(name, range)| ModulePattern {
                    name: Glob::new(name),
                    versions: range.map(|range| Range::parse(range).unwrap()),
                })
                .collect();
            let version = version.map(|version| Version::parse(version).unwrap());
            let together: Patterns<'_> = patterns.iter().collect();
            prop_assert_eq!(together.is_empty(), patterns.is_empty());
            let each = patterns.iter().any(|pattern| pattern.matches(&name, version.as_ref()) != Some(false));
            prop_assert_eq!(together.may_mean(&name, version.as_ref()), each);
        }
    }
}
