//! Pods that we refused on every node, and when it is worth waking them.
//!
//! kube-scheduler asks again about a refused Pod when Nodes or Pods change, as it sees them. It does not hear of a new
//! policy; and it may hear of a Pod's end before we do, ask at once, be refused once more, and then rest for minutes.
//! So what each refusal was made from is remembered, and compared with what is known now.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use policy::contract::ModulePod;

/// Pods remembered at most.
const REMEMBERED: usize = 10_000;
/// A Pod is not woken twice within this time, doubled with each time up to [`LONGEST_REST`].
const REST: Duration = Duration::from_secs(1);
/// kube-scheduler comes back by itself after five minutes.
const LONGEST_REST: Duration = Duration::from_mins(5);

/// What a verdict was made from: greater numbers are newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ground {
    /// Changes of the cache that may let a Pod in.
    pub loosened: u64,
    /// Generation of the policy.
    pub policy: u64,
}

/// A Pod that was refused everywhere.
#[derive(Debug, Clone)]
pub struct Refused {
    /// The Pod, as it was asked about.
    pub pod: Arc<ModulePod>,
    /// When it was first refused.
    pub since: Instant,
    ground: Ground,
    nudges: u32,
    rests_until: Instant,
    /// The policy under which the last wakes were in vain.
    rests_under: u64,
}

/// The Pods that wait. One owner: the extender, under a lock that is never held across an await.
#[derive(Debug, Default)]
pub struct Waiting {
    by_uid: HashMap<Arc<str>, Refused, RandomState>,
}

impl Waiting {
    /// A Pod was refused on every node.
    pub fn refused(&mut self, pod: &ModulePod, ground: Ground, now: Instant) {
        if let Some(known) = self.by_uid.get_mut(&pod.uid) {
            known.ground = ground;
            return;
        }
        if pod.uid.is_empty() || self.by_uid.len() >= REMEMBERED {
            return;
        }
        let refused = Refused {
            pod: Arc::new(pod.clone()),
            since: now,
            ground,
            nudges: 0,
            rests_until: now,
            rests_under: ground.policy,
        };
        self.by_uid.insert(Arc::clone(&pod.uid), refused);
    }

    /// A Pod has a place, or is gone.
    pub fn forget(&mut self, uid: &str) {
        if !self.by_uid.is_empty() {
            self.by_uid.remove(uid);
        }
    }

    /// Pods refused on other ground than this, those that were looked at longest ago first, then those that wait longest;
    /// and whether others rest. Nobody rests from what was in vain under another policy.
    pub fn outdated(&self, ground: Ground, now: Instant) -> (Vec<Refused>, bool) {
        let (due, resting): (Vec<_>, Vec<_>) = self
            .by_uid
            .values()
            .filter(|refused| refused.ground != ground)
            .partition(|refused| refused.rests_until <= now || refused.rests_under != ground.policy);
        let mut due: Vec<Refused> = due.into_iter().cloned().collect();
        // Not by age alone: where each look takes only some, the same ones would be looked at for ever.
        due.sort_by(|a, b| (a.ground, a.since, &a.pod.uid).cmp(&(b.ground, b.since, &b.pod.uid)));
        (due, !resting.is_empty())
    }

    /// Still nowhere to go, on this ground.
    pub fn still_refused(&mut self, uid: &str, ground: Ground) {
        if let Some(known) = self.by_uid.get_mut(uid) {
            known.ground = ground;
        }
    }

    /// The Pod was woken because of this ground.
    pub fn nudged(&mut self, uid: &str, ground: Ground, now: Instant) {
        if let Some(known) = self.by_uid.get_mut(uid) {
            if known.rests_under != ground.policy {
                (known.nudges, known.rests_under) = (0, ground.policy);
            }
            known.ground = ground;
            known.rests_until = now + REST.saturating_mul(1 << known.nudges.min(16)).min(LONGEST_REST);
            known.nudges += 1;
        }
    }

