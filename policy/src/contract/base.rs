//! From a Node to what we know of the base behind it.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use k8s_openapi::api::core::v1::Node;
use thiserror::Error;

use super::{
    ModuleIndex,
    inventory::{Inventory, InventoryError, Metaspace},
    names,
};
use crate::version::Version;

/// What the Node says about a base. Computed once when the Node changes, read by every decision.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each from its own part of the Node")]
pub struct BaseFacts {
    /// Name of the Node.
    pub node: Arc<str>,
    /// Namespace of the base Pod.
    pub namespace: Arc<str>,
    /// Name of the base Pod.
    pub pod: Arc<str>,
    /// UID of the base Pod; empty where the annotation is missing.
    pub uid: Arc<str>,
    /// Which base cluster the base lives in.
    pub cluster: Arc<str>,
    /// Technology of the base, `java` where none is named.
    pub stack: Arc<str>,
    /// Version of the base application; `None` where it is not labelled or no version.
    pub version: Option<Arc<Version>>,
    /// Labels of the Node, the base Pod's among them.
    pub labels: BTreeMap<String, String>,
    /// The base is going away, by our taint.
    pub leaving: bool,
    /// Somebody cordoned the `VNode`: `unschedulable`. The agent does so too with a base that leaves.
    pub cordoned: bool,
    /// The base is being healed.
    pub overloaded: bool,
    /// Condition Ready is True.
    pub ready: bool,
    /// Annotation `stowage.dev/paused`.
    pub paused: bool,
    /// The real node under the base.
    pub host: Option<Arc<str>>,
    /// Zone of the real node.
    pub zone: Option<Arc<str>>,
    /// `allocatable.pods`.
    pub allocatable_pods: u32,
    /// What is on the base.
    pub inventory: Known,
    /// Versions of what the base provides, by name, as far as they are versions.
    pub provides: Arc<BTreeMap<String, Version>>,
    /// Of the inventory's modules.
    pub module_index: ModuleIndex,
    /// Revision of the base's workload.
    pub revision: Option<BaseRevision>,
}

/// How much of a base's inventory is known.
#[derive(Clone, Debug)]
pub enum Known {
    /// The agent has written none.
    Nothing,
    /// What it wrote cannot be read.
    Unreadable(InventoryError),
    /// All of it, or all that fits.
    Inventory(Inventory),
}

/// Which revision of its workload a base runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseRevision {
    /// `<kind or name>` of the workload.
    pub workload: Arc<str>,
    /// Hash of its template.
    pub hash: Arc<str>,
    /// When the base Pod was created.
    pub created: jiff::Timestamp,
}

/// Why one of our Nodes cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BaseError {
    /// The annotation that says which Pod the base is.
    #[error("annotation {} is missing or not <namespace>/<pod>", names::BASE)]
    Base,
    /// A Node without a name.
    #[error("the Node has no name")]
    Name,
}

impl BaseFacts {
    /// `None` for a Node that is not ours (label `app.kubernetes.io/managed-by: stowage`).
    ///
    /// # Errors
    /// One of ours that does not say which Pod its base is.
    pub fn from_node(node: &Node) -> Result<Option<Self>, BaseError> {
        let labels = node.metadata.labels.clone().unwrap_or_default();
        if labels.get(names::MANAGED_BY).map(String::as_str) != Some(names::MANAGER) {
            return Ok(None);
        }
        let name = node.metadata.name.as_deref().filter(|name| !name.is_empty()).ok_or(BaseError::Name)?;
        let annotation =
            |key: &str| node.metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let (namespace, pod) = annotation(names::BASE)
            .and_then(|base| base.split_once('/'))
            .filter(|(namespace, pod)| !namespace.is_empty() && !pod.is_empty() && !pod.contains('/'))
            .ok_or(BaseError::Base)?;
        let inventory = match annotation(names::INVENTORY) {
            None => Known::Nothing,
            Some(text) => Inventory::parse(text).map_or_else(Known::Unreadable, Known::Inventory),
        };
        let provides = Arc::new(inventory.get().map(provided).unwrap_or_default());
        let modules = inventory.get().map(|inventory| inventory.modules.as_slice()).unwrap_or_default();
        let module_index = ModuleIndex::of(modules);
        let label = |key: &str| labels.get(key).filter(|value| !value.is_empty());
        let shared = |key: &str| label(key).map(|value| Arc::from(value.as_str()));
        let spec = node.spec.as_ref();
        let tainted =
            |key: &str| spec.is_some_and(|s| s.taints.iter().flatten().any(|taint| taint.key == key));
        let status = node.status.as_ref();
        Ok(Some(Self {
            node: name.into(),
            namespace: namespace.into(),
            pod: pod.into(),
            uid: annotation(names::BASE_UID).unwrap_or_default().into(),
            cluster: shared(names::BASE_CLUSTER).unwrap_or_else(|| names::DEFAULT_CLUSTER.into()),
            stack: stack(label(names::STACK)),
            version: label(names::VERSION)
                .or_else(|| label(names::KOUPLELESS_VERSION))
                .and_then(|text| Version::parse(text).ok().map(Arc::new)),
            leaving: tainted(names::LEAVING_TAINT),
            cordoned: spec.and_then(|s| s.unschedulable) == Some(true),
            overloaded: tainted(names::OVERLOAD_TAINT),
            ready: status
                .and_then(|s| s.conditions.as_ref())
                .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True")),
            paused: annotation(names::PAUSED) == Some("true"),
            host: shared(names::HOST),
            zone: shared(names::ZONE),
            allocatable_pods: status
                .and_then(|s| s.allocatable.as_ref())
                .and_then(|all| all.get("pods"))
                .and_then(|quantity| quantity.0.parse().ok())
                .unwrap_or(0),
            inventory,
            provides,
            module_index,
            revision: annotation(names::BASE_REVISION).and_then(BaseRevision::parse),
            labels,
        }))
    }

