//! Term `baseVersion`: the place of the base's version among all versions of the fleet.

use super::{FleetView, NEUTRAL, Share};
use crate::{model::Prefer, view::BaseView};

/// A base without a version comes last; where all versions are equal everything is neutral.
pub(super) fn share(prefer: Prefer, base: &BaseView<'_>, fleet: &FleetView<'_>) -> Share {
    let Some(last) = fleet.bases.versions.len().checked_sub(1).filter(|last| *last > 0) else {
        return NEUTRAL;
    };
    let whole = u64::try_from(last).unwrap_or(u64::MAX);
    let Some(version) = &base.facts.version else { return Share { part: 0, whole } };
    let place = fleet.bases.versions.partition_point(|other| other < version);
    let place = u64::try_from(place).unwrap_or(0).min(whole);
    match prefer {
        Prefer::Newest => Share { part: place, whole },
        Prefer::Oldest => Share { part: whole - place, whole },
    }
}
