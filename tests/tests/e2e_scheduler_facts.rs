//! What kube-scheduler does with extenders, as far as ours relies on it. docs/scheduler-facts.md lists the facts.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at what it did not expect")]

mod facts;
mod placing;
mod scripted;
mod settings;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use harness::{Failure, TestResult, controlplane::Extender, priority, wait};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node, PersistentVolumeClaim, Service},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use placing::{Field, Layout, NAMESPACE, SOON, module_pod, node_of, vnode};
use policy::contract::names;
use serde_json::{Value, json};

const POLICY: &str =
    "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {podsPerBase: 8}\n";

async fn field(name: &str) -> Result<Field, Failure> {
    let layout = Layout { name, policy: POLICY, pairs: 1, ..Layout::default() };
    Field::new(layout, vec![vnode("v0", "2.1.0", 8)]).await
}

/// A module Pod that no base fits, which only the extender knows.
fn unfit(name: &str) -> Value {
    let mut pod = module_pod(name, name);
    pod["metadata"]["annotations"] = json!({(names::WANTED_BASE_VERSION): ">=9"});
    pod
}

/// Waits until the filter was asked more than `before` times.
async fn asked_again(field: &Field, before: u64, why: &str) -> TestResult {
    let what = format!("question after {why}");
    wait::until(&what, SOON, async || {
        let calls = field.calls("filter").await.map_err(|error| error.to_string())?;
        if calls > before { Ok(()) } else { Err(format!("{calls} calls")) }
    })
    .await?;
    Ok(())
}

async fn patch_node(field: &Field, patch: Value) -> TestResult {
    let nodes: Api<Node> = Api::all(field.client.clone());
    let (parameters, status) = (PatchParams::default(), patch.get("status").is_some());
    let patch = Patch::Merge(patch);
    if status {
        nodes.patch_status("v0", &parameters, &patch).await?;
    } else {
        nodes.patch("v0", &parameters, &patch).await?;
    }
    Ok(())
}

/// Case 26: a Pod that only the extender refused is looked at again when its Node or the Pod itself changes.
#[tokio::test]
async fn changes_of_the_node_and_of_the_pod_wake_it() -> TestResult {
    let field = field("wakes").await?;
    field.create(vec![unfit("shop")]).await?;
    field.refused("shop").await?;
    let taint = json!({"key": names::VIRTUAL_NODE_TAINT, "value": "true", "effect": "NoExecute"});
    let more = json!({"key": names::VIRTUAL_NODE_TAINT, "value": "again", "effect": "NoSchedule"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "Test", "message": "-"});
    let of_the_node = [
        ("a label", json!({"metadata": {"labels": {"example.com/a": "1"}}})),
        ("an annotation", json!({"metadata": {"annotations": {"example.com/a": "1"}}})),
        ("a taint", json!({"spec": {"taints": [taint, more]}})),
        ("allocatable", json!({"status": {"allocatable": {"pods": "9"}}})),
        ("a condition", json!({"status": {"conditions": [ready, {"type": "Odd", "status": "True"}]}})),
    ];
    for (what, patch) in of_the_node {
        let before = field.calls("filter").await?;
        patch_node(&field, patch).await?;
        asked_again(&field, before, what).await?;
    }
    let mut tolerations = module_pod("shop", "shop")["spec"]["tolerations"].clone();
    let pod: Value = serde_json::to_value(field.pods().get("shop").await?)?;
    for toleration in pod["spec"]["tolerations"].as_array().into_iter().flatten() {
        let all = tolerations.as_array_mut().expect("a list");
        if !all.contains(toleration) {
            all.push(toleration.clone());
        }
    }
    tolerations.as_array_mut().expect("a list").push(json!({"key": "example.com/a", "operator": "Exists"}));
    let of_the_pod = [
        ("an annotation of the Pod", json!({"metadata": {"annotations": {"example.com/a": "1"}}})),
        ("a label of the Pod", json!({"metadata": {"labels": {"example.com/a": "1"}}})),
        ("a toleration of the Pod", json!({"spec": {"tolerations": tolerations}})),
    ];
    for (what, patch) in of_the_pod {
        let before = field.calls("filter").await?;
        field.pods().patch("shop", &PatchParams::default(), &Patch::Merge(patch)).await?;
        asked_again(&field, before, what).await?;
    }
    let before = field.calls("filter").await?;
    let condition = json!({"status": {"conditions": [{"type": "example.com/a", "status": "True"}]}});
    field.pods().patch_status("shop", &PatchParams::default(), &Patch::Strategic(condition)).await?;
    asked_again(&field, before, "a condition of the Pod").await?;
    let why = field.refused("shop").await?;
    assert!(why.contains("1 the base version is outside the wanted range"), "{why}");
    Ok(())
}

