//! Moves every time in a JSON text, as a client sees it whose clock is off.

use http::HeaderValue;
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use serde_json::Value;

/// The text with every value that is a time moved by `by`. What is not JSON stays as it is.
pub(super) fn moved(text: &[u8], by: SignedDuration) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    shift(&mut value, by);
    serde_json::to_vec(&value).ok()
}

fn shift(value: &mut Value, by: SignedDuration) {
    match value {
        Value::String(text) => {
            if let Some(later) = shifted(text, by) {
                *text = later;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| shift(value, by)),
        Value::Object(fields) => fields.values_mut().for_each(|value| shift(value, by)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Times keep their number of digits: Kubernetes reads some of them only so.
fn shifted(text: &str, by: SignedDuration) -> Option<String> {
    if !(20..=30).contains(&text.len()) || !text.ends_with('Z') {
        return None;
    }
    let time: Timestamp = text.parse().ok()?;
    let later = time.checked_add(by).ok()?;
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len() - 1);
    Some(format!("{later:.digits$}"))
}

/// The header `Date`, moved.
pub(super) fn date(value: &HeaderValue, by: SignedDuration) -> Option<HeaderValue> {
    let time = rfc2822::DateTimeParser::new().parse_timestamp(value.to_str().ok()?).ok()?;
    let later = time.checked_add(by).ok()?;
    let text = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&later).ok()?;
    HeaderValue::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_moved_and_moved_back() {
        let hour = SignedDuration::from_hours(1);
        let text =
            br#"{"a":["2026-01-01T00:00:00Z",{"b":"2026-01-01T23:30:00.000001Z"}],"c":"x","d":"2026-01-01"}"#;
        let later = moved(text, hour).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&later),
            r#"{"a":["2026-01-01T01:00:00Z",{"b":"2026-01-02T00:30:00.000001Z"}],"c":"x","d":"2026-01-01"}"#
        );
        assert_eq!(moved(&later, -hour).unwrap(), text);
        assert_eq!(moved(b"ok", hour), None);
        let head = HeaderValue::from_static("Sun, 06 Nov 1994 23:49:37 GMT");
        assert_eq!(date(&head, hour).unwrap(), "Mon, 07 Nov 1994 00:49:37 GMT");
    }
}
