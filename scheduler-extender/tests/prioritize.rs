//! `POST /scheduler/prioritize`.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use axum::http::StatusCode;
use rig::{Rig, bound, module_pod, ordinary_node, ordinary_pod, state, vnode};
use scheduler_extender::cache::State;
use serde_json::{Value, json};

/// By how much a node is better than most; what is not named is as good as they are.
fn score(answer: &Value, host: &str) -> i64 {
    let lines = answer.as_array().expect("a bare array");
    let line = lines.iter().find(|line| line["Host"] == host);
    line.map_or(0, |line| line["Score"].as_i64().expect("an integer"))
}

const ROOMY: &str =
    "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {podsPerBase: 4}\n";

#[tokio::test]
async fn emptier_bases_score_higher() {
    let pods = ["a", "b"].map(|name| bound(module_pod(name, name, "1"), "full"));
    let rig = Rig::new(state(&[vnode("full"), vnode("empty"), ordinary_node("w")], &pods));
    rig.set_policy(ROOMY);
    let answer = rig.prioritize(&module_pod("p", "shop", "1"), &["full", "w", "ghost", "empty"]).await;
    let hosts: Vec<_> = answer.as_array().expect("array").iter().map(|line| line["Host"].clone()).collect();
    assert_eq!(hosts, [json!("full"), json!("empty")]);
    assert_eq!([score(&answer, "empty"), score(&answer, "full")], [10, 5]);
    assert_eq!([score(&answer, "w"), score(&answer, "ghost")], [0, 0], "what is no base is worth nothing");
}

/// kube-scheduler takes the greatest sum, so that what all have in common says nothing.
#[tokio::test]
async fn only_differences_are_told() {
    let pods = [("a", "v0"), ("b", "v0"), ("c", "v0"), ("d", "v1")];
    let pods = pods.map(|(name, node)| bound(module_pod(name, name, "1"), node));
    let rig = Rig::new(state(&[vnode("v0"), vnode("v1"), vnode("v2"), vnode("v3")], &pods));
    rig.set_policy(ROOMY);
    let pod = module_pod("p", "shop", "1");
    let all = rig.prioritize(&pod, &["v0", "v1", "v2", "v3"]).await;
    let told = |hosts: &[(&str, i64)]| -> Value {
        hosts.iter().map(|(host, score)| json!({"Host": host, "Score": score})).collect()
    };
    assert_eq!(all, told(&[("v0", -7), ("v1", -2)]));
    assert_eq!(rig.prioritize(&pod, &["v1", "v3"]).await, told(&[("v1", -2)]));
    assert_eq!(rig.prioritize(&pod, &["ghost", "v0", "w"]).await, told(&[("v0", 3)]));
    assert_eq!(rig.prioritize(&pod, &["v2", "v3"]).await, json!([]));
}

/// Case 30: scores are integers that differ by 10 at most, and the same for the same question.
#[tokio::test]
async fn scores_are_bounded_and_steady() {
    let nodes: Vec<_> = (0..20).map(|n| vnode(&format!("v{n}"))).collect();
    let pods: Vec<_> = (0..40)
        .map(|n| bound(module_pod(&format!("p{n}"), &format!("m{n}"), "1"), &format!("v{}", n % 7)))
        .collect();
    let rig = Rig::new(state(&nodes, &pods));
    rig.set_policy(ROOMY);
    let names: Vec<String> = (0..20).map(|n| format!("v{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let pod = module_pod("p", "shop", "1");
    let answer = rig.prioritize(&pod, &names).await;
    let scores: Vec<i64> = names.iter().map(|name| score(&answer, name)).collect();
    assert_eq!((scores.iter().min(), scores.iter().max()), (Some(&-10), Some(&0)), "{answer}");
    assert_eq!(answer, rig.prioritize(&pod, &names).await);
}

#[tokio::test]
async fn what_is_not_scored_gets_an_empty_array() {
    let rig = Rig::new(state(&[ordinary_node("w"), vnode("v0")], &[]));
    assert_eq!(rig.prioritize(&ordinary_pod("nginx"), &["w", "v0"]).await, json!([]));
    assert_eq!(rig.prioritize(&module_pod("p", "shop", "1"), &[]).await, json!([]));
}

/// Whole Nodes are scored by name.
#[tokio::test]
async fn whole_nodes_are_scored() {
    let rig = Rig::new(state(&[vnode("v0")], &[]));
    let nodes = [vnode("v0"), vnode("unknown")];
    let body = json!({"Pod": module_pod("p", "shop", "1"), "Nodes": {"items": nodes}}).to_string();
    let (status, text) = rig.send("prioritize", body).await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, r#"[{"Host":"unknown","Score":-10}]"#));
}

/// A fault is a 503: there is no field for its words, and kube-scheduler goes on without our scores.
#[tokio::test]
async fn an_unsynced_cache_is_a_503() {
    let rig = Rig::new(State::default());
    let body = json!({"Pod": module_pod("p", "shop", "1"), "NodeNames": ["v0"]}).to_string();
    let (status, _) = rig.send("prioritize", body).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(rig.metrics().contains(r#"requests_total{verb="prioritize",outcome="not_synced"} 1"#));
}

/// What is remembered from one question to the next never shows: after any change, the scores are those of an extender
/// that has just started.
#[tokio::test]
async fn scores_from_memory_are_scores_afresh() {
    const TERMS: &str = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {podsPerBase: 8}\n\
                         scoring:\n- {term: spread, weight: 3}\n- {term: zoneSpread, weight: 2}\n\
                         - {term: metaspaceHeadroom, weight: 1}\n";
    let names: Vec<String> = (0..12).map(|number| format!("v{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let nodes: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(number, name)| {
            let mut node = vnode(name);
            node["metadata"]["labels"]["stowage.dev/zone"] = json!(format!("z{}", number % 3));
            node
        })
        .collect();
    let mut cache = state(&nodes, &[]);
    let rig = Rig::new(cache.clone());
    rig.set_policy(TERMS);
    for round in 0..30 {
        let name = format!("p{round}");
        let module = if round % 2 == 0 { "shop" } else { "cart" };
        let asked = module_pod(&format!("new-{round}"), "shop", "1");
        let fresh = Rig::new(cache.clone());
        fresh.set_policy(TERMS);
        for _ in 0..2 {
            assert_eq!(rig.prioritize(&asked, &names).await, fresh.prioritize(&asked, &names).await);
        }
        cache.apply(rig::pod(&bound(module_pod(&name, module, "1"), names[round * 5 % names.len()])));
        if round % 7 == 6 {
            cache.apply(scheduler_extender::cache::Change::PodGone(format!("biz/p{}", round - 3).into()));
        }
        rig.view.publish(cache.clone());
    }
}
