//! Which VNodes the Pods of a template may go to. Pure.
//!
//! As far as that does not depend on what else is there, two things follow it: how many replicas a Deployment that
//! follows its bases has, and which `DaemonSets` a new base waits for. What there is room for now is a [`Place`]'s to say.

mod affinity;
mod place;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodTemplateSpec, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use policy::Policy;
use policy::contract::module::{ModulePod, PodKind, classify};
use policy::contract::{BaseFacts, names};
use policy::decide::trace;
use policy::view::BaseView;

pub use place::Place;

/// Rules about what is on a base at the moment: a base is a place for a module though it is full now.
const PASSING: [&str; 5] = ["same module", "context path", "module limit", "metaspace", "recent failure"];

/// The Pods that a controller makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pod: Arc<Pod>,
    module: Arc<ModulePod>,
}

impl Template {
    /// Reads a template; `None` where its Pods are no module Pods. `completed`: the API server completes marked Pods, so
    /// that a template may lack what it adds; the controller of a `DaemonSet` reads the template itself, and lets its Pods
    /// tolerate a cordon.
    pub fn read(namespace: &str, template: &PodTemplateSpec, completed: bool) -> Option<Self> {
        let meta = template.metadata.clone().unwrap_or_default();
        let mut spec = template.spec.clone()?;
        let labelled = |key: &str, value: &str| {
            meta.labels.as_ref().and_then(|labels| labels.get(key)).is_some_and(|found| found == value)
        };
        let marked = labelled(names::MODULE_POD, "true")
            || labelled(names::KOUPLELESS_COMPONENT, names::KOUPLELESS_COMPONENT_MODULE);
        let tolerations = spec.tolerations.get_or_insert_default();
        if completed && marked && !tolerations.iter().any(is_by_key) {
            tolerations.push(Toleration {
                key: Some(names::VIRTUAL_NODE_TAINT.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                ..Toleration::default()
            });
        }
        if !completed {
            // Its controller adds this to each Pod.
            tolerations.push(Toleration {
                key: Some(names::UNSCHEDULABLE_TAINT.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoSchedule".to_owned()),
                ..Toleration::default()
            });
        }
        let metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            labels: meta.labels,
            annotations: meta.annotations,
            ..ObjectMeta::default()
        };
        Self::of_pod(Pod { metadata, spec: Some(spec), status: None })
    }

    /// A Pod as it is; `None` where it is no module Pod.
    pub fn of_pod(pod: impl Into<Arc<Pod>>) -> Option<Self> {
        let pod = pod.into();
        match classify(&pod) {
            PodKind::Module(module) => Some(Self { pod, module: Arc::from(module) }),
            PodKind::Incomplete(_) | PodKind::Foreign => None,
        }
    }

    /// Whether its Pods may go to this VNode: by the rules of kube-scheduler that the template speaks of, and by ours.
    pub fn fits(&self, rules: &Lasting, node: &Node, base: &BaseFacts) -> bool {
        let Some(spec) = &self.pod.spec else { return false };
        affinity::admits(spec, node) && rules.admits(&self.module, base)
    }

    /// Whether kube-scheduler's own rules let its Pods stand on this Node.
    pub fn may_stand_on(&self, node: &Node) -> bool {
        self.pod.spec.as_ref().is_some_and(|spec| affinity::admits(spec, node))
    }
}

fn is_by_key(toleration: &Toleration) -> bool {
    toleration.key.as_deref() == Some(names::VIRTUAL_NODE_TAINT)
}

/// The policy without what speaks of other modules on a base: those come and go.
#[derive(Debug, Clone, PartialEq)]
pub struct Lasting(Policy);

impl Lasting {
    /// What lasts of a policy.
    pub fn of(policy: &Policy) -> Self {
        let mut policy = policy.clone();
        for entry in &mut policy.compatibility {
            entry.requirements.modules.clear();
            entry.requirements.conflicts.clear();
        }
        Self(policy)
    }

    fn admits(&self, module: &ModulePod, base: &BaseFacts) -> bool {
        let mut module = module.clone();
        module.requirements.modules.clear();
        module.requirements.conflicts.clear();
        trace(&self.0, &module, &BaseView::empty(base))
            .iter()
            .all(|(rule, verdict)| verdict.is_ok() || PASSING.contains(rule))
    }
}

/// Whether a Pod tolerates a taint.
pub fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.into_iter().any(|toleration| affinity::tolerates_one(toleration, taint))
}

/// Whether a Pod tolerates a taint, and not for a limited time only.
pub fn tolerates_for_ever(pod: &Pod, taint: &Taint) -> bool {
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    let limits: Vec<_> = tolerations
        .filter(|toleration| affinity::tolerates_one(toleration, taint))
        .map(|toleration| toleration.toleration_seconds)
        .collect();
    !limits.is_empty() && limits.iter().all(Option::is_none)
}

/// How many of these VNodes a template fits.
pub fn count<'a>(template: &Template, rules: &Lasting, nodes: impl IntoIterator<Item = &'a Node>) -> usize {
    nodes
        .into_iter()
        .filter(
            |node| matches!(BaseFacts::from_node(node), Ok(Some(base)) if template.fits(rules, node, &base)),
        )
        .count()
}

#[cfg(test)]
mod tests;
