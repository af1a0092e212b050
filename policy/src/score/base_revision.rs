//! Term `baseRevision`: while a base workload rolls out, bases of its newest revision first.

use super::{FleetView, NEUTRAL, Share};
use crate::view::BaseView;

pub(super) fn share(base: &BaseView<'_>, fleet: &FleetView<'_>) -> Share {
    let Some(revision) = &base.facts.revision else { return NEUTRAL };
    let newest = fleet.bases.newest.get(&*revision.workload).is_some_and(|(hash, _)| *hash == revision.hash);
    Share { part: u64::from(newest), whole: 1 }
}
