//! kube-scheduler's JSON: what it asks and what it is answered.
//!
//! The Go types carry no JSON tags, so kube-scheduler sends `NodeNames`; older documents and other callers send
//! `nodeNames` or `nodenames`. Go reads keys in any case, serde does not, hence the aliases. Unknown keys are ignored,
//! strings are borrowed from the body, and Node objects (`nodeCacheCapable: false`) pass through byte for byte.

mod bind;
mod bounded;
mod priorities;
mod victims;

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use strum::{EnumDiscriminants, EnumIter, IntoEnumIterator};

pub use bind::BindQuestion;
pub use priorities::priorities;
pub use victims::{Candidate, PreemptAnswer, PreemptQuestion};

/// The question of `filter` and `prioritize`.
#[derive(Debug)]
pub struct Question<'a> {
    /// The Pod that looks for a place.
    pub pod: Pod,
    /// The Pod as it was written.
    pub pod_text: &'a str,
    /// The names asked about, in the order of the question; repeated ones stay repeated.
    pub names: Vec<Cow<'a, str>>,
    /// The Node objects behind `names`, where the caller sent objects.
    pub objects: Option<Vec<&'a RawValue>>,
    /// Whether the caller sent names, and reads names in the answer.
    pub by_name: bool,
}

/// Why a question cannot be understood. The texts hold nothing that moves and no percent sign.
#[derive(Debug, thiserror::Error, EnumDiscriminants)]
#[strum_discriminants(name(QuestionErrorKind), vis(), derive(EnumIter))]
pub enum QuestionError {
    /// The body is not what kube-scheduler sends.
    #[error("the request cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// `Pod` is absent or null.
    #[error("the request names no Pod")]
    NoPod,
    /// `Nodes` and `NodeNames` are both absent or null.
    #[error("the request names no Nodes: neither Nodes nor NodeNames is set")]
    NoNodes,
    /// Larger than the API server takes.
    #[error("the Pod in the request is larger than any Pod can be")]
    LargePod,
    /// More victims and Nodes than any cluster has.
    #[error("the request is longer than any that kube-scheduler sends")]
    TooLong,
    /// A Node object without a name.
    #[error("a Node in the request has no name")]
    NamelessNode,
    /// `bind`: a name, namespace or UID that no Pod or Node can have.
    #[error("the request names a Pod or a Node that cannot exist")]
    NoName,
}

impl QuestionError {
    /// One of each kind, in the order of the list; for documents.
    pub fn examples() -> impl Iterator<Item = Self> {
        use serde::de::Error;
        QuestionErrorKind::iter().map(|kind| match kind {
            QuestionErrorKind::Json => Self::Json(serde_json::Error::custom("<why>")),
            QuestionErrorKind::NoPod => Self::NoPod,
            QuestionErrorKind::NoNodes => Self::NoNodes,
            QuestionErrorKind::LargePod => Self::LargePod,
            QuestionErrorKind::TooLong => Self::TooLong,
            QuestionErrorKind::NamelessNode => Self::NamelessNode,
            QuestionErrorKind::NoName => Self::NoName,
        })
    }
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow, rename = "Pod", alias = "pod", default)]
    pod: Option<&'a RawValue>,
    #[serde(borrow, rename = "Nodes", alias = "nodes", default)]
    nodes: Option<NodeList<'a>>,
    #[serde(
        borrow,
        rename = "NodeNames",
        alias = "nodeNames",
        alias = "nodenames",
        default,
        deserialize_with = "bounded::list"
    )]
    node_names: Option<Vec<Text<'a>>>,
}

#[derive(Deserialize)]
struct NodeList<'a> {
    #[serde(borrow, alias = "Items", default, deserialize_with = "bounded::list")]
    items: Option<Vec<&'a RawValue>>,
}

/// A string that is borrowed unless it has escapes. A bare `Cow` in a list would always be copied.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct NodeHead<'a> {
    #[serde(borrow)]
    metadata: NodeMeta<'a>,
}

#[derive(Deserialize)]
struct NodeMeta<'a> {
    #[serde(borrow, default)]
    name: Option<Text<'a>>,
}

