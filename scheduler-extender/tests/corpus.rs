//! Hostile requests of the largest kind: no panic, an answer in time, and memory within bounds.

#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::http::{Request, StatusCode};
use policy::contract::classify;
use rig::{Rig, module_pod, state, vnode};
use scheduler_extender::wire::{BindQuestion, PreemptQuestion, Question};
use serde_json::Value;

/// Time to read one body, on a busy machine and without optimisation.
const LONGEST_TIME: Duration = Duration::from_secs(20);
/// Length of a body. What is refused for its length is refused before it is read.
const LENGTH: usize = 6 << 20;
/// Memory for one body, at its peak.
const MOST_MEMORY: u64 = 192 << 20;

/// Reads a body as the verbs do.
#[track_caller]
fn survives(name: &str, body: &str) {
    let began = Instant::now();
    let mut outcome = String::new();
    let used = allocation_counter::measure(|| {
        outcome = match Question::parse(body.as_bytes()) {
            Ok(question) => {
                let kind = classify(&question.pod);
                format!("{} names, {}", question.names.len(), std::mem::size_of_val(&kind))
            }
            Err(error) => error.to_string(),
        };
    });
    let preempt = allocation_counter::measure(|| {
        let _ = PreemptQuestion::parse(body.as_bytes()).map(|question| question.candidates.len());
    });
    let bind = allocation_counter::measure(|| {
        let _ = BindQuestion::parse(body.as_bytes()).map(|question| question.name.len());
    });
    assert!(!outcome.is_empty() && outcome.len() < 1_000, "{name}: {outcome}");
    assert!(began.elapsed() < LONGEST_TIME, "{name}: {:?}", began.elapsed());
    for used in [used, preempt, bind] {
        assert!(used.bytes_max < MOST_MEMORY, "{name}: {} bytes, {outcome}", used.bytes_max);
    }
}

fn filled(before: &str, piece: &str, after: &str) -> String {
    filled_to(LENGTH, before, piece, after)
}

fn filled_to(length: usize, before: &str, piece: &str, after: &str) -> String {
    let count = length.saturating_sub(before.len() + after.len()) / piece.len();
    format!("{before}{}{after}", piece.repeat(count))
}

fn numbered(before: &str, piece: impl Fn(usize) -> String, after: &str) -> String {
    let mut body = before.to_owned();
    for number in 0.. {
        if body.len() + after.len() >= LENGTH {
            break;
        }
        body.push_str(&piece(number));
    }
    body + after
}

