//! The question and the answer of `preempt`.
//!
//! kube-scheduler sends whole Pods or, with `nodeCacheCapable: true`, their UIDs; it is answered with UIDs in both cases.
//! It follows every pointer of the answer without a look: a `null` in it ends the process.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{QuestionError, bounded};

/// The question of `preempt`.
#[derive(Debug)]
pub struct PreemptQuestion {
    /// The Pod that looks for a place.
    pub pod: Pod,
    /// Nodes on which kube-scheduler would make room.
    pub candidates: Vec<Candidate>,
}

/// A node, and whom kube-scheduler would evict there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: String,
    /// UIDs of the Pods, each once; none where room was not the obstacle (from Kubernetes 1.38).
    pub victims: Vec<String>,
    /// How many `PodDisruptionBudgets` that would violate.
    pub violations: i64,
}

/// The answer of `preempt`: the candidates that stay. What is left out is not evicted from.
#[derive(Debug, Default)]
pub struct PreemptAnswer {
    /// What stays, as it was asked.
    pub candidates: Vec<Candidate>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow, rename = "Pod", alias = "pod", default)]
    pod: Option<&'a RawValue>,
    #[serde(rename = "NodeNameToVictims", alias = "nodeNameToVictims", alias = "nodenametovictims", default)]
    whole: Option<BTreeMap<String, Option<Victims<WholePod>>>>,
    #[serde(
        rename = "NodeNameToMetaVictims",
        alias = "nodeNameToMetaVictims",
        alias = "nodenametometavictims",
        default
    )]
    named: Option<BTreeMap<String, Option<Victims<NamedPod>>>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "P: Deserialize<'de>"))]
struct Victims<P> {
    #[serde(rename = "Pods", alias = "pods", default = "none", deserialize_with = "bounded::list")]
    pods: Option<Vec<Option<P>>>,
    #[serde(rename = "NumPDBViolations", alias = "numPDBViolations", alias = "numpdbviolations", default)]
    violations: i64,
}

fn none<T>() -> Option<T> {
    None
}

#[derive(Deserialize)]
struct NamedPod {
    #[serde(rename = "UID", alias = "uid", default)]
    uid: String,
}

#[derive(Deserialize)]
struct WholePod {
    #[serde(default)]
    metadata: WholeMeta,
}

#[derive(Deserialize, Default)]
struct WholeMeta {
    #[serde(default)]
    uid: String,
}

impl PreemptQuestion {
    /// Reads a request body. When both maps are set, the UIDs are the question. A node without victims at all (`null`)
    /// is no candidate.
    ///
    /// # Errors
    /// When the body is no such question.
    pub fn parse(body: &[u8]) -> Result<Self, QuestionError> {
        if bounded::commas(body) > bounded::PIECES {
            return Err(QuestionError::TooLong);
        }
        let arguments: Option<Arguments<'_>> = serde_json::from_slice(body)?;
        let Arguments { pod, whole, named } = arguments.ok_or(QuestionError::NoPod)?;
        let pod = bounded::pod(pod)?;
        let candidates = match (named, whole) {
            (Some(named), _) => candidates(named, |NamedPod { uid }| uid),
            (None, Some(whole)) => candidates(whole, |WholePod { metadata }| metadata.uid),
            (None, None) => return Err(QuestionError::NoNodes),
        };
        Ok(Self { pod, candidates })
    }
}

fn candidates<P>(map: BTreeMap<String, Option<Victims<P>>>, uid: fn(P) -> String) -> Vec<Candidate> {
    let candidate = |(node, victims): (String, Option<Victims<P>>)| {
        let Victims { pods, violations } = victims?;
        let mut seen = BTreeSet::new();
        let uids = pods.into_iter().flatten().flatten().map(uid);
        let victims = uids.filter(|uid| !uid.is_empty() && seen.insert(uid.clone())).collect();
        Some(Candidate { node, victims, violations })
    };
    map.into_iter().filter_map(candidate).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PreemptResult<'a> {
    node_name_to_meta_victims: BTreeMap<&'a str, MetaVictims<'a>>,
}

#[derive(Serialize)]
struct MetaVictims<'a> {
    #[serde(rename = "Pods")]
    pods: Vec<MetaPod<'a>>,
    #[serde(rename = "NumPDBViolations")]
    violations: i64,
}

#[derive(Serialize)]
struct MetaPod<'a> {
    #[serde(rename = "UID")]
    uid: &'a str,
}

impl PreemptAnswer {
    /// The answer's JSON. No value in it is ever null.
    ///
    /// # Errors
    /// Practically never: everything in it is text and numbers.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut map = BTreeMap::new();
        for Candidate { node, victims, violations } in &self.candidates {
            let pods = victims.iter().map(|uid| MetaPod { uid }).collect();
            map.insert(node.as_str(), MetaVictims { pods, violations: *violations });
        }
        serde_json::to_vec(&PreemptResult { node_name_to_meta_victims: map })
    }
}
