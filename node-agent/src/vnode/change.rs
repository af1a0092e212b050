//! How a Node differs from what it must show, as patches. Pure. What others wrote survives.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use policy::contract::{Inventory, names};
use policy::model::Quantity as Amount;
use serde_json::{Value, json};

use super::SeenNode;
use super::render::{Condition, Wanted, leaving_taint};
use crate::healing::Healing;

/// How often conditions are written though nothing changed.
pub const HEARTBEAT_EVERY: Duration = Duration::from_mins(5);

/// What must be written. Strategic merge patches.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changes {
    /// Patch of the Node's spec, with the resourceVersion it was made for: taints are replaced as a whole.
    pub spec: Option<Value>,
    /// Patch of the Node's status and metadata.
    pub status: Option<Value>,
    /// Nothing but metaspace figures differs: it may wait.
    pub only_metaspace: bool,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.spec.is_none() && self.status.is_none()
    }
}

/// The Node to create where there is none.
pub fn creation(name: &str, wanted: &Wanted, now: Timestamp) -> Node {
    let annotations = wanted
        .annotations
        .iter()
        .filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?)))
        .collect();
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(wanted.labels.clone()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(wanted.provider_id.clone()),
            taints: Some(wanted.taints.clone()),
            unschedulable: wanted.leaving.then_some(true),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            addresses: Some(wanted.addresses.clone()),
            capacity: Some(wanted.capacity.clone()),
            allocatable: Some(wanted.allocatable.clone()),
            conditions: Some(
                wanted.conditions.iter().map(|condition| written(condition, None, now)).collect(),
            ),
            node_info: Some(wanted.node_info.clone()),
            daemon_endpoints: (wanted.kubelet_port != 0).then(|| daemon_endpoints(wanted.kubelet_port)),
            ..NodeStatus::default()
        }),
    }
}

/// What keeps new Pods off a Node, whatever else it shows: `None` when it stands there.
pub fn departure(seen: &SeenNode) -> Option<Value> {
    if seen.is_leaving() {
        return None;
    }
    let spec = seen.node.spec.clone().unwrap_or_default();
    let taints: Vec<Taint> =
        std::iter::once(leaving_taint()).chain(spec.taints.unwrap_or_default()).collect();
    let patch = json!({"taints": taints, "unschedulable": true});
    Some(json!({"metadata": {"resourceVersion": seen.node.metadata.resource_version}, "spec": patch}))
}

/// What must change on a Node. With `heartbeat` all conditions are written anew.
pub fn changes(seen: &SeenNode, wanted: &Wanted, heartbeat: bool, now: Timestamp) -> Changes {
    let node = &*seen.node;
    let spec = spec_patch(node, wanted);
    let labels = label_patch(seen, wanted);
    let annotations = annotation_patch(node, wanted);
    let status = status_patch(node, wanted, heartbeat, now);
    let only_metaspace = spec.is_none()
        && labels.is_empty()
        && status.is_empty()
        && annotations.keys().all(|key| *key == names::INVENTORY)
        && !annotations.is_empty()
        && differs_in_metaspace_only(seen.inventory(), wanted);
    let mut patch = serde_json::Map::new();
    let mut metadata = serde_json::Map::new();
    if !labels.is_empty() {
        metadata.insert("labels".to_owned(), json!(labels));
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), json!(annotations));
    }
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), Value::Object(metadata));
    }
    if !status.is_empty() {
        patch.insert("status".to_owned(), Value::Object(status));
    }
    Changes { spec, status: (!patch.is_empty()).then_some(Value::Object(patch)), only_metaspace }
}

