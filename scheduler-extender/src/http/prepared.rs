//! Scores that `filter` found on its way, for the call of `prioritize` that follows at once.
//!
//! kube-scheduler asks `prioritize` with the body that `filter` got, less the nodes that were refused, and right after it.
//! Walking through thousands of nodes a second time costs as much as the first time. So `filter` scores what fits while it
//! has it in its hands, and keeps the answer to exactly that question for a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use policy::Policy;
use service::policy_file::Versioned;

use crate::wire::{self, HostPriority};

/// How long an answer may be kept: long enough for kube-scheduler's own scores to be made.
const FRESH: Duration = Duration::from_secs(1);

/// The answer to one question.
#[derive(Debug)]
pub(super) struct Prepared {
    question: Vec<u8>,
    /// How many nodes the question names.
    pub(super) nodes: usize,
    answer: Vec<u8>,
    policy: Arc<Versioned<Policy>>,
    made: Instant,
}

impl Prepared {
    /// For a Pod, as kube-scheduler wrote it, and the nodes that fit it with their scores. `None` where something cannot
    /// be written, which does not happen to names and numbers.
    pub(super) fn new(
        pod: &str,
        names: &[&str],
        scores: &[i64],
        policy: &Arc<Versioned<Policy>>,
        made: Instant,
    ) -> Option<Self> {
        let listed = serde_json::to_string(names).ok()?;
        let mut question = Vec::with_capacity(pod.len() + listed.len() + 64);
        for part in ["{\"Pod\":", pod, ",\"Nodes\":null,\"NodeNames\":", &listed, "}"] {
            question.extend_from_slice(part.as_bytes());
        }
        let priorities: Vec<_> =
            names.iter().zip(scores).map(|(host, score)| HostPriority { host, score: *score }).collect();
        let answer = wire::to_json(&priorities).ok()?;
        Some(Self { question, nodes: names.len(), answer, policy: Arc::clone(policy), made })
    }

    /// The answer, if this is the question.
    pub(super) fn to(&self, question: &[u8], policy: &Arc<Versioned<Policy>>, now: Instant) -> Option<&[u8]> {
        let fresh = now.saturating_duration_since(self.made) < FRESH && Arc::ptr_eq(&self.policy, policy);
        (fresh && self.question == question).then_some(&self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_question_is_answered() {
        let versioned =
            || Arc::new(Versioned { generation: 1, hash: String::new(), policy: Policy::default() });
        let (policy, now) = (versioned(), Instant::now());
        let prepared =
            Prepared::new(r#"{"metadata":{}}"#, &["a", "b"], &[3, 10], &policy, now).expect("names");
        let question = br#"{"Pod":{"metadata":{}},"Nodes":null,"NodeNames":["a","b"]}"#;
        let answer = br#"[{"Host":"a","Score":3},{"Host":"b","Score":10}]"#;
        assert_eq!(prepared.to(question, &policy, now), Some(&answer[..]));
        assert_eq!(prepared.to(&question[1..], &policy, now), None);
        let other = br#"{"Pod":{"metadata":{}},"Nodes":null,"NodeNames":["b","a"]}"#;
        assert_eq!(prepared.to(other, &policy, now), None);
        assert_eq!(prepared.to(question, &versioned(), now), None, "another policy is in force");
        assert_eq!(prepared.to(question, &policy, now + FRESH), None);
    }
}
