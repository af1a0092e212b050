//! What of a container's log is asked for: the query of `/containerLogs`, as the API server writes it.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

/// As it comes in; what a kubelet does not know either is ignored.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Raw {
    follow: Option<String>,
    previous: Option<String>,
    timestamps: Option<String>,
    tail_lines: Option<String>,
    limit_bytes: Option<String>,
    since_seconds: Option<String>,
    since_time: Option<String>,
    stream: Option<String>,
}

/// As it is meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own, none excludes another")]
pub(super) struct Query {
    /// Go on with what is written later.
    pub(super) follow: bool,
    /// The run before this one.
    pub(super) previous: bool,
    /// Put the time before each line.
    pub(super) timestamps: bool,
    /// At most so many of the newest lines.
    pub(super) tail: Option<usize>,
    /// At most so many bytes.
    pub(super) limit: Option<usize>,
    /// Nothing older.
    pub(super) since: Option<Timestamp>,
    /// Standard error was asked for, on which a journal writes nothing.
    pub(super) stderr: bool,
}

/// Why it cannot be meant so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryError {
    #[error("{name} is not {wanted}")]
    Unreadable { name: &'static str, wanted: &'static str },
    #[error("at most one of sinceTime or sinceSeconds may be specified")]
    TwoBeginnings,
}

impl Raw {
    pub(super) fn read(self, now: Timestamp) -> Result<Query, QueryError> {
        let seconds = whole("sinceSeconds", self.since_seconds.as_deref(), 1)?;
        let time =
            match self.since_time.as_deref().filter(|text| !text.is_empty()) {
                Some(text) => Some(text.parse::<Timestamp>().map_err(|_| QueryError::Unreadable {
                    name: "sinceTime",
                    wanted: "a time of RFC 3339",
                })?),
                None => None,
            };
        if seconds.is_some() && time.is_some() {
            return Err(QueryError::TwoBeginnings);
        }
        let before =
            |seconds: i64| now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN);
        let count = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Query {
            follow: yes("follow", self.follow.as_deref())?,
            previous: yes("previous", self.previous.as_deref())?,
            timestamps: yes("timestamps", self.timestamps.as_deref())?,
            tail: whole("tailLines", self.tail_lines.as_deref(), 0)?.map(count),
            limit: whole("limitBytes", self.limit_bytes.as_deref(), 1)?.map(count),
            since: time.or(seconds.map(before)),
            stderr: self.stream.is_some_and(|stream| stream.eq_ignore_ascii_case("stderr")),
        })
    }
}

fn whole(name: &'static str, text: Option<&str>, least: i64) -> Result<Option<i64>, QueryError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let number = text.parse::<i64>().ok().filter(|number| *number >= least);
    let wanted = if least == 0 { "a whole number of at least 0" } else { "a whole number of at least 1" };
    number.map(Some).ok_or(QueryError::Unreadable { name, wanted })
}

fn yes(name: &'static str, text: Option<&str>) -> Result<bool, QueryError> {
    match text {
        None | Some("" | "0" | "false" | "False" | "FALSE") => Ok(false),
        Some("1" | "true" | "True" | "TRUE") => Ok(true),
        Some(_) => Err(QueryError::Unreadable { name, wanted: "true or false" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Query, QueryError> {
        let object: serde_json::Map<_, _> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        let raw: Raw = serde_json::from_value(object.into()).expect("texts");
        raw.read(Timestamp::from_second(1_800_000_000).expect("time"))
    }

    #[test]
    fn what_the_api_server_writes_is_understood() {
        let query = read(&[
            ("follow", "true"),
            ("tailLines", "0"),
            ("limitBytes", "10"),
            ("sinceSeconds", "60"),
            ("timestamps", "1"),
            ("container", "shop"),
        ]);
        let expected = Query {
            follow: true,
            timestamps: true,
            tail: Some(0),
            limit: Some(10),
            since: Timestamp::from_second(1_799_999_940).ok(),
            ..Query::default()
        };
        assert_eq!(query, Ok(expected));
        let query =
            read(&[("sinceTime", "2026-11-29T19:00:00Z"), ("previous", "false"), ("stream", "Stderr")]);
        let query = query.expect("understood");
        assert_eq!(query.since, "2026-11-29T19:00:00Z".parse().ok());
        assert!(query.stderr && !query.previous);
        assert_eq!(read(&[]), Ok(Query::default()));
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (key, value) in [
            ("tailLines", "-1"),
            ("tailLines", "many"),
            ("limitBytes", "0"),
            ("sinceSeconds", "0"),
            ("sinceTime", "yesterday"),
            ("follow", "perhaps"),
        ] {
            let error = read(&[(key, value)]).expect_err(value).to_string();
            assert!(error.starts_with(key), "{error}");
        }
        let both = read(&[("sinceSeconds", "1"), ("sinceTime", "2026-11-29T19:00:00Z")]);
        assert_eq!(both, Err(QueryError::TwoBeginnings));
        let far = read(&[("sinceSeconds", &i64::MAX.to_string())]).expect("long ago");
        assert_eq!(far.since, Some(Timestamp::MIN));
    }
}
