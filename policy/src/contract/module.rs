//! From a Pod to modules: the one definition of a module Pod.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, Pod, Toleration};

use super::{Glance, artifact::ArtifactSource, names, wishes};
use crate::{
    model::Requirements,
    version::{Range, Version},
};

/// What a Pod is to us.
#[derive(Clone, Debug, PartialEq)]
pub enum PodKind {
    /// A module Pod.
    Module(Box<ModulePod>),
    /// Meets only half of the definition.
    Incomplete(Incomplete),
    /// None of ours.
    Foreign,
}

/// A Pod that is half a module Pod. Nobody runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// The container that lacks it; `None` where the Pod does.
    pub container: Option<Arc<str>>,
    /// What is missing.
    pub missing: Missing,
}

/// What an incomplete module Pod lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The toleration of the virtual-node taint, by key.
    Toleration,
    /// `MODULE_VERSION` or `BIZ_VERSION` on a container.
    Version,
    /// A `MODULE_NAME` that is written out: names do not come from elsewhere.
    Name,
}

/// A Pod whose containers are modules.
#[derive(Clone, Debug, PartialEq)]
pub struct ModulePod {
    /// Namespace of the Pod.
    pub namespace: Arc<str>,
    /// Name of the Pod; empty while only a generated one is known.
    pub name: Arc<str>,
    /// UID of the Pod; empty where the API server has not given one.
    pub uid: Arc<str>,
    /// Labels of the Pod.
    pub labels: BTreeMap<String, String>,
    /// Annotation `stowage.dev/stack`.
    pub stack: Option<Arc<str>>,
    /// Annotation `stowage.dev/base-version`.
    pub base_version: Option<Range>,
    /// One for each container, in the Pod's order.
    pub modules: Vec<Module>,
    /// Annotations `stowage.dev/requires` and `stowage.dev/conflicts`.
    pub requirements: Requirements,
    /// Annotation `stowage.dev/metaspace`: bytes that the modules need together.
    pub metaspace: Option<u64>,
    /// The Pod tolerates that its Node is cordoned, as those of `DaemonSet`s do.
    pub tolerates_cordon: bool,
    /// Keys of annotations that cannot be read. The rules reject the Pod and name the first.
    pub malformed: Vec<&'static str>,
    /// Where the Pod is bound to.
    pub node_name: Option<Arc<str>>,
    /// Phase Succeeded or Failed.
    pub terminal: bool,
    /// A deletionTimestamp is set.
    pub deleting: bool,
    /// Template that the Pod was made from, where a controller made it.
    pub template: Option<TemplateKey>,
    /// The controller of the Pod.
    pub owner: Option<Controller>,
}

/// A template of a controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TemplateKey {
    /// UID of the controller.
    pub owner_uid: Arc<str>,
    /// `pod-template-hash` or `controller-revision-hash`.
    pub hash: Arc<str>,
}

/// The controller that made a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Its kind, such as `ReplicaSet`.
    pub kind: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Arc<str>,
}

/// One container of a module Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name of the container.
    pub container: Arc<str>,
    /// Name of the biz: `MODULE_NAME`, else the container's.
    pub name: Arc<str>,
    /// The version as far as the Pod says it.
    pub version: DeclaredVersion,
    /// Value of the label `module.koupleless.io/<module>`, as written (`_` for `+`).
    pub label: Option<Arc<str>>,
    /// URL of the jar. May carry credentials: never shown.
    pub image: Arc<str>,
    /// Scheme and host of the image; `None` where it is no URL.
    pub source: Option<ArtifactSource>,
    /// Arguments of the module's main.
    pub args: Vec<String>,
    /// The known version, ready to be compared.
    pub comparable: Option<Version>,
    /// The version that the label names where it differs from a written-out one, with the same ready to be compared:
    /// what a Pod wants that has been installed already and is released in place.
    pub in_place: Option<(Arc<str>, Option<Version>)>,
    /// Declared web context path, with a leading and without a trailing slash.
    pub context_path: Option<Arc<str>>,
    /// Of the name.
    pub(crate) glance: Glance,
}

