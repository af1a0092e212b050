//! What is sent to the running extender by hand: both forms of a question, nonsense, and ill will.

#![allow(clippy::expect_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::{collections::BTreeMap, time::Duration};

use harness::{
    TestResult, fetch,
    stage::{BaseSet, ModuleSet, PATIENCE, Stage},
};
use http::StatusCode;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// No answer may take longer: kube-scheduler waits for two seconds. Ours are slow machines.
const LIMIT: Duration = Duration::from_secs(30);

async fn post(stage: &Stage, verb: &str, body: String) -> Result<(StatusCode, String), fetch::FetchError> {
    fetch::post_json(&format!("{}/scheduler/{verb}", stage.extender_url()), body.into(), LIMIT).await
}

/// An answer of `filter`, which is HTTP 200 whatever was asked: kube-scheduler shows nobody the body of another.
async fn filter(stage: &Stage, question: &Value) -> Result<Value, harness::Failure> {
    let (status, body) = post(stage, "filter", question.to_string()).await?;
    assert_eq!(status, StatusCode::OK, "{body}");
    Ok(serde_json::from_str(&body)?)
}

/// Node to reason, of both maps.
fn reasons(answer: &Value) -> BTreeMap<String, String> {
    let maps = ["FailedNodes", "FailedAndUnresolvableNodes"].map(|key| answer[key].as_object());
    let pairs = maps.into_iter().flatten().flatten();
    pairs.map(|(node, why)| (node.clone(), why.as_str().unwrap_or_default().to_owned())).collect()
}

