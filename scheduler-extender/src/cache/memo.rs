//! What was decided about a node for Pods of one kind, kept with the node.
//!
//! Replicas of one template get the same verdict on a node that has not changed, and judging thousands of nodes is a
//! walk through cold memory. An entry is replaced whole when its node or its Pods change, and its memo with it, so a
//! verdict cannot outlive what it was made from.

use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of Pods remembered side by side.
const SLOTS: usize = 4;

/// Verdicts by the id of a kind of Pods. The filter writes, under its lock; a clone starts empty.
#[derive(Debug, Default)]
pub struct Memo([AtomicU64; SLOTS]);

impl Clone for Memo {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Memo {
    fn slot(&self, id: u32) -> Option<&AtomicU64> {
        self.0.get(id as usize % SLOTS)
    }

    /// What was noted for this kind. Ids start at 1: an empty slot is 0.
    pub fn get(&self, id: u32) -> Option<u32> {
        let noted = self.slot(id)?.load(Ordering::Relaxed);
        (noted >> 32 == u64::from(id))
            .then_some(u32::try_from(noted & u64::from(u32::MAX)).unwrap_or(u32::MAX))
    }

    /// Notes a verdict for this kind.
    pub fn set(&self, id: u32, verdict: u32) {
        if let Some(slot) = self.slot(id) {
            slot.store(u64::from(id) << 32 | u64::from(verdict), Ordering::Relaxed);
        }
    }
}