/// Where a module's version comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredVersion {
    /// Written in the environment, or in the Pod's own metadata.
    Literal(Arc<str>),
    /// Named by the label; the environment refers elsewhere.
    Label {
        /// The label's value, `+` restored.
        version: Arc<str>,
        /// What the environment refers to.
        reference: Reference,
    },
    /// Only known to who reads what it refers to.
    Reference(Reference),
}

/// What an environment variable refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A key of a `ConfigMap`.
    ConfigMap {
        /// Its name.
        name: Arc<str>,
        /// The key.
        key: Arc<str>,
    },
    /// A key of a Secret.
    Secret {
        /// Its name.
        name: Arc<str>,
        /// The key.
        key: Arc<str>,
    },
    /// A field of the Pod that is not in its metadata, or is not set there.
    Field(Arc<str>),
    /// A source that gives no version.
    Other,
}

impl ModulePod {
    /// `namespace/name` for logs.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Module {
    /// Whether both have one name.
    pub fn is_named_as(&self, other: &Self) -> bool {
        self.glance == other.glance && self.name == other.name
    }

    /// The version as far as the Pod says it, `None` where it lies in a `ConfigMap`, a Secret or a field.
    pub fn known_version(&self) -> Option<&str> {
        match &self.version {
            DeclaredVersion::Literal(version) | DeclaredVersion::Label { version, .. } => Some(version),
            DeclaredVersion::Reference(_) => None,
        }
    }

    /// Whether the label names another version than `environment`, the version that the environment resolved to.
    ///
    /// At the first install this is the waiting reason `VersionMismatch`; for a Pod that already has an owner entry the
    /// label rules (see [`Module::labelled_version`]).
    pub fn label_disagrees(&self, environment: &str) -> bool {
        self.label.as_ref().is_some_and(|label| !same_label(label, environment))
    }

    /// The version that the label names, given what the environment resolved to: `+` is restored where the two agree,
    /// and else wherever `_` stands.
    pub fn labelled_version(&self, environment: &str) -> Option<Arc<str>> {
        let label = self.label.as_ref()?;
        Some(if same_label(label, environment) { environment.into() } else { restored(label) })
    }

    fn released_in_place(&self) -> Option<Arc<str>> {
        match &self.version {
            DeclaredVersion::Literal(version) if self.label_disagrees(version) => {
                self.labelled_version(version)
            }
            _ => None,
        }
    }

    /// Whether label and literal version disagree.
    pub fn version_mismatch(&self) -> bool {
        match &self.version {
            DeclaredVersion::Literal(version) => self.label_disagrees(version),
            DeclaredVersion::Label { .. } | DeclaredVersion::Reference(_) => false,
        }
    }
}

fn same_label(label: &str, version: &str) -> bool {
    label.len() == version.len()
        && label.bytes().zip(version.bytes()).all(|(l, v)| l == v || l == b'_' && v == b'+')
}

fn restored(label: &str) -> Arc<str> {
    label.replace('_', "+").into()
}

/// The one definition of a module Pod: it tolerates the virtual-node taint by key, and every container has
/// `MODULE_VERSION` or `BIZ_VERSION`, whatever its source.
pub fn classify(pod: &Pod) -> PodKind {
    let Some(spec) = &pod.spec else { return PodKind::Foreign };
    let tolerates = spec.tolerations.iter().flatten().any(tolerates_by_key);
    let versioned = spec.containers.iter().filter(|c| version_env(c).is_some()).count();
    if !tolerates {
        let all = versioned > 0 && versioned == spec.containers.len();
        return if all {
            PodKind::Incomplete(Incomplete { container: None, missing: Missing::Toleration })
        } else {
            PodKind::Foreign
        };
    }
    match spec.containers.iter().map(|c| module(pod, c)).collect::<Result<Vec<_>, _>>() {
        Ok(modules) => PodKind::Module(Box::new(module_pod(pod, modules))),
        Err(incomplete) => PodKind::Incomplete(incomplete),
    }
}

