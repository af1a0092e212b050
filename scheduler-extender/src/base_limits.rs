//! The limits of bases under the policy in force. They are the same for every Pod, and a policy may have many entries to
//! look through for each base.

use std::sync::Arc;

use policy::{Limits, Policy};
use service::policy_file::Versioned;

use crate::cache::Mark;

/// What is remembered about bases, whoever asks.
#[derive(Debug, Default)]
pub struct BaseLimits {
    policy: Option<Arc<Versioned<Policy>>>,
    /// Each once: a policy makes a handful.
    distinct: Vec<Limits>,
    /// By the places of nodes.
    table: Vec<Noted>,
}

/// The limits of one node in one state.
#[derive(Debug, Clone, Copy, Default)]
struct Noted {
    stamp: u64,
    /// Which of the distinct ones.
    limits: usize,
}

impl BaseLimits {
    /// Forgets everything, unless it comes from this policy.
    pub fn under(&mut self, policy: &Arc<Versioned<Policy>>) {
        if !self.policy.as_ref().is_some_and(|known| Arc::ptr_eq(known, policy)) {
            *self = Self { policy: Some(Arc::clone(policy)), ..Self::default() };
        }
    }

    /// The limits of a node, found out by `afresh` where they are not remembered.
    pub fn of(&mut self, mark: Mark, afresh: impl FnOnce() -> Limits) -> Limits {
        let Ok(place) = usize::try_from(mark.place) else { return afresh() };
        let noted = self.table.get(place).filter(|noted| noted.stamp == mark.stamp);
        if let Some(known) = noted.and_then(|noted| self.distinct.get(noted.limits)) {
            return known.clone();
        }
        let found = afresh();
        let limits = self.distinct.iter().position(|known| *known == found).unwrap_or_else(|| {
            self.distinct.push(found.clone());
            self.distinct.len() - 1
        });
        if self.table.len() <= place {
            self.table.resize(place + 1, Noted::default());
        }
        if let Some(noted) = self.table.get_mut(place) {
            *noted = Noted { stamp: mark.stamp, limits };
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(generation: u64) -> Arc<Versioned<Policy>> {
        Arc::new(Versioned { policy: Policy::default(), generation, hash: String::new() })
    }

    fn pods(pods_per_base: u32) -> Limits {
        Limits { pods_per_base, ..Limits::default() }
    }

    #[test]
    fn limits_are_those_of_one_state_under_one_policy() {
        let (mut known, first, second) = (BaseLimits::default(), under(1), under(2));
        let (one, two) = (Mark { place: 4, stamp: 1 }, Mark { place: 2, stamp: 2 });
        known.under(&first);
        assert_eq!(known.of(one, || pods(3)), pods(3));
        assert_eq!(known.of(two, || pods(7)), pods(7));
        known.under(&first);
        assert_eq!(known.of(one, || panic!("remembered")), pods(3));
        assert_eq!(known.of(two, || panic!("remembered")), pods(7));
        assert_eq!(known.of(Mark { stamp: 3, ..one }, || pods(7)), pods(7), "the node has changed");
        known.under(&second);
        assert_eq!(known.of(two, || pods(5)), pods(5), "another policy is in force");
    }
}
