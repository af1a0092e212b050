//! `POST /scheduler/preempt`. "Case N" is a fault that extenders or kube-scheduler have had with it.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use axum::http::StatusCode;
use rig::{Rig, bound, module_pod, ordinary_node, ordinary_pod, state, vnode, vnode_with};
use scheduler_extender::cache::State;
use serde_json::{Value, json};

/// Candidates with UIDs: node to victims.
async fn preempt(rig: &Rig, pod: &Value, candidates: Value) -> Value {
    let body =
        json!({"Pod": pod, "NodeNameToVictims": null, "NodeNameToMetaVictims": candidates}).to_string();
    let (status, text) = rig.send("preempt", body).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(!text.contains("null"), "a null ends kube-scheduler: {text}");
    serde_json::from_str::<Value>(&text).expect("JSON")["NodeNameToMetaVictims"].clone()
}

fn victims(uids: &[&str]) -> Value {
    json!({"Pods": uids.iter().map(|uid| json!({"UID": uid})).collect::<Vec<_>>(), "NumPDBViolations": 0})
}

/// A base with one slot, taken by a Pod of module `low`, which is in the inventory too.
fn full(name: &str, version: &str) -> (Value, Value) {
    let victim = format!("low-{name}");
    let owner = format!("biz/{victim}/uid-{victim}");
    let modules = json!([{"name": "low", "version": "1", "state": "activated", "owner": owner}]);
    let mut node = vnode_with(name, &json!({"v": 1, "modules": modules}));
    node["metadata"]["labels"]["basement.koupleless.io/version"] = json!(version);
    node["status"]["allocatable"]["pods"] = json!("1");
    (node, bound(module_pod(&victim, "low", "1"), name))
}

fn two_full() -> State {
    let ((fits, a), (other, b)) = (full("fits", "2.1.0"), full("other", "3.0.0"));
    state(&[fits, other, ordinary_node("worker")], &[a, b])
}

fn urgent() -> Value {
    let mut pod = module_pod("urgent", "shop", "1");
    pod["metadata"]["annotations"] = json!({"stowage.dev/base-version": ">=2 <3"});
    pod
}

/// Case 9, BL-032: high priority, base full and compatible: the eviction goes on, there only; base full and
/// incompatible: none.
#[tokio::test]
async fn evictions_that_would_not_help_are_vetoed() {
    let rig = Rig::new(two_full());
    let asked = json!({
        "fits": {"Pods": [{"UID": "uid-low-fits"}], "NumPDBViolations": 1},
        "other": victims(&["uid-low-other"]),
        "worker": victims(&["uid-x"]),
        "unknown": victims(&["uid-y"]),
    });
    let answer = preempt(&rig, &urgent(), asked).await;
    assert_eq!(answer, json!({"fits": {"Pods": [{"UID": "uid-low-fits"}], "NumPDBViolations": 1}}));
}

/// Case 9, by rules about neighbours: the victim must be the Pod that stands in the way.
#[tokio::test]
async fn the_right_victim_must_go() {
    let pods = [bound(module_pod("a", "shop", "1"), "v0"), bound(module_pod("b", "cart", "1"), "v0")];
    let rig = Rig::new(state(&[vnode("v0")], &pods));
    let pod = module_pod("urgent", "shop", "1");
    assert_eq!(preempt(&rig, &pod, json!({"v0": victims(&["uid-b"])})).await, json!({}));
    let right = json!({"v0": victims(&["uid-a"])});
    assert_eq!(preempt(&rig, &pod, right.clone()).await, right);
}

/// A limit counts what lies on the base: the victim's modules leave with it, others stay.
#[tokio::test]
async fn modules_of_victims_leave_the_count() {
    let (node, victim) = full("fits", "2.1.0");
    let rig = Rig::new(state(&[node], &[victim]));
    rig.set_policy(
        "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {podsPerBase: 1, modulesPerBase: 1}\n",
    );
    let asked = json!({"fits": victims(&["uid-low-fits"])});
    assert_eq!(preempt(&rig, &urgent(), asked.clone()).await, asked);
    assert_eq!(preempt(&rig, &urgent(), json!({"fits": victims(&["uid-stranger"])})).await, json!({}));
}

