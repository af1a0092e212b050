//! Term `metaspaceHeadroom`: what is left of the metaspace.

use super::{NEUTRAL, Share};
use crate::{contract::ModulePod, rule::metaspace, view::BaseView};

/// Neutral where the maximum is not known.
pub(super) fn share(pod: &ModulePod, base: &BaseView<'_>) -> Share {
    let max = base.facts.metaspace().and_then(|metaspace| metaspace.max);
    match (metaspace::left(base, pod), max) {
        (Some(left), Some(max)) if max > 0 => Share { part: left, whole: max },
        _ => NEUTRAL,
    }
}
