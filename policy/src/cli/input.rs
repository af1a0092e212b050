//! Reading policies and snapshots from files and standard input.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::{
    contract::{BaseFacts, ModulePod, PodKind, classify},
    file::{self, Loaded, Problem},
    view::BaseView,
};

/// Most bytes of a snapshot: 5,000 nodes as kubectl prints them are some 40 MB.
const LARGEST_SNAPSHOT: u64 = 512 * 1024 * 1024;

/// Why a command could not be carried out.
#[derive(Debug, Error)]
pub enum InputError {
    /// A file that cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// More than is read.
    #[error("{path} is larger than {most} bytes", path = .0.display(), most = .1)]
    TooLarge(PathBuf, u64),
    /// A snapshot that is neither JSON nor YAML.
    #[error("{path} is neither a JSON nor a YAML snapshot: {problem}", path = .0.display(), problem = .1)]
    Snapshot(PathBuf, String),
    /// A policy with errors.
    #[error("{path} has errors, the first: {first}; see `stowage-policy lint`", path = .0.display(), first = first(.1))]
    Policy(PathBuf, Vec<Problem>),
    /// A Pod that the snapshot does not hold.
    #[error("the snapshot holds no Pod {0}")]
    NoPod(String),
    /// Output that cannot be written.
    #[error("cannot write the report")]
    Write(#[source] io::Error),
}

fn first(problems: &[Problem]) -> String {
    problems.first().map(ToString::to_string).unwrap_or_default()
}

/// What a cluster looked like.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) bases: Vec<BaseFacts>,
    /// Nodes of ours that cannot be understood, with the reason.
    pub(super) broken: Vec<(String, String)>,
    pub(super) pods: Vec<(String, PodKind)>,
    bound: BTreeMap<Arc<str>, Vec<Arc<ModulePod>>>,
}

impl Snapshot {
    pub(super) fn view<'a>(&'a self, facts: &'a BaseFacts) -> BaseView<'a> {
        let pods = self.bound.get(&facts.node).map(Vec::as_slice).unwrap_or_default();
        BaseView { pods, ..BaseView::empty(facts) }
    }
}

/// The text of a file of at most `most` bytes; `-` is standard input.
pub(super) fn text(path: &Path, most: u64) -> Result<String, InputError> {
    let failed = |error| InputError::Read(path.to_owned(), error);
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().lock().take(most + 1).read_to_string(&mut text).map_err(failed)?;
    } else {
        File::open(path).map_err(failed)?.take(most + 1).read_to_string(&mut text).map_err(failed)?;
    }
    if u64::try_from(text.len()).is_ok_and(|length| length > most) {
        return Err(InputError::TooLarge(path.to_owned(), most));
    }
    Ok(text)
}

/// A policy that has no errors; without a file the default.
pub(super) fn policy(path: Option<&Path>) -> Result<crate::Policy, InputError> {
    let Some(path) = path else { return Ok(crate::Policy::default()) };
    match file::load(&policy_text(path)?) {
        Ok(Loaded { policy, .. }) => Ok(policy),
        Err(problems) => Err(InputError::Policy(path.to_owned(), problems)),
    }
}

pub(super) fn policy_text(path: &Path) -> Result<String, InputError> {
    text(path, u64::try_from(file::LONGEST).unwrap_or(u64::MAX))
}

/// Nodes and Pods of a list or of several documents; everything else is skipped.
pub(super) fn snapshot(path: &Path) -> Result<Snapshot, InputError> {
    let text = text(path, LARGEST_SNAPSHOT)?;
    let malformed = |message: String| InputError::Snapshot(path.to_owned(), message);
    let documents: Vec<Value> = if text.trim_start().starts_with('{') {
        let stream = serde_json::Deserializer::from_str(&text).into_iter();
        stream.collect::<Result<_, _>>().map_err(|error| malformed(error.to_string()))?
    } else {
        serde_saphyr::from_multiple(&text).map_err(|error| malformed(error.to_string()))?
    };
    let mut found = Snapshot::default();
    for document in documents {
        found.add(document).map_err(|error| malformed(error.to_string()))?;
    }
    Ok(found)
}

impl Snapshot {
    fn add(&mut self, document: Value) -> Result<(), serde_json::Error> {
        match document.get("kind").and_then(Value::as_str) {
            Some("Node") => {
                let node = Node::deserialize(document)?;
                match BaseFacts::from_node(&node) {
                    Ok(facts) => self.bases.extend(facts),
                    Err(error) => {
                        self.broken.push((node.metadata.name.unwrap_or_default(), error.to_string()));
                    }
                }
            }
            Some("Pod") => {
                let pod = Pod::deserialize(document)?;
                let kind = classify(&pod);
                if let PodKind::Module(module) = &kind
                    && let Some(node) = module.node_name.clone()
                {
                    self.bound.entry(node).or_default().push(Arc::new((**module).clone()));
                }
                let meta = pod.metadata;
                let key = format!("{}/{}", meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
                self.pods.push((key, kind));
            }
            _ => {
                if let Value::Object(mut list) = document
                    && let Some(Value::Array(items)) = list.remove("items")
                {
                    for item in items {
                        self.add(item)?;
                    }
                }
            }
        }
        Ok(())
    }
}
