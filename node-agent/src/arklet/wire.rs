//! What arklet sends and takes. Every field of a reply is optional, unknown ones are ignored, states are read
//! in any case, and numbers may be integers or floats: bases of many versions are in use at once.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Body of `installBiz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Install {
    /// Name of the module.
    pub biz_name: String,
    /// Version of the module.
    pub biz_version: String,
    /// Where the base fetches the jar; may carry credentials.
    pub biz_url: String,
    /// Arguments of the module's main.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// Body of `uninstallBiz` and `switchBiz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Named<'a> {
    pub(super) biz_name: &'a str,
    pub(super) biz_version: &'a str,
}

impl<'a> Named<'a> {
    pub(super) fn of(biz_name: &'a str, biz_version: &'a str) -> Self {
        Self { biz_name, biz_version }
    }
}

/// The envelope of every reply.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Reply {
    /// `SUCCESS`, `FAILED`, `CMD_NOT_FOUND`, `CMD_PROCESS_INTERNAL_ERROR`.
    #[serde(deserialize_with = "text")]
    pub code: String,
    /// Text of a failure.
    #[serde(deserialize_with = "text")]
    pub message: String,
    /// Depends on the command; carries the inner code.
    pub data: Value,
    /// A Java stack of several KB.
    #[serde(deserialize_with = "text")]
    pub error_stack_trace: String,
}

impl Reply {
    /// The code of ark inside `data`, empty when there is none.
    pub fn inner_code(&self) -> &str {
        self.data.get("code").and_then(Value::as_str).unwrap_or_default()
    }

    /// The message of ark inside `data`, empty when there is none.
    pub fn inner_message(&self) -> &str {
        self.data.get("message").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether both codes say success.
    pub fn succeeded(&self) -> bool {
        self.code.eq_ignore_ascii_case("SUCCESS")
            && (self.inner_code().is_empty() || self.inner_code().eq_ignore_ascii_case("SUCCESS"))
    }

    /// The module that `installBiz` says it installed: its identity comes from the jar, not from the request.
    pub fn installed(&self) -> Option<Biz> {
        let first = self.data.get("bizInfos")?.as_array()?.first()?;
        serde_json::from_value(first.clone()).ok()
    }

    /// The modules of a `queryAllBiz`; `None` when the reply carries no list.
    pub fn modules(&self) -> Option<Vec<Biz>> {
        if !self.code.eq_ignore_ascii_case("SUCCESS") {
            return None;
        }
        let list = self.data.as_array()?;
        // An entry that cannot be read must not hide the others, but it must not make a module look absent
        // either: then it would be installed a second time.
        list.iter().map(|entry| serde_json::from_value(entry.clone()).ok()).collect()
    }
}

/// State of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BizState {
    /// Known to ark, not resolved yet; never listed by the versions known.
    Unresolved,
    /// Loaded, its main has not returned yet.
    Resolved,
    /// Its main has returned.
    Activated,
    /// Loaded, but another version is the active one.
    Deactivated,
    /// Its start or stop failed and it is still registered.
    Broken,
    /// Stopped; never listed by the versions known.
    Stopped,
    /// Absent, or a word of a version we do not know.
    #[default]
    Unknown,
}

impl BizState {
    /// Reads any casing.
    pub fn parse(word: &str) -> Self {
        const STATES: [BizState; 6] = [
            BizState::Unresolved,
            BizState::Resolved,
            BizState::Activated,
            BizState::Deactivated,
            BizState::Broken,
            BizState::Stopped,
        ];
        STATES.into_iter().find(|state| state.word().eq_ignore_ascii_case(word.trim())).unwrap_or_default()
    }

    /// The word on the wire of current versions.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unresolved => "unresolved",
            Self::Resolved => "resolved",
            Self::Activated => "activated",
            Self::Deactivated => "deactivated",
            Self::Broken => "broken",
            Self::Stopped => "stopped",
            Self::Unknown => "unknown",
        }
    }
}