fn names(of: &Value) -> Vec<String> {
    of.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

async fn resident_kib(id: u32) -> Result<u64, harness::Failure> {
    let status = tokio::fs::read_to_string(format!("/proc/{id}/status")).await?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// BL-029: names and whole Nodes get the same decision, each in the form that was asked; an unknown name is refused
/// with a reason; 5,000 Nodes of more than 3 MB are answered; nonsense gets an error text.
#[tokio::test]
async fn both_forms_of_a_question_get_the_same_decision() -> TestResult {
    let stage = Stage::builder().bases(2).base_set(BaseSet::deployment("new", "3.0.0", 1)).build().await?;
    let nodes = stage.nodes().list(&kube::api::ListParams::default()).await?.items;
    let module = ModuleSet::deployment("shop", "1.0.0", "http://x/shop.jar").base_range("<3");
    let pod: Value = serde_json::from_str(&module.pod_yaml("shop"))?;
    let every: Vec<String> = nodes.iter().map(ResourceExt::name_any).collect();
    assert_eq!(every.len(), 4, "three VNodes and a plain one: {every:?}");

    let by_name = filter(&stage, &json!({"Pod": pod, "Nodes": null, "NodeNames": every})).await?;
    let by_node =
        filter(&stage, &json!({"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": null}))
            .await?;
    assert!(by_name["Nodes"].is_null() && by_node["NodeNames"].is_null(), "{by_name} {by_node}");
    let fitting = names(&by_name["NodeNames"]);
    let fits = [stage.vnode_of("base-0"), stage.vnode_of("base-1")];
    assert_eq!(fitting, every.iter().filter(|name| fits.contains(name)).cloned().collect::<Vec<_>>());
    let kept = by_node["Nodes"]["items"].as_array().expect("Nodes");
    let kept: Vec<_> =
        kept.iter().map(|node| node["metadata"]["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(kept, fitting);
    assert_eq!(reasons(&by_name), reasons(&by_node));
    assert_eq!(
        reasons(&by_name).into_values().collect::<std::collections::BTreeSet<_>>(),
        ["module Pods run on virtual nodes only", "the base version is outside the wanted range"]
            .map(str::to_owned)
            .into()
    );
    // Other casings than kube-scheduler's.
    for (pod_key, names_key) in [("pod", "nodeNames"), ("Pod", "nodenames")] {
        let answer = filter(&stage, &json!({pod_key: pod, names_key: every})).await?;
        assert_eq!(answer, by_name);
    }

    // The same Node five thousand times under other names, and in the other form.
    let base = nodes.iter().find(|node| node.name_any() == stage.vnode_of("base-0")).expect("its VNode");
    let mut many = vec![serde_json::to_value(base)?; 5000];
    for (number, node) in many.iter_mut().enumerate().skip(1) {
        node["metadata"]["name"] = json!(format!("nobody-{number}"));
    }
    let question = json!({"Pod": pod, "Nodes": {"items": many}, "NodeNames": null});
    assert!(question.to_string().len() > 3_000_000);
    let answer = filter(&stage, &question).await?;
    let unknown = reasons(&answer);
    assert_eq!(unknown.len(), 4999);
    assert!(unknown.values().all(|why| why == "node is not yet known to stowage-extender"));
    let many: Vec<String> = std::iter::once(stage.vnode_of("base-0"))
        .chain((1..5000).map(|number| format!("nobody-{number}")))
        .collect();
    let named = filter(&stage, &json!({"Pod": pod, "NodeNames": many})).await?;
    assert_eq!(names(&named["NodeNames"]), [stage.vnode_of("base-0")]);
    assert_eq!(reasons(&named), unknown);

    let nothing = filter(&stage, &json!({"Pod": pod, "Nodes": null, "NodeNames": []})).await?;
    assert_eq!((names(&nothing["NodeNames"]).len(), reasons(&nothing).len()), (0, 0));
    assert_eq!(nothing["Error"], "");
    for (nonsense, text) in [
        (json!({"Pod": pod, "Nodes": null, "NodeNames": null}), "names no Nodes"),
        (json!({"Pod": null, "NodeNames": every}), "names no Pod"),
        (json!({"Pod": pod, "Nodes": {"items": [{"metadata": {}}]}}), "has no name"),
        (json!(null), "names no Pod"),
    ] {
        let answer = filter(&stage, &nonsense).await?;
        assert!(answer["Error"].as_str().is_some_and(|error| error.contains(text)), "{answer}");
        assert!(names(&answer["NodeNames"]).is_empty(), "{answer}");
    }
    // `prioritize` has no place for an error, and the form does not matter for its answer.
    let refused = reasons(&by_name).into_iter();
    let mut plain = refused.filter(|(_, why)| why.contains("virtual nodes only")).map(|(node, _)| node);
    let plain = plain.next().expect("a plain Node");
    let question = json!({"Pod": pod, "Nodes": null, "NodeNames": every}).to_string();
    let (status, by_name) = post(&stage, "prioritize", question).await?;
    assert_eq!(status, StatusCode::OK, "{by_name}");
    let question = json!({"Pod": pod, "Nodes": {"items": nodes}, "NodeNames": null}).to_string();
    assert_eq!(post(&stage, "prioritize", question).await?, (StatusCode::OK, by_name.clone()));
    let scores: Value = serde_json::from_str(&by_name)?;
    assert_eq!(scores, json!([{"Host": plain, "Score": -10}]), "empty bases are all worth 10");
    let (status, _) = post(&stage, "prioritize", "null".to_owned()).await?;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    Ok(())
}

/// Bodies that are no JSON, deep, too large, of the wrong types, with names of any length, with nulls everywhere, and
/// clients that send nothing to the end: each gets an error or a verdict, memory stays bounded, and modules are placed
/// all the while by the same process.
#[tokio::test]
async fn hostile_requests_leave_the_extender_at_work() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let id = stage.extender.id();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies = [
        String::new(),
        "{".to_owned(),
        "\u{0}\u{fffd}".to_owned(),
        r#"{"Pod":"#.to_owned(),
        deep.clone(),
        format!(r#"{{"Pod":{{"metadata":{{"annotations":{deep}}}}},"NodeNames":["a"]}}"#),
        r#"{"Pod":7,"NodeNames":["a"]}"#.to_owned(),
        r#"{"Pod":{},"NodeNames":"a"}"#.to_owned(),
        r#"{"Pod":{},"NodeNames":[null,1]}"#.to_owned(),
        r#"{"Pod":{"spec":{"containers":{}}},"NodeNames":["a"]}"#.to_owned(),
    ];
    for body in bodies {
        let head: String = body.chars().take(80).collect();
        let (status, answer) = post(&stage, "filter", body.clone()).await?;
        assert_eq!(status, StatusCode::OK, "{head}: {answer}");
        let answer: Value = serde_json::from_str(&answer)?;
        let error = answer["Error"].as_str().unwrap_or_default();
        assert!(!error.is_empty() && error.len() <= 1200 && !error.contains('%'), "{head}: {answer}");
        assert!(names(&answer["NodeNames"]).is_empty(), "{head}: {answer}");
        let (status, _) = post(&stage, "prioritize", body).await?;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{head}");
    }

    // Nulls and long names are no reason to fail: they are a Pod like any other, and none of ours.
    let long = "x".repeat(200);
    let vnode = stage.vnode_of("base-0");
    for pod in [
        json!({}),
        json!({"metadata": null, "spec": null, "status": null}),
        json!({"metadata": {"name": null, "labels": null, "annotations": {"a": "%s%n"}},
               "spec": {"containers": null, "tolerations": null}}),
        json!({"metadata": {"name": long, "namespace": long, "uid": long},
               "spec": {"containers": [{"name": long, "image": long}]}}),
    ] {
        let answer = filter(&stage, &json!({"Pod": pod, "NodeNames": [vnode, long]})).await?;
        assert_eq!(answer["Error"], "", "{answer}");
        let why = reasons(&answer);
        assert_eq!(why.len(), 2, "{answer}");
        assert_eq!(why[&vnode], "a virtual node takes module Pods only");
    }
    // Half a module Pod with a name that would be taken for a format, and for many lines.
    let name = format!("%s\n{long}");
    let half = json!({"spec": {
        "tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
        "containers": [{"name": "ok", "env": [{"name": "MODULE_VERSION", "value": "1"}]}, {"name": name}],
    }});
    let why = reasons(&filter(&stage, &json!({"Pod": half, "NodeNames": [vnode]})).await?);
    assert!(why[&vnode].len() < 160 && !why[&vnode].contains(['%', '\n']), "{why:?}");

    // One byte more than is accepted, with and without a length, and one that says it is larger than it is.
    let before = resident_kib(id).await?;
    for _ in 0..3 {
        let (status, answer) = post(&stage, "filter", " ".repeat((64 << 20) + 1)).await?;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert!(answer.contains("larger than stowage-extender accepts"), "{answer}");
    }
    let address = stage.extender_url().trim_start_matches("http://").to_owned();
    let mut claims = TcpStream::connect(&address).await?;
    claims.write_all(head("Content-Length: 99999999999999").as_bytes()).await?;

    // Heads and bodies that never end, more of them than a browser would open.
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(&address).await?;
        let start = if number % 2 == 0 {
            "POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-".to_owned()
        } else {
            head("Content-Length: 1000") + "{\"Pod\":"
        };
        stream.write_all(start.as_bytes()).await?;
        slow.push(stream);
    }
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    stage.wait_pods_ready("app=shop", 1).await?;

    // A body that does not come is answered when the time for a request is over.
    let mut answer = [0; 4096];
    let read = tokio::time::timeout(PATIENCE, slow[1].read(&mut answer)).await??;
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.contains("200 OK") && answer.contains("did not decide in time"), "{answer}");
    drop((slow, claims));

    let after = resident_kib(id).await?;
    assert!(after < before + (256 << 10), "{after} KiB, and {before} KiB before");
    assert_eq!(stage.extender.id(), id);
    assert!(stage.extender.exit_status().is_none());
    stage.extender.wait_ready().await?;
    Ok(())
}

fn head(line: &str) -> String {
    format!("POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{line}\r\n\r\n")
}
