//! Kinds of Pods: those that every rule must judge alike, such as the replicas of one template; and what was decided
//! about nodes for each kind.
//!
//! Replicas of one template get the same verdict on a node that has not changed, and judging thousands of nodes is a
//! walk through cold memory. What is remembered lies side by side, and carries the stamp of the node's state, so a verdict
//! cannot outlive what it was made from.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use policy::Policy;
use policy::contract::ModulePod;
use service::policy_file::Versioned;

use crate::base_limits::BaseLimits;
use crate::cache::{ByMark, Mark};
use crate::placement::Refusal;

/// Kinds remembered, which are modules that are rolled out or scaled at the same time: so many in a fleet of any size,
const AT_LEAST: usize = 64;
/// so many in a small one,
const AT_MOST: usize = 256;
/// and between them as many as have room for what is remembered about nodes: 4 MiB, which a processor's cache can hold.
const NODES: usize = 1 << 18;

/// One kind, under one policy.
#[derive(Debug, Clone)]
pub struct Kind {
    pod: ModulePod,
    policy: Arc<Versioned<Policy>>,
    refusals: Vec<Refusal>,
    noted: ByMark<Noted>,
}

/// What is remembered when a Pod is asked about.
#[derive(Debug)]
pub struct Memory<'a> {
    /// About its kind.
    pub kind: &'a mut Kind,
    /// About every base, under the same policy.
    pub limits: &'a mut BaseLimits,
}

/// What is remembered about one node.
#[derive(Debug, Clone, Copy, Default)]
struct Noted {
    /// 0: none; 1: it fits; else a refusal.
    verdict: u32,
    /// 0: none; else one more than the base's own part of the score.
    score: u32,
}

impl Kind {
    /// The verdict on a node, if it is remembered.
    pub fn verdict(&self, mark: Mark) -> Option<Result<(), Refusal>> {
        match self.noted.get(mark)?.verdict {
            0 => None,
            1 => Some(Ok(())),
            number => self.refusals.get(usize::try_from(number).ok()? - 2).cloned().map(Err),
        }
    }

    /// Remembers the verdict on a node.
    pub fn note_verdict(&mut self, mark: Mark, verdict: &Result<(), Refusal>) {
        let number = match verdict {
            Ok(()) => 1,
            Err(refusal) => {
                let known = self.refusals.iter().position(|known| known == refusal);
                let index = known.unwrap_or_else(|| {
                    self.refusals.push(refusal.clone());
                    self.refusals.len() - 1
                });
                u32::try_from(index).unwrap_or(u32::MAX).saturating_add(2)
            }
        };
        if let Some(noted) = self.noted.entry(mark) {
            noted.verdict = number;
        }
    }

    /// The base's own part of the score, if it is remembered.
    pub fn score(&self, mark: Mark) -> Option<u32> {
        self.noted.get(mark)?.score.checked_sub(1)
    }

    /// Remembers the base's own part of the score.
    pub fn note_score(&mut self, mark: Mark, own: u32) {
        if let Some(noted) = self.noted.entry(mark) {
            noted.score = own.saturating_add(1);
        }
    }
}

/// The kinds seen last, the latest at the end.
#[derive(Debug, Default)]
pub struct Kinds {
    /// Boxed, because one is moved to the end each time it is asked about.
    recent: VecDeque<Box<Kind>>,
    limits: BaseLimits,
}