/// Cases 8 and 10: empty victims, null victims, null nodes, the same UID twice, a UID without text.
#[tokio::test]
async fn odd_victims_are_no_fault() {
    let rig = Rig::new(two_full());
    let twice = json!({"fits": victims(&["uid-low-fits", "uid-low-fits", ""])});
    assert_eq!(preempt(&rig, &urgent(), twice).await, json!({"fits": victims(&["uid-low-fits"])}));
    let nulls =
        json!({"fits": null, "other": {"Pods": null, "NumPDBViolations": 0}, "worker": {"Pods": [null]}});
    assert_eq!(preempt(&rig, &urgent(), nulls).await, json!({}));
    assert_eq!(preempt(&rig, &urgent(), json!({})).await, json!({}));
}

/// Cases 8, 10: from 1.38 kube-scheduler sends candidates without victims: nodes that only an extender refused. They
/// stay without victims where the Pod fits, and go where it does not; nobody is put on the list.
#[tokio::test]
async fn candidates_without_victims_stay_so_or_go() {
    let rig = Rig::new(state(&[vnode("v0"), vnode("v1")], &[bound(module_pod("a", "shop", "1"), "v1")]));
    let asked = json!({"v0": victims(&[]), "v1": victims(&[])});
    assert_eq!(preempt(&rig, &module_pod("urgent", "shop", "1"), asked).await, json!({"v0": victims(&[])}));
}

/// BL-031: `nodeCacheCapable: false` sends whole Pods and reads UIDs, under a name of its own; however it is spelt, the
/// victims are seen.
#[tokio::test]
async fn whole_victims_are_answered_by_uid() {
    let rig = Rig::new(two_full());
    let victim = bound(module_pod("low-fits", "low", "1"), "fits");
    let whole = json!({"fits": {"Pods": [victim, victim], "NumPDBViolations": 0}});
    for (pod, key) in
        [("Pod", "NodeNameToVictims"), ("pod", "nodeNameToVictims"), ("pod", "nodenametovictims")]
    {
        let body = json!({pod: urgent(), key: whole, "NodeNameToMetaVictims": null, "more": 1}).to_string();
        let (status, text) = rig.send("preempt", body).await;
        assert_eq!(status, StatusCode::OK);
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(answer, json!({"NodeNameToMetaVictims": {"fits": victims(&["uid-low-fits"])}}), "{key}");
    }
}

/// A Pod that is none of ours evicts where it likes, but not on bases, where it could not go.
#[tokio::test]
async fn ordinary_pods_are_none_of_our_business() {
    let rig = Rig::new(two_full());
    let asked = json!({"worker": victims(&["uid-x"]), "fits": victims(&["uid-low-fits"])});
    let answer = preempt(&rig, &ordinary_pod("nginx"), asked).await;
    assert_eq!(answer, json!({"worker": victims(&["uid-x"])}));
}

/// There is no `Error` in this answer: without a verdict nothing is evicted.
#[tokio::test]
async fn faults_evict_nobody() {
    let rig = Rig::new(two_full());
    for body in ["", "null", "{}", r#"{"Pod":null,"NodeNameToMetaVictims":{}}"#, r#"{"Pod":{"metadata":{}}}"#]
    {
        assert_eq!(rig.send("preempt", body).await.0, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    }
    let unsynced = Rig::new(State::default());
    let body = json!({"Pod": urgent(), "NodeNameToMetaVictims": {"fits": victims(&["u"])}}).to_string();
    assert_eq!(unsynced.send("preempt", body).await.0, StatusCode::SERVICE_UNAVAILABLE);
}
