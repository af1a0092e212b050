//! Terms `hostSpread` and `zoneSpread`: places with fewer Pods of the same modules first.

use std::collections::HashMap;

use super::{NEUTRAL, Share};

/// Pods with one of the modules, by place; no place without such Pods is there.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts<'a> {
    by_place: HashMap<&'a str, u64>,
    fullest: u64,
}

impl<'a> Counts<'a> {
    /// Counts one more.
    pub(super) fn add(&mut self, place: &'a str) {
        let count = self.by_place.entry(place).or_default();
        *count = count.saturating_add(1);
        self.fullest = self.fullest.max(*count);
    }
}

/// Against the fullest place; a base whose place is not known is neutral.
pub(super) fn emptier(place: Option<&str>, counts: &Counts<'_>) -> Share {
    let Some(place) = place else { return NEUTRAL };
    let here = counts.by_place.get(place).copied().unwrap_or(0);
    // One more than the fullest: even there a place is not worthless.
    let whole = counts.fullest.saturating_add(1);
    Share { part: whole.saturating_sub(here), whole }
}
