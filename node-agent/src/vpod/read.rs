//! From a Pod to what its modules want: versions that lie elsewhere are fetched, the rest is pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::Api;
use policy::contract::inventory::artifact_hash;
use policy::contract::module::{
    DeclaredVersion, Incomplete, Missing, Module, ModulePod, PodKind, Reference, classify,
};
use url::Url;

use super::fields;
use crate::base::state::{ModuleId, Reason, Want, Wanted};

/// Longest name or version of a module.
const LONGEST: usize = 128;

/// What a reference gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// Its value.
    Value(String),
    /// The object or the key does not exist.
    Absent,
    /// Reading it is not allowed.
    Forbidden,
    /// The API server did not answer well; tried again.
    Failed(String),
}

/// Values of references, in any order.
pub type Values = Vec<(Reference, Fetched)>;

/// Versions of the modules that a VPod owns already, by module name: they rule over what a `ConfigMap` says now.
pub type Pinned = BTreeMap<String, String>;

/// What must be fetched before this Pod can be read.
pub fn references(pod: &Pod, pinned: &Pinned) -> Vec<Reference> {
    let PodKind::Module(module_pod) = classify(pod) else { return Vec::new() };
    module_pod
        .modules
        .iter()
        .filter(|module| !pinned.contains_key(&*module.name))
        .filter_map(|module| match &module.version {
            DeclaredVersion::Label { reference, .. } | DeclaredVersion::Reference(reference) => {
                matches!(reference, Reference::ConfigMap { .. } | Reference::Secret { .. })
                    .then(|| reference.clone())
            }
            DeclaredVersion::Literal(_) => None,
        })
        .collect()
}

/// Fetches references of one namespace, one after the other.
pub async fn fetch(client: &kube::Client, namespace: &str, references: Vec<Reference>) -> Values {
    let mut values = Vec::with_capacity(references.len());
    for reference in references {
        let fetched = match &reference {
            Reference::ConfigMap { name, key } => {
                let found = Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(name).await;
                judged(found.map(|map| map.and_then(|map| map.data?.remove(&**key))))
            }
            Reference::Secret { name, key } => {
                let found = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(name).await;
                judged(found.map(|secret| {
                    secret.and_then(|secret| String::from_utf8(secret.data?.remove(&**key)?.0).ok())
                }))
            }
            Reference::Field(_) | Reference::Other => Fetched::Absent,
        };
        values.push((reference, fetched));
    }
    values
}

fn judged(found: Result<Option<String>, kube::Error>) -> Fetched {
    match found {
        Ok(Some(value)) => Fetched::Value(value),
        Ok(None) => Fetched::Absent,
        Err(kube::Error::Api(status)) if status.code == 403 => Fetched::Forbidden,
        Err(error) => Fetched::Failed(crate::arklet::without_credentials(&error.to_string())),
    }
}

/// Whether this result may change without a change of the Pod, so that it must be read again later.
pub fn worth_another_look(want: &Want) -> bool {
    matches!(
        want,
        Want::Reading
            | Want::Unreadable {
                reason: Reason::MissingReference | Reason::SecretForbidden | Reason::Reading,
                ..
            }
    )
}

/// Reads a Pod. `values` holds what [`references`] asked for.
pub fn read(pod: &Pod, pinned: &Pinned, values: &Values) -> Want {
    let module_pod = match classify(pod) {
        PodKind::Module(module_pod) => module_pod,
        PodKind::Incomplete(incomplete) => return Want::NotAModule { message: explained(&incomplete) },
        PodKind::Foreign => {
            return Want::NotAModule {
                message: "this Node stands for a JVM that runs modules, not containers; the Pod has no \
                          MODULE_VERSION on its containers or does not tolerate the virtual-node taint by key"
                    .to_owned(),
            };
        }
    };
    if let Some(message) = fields::refused(pod) {
        return Want::Unreadable { reason: Reason::UnsupportedField, message };
    }
    modules(&module_pod, pinned, values)
        .map_or_else(|(reason, message)| Want::Unreadable { reason, message }, Want::Modules)
}

fn explained(incomplete: &Incomplete) -> String {
    let container = incomplete.container.as_deref().unwrap_or("?");
    match incomplete.missing {
        Missing::Toleration => {
            "the Pod has MODULE_VERSION but does not tolerate the virtual-node taint by key".to_owned()
        }
        Missing::Version => {
            format!("container {container} has no MODULE_VERSION, so not all containers are modules")
        }
        Missing::Name => format!("MODULE_NAME of container {container} must be written out"),
    }
}

type Refusal = (Reason, String);

fn modules(pod: &ModulePod, pinned: &Pinned, values: &Values) -> Result<Vec<Wanted>, Refusal> {
    let mut seen = BTreeSet::new();
    pod.modules
        .iter()
        .map(|module| {
            let wanted = wanted(module, pinned, values)?;
            if seen.insert(wanted.id.clone()) {
                Ok(wanted)
            } else {
                Err((Reason::DuplicateModule, format!("{} stands in two containers", wanted.id)))
            }
        })
        .collect()
}

