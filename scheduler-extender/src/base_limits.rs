//! The limits of bases under the policy in force. They are the same for every Pod, and a policy may have many entries to
//! look through for each base.

use std::sync::Arc;

use policy::{Limits, Policy};
use service::policy_file::Versioned;

use crate::cache::{ByMark, Mark};

/// What is remembered about bases, whoever asks.
#[derive(Debug, Default)]
pub struct BaseLimits {
    policy: Option<Arc<Versioned<Policy>>>,
    noted: ByMark<Option<Limits>>,
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
        let Some(noted) = self.noted.entry(mark) else { return afresh() };
        noted.get_or_insert_with(afresh).clone()
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
