//! What a body of a few megabytes may become in memory: an empty object or text takes three bytes of JSON and up to a
//! thousand as a value.

use std::marker::PhantomData;

use k8s_openapi::api::core::v1::Pod;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::QuestionError;

/// Elements of a list at most. The largest clusters have a quarter of that many Nodes.
const ELEMENTS: usize = 250_000;
/// Bytes of a Pod at most. The API server takes no request that is larger.
const POD: usize = 3 << 20;
/// Objects in a Pod at most: containers, variables, volumes and the like.
const OBJECTS: usize = 50_000;
/// Elements of all lists and objects of a question about evictions together. Whole Pods have some thirty bytes for each.
pub(super) const PIECES: usize = 2_500_000;

/// A list, or null.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<List<T>>::deserialize(deserializer).map(|list| list.map(|List(elements)| elements))
}

struct List<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Elements(PhantomData)).map(Self)
    }
}

struct Elements<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a list of at most {ELEMENTS} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = sequence.next_element()? {
            if elements.len() >= ELEMENTS {
                return Err(A::Error::custom("too many elements in a list"));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}

/// The Pod of a question.
pub(super) fn pod(raw: Option<&RawValue>) -> Result<Pod, QuestionError> {
    let text = raw.ok_or(QuestionError::NoPod)?.get();
    if text.len() > POD || unquoted(text.as_bytes(), b'{') > OBJECTS {
        return Err(QuestionError::LargePod);
    }
    Ok(serde_json::from_str(text)?)
}

/// Commas of a JSON text: there is one before each element of a list or an object but the first.
pub(super) fn commas(body: &[u8]) -> usize {
    unquoted(body, b',')
}

/// How often a byte stands in a JSON text, strings left out.
fn unquoted(text: &[u8], wanted: u8) -> usize {
    let (mut count, mut quoted, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            byte if *byte == wanted && !quoted => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_in_texts_are_no_objects() {
        let text = br#"{"a":"{{\"{,","b\\":{"c":[{},{}]}}"#;
        assert_eq!((unquoted(text, b'{'), commas(text)), (4, 2));
    }

    #[test]
    fn what_is_larger_than_any_pod_is_refused_unread() {
        let body = format!(r#"{{"spec":{{"containers":[{}{{}}]}}}}"#, "{},".repeat(OBJECTS));
        let raw: &RawValue = serde_json::from_str(&body).expect("JSON");
        assert!(matches!(pod(Some(raw)), Err(QuestionError::LargePod)));
        let body = format!(r#"{{"metadata":{{"name":"{}"}}}}"#, "x".repeat(POD));
        let raw: &RawValue = serde_json::from_str(&body).expect("JSON");
        assert!(matches!(pod(Some(raw)), Err(QuestionError::LargePod)));
        assert!(matches!(pod(None), Err(QuestionError::NoPod)));
    }
}