fn wanted(module: &Module, pinned: &Pinned, values: &Values) -> Result<Wanted, Refusal> {
    let container = &module.container;
    let version = version(module, pinned, values)?;
    if !usable(&version) {
        let shown = match secret(module).filter(|_| !pinned.contains_key(&*module.name)) {
            Some(source) => format!("what {source} holds"),
            None => format!("{:?}", version.chars().filter(|c| !c.is_control()).take(40).collect::<String>()),
        };
        return Err((
            Reason::InvalidVersion,
            format!("container {container}: {shown} cannot be the version of a module"),
        ));
    }
    if !usable(&module.name) {
        return Err((
            Reason::InvalidVersion,
            format!("container {container}: the name of its module cannot be used"),
        ));
    }
    let url = Url::parse(module.image.trim()).map_err(|error| {
        (Reason::InvalidImage, format!("container {container}: image is not the URL of a module: {error}"))
    })?;
    if !url.has_host() && url.scheme() != "file" {
        return Err((Reason::InvalidImage, format!("container {container}: image is a URL without a host")));
    }
    Ok(Wanted {
        container: container.to_string(),
        id: ModuleId { name: module.name.to_string(), version },
        url: module.image.trim().to_owned(),
        args: module.args.clone(),
        hash: artifact_hash(&module.image, &module.args),
    })
}

/// Words that go into ids, labels and logs as they are.
fn usable(word: &str) -> bool {
    !word.is_empty()
        && word.len() <= LONGEST
        && word.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+'))
}

fn version(module: &Module, pinned: &Pinned, values: &Values) -> Result<String, Refusal> {
    let mine = pinned.get(&*module.name);
    match &module.version {
        DeclaredVersion::Literal(version) if mine.is_some() => {
            // Environment cannot change on a Pod that lives; the label can, and so it rules a release in place.
            Ok(module
                .labelled_version(version)
                .map_or_else(|| version.to_string(), |label| label.to_string()))
        }
        DeclaredVersion::Literal(version) => agreeing(module, version),
        DeclaredVersion::Label { version, .. } if mine.is_some() => Ok(version.to_string()),
        DeclaredVersion::Label { reference, .. } => agreeing(module, &value(module, reference, values)?),
        DeclaredVersion::Reference(reference) => match mine {
            // Read once, like an environment variable of a container.
            Some(version) => Ok(version.clone()),
            None => value(module, reference, values),
        },
    }
}

fn agreeing(module: &Module, version: &str) -> Result<String, Refusal> {
    if module.label_disagrees(version) {
        let container = &module.container;
        let label = module.label.as_deref().unwrap_or_default();
        let shown = secret(module).unwrap_or_else(|| version.to_owned());
        return Err((
            Reason::VersionMismatch,
            format!("container {container}: its environment says {shown}, the label of the Pod says {label}"),
        ));
    }
    Ok(version.to_owned())
}

/// Where the version comes from a Secret: its name, to be shown instead of what it holds.
fn secret(module: &Module) -> Option<String> {
    match &module.version {
        DeclaredVersion::Label { reference, .. } | DeclaredVersion::Reference(reference) => {
            matches!(reference, Reference::Secret { .. }).then(|| source(reference))
        }
        DeclaredVersion::Literal(_) => None,
    }
}

fn source(reference: &Reference) -> String {
    match reference {
        Reference::ConfigMap { name, key } => format!("key {key} of ConfigMap {name}"),
        Reference::Secret { name, key } => format!("key {key} of Secret {name}"),
        Reference::Field(path) => format!("field {path}"),
        Reference::Other => "its source".to_owned(),
    }
}

fn value(module: &Module, reference: &Reference, values: &Values) -> Result<String, Refusal> {
    let container = &module.container;
    let what = source(reference);
    match values.iter().find(|(known, _)| known == reference).map(|(_, fetched)| fetched) {
        Some(Fetched::Value(value)) => Ok(value.trim().to_owned()),
        Some(Fetched::Absent) => Err((
            Reason::MissingReference,
            format!("container {container}: {what}, which holds its MODULE_VERSION, does not exist"),
        )),
        Some(Fetched::Forbidden) => {
            let reason = if matches!(reference, Reference::Secret { .. }) {
                Reason::SecretForbidden
            } else {
                Reason::MissingReference
            };
            Err((
                reason,
                format!("container {container}: the agent may not read {what}; it needs a RoleBinding"),
            ))
        }
        Some(Fetched::Failed(error)) => {
            let error: String = error.chars().take(200).collect();
            Err((Reason::Reading, format!("container {container}: {what} cannot be read: {error}")))
        }
        None if matches!(reference, Reference::Field(_) | Reference::Other) => {
            Err((Reason::MissingReference, format!("container {container}: {what} holds no MODULE_VERSION")))
        }
        None => Err((Reason::Reading, format!("container {container}: {what} has not been read yet"))),
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
