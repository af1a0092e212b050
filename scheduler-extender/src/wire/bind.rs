//! The question of `bind`.

use serde::Deserialize;

use super::QuestionError;

/// Characters of a name at most, as the API server counts.
const LONGEST: usize = 253;

/// Which Pod is to be bound to which node. What is in it becomes part of paths at the API server, so names are names.
#[derive(Debug, Deserialize)]
pub struct BindQuestion {
    /// Name of the Pod.
    #[serde(rename = "PodName", alias = "podName", alias = "podname")]
    pub name: String,
    /// Its namespace.
    #[serde(rename = "PodNamespace", alias = "podNamespace", alias = "podnamespace")]
    pub namespace: String,
    /// Its UID.
    #[serde(rename = "PodUID", alias = "podUID", alias = "poduid")]
    pub uid: String,
    /// Name of the node.
    #[serde(rename = "Node", alias = "node")]
    pub node: String,
}

impl BindQuestion {
    /// Reads a request body.
    ///
    /// # Errors
    /// When the body is no such question, or names what cannot exist.
    pub fn parse(body: &[u8]) -> Result<Self, QuestionError> {
        let question: Self = serde_json::from_slice(body)?;
        let names = [&question.name, &question.namespace, &question.node];
        if names.into_iter().all(|name| is_name(name)) && is_uid(&question.uid) {
            Ok(question)
        } else {
            Err(QuestionError::NoName)
        }
    }
}

/// Lower-case letters, digits, `-` and `.`, with a letter or digit at both ends.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST
        && bytes.first().is_some_and(|first| plain(*first))
        && bytes.last().is_some_and(|last| plain(*last))
        && bytes.iter().all(|byte| plain(*byte) || matches!(byte, b'-' | b'.'))
}

/// As a rule a UUID, but nobody promises that.
fn is_uid(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic())
}
