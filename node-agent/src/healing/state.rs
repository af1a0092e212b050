//! What is written on a Node of the healing of its base, so that any agent can go on from there.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::detect::Cause;

/// Version of the format. Later ones may add fields; readers skip what they do not know.
const FORMAT: u32 = 1;
/// Most bytes of the annotation: a UID and a few names.
const LONGEST: usize = 4 * 1024;

/// How far the healing of a base has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// The base is overloaded; something hinders the beginning.
    Waiting,
    /// Nothing new may come, and VPods are evicted within their budgets.
    Evicting,
    /// The deadline has passed: what is left is deleted.
    Forcing,
    /// No VPod is left that could go elsewhere: the base Pod is evicted.
    Replacing,
}

impl Step {
    /// Stable code for Events, conditions, metrics and docs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "HealingWaits",
            Self::Evicting => "HealingEvicts",
            Self::Forcing => "HealingForces",
            Self::Replacing => "HealingReplaces",
        }
    }
}

/// The VPod that was evicted last. Written down before the eviction is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evicted {
    /// UID of the VPod.
    pub uid: String,
    /// UID of its controller; `None`: nobody makes a replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Ready VPods of that controller elsewhere, before it went.
    pub elsewhere: usize,
    /// The next one waits for its replacement.
    pub awaited: bool,
}

/// The healing of one base, as it stands on its Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Healing {
    /// UID of the base Pod.
    pub base: String,
    /// Start of the base container whose JVM is overloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Why.
    pub cause: Cause,
    /// When it was found.
    pub found: Timestamp,
    /// How far it has come.
    pub step: Step,
    /// When the first VPod could be evicted: the deadline counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Timestamp>,
    /// The VPod evicted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted: Option<Evicted>,
}

#[derive(Serialize, Deserialize)]
struct Written<T> {
    v: u32,
    #[serde(flatten)]
    healing: T,
}

impl Healing {
    /// A base was found to be overloaded.
    pub fn found(base: &str, started: Option<Timestamp>, cause: Cause, now: Timestamp) -> Self {
        let found = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self { base: base.to_owned(), started, cause, found, step: Step::Waiting, begun: None, evicted: None }
    }

    /// Whether anything was done yet that others see.
    pub fn has_begun(&self) -> bool {
        self.step != Step::Waiting
    }

    /// Reads the annotation; `None` for what no version of ours wrote.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let written: Written<Self> = serde_json::from_str(text).ok()?;
        (written.v == FORMAT).then_some(written.healing)
    }

    /// Writes the annotation.
    pub fn to_annotation(&self) -> String {
        // Plain values and text: nothing in it can fail to serialise.
        serde_json::to_string(&Written { v: FORMAT, healing: self }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let at = Timestamp::from_second(1_800_000_000).expect("time");
        let mut healing = Healing::found("u-1", Some(at), Cause::Exhausted, at);
        assert_eq!(Healing::parse(&healing.to_annotation()), Some(healing.clone()));
        healing.step = Step::Evicting;
        healing.begun = Some(at);
        healing.evicted =
            Some(Evicted { uid: "p".to_owned(), controller: None, elsewhere: 2, awaited: true });
        let text = healing.to_annotation();
        assert_eq!(Healing::parse(&text), Some(healing));
        assert!(
            text.starts_with(r#"{"v":1,"base":"u-1""#) && text.contains(r#""step":"evicting""#),
            "{text}"
        );
        for wrong in [
            "",
            "{}",
            r#"{"v":1}"#,
            &text.replace("\"v\":1", "\"v\":2"),
            &format!("{text}{}", " ".repeat(LONGEST)),
        ] {
            assert_eq!(Healing::parse(wrong), None, "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,200}") {
            let _ = Healing::parse(&text);
        }
    }
}
