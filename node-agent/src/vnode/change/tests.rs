use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use proptest::prelude::*;

use super::*;
use crate::base::Health;
use crate::vnode::render::tests::{frame, show};
use crate::vnode::{Show, render};

const NAME: &str = "virtual-node-java-shop-base-7d9f-x2";

fn now() -> Timestamp {
    Timestamp::from_second(1_000).expect("time")
}

fn seen(show: &Show) -> SeenNode {
    let mut node = creation(NAME, &render(show, &frame()), Timestamp::UNIX_EPOCH);
    node.metadata.resource_version = Some("7".to_owned());
    SeenNode::new(node)
}

fn with(seen: &SeenNode, change: impl FnOnce(&mut Node)) -> SeenNode {
    let mut node = (*seen.node).clone();
    change(&mut node);
    SeenNode { node: node.into(), written_labels: seen.written_labels.clone() }
}

#[test]
fn nothing_changed_is_nothing_written() {
    let show = show();
    assert_eq!(changes(&seen(&show), &render(&show, &frame()), false, now()), Changes::default());
    // The API server's own way to write a quantity is no change.
    let canonical = with(&seen(&show), |node| {
        let memory = Quantity("4Gi".to_owned());
        node.status
            .as_mut()
            .and_then(|status| status.capacity.as_mut())
            .expect("capacity")
            .insert("memory".to_owned(), memory);
    });
    assert!(changes(&canonical, &render(&show, &frame()), false, now()).is_empty());
}

#[test]
fn a_heartbeat_writes_conditions_and_keeps_their_transition_times() {
    let show = show();
    let changes = changes(&seen(&show), &render(&show, &frame()), true, now());
    assert_eq!(changes.spec, None);
    let conditions = changes.status.expect("status")["status"]["conditions"].clone();
    let ready = &conditions[0];
    assert_eq!(
        (&ready["type"], &ready["lastTransitionTime"]),
        (&json!("Ready"), &json!("1970-01-01T00:00:00Z"))
    );
    assert_eq!(ready["lastHeartbeatTime"], json!("1970-01-01T00:16:40Z"));
    assert_eq!(conditions.as_array().map(Vec::len), Some(6));
}