fn spec_patch(node: &Node, wanted: &Wanted) -> Option<Value> {
    let spec = node.spec.clone().unwrap_or_default();
    let mut patch = serde_json::Map::new();
    let healing = healing_patch(node, wanted);
    let taints =
        merged_taints(spec.taints.as_deref().unwrap_or_default(), &wanted.taints, tainted_by_us(node));
    if let Some(taints) = taints {
        patch.insert("taints".to_owned(), json!(taints));
    }
    let was_leaving = spec.taints.iter().flatten().any(|taint| taint.key == names::LEAVING_TAINT);
    let cordoned = spec.unschedulable == Some(true);
    // Somebody's cordon is theirs; ours ends with the taint that came with it.
    if wanted.leaving && !cordoned {
        patch.insert("unschedulable".to_owned(), json!(true));
    } else if !wanted.leaving && was_leaving && cordoned {
        patch.insert("unschedulable".to_owned(), Value::Null);
    }
    if spec.provider_id.as_deref().unwrap_or_default().is_empty() {
        patch.insert("providerID".to_owned(), json!(wanted.provider_id));
    }
    if patch.is_empty() && healing.is_none() {
        return None;
    }
    let mut metadata = json!({"resourceVersion": node.metadata.resource_version});
    if let (Some(healing), Some(metadata)) = (healing, metadata.as_object_mut()) {
        metadata.insert("annotations".to_owned(), json!({(names::HEALING): healing}));
    }
    Some(json!({"metadata": metadata, "spec": patch}))
}

/// What must stand there of a healing: together with its taints or not at all.
fn healing_patch(node: &Node, wanted: &Wanted) -> Option<Value> {
    let have = node.metadata.annotations.as_ref().and_then(|all| all.get(names::HEALING));
    let want = wanted.annotations.get(names::HEALING)?.as_ref();
    (have != want).then(|| json!(want))
}

/// Whether the overload taint is ours: one that a person set stays.
fn tainted_by_us(node: &Node) -> bool {
    let healing = node.metadata.annotations.as_ref().and_then(|all| all.get(names::HEALING));
    healing.and_then(|text| Healing::parse(text)).is_some_and(|healing| healing.has_begun())
}

/// The Node's taints with ours put right, or `None` when they are.
fn merged_taints(existing: &[Taint], wanted: &[Taint], overload_is_ours: bool) -> Option<Vec<Taint>> {
    let overload_is_ours = overload_is_ours || wanted.iter().any(|taint| taint.key == names::OVERLOAD_TAINT);
    let ours = |taint: &&Taint| match taint.key.as_str() {
        names::VIRTUAL_NODE_TAINT | names::LEAVING_TAINT => true,
        names::OVERLOAD_TAINT => overload_is_ours,
        _ => false,
    };
    let same = |a: &Taint, b: &Taint| a.key == b.key && a.value == b.value && a.effect == b.effect;
    let present: Vec<&Taint> = existing.iter().filter(ours).collect();
    let right = present.len() == wanted.len()
        && wanted.iter().all(|want| present.iter().any(|have| same(have, want)));
    if right {
        return None;
    }
    let others = existing.iter().filter(|taint| !ours(taint)).cloned();
    // A taint that stays keeps its timeAdded.
    let kept = wanted
        .iter()
        .map(|want| present.iter().find(|have| same(have, want)).map_or(want, |have| *have).clone());
    Some(kept.chain(others).collect())
}

fn label_patch(seen: &SeenNode, wanted: &Wanted) -> BTreeMap<String, Value> {
    let none = BTreeMap::new();
    let existing = seen.node.metadata.labels.as_ref().unwrap_or(&none);
    let set = wanted
        .labels
        .iter()
        .filter(|(key, value)| existing.get(*key) != Some(*value))
        .map(|(key, value)| (key.clone(), json!(value)));
    let gone = seen
        .written_labels
        .iter()
        .filter(|key| existing.contains_key(*key) && !wanted.labels.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    set.chain(gone).collect()
}

fn annotation_patch(node: &Node, wanted: &Wanted) -> BTreeMap<&'static str, Option<String>> {
    let existing = |key: &str| node.metadata.annotations.as_ref().and_then(|all| all.get(key));
    let differs = |key: &str, value: &Option<String>| existing(key) != value.as_ref();
    wanted
        .annotations
        .iter()
        .filter(|(key, value)| **key != names::HEALING && differs(key, value))
        .map(|(key, value)| (*key, value.clone()))
        .collect()
}

