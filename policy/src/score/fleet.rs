//! What the terms compare a base with.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use jiff::Timestamp;

use super::topology::Counts;
use crate::{
    contract::{BaseFacts, BaseRevision, ModulePod},
    model::{Policy, Term},
    version::Version,
    view::{BaseView, same_pod},
};

/// What all bases are, whoever asks and whatever Pods are on them.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Versions of the bases, ascending, each once.
    pub(super) versions: Vec<Arc<Version>>,
    /// By workload the newest revision: its hash, and the creation of its oldest base.
    pub(super) newest: HashMap<Arc<str>, (Arc<str>, Timestamp)>,
}

impl Fleet {
    /// Of all bases that are known.
    pub fn of<'a>(bases: impl IntoIterator<Item = &'a BaseFacts>) -> Self {
        let mut versions = Vec::new();
        let mut oldest: HashMap<(&Arc<str>, &Arc<str>), Timestamp> = HashMap::new();
        for base in bases {
            versions.extend(&base.version);
            if let Some(BaseRevision { workload, hash, created }) = &base.revision {
                let first = oldest.entry((workload, hash)).or_insert(*created);
                *first = (*first).min(*created);
            }
        }
        versions.sort_unstable();
        versions.dedup();
        let mut fleet = Self { versions: versions.into_iter().cloned().collect(), newest: HashMap::new() };
        for ((workload, hash), created) in oldest {
            let newest =
                fleet.newest.entry(Arc::clone(workload)).or_insert_with(|| (Arc::clone(hash), created));
            // Equal times: the greater hash, so that the answer does not depend on the order of a map.
            if (created, hash) > (newest.1, &newest.0) {
                *newest = (Arc::clone(hash), created);
            }
        }
        fleet
    }
}

/// The fleet as far as the policy's terms look at it for one Pod. Built once for each request.
#[derive(Clone, Debug, Default)]
pub struct FleetView<'a> {
    pub(super) hosts: Counts<'a>,
    pub(super) zones: Counts<'a>,
    pub(super) bases: Cow<'a, Fleet>,
}

impl<'a> FleetView<'a> {
    /// Of all bases that are known, not only those asked for. Looks only at what the terms need.
    pub fn of<I>(policy: &Policy, pod: &'a ModulePod, bases: I) -> Self
    where
        I: IntoIterator<Item = BaseView<'a>> + Clone,
    {
        let all = bases.clone().into_iter().map(|base| base.facts);
        let others =
            bases.into_iter().flat_map(|base| base.others(pod).map(move |other| (base.facts, other)));
        Self::new(policy, pod, || Cow::Owned(Fleet::of(all)), others)
    }

    /// The same for a caller that remembers the fleet, and finds the Pods with one of the modules of `pod` faster than by a
    /// walk through all bases. `others` has each of them once for each base that it is on or was just placed on; what is
    /// no sibling among them does not count.
    pub fn new<'p>(
        policy: &Policy,
        pod: &ModulePod,
        fleet: impl FnOnce() -> Cow<'a, Fleet>,
        others: impl IntoIterator<Item = (&'a BaseFacts, &'p ModulePod)>,
    ) -> Self {
        let wants = |wanted: fn(&Term) -> bool| policy.scoring.iter().any(|scored| wanted(&scored.term));
        let mut view = Self::default();
        if wants(|term| matches!(term, Term::HostSpread | Term::ZoneSpread)) {
            for (facts, _) in others.into_iter().filter(|(_, other)| is_sibling(pod, other)) {
                view.count(facts);
            }
        }
        if wants(|term| matches!(term, Term::BaseVersion(_) | Term::BaseRevision)) {
            view.bases = fleet();
        }
        view
    }

    fn count(&mut self, facts: &'a BaseFacts) {
        for (place, counts) in [(&facts.host, &mut self.hosts), (&facts.zone, &mut self.zones)] {
            if let Some(place) = place {
                counts.add(place);
            }
        }
    }
}

/// Whether a Pod has a module of `pod`, and stays.
fn is_sibling(pod: &ModulePod, other: &ModulePod) -> bool {
    // The rarer first: most Pods are of one namespace, and few have the module.
    other.modules.iter().any(|theirs| pod.modules.iter().any(|ours| ours.is_named_as(theirs)))
        && other.namespace == pod.namespace
        && !other.deleting
        && !other.terminal
        && !same_pod(other, pod)
}
