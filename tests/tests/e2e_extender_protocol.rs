//! What kube-scheduler makes of an extender's answers, whoever gives them. docs/scheduler-facts.md lists the facts.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at what it did not expect"
)]

mod loops;
mod scripted;

use std::{collections::BTreeSet, time::Duration};

use harness::{
    TestResult,
    controlplane::{Extender, Scheduler},
    priority, wait,
};
use http::StatusCode;
use scripted::{NAMESPACE, Reply, SOON, Scene, bind, fits, fits_nowhere, leaving, pod, scheduled, willing};
use serde_json::{Value, json};

const NAME: &str = "stowage-scheduler";

fn asks() -> Extender {
    Extender::new("")
}

/// Headers, bodies and connections of the calls.
#[tokio::test]
async fn calls_have_this_shape() -> TestResult {
    let script = |call: &scripted::Call| match willing(call) {
        // More than is drained of an answer after its JSON.
        Reply::Json(value) if call.pod.starts_with("chatty") => {
            Reply::Raw(StatusCode::OK, format!("{value}{}", " ".repeat(3000)).into())
        }
        reply => reply,
    };
    let mut scene = Scene::new("shape", 2, script).await?;
    scene.schedule(NAME, &asks()).await?;
    for kind in ["brief", "chatty"] {
        let mut peers = BTreeSet::new();
        for number in 0..6 {
            let name = format!("{kind}-{number}");
            scene.create(pod(&name, NAME)).await?;
            scene.bound(&name).await?;
            let [filter, prioritize] = ["filter", "prioritize"].map(|verb| scene.calls(verb, &name));
            assert_eq!((filter.len(), prioritize.len()), (1, 1));
            assert_eq!(filter[0].body, prioritize[0].body, "one question for both");
            assert!(!filter[0].body.ends_with(b"\n"));
            peers.extend([filter[0].peer, prioritize[0].peer]);
        }
        let kept = if kind == "brief" { peers.len() == 1 } else { peers.len() >= 6 };
        assert!(kept, "{kind} answers used {peers:?}");
    }
    let call = scene.calls("filter", "brief-0").remove(0);
    let header =
        |name: &str| call.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert_eq!(header("user-agent"), "Go-http-client/1.1");
    assert_eq!((header("content-type"), header("accept-encoding")), ("application/json", "gzip"));
    assert_eq!(header("content-length"), call.body.len().to_string());
    assert!(!call.headers.contains_key("authorization"));
    let question: Value = serde_json::from_slice(&call.body)?;
    let keys = |value: &Value| {
        value.as_object().map(|o| o.keys().cloned().collect::<BTreeSet<_>>()).unwrap_or_default()
    };
    assert_eq!(keys(&question), ["NodeNames", "Nodes", "Pod"].map(str::to_owned).into());
    assert!(question["Nodes"].is_null());
    assert_eq!(keys(&question["Pod"]), ["metadata", "spec", "status"].map(str::to_owned).into());
    assert!(question["Pod"]["metadata"]["managedFields"].is_null());

    scene.schedule("whole", &Extender { node_cache_capable: false, ..asks() }).await?;
    scene.create(pod("whole", "whole")).await?;
    scene.unscheduled("whole", "Unschedulable").await?;
    let question: Value = serde_json::from_slice(&scene.calls("filter", "whole")[0].body)?;
    assert!(question["NodeNames"].is_null());
    assert_eq!(
        question["Nodes"]["items"].as_array().map(Vec::len),
        Some(2),
        "whole Nodes, and no names are read"
    );
    assert!(question["Nodes"]["items"][0]["metadata"]["managedFields"].is_array());
    Ok(())
}

/// What is answered about a Pod, what its condition says, and on how many of the four nodes preemption has no victims; on
/// the others it is not even tried.
struct Verdict {
    pod: &'static str,
    answer: Value,
    text: String,
    without_victims: usize,
}