#[test]
fn what_is_as_large_as_it_may_be() {
    let pod = |inside: &str| format!(r#"{{"NodeNames":["a"],"NodeNameToMetaVictims":{{}},"Pod":{{{inside}"#);
    for (name, body) in [
        ("opening brackets", filled("", "[", "")),
        ("opening braces", filled("", r#"{"Pod":"#, "")),
        ("nested lists in a Pod", filled(&pod(r#""metadata":"#), "[", "")),
        ("nested fields", filled(&pod(r#""metadata":{"managedFields":[{"fieldsV1":"#), r#"{"f:a":"#, "")),
        ("empty names", filled(r#"{"Pod":{},"NodeNames":["#, r#""","#, r#"""]}"#)),
        ("escaped names", filled(r#"{"Pod":{},"NodeNames":["#, r#""\u0000","#, r#"""]}"#)),
        ("empty Nodes", filled(r#"{"Pod":{},"Nodes":{"items":["#, "{},", "{}]}}")),
        ("Nodes that are null", filled(r#"{"Pod":{},"Nodes":{"items":["#, "null,", "null]}}")),
        ("one long name", filled(r#"{"Pod":{},"NodeNames":[""#, "x", r#""]}"#)),
        ("one long number", filled(r#"{"Pod":{"metadata":{"generation":"#, "9", "}}}")),
        ("one key many times", filled("{", r#""Pod":{},"#, r#""NodeNames":[]}"#)),
        ("unknown keys", numbered("{", |n| format!(r#""k{n}":[{{}}],"#), r#""NodeNames":[]}"#)),
        ("empty containers", filled(&pod(r#""spec":{"containers":["#), "{},", "{}]}}}")),
        ("containers", filled(&pod(r#""spec":{"containers":["#), r#"{"name":"a"},"#, "{}]}}}")),
        ("variables", filled(&pod(r#""spec":{"containers":[{"env":["#), "{},", "{}]}]}}}")),
        ("volumes", filled(&pod(r#""spec":{"volumes":["#), "{},", "{}]}}}")),
        ("arguments", filled(&pod(r#""spec":{"containers":[{"args":["#), r#""","#, r#"""]}]}}}"#)),
        ("labels", numbered(&pod(r#""metadata":{"labels":{"#), |n| format!(r#""{n}":"","#), r#""z":""}}}}"#)),
        ("owners", filled(&pod(r#""metadata":{"ownerReferences":["#), "{},", "{}]}}}")),
        (
            "candidates",
            numbered(
                r#"{"Pod":{},"NodeNameToMetaVictims":{"#,
                |n| format!(r#""{n}":{{}},"#),
                r#""z":null}}"#,
            ),
        ),
        ("victims", filled(r#"{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":["#, "{},", "{}]}}}")),
        ("whole victims", filled(r#"{"Pod":{},"NodeNameToVictims":{"a":{"Pods":["#, "{},", "{}]}}}")),
        ("nothing", filled("", " ", "")),
        ("not UTF-8 after all", filled(r#"{"Pod":{"metadata":{"name":""#, "\u{fffd}\\ud800", r#""}}}"#)),
    ] {
        survives(name, &body);
    }
}

/// As long as the server takes it: what is counted before it is read needs no memory, what is just below that limit not
/// too much.
#[test]
fn victims_without_end() {
    let candidates = |n: usize| {
        let names: Vec<String> = (0..n).map(|n| format!(r#""{n:07}":{{}}"#)).collect();
        format!(r#"{{"Pod":{{}},"NodeNameToMetaVictims":{{{}}}}}"#, names.join(","))
    };
    let victims = |nodes: usize, each: usize| {
        let node = |n| format!(r#""n{n}":{{"Pods":[{}{{}}]}}"#, "{},".repeat(each));
        let nodes: Vec<String> = (0..nodes).map(node).collect();
        format!(r#"{{"Pod":{{}},"NodeNameToMetaVictims":{{{}}}}}"#, nodes.join(","))
    };
    for (body, refused) in [
        (candidates(5_000_000), true),
        (candidates(2_400_000), false),
        (victims(80, 240_000), true),
        (victims(10, 240_000), false),
    ] {
        let mut parsed = None;
        let used = allocation_counter::measure(|| {
            parsed = Some(PreemptQuestion::parse(body.as_bytes()).map(|question| question.candidates.len()));
        });
        assert_eq!(parsed.is_some_and(|parsed| parsed.is_err()), refused, "{} bytes", body.len());
        let most = if refused { 1 << 20 } else { 450 << 20 };
        assert!(used.bytes_max < most, "{} bytes for {}", used.bytes_max, body.len());
    }
}

/// Annotations may hold as many braces as they like: they are text.
#[test]
fn a_large_pod_that_is_real_is_read() {
    let note = serde_json::Value::from("{}".repeat(100_000));
    let body = format!(r#"{{"NodeNames":["a"],"Pod":{{"metadata":{{"annotations":{{"a":{note}}}}}}}}}"#);
    let question = Question::parse(body.as_bytes()).expect("a question");
    assert_eq!(question.names.len(), 1);
}

/// Every beginning of a good question, and the question with every character replaced by another one.
#[test]
fn what_is_nearly_good() {
    let body = r#"{"Pod":{"metadata":{"name":"p","labels":{"a":"b"}},"spec":{"containers":[{"name":"c","env":[{"name":"MODULE_VERSION","value":"1"}]}]}},"Nodes":{"items":[{"metadata":{"name":"n"}}]},"NodeNames":["é"],"NodeNameToMetaVictims":{"v0":{"Pods":[{"UID":"u"}]}}}"#;
    for (at, character) in body.char_indices() {
        let (before, rest) = body.split_at(at);
        survives("cut", before);
        let (_, after) = rest.split_at(character.len_utf8());
        for other in ["", "\\", "\"", "{", "[", "\u{0}", "é", "-1e999"] {
            survives("changed", &format!("{before}{other}{after}"));
        }
    }
}

/// An extender that knows `p`, with an API server that refuses everything; and how often that was written to.
fn binding_rig() -> (Rig, Arc<AtomicU32>) {
    let writes = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&writes);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        counted.fetch_add(u32::from(request.method() != "GET"), Ordering::SeqCst);
        std::future::ready(Ok::<_, std::convert::Infallible>(rig::answered(403, &rig::failure(403, "no"))))
    });
    let known = state(&[vnode("v0")], &[module_pod("p", "shop", "1")]);
    (Rig::with_client(known, kube::Client::new(service, "default")), writes)
}

/// What `bind` says, in time; never nothing.
async fn refused(rig: &Rig, name: &str, body: String) -> String {
    let began = Instant::now();
    let (status, text) = rig.send("bind", body).await;
    assert!(began.elapsed() < LONGEST_TIME, "{name}: {:?}", began.elapsed());
    assert_eq!(status, StatusCode::OK, "{name}: {text}");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    let error = answer["Error"].as_str().unwrap_or_default().to_owned();
    assert!(!error.is_empty() && error.len() < 1_000, "{name}: {text}");
    error
}

const BINDING: &str = r#"{"PodName":"p","PodNamespace":"biz","PodUID":"uid-p","Node":"v0"}"#;

/// The longest body that `bind` reads, and longer ones, which it does not.
#[tokio::test]
async fn bindings_as_large_as_they_may_be() {
    const MOST: usize = 64 << 10;
    let (rig, writes) = binding_rig();
    let fields = &BINDING[1..BINDING.len() - 1];
    for (name, before, piece, after) in [
        ("opening brackets", "", "[", ""),
        ("opening braces", "", r#"{"PodName":"#, ""),
        ("nested unknown", r#"{"x":"#, "[", ""),
        ("a long name", r#"{"PodNamespace":"biz","PodUID":"u","Node":"v0","PodName":""#, "x", r#""}"#),
        ("a long namespace", r#"{"PodName":"p","PodUID":"u","Node":"v0","PodNamespace":""#, "x", r#""}"#),
        ("a long UID", r#"{"PodName":"p","PodNamespace":"biz","Node":"v0","PodUID":""#, "x", r#""}"#),
        ("a long node", r#"{"PodName":"p","PodNamespace":"biz","PodUID":"u","Node":""#, "x", r#""}"#),
        (
            "an escaped name",
            r#"{"PodNamespace":"biz","PodUID":"u","Node":"v0","PodName":""#,
            "\\u0000",
            r#""}"#,
        ),
        ("a long number", r#"{"PodName":"#, "9", "}"),
        ("one key many times", "{", r#""PodName":"p","#, &format!("{fields}}}")),
        ("nothing", "", " ", ""),
    ] {
        survives(name, &filled_to(MOST, before, piece, after));
        let error = refused(&rig, name, filled_to(MOST, before, piece, after)).await;
        assert!(!error.contains("larger than"), "{name}: {error}");
        let longer = filled_to(MOST + 64, before, piece, after) + "    ";
        assert!(longer.len() > MOST);
        let error = refused(&rig, name, longer).await;
        assert!(error.contains("larger than"), "{name}: {error}");
        assert!(refused(&rig, name, filled(before, piece, after)).await.contains("larger than"), "{name}");
    }
    assert_eq!(writes.load(Ordering::SeqCst), 0);
}

/// Names become part of paths at the API server. What is no name is refused before.
#[tokio::test]
async fn bindings_of_what_cannot_exist() {
    let (rig, writes) = binding_rig();
    for key in ["PodName", "PodNamespace", "Node"] {
        for hostile in [
            "",
            ".",
            "..",
            "../../secrets/s",
            "p/eviction?",
            "p%2feviction",
            "p#",
            "p?dryRun=All",
            "-p",
            "p.",
            "P",
            "p p",
            "p\n",
            "p\u{0}",
            "\u{e9}",
            &"p".repeat(254),
        ] {
            let mut body: Value = serde_json::from_str(BINDING).expect("JSON");
            body[key] = Value::from(hostile);
            let error = refused(&rig, hostile, body.to_string()).await;
            assert_eq!(error, "the request names a Pod or a Node that cannot exist", "{key} {hostile}");
        }
    }
    for hostile in ["", " ", "\n", "\u{e9}", &"u".repeat(254)] {
        let mut body: Value = serde_json::from_str(BINDING).expect("JSON");
        body["PodUID"] = Value::from(hostile);
        assert!(refused(&rig, hostile, body.to_string()).await.contains("cannot exist"), "{hostile}");
    }
    assert_eq!(writes.load(Ordering::SeqCst), 0);
}

/// Every beginning of a good binding, and the binding with every character replaced: none binds another Pod.
#[tokio::test]
async fn bindings_that_are_nearly_good() {
    let (rig, writes) = binding_rig();
    for (at, character) in BINDING.char_indices() {
        let (before, rest) = BINDING.split_at(at);
        refused(&rig, "cut", before.to_owned()).await;
        let (_, after) = rest.split_at(character.len_utf8());
        for other in ["", "\\", "\"", "{", "[", "\u{0}", "\u{e9}", "-1e999", "/"] {
            let changed = format!("{before}{other}{after}");
            if changed == BINDING {
                continue;
            }
            survives("changed", &changed);
            refused(&rig, &changed, changed.clone()).await;
        }
    }
    assert_eq!(writes.load(Ordering::SeqCst), 0);
    // The good one comes through, so the others were refused for what they are.
    assert!(refused(&rig, "good", BINDING.to_owned()).await.contains("did not bind the Pod: no"));
    assert_eq!(writes.load(Ordering::SeqCst), 1);
}
