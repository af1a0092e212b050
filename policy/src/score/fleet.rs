//! What the terms compare a base with. Built once for each request.

use std::collections::HashMap;

use jiff::Timestamp;

use super::topology::Counts;
use crate::{
    contract::{BaseRevision, ModulePod},
    model::{Policy, Term},
    version::Version,
    view::BaseView,
};

/// The fleet as far as the policy's terms look at it.
#[derive(Clone, Debug, Default)]
pub struct FleetView<'a> {
    pub(super) hosts: Counts<'a>,
    pub(super) zones: Counts<'a>,
    /// Versions of the bases, ascending, each once.
    pub(super) versions: Vec<&'a Version>,
    /// By workload the newest revision: its hash, and the creation of its oldest base.
    pub(super) newest: HashMap<&'a str, (&'a str, Timestamp)>,
}

impl<'a> FleetView<'a> {
    /// Of all bases that are known, not only those asked for. Looks only at what the terms need.
    pub fn of(policy: &Policy, pod: &'a ModulePod, bases: impl IntoIterator<Item = BaseView<'a>>) -> Self {
        let wants = |wanted: fn(&Term) -> bool| policy.scoring.iter().any(|scored| wanted(&scored.term));
        let places = wants(|term| matches!(term, Term::HostSpread | Term::ZoneSpread));
        let versions = wants(|term| matches!(term, Term::BaseVersion(_)));
        let revisions = wants(|term| matches!(term, Term::BaseRevision));
        let mut view = Self::default();
        if !(places || versions || revisions) {
            return view;
        }
        let mut oldest: HashMap<(&str, &str), Timestamp> = HashMap::new();
        for base in bases {
            if places {
                view.count(pod, base);
            }
            view.versions.extend(base.facts.version.as_ref().filter(|_| versions));
            if let Some(BaseRevision { workload, hash, created }) =
                base.facts.revision.as_ref().filter(|_| revisions)
            {
                let first = oldest.entry((workload, hash)).or_insert(*created);
                *first = (*first).min(*created);
            }
        }
        view.versions.sort_unstable();
        view.versions.dedup();
        for ((workload, hash), created) in oldest {
            let newest = view.newest.entry(workload).or_insert((hash, created));
            // Equal times: the greater hash, so that the answer does not depend on the order of a map.
            if (created, hash) > (newest.1, newest.0) {
                *newest = (hash, created);
            }
        }
        view
    }

    fn count(&mut self, pod: &'a ModulePod, base: BaseView<'a>) {
        let sibling = |other: &&ModulePod| {
            // The rarer first: most Pods are of one namespace, and few have the module.
            other.modules.iter().any(|theirs| pod.modules.iter().any(|ours| ours.is_named_as(theirs)))
                && other.namespace == pod.namespace
        };
        let siblings = base.others(pod).filter(|other| !other.deleting).filter(sibling).count();
        let siblings = u64::try_from(siblings).unwrap_or(u64::MAX);
        if siblings == 0 {
            return;
        }
        for (place, counts) in [(&base.facts.host, &mut self.hosts), (&base.facts.zone, &mut self.zones)] {
            if let Some(place) = place {
                counts.add(place, siblings);
            }
        }
    }
}
