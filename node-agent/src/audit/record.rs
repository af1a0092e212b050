//! One line of the audit log.

use jiff::Timestamp;
use serde::Serialize;

use crate::discovery::BaseSpec;

/// Longest text of a record, in characters. Names and versions are far shorter; a hostile one fills no disk.
const LONGEST: usize = 256;

/// What was done or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// `installBiz`.
    Install,
    /// `switchBiz`.
    Switch,
    /// `uninstallBiz`.
    Uninstall,
    /// A module that was there already now belongs to a VPod; no call.
    Adopt,
}

/// The VPod for which it was done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Actor {
    /// UID of the Pod.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `Kind/name` of its controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// The base to which it was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Base {
    /// The base cluster.
    pub cluster: String,
    /// Namespace of the base Pod.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// The VNode.
    pub node: String,
}

/// Who, what and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// What was done.
    pub operation: Operation,
    /// For whom; `None`: nobody wants the module any more, and its owner is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    /// Where.
    pub base: Base,
    /// Name of the module; empty for a Pod that is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// Its version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Digest of the jar, where its URL names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Marks the line where the log shares standard output with others.
    pub log: &'static str,
    /// When.
    pub time: Timestamp,
    /// Who, what and where.
    #[serde(flatten)]
    pub subject: Subject,
    /// `sent`, `ok`, `refused`, `unknown`, or the code of a failure.
    pub result: &'static str,
    /// Why it was refused: the code of the policy's reason, `BaseFull` or `NotAModule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Time from the call to its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub millis: Option<u64>,
}

impl Record {
    /// A line with bounded texts.
    pub fn new(time: Timestamp, mut subject: Subject, result: &'static str) -> Self {
        cut(&mut subject.module);
        cut(&mut subject.version);
        if let Some(actor) = &mut subject.actor {
            actor.owner.iter_mut().for_each(cut);
        }
        Self { log: "audit", time, subject, result, reason: None, message: None, millis: None }
    }

    /// A refusal: its code, and the same for people.
    #[must_use]
    pub fn refused(time: Timestamp, subject: Subject, code: &'static str, mut message: String) -> Self {
        cut(&mut message);
        Self { reason: Some(code), message: Some(message), ..Self::new(time, subject, "refused") }
    }
}

fn cut(text: &mut String) {
    if let Some((at, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(at);
    }
}

impl Base {
    /// Of a base that was discovered.
    pub fn of(spec: &BaseSpec) -> Self {
        Self {
            cluster: spec.cluster.clone(),
            namespace: spec.namespace.clone(),
            pod: spec.pod.clone(),
            uid: spec.uid.clone(),
            node: spec.node.clone(),
        }
    }
}

/// `sha256:...` at the end of an image reference; nothing else of it is taken over.
pub fn digest_of(image: &str) -> Option<String> {
    let (_, digest) = image.rsplit_once("@sha256:")?;
    let whole = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    whole.then(|| format!("sha256:{}", digest.to_ascii_lowercase()))
}