/// A toleration of everything (operator `Exists` without a key) does not count: every log collector has it.
fn tolerates_by_key(toleration: &Toleration) -> bool {
    toleration.key.as_deref() == Some(names::VIRTUAL_NODE_TAINT)
}

/// The taint of a cordoned Node has no value and the effect `NoSchedule`.
fn tolerates_cordon(toleration: &Toleration) -> bool {
    let is = |part: &Option<String>, text: &str| part.as_deref().unwrap_or_default() == text;
    let Toleration { key, operator, value, effect, .. } = toleration;
    let named = is(key, names::UNSCHEDULABLE_TAINT);
    (is(effect, "") || is(effect, "NoSchedule"))
        && match operator.as_deref().unwrap_or_default() {
            "Exists" => named || is(key, ""),
            "" | "Equal" => named && is(value, ""),
            _ => false,
        }
}

fn env<'a>(container: &'a Container, name: &str) -> Option<&'a EnvVar> {
    // As for a kubelet, the last of several variables of one name counts.
    container.env.iter().flatten().rev().find(|var| var.name == name)
}

fn version_env(container: &Container) -> Option<&EnvVar> {
    let given = |var: &&EnvVar| {
        var.value_from.is_some() || var.value.as_deref().is_some_and(|v| !v.trim().is_empty())
    };
    env(container, names::ENV_MODULE_VERSION)
        .filter(given)
        .or_else(|| env(container, names::ENV_BIZ_VERSION).filter(given))
}

fn module(pod: &Pod, container: &Container) -> Result<Module, Incomplete> {
    let incomplete = |missing| Incomplete { container: Some(container.name.as_str().into()), missing };
    let var = version_env(container).ok_or_else(|| incomplete(Missing::Version))?;
    let name: Arc<str> = match env(container, names::ENV_MODULE_NAME) {
        Some(var) if var.value_from.is_some() => return Err(incomplete(Missing::Name)),
        Some(EnvVar { value: Some(value), .. }) if !value.trim().is_empty() => value.trim().into(),
        _ => container.name.as_str().into(),
    };
    let label = module_label(pod, &name);
    let version = match (&var.value_from, var.value.as_deref()) {
        (Some(source), _) => match (referred(pod, source), &label) {
            (Ok(version), _) => DeclaredVersion::Literal(version),
            (Err(reference), Some(label)) => DeclaredVersion::Label { version: restored(label), reference },
            (Err(reference), None) => DeclaredVersion::Reference(reference),
        },
        (None, value) => DeclaredVersion::Literal(value.unwrap_or_default().trim().into()),
    };
    let image = container.image.as_deref().unwrap_or_default();
    let mut module = Module {
        container: container.name.as_str().into(),
        glance: Glance::of(&name),
        name,
        version,
        label,
        image: image.into(),
        source: ArtifactSource::parse(image),
        args: container.args.clone().unwrap_or_default(),
        comparable: None,
        in_place: None,
        context_path: None,
    };
    module.comparable = module.known_version().and_then(|version| Version::parse(version).ok());
    module.in_place = module.released_in_place().map(|version| {
        let comparable = Version::parse(&version).ok();
        (version, comparable)
    });
    Ok(module)
}

fn module_label(pod: &Pod, module: &str) -> Option<Arc<str>> {
    let key = format!("{}{module}", names::MODULE_LABEL_PREFIX);
    if key == names::KOUPLELESS_MODULE_NAME || key == names::KOUPLELESS_MODULE_VERSION {
        return None;
    }
    let label = pod.metadata.labels.as_ref()?.get(&key)?;
    (!label.is_empty()).then(|| label.as_str().into())
}