/// One module as a base lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Biz {
    /// Name of the module.
    #[serde(rename = "bizName")]
    pub name: String,
    /// Version of the module.
    #[serde(rename = "bizVersion")]
    pub version: String,
    /// Its state.
    #[serde(rename = "bizState", default, deserialize_with = "state")]
    pub state: BizState,
    /// Declared context path; `/` when nothing is declared.
    #[serde(default, deserialize_with = "optional_text")]
    pub web_context_path: Option<String>,
    /// How it came to its state, oldest first; older versions do not tell. At most 8, the newest.
    #[serde(rename = "bizStateRecords", default, deserialize_with = "records")]
    pub records: Vec<StateRecord>,
}

impl Biz {
    /// When it was last activated, by the base's clock.
    pub fn activated_at(&self) -> Option<Timestamp> {
        self.records.iter().rev().find(|record| record.state == BizState::Activated)?.at
    }

    /// The base is stopping it: ark deactivates what it is about to uninstall, and says why. Versions that tell no
    /// records do not tell this.
    pub fn is_stopping(&self) -> bool {
        self.state == BizState::Deactivated
            && self.records.last().is_some_and(|last| last.reason.eq_ignore_ascii_case("Killing"))
    }
}

/// State records kept of a module: a life has four states, and whoever switches versions all day long must not fill the
/// memory.
const RECORDS: usize = 8;

/// A change of a module's state, as the base tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRecord {
    /// When, by the base's clock.
    pub at: Option<Timestamp>,
    /// To which state.
    pub state: BizState,
    /// Why, in the base's words, cut; mostly empty.
    pub reason: String,
}

/// What `health` tells of the JVM.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Jvm {
    /// `17.0.15`.
    pub java_version: Option<String>,
    /// Bytes.
    pub metaspace_used: Option<i64>,
    /// Bytes.
    pub metaspace_committed: Option<i64>,
    /// Bytes; `None` when the JVM has no limit.
    pub metaspace_max: Option<i64>,
    /// Classes unloaded since the start of the JVM.
    pub unloaded_classes: Option<i64>,
    /// Classes loaded now.
    pub loaded_classes: Option<i64>,
}

impl Jvm {
    /// Reads the `jvm` part of a health reply; keys that are missing stay unknown, because arklet mixes up
    /// the answers of callers that ask at the same time.
    pub fn read(reply: &Reply) -> Option<Self> {
        let jvm = reply.data.get("healthData")?.get("jvm")?.as_object()?;
        let number = |key: &str| jvm.get(key).and_then(integer);
        Some(Self {
            java_version: jvm
                .get("java version")
                .and_then(Value::as_str)
                .filter(|version| !version.is_empty() && version.len() <= 64)
                .map(ToOwned::to_owned),
            metaspace_used: number("java used metaspace").filter(|bytes| *bytes >= 0),
            metaspace_committed: number("java committed metaspace").filter(|bytes| *bytes >= 0),
            metaspace_max: number("java max metaspace").filter(|bytes| *bytes > 0),
            unloaded_classes: number("unload class count").filter(|count| *count >= 0),
            loaded_classes: number("loaded class count").filter(|count| *count >= 0),
        })
    }
}

fn integer(value: &Value) -> Option<i64> {
    if let Some(whole) = value.as_i64() {
        return Some(whole);
    }
    let float = value.as_f64()?;
    // Beyond 2^53 a float no longer says which integer was meant; no metaspace is that large.
    (float.is_finite() && float.abs() < 9_007_199_254_740_992.0).then(|| {
        #[expect(clippy::cast_possible_truncation, reason = "bounded just above")]
        let whole = float as i64;
        whole
    })
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    })
}

fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) if !text.is_empty() => Some(text),
        _ => None,
    })
}

fn state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BizState, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_str().map(BizState::parse).unwrap_or_default())
}

/// The newest records that name a state; those of older versions are `{}`.
fn records<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<StateRecord>, D::Error> {
    let records = Value::deserialize(deserializer)?;
    let mut newest: Vec<_> =
        records.as_array().into_iter().flatten().rev().filter_map(state_record).take(RECORDS).collect();
    newest.reverse();
    Ok(newest)
}