fn verdicts() -> Vec<Verdict> {
    let reasons = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(node, reason)| ((*node).to_owned(), json!(reason)))
            .collect::<serde_json::Map<_, _>>()
    };
    let three = [("n0", "base full"), ("n1", "base full"), ("n2", "stack mismatch"), ("n3", "zz reason")];
    let failed = |pairs: &[(&str, &str)]| json!({"NodeNames": [], "FailedNodes": reasons(pairs)});
    let sorted = "1 stack mismatch, 1 zz reason, 2 base full.";
    let long = "x".repeat(2000);
    let table = [
        ("nulls", json!({"NodeNames": null, "Nodes": null}), "", 0),
        ("empty-object", json!({}), "", 0),
        ("null", Value::Null, "", 0),
        ("no-names", json!({"NodeNames": []}), "", 0),
        ("failed", failed(&three), sorted, 4),
        ("unresolvable", json!({"NodeNames": [], "FailedAndUnresolvableNodes": reasons(&three)}), sorted, 0),
        ("some-silent", failed(&three[..2]), "2 base full.", 2),
        ("lower-case", json!({"nodenames": [], "failednodes": reasons(&three[..1])}), "1 base full.", 1),
        ("percent", failed(&[("n0", "95%s of it")]), "1 95%s of it.", 1),
        (
            "in-both-maps",
            json!({"NodeNames": [], "FailedNodes": reasons(&three), "FailedAndUnresolvableNodes": reasons(&three[1..])}),
            sorted,
            1,
        ),
        ("wordless", failed(&[("n0", "")]), "1 .", 1),
        ("long", failed(&[("n0", &long)]), &format!("1 {long}."), 1),
    ];
    let verdict = |(pod, answer, text, without_victims): (_, _, &str, _)| Verdict {
        pod,
        answer,
        text: format!("0/4 nodes are available: {text}").trim_end().to_owned(),
        without_victims,
    };
    table.into_iter().map(verdict).collect()
}