    /// The Pod was not woken after all: it is due again when it has rested.
    pub fn not_nudged(&mut self, refused: &Refused) {
        if let Some(known) = self.by_uid.get_mut(&refused.pod.uid) {
            known.ground = refused.ground;
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use policy::contract::{PodKind, classify};

    use super::*;

    fn pod(uid: &str) -> ModulePod {
        let text = format!(
            r#"{{"metadata":{{"namespace":"a","name":"p","uid":"{uid}"}},"spec":{{"tolerations":[{{"key":"schedule.koupleless.io/virtual-node"}}],"containers":[{{"name":"m","env":[{{"name":"MODULE_VERSION","value":"1"}}]}}]}}}}"#
        );
        match classify(&serde_json::from_str(&text).expect("a Pod")) {
            PodKind::Module(pod) => *pod,
            other => panic!("{other:?}"),
        }
    }

    fn due(waiting: &Waiting, ground: Ground, now: Instant) -> Vec<String> {
        waiting.outdated(ground, now).0.iter().map(|refused| refused.pod.uid.to_string()).collect()
    }

    #[test]
    fn only_what_was_refused_on_other_ground_is_due() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let old = Ground { loosened: 1, policy: 1 };
        waiting.refused(&pod("u1"), old, now);
        assert!(due(&waiting, old, now).is_empty());
        let freed = Ground { loosened: 2, policy: 1 };
        waiting.refused(&pod("u2"), freed, now);
        assert_eq!(due(&waiting, freed, now), ["u1"]);
        waiting.still_refused("u1", freed);
        assert!(due(&waiting, freed, now).is_empty());
        assert_eq!(due(&waiting, Ground { loosened: 2, policy: 2 }, now), ["u1", "u2"]);
        waiting.forget("u1");
        assert_eq!(waiting.len(), 1);
        waiting.refused(&pod(""), old, now);
        assert_eq!(waiting.len(), 1, "nobody schedules a Pod without UID");
    }

    /// A new policy ends the rest, whoever asked under it first; to fail again is no reason to try without rest.
    #[test]
    fn rest_is_by_policy() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        let ground = |loosened, policy| Ground { loosened, policy };
        waiting.refused(&pod("u"), ground(0, 1), start);
        for loosened in 1..5 {
            waiting.nudged("u", ground(loosened, 1), start);
        }
        waiting.refused(&pod("u"), ground(5, 1), start);
        assert!(due(&waiting, ground(6, 1), start).is_empty(), "it rests");
        waiting.refused(&pod("u"), ground(6, 2), start);
        let (refused, _) = waiting.outdated(ground(7, 2), start);
        assert_eq!(refused.len(), 1);
        for _ in 0..2 {
            waiting.nudged("u", ground(7, 2), start);
            waiting.not_nudged(&refused[0]);
            assert!(due(&waiting, ground(7, 2), start).is_empty(), "it rests again");
        }
        assert_eq!(due(&waiting, ground(7, 2), start + 2 * REST), ["u"]);
    }

    /// Where every change outdates all and each round looks at two, everybody gets a turn.
    #[test]
    fn nobody_starves() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        let ground = |loosened| Ground { loosened, policy: 1 };
        for (uid, second) in [("u1", 0), ("u2", 1), ("u3", 2), ("u4", 3)] {
            waiting.refused(&pod(uid), ground(0), start + Duration::from_secs(second));
        }
        let looked: Vec<String> = (1..=3)
            .flat_map(|round| {
                let now: Vec<_> =
                    due(&waiting, ground(round), start + Duration::from_mins(1)).drain(..2).collect();
                for uid in &now {
                    waiting.still_refused(uid, ground(round));
                }
                now
            })
            .collect();
        assert_eq!(looked, ["u1", "u2", "u3", "u4", "u1", "u2"]);
    }

    #[test]
    fn nudges_become_rare_and_memory_is_bounded() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        let ground = |loosened| Ground { loosened, policy: 1 };
        waiting.refused(&pod("u"), ground(0), start);
        let mut at = Vec::new();
        for second in 0..1_200 {
            let now = start + Duration::from_secs(second);
            let loosened = ground(second + 1);
            if due(&waiting, loosened, now) == ["u"] {
                waiting.nudged("u", loosened, now);
                at.push(second);
                waiting.refused(&pod("u"), loosened, now);
            }
        }
        assert_eq!(at, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1_111]);
        for number in 0..2 * REMEMBERED {
            waiting.refused(&pod(&number.to_string()), ground(0), start);
        }
        assert_eq!(waiting.len(), REMEMBERED);
    }
}
