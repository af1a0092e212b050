//! `POST /scheduler/filter`, over HTTP but without a port. "Case N" is a fault that extenders have had.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::StatusCode;
use proptest::prelude::*;
use rig::{LIMITS, Rig, bound, module_pod, ordinary_node, ordinary_pod, state, vnode, vnode_with};
use scheduler_extender::cache::{Change, Source, State};
use scheduler_extender::http::Limits;
use scheduler_extender::wire::Question;
use serde_json::{Value, json};

fn names(answer: &Value) -> Vec<&str> {
    answer["NodeNames"].as_array().expect("never null").iter().filter_map(Value::as_str).collect()
}

#[tokio::test]
async fn every_node_is_in_one_place_with_a_reason() {
    let rig = Rig::new(state(&[vnode("v0"), vnode("v1"), ordinary_node("worker")], &[]));
    let answer = rig.filter(&module_pod("shop-0", "shop", "1.0"), &["v0", "worker", "ghost", "v1"]).await;
    assert_eq!(names(&answer), ["v0", "v1"]);
    assert_eq!(answer["Nodes"], Value::Null);
    assert_eq!(answer["Error"], "");
    assert_eq!(answer["FailedNodes"], json!({"ghost": "node is not yet known to stowage-extender"}));
    let unresolvable = answer["FailedAndUnresolvableNodes"].as_object().expect("object");
    assert_eq!(unresolvable.keys().collect::<Vec<_>>(), ["worker"]);
}

/// Case 3: names that vanished and names asked twice; the answer is a subset of the question without duplicates.
#[tokio::test]
async fn duplicates_and_strangers_are_answered_once() {
    let rig = Rig::new(state(&[vnode("v0")], &[]));
    let answer = rig.filter(&module_pod("p", "shop", "1"), &["v0", "gone", "v0", "gone", ""]).await;
    assert_eq!(names(&answer), ["v0"]);
    assert_eq!(answer["FailedNodes"].as_object().map(serde_json::Map::len), Some(2));
}

/// Cases 13, 31, 36, 37: null, missing and odd input is HTTP 200 with `Error` and `NodeNames: []`.
#[tokio::test]
async fn confused_callers_get_an_error_and_never_all_nodes() {
    let rig = Rig::new(state(&[vnode("v0")], &[]));
    let bodies = [
        "",
        "{}",
        "null",
        "[]",
        "{",
        r#"{"Pod":{"metadata":{}}}"#,
        r#"{"Pod":null,"NodeNames":["v0"]}"#,
        "\u{0}",
    ];
    for body in bodies {
        let (status, text) = rig.send("filter", body).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert!(names(&answer).is_empty(), "{body}");
        let error = answer["Error"].as_str().expect("text");
        assert!(!error.is_empty() && !error.contains('%'), "{body}: {error}");
        let (status, _) = rig.send("prioritize", body).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    }
}

/// Cases 14, 44: the three casings are one question.
#[tokio::test]
async fn casings_do_not_matter() {
    let rig = Rig::new(state(&[vnode("v0"), ordinary_node("w")], &[]));
    let pod = module_pod("p", "shop", "1");
    let mut answers = Vec::new();
    for (pod_key, names_key) in [("Pod", "NodeNames"), ("pod", "nodeNames"), ("pod", "nodenames")] {
        let body = json!({pod_key: pod, names_key: ["v0", "w"]}).to_string();
        answers.push(rig.send("filter", body).await);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[1], answers[2]);
}

/// Cases 16 and 45: Pods that are none of ours pass on ordinary Nodes, and never meet a `VNode`.
#[tokio::test]
async fn ordinary_pods_pass_through() {
    let rig = Rig::new(state(&[vnode("v0"), ordinary_node("w0"), ordinary_node("w1")], &[]));
    let answer = rig.filter(&ordinary_pod("nginx"), &["w0", "v0", "w1", "new"]).await;
    assert_eq!(names(&answer), ["w0", "w1"]);
    assert!(answer["FailedAndUnresolvableNodes"]["v0"].is_string());
    assert!(answer["FailedNodes"]["new"].is_string());
}