fn state_record(record: &Value) -> Option<StateRecord> {
    let state = BizState::parse(record.get("state")?.as_str()?);
    let at = record.get("changeTime").and_then(integer);
    let word = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or_default();
    let reason: String = [word("reason"), word("message")].join(" ").trim().chars().take(128).collect();
    Some(StateRecord { at: at.and_then(|millis| Timestamp::from_millisecond(millis).ok()), state, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(json: &str) -> Reply {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn reads_a_list_in_either_casing_with_and_without_records() {
        let list = reply(
            r#"{"code":"SUCCESS","data":[
              {"bizName":"shop","bizVersion":"1.0.0","bizState":"activated","webContextPath":"shop",
               "bizStateRecords":[{"changeTime":1795958105107,"state":"resolved"},
                                  {"changeTime":1795958105172.0,"state":"activated","reason":"Started"}]},
              {"bizName":"cart","bizVersion":"2","bizState":"DEACTIVATED","bizStateRecords":[{},{}]},
              {"bizName":"new","bizVersion":"3","bizState":"hibernating","extra":[1]}]}"#,
        )
        .modules()
        .unwrap();
        assert_eq!(list.len(), 3);
        assert_eq!(list[0].state, BizState::Activated);
        assert_eq!(list[0].activated_at(), Timestamp::from_millisecond(1_795_958_105_172).ok());
        let told: Vec<_> =
            list[0].records.iter().map(|record| (record.state, record.reason.as_str())).collect();
        assert_eq!(told, [(BizState::Resolved, ""), (BizState::Activated, "Started")]);
        assert_eq!(list[1].state, BizState::Deactivated);
        assert_eq!((list[1].activated_at(), &list[1].records), (None, &Vec::new()));
        assert_eq!(list[2].state, BizState::Unknown);
    }

    #[test]
    fn a_reply_without_a_readable_list_is_no_empty_list() {
        for json in [
            "{}",
            r#"{"code":"SUCCESS"}"#,
            r#"{"code":"SUCCESS","data":{}}"#,
            r#"{"code":"FAILED","data":[]}"#,
            r#"{"code":"SUCCESS","data":[{"bizName":"x"}]}"#,
        ] {
            assert_eq!(reply(json).modules(), None, "{json}");
        }
        assert_eq!(reply(r#"{"code":"success","data":[]}"#).modules(), Some(Vec::new()));
    }

    #[test]
    fn no_limit_of_metaspace_is_unknown() {
        let jvm = Jvm::read(&reply(
            r#"{"code":"SUCCESS","data":{"healthData":{"jvm":{"java version":"17.0.15",
               "java used metaspace":16763448.0,"java max metaspace":-1,"unload class count":3}}}}"#,
        ))
        .unwrap();
        assert_eq!(jvm.metaspace_used, Some(16_763_448));
        assert_eq!(jvm.metaspace_max, None);
        assert_eq!(jvm.unloaded_classes, Some(3));
        assert_eq!(jvm.java_version.as_deref(), Some("17.0.15"));
    }

    #[test]
    fn an_install_that_says_success_inside_and_outside_succeeded() {
        assert!(reply(r#"{"code":"SUCCESS","data":{"code":"SUCCESS"}}"#).succeeded());
        assert!(!reply(r#"{"code":"FAILED","data":{"code":"REPEAT_BIZ"}}"#).succeeded());
        assert!(!reply(r#"{"code":"SUCCESS","data":{"code":"FAILED"}}"#).succeeded());
        assert!(!reply("{}").succeeded());
    }

    proptest::proptest! {
        #[test]
        fn any_json_is_read_without_a_panic(code in ".{0,20}", data in ".{0,60}") {
            let json = serde_json::json!({"code": code, "data": {"bizInfos": [data], "healthData": {"jvm": {"java version": 3}}}});
            if let Ok(reply) = serde_json::from_value::<Reply>(json) {
                let _ = (reply.modules(), reply.installed(), Jvm::read(&reply), reply.succeeded());
            }
        }
    }
}