/// A fault: the Pod, the answer, and what its condition says.
fn faults() -> Vec<(&'static str, StatusCode, &'static str, &'static str)> {
    vec![
        ("stranger", StatusCode::OK, r#"{"NodeNames":["n0","nope"]}"#, r#"claims a filtered node "nope""#),
        (
            "error",
            StatusCode::OK,
            r#"{"NodeNames":[],"Error":"our own words, 95 of 100"}"#,
            "our own words, 95 of 100",
        ),
        ("percent-error", StatusCode::OK, r#"{"NodeNames":[],"Error":"95%s of it"}"#, "95%s of it"),
        ("cut", StatusCode::OK, r#"{"NodeNames":["n0""#, "unexpected EOF"),
        ("nothing", StatusCode::OK, "", "EOF"),
        (
            "internal",
            StatusCode::INTERNAL_SERVER_ERROR,
            "the body is lost",
            "failed filter with extender at URL",
        ),
        ("unavailable", StatusCode::SERVICE_UNAVAILABLE, "the body is lost", "code 503"),
        ("no-content", StatusCode::NO_CONTENT, "", "code 204"),
    ]
}

/// Which words end up in the condition and in the Event, for each kind of answer.
#[tokio::test]
async fn answers_become_these_texts() -> TestResult {
    let script = |call: &scripted::Call| {
        let pod = call.pod.trim_end_matches("-preempting");
        if call.verb != "filter" {
            return willing(call);
        }
        if let Some(verdict) = verdicts().into_iter().find(|verdict| verdict.pod == pod) {
            return Reply::Json(verdict.answer);
        }
        match faults().into_iter().find(|(name, ..)| *name == pod) {
            Some((_, status, body, _)) => Reply::Raw(status, body.into()),
            None if pod == "fits-and-failed" => {
                Reply::Json(json!({"NodeNames": ["n1"], "FailedNodes": {"n1": "base full"}}))
            }
            None => Reply::Json(fits(call)),
        }
    };
    let mut scene = Scene::new("texts", 4, script).await?;
    scene.schedule(NAME, &asks()).await?;
    let mut preempting = scene.configuration("preempting", &asks())?;
    preempting["profiles"][0].as_object_mut().expect("a profile").remove("plugins");
    scene.start("preempting", &preempting).await?;
    for verdict in verdicts() {
        scene.create(pod(verdict.pod, NAME)).await?;
        scene.create(pod(&format!("{}-preempting", verdict.pod), "preempting")).await?;
    }
    for (name, ..) in faults() {
        scene.create(pod(name, NAME)).await?;
    }
    scene.create(pod("fits-and-failed", NAME)).await?;
    for Verdict { pod, text, without_victims, .. } in verdicts() {
        let message = scene.unscheduled(pod, "Unschedulable").await?;
        assert_eq!(message.trim_end(), text, "{pod}");
        let message = scene.unscheduled(&format!("{pod}-preempting"), "Unschedulable").await?;
        let counted = |count: usize, text: &str| (count > 0).then(|| format!("{count} {text}"));
        let tails = [
            counted(without_victims, "No preemption victims found for incoming pod"),
            counted(4 - without_victims, "Preemption is not helpful for scheduling"),
        ];
        let tails = tails.into_iter().flatten().collect::<Vec<_>>().join(", ");
        assert_eq!(message, format!("{text} preemption: 0/4 nodes are available: {tails}."), "{pod}");
    }
    for (name, _, _, text) in faults() {
        let message = scene.unscheduled(name, "SchedulerError").await?;
        assert!(message.contains(text) && !message.contains("the body is lost"), "{name}: {message}");
        let event = scene.event(name, "FailedScheduling").await?;
        assert_eq!(event.contains(text), !text.contains('%'), "{name}: {event}");
        // Tried again by the clock, though nothing happens in the cluster.
        wait::until(&format!("third question about {name}"), SOON, async || {
            match scene.calls("filter", name).len() {
                3.. => Ok(()),
                calls => Err(format!("{calls} calls")),
            }
        })
        .await?;
    }
    let event = scene.event("percent", "FailedScheduling").await?;
    assert!(!event.contains("95%s of it"), "the Event takes the text for a format: {event}");
    let event = scene.event("long", "FailedScheduling").await?;
    assert_eq!(event.len(), 1024, "the Event is cut, and the condition is not: {event}");
    assert_eq!(
        scene.bound("fits-and-failed").await?,
        "n1",
        "what fits is placed, whatever the other map says"
    );
    Ok(())
}

/// A timeout is a fault with its own words, and holds up everybody behind it.
#[tokio::test]
async fn silence_holds_up_the_whole_scheduler() -> TestResult {
    let script = |call: &scripted::Call| match call.pod.as_str() {
        "silent" => Reply::Silence,
        _ => willing(call),
    };
    let mut scene = Scene::new("silence", 1, script).await?;
    scene.schedule(NAME, &Extender { timeout: Duration::from_secs(2), ..asks() }).await?;
    scene.create(pod("silent", NAME)).await?;
    wait::until("first question", SOON, async || match scene.calls("filter", "silent").len() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    })
    .await?;
    scene.create(pod("good", NAME)).await?;
    scene.bound("good").await?;
    let (silent, good) = (scene.calls("filter", "silent"), scene.calls("filter", "good"));
    let behind = good[0].at.duration_since(silent[0].at);
    assert!(behind >= Duration::from_millis(1900), "asked about {behind:?} later");
    let message = scene.unscheduled("silent", "SchedulerError").await?;
    assert!(message.contains("Client.Timeout exceeded while awaiting headers"), "{message}");
    Ok(())
}

/// Preemption evicts where our filter would refuse; `{}` of `preemptVerb` and `preemptionPolicy: Never` prevent it; and a
/// null among the victims ends kube-scheduler, so ours must never be sent.
#[tokio::test]
async fn preemption_does_not_ask_the_filter_and_dies_of_null() -> TestResult {
    let script = |call: &scripted::Call| match (call.verb.as_str(), call.pod.as_str()) {
        ("filter", name) if name.starts_with("urgent") => {
            Reply::Json(fits_nowhere(call, "FailedAndUnresolvableNodes", "incompatible"))
        }
        ("preempt", "urgent-null") => Reply::Json(json!({"NodeNameToMetaVictims": {"n2": null}})),
        _ => willing(call),
    };
    let mut scene = Scene::new("preempting", 4, script).await?;
    for (name, policy) in [("urgent", "PreemptLowerPriority"), ("patient", "Never")] {
        let class = json!({"metadata": {"name": name}, "value": 1_000_000, "preemptionPolicy": policy});
        priority::create(&scene.client, NAMESPACE, &serde_json::from_value(class)?).await?;
    }
    // One for each scheduler, each full with a Pod of low priority.
    let on = |name: &str, scheduler: &str, node: usize| {
        let mut pod = pod(name, scheduler);
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": format!("n{node}")});
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "60000"}});
        pod
    };
    for node in 0..4 {
        let mut low = on(&format!("low-{node}"), NAME, node);
        low["spec"]["nodeName"] = json!(format!("n{node}"));
        scene.create(low).await?;
    }
    let urgent = |name: &str, scheduler: &str, node: usize| {
        let mut pod = on(name, scheduler, node);
        pod["spec"]["priorityClassName"] = json!("urgent");
        pod
    };
    let mut evicts = scene.configuration("evicts", &asks())?;
    evicts["profiles"][0].as_object_mut().expect("a profile").remove("plugins");
    scene.start("evicts", &evicts).await?;
    let mut patient = urgent("urgent-patient", "evicts", 3);
    patient["spec"]["priorityClassName"] = json!("patient");
    scene.create(patient).await?;
    scene.unscheduled("urgent-patient", "Unschedulable").await?;
    scene.create(urgent("urgent-0", "evicts", 0)).await?;
    wait::until("eviction", SOON, async || {
        let leaving = leaving(&scene).await.map_err(|error| error.to_string())?;
        if leaving == ["low-0"] { Ok(()) } else { Err(format!("{leaving:?}")) }
    })
    .await?;
    assert!(scene.calls("filter", "urgent-0").is_empty(), "nobody was asked before the eviction");

    scene.schedule("asks", &Extender { preempt: true, ..asks() }).await?;
    scene.create(urgent("urgent-veto", "asks", 1)).await?;
    let why = scene.unscheduled("urgent-veto", "Unschedulable").await?;
    assert!(!scene.calls("preempt", "urgent-veto").is_empty(), "{why}");
    assert_eq!(scene.scheduler().and_then(Scheduler::exit_status), None, "{{}} is survived");
    scene.create(urgent("urgent-null", "asks", 2)).await?;
    wait::until("end of kube-scheduler", SOON, async || {
        let scheduler = scene.scheduler().ok_or("none")?;
        scheduler.exit_status().map(drop).ok_or("it lives")
    })
    .await?;
    let log = scene.scheduler().map(|scheduler| scheduler.log_tail(20_000)).unwrap_or_default();
    assert!(log.contains("nil pointer"), "{log}");
    assert_eq!(leaving(&scene).await?, ["low-0"]);
    Ok(())
}