impl Kinds {
    /// What is remembered about the kind of a Pod, and about bases, under a policy.
    pub fn memory(&mut self, pod: &ModulePod, policy: &Arc<Versioned<Policy>>) -> Option<Memory<'_>> {
        self.of(pod, policy)?;
        self.limits.under(policy);
        Some(Memory { kind: &mut **self.recent.back_mut()?, limits: &mut self.limits })
    }

    /// The kind of a Pod under a policy.
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
        if let Some(index) = self.recent.iter().position(|kind| same(kind)) {
            let kind = self.recent.remove(index)?;
            self.recent.push_back(kind);
            return self.recent.back_mut().map(|kind| &mut **kind);
        }
        // The table of one that is forgotten is used again, emptied.
        let mut noted = ByMark::default();
        let room = self.room();
        while self.recent.len() >= room
            && let Some(oldest) = self.recent.pop_front()
        {
            noted = oldest.noted;
        }
        noted.forget();
        let policy = Arc::clone(policy);
        self.recent.push_back(Box::new(Kind { pod: nameless, policy, refusals: Vec::new(), noted }));
        self.recent.back_mut().map(|kind| &mut **kind)
    }

    /// For how many kinds there is room.
    fn room(&self) -> usize {
        // Some kinds know few nodes or none yet.
        let nodes = self.recent.iter().map(|kind| kind.noted.len()).max().unwrap_or_default();
        NODES.checked_div(nodes).unwrap_or(AT_MOST).clamp(AT_LEAST, AT_MOST)
    }

    /// Takes over what was learnt with a copy of a kind, unless the kind has been forgotten meanwhile. What others learnt
    /// meanwhile is lost, and found out again when it is needed.
    pub fn learn(&mut self, copy: Kind) {
        let same = |kind: &&mut Box<Kind>| Arc::ptr_eq(&kind.policy, &copy.policy) && kind.pod == copy.pod;
        if let Some(kind) = self.recent.iter_mut().find(same) {
            **kind = copy;
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::contract::{PodKind, classify};
    use serde_json::json;

    use super::*;

    fn pod(name: &str, module: &str) -> ModulePod {
        let pod = json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name},
            "spec": {
                "tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
                "containers": [{"name": module, "image": "https://repo.example.com/a.jar",
                                "env": [{"name": "MODULE_VERSION", "value": "1.0.0"}]}],
            },
        });
        match classify(&serde_json::from_value(pod).unwrap()) {
            PodKind::Module(pod) => *pod,
            other => panic!("{other:?}"),
        }
    }

    fn policy() -> Arc<Versioned<Policy>> {
        let policy = Policy::default();
        Arc::new(Versioned { policy, generation: 1, hash: String::new() })
    }

    #[test]
    fn what_a_copy_learns_is_known_to_all_of_its_kind() {
        let (mut kinds, policy, mark) = (Kinds::default(), policy(), Mark { place: 3, stamp: 7 });
        let mut copy = kinds.of(&pod("shop-1", "shop"), &policy).cloned().unwrap();
        copy.note_verdict(mark, &Err(Refusal::MalformedNode));
        assert_eq!(kinds.of(&pod("shop-2", "shop"), &policy).unwrap().verdict(mark), None);
        kinds.learn(copy);
        let known =
            |kinds: &mut Kinds, module: &str| kinds.of(&pod("other", module), &policy).unwrap().verdict(mark);
        assert_eq!(known(&mut kinds, "shop"), Some(Err(Refusal::MalformedNode)));
        assert_eq!(known(&mut kinds, "cart"), None, "another kind");
    }

    #[test]
    fn a_kind_that_was_forgotten_stays_so() {
        let (mut kinds, policy, mark) = (Kinds::default(), policy(), Mark { place: 0, stamp: 1 });
        let mut copy = kinds.of(&pod("shop", "shop"), &policy).cloned().unwrap();
        copy.note_verdict(mark, &Ok(()));
        for number in 0..AT_MOST {
            kinds.of(&pod("many", &format!("m{number}")), &policy).unwrap();
        }
        kinds.learn(copy);
        assert_eq!(kinds.recent.len(), AT_MOST);
        assert_eq!(kinds.of(&pod("shop", "shop"), &policy).unwrap().verdict(mark), None);
    }

    #[test]
    fn fewer_kinds_are_remembered_of_many_nodes() {
        let (mut kinds, policy) = (Kinds::default(), policy());
        for number in 0..AT_MOST {
            let kind = kinds.of(&pod("many", &format!("m{number}")), &policy).unwrap();
            kind.note_verdict(Mark { place: 1_999, stamp: 1 }, &Ok(()));
        }
        assert_eq!(kinds.recent.len(), NODES / 2_000);
        let latest = kinds.of(&pod("many", "latest"), &policy).unwrap();
        latest.note_verdict(Mark { place: 9_999, stamp: 1 }, &Ok(()));
        for module in ["without", "nodes"] {
            kinds.of(&pod("one", module), &policy).unwrap();
            assert_eq!(kinds.recent.len(), AT_LEAST, "the fleet has grown");
        }
    }
}
