//! How good a base is for a Pod, 0 to 10: the weighted mean of the policy's terms. One file for each term.

mod base_revision;
mod base_version;
mod fleet;
mod metaspace_headroom;
mod parts;
mod recent_failures;
mod slots;
mod topology;

pub use fleet::{Fleet, FleetView};
pub use parts::{among, own};

use crate::{
    contract::ModulePod,
    model::{Policy, ScoreTerm, Term},
    view::BaseView,
};

/// Most that a term gives, and what kube-scheduler takes for the best.
pub const BEST: u64 = 10;

/// What a term that knows nothing says.
const NEUTRAL: Share = Share { part: 1, whole: 2 };

/// A part of a whole; 1 of 1 is best.
#[derive(Clone, Copy, Debug)]
struct Share {
    part: u64,
    whole: u64,
}

/// What one term says of a base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TermScore {
    /// Which.
    pub term: Term,
    /// How much it counts.
    pub weight: u32,
    /// 0 to 10, greater is better.
    pub score: f64,
}

/// 0 to 10, greater is better; 0 where the policy has no terms.
pub fn score(policy: &Policy, pod: &ModulePod, base: &BaseView<'_>, fleet: &FleetView<'_>) -> i64 {
    let limits = policy.limits_for(&base.facts.like());
    among(policy, own(policy, pod, base, &limits), base, fleet)
}

/// What each term says, for people.
pub fn terms(policy: &Policy, pod: &ModulePod, base: &BaseView<'_>, fleet: &FleetView<'_>) -> Vec<TermScore> {
    let limits = policy.limits_for(&base.facts.like());
    let one = |scored: &ScoreTerm| {
        let share = parts::of_base(scored.term, pod, base, &limits);
        let said =
            thousandths(share.or_else(|| parts::in_fleet(scored.term, base, fleet)).unwrap_or(NEUTRAL));
        let score = u32::try_from(said).map_or(0.0, |said| f64::from(said) / 1000.0);
        TermScore { term: scored.term, weight: scored.weight, score }
    };
    policy.scoring.iter().map(one).collect()
}

/// Thousandths of a point, so that the mean rounds once.
fn thousandths(Share { part, whole }: Share) -> u128 {
    u128::from(part.min(whole)) * 1000 * u128::from(BEST) / u128::from(whole.max(1))
}

#[cfg(test)]
mod tests;