/// BL-011, BL-020: a cordon, taints, labels and annotations of others survive; ours come back.
#[test]
fn what_others_wrote_survives() {
    let show = show();
    let wanted = render(&show, &frame());
    let touched = with(&seen(&show), |node| {
        let spec = node.spec.as_mut().expect("spec");
        spec.unschedulable = Some(true);
        spec.taints = Some(vec![Taint {
            key: "team".to_owned(),
            value: Some("a".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        }]);
        let labels = node.metadata.labels.as_mut().expect("labels");
        labels.insert("team".to_owned(), "a".to_owned());
        labels.remove(names::STACK);
        node.metadata.annotations.as_mut().expect("annotations").insert("note".to_owned(), "x".to_owned());
    });
    let changes = changes(&touched, &wanted, false, now());
    let spec = changes.spec.expect("spec");
    assert_eq!(spec["metadata"]["resourceVersion"], "7");
    assert_eq!(spec["spec"]["unschedulable"], Value::Null, "not mentioned");
    assert!(!spec["spec"].as_object().expect("object").contains_key("unschedulable"));
    let keys: Vec<&str> =
        spec["spec"]["taints"].as_array().expect("taints").iter().filter_map(|t| t["key"].as_str()).collect();
    assert_eq!(keys, [names::VIRTUAL_NODE_TAINT, "team"]);
    let status = changes.status.expect("status");
    assert_eq!(status["metadata"]["labels"], json!({names::STACK: "java"}));
    assert!(status["metadata"].get("annotations").is_none());
}

#[test]
fn leaving_cordons_and_coming_back_lifts_only_our_cordon() {
    let mut show = show();
    let staying = seen(&show);
    show.spec = std::sync::Arc::new(crate::discovery::BaseSpec {
        leaving: Some(crate::discovery::Leaving::Deselected),
        ..(*show.spec).clone()
    });
    let patch = changes(&staying, &render(&show, &frame()), false, now()).spec.expect("patch");
    assert_eq!(patch["spec"]["unschedulable"], true);
    assert_eq!(patch["spec"]["taints"][1]["key"], names::LEAVING_TAINT);

    let leaving = seen(&show);
    let back = crate::vnode::render::tests::show();
    let patch = changes(&leaving, &render(&back, &frame()), false, now()).spec.expect("patch");
    assert_eq!(patch["spec"]["taints"].as_array().map(Vec::len), Some(1));
    assert!(patch["spec"].as_object().expect("object").contains_key("unschedulable"));
}

#[test]
fn labels_the_base_lost_go_and_labels_of_others_stay() {
    let show = show();
    let node = with(&seen(&show), |node| {
        let labels = node.metadata.labels.as_mut().expect("labels");
        labels.insert("size".to_owned(), "large".to_owned());
        labels.insert("team".to_owned(), "a".to_owned());
    });
    let written = ["size".to_owned(), "app".to_owned()].into();
    let node = SeenNode { written_labels: std::sync::Arc::new(written), ..node };
    let patch = changes(&node, &render(&show, &frame()), false, now()).status.expect("status");
    assert_eq!(patch["metadata"]["labels"], json!({"size": null}));
}

/// BL-025: a condition that somebody else set is put right.
#[test]
fn a_condition_of_ours_set_by_others_is_reset() {
    let show = show();
    let node = with(&seen(&show), |node| {
        let conditions =
            node.status.as_mut().and_then(|status| status.conditions.as_mut()).expect("conditions");
        let network =
            conditions.iter_mut().find(|condition| condition.type_ == "NetworkUnavailable").expect("found");
        network.status = "True".to_owned();
    });
    let patch = changes(&node, &render(&show, &frame()), false, now()).status.expect("status");
    assert_eq!(patch["status"]["conditions"].as_array().map(Vec::len), Some(1));
    assert_eq!(patch["status"]["conditions"][0]["status"], "False");
    assert_eq!(patch["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:16:40Z");
}

#[test]
fn metaspace_alone_is_told_apart() {
    let mut show = show();
    let figures = |used| policy::contract::Metaspace { max: Some(100), used, lowest: 10 };
    Arc::make_mut(&mut show.report).inventory.metaspace = Some(figures(20));
    let node = seen(&show);
    Arc::make_mut(&mut show.report).inventory.metaspace = Some(figures(21));
    let first = changes(&node, &render(&show, &frame()), false, now());
    assert!(first.only_metaspace && !first.is_empty());
    Arc::make_mut(&mut show.report).inventory.metaspace = Some(figures(20));
    assert!(changes(&node, &render(&show, &frame()), false, now()).is_empty());
    Arc::make_mut(&mut show.report).inventory.multi_version = true;
    Arc::make_mut(&mut show.report).inventory.metaspace = Some(figures(60));
    assert!(!changes(&node, &render(&show, &frame()), false, now()).only_metaspace);
    Arc::make_mut(&mut show.report).health = Health::Silent { since: now(), reason: "x".to_owned() };
    assert!(!changes(&node, &render(&show, &frame()), false, now()).only_metaspace);
}

/// BL-092: the annotation and the taint of a healing come and go in one write, and a person's own taint is left alone.
#[test]
fn a_healing_and_its_taint_are_one_write() {
    let mut show = show();
    let plain = seen(&show);
    let overload = |effect: &str| {
        let key = names::OVERLOAD_TAINT.to_owned();
        Taint { key, value: Some("true".to_owned()), effect: effect.to_owned(), time_added: None }
    };
    let mut healing = Healing::found("u-1", None, crate::healing::Cause::NotFreed, now());
    show.healing = Some((healing.clone(), None));
    let found = changes(&plain, &render(&show, &frame()), false, now());
    let spec = found.spec.expect("the annotation");
    assert_eq!(spec["metadata"]["annotations"][names::HEALING], healing.to_annotation());
    assert_eq!(spec["spec"], json!({}), "it waits: no taint");
    healing.step = crate::healing::Step::Evicting;
    show.healing = Some((healing.clone(), None));
    let begun = changes(&plain, &render(&show, &frame()), false, now()).spec.expect("both");
    assert_eq!(begun["metadata"]["annotations"][names::HEALING], healing.to_annotation());
    assert!(begun["spec"]["taints"].as_array().expect("taints").contains(&json!(overload("NoSchedule"))));
    let tainted = seen(&show);
    assert!(changes(&tainted, &render(&show, &frame()), false, now()).is_empty());
    show.healing = None;
    let over = changes(&tainted, &render(&show, &frame()), false, now()).spec.expect("both go");
    assert_eq!(over["metadata"]["annotations"][names::HEALING], Value::Null);
    assert!(!over["spec"]["taints"].as_array().expect("taints").contains(&json!(overload("NoSchedule"))));

    let mut by_hand = (*plain.node).clone();
    by_hand.spec.get_or_insert_default().taints.get_or_insert_default().push(overload("NoSchedule"));
    assert!(changes(&SeenNode::new(by_hand), &render(&show, &frame()), false, now()).is_empty());
}

proptest! {
    /// Whatever taints stand there, ours end up right and all others as they were.
    #[test]
    fn taints_of_others_are_never_lost(
        others in proptest::collection::vec(("[a-c]", "[x-y]", prop_oneof!["NoSchedule", "NoExecute"]), 0..5),
        value in "[a-b]",
    ) {
        let taint = |key: &str, value: &str, effect: &str| Taint {
            key: key.to_owned(), value: Some(value.to_owned()), effect: effect.to_owned(), time_added: None,
        };
        let mut existing: Vec<Taint> = others.iter().map(|(k, v, e)| taint(k, v, e)).collect();
        existing.push(taint(names::VIRTUAL_NODE_TAINT, &value, "NoExecute"));
        let wanted = [taint(names::VIRTUAL_NODE_TAINT, "a", "NoExecute")];
        let result = merged_taints(&existing, &wanted, false).unwrap_or_else(|| existing.clone());
        prop_assert_eq!(result.iter().filter(|t| t.key == names::VIRTUAL_NODE_TAINT).count(), 1);
        prop_assert!(result.iter().any(|t| t == &wanted[0]));
        for other in existing.iter().filter(|t| t.key != names::VIRTUAL_NODE_TAINT) {
            prop_assert!(result.contains(other));
        }
        prop_assert!(merged_taints(&result, &wanted, false).is_none());
    }
}

/// After a take-over the address of the new agent stands there; without an endpoint the base's comes back, and no port.
#[test]
fn the_kubelet_endpoint_follows_the_agent() {
    use crate::vnode::{Frame, ServedEndpoint};

    let show = show();
    let served = |ip: &str| Frame {
        kubelet: Some(ServedEndpoint { ip: ip.parse().expect("address"), port: 10_250, for_all: true }),
        ..frame()
    };
    let of = |frame: &Frame| {
        let mut node = creation(NAME, &render(&show, frame), Timestamp::UNIX_EPOCH);
        node.metadata.resource_version = Some("7".to_owned());
        SeenNode::new(node)
    };
    let first = of(&served("10.9.9.1"));
    assert_eq!(changes(&first, &render(&show, &served("10.9.9.1")), false, now()), Changes::default());
    let moved = changes(&first, &render(&show, &served("10.9.9.2")), false, now()).status.expect("status");
    let addresses = json!([{"type": "InternalIP", "address": "10.9.9.2"}, {"$patch": "replace"}]);
    assert_eq!(moved, json!({"status": {"addresses": addresses}}));
    let off = changes(&first, &render(&show, &frame()), false, now()).status.expect("status");
    assert_eq!(off["status"]["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 0}}));
    assert_eq!(off["status"]["addresses"][0]["address"], "10.244.1.7");
    // The API server gives back 0 where nothing stands.
    let none = with(&of(&frame()), |node| {
        let zero = serde_json::from_value(json!({"kubeletEndpoint": {"Port": 0}})).expect("endpoints");
        node.status.as_mut().expect("status").daemon_endpoints = zero;
    });
    assert!(changes(&none, &render(&show, &frame()), false, now()).is_empty());
    let on = changes(&none, &render(&show, &served("10.9.9.1")), false, now()).status.expect("status");
    assert_eq!(on["status"]["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 10250}}));
}