/// Case 1: whole Nodes are answered with the same objects, byte for byte, and counted as slow.
#[tokio::test]
async fn whole_nodes_are_echoed() {
    let rig = Rig::new(state(&[vnode("v0"), ordinary_node("w")], &[]));
    let object = r#"{"metadata":{"name":"v0",  "odd":"\u00e9"},"status":{"x": 1.50}}"#;
    let body = format!(
        r#"{{"Pod":{},"Nodes":{{"metadata":{{}},"items":[{object},{{"metadata":{{"name":"w"}}}}]}},"NodeNames":null}}"#,
        module_pod("p", "shop", "1")
    );
    let (status, text) = rig.send("filter", body).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        text.starts_with(&format!(r#"{{"Nodes":{{"metadata":{{}},"items":[{object}]}},"NodeNames":null,"#)),
        "{text}"
    );
    assert!(rig.metrics().contains(r#"stowage_extender_full_node_requests_total{verb="filter"} 1"#));
}

/// Case 1: 5,000 Nodes of 12 KB, nearly the largest body, are read and answered. Beside the body itself that takes little:
/// Nodes are not copied, and only those that fit are in the answer.
#[tokio::test]
async fn a_request_of_many_megabytes_is_answered() {
    const COUNT: usize = 5_000;
    let rig = Rig::new(state(&[vnode("v7")], &[]));
    let padding = "x".repeat(12_000);
    let mut body = format!(r#"{{"Pod":{},"Nodes":{{"items":["#, module_pod("p", "shop", "1"));
    for n in 0..COUNT {
        let comma = if n == 0 { "" } else { "," };
        write!(body, r#"{comma}{{"metadata":{{"name":"v{n}","annotations":{{"p":"{padding}"}}}}}}"#)
            .expect("text");
    }
    body.push_str("]}}");
    assert!((60_000_000..LIMITS.body).contains(&body.len()), "{}", body.len());
    let used = allocation_counter::measure(|| {
        let question = Question::parse(body.as_bytes()).expect("a question");
        assert_eq!(question.names.len(), COUNT);
    });
    assert!(used.bytes_max < 2 << 20, "{} bytes beside the body", used.bytes_max);
    let (_, text) = rig.send("filter", body).await;
    assert!(text.len() < 1 << 20, "{} bytes of answer", text.len());
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(answer["Nodes"]["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(answer["FailedNodes"].as_object().map(serde_json::Map::len), Some(COUNT - 1));
    assert!(rig.metrics().contains(r#"stowage_extender_full_node_requests_total{verb="filter"} 1"#));
}

#[tokio::test]
async fn a_body_over_the_limit_is_an_error_in_words() {
    let rig = Rig::with_limits(state(&[], &[]), Limits { body: 100, ..LIMITS });
    let (status, text) = rig.send("filter", "x".repeat(101)).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("larger than stowage-extender accepts"), "{text}");
}

/// Case 41: an empty cache answers with an error, never with all nodes.
#[tokio::test]
async fn no_verdict_before_both_lists_are_complete() {
    let mut half = State::default();
    half.apply(rig::node(&vnode("v0")));
    half.apply(Change::ListEnds(Source::Nodes, Instant::now()));
    let rig = Rig::new(half.clone());
    let answer = rig.filter(&module_pod("p", "shop", "1"), &["v0"]).await;
    assert_eq!(answer["Error"], "stowage-extender has not yet read all Nodes and Pods");
    assert!(names(&answer).is_empty());
    half.apply(Change::ListEnds(Source::Pods, Instant::now()));
    rig.view.publish(half);
    assert_eq!(names(&rig.filter(&module_pod("p", "shop", "1"), &["v0"]).await), ["v0"]);
}

/// Case 41: names are those of the API server, which has none in upper case: one that differs in that is another Node, which
/// nobody knows. It is neither answered nor taken for the other one.
#[tokio::test]
async fn names_in_another_casing_are_other_nodes() {
    let pod = module_pod("p", "shop", "1");
    let rig = Rig::new(state(&[vnode("v0"), ordinary_node("w0")], &[]));
    let answer = rig.filter(&pod, &["V0", "v0", "W0"]).await;
    assert_eq!(names(&answer), ["v0"]);
    let unknown = "node is not yet known to stowage-extender";
    assert_eq!(answer["FailedNodes"], json!({"V0": unknown, "W0": unknown}));
    let answer = rig.filter(&pod, &["V0"]).await;
    assert_eq!((names(&answer).len(), &answer["Error"]), (0, &json!("")));
    assert_eq!(names(&rig.filter(&ordinary_pod("nginx"), &["W0", "w0"]).await), ["w0"]);
    let body = json!({"Pod": pod, "Nodes": {"items": [{"metadata": {"name": "V0"}}]}}).to_string();
    let answer: Value = serde_json::from_str(&rig.send("filter", body).await.1).expect("JSON");
    assert_eq!((&answer["Nodes"]["items"], &answer["FailedNodes"]["V0"]), (&json!([]), &json!(unknown)));
    assert_eq!(rig.prioritize(&pod, &["V0", "v0"]).await, json!([{"Host": "V0", "Score": -10}]));
}

/// Case 41: a watch that keeps failing makes an error (tried again within seconds), not a verdict (final for minutes).
#[tokio::test]
async fn a_stale_cache_gives_no_verdict() {
    let mut stale = state(&[vnode("v0")], &[]);
    let now = Instant::now();
    for seconds in [40, 20, 0] {
        if let Some(at) = now.checked_sub(Duration::from_secs(seconds)) {
            stale.apply(Change::Failed(Source::Pods, at));
        }
    }
    let rig = Rig::new(stale.clone());
    let pod = module_pod("p", "shop", "1");
    assert!(rig.filter(&pod, &["v0"]).await["Error"].as_str().expect("text").contains("stale"));
    stale.apply(rig::pod(&module_pod("other", "cart", "1")));
    rig.view.publish(stale);
    assert_eq!(names(&rig.filter(&pod, &["v0"]).await), ["v0"]);
    assert!(
        rig.metrics().contains(r#"requests_total{verb="filter",outcome="stale"} 1"#),
        "{}",
        rig.metrics()
    );
}

#[tokio::test]
async fn the_deadline_ends_a_request_whose_body_does_not_come() {
    let rig = Rig::with_limits(state(&[], &[]), Limits { deadline: Duration::from_millis(20), ..LIMITS });
    let never = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let (status, text) = rig.send("filter", never).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("did not decide in time"), "{text}");
}

/// Case 43: one malformed `VNode` fails alone.
#[tokio::test]
async fn a_malformed_node_fails_alone() {
    let mut malformed = vnode("bad");
    malformed["metadata"]["annotations"]["stowage.dev/base"] = json!("nonsense");
    let unreadable = vnode_with("odd", &json!("no inventory"));
    let rig = Rig::new(state(&[malformed, unreadable, vnode("v0")], &[]));
    let answer = rig.filter(&module_pod("p", "shop", "1"), &["bad", "odd", "v0"]).await;
    assert!(names(&answer).contains(&"v0") && !names(&answer).contains(&"bad"));
    assert!(answer["FailedAndUnresolvableNodes"]["bad"].is_string());
}

/// Case 23, BL-037: a Pod made again under its name replaces the old one, though its deletion was never seen; a new
/// list forgets what it does not name; terminal Pods do not count.
#[tokio::test]
async fn missed_deletions_do_not_count_for_ever() {
    let mut cache = state(&[vnode("v0")], &[bound(module_pod("a", "shop", "1"), "v0")]);
    let occupied = |cache: &State| cache.nodes.get("v0").map(|entry| entry.pods.len());
    assert_eq!(occupied(&cache), Some(1));
    let mut again = bound(module_pod("a", "shop", "1"), "v0");
    again["metadata"]["uid"] = json!("another");
    cache.apply(rig::pod(&again));
    assert_eq!(occupied(&cache), Some(1));
    again["status"]["phase"] = json!("Failed");
    cache.apply(rig::pod(&again));
    assert_eq!(occupied(&cache), Some(0));
    cache.apply(rig::pod(&bound(module_pod("b", "shop", "1"), "v0")));
    cache.apply(Change::ListStarts(Source::Pods, Instant::now()));
    cache.apply(Change::ListEnds(Source::Pods, Instant::now()));
    assert_eq!((occupied(&cache), cache.pods.len()), (Some(0), 0));
    cache.apply(Change::ListStarts(Source::Nodes, Instant::now()));
    cache.apply(rig::node(&vnode("v1")));
    cache.apply(Change::ListEnds(Source::Nodes, Instant::now()));
    assert!(cache.nodes.get("v0").is_none() && cache.nodes.get("v1").is_some());
}

/// BL-038: a Pod that runs and whose annotations and labels were made unreadable afterwards takes its place as before.
#[tokio::test]
async fn a_running_pod_that_cannot_be_read_any_more_keeps_its_place() {
    let mut running = bound(module_pod("a", "shop", "1"), "v0");
    running["metadata"]["annotations"] = json!({
        "stowage.dev/base-version": "[2", "stowage.dev/requires": "jdk >=", "stowage.dev/metaspace": "32i",
        "stowage.dev/context-path": "a b", "stowage.dev/conflicts": "=",
    });
    running["metadata"]["labels"] =
        json!({"module.koupleless.io/shop": "other", "module.koupleless.io/": "x"});
    let cache = state(&[vnode("v0"), vnode("v1")], &[running]);
    assert_eq!(cache.nodes.get("v0").map(|entry| entry.pods.len()), Some(1));
    let answer = Rig::new(cache).filter(&module_pod("b", "shop", "1"), &["v0", "v1"]).await;
    assert_eq!(names(&answer), ["v1"]);
    let refused = answer["FailedNodes"]["v0"].as_str().unwrap_or_default();
    assert!(refused.contains("module shop"), "{answer}");
}

/// Case 24: Pods that were being deleted when the extender began are on their base as before: it is full.
#[tokio::test]
async fn pods_on_their_way_out_fill_a_base_from_the_first_list() {
    let leaving = ["a", "b", "c"].map(|name| {
        let mut pod = bound(module_pod(name, name, "1"), "v0");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod
    });
    let rig = Rig::new(state(&[vnode("v0")], &leaving));
    rig.set_policy(
        "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n\
         defaults: {podsPerBase: 8, modulesPerBase: 3}\n",
    );
    let answer = rig.filter(&module_pod("p", "d", "1"), &["v0"]).await;
    assert_eq!(answer["FailedNodes"]["v0"], "the base has no room for more modules");
    let answer = rig.filter(&module_pod("p", "a", "2"), &["v0"]).await;
    assert_eq!(names(&answer), ["v0"], "in the place of the one that leaves");
}

/// Pods may be seen before their Node, and outlive it.
#[tokio::test]
async fn pods_are_counted_whichever_comes_first() {
    let mut cache = state(&[], &[bound(module_pod("a", "shop", "1"), "v0")]);
    let rig = Rig::new(cache.clone());
    let answer = rig.filter(&module_pod("p", "cart", "1"), &["v0"]).await;
    assert!(answer["FailedNodes"]["v0"].is_string(), "bound Pods do not make a Node known");
    cache.apply(rig::node(&vnode("v0")));
    assert_eq!(cache.nodes.get("v0").map(|entry| entry.pods.len()), Some(1));
    cache.apply(Change::NodeGone("v0".into()));
    assert_eq!(cache.nodes.get("v0").map(|entry| (entry.kind.is_none(), entry.pods.len())), Some((true, 1)));
}

/// A snapshot that was taken is not changed by what comes later.
#[tokio::test]
async fn snapshots_are_immutable() {
    let mut cache = state(&[vnode("v0")], &[]);
    let before = cache.clone();
    cache.apply(rig::pod(&bound(module_pod("a", "shop", "1"), "v0")));
    cache.apply(rig::node(&vnode("v1")));
    assert_eq!((before.nodes.len(), before.pods.len()), (1, 0));
    assert_eq!(before.nodes.get("v0").map(|entry| entry.pods.len()), Some(0));
    assert_eq!((cache.nodes.len(), cache.pods.len()), (2, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The answer is a subset of the question, each name in exactly one place, and asking again changes nothing.
    #[test]
    fn the_answer_divides_the_question(asked in prop::collection::vec(0u8..40, 0..60), known in prop::collection::vec((0u8..40, 0u8..3), 0..40)) {
        let nodes: Vec<_> = known.iter().map(|(n, kind)| {
            let name = format!("n{n}");
            match kind { 0 => vnode(&name), 1 => ordinary_node(&name), _ => {
                vnode_with(&name, &json!({"v": 1, "modules": [{"name": "shop", "version": "1", "state": "activated"}]}))
            } }
        }).collect();
        let asked: Vec<String> = asked.iter().map(|n| format!("n{n}")).collect();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async {
            let rig = Rig::new(state(&nodes, &[]));
            let pod = module_pod("p", "shop", "1");
            let answer = rig.filter(&pod, &asked).await;
            assert_eq!(answer, rig.filter(&pod, &asked).await);
            let mut placed: Vec<&str> = names(&answer);
            for map in ["FailedNodes", "FailedAndUnresolvableNodes"] {
                placed.extend(answer[map].as_object().expect("object").keys().map(String::as_str));
            }
            placed.sort_unstable();
            let mut expected = asked.clone();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(placed, expected);
        });
    }
}

/// A Pod that comes back without a pause is counted, once a minute however often it comes; others are not. The log names it
/// with the likely causes.
#[tokio::test]
async fn a_pod_that_is_filtered_too_often_is_counted() {
    const METRIC: &str = "stowage_extender_pods_filtered_too_often_total";
    let log = tempfile::NamedTempFile::new().expect("a file");
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Arc::new(log.reopen().expect("the file")))
        .finish();
    let _here = tracing::subscriber::set_default(lines);
    let rig = Rig::new(state(&[vnode("v0")], &[]));
    let counted = || {
        let text = rig.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(METRIC)).map(str::trim).map(str::to_owned);
        line.unwrap_or_else(|| panic!("no {METRIC}: {text}"))
    };
    let (often, seldom) = (module_pod("often", "shop", "1"), module_pod("seldom", "shop", "1"));
    for _ in 0..29 {
        rig.filter(&often, &["v0"]).await;
    }
    rig.filter(&seldom, &["v0"]).await;
    assert_eq!(counted(), "0", "not yet");
    for _ in 0..60 {
        rig.filter(&often, &["v0", "v1", "v2"]).await;
    }
    assert_eq!(counted(), "1");
    let log = std::fs::read_to_string(log.path()).expect("text");
    let said: Vec<&str> = log.lines().filter(|line| line.contains("filtered too often")).collect();
    let [said] = said.as_slice() else { panic!("{log}") };
    for part in [
        "WARN",
        r#"pod="biz/often""#,
        "calls=30 window=60s asked_about=3 nodes=1",
        "Nodes or bound Pods that change all the time, as in a rollout; a percentageOfNodesToScore below 100",
        "somebody who writes the Pod itself",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
