//! Kinds of Pods: those that every rule must judge alike, such as the replicas of one template.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use policy::Policy;
use policy::contract::ModulePod;
use service::policy_file::Versioned;

use crate::placement::Refusal;

/// Kinds remembered.
const REMEMBERED: usize = 16;

/// One kind, under one policy.
#[derive(Debug)]
pub struct Kind {
    /// Never used for another kind; from 1.
    pub id: u32,
    pod: ModulePod,
    policy: Arc<Versioned<Policy>>,
    refusals: Vec<Refusal>,
}

impl Kind {
    /// The verdict behind the number of a memo.
    pub fn verdict(&self, number: u32) -> Option<Result<(), Refusal>> {
        match usize::try_from(number).ok()?.checked_sub(1) {
            None => Some(Ok(())),
            Some(index) => self.refusals.get(index).cloned().map(Err),
        }
    }

    /// The number of a verdict.
    pub fn number(&mut self, verdict: &Result<(), Refusal>) -> u32 {
        let Err(refusal) = verdict else { return 0 };
        let known = self.refusals.iter().position(|known| known == refusal);
        let index = known.unwrap_or_else(|| {
            self.refusals.push(refusal.clone());
            self.refusals.len() - 1
        });
        u32::try_from(index + 1).unwrap_or(u32::MAX)
    }
}

/// The kinds seen last.
#[derive(Debug, Default)]
pub struct Kinds {
    recent: VecDeque<Kind>,
    last: u32,
}

impl Kinds {
    /// The kind of a Pod under a policy; `None` when ids have run out.
    pub fn of(&mut self, pod: &ModulePod, policy: &Arc<Versioned<Policy>>) -> Option<&mut Kind> {
        // Who it is and who made it is nothing that a rule or a term looks at.
        let nameless = ModulePod {
            name: Arc::default(),
            uid: Arc::default(),
            labels: BTreeMap::new(),
            template: None,
            owner: None,
            ..pod.clone()
        };
        let same = |kind: &Kind| Arc::ptr_eq(&kind.policy, policy) && kind.pod == nameless;
        if let Some(index) = self.recent.iter().position(same) {
            return self.recent.get_mut(index);
        }
        self.last = self.last.checked_add(1)?;
        if self.recent.len() >= REMEMBERED {
            self.recent.pop_front();
        }
        let policy = Arc::clone(policy);
        self.recent.push_back(Kind { id: self.last, pod: nameless, policy, refusals: Vec::new() });
        self.recent.back_mut()
    }
}
