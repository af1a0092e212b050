//! Term `recentFailures`: every module version that just failed there takes two points.

use super::{BEST, Share};
use crate::view::BaseView;

pub(super) fn share(base: &BaseView<'_>) -> Share {
    let failures = base.facts.inventory.get().map_or(0, |inventory| inventory.failures.len());
    let lost = u64::try_from(failures).unwrap_or(BEST).saturating_mul(2);
    Share { part: BEST.saturating_sub(lost), whole: BEST }
}
