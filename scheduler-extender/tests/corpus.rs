//! Hostile requests of the largest kind: no panic, an answer in time, and memory within bounds.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may fail")]

use std::time::{Duration, Instant};

use policy::contract::classify;
use scheduler_extender::wire::{PreemptQuestion, Question};

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
    assert!(!outcome.is_empty() && outcome.len() < 1_000, "{name}: {outcome}");
    assert!(began.elapsed() < LONGEST_TIME, "{name}: {:?}", began.elapsed());
    for used in [used, preempt] {
        assert!(used.bytes_max < MOST_MEMORY, "{name}: {} bytes, {outcome}", used.bytes_max);
    }
}

fn filled(before: &str, piece: &str, after: &str) -> String {
    let count = LENGTH.saturating_sub(before.len() + after.len()) / piece.len();
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
