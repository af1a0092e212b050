//! `GET /explain`.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use rig::{Rig, bound, module_pod, ordinary_node, state, vnode};
use serde_json::{Value, json};

fn rig() -> Rig {
    let mut other = vnode("v2");
    other["metadata"]["labels"]["basement.koupleless.io/stack"] = json!("nodejs");
    let pods = [module_pod("shop-1", "shop", "1"), bound(module_pod("shop-0", "shop", "1"), "v1")];
    Rig::new(state(&[vnode("v0"), vnode("v1"), other, ordinary_node("worker")], &pods))
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
    1 of 3 virtual nodes fit

    NODE  SCORE  REASON
    v0       10
    v1        -  SameModule: the base already has module shop in this version
    v2        -  Stack: the base has another stack
    ");
}

#[tokio::test]
async fn programs_read_json_with_every_rule() {
    let (_, text) = rig().call(request("namespace=biz&pod=shop-1", "application/json")).await;
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&answer["nodes"][0]["node"], &answer["nodes"][0]["score"]), (&json!("v0"), &json!(10)));
    let rules = answer["nodes"][1]["rules"].as_array().expect("rules");
    let refusing: Vec<_> = rules.iter().filter(|rule| rule["says"] != "ok").collect();
    assert_eq!(refusing.len(), 1);
    assert_eq!(refusing[0]["rule"], "same module");
}

#[tokio::test]
async fn what_is_not_known_is_said() {
    let (status, text) = rig().call(request("namespace=biz&pod=ghost", "*/*")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(text.contains("no such module Pod"));
    assert_eq!(rig().call(request("pod=x", "*/*")).await.0, StatusCode::BAD_REQUEST);
}
