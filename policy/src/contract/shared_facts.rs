//! What many bases have in common, kept in memory once: a decision about thousands of bases reads it for each of them, and
//! most of its time goes into memory that is not at hand.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
};

use super::BaseFacts;
use crate::version::Version;

/// Values of one sort kept at most. Bases that have more of them have little in common there.
const KEPT: usize = 256;

/// Values that bases were seen to have. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SharedFacts {
    stacks: Pool<Arc<str>, Arc<str>>,
    hosts: Pool<Arc<str>, Arc<str>>,
    zones: Pool<Arc<str>, Arc<str>>,
    versions: Pool<String, Arc<Version>>,
    provides: Pool<Vec<(String, String)>, Provides>,
}

type Provides = Arc<BTreeMap<String, Version>>;

impl SharedFacts {
    /// Gives a base the values of others wherever it has the same, to the letter. Nothing that can be read from the facts
    /// changes.
    pub fn share(&mut self, facts: &mut BaseFacts) {
        let BaseFacts { stack, host, zone, version, provides, .. } = facts;
        self.stacks.share(Arc::clone(stack), stack);
        if let Some(host) = host {
            self.hosts.share(Arc::clone(host), host);
        }
        if let Some(zone) = zone {
            self.zones.share(Arc::clone(zone), zone);
        }
        if let Some(version) = version {
            self.versions.share(version.as_str().to_owned(), version);
        }
        // Versions that are equal may be written in different ways.
        let written = provides.iter().map(|(name, version)| (name.clone(), version.as_str().to_owned()));
        self.provides.share(written.collect(), provides);
    }
}

#[derive(Clone, Debug)]
struct Pool<K, V>(Arc<HashMap<K, V>>);

impl<K, V> Default for Pool<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Pool<K, V> {
    /// Gives `value` what is known by this key. Where nothing is, the value is known by it from now on.
    fn share(&mut self, key: K, value: &mut V) {
        if let Some(known) = self.0.get(&key) {
            *value = known.clone();
            return;
        }
        if self.0.len() >= KEPT {
            self.0 = Arc::default();
        }
        Arc::make_mut(&mut self.0).insert(key, value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(zone: &str, version: &str, jdk: &str) -> BaseFacts {
        let node = format!(
            "{{metadata: {{name: n, labels: {{app.kubernetes.io/managed-by: stowage, stowage.dev/zone: {zone}, \
             base.koupleless.io/version: {version}}}, annotations: {{stowage.dev/base: a/b, stowage.dev/inventory: \
             '{{\"v\":1,\"provides\":{{\"jdk\":\"{jdk}\"}}}}'}}}}}}"
        );
        BaseFacts::from_node(&serde_saphyr::from_str(&node).unwrap()).unwrap().unwrap()
    }

    /// What of two bases is in memory once.
    fn is_shared(a: &BaseFacts, b: &BaseFacts) -> (bool, bool, bool) {
        let same = |a: &Option<Arc<Version>>, b: &Option<Arc<Version>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let zones = a.zone.as_ref().zip(b.zone.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        (zones, same(&a.version, &b.version), Arc::ptr_eq(&a.provides, &b.provides))
    }

    #[test]
    fn only_what_is_the_same_to_the_letter_is_shared() {
        let mut known = SharedFacts::default();
        let shared = |known: &mut SharedFacts, mut facts: BaseFacts| {
            let before = format!("{facts:?}");
            known.share(&mut facts);
            assert_eq!(format!("{facts:?}"), before);
            facts
        };
        let first = shared(&mut known, facts("a", "2.1.0", "17"));
        let same = shared(&mut known, facts("a", "2.1.0", "17"));
        assert_eq!(is_shared(&first, &same), (true, true, true));
        // Equal, and not the same: the text is what people and other programs read.
        let equal = shared(&mut known, facts("b", "2.1", "17.0"));
        assert_eq!(is_shared(&first, &equal), (false, false, false));
        assert_eq!(first.version, equal.version);
    }

    #[test]
    fn a_fleet_without_anything_in_common_takes_no_more_room() {
        let mut known = SharedFacts::default();
        for number in 0..3 * KEPT {
            known.share(&mut facts(&format!("z{number}"), &format!("1.{number}"), "17"));
        }
        let SharedFacts { stacks, zones, versions, provides, .. } = &known;
        assert!(zones.0.len() <= KEPT && versions.0.len() <= KEPT);
        assert_eq!((stacks.0.len(), provides.0.len()), (1, 1), "many of one sort leave the others alone");
    }
}
