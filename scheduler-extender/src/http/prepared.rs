//! Scores that `filter` found on its way, for the call of `prioritize` that follows at once.
//!
//! kube-scheduler asks `prioritize` with the body that `filter` got, less the nodes that were refused, and right after it.
//! Walking through thousands of nodes a second time costs as much as the first time. So `filter` scores what fits while it
//! has it in its hands, and keeps the answer to exactly that question for a moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use policy::Policy;
use serde_json::value::RawValue;
use service::policy_file::Versioned;

/// How long an answer may be kept: long enough for kube-scheduler's own scores to be made.
const FRESH: Duration = Duration::from_secs(1);

/// The answer to one question.
#[derive(Debug)]
pub(super) struct Prepared {
    pod: Box<str>,
    list: Box<RawValue>,
    /// How many nodes the question names.
    pub(super) nodes: usize,
    answer: Vec<u8>,
    policy: Arc<Versioned<Policy>>,
    made: Instant,
}

impl Prepared {
    /// For a Pod, as kube-scheduler wrote it, and the list of the nodes that fit it.
    pub(super) fn new(
        pod: &str,
        list: Box<RawValue>,
        nodes: usize,
        answer: Vec<u8>,
        policy: &Arc<Versioned<Policy>>,
        made: Instant,
    ) -> Self {
        Self { pod: pod.into(), list, nodes, answer, policy: Arc::clone(policy), made }
    }

    /// The answer, if this is the question.
    pub(super) fn to(&self, question: &[u8], policy: &Arc<Versioned<Policy>>, now: Instant) -> Option<&[u8]> {
        let fresh = now.saturating_duration_since(self.made) < FRESH && Arc::ptr_eq(&self.policy, policy);
        (fresh && self.is_about(question)).then_some(&self.answer)
    }

    fn is_about(&self, question: &[u8]) -> bool {
        let parts = ["{\"Pod\":", &*self.pod, ",\"Nodes\":null,\"NodeNames\":", self.list.get(), "}"];
        let mut rest = Some(question);
        for part in parts {
            rest = rest.and_then(|rest| rest.strip_prefix(part.as_bytes()));
        }
        rest.is_some_and(<[u8]>::is_empty)
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
        let list = RawValue::from_string(r#"["a","b"]"#.to_owned()).expect("JSON");
        let answer = br#"[{"Host":"b","Score":7}]"#;
        let prepared = Prepared::new(r#"{"metadata":{}}"#, list, 2, answer.to_vec(), &policy, now);
        let question = br#"{"Pod":{"metadata":{}},"Nodes":null,"NodeNames":["a","b"]}"#;
        assert_eq!(prepared.to(question, &policy, now), Some(&answer[..]));
        for part in [&question[1..], &question[..question.len() - 1], &[question.as_slice(), b" "].concat()] {
            assert_eq!(prepared.to(part, &policy, now), None);
        }
        let other = br#"{"Pod":{"metadata":{}},"Nodes":null,"NodeNames":["b","a"]}"#;
        assert_eq!(prepared.to(other, &policy, now), None);
        assert_eq!(prepared.to(question, &versioned(), now), None, "another policy is in force");
        assert_eq!(prepared.to(question, &policy, now + FRESH), None);
    }
}
