//! What tells most module names apart without reading them: a decision about thousands of bases mostly asks whether a name
//! is there that is not, and names lie all over the memory.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    iter::repeat_n,
};

use super::InventoryModule;
use crate::version::Version;

/// How many bytes of a name are in its glance.
const HEAD: usize = 4;

/// The first bytes of a name, and half a hash of all. Equal for equal names, and seldom for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glance(u64);

impl Glance {
    pub(crate) fn of(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(head(name.bytes()) | hasher.finish() >> (8 * HEAD))
    }
}

/// The first bytes in the upper half, zeros where there are fewer.
fn head(bytes: impl Iterator<Item = u8>) -> u64 {
    let padded = bytes.chain(repeat_n(0, HEAD)).take(HEAD);
    padded.fold(0, |head, byte| head << 8 | u64::from(byte)) << (8 * HEAD)
}

/// What the glances of all names have in common that begin alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    mask: u64,
    bits: u64,
}

impl Beginning {
    pub(crate) fn of(prefix: &str) -> Self {
        Self { mask: head(repeat_n(u8::MAX, prefix.len())), bits: head(prefix.bytes()) }
    }

    /// Whether a name may begin so. No is certain.
    pub(crate) fn may_be_of(self, glance: Glance) -> bool {
        glance.0 & self.mask == self.bits
    }
}

/// What decisions look up about the modules of an inventory, in its order.
#[derive(Clone, Debug, Default)]
pub struct ModuleIndex {
    /// Of their names.
    pub(crate) glances: Box<[Glance]>,
    /// As far as they are versions.
    pub(crate) versions: Box<[Option<Version>]>,
}

impl ModuleIndex {
    /// Of these modules, all of them.
    pub fn of(modules: &[InventoryModule]) -> Self {
        Self {
            glances: modules.iter().map(|module| Glance::of(&module.name)).collect(),
            versions: modules.iter().map(|module| Version::parse(&module.version).ok()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_told_apart() {
        let glances = ["", "shop", "shop-1", "shop-2", "cart"].map(Glance::of);
        assert!((1..glances.len()).all(|at| !glances[..at].contains(&glances[at])), "{glances:?}");
        let legacy = Beginning::of("legacy-");
        assert!(legacy.may_be_of(Glance::of("legacy-pay")) && !legacy.may_be_of(Glance::of("leg")));
        assert!(!legacy.may_be_of(Glance::of("shop")) && Beginning::of("").may_be_of(Glance::of("shop")));
    }

    proptest! {
        #[test]
        fn every_beginning_of_a_name_is_one(name in "\\PC{0,9}") {
            for (at, _) in name.char_indices().chain([(name.len(), ' ')]) {
                prop_assert!(Beginning::of(&name[..at]).may_be_of(Glance::of(&name)));
            }
        }
    }
}
