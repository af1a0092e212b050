//! The annotation by which the agent tells what is on a base. Written by the agent alone, read by the extender and by
//! an agent that starts.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Version of the format that is written. Later ones may add fields; readers skip what they do not know.
pub const FORMAT: u32 = 1;
/// Most bytes of the annotation.
pub const LONGEST: usize = 64 * 1024;

/// What is on a base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// Modules on the base, ours and foreign ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<InventoryModule>,
    /// Metaspace of the JVM, where arklet reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metaspace: Option<Metaspace>,
    /// Module versions that just failed here. The agent takes an entry off when its back-off ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<RecentFailure>,
    /// Capabilities of the base: name to version.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub provides: BTreeMap<String, String>,
    /// Context path of the base's own web application, where it declares one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_path: Option<Arc<str>>,
    /// Several versions of one module can be active side by side.
    #[serde(skip_serializing_if = "is_false")]
    pub multi_version: bool,
    /// Something did not fit and is missing.
    #[serde(skip_serializing_if = "is_false")]
    pub truncated: bool,
}

/// One module on a base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InventoryModule {
    /// Name of the biz.
    pub name: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// Its state, as arklet says.
    #[serde(default)]
    pub state: ModuleState,
    /// Its web context path, as arklet says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_path: Option<Arc<str>>,
    /// The Pod it was installed for; `None`: foreign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// [`artifact_hash`] of what was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_hash: Option<Arc<str>>,
}

/// State of a module on its base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModuleState {
    /// Being installed, or starting.
    Resolved,
    /// Main has returned, and this version serves.
    Activated,
    /// Installed, but another version serves.
    Deactivated,
    /// Failed to start or to stop.
    Broken,
    /// A state that this version of ours does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The Pod that a module was installed for, written `namespace/name/uid`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Owner {
    /// Namespace of the Pod.
    pub namespace: Arc<str>,
    /// Name of the Pod.
    pub name: Arc<str>,
    /// UID of the Pod.
    pub uid: Arc<str>,
}

/// Metaspace of a JVM in bytes, rounded to 5 % of max by [`Metaspace::rounded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metaspace {
    /// Limit; `None` where the JVM has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// In use now.
    pub used: u64,
    /// Lowest use since classes were last unloaded.
    pub lowest: u64,
}

/// A module version that just failed on the base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecentFailure {
    /// Name of the module.
    pub module: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// When its back-off ends. Informative: the entry counts for as long as it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// Why an annotation cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InventoryError {
    /// Longer than anything we write.
    #[error("the inventory has {0} bytes, more than {LONGEST}")]
    TooLong(usize),
    /// No JSON, or not of the expected shape.
    #[error("the inventory is malformed: {0}")]
    Malformed(String),
    /// Written by a later version that does not promise compatibility.
    #[error("the inventory has format {0}, this version reads {FORMAT}")]
    Format(u32),
}

/// The annotation is the inventory and its format in one object.
#[derive(Serialize)]
struct Written<'a> {
    v: u32,
    #[serde(flatten)]
    inventory: &'a Inventory,
}

#[derive(Deserialize)]
struct Format {
    v: u32,
}

impl Inventory {
    /// Reads an annotation of at most 64 KiB.
    pub fn parse(text: &str) -> Result<Self, InventoryError> {
        if text.len() > LONGEST {
            return Err(InventoryError::TooLong(text.len()));
        }
        let malformed = |error: serde_json::Error| InventoryError::Malformed(error.to_string());
        let Format { v } = serde_json::from_str(text).map_err(malformed)?;
        if v != FORMAT {
            return Err(InventoryError::Format(v));
        }
        serde_json::from_str(text).map_err(malformed)
    }

    /// Writes the annotation, at most 64 KiB long. Modules keep their order: it is that of their installs, and a replay
    /// follows it.
    ///
    /// What does not fit is left out and `truncated` set: foreign modules first, then our own from the last one on,
    /// then failures and what is provided.
    pub fn to_annotation(&self) -> String {
        let mut kept = self.clone();
        kept.failures.sort_by(|a, b| (&a.module, &a.version).cmp(&(&b.module, &b.version)));
        let text = written(&kept);
        if text.len() <= LONGEST {
            return text;
        }
        kept.truncated = true;
        let mut modules = std::mem::take(&mut kept.modules);
        modules.sort_by_key(|module| module.owner.is_none());
        while written(&kept).len() > LONGEST {
            if kept.failures.pop().is_none() && kept.provides.pop_last().is_none() {
                kept.context_path = None;
                break;
            }
        }
        let mut left = LONGEST.saturating_sub(written(&kept).len() + r#""modules":[],"#.len());
        for module in modules {
            // A comma for each, one more than needed.
            let size = serde_json::to_string(&module).map_or(usize::MAX, |text| text.len() + 1);
            let Some(rest) = left.checked_sub(size) else { break };
            left = rest;
            kept.modules.push(module);
        }
        written(&kept)
    }

    /// The entry of a module version.
    pub fn find(&self, name: &str, version: &str) -> Option<&InventoryModule> {
        self.modules.iter().find(|module| &*module.name == name && &*module.version == version)
    }
}

fn written(inventory: &Inventory) -> String {
    // Maps with text keys and plain values: nothing in it can fail to serialise.
    serde_json::to_string(&Written { v: FORMAT, inventory }).unwrap_or_default()
}

impl Metaspace {
    /// The figures as they are published: rounded up to 5 % of max, so that small moves write no Node.
    #[must_use]
    pub fn rounded(self) -> Self {
        let step = self.max.map_or(16 << 20, |max| (max / 20).max(1));
        let up = |figure: u64| figure.div_ceil(step).saturating_mul(step);
        let capped = |figure: u64| self.max.map_or(figure, |max| figure.min(max));
        Self { max: self.max, used: capped(up(self.used)), lowest: capped(up(self.lowest)) }
    }
}

/// What an installed module was made from: hex digits over its URL and arguments. Says nothing about either.
pub fn artifact_hash(image: &str, args: &[String]) -> String {
    let mut digest = Sha256::new();
    for part in std::iter::once(image).chain(args.iter().map(String::as_str)) {
        digest.update(part.len().to_be_bytes());
        digest.update(part.as_bytes());
    }
    let bytes = digest.finalize().first_chunk().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(bytes))
}

impl TryFrom<String> for Owner {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut parts = text.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(name), Some(uid), None) => {
                Ok(Self { namespace: namespace.into(), name: name.into(), uid: uid.into() })
            }
            _ => Err("an owner is namespace/name/uid"),
        }
    }
}

impl From<Owner> for String {
    fn from(owner: Owner) -> Self {
        format!("{}/{}/{}", owner.namespace, owner.name, owner.uid)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod tests;