fn differs_in_metaspace_only(before: Option<&str>, wanted: &Wanted) -> bool {
    let after = wanted.annotations.get(names::INVENTORY).and_then(Option::as_deref);
    let without =
        |text: &str| Inventory::parse(text).ok().map(|inventory| Inventory { metaspace: None, ..inventory });
    match (before.and_then(without), after.and_then(without)) {
        (Some(before), Some(after)) => before == after,
        _ => false,
    }
}

fn status_patch(
    node: &Node,
    wanted: &Wanted,
    heartbeat: bool,
    now: Timestamp,
) -> serde_json::Map<String, Value> {
    let status = node.status.clone().unwrap_or_default();
    let mut patch = serde_json::Map::new();
    if status.addresses.as_ref() != Some(&wanted.addresses) {
        let mut addresses = json!(wanted.addresses);
        // Without it the API server would keep addresses of other types.
        if let Some(list) = addresses.as_array_mut() {
            list.push(json!({"$patch": "replace"}));
        }
        patch.insert("addresses".to_owned(), addresses);
    }
    if kubelet_port(&status) != wanted.kubelet_port {
        // 0 takes it off.
        patch.insert("daemonEndpoints".to_owned(), json!(daemon_endpoints(wanted.kubelet_port)));
    }
    for (field, existing, wanted) in [
        ("capacity", &status.capacity, &wanted.capacity),
        ("allocatable", &status.allocatable, &wanted.allocatable),
    ] {
        let empty = BTreeMap::new();
        let existing = existing.as_ref().unwrap_or(&empty);
        let different: BTreeMap<_, _> = wanted
            .iter()
            .filter(|(name, quantity)| !existing.get(*name).is_some_and(|have| same(have, quantity)))
            .collect();
        if !different.is_empty() {
            patch.insert(field.to_owned(), json!(different));
        }
    }
    if status.node_info.as_ref() != Some(&wanted.node_info) {
        patch.insert("nodeInfo".to_owned(), json!(wanted.node_info));
    }
    let existing =
        |type_: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == type_);
    let conditions: Vec<NodeCondition> = wanted
        .conditions
        .iter()
        .filter(|condition| heartbeat || existing(condition.type_).is_none_or(|have| !shows(have, condition)))
        .map(|condition| written(condition, existing(condition.type_), now))
        .collect();
    if !conditions.is_empty() {
        patch.insert("conditions".to_owned(), json!(conditions));
    }
    patch
}

fn kubelet_port(status: &NodeStatus) -> i32 {
    let endpoint = status.daemon_endpoints.as_ref().and_then(|endpoints| endpoints.kubelet_endpoint.as_ref());
    endpoint.map_or(0, |endpoint| endpoint.port)
}

fn daemon_endpoints(port: i32) -> NodeDaemonEndpoints {
    NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port }) }
}

/// By value: the API server writes quantities in its own way.
fn same(have: &Quantity, want: &Quantity) -> bool {
    have == want || Amount::parse(&have.0).is_ok_and(|have| Amount::parse(&want.0) == Ok(have))
}

fn shows(have: &NodeCondition, want: &Condition) -> bool {
    have.status == text(want.status)
        && have.reason.as_deref() == Some(want.reason)
        && have.message.as_deref().unwrap_or_default() == want.message
}

fn text(status: bool) -> &'static str {
    if status { "True" } else { "False" }
}

fn written(condition: &Condition, before: Option<&NodeCondition>, now: Timestamp) -> NodeCondition {
    let unchanged = before.filter(|before| before.status == text(condition.status));
    let since = unchanged.and_then(|before| before.last_transition_time.clone());
    NodeCondition {
        type_: condition.type_.to_owned(),
        status: text(condition.status).to_owned(),
        reason: Some(condition.reason.to_owned()),
        message: Some(condition.message.clone()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    }
}

#[cfg(test)]
mod tests;
