//! Patterns that are asked together.

use super::ModulePattern;
use crate::{
    contract::{Beginning, Glance},
    version::Version,
};

/// Any of some patterns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns<'a> {
    all: Vec<&'a ModulePattern>,
    /// Of the names of those without `*`, ascending.
    glances: Vec<Glance>,
    /// Of those with one.
    beginnings: Vec<Beginning>,
}

impl Patterns<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether one of them may mean a name that looks so. No is certain.
    pub(crate) fn may_be(&self, glance: Glance) -> bool {
        self.glances.binary_search(&glance).is_ok()
            || self.beginnings.iter().any(|beginning| beginning.may_be_of(glance))
    }

    /// Whether one of them may mean a module: a version that is not known may be the one.
    pub(crate) fn may_mean(&self, name: &str, version: Option<&Version>) -> bool {
        self.all.iter().any(|pattern| pattern.matches(name, version) != Some(false))
    }
}

impl<'a> FromIterator<&'a ModulePattern> for Patterns<'a> {
    fn from_iter<I: IntoIterator<Item = &'a ModulePattern>>(patterns: I) -> Self {
        let all: Vec<_> = patterns.into_iter().collect();
        let (wild, exact): (Vec<_>, Vec<_>) =
            all.iter().map(|pattern| &pattern.name).partition(|name| name.has_wildcard());
        let mut glances: Vec<_> = exact.iter().map(|name| Glance::of(name.as_str())).collect();
        glances.sort_unstable();
        let beginnings = wild.iter().map(|name| Beginning::of(name.head())).collect();
        Self { all, glances, beginnings }
    }
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
            prop_assert!(together.may_be(Glance::of(&name)) || !each);
        }
    }
}
