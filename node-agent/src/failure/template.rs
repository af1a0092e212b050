//! The failures of one template, and when it may be tried again.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{Backoff, FailedPod, KEPT, PATIENCE};

#[derive(Debug, Default)]
pub(super) struct Template {
    bases: BTreeSet<String>,
    failures: usize,
    last: Option<Timestamp>,
    /// A try was let through then; until it ends nobody else goes.
    claimed: Option<Timestamp>,
    pods: Vec<FailedPod>,
    retry: Option<String>,
}

impl Template {
    pub(super) fn last(&self) -> Option<Timestamp> {
        self.last
    }

    /// Every failure is counted, not only that of another base: with one base left, the loop would have no end.
    pub(super) fn slowed(&self) -> bool {
        self.bases.len() >= PATIENCE || self.failures >= PATIENCE
    }

    pub(super) fn not_before(&self, proven: bool, backoff: Backoff) -> Option<Timestamp> {
        if !self.slowed() {
            return None;
        }
        let doublings = u32::try_from(self.failures.saturating_sub(PATIENCE).min(20)).unwrap_or(20);
        // What has run before is not held back for its failures; a floor remains, so that a jar that has
        // vanished from its server cannot make a controller spin.
        let wait = if proven {
            backoff.initial
        } else {
            backoff.initial.saturating_mul(2_u32.saturating_pow(doublings)).min(backoff.max)
        };
        let from = self.last.max(self.claimed)?;
        Some(from.checked_add(wait).unwrap_or(Timestamp::MAX))
    }

    pub(super) fn admit(&mut self, proven: bool, backoff: Backoff, now: Timestamp) -> Result<(), Timestamp> {
        match self.not_before(proven, backoff) {
            Some(at) if at > now => Err(at),
            Some(_) => {
                self.claimed = Some(now);
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn failed(&mut self, base_uid: &str, pod: FailedPod) -> Vec<FailedPod> {
        if self.pods.iter().any(|known| known.uid == pod.uid) {
            return Vec::new();
        }
        self.bases.insert(base_uid.to_owned());
        self.failures = self.failures.saturating_add(1);
        self.last = self.last.max(Some(pod.at));
        self.pods.push(pod);
        self.pods.sort();
        let too_many = self.pods.len().saturating_sub(KEPT);
        self.pods.drain(..too_many).collect()
    }

    pub(super) fn forget_pod(&mut self, uid: &str) {
        self.pods.retain(|pod| pod.uid != uid);
    }

    pub(super) fn reset(&mut self) {
        self.bases.clear();
        self.failures = 0;
        self.last = None;
        self.claimed = None;
    }

    pub(super) fn retry(&mut self, value: &str) -> bool {
        if self.retry.as_deref() == Some(value) {
            return false;
        }
        self.retry = Some(value.to_owned());
        self.reset();
        true
    }
}
