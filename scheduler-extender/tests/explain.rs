//! `GET /explain`.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures::future::join_all;
use rig::{Rig, bound, module_pod, ordinary_node, state, vnode};
use scheduler_extender::http::Limits;
use serde_json::{Value, json};

fn rig() -> Rig {
    let mut other = vnode("v2");
    other["metadata"]["labels"]["basement.koupleless.io/stack"] = json!("nodejs");
    let mut lost = vnode("v3");
    lost["metadata"]["annotations"] = json!({});
    let pods = [module_pod("shop-1", "shop", "1"), bound(module_pod("shop-0", "shop", "1"), "v1")];
    Rig::new(state(&[vnode("v0"), vnode("v1"), other, lost, ordinary_node("worker")], &pods))
}

fn request(query: &str, accept: &str) -> Request<Body> {
    let request = Request::get(format!("/explain?{query}")).header("accept", accept);
    request.body(Body::empty()).expect("request")
}

#[tokio::test]
async fn people_read_a_table() {
    let (status, text) = rig().call(request("namespace=biz&pod=shop-1", "*/*")).await;
    assert_eq!(status, StatusCode::OK);
    insta::assert_snapshot!(text, @r"
    Pod biz/shop-1, not bound; policy generation 1 h
    1 of 4 virtual nodes fit

    NODE  FITS  SCORE  SLOTS  RULE OR TERM  SAYS
    v0    yes   10     0/8    spread        10.0 of 10, weight 1
    v1    no    -      1/8    same module   the base already has module shop in this version [SameModule]; modules: shop:1; onBase: shop:1; versionsAllowed: 1
    v2    no    -      0/8    stack         the base has another stack [Stack]; base: nodejs; wanted: java
    v3    no    -      0/0    node          the virtual node does not say which base it stands for [MalformedNode]; node: annotation stowage.dev/base is missing or not <namespace>/<pod>
    ");
}

#[tokio::test]
async fn programs_read_json_with_every_rule() {
    let (_, text) = rig().call(request("namespace=biz&pod=shop-1", "application/json")).await;
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&answer["nodes"][0]["node"], &answer["nodes"][0]["score"]), (&json!("v0"), &json!(10)));
    let rules = answer["nodes"][1]["rules"].as_array().expect("rules");
    let refusing: Vec<_> = rules.iter().filter(|rule| !rule["code"].is_null()).collect();
    assert_eq!(refusing.len(), 1);
    assert_eq!((&refusing[0]["rule"], &refusing[0]["code"]), (&json!("same module"), &json!("SameModule")));
    assert_eq!(answer["nodes"][0]["slots"], json!({"taken": 0, "of": 8}));
}

#[tokio::test]
async fn what_is_not_known_is_said() {
    let (status, text) = rig().call(request("namespace=biz&pod=ghost", "*/*")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(text.contains("no such module Pod"));
    assert_eq!(rig().call(request("pod=x", "*/*")).await.0, StatusCode::BAD_REQUEST);
}

/// Pods that are on their way count as the filter counts them.
#[tokio::test]
async fn what_was_just_placed_is_told() {
    let rig = rig();
    let answer = rig.filter(&module_pod("shop-2", "shop", "1"), &["v0"]).await;
    assert_eq!(answer["NodeNames"], json!(["v0"]));
    let (_, text) = rig.call(request("namespace=biz&pod=shop-1", "application/json")).await;
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    let node = answer["nodes"].as_array().expect("nodes").iter().find(|node| node["node"] == "v0");
    assert_eq!(node.expect("v0")["fits"], false, "{text}");
}

/// One Pod is explained at a time: the work is bounded however many ask, and who waits too long is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanations_take_turns() {
    let nodes: Vec<_> = (0..2_000).map(|n| vnode(&format!("v{n}"))).collect();
    let state = state(&nodes, &[module_pod("shop-1", "shop", "1")]);
    let limits = Limits { deadline: Duration::from_millis(1), ..rig::LIMITS };
    let hurried = Rig::with_limits(state, limits);
    let asked = || request("namespace=biz&pod=shop-1", "application/json");
    let answers = join_all((0..32).map(|_| hurried.call(asked()))).await;
    let (served, sent_away): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|(status, _)| *status == StatusCode::OK);
    assert!(!served.is_empty() && !sent_away.is_empty(), "{} of 32", served.len());
    assert!(sent_away.iter().all(|(status, text)| {
        *status == StatusCode::SERVICE_UNAVAILABLE && text.contains("being explained, try again")
    }));
    let patient = rig();
    let answers = join_all((0..8).map(|_| patient.call(asked()))).await;
    assert!(answers.iter().all(|(status, text)| *status == StatusCode::OK && text.contains("v0")));
}