/// So does everything that becomes of other Pods on Nodes, which is why agents write them only when something matters;
/// Nodes that come and go; and a volume claim.
#[tokio::test]
async fn other_pods_and_nodes_wake_it() -> TestResult {
    let field = field("others").await?;
    field.create(vec![unfit("shop")]).await?;
    field.refused("shop").await?;
    let (pods, nodes) = (field.pods(), Api::<Node>::all(field.client.clone()));
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(field.client.clone(), NAMESPACE);
    let (post, patch) = (PostParams::default(), PatchParams::default());
    let bound = |name: &str| {
        let mut pod = module_pod(name, name);
        pod["spec"]["nodeName"] = json!("v0");
        pod
    };
    let merge = async |name: &str, value: Value| -> TestResult {
        pods.patch(name, &patch, &Patch::Merge(value)).await?;
        Ok(())
    };
    let status = async |name: &str, value: Value| -> TestResult {
        pods.patch_status(name, &patch, &Patch::Merge(value)).await?;
        Ok(())
    };
    let mut before = field.calls("filter").await?;
    let mut woken = async |why: &str| -> TestResult {
        asked_again(&field, before, why).await?;
        before = field.calls("filter").await?;
        Ok(())
    };
    field.create(vec![bound("other"), bound("third")]).await?;
    woken("a Pod that was bound").await?;
    merge("other", json!({"metadata": {"annotations": {"example.com/a": "1"}}})).await?;
    woken("an annotation of another Pod").await?;
    merge("other", json!({"metadata": {"labels": {"example.com/a": "1"}}})).await?;
    woken("a label of another Pod").await?;
    status("other", json!({"status": {"message": "a status of another Pod"}})).await?;
    woken("a status of another Pod").await?;
    pods.delete("other", &DeleteParams::default().grace_period(60)).await?;
    woken("a deletionTimestamp").await?;
    field.delete("other").await?;
    woken("a Pod that is gone").await?;
    status("third", json!({"status": {"phase": "Failed"}})).await?;
    woken("a Pod that failed").await?;
    nodes.create(&post, &serde_json::from_value(vnode("v1", "2.1.0", 8))?).await?;
    woken("a Node that came").await?;
    nodes.delete("v1", &DeleteParams::default()).await?;
    woken("a Node that went").await?;
    let claim = json!({
        "metadata": {"name": "claim"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    claims.create(&post, &serde_json::from_value(claim)?).await?;
    woken("a volume claim").await?;
    Ok(())
}

/// What agents write all the time, Leases and the times of a heartbeat, wakes no Pod; nor does the description of a Node,
/// a `ConfigMap` or a Service.
#[tokio::test]
async fn leases_and_heartbeats_wake_nobody() -> TestResult {
    let field = field("leases").await?;
    let leases: Api<Lease> = Api::namespaced(field.client.clone(), NAMESPACE);
    let maps: Api<ConfigMap> = Api::namespaced(field.client.clone(), NAMESPACE);
    let of = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "a"}});
    let post = PostParams::default();
    leases.create(&post, &serde_json::from_value(json!({"metadata": {"name": "a"}}))?).await?;
    maps.create(&post, &serde_json::from_value(of("ConfigMap"))?).await?;
    let services: Api<Service> = Api::namespaced(field.client.clone(), NAMESPACE);
    let service = json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}});
    services.create(&post, &serde_json::from_value(service)?).await?;
    field.create(vec![unfit("shop")]).await?;
    field.refused("shop").await?;
    let before = field.calls("filter").await?;
    // Long enough for several attempts with their back-off, if any of this woke the Pod. It wakes itself once, by the
    // condition that kube-scheduler writes.
    let end = Instant::now() + Duration::from_secs(8);
    let mut writes = 0_u32;
    while writes < 20 || Instant::now() < end {
        writes += 1;
        let renewed = json!({"spec": {"leaseTransitions": writes}});
        leases.patch("a", &PatchParams::default(), &Patch::Merge(renewed)).await?;
        let changed = json!({"data": {"a": writes.to_string()}});
        maps.patch("a", &PatchParams::default(), &Patch::Merge(changed)).await?;
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Test", "message": "-",
            "lastHeartbeatTime": format!("2026-01-01T00:00:{:02}Z", writes % 60),
        });
        let heartbeat = json!({"conditions": [ready], "nodeInfo": {"bootID": writes.to_string()}});
        patch_node(&field, json!({"status": heartbeat})).await?;
        let service = json!({"spec": {"selector": {"app": writes.to_string()}}});
        services.patch("a", &PatchParams::default(), &Patch::Merge(service)).await?;
    }
    let after = field.calls("filter").await?;
    assert!(after <= before + 1, "{before} calls before {writes} writes, {after} after");
    patch_node(&field, json!({"metadata": {"labels": {"example.com/a": "1"}}})).await?;
    asked_again(&field, after, "a label").await?;
    Ok(())
}