/// Score, times `weight`, times 10, is added to kube-scheduler's own sum as it is: no clamp. `NodeAffinity` adds 200 for
/// `n1` here, and the extender speaks for `n0`.
#[tokio::test]
async fn scores_are_added_with_their_weight() -> TestResult {
    let scores = |pod: &str| match pod.rsplit_once('-')? {
        (_, "half") => Some(json!([{"Host": "n0", "Score": 70.5}])),
        (_, "object") => Some(json!({})),
        (_, "null") => Some(Value::Null),
        // For the other one, so that the sign is seen.
        (_, "minus") => Some(json!([{"Host": "n1", "Score": -50}])),
        (_, score) => Some(
            json!([{"Host": "n0", "Score": score.parse::<i64>().ok()?}, {"Host": "stranger", "Score": 10}]),
        ),
    };
    let script = move |call: &scripted::Call| match call.verb.as_str() {
        "prioritize" if call.pod == "one-fault" => {
            Reply::Raw(StatusCode::INTERNAL_SERVER_ERROR, r#"[{"Host":"n0","Score":70}]"#.into())
        }
        "prioritize" => scores(&call.pod).map_or(Reply::Json(Value::Null), Reply::Json),
        _ => willing(call),
    };
    let mut scene = Scene::new("scores", 2, script).await?;
    for (name, weight) in [("one", 1), ("five", 5)] {
        scene.schedule(name, &Extender { weight, ..asks() }).await?;
    }
    let expected = [
        ("one-10", "n1"),
        ("one-18", "n1"),
        ("one-22", "n0"),
        ("one-1000", "n0"),
        ("one-minus", "n0"),
        // Ten times 2^62 is less than nothing.
        ("one-4611686018427387904", "n1"),
        ("one-half", "n1"),
        ("one-object", "n1"),
        ("one-null", "n1"),
        ("one-fault", "n1"),
        ("five-3", "n1"),
        ("five-5", "n0"),
        ("five-10", "n0"),
    ];
    for (name, node) in expected {
        let mut pod = pod(name, name.split('-').next().unwrap_or_default());
        let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]});
        pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
            json!([{"weight": 100, "preference": term}]);
        scene.create(pod).await?;
        assert_eq!(scene.bound(name).await?, node, "{name}");
    }
    Ok(())
}

