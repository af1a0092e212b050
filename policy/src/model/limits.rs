//! How much fits on a base.

use super::{BaseLike, BaseSelector, Quantity};

/// The limits of one base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Module Pods on the base; becomes `capacity.pods`.
    pub pods_per_base: u32,
    /// Modules on the base, foreign ones included; `None`: no limit.
    pub modules_per_base: Option<u32>,
    /// Versions of one name side by side, where the base can.
    pub versions_per_module: u32,
    /// What the base itself needs.
    pub reserved: Reserved,
}

/// Resources that the base itself needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// CPU.
    pub cpu: Quantity,
    /// Memory in bytes.
    pub memory: Quantity,
    /// Disk in bytes.
    pub ephemeral_storage: Quantity,
}

/// Limits of the bases of a selector. What is `None` is left to other entries and the defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitEntry {
    /// The bases.
    pub bases: BaseSelector,
    /// The numbers.
    pub values: LimitValues,
}

/// The numbers of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitValues {
    /// See [`Limits::pods_per_base`].
    pub pods_per_base: Option<u32>,
    /// See [`Limits::modules_per_base`].
    pub modules_per_base: Option<u32>,
    /// See [`Limits::versions_per_module`].
    pub versions_per_module: Option<u32>,
    /// See [`Limits::reserved`].
    pub reserved: ReservedValues,
}

/// Resources of an entry, each by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedValues {
    /// See [`Reserved::cpu`].
    pub cpu: Option<Quantity>,
    /// See [`Reserved::memory`].
    pub memory: Option<Quantity>,
    /// See [`Reserved::ephemeral_storage`].
    pub ephemeral_storage: Option<Quantity>,
}

impl ReservedValues {
    /// The larger of each; what is named nowhere stays `None`.
    fn largest(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
            ephemeral_storage: self.ephemeral_storage.max(other.ephemeral_storage),
        }
    }

    /// Whether nothing is named.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The resources, with `defaults` for what is not named.
    pub fn or(self, defaults: Reserved) -> Reserved {
        Reserved {
            cpu: self.cpu.unwrap_or(defaults.cpu),
            memory: self.memory.unwrap_or(defaults.memory),
            ephemeral_storage: self.ephemeral_storage.unwrap_or(defaults.ephemeral_storage),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pods_per_base: 1,
            modules_per_base: None,
            versions_per_module: 1,
            reserved: Reserved::default(),
        }
    }
}

pub(super) fn strictest(entries: &[LimitEntry], defaults: &Limits, base: &BaseLike<'_>) -> Limits {
    let least = |old: Option<u32>, new: Option<u32>| old.into_iter().chain(new).min();
    let mut found = LimitValues::default();
    for LimitEntry { values, .. } in entries.iter().filter(|entry| entry.bases.matches(base)) {
        found.pods_per_base = least(found.pods_per_base, values.pods_per_base);
        found.modules_per_base = least(found.modules_per_base, values.modules_per_base);
        found.versions_per_module = least(found.versions_per_module, values.versions_per_module);
        found.reserved = found.reserved.largest(values.reserved);
    }
    Limits {
        pods_per_base: found.pods_per_base.unwrap_or(defaults.pods_per_base),
        modules_per_base: found.modules_per_base.or(defaults.modules_per_base),
        versions_per_module: found.versions_per_module.unwrap_or(defaults.versions_per_module),
        reserved: found.reserved.or(defaults.reserved),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn entry(label: &str, values: LimitValues) -> LimitEntry {
        let labels = BTreeMap::from([("size".to_owned(), label.to_owned())]);
        LimitEntry { bases: BaseSelector { labels, ..BaseSelector::default() }, values }
    }

    #[test]
    fn the_strictest_of_the_matching_entries_wins() {
        let reserved = |cpu: &str, memory: &str| {
            let quantity = |text| Quantity::parse(text).unwrap();
            ReservedValues {
                cpu: Some(quantity(cpu)),
                memory: Some(quantity(memory)),
                ..ReservedValues::default()
            }
        };
        let some = |pods, modules, reserved| LimitValues {
            pods_per_base: pods,
            modules_per_base: modules,
            reserved,
            ..LimitValues::default()
        };
        let entries = [
            LimitEntry { values: some(Some(8), Some(24), reserved("500m", "1Gi")), ..LimitEntry::default() },
            entry("large", some(Some(4), None, reserved("250m", "2Gi"))),
            entry("small", some(Some(0), Some(1), ReservedValues::default())),
        ];
        let labels = BTreeMap::from([("size".to_owned(), "large".to_owned())]);
        let base = BaseLike { stack: "java", version: None, labels: &labels };
        let disk = Reserved { ephemeral_storage: Quantity::parse("5Gi").unwrap(), ..Reserved::default() };
        let limits = strictest(&entries, &Limits { reserved: disk, ..Limits::default() }, &base);
        assert_eq!(
            (limits.pods_per_base, limits.modules_per_base, limits.versions_per_module),
            (4, Some(24), 1)
        );
        assert_eq!(limits.reserved, reserved("500m", "2Gi").or(disk), "each resource by itself");
        let nothing = strictest(&[], &Limits { pods_per_base: 3, ..Limits::default() }, &base);
        assert_eq!(nothing.pods_per_base, 3);
    }
}