    /// Metaspace figures, where the base reports them.
    pub fn metaspace(&self) -> Option<&Metaspace> {
        self.inventory.get()?.metaspace.as_ref()
    }
}

impl Known {
    /// The inventory, where there is one.
    pub fn get(&self) -> Option<&Inventory> {
        match self {
            Self::Inventory(inventory) => Some(inventory),
            Self::Nothing | Self::Unreadable(_) => None,
        }
    }
}

/// The usual one is shared by all bases: every decision reads it.
fn stack(label: Option<&String>) -> Arc<str> {
    static DEFAULT: LazyLock<Arc<str>> = LazyLock::new(|| names::DEFAULT_STACK.into());
    match label {
        Some(stack) if stack != names::DEFAULT_STACK => stack.as_str().into(),
        Some(_) | None => Arc::clone(&DEFAULT),
    }
}

fn provided(inventory: &Inventory) -> BTreeMap<String, Version> {
    let versions =
        inventory.provides.iter().filter_map(|(name, text)| Some((name.clone(), Version::parse(text).ok()?)));
    versions.collect()
}

impl BaseRevision {
    /// Reads `<workload>/<hash>@<RFC 3339 time>`.
    pub fn parse(text: &str) -> Option<Self> {
        let (revision, created) = text.rsplit_once('@')?;
        let (workload, hash) = revision.rsplit_once('/')?;
        Some(Self { workload: workload.into(), hash: hash.into(), created: created.parse().ok()? })
    }
}

impl std::fmt::Display for BaseRevision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}@{}", self.workload, self.hash, self.created)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> Node {
        serde_saphyr::from_str(text).unwrap()
    }

    const WHOLE: &str = r#"
metadata:
  name: virtual-node-java-shop-base-1
  labels:
    app.kubernetes.io/managed-by: stowage
    stowage.dev/base-cluster: west
    basement.koupleless.io/stack: java
    base.koupleless.io/version: 2.1.0
    stowage.dev/host: worker-3
    stowage.dev/zone: a
    size: large
  annotations:
    stowage.dev/base: shop/base-1
    stowage.dev/base-uid: u1
    stowage.dev/base-revision: base/6f7c@2026-11-01T10:00:00Z
    stowage.dev/inventory: '{"v":1,"provides":{"jdk":"17.0.2","odd":"a b"}}'
spec: {taints: [{key: schedule.koupleless.io/metaspace-overload, effect: NoSchedule}]}
status: {allocatable: {pods: "8"}, conditions: [{type: Ready, status: "True"}]}
"#;

    #[test]
    fn a_whole_node() {
        let facts = BaseFacts::from_node(&node(WHOLE)).unwrap().unwrap();
        assert_eq!(
            (&*facts.namespace, &*facts.pod, &*facts.uid, &*facts.cluster),
            ("shop", "base-1", "u1", "west")
        );
        assert_eq!((&*facts.stack, facts.version.as_deref().map(Version::as_str)), ("java", Some("2.1.0")));
        assert_eq!((facts.host.as_deref(), facts.zone.as_deref()), (Some("worker-3"), Some("a")));
        assert!(facts.ready && facts.overloaded && !facts.leaving && !facts.paused);
        assert_eq!(facts.allocatable_pods, 8);
        assert_eq!(facts.provides.keys().collect::<Vec<_>>(), ["jdk"], "what is no version is left out");
        let revision = facts.revision.unwrap();
        assert_eq!((&*revision.workload, &*revision.hash), ("base", "6f7c"));
        assert_eq!(BaseRevision::parse(&revision.to_string()), Some(revision));
    }

    #[test]
    fn nodes_of_others_are_none_of_ours() {
        let others = node("{metadata: {name: n, labels: {type: virtual-kubelet}}}");
        assert!(BaseFacts::from_node(&others).unwrap().is_none());
    }

    #[test]
    fn ours_without_a_base_is_an_error() {
        for base in ["", "shop", "/x", "shop/", "a/b/c"] {
            let mut ours = node(WHOLE);
            ours.metadata.annotations.as_mut().unwrap().insert(names::BASE.into(), base.into());
            assert_eq!(BaseFacts::from_node(&ours).unwrap_err(), BaseError::Base, "{base:?}");
        }
    }

    #[test]
    fn leaving_is_a_taint_and_a_cordon_is_not() {
        let mut cordoned = node(WHOLE);
        cordoned.spec.as_mut().unwrap().unschedulable = Some(true);
        let facts = BaseFacts::from_node(&cordoned).unwrap().unwrap();
        assert!(facts.cordoned && !facts.leaving);
        let mut tainted = node(WHOLE);
        tainted.spec.as_mut().unwrap().taints.as_mut().unwrap()[0].key = names::LEAVING_TAINT.into();
        let facts = BaseFacts::from_node(&tainted).unwrap().unwrap();
        assert!(facts.leaving && !facts.cordoned && !facts.overloaded);
    }

    #[test]
    fn a_bare_node_has_defaults() {
        let bare = node(
            "{metadata: {name: n, labels: {app.kubernetes.io/managed-by: stowage}, annotations: {stowage.dev/base: a/b, \
             stowage.dev/inventory: nonsense}}}",
        );
        let facts = BaseFacts::from_node(&bare).unwrap().unwrap();
        assert_eq!((&*facts.stack, &*facts.cluster, facts.allocatable_pods), ("java", "default", 0));
        assert!(!facts.ready && facts.version.is_none() && matches!(facts.inventory, Known::Unreadable(_)));
    }
}