/// Case 6: what kube-scheduler makes of the answers of an extender that binds.
#[tokio::test]
async fn bindings_are_believed_and_late_ones_leave_a_fault() -> TestResult {
    let script = |call: &scripted::Call| {
        let bound = |then: Reply| Reply::Bound(Box::new(then));
        match (call.verb.as_str(), call.pod.as_str()) {
            ("bind", "late") => bound(Reply::Silence),
            ("bind", "object") => bound(Reply::Json(json!({}))),
            ("bind", "null") => bound(Reply::Json(Value::Null)),
            ("bind", "empty") => Reply::Raw(StatusCode::OK, "".into()),
            ("bind", "never") => Reply::Json(json!({"Error": ""})),
            ("bind", "refused") => Reply::Json(json!({"Error": "our own words"})),
            ("bind", _) => bound(Reply::Json(json!({"Error": ""}))),
            _ => willing(call),
        }
    };
    let mut scene = Scene::new("binding", 2, script).await?;
    let extender = Extender { bind: true, timeout: Duration::from_secs(1), ..asks() };
    scene.schedule(NAME, &extender).await?;
    for name in ["fine", "object", "null", "late", "empty", "never", "refused"] {
        scene.create(pod(name, NAME)).await?;
    }
    for name in ["fine", "object", "null"] {
        scene.bound(name).await?;
        assert!(scene.event(name, "Scheduled").await?.contains("Successfully assigned"));
    }
    let asked: Value = serde_json::from_slice(&scene.calls("bind", "fine")[0].body)?;
    let there = scene.pods().get("fine").await?;
    let node = there.spec.and_then(|spec| spec.node_name);
    assert_eq!(
        asked,
        json!({"PodName": "fine", "PodNamespace": scripted::NAMESPACE, "PodUID": there.metadata.uid, "Node": node})
    );
    // Bound, but answered too late: the fault stays on a Pod that has its node.
    assert!(scene.unscheduled("late", "SchedulerError").await?.contains("Client.Timeout"));
    scene.bound("late").await?;
    assert_eq!(scheduled(&scene.pods().get("late").await?).map(|c| c.status).as_deref(), Some("False"));
    assert!(scene.unscheduled("empty", "SchedulerError").await?.contains("EOF"));
    assert!(scene.unscheduled("refused", "SchedulerError").await?.contains("our own words"));
    // Believed: an Event that is not true, and nobody comes back to the Pod.
    scene.event("never", "Scheduled").await?;
    wait::throughout("rest of what was never bound", Duration::from_secs(4), async || {
        match scene.calls("bind", "never").len() {
            1 => Ok(()),
            calls => Err(format!("{calls} calls")),
        }
    })
    .await?;
    // A second binding is a conflict, and so is one of another Pod of that name.
    let again = bind(&scene.client, &asked).await;
    let mut other =
        json!({"PodName": "never", "PodNamespace": scripted::NAMESPACE, "PodUID": "another", "Node": "n0"});
    let wrong = bind(&scene.client, &other).await;
    other["PodUID"] = json!(scene.pods().get("never").await?.metadata.uid);
    for answer in [again, wrong] {
        assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 409), "{answer:?}");
    }
    bind(&scene.client, &other).await?;
    Ok(())
}
