//! Terms `hostSpread` and `zoneSpread`: places with fewer Pods of the same modules first.

use std::collections::HashMap;

use super::{NEUTRAL, Share};

/// Against the fullest place; a base whose place is not known is neutral.
pub(super) fn emptier(place: Option<&str>, counts: &HashMap<&str, u64>) -> Share {
    let Some(place) = place else { return NEUTRAL };
    let fullest = counts.values().copied().max().unwrap_or(0);
    let here = counts.get(place).copied().unwrap_or(0);
    // One more than the fullest: even there a place is not worthless.
    Share { part: fullest + 1 - here, whole: fullest + 1 }
}