/// A taint that the Pod does not tolerate, as of a full metaspace, refuses before the extender is asked and does not name
/// itself; `"True"` does not tolerate `"true"`. With one Node that fits, nobody asks for scores.
#[tokio::test]
async fn taints_refuse_before_the_extender_and_one_node_is_not_scored() -> TestResult {
    let field = field("taints").await?;
    let mut wrong = module_pod("wrong", "wrong");
    wrong["spec"]["tolerations"] = json!([
        {"key": names::VIRTUAL_NODE_TAINT, "operator": "Equal", "value": "True"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
    ]);
    field.create(vec![wrong]).await?;
    let why = field.refused("wrong").await?;
    assert!(why.contains("1 node(s) had untolerated taint(s)") && !why.contains("koupleless"), "{why}");
    field.delete("wrong").await?;

    let nodes: Api<Node> = Api::all(field.client.clone());
    let taints = nodes.get("v0").await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let mut with_overload = serde_json::to_value(&taints)?;
    let overload = json!({"key": names::OVERLOAD_TAINT, "value": "true", "effect": "NoExecute"});
    with_overload.as_array_mut().expect("a list").push(overload);
    patch_node(&field, json!({"spec": {"taints": with_overload}})).await?;
    field.create(vec![module_pod("shop", "shop")]).await?;
    let why = field.refused("shop").await?;
    assert!(why.contains("1 node(s) had untolerated taint(s)") && !why.contains("overload"), "{why}");
    assert_eq!(field.calls("filter").await?, 0, "no Node was left to ask about");

    // Who tolerates that taint is refused by the extender, which knows what it means.
    let mut tolerant = module_pod("tolerant", "tolerant");
    let tolerations = tolerant["spec"]["tolerations"].as_array_mut().expect("a list");
    tolerations.push(json!({"key": names::OVERLOAD_TAINT, "operator": "Exists"}));
    field.create(vec![tolerant]).await?;
    let why = field.refused("tolerant").await?;
    assert!(why.contains("1 the base is being healed"), "{why}");
    field.delete("tolerant").await?;
    let before = field.calls("filter").await?;

    patch_node(&field, json!({"spec": {"taints": taints}})).await?;
    assert_eq!(field.bound("shop", SOON).await?, "v0");
    assert!(field.calls("filter").await? > before);
    assert_eq!(field.calls("prioritize").await?, 0);

    // Neither operator nor effect is needed, nor said twice.
    let mut brief = module_pod("brief", "brief");
    brief["spec"]["tolerations"] = json!([
        {"key": names::VIRTUAL_NODE_TAINT, "value": "true"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
    ]);
    field.create(vec![brief]).await?;
    assert_eq!(field.bound("brief", SOON).await?, "v0");
    Ok(())
}

/// kube-scheduler dies of victims that are null: it never gets any, however little there is to evict, and lives.
#[tokio::test]
async fn kube_scheduler_survives_every_question_about_victims() -> TestResult {
    let layout = Layout { name: "victims", policy: POLICY, pairs: 1, preempt: true, ..Layout::default() };
    let mut field = Field::new(layout, vec![vnode("v0", "2.1.0", 1), vnode("v1", "2.1.0", 1)]).await?;
    field.create(vec![module_pod("shop", "shop"), module_pod("cart", "cart")]).await?;
    for name in ["shop", "cart"] {
        field.bound(name, SOON).await?;
    }
    let mut important = unfit("mail");
    important["spec"]["priorityClassName"] = json!("high");
    let class = json!({"metadata": {"name": "high"}, "value": 1000});
    priority::create(&field.client, NAMESPACE, &serde_json::from_value(class)?).await?;
    field.create(vec![important]).await?;
    field.refused("mail").await?;
    assert!(field.calls("preempt").await? >= 1, "it was asked");
    let scheduler = field.schedulers.first_mut().expect("one");
    assert_eq!(scheduler.exit_status(), None, "{}", scheduler.log_tail(30));
    for name in ["shop", "cart"] {
        let pod = field.pods().get(name).await?;
        assert!(node_of(&pod).is_some() && pod.metadata.deletion_timestamp.is_none(), "{name}");
    }
    Ok(())
}

/// Cases 19, 29: an extender is asked for the Pods of every profile, unless it names resources; and what is refused at the start.
#[tokio::test]
async fn extenders_are_global() -> TestResult {
    let mut scene = scripted::Scene::new("global", 1, scripted::willing).await?;
    let mut settings = scene.configuration(names::SCHEDULER, &Extender::new(""))?;
    let mut second = settings["profiles"][0].clone();
    second["schedulerName"] = json!("plain");
    settings["profiles"].as_array_mut().expect("profiles").push(second);
    let refused = |change: fn(&mut Value)| {
        let mut settings = settings.clone();
        change(&mut settings);
        settings
    };
    let naming = |resource: &str| {
        let mut settings = settings.clone();
        settings["extenders"][0]["managedResources"] = json!([{"name": resource}]);
        settings
    };
    let cases = [
        ("unknown field", refused(|s| s["profiles"][1]["extenders"] = s["extenders"].clone())),
        ("unknown field", refused(|s| s["extenders"][0]["enableHttps"] = json!(true))),
        ("weight", refused(|s| s["extenders"][0]["weight"] = json!(0))),
        (
            "bind",
            refused(|s| {
                s["extenders"][0]["bindVerb"] = json!("bind");
                let other = s["extenders"][0].clone();
                s["extenders"].as_array_mut().expect("extenders").push(other);
            }),
        ),
        ("cpu", naming("cpu")),
        ("pods", naming("pods")),
        ("kubernetes.io/foo", naming("kubernetes.io/foo")),
    ];
    for (word, settings) in cases {
        let error = scene.start("refused", &settings).await.expect_err("it starts").to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
    scene.start("profiles", &settings).await?;
    scene.create(scripted::pod("of-the-other", "plain")).await?;
    scene.bound("of-the-other").await?;
    assert_eq!(scene.calls("filter", "of-the-other").len(), 1);
    let log = scene.scheduler().map(|scheduler| scheduler.log_tail(400)).unwrap_or_default();
    assert!(
        log.contains("because it has extenders configured"),
        "profiles with extenders never batch: {log}"
    );

    let resource = "example.com/module";
    let mut managed = scene.configuration("managed", &Extender::new(""))?;
    managed["extenders"][0]["managedResources"] = json!([{"name": resource, "ignoredByScheduler": true}]);
    scene.start("managed", &managed).await?;
    managed["extenders"][0]["managedResources"] = json!([{"name": resource}]);
    managed["profiles"][0]["schedulerName"] = json!("counted");
    scene.start("counted", &managed).await?;
    let marked = |name: &str, scheduler: &str, place: &str, quantity: &str| {
        let mut pod = scripted::pod(name, scheduler);
        let amount = json!({(resource): quantity});
        pod["spec"][place] = json!([{"name": place.to_lowercase(), "image": "a", "resources": {"requests": amount, "limits": amount}}]);
        pod
    };
    scene.create(marked("marked", "managed", "containers", "0")).await?;
    scene.create(marked("marked-some", "managed", "containers", "1")).await?;
    scene.create(marked("marked-init", "managed", "initContainers", "1")).await?;
    scene.create(scripted::pod("unmarked", "managed")).await?;
    scene.create(marked("counted-none", "counted", "containers", "0")).await?;
    for (name, calls) in
        [("marked", 1), ("marked-some", 1), ("marked-init", 1), ("unmarked", 0), ("counted-none", 1)]
    {
        scene.bound(name).await?;
        assert_eq!(scene.calls("filter", name).len(), calls, "{name}");
    }
    // Who does not want the resource ignored needs Nodes that have it.
    scene.create(marked("counted-some", "counted", "containers", "1")).await?;
    let why = scene.unscheduled("counted-some", "Unschedulable").await?;
    assert!(why.contains(&format!("Insufficient {resource}")), "{why}");
    Ok(())
}

/// A place is free when its Pod has ended or is gone, and not while it is being deleted. Where places become fewer nobody
/// is sent away.
#[tokio::test]
async fn places_are_freed_by_the_end_of_a_pod() -> TestResult {
    let mut scene = scripted::Scene::new("places", 1, scripted::willing).await?;
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let (pods, patch) = (scene.pods(), PatchParams::default());
    let places = async |count: &str| -> TestResult {
        let status = json!({"status": {"allocatable": {"pods": count}, "capacity": {"pods": count}}});
        nodes.patch_status("n0", &patch, &Patch::Merge(status)).await?;
        Ok(())
    };
    let end = async |name: &str, phase: &str| -> TestResult {
        pods.patch_status(name, &patch, &Patch::Merge(json!({"status": {"phase": phase}}))).await?;
        Ok(())
    };
    places("1").await?;
    scene.schedule(names::SCHEDULER, &Extender::new("")).await?;
    scene.create(scripted::pod("first", names::SCHEDULER)).await?;
    scene.bound("first").await?;
    let waits = async |name: &str| -> TestResult {
        scene.create(scripted::pod(name, names::SCHEDULER)).await?;
        let why = scene.unscheduled(name, "Unschedulable").await?;
        assert!(why.contains("1 Too many pods"), "{name}: {why}");
        Ok(())
    };
    waits("second").await?;
    end("first", "Failed").await?;
    scene.bound("second").await?;
    waits("third").await?;
    end("second", "Succeeded").await?;
    scene.bound("third").await?;
    waits("fourth").await?;
    pods.delete("third", &DeleteParams::default().grace_period(60)).await?;
    // Several attempts with their back-off would fit in here.
    wait::throughout("wait for a Pod on its way out", Duration::from_secs(4), async || {
        let node = pods.get("fourth").await.map(|pod| node_of(&pod)).map_err(|error| error.to_string())?;
        node.map_or(Ok(()), Err)
    })
    .await?;
    pods.delete("third", &DeleteParams::default().grace_period(0)).await?;
    scene.bound("fourth").await?;
    places("0").await?;
    waits("fifth").await?;
    let fourth = pods.get("fourth").await?;
    assert!(node_of(&fourth).is_some() && fourth.metadata.deletion_timestamp.is_none());
    Ok(())
}

/// Bursts of 20 Pods on 10 Nodes of one place each, four times: ten are bound, no two to one Node, and ten wait.
#[tokio::test]
async fn one_place_is_never_given_twice() -> TestResult {
    let mut scene = scripted::Scene::new("slots", 10, scripted::willing).await?;
    let (nodes, pods) = (Api::<Node>::all(scene.client.clone()), scene.pods());
    let place = json!({"status": {"allocatable": {"pods": "1"}, "capacity": {"pods": "1"}}});
    for number in 0..10 {
        nodes.patch_status(&format!("n{number}"), &PatchParams::default(), &Patch::Merge(&place)).await?;
    }
    scene.schedule(names::SCHEDULER, &Extender::new("")).await?;
    for round in 0..4 {
        let burst = (0..20).map(|n| scene.create(scripted::pod(&format!("p{round}-{n}"), names::SCHEDULER)));
        try_join_all(burst).await?;
        wait::until("ten that are bound and ten that wait", SOON, async || {
            let all = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let taken: Vec<String> = all.iter().filter_map(node_of).collect();
            assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len(), "{taken:?}");
            let waiting = all.iter().filter_map(scripted::scheduled).filter(|c| c.status == "False");
            let text = "0/10 nodes are available: 10 Too many pods.";
            let waiting = waiting.filter(|c| c.message.as_deref().is_some_and(|why| why.starts_with(text)));
            let counts = (taken.len(), waiting.count());
            if counts == (10, 10) { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await?;
        let gone = DeleteParams::default().grace_period(0);
        pods.delete_collection(&gone, &ListParams::default()).await?;
        wait::until("end of all Pods", SOON, async || {
            let left =
                pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items.len();
            if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
        })
        .await?;
    }
    Ok(())
}

/// docs/scheduler-facts.md names tests that are there, and all of this file.
#[test]
fn the_page_names_tests_that_exist() {
    let ours = [
        include_str!("e2e_scheduler_facts.rs"),
        include_str!("e2e_extender_protocol.rs"),
        include_str!("loops/mod.rs"),
    ];
    facts::assert_tests_exist("docs/scheduler-facts.md", &ours.concat());
}