impl<'a> Question<'a> {
    /// Reads a request body. When both `NodeNames` and `Nodes` are set, the names are the question.
    ///
    /// # Errors
    /// When the body is no such question.
    pub fn parse(body: &'a [u8]) -> Result<Self, QuestionError> {
        // kube-scheduler never sends `null`, but a caller that marshals a nil pointer does.
        let arguments: Option<Arguments<'a>> = serde_json::from_slice(body)?;
        let Arguments { pod, nodes, node_names } = arguments.ok_or(QuestionError::NoPod)?;
        let pod_text = pod.map(RawValue::get).unwrap_or_default();
        let pod = bounded::pod(pod)?;
        let objects = nodes.map(|list| list.items.unwrap_or_default());
        let by_name = node_names.is_some();
        let names = match (node_names, &objects) {
            (Some(names), _) => names.into_iter().map(|Text(name)| name).collect(),
            (None, Some(objects)) => {
                objects.iter().map(|object| name_of(object)).collect::<Result<_, _>>()?
            }
            (None, None) => return Err(QuestionError::NoNodes),
        };
        Ok(Self { pod, pod_text, names, objects: if by_name { None } else { objects }, by_name })
    }
}

fn name_of(object: &RawValue) -> Result<Cow<'_, str>, QuestionError> {
    let head: NodeHead<'_> = serde_json::from_str(object.get())?;
    match head.metadata.name {
        Some(Text(name)) if !name.is_empty() => Ok(name),
        _ => Err(QuestionError::NamelessNode),
    }
}

/// The answer of `filter`. Every name of the question is in exactly one of the three places, once.
#[derive(Debug, Default)]
pub struct FilterAnswer<'a> {
    /// The nodes that fit.
    pub names: Vec<&'a str>,
    /// Their objects, where the question had objects.
    pub objects: Option<Vec<&'a RawValue>>,
    /// Nodes that could fit when other Pods go: name and reason.
    pub failed: Vec<(&'a str, Arc<str>)>,
    /// Nodes that cannot fit whatever goes: name and reason.
    pub unresolvable: Vec<(&'a str, Arc<str>)>,
    /// Set when there is no verdict; kube-scheduler then tries again within seconds.
    pub error: String,
}

impl FilterAnswer<'static> {
    /// No verdict. The text has no percent sign (old kube-schedulers take it as a format) and one line.
    pub fn fault(message: &str) -> Self {
        Self { error: plain(message), ..Self::default() }
    }
}

/// A text for people on one line, without percent signs, at most 300 characters.
pub(crate) fn plain(message: &str) -> String {
    const LONGEST: usize = 300;
    message.chars().filter(|c| *c != '%' && !c.is_control()).take(LONGEST).collect()
}

/// A JSON object written from pairs.
struct Reasons<'a>(&'a [(&'a str, Arc<str>)]);

impl Serialize for Reasons<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, reason) in self.0 {
            map.serialize_entry(name, &**reason)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Items<'a> {
    metadata: Empty,
    items: &'a [&'a RawValue],
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct FilterResult<'a> {
    nodes: Option<Items<'a>>,
    // Never null together with `Nodes`: kube-scheduler would read "no node at all" without a reason.
    node_names: Option<&'a RawValue>,
    failed_nodes: Reasons<'a>,
    failed_and_unresolvable_nodes: Reasons<'a>,
    error: &'a str,
}

impl FilterAnswer<'_> {
    /// The answer's JSON.
    ///
    /// # Errors
    /// Practically never: everything in it is text.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        self.to_json_with(self.list()?.as_deref())
    }

    /// The names as JSON, for a caller that needs them once more; `None` where objects are answered.
    ///
    /// # Errors
    /// Practically never.
    pub fn list(&self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        self.objects.is_none().then(|| serde_json::value::to_raw_value(&self.names)).transpose()
    }

    /// The answer's JSON, with what [`FilterAnswer::list`] says.
    ///
    /// # Errors
    /// Practically never: everything in it is text.
    pub fn to_json_with(&self, list: Option<&RawValue>) -> Result<Vec<u8>, serde_json::Error> {
        let Self { names: _, objects, failed, unresolvable, error } = self;
        let objects_size: usize = objects.iter().flatten().map(|object| object.get().len() + 1).sum();
        let size = list.map_or(0, |list| list.get().len())
            + 64 * (failed.len() + unresolvable.len())
            + objects_size
            + 256;
        let mut json = Vec::with_capacity(size);
        let result = FilterResult {
            nodes: objects.as_deref().map(|items| Items { metadata: Empty {}, items }),
            node_names: list,
            failed_nodes: Reasons(failed),
            failed_and_unresolvable_nodes: Reasons(unresolvable),
            error,
        };
        serde_json::to_writer(&mut json, &result)?;
        Ok(json)
    }
}

#[cfg(test)]
mod tests;
