//! What was decided about a node for Pods of one kind, and what it is worth to them, kept with the node.
//!
//! Replicas of one template get the same verdict on a node that has not changed, and judging thousands of nodes is a
//! walk through cold memory. An entry is replaced whole when its node or its Pods change, and its memo with it, so a
//! verdict cannot outlive what it was made from.

use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of Pods remembered side by side.
const SLOTS: usize = 4;

/// Verdicts and scores by the id of a kind of Pods. A clone starts empty.
#[derive(Debug, Default)]
pub struct Memo {
    verdicts: [AtomicU64; SLOTS],
    scores: [AtomicU64; SLOTS],
}

impl Clone for Memo {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Memo {
    /// The number of the verdict for this kind. Ids start at 1: an empty slot is 0.
    pub fn verdict(&self, id: u32) -> Option<u32> {
        get(&self.verdicts, id)
    }

    /// Notes a verdict for this kind.
    pub fn note_verdict(&self, id: u32, verdict: u32) {
        set(&self.verdicts, id, verdict);
    }

    /// The base's own part of the score for this kind.
    pub fn score(&self, id: u32) -> Option<u32> {
        get(&self.scores, id)
    }

    /// Notes the base's own part of the score for this kind.
    pub fn note_score(&self, id: u32, own: u32) {
        set(&self.scores, id, own);
    }
}

fn get(slots: &[AtomicU64; SLOTS], id: u32) -> Option<u32> {
    let noted = slots.get(id as usize % SLOTS)?.load(Ordering::Relaxed);
    (noted >> 32 == u64::from(id)).then_some(u32::try_from(noted & u64::from(u32::MAX)).unwrap_or(u32::MAX))
}

fn set(slots: &[AtomicU64; SLOTS], id: u32, value: u32) {
    if let Some(slot) = slots.get(id as usize % SLOTS) {
        slot.store(u64::from(id) << 32 | u64::from(value), Ordering::Relaxed);
    }
}