/// The value where the Pod's own metadata holds it, else what is referred to.
fn referred(pod: &Pod, source: &EnvVarSource) -> Result<Arc<str>, Reference> {
    if let Some(field) = &source.field_ref {
        return metadata_field(pod, &field.field_path)
            .filter(|value| !value.trim().is_empty())
            .map(|value| value.trim().into())
            .ok_or_else(|| Reference::Field(field.field_path.as_str().into()));
    }
    if let Some(map) = &source.config_map_key_ref {
        return Err(Reference::ConfigMap { name: map.name.as_str().into(), key: map.key.as_str().into() });
    }
    if let Some(secret) = &source.secret_key_ref {
        return Err(Reference::Secret { name: secret.name.as_str().into(), key: secret.key.as_str().into() });
    }
    Err(Reference::Other)
}

fn metadata_field<'a>(pod: &'a Pod, path: &str) -> Option<&'a str> {
    let entry = |map: &'a Option<BTreeMap<String, String>>, rest: &str| {
        let key = rest.strip_prefix("['")?.strip_suffix("']")?;
        map.as_ref()?.get(key).map(String::as_str)
    };
    match path {
        "metadata.name" => pod.metadata.name.as_deref(),
        "metadata.namespace" => pod.metadata.namespace.as_deref(),
        "metadata.uid" => pod.metadata.uid.as_deref(),
        _ => path.strip_prefix("metadata.labels").and_then(|rest| entry(&pod.metadata.labels, rest)).or_else(
            || {
                path.strip_prefix("metadata.annotations")
                    .and_then(|rest| entry(&pod.metadata.annotations, rest))
            },
        ),
    }
}

/// Annotations, read with a note of those that cannot be.
struct Annotations<'a> {
    all: Option<&'a BTreeMap<String, String>>,
    malformed: Vec<&'static str>,
}

impl Annotations<'_> {
    fn read<T>(&mut self, key: &'static str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = parse(self.all?.get(key)?.trim());
        if value.is_none() {
            self.malformed.push(key);
        }
        value
    }
}

fn module_pod(pod: &Pod, mut modules: Vec<Module>) -> ModulePod {
    let meta = &pod.metadata;
    let mut annotations = Annotations { all: meta.annotations.as_ref(), malformed: Vec::new() };
    let stack = annotations.read(names::WANTED_STACK, |text| (!text.is_empty()).then(|| text.into()));
    let base_version = annotations.read(names::WANTED_BASE_VERSION, |text| Range::parse(text).ok());
    let mut requirements = annotations.read(names::REQUIRES, wishes::requires).unwrap_or_default();
    requirements.conflicts = annotations.read(names::CONFLICTS, wishes::conflicts).unwrap_or_default();
    let metaspace = annotations.read(names::METASPACE, wishes::bytes);
    annotations.read(names::CONTEXT_PATH, |text| wishes::context_paths(text, &mut modules));
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let label = |key: &str| meta.labels.as_ref().and_then(|all| all.get(key));
    let hash = label(names::POD_TEMPLATE_HASH).or_else(|| label(names::CONTROLLER_REVISION_HASH));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let shared = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    ModulePod {
        namespace: shared(&meta.namespace),
        name: shared(&meta.name),
        uid: shared(&meta.uid),
        labels: meta.labels.clone().unwrap_or_default(),
        stack,
        base_version,
        modules,
        requirements,
        metaspace,
        tolerates_cordon: pod
            .spec
            .iter()
            .flat_map(|spec| spec.tolerations.iter().flatten())
            .any(tolerates_cordon),
        malformed: annotations.malformed,
        node_name: pod
            .spec
            .as_ref()
            .and_then(|s| s.node_name.as_deref())
            .filter(|n| !n.is_empty())
            .map(Into::into),
        terminal: matches!(phase, Some("Succeeded" | "Failed")),
        deleting: meta.deletion_timestamp.is_some(),
        template: owner.zip(hash).map(|(owner, hash)| TemplateKey {
            owner_uid: owner.uid.as_str().into(),
            hash: hash.as_str().into(),
        }),
        owner: owner.map(|owner| Controller {
            kind: owner.kind.as_str().into(),
            name: owner.name.as_str().into(),
            uid: owner.uid.as_str().into(),
        }),
    }
}

#[cfg(test)]
mod tests;
