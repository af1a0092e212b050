//! A Node as the API server has it, with what the agent needs of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use policy::contract::names;

use super::FIELD_MANAGER;

/// A Node of ours, or one that has a name of ours. Made when it is read, never changed.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenNode {
    /// The Node without its managed fields.
    pub node: Arc<Node>,
    /// Keys of the labels that we wrote, as the API server remembers them: they outlive us, so that a label the base
    /// lost while no agent ran is still taken off.
    pub written_labels: Arc<BTreeSet<String>>,
}

impl SeenNode {
    /// Takes what is needed of a Node.
    pub fn new(mut node: Node) -> Self {
        let fields = node.metadata.managed_fields.take().unwrap_or_default();
        Self { written_labels: Arc::new(written_labels(&fields)), node: Arc::new(node) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        self.node.metadata.uid.as_deref().unwrap_or_default()
    }

    /// One of its annotations.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.node.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether an agent of this base cluster made it.
    pub fn is_ours(&self, cluster: &str) -> bool {
        self.label(names::MANAGED_BY) == Some(names::MANAGER)
            && self.label(names::BASE_CLUSTER) == Some(cluster)
    }

    /// Whether an agent of its own looks after the base.
    pub fn has_sidecar(&self) -> bool {
        self.label(names::SIDECAR) == Some(names::SIDECAR_YES)
    }

    /// UID of the base Pod it stands for. The provider id says it first: unlike an annotation it cannot be changed.
    pub fn base_uid(&self) -> &str {
        let provider =
            self.node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        let uid = provider.strip_prefix(names::PROVIDER_SCHEME).and_then(|rest| rest.rsplit_once('/'));
        uid.map(|(_, uid)| uid).or_else(|| self.annotation(names::BASE_UID)).unwrap_or_default()
    }

    /// Whether it has this provider id, and so is ours whatever happened to its labels.
    pub fn has_provider_id(&self, provider_id: &str) -> bool {
        self.node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()) == Some(provider_id)
    }

    /// Whether the cluster handed out a range of Pod addresses to it.
    pub fn has_pod_cidr(&self) -> bool {
        let cidr = self.node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref());
        cidr.is_some_and(|cidr| !cidr.is_empty())
    }

    /// Namespace and name of that Pod.
    pub fn base(&self) -> Option<(&str, &str)> {
        self.annotation(names::BASE)?.split_once('/')
    }

    /// Whether it is annotated as paused.
    pub fn is_paused(&self) -> bool {
        self.annotation(names::PAUSED) == Some("true")
    }

    /// Whether it is marked as leaving.
    pub fn is_leaving(&self) -> bool {
        let spec = self.node.spec.as_ref();
        spec.is_some_and(|spec| spec.taints.iter().flatten().any(|taint| taint.key == names::LEAVING_TAINT))
    }

    /// How many Pods kube-scheduler may bind to it.
    pub fn allocatable_pods(&self) -> Option<usize> {
        self.node.status.as_ref()?.allocatable.as_ref()?.get("pods")?.0.parse().ok()
    }

    /// Its inventory text.
    pub fn inventory(&self) -> Option<&str> {
        self.annotation(names::INVENTORY)
    }

    /// The condition of this type.
    pub fn condition(&self, type_: &str) -> Option<&k8s_openapi::api::core::v1::NodeCondition> {
        self.node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
    }

    /// Whether it is at least as new as the other. Versions that cannot be compared count as newer, because the watch
    /// tells them in order.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        let version = |seen: &Self| seen.node.metadata.resource_version.as_ref()?.parse::<u128>().ok();
        match (version(self), version(other)) {
            (Some(mine), Some(others)) => mine >= others,
            _ => true,
        }
    }
}

fn written_labels(fields: &[ManagedFieldsEntry]) -> BTreeSet<String> {
    fields
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
        .filter_map(|entry| entry.fields_v1.as_ref())
        .filter_map(|fields| fields.0.get("f:metadata")?.get("f:labels")?.as_object())
        .flat_map(|labels| labels.keys())
        .filter_map(|key| key.strip_prefix("f:").map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_we_wrote_are_read_from_the_managed_fields() {
        let node: Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "n", "resourceVersion": "10", "managedFields": [
                {"manager": FIELD_MANAGER, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:size": {}}}}},
                {"manager": "kubectl", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}}}]}
        }))
        .expect("node");
        let seen = SeenNode::new(node);
        assert_eq!(seen.written_labels.iter().collect::<Vec<_>>(), ["size"]);
        assert!(seen.node.metadata.managed_fields.is_none());

        let mut later = (*seen.node).clone();
        later.metadata.resource_version = Some("9".to_owned());
        assert!(!SeenNode::new(later.clone()).is_newer_than(&seen));
        later.metadata.resource_version = Some("11".to_owned());
        assert!(SeenNode::new(later).is_newer_than(&seen));
    }
}
