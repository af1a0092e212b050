//! Who may put what where: policy rules as kube-scheduler shows them, the agent against those who pass the scheduler by,
//! the audit log, and the offline tool on what kubectl prints.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at what it did not expect"
)]

use std::{path::Path, time::Duration};

use harness::{
    TestResult,
    namespace::Namespace,
    program::Program,
    stage::{BaseSet, ModuleSet, PATIENCE, POLICY, Stage, StageError, describe_pod},
    wait,
    workdir::Workdir,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::process::Command;

/// Bases of team A for namespaces that begin with the stage's own name; `NAMESPACE` is filled in.
fn team_policy(namespace: &str) -> String {
    let access = format!(
        "kind: PlacementPolicy\naccess: [{{bases: {{labels: {{team: a}}}}, namespaces: [{namespace}]}}]"
    );
    POLICY.replacen("kind: PlacementPolicy", &access, 1)
}

/// A Pod as JSON, in another namespace, perhaps bound by its author.
fn pod_in(
    set: &ModuleSet,
    name: &str,
    namespace: &str,
    node: Option<&str>,
) -> Result<Pod, serde_json::Error> {
    let mut pod: Value = serde_json::from_str(&set.pod_yaml(name))?;
    pod["metadata"]["namespace"] = json!(namespace);
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    serde_json::from_value(pod)
}

/// A namespace beside the stage's own, whose Pods the same bases may take.
async fn tenant(stage: &Stage) -> Result<Namespace, StageError> {
    let scope = stage.default_ns();
    Ok(stage.cluster()?.namespace_in_scope(&format!("{scope}-b"), scope, &[]).await?)
}

/// The lines of an audit log so far.
fn audited(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits for a line with all of these values.
async fn wait_audited(path: &Path, wanted: &[(&str, &str)]) -> Result<Value, StageError> {
    let found = wait::until(&format!("{wanted:?} in the audit log"), PATIENCE, async || {
        let lines = audited(path);
        let matches = |line: &&Value| {
            wanted.iter().all(|(pointer, value)| line.pointer(pointer).and_then(Value::as_str) == Some(value))
        };
        lines.iter().find(matches).cloned().ok_or_else(|| format!("{lines:#?}"))
    })
    .await?;
    Ok(found)
}

/// The waiting reason and message of a Pod's only container.
fn waits(pod: &Pod) -> Option<(String, String)> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((waiting.reason.clone()?, waiting.message.clone().unwrap_or_default()))
}

async fn wait_waiting(pods: &Api<Pod>, name: &str, reason: &str, text: &str) -> Result<(), StageError> {
    wait::object(pods, name, reason, PATIENCE, |pod| {
        pod.and_then(waits).is_some_and(|(is, says)| is == reason && says.contains(text))
    })
    .await?;
    Ok(())
}

/// Case 46, BL-044: a Pod of namespace B with `nodeName` set to A's base: nothing is asked of the base, the Pod says why, and
/// the audit log holds the refusal; what A does is logged too, call by call, and no URL is.
#[tokio::test]
async fn the_agent_refuses_who_passes_the_scheduler_by() -> TestResult {
    let folder = Workdir::new("audit")?;
    let log = folder.path().join("audit.log");
    let team = BaseSet::stateful("team-a", "2.1.0", 1).label("team", "a");
    let stage = Stage::builder()
        .bases(0)
        .base_set(team)
        .agent_flag(&format!("--audit-log={}", log.display()))
        .build()
        .await?;
    stage.rewrite_policy(&team_policy(stage.default_ns()))?;
    let other = tenant(&stage).await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let shop = ModuleSet::deployment("shop", "1.0.0", &url);
    let vnode = stage.vnode_of("team-a-0");

    let pods: Api<Pod> = Api::namespaced(stage.client(), other.name());
    wait::until("the policy in the agent", PATIENCE, async || {
        let generation = stage.agent(0)?.metric("policy_generation", &[]).await?;
        if generation >= 2.0 { Ok(()) } else { Err(StageError::Broken(format!("generation {generation}"))) }
    })
    .await?;
    pods.create(&PostParams::default(), &pod_in(&shop, "intruder", other.name(), Some(&vnode))?).await?;
    let reason = "the policy does not let this namespace use the base";
    wait_waiting(&pods, "intruder", "PolicyRejected", reason).await?;
    let line = wait_audited(&log, &[("/result", "refused"), ("/actor/name", "intruder")]).await?;
    let uid = pods.get("intruder").await?.uid().expect("a UID");
    assert_eq!(line["actor"]["uid"], json!(uid));
    assert_eq!(line["actor"]["namespace"], json!(other.name()));
    assert_eq!((&line["module"], &line["version"]), (&json!("shop"), &json!("1.0.0")));
    assert_eq!((&line["base"]["pod"], &line["base"]["node"]), (&json!("team-a-0"), &json!(vnode)));
    assert_eq!((&line["reason"], &line["message"]), (&json!("Access"), &json!(reason)));
    if stage.is_simulated() {
        assert_eq!(stage.base("team-a-0")?.journal()?.operations().len(), 0, "no call to the base");
    }
    pods.delete("intruder", &DeleteParams::default()).await?;
    wait::gone(&pods, "intruder", PATIENCE).await?;

    stage.apply(&shop.yaml()).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    let ok = wait_audited(&log, &[("/operation", "install"), ("/result", "ok")]).await?;
    assert!(ok["actor"]["owner"].as_str().is_some_and(|owner| owner.starts_with("ReplicaSet/shop-")), "{ok}");
    assert!(ok["millis"].is_u64(), "{ok}");
    stage.kubectl()?.run(&["delete", "deployment", "shop", "--wait=false"]).await?;
    stage.wait_no_pods("app=shop").await?;
    wait_audited(&log, &[("/operation", "uninstall"), ("/result", "ok"), ("/module", "shop")]).await?;
    let told: Vec<String> = audited(&log)
        .iter()
        .map(|line| {
            format!(
                "{} {}",
                line["operation"].as_str().unwrap_or("-"),
                line["result"].as_str().unwrap_or("-")
            )
        })
        .collect();
    assert_eq!(told, ["install refused", "install sent", "install ok", "uninstall sent", "uninstall ok"]);
    // Forced past the limit of the base, and forced without being a module.
    let (own, of_ours) = (stage.default_ns(), stage.api::<Pod>());
    let create = async |pod: &Pod| of_ours.create(&PostParams::default(), pod).await;
    create(&pod_in(&shop, "first", own, Some(&vnode))?).await?;
    wait_audited(&log, &[("/result", "ok"), ("/actor/name", "first")]).await?;
    create(&pod_in(&shop, "second", own, Some(&vnode))?).await?;
    let full = wait_audited(&log, &[("/result", "refused"), ("/actor/name", "second")]).await?;
    assert_eq!((&full["reason"], &full["module"]), (&json!("BaseFull"), &json!("shop")));
    let mut plain = pod_in(&shop, "plain", own, Some(&vnode))?;
    let spec = plain.spec.as_mut().expect("a spec");
    spec.containers.iter_mut().for_each(|container| container.env = None);
    create(&plain).await?;
    let none = wait_audited(&log, &[("/result", "refused"), ("/actor/name", "plain")]).await?;
    assert_eq!((&none["reason"], &none["module"]), (&json!("NotAModule"), &Value::Null), "{none}");
    let text = std::fs::read_to_string(&log)?;
    assert!(!text.contains("http://"), "{text}");
    Ok(())
}

/// Two namespaces, same module and version, `podsPerBase: 8`: never on one base together, and deleting one leaves the
/// other's alone.
#[tokio::test]
async fn two_namespaces_never_share_a_module_on_one_base() -> TestResult {
    let stage = Stage::builder().bases(2).pods_per_base(8).build().await?;
    let other = tenant(&stage).await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let shop = ModuleSet::deployment("shop", "1.0.0", &url);
    let (ours, theirs): (Api<Pod>, Api<Pod>) = (stage.api(), Api::namespaced(stage.client(), other.name()));
    for (pods, namespace) in [(&ours, stage.default_ns()), (&theirs, other.name())] {
        for number in 0..2 {
            let pod = pod_in(&shop, &format!("shop-{number}"), namespace, None)?;
            pods.create(&PostParams::default(), &pod).await?;
        }
    }
    let all = async || -> Result<Vec<Pod>, StageError> {
        let selector = ListParams::default().labels("app=shop");
        let (mut all, more) = (ours.list(&selector).await?.items, theirs.list(&selector).await?.items);
        all.extend(more);
        Ok(all)
    };
    let ready = |pods: &[Pod]| pods.iter().filter(|pod| harness::kubelet::is_ready(pod)).count();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let apart = |pods: &[Pod]| {
        let mut nodes: Vec<String> = pods.iter().filter_map(node).collect();
        let bound = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(
            nodes.len(),
            bound,
            "two on one base: {:?}",
            pods.iter().map(describe_pod).collect::<Vec<_>>()
        );
    };
    wait::until("two of four Ready, two refused", PATIENCE, async || {
        let pods = all().await?;
        apart(&pods);
        let refused = pods.iter().filter_map(|pod| harness::stage::pod_condition(pod, "PodScheduled"));
        let texts: Vec<String> = refused
            .filter(|condition| condition.status == "False")
            .filter_map(|c| c.message.clone())
            .collect();
        let says =
            texts.iter().all(|text| text.contains("2 the base already has module shop in this version"));
        if ready(&pods) == 2 && texts.len() == 2 && says {
            Ok(())
        } else {
            Err(StageError::Broken(format!("{texts:?}")))
        }
    })
    .await?;
    // Who waits goes first, so that nothing takes the place of what is deleted then.
    for pod in all().await?.iter().filter(|pod| node(pod).is_none()) {
        let pods: &Api<Pod> = if pod.namespace().as_deref() == Some(other.name()) { &theirs } else { &ours };
        pods.delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    let running = all().await?;
    let [gone, stays] = running.as_slice() else { panic!("{} Pods run", running.len()) };
    let of =
        |pod: &Pod| stage.all_bases().into_iter().find(|base| Some(stage.vnode_of(base.pod())) == node(pod));
    let (left, kept) = (of(gone).expect("its base"), of(stays).expect("its base"));
    let pods: &Api<Pod> = if gone.namespace().as_deref() == Some(other.name()) { &theirs } else { &ours };
    pods.delete(&gone.name_any(), &DeleteParams::default()).await?;
    stage.wait_bases_hold(&[(left.pod(), &[]), (kept.pod(), &["shop:1.0.0"])]).await?;
    if stage.is_simulated() {
        assert_eq!(kept.journal()?.uninstalls("shop"), 0, "the other's module was never touched");
    }
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-122: `file:` and link-local URLs are refused by default, by the scheduler and by the agent, and no base is asked.
#[tokio::test]
async fn urls_of_files_and_of_metadata_services_are_refused() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(8).build().await?;
    let reason = "the policy does not allow the image URL of container shop";
    let vnode = stage.vnode_of("base-0");
    let nowhere = ("InvalidImage", "image is a URL without a host");
    let refused = ("PolicyRejected", reason);
    let urls = [
        ("file:///etc/passwd", refused),
        ("jar:file:/etc/passwd!/", nowhere),
        ("http://169.254.169.254/shop.jar", refused),
        ("http://[fe80::1]/shop.jar", refused),
    ];
    for (number, (url, (waiting, says))) in urls.into_iter().enumerate() {
        let name = format!("odd-{number}");
        let shop = ModuleSet::deployment("shop", "1.0.0", url).named(&name);
        stage.apply(&shop.yaml()).await?;
        stage.wait_refused(&format!("app={name}"), &format!("1 {reason}")).await?;
        stage.kubectl()?.run(&["delete", "deployment", &name, "--wait=false"]).await?;
        let forced = format!("forced-{number}");
        let pod = pod_in(&shop, &forced, stage.default_ns(), Some(&vnode))?;
        stage.api::<Pod>().create(&PostParams::default(), &pod).await?;
        wait_waiting(&stage.api(), &forced, waiting, says).await?;
    }
    if stage.is_simulated() {
        assert_eq!(stage.base("base-0")?.journal()?.operations().len(), 0);
    }
    Ok(())
}

/// Compatibility, context path and metaspace, with the words that `kubectl describe` shows; what lacks nothing runs.
#[tokio::test]
async fn rules_speak_through_the_scheduler() -> TestResult {
    let compatibility = "kind: PlacementPolicy\ncompatibility:\n\
        - {module: ledger, requires: {provides: [{name: jdk, versions: '>=99'}]}}\n\
        - {module: cart, requires: {modules: [{name: shop, versions: '>=2'}]}}\n\
        - {module: shop, conflicts: {modules: [{name: 'legacy-*'}]}}";
    let policy = POLICY.replace("podsPerBase: 1", "podsPerBase: 8").replacen(
        "kind: PlacementPolicy",
        compatibility,
        1,
    );
    let bases = BaseSet::stateful("web", "2.1.0", 1)
        .annotation("stowage.dev/provides", "jdk=17.0.2, spring-boot=2.7.15")
        .annotation("stowage.dev/context-path", "/own");
    let stage = Stage::builder().bases(0).base_set(bases).policy(&policy).build().await?;
    let set = |name: &str| -> Result<ModuleSet, StageError> {
        let url = stage.artifacts.module(name, "1.0.0").url()?;
        Ok(ModuleSet::deployment(name, "1.0.0", &url))
    };
    let shop = set("shop")?
        .annotation("stowage.dev/context-path", "/shop")
        .annotation("stowage.dev/requires", "jdk >=17, spring-boot >=2.7 <3");
    stage.apply(&shop.yaml()).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    let refused: [(&str, ModuleSet, &str); 7] = [
        ("ledger", set("ledger")?, "the base does not provide what module ledger needs"),
        ("cart", set("cart")?, "a module that module cart needs is not active on the base"),
        ("legacy-pay", set("legacy-pay")?, "a module on the base conflicts with module legacy-pay"),
        (
            "same-path",
            set("same-path")?.annotation("stowage.dev/context-path", "shop/"),
            "the context path of module same-path is taken on the base",
        ),
        (
            "base-path",
            set("base-path")?.annotation("stowage.dev/context-path", "/own"),
            "the context path of module base-path is taken on the base",
        ),
        (
            "wish",
            set("wish")?.annotation("stowage.dev/requires", "spring-boot >=3"),
            "the base does not provide what the Pod requires",
        ),
        (
            "large",
            set("large")?.annotation("stowage.dev/metaspace", "1Ei"),
            "the base has too little metaspace left",
        ),
    ];
    let yaml: Vec<String> = refused.iter().map(|(_, set, _)| set.yaml()).collect();
    stage.apply(&yaml.join("\n---\n")).await?;
    for (name, _, reason) in &refused {
        let text = stage.wait_refused(&format!("app={name}"), &format!("1 {reason}")).await?;
        assert!(!text.contains('%'), "{name}: {text}");
    }
    stage.wait_bases_hold(&[("web-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// An annotation that cannot be read keeps the Pod off every base, and the reason names it.
#[tokio::test]
async fn a_malformed_annotation_is_named() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(8).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let wrong = [
        ("stowage.dev/requires", "jdk >="),
        ("stowage.dev/conflicts", "a,,b"),
        ("stowage.dev/context-path", "a b"),
        ("stowage.dev/metaspace", "much"),
        ("stowage.dev/base-version", "[2,1]"),
    ];
    for (number, (annotation, value)) in wrong.into_iter().enumerate() {
        let set = ModuleSet::deployment("shop", "1.0.0", &url).named(&format!("odd-{number}"));
        stage.apply(&set.annotation(annotation, value).yaml()).await?;
    }
    for (number, (annotation, _)) in wrong.into_iter().enumerate() {
        let reason = format!("annotation {annotation} of the Pod cannot be read");
        stage.wait_refused(&format!("app=odd-{number}"), &reason).await?;
    }
    stage.wait_modules(&[]).await?;
    Ok(())
}

/// `stowage-policy explain` and `simulate` on what `kubectl get nodes,pods -o json` prints.
#[tokio::test]
async fn the_offline_tool_reads_what_kubectl_prints() -> TestResult {
    let folder = Workdir::new("snapshot")?;
    let stage = Stage::builder().bases(2).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    let pods = stage.wait_pods_ready("app=shop", 1).await?;
    let key = format!("{}/{}", stage.default_ns(), pods[0].name_any());
    let on = pods[0].spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("a Node");
    let snapshot = stage.kubectl()?.run(&["get", "nodes,pods", "--output=json"]).await?;
    let snapshot = folder.write("snapshot.json", &snapshot)?;
    let now = stage.policy_file().display().to_string();

    let arguments = ["explain", "--policy", &now, "--pod", &key, "--output", "json", "-"];
    let (code, text) = offline(&arguments, Some(&snapshot)).await?;
    assert_eq!(code, Some(0), "{text}");
    let told: Value = serde_json::from_str(&text)?;
    assert_eq!(told["boundTo"], json!(on));
    let nodes = told["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 2, "{told:#}");
    assert!(
        nodes.iter().all(|node| node["fits"] == true && node["rules"].as_array().map(Vec::len) == Some(12))
    );
    assert!(nodes.iter().all(|node| node["terms"][0]["term"] == "spread"), "{told:#}");
    let (_, table) = offline(&["explain", "--pod", &key, "-"], Some(&snapshot)).await?;
    assert!(table.starts_with(&format!("Pod {key}, bound to {on}; fits on 2 of 2 virtual nodes")), "{table}");

    let closed = team_policy("nobody-at-all");
    let closed = folder.write("closed.yaml", &closed)?.display().to_string();
    let arguments = ["simulate", "--before", &now, "--after", &closed, "-o", "json", "-"];
    let (code, text) = offline(&arguments, Some(&snapshot)).await?;
    assert_eq!(code, Some(1), "{text}");
    let told: Value = serde_json::from_str(&text)?;
    assert_eq!(told["summary"]["stranded"], 1, "{told:#}");
    assert_eq!(told["pods"][&key]["rejected"], json!({"Access": 2}));
    assert_eq!(told["bases"][&on]["displaced"], json!([key]));
    let (code, text) =
        offline(&["simulate", "--before", &now, "--after", &now, "-"], Some(&snapshot)).await?;
    assert_eq!(code, Some(0), "{text}");
    Ok(())
}

/// Runs `stowage-policy` with a file as standard input; returns its exit code and what it says.
async fn offline(arguments: &[&str], input: Option<&Path>) -> Result<(Option<i32>, String), StageError> {
    let broken = |error: &dyn std::fmt::Display| StageError::Broken(format!("stowage-policy: {error}"));
    let program = Program::find("stowage-policy").map_err(|error| broken(&error))?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(input) = input {
        command.stdin(std::fs::File::open(input).map_err(|error| broken(&error))?);
    }
    let limited = tokio::time::timeout(Duration::from_mins(1), command.output()).await;
    let output = limited.map_err(|error| broken(&error))?.map_err(|error| broken(&error))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}
