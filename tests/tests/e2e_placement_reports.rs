//! Field reports that concern placement; see docs/field-reports.md.

#![allow(clippy::expect_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use harness::{
    TestResult,
    kubectl::Kubectl,
    stage::{BaseSet, ModuleSet, PATIENCE, POLICY, Stage, StageError, describe_pod},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

fn described(pods: &[&Pod]) -> String {
    pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n")
}

/// `kubectl apply`: whether it went well, and all it said, warnings included.
async fn try_apply(kubectl: &Kubectl, yaml: &str) -> Result<(bool, String), harness::Failure> {
    let output = kubectl.output(&["apply", "-f", "-"], yaml).await?;
    let said = [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy).concat();
    Ok((output.status.success(), said))
}

/// BL-023: a `DaemonSet` that tolerates everything puts a Pod on every VNode. Each is set Failed with `NotAModule` at
/// once, calls no base and leaves the only place of the base to a module; its own back-off bounds the rate.
#[tokio::test]
async fn a_daemon_set_that_tolerates_everything_takes_no_place() -> TestResult {
    let stage = Stage::builder().bases(2).build().await?;
    let daemons = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "everywhere"},
        "spec": {
            "selector": {"matchLabels": {"app": "everywhere"}},
            "template": {
                "metadata": {"labels": {"app": "everywhere"}},
                "spec": {
                    "tolerations": [{"operator": "Exists"}],
                    "nodeSelector": {"basement.koupleless.io/stack": "java"},
                    "containers": [{"name": "main", "image": "busybox"}],
                },
            },
        },
    });
    stage.apply(&daemons.to_string()).await?;
    let vnodes = BTreeSet::from(["base-0", "base-1"].map(|base| stage.vnode_of(base)));
    let start = Instant::now();
    let mut bound = BTreeMap::<String, (String, Instant)>::new();
    let mut refused = BTreeMap::<String, Duration>::new();
    stage
        .wait_pods("app=everywhere", "four refused Pods on each VNode", PATIENCE, |pods| {
            for pod in pods {
                let (uid, status) = (pod.uid().unwrap_or_default(), pod.status.as_ref());
                let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else { continue };
                let (_, since) = bound.entry(uid.clone()).or_insert_with(|| (node, Instant::now()));
                if status.and_then(|status| status.phase.as_deref()) == Some("Failed") {
                    assert_eq!(status.and_then(|status| status.reason.as_deref()), Some("NotAModule"));
                    let held = since.elapsed();
                    refused.entry(uid).or_insert(held);
                }
            }
            let on = |vnode: &String| bound.values().filter(|(node, _)| node == vnode).count();
            let done = refused.len() >= 8 && vnodes.iter().all(|vnode| on(vnode) >= 4);
            if done { Ok(()) } else { Err(described(pods)) }
        })
        .await?;
    assert!(bound.values().all(|(node, _)| vnodes.contains(node)), "{bound:?}");
    let longest = refused.values().max().copied().unwrap_or_default();
    assert!(longest < Duration::from_secs(3), "a foreign Pod held its place for {longest:?}");
    // The controller of a DaemonSet waits 1 s, 2 s, 4 s, ... between the later Pods of a Node.
    assert!(start.elapsed() > Duration::from_secs(2), "{} Pods in {:?}", bound.len(), start.elapsed());
    assert!(bound.len() <= 12, "{} Pods in {:?}", bound.len(), start.elapsed());

    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(2).yaml()).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    for base in stage.all_bases() {
        let called: Vec<_> = base.journal()?.operations();
        assert!(called.iter().all(|call| call.module() == Some("shop")), "{}: {called:?}", base.pod());
    }
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    Ok(())
}

/// BL-036: a base of a `StatefulSet` comes back under its old name with another version and capacity. Nothing of the old
/// one counts: the module of the old line waits, two of the new line are placed, and the VNode is another object.
#[tokio::test]
async fn a_base_that_returns_under_its_name_is_judged_anew() -> TestResult {
    let larger = "limits:\n- bases: {version: \">=2.2\"}\n  podsPerBase: 2\nscoring:";
    let policy = POLICY.replace("scoring:", larger);
    let stage = Stage::builder().base_set(BaseSet::stateful("b", "2.1.0", 1)).policy(&policy).build().await?;
    let url = |name: &str| stage.artifacts.module(name, "1.0.0").url();
    stage.apply(&ModuleSet::deployment("old", "1.0.0", &url("old")?).base_range("<2.2").yaml()).await?;
    stage.wait_pods_ready("app=old", 1).await?;
    let vnode = stage.vnode_of("b-0");
    let before = stage.nodes().get(&vnode).await?;
    let first = stage.base("b-0")?.uid().to_owned();

    stage.apply_bases(&BaseSet::stateful("b", "2.2.0", 1)).await?;
    let after = stage
        .wait_vnodes("the VNode of the new base", PATIENCE, |nodes| {
            let new = nodes.iter().find(|node| {
                let uid = node.annotations().get("stowage.dev/base-uid");
                uid.is_some_and(|uid| *uid != first)
            });
            new.map(|node| (*node).clone()).ok_or_else(|| format!("{} VNodes", nodes.len()))
        })
        .await?;
    assert_eq!((after.name_any(), before.name_any()), (vnode.clone(), vnode.clone()));
    assert_ne!(after.uid(), before.uid(), "the Node object is another");
    stage.wait_vnodes_ready(1).await?;
    let came = Instant::now();
    let new = |name: &str| -> Result<String, StageError> {
        Ok(ModuleSet::deployment(name, "1.0.0", &url(name)?).base_range(">=2.2").yaml())
    };
    stage.apply(&format!("{}\n---\n{}", new("one")?, new("two")?)).await?;
    stage.wait_pods_ready("app=one", 1).await?;
    stage.wait_pods_ready("app=two", 1).await?;
    assert!(came.elapsed() < Duration::from_secs(15), "placed after {:?}", came.elapsed());
    stage.wait_bases_hold(&[("b-0", &["one:1.0.0", "two:1.0.0"])]).await?;
    stage.wait_refused("app=old", "0/2 nodes").await?;

    let node = stage.nodes().get(&vnode).await?;
    assert_eq!(node.labels()["basement.koupleless.io/version"], "2.2.0");
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("pods"));
    assert_eq!(capacity.map(|pods| pods.0.as_str()), Some("2"));
    let inventory = &node.annotations()["stowage.dev/inventory"];
    assert!(!inventory.contains("\"old\"") && inventory.contains("\"one\""), "{inventory}");
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-042: every base holds the module, so a rollout with surge has nowhere to go. The default strategy is warned about
/// when it is applied, and the waiting Pod says what is in its way; the strategy of the samples ends.
#[tokio::test]
async fn a_rollout_without_a_spare_base_is_warned_about_or_ends() -> TestResult {
    let stage = Stage::builder().bases(3).pods_per_base(8).build().await?;
    let release = |version: &str| -> Result<ModuleSet, StageError> {
        let url = stage.artifacts.module("shop", version).url()?;
        Ok(ModuleSet::deployment("shop", version, &url).replicas(3))
    };
    let with_default_strategy = |version: &str| -> Result<String, harness::Failure> {
        let mut deployment: serde_json::Value = serde_json::from_str(&release(version)?.yaml())?;
        deployment["spec"].as_object_mut().expect("a spec").remove("strategy");
        Ok(deployment.to_string())
    };
    let kubectl = stage.kubectl()?;
    let (applied, said) = try_apply(&kubectl, &with_default_strategy("1.0.0")?).await?;
    assert!(applied && said.contains("Warning:") && said.contains("maxUnavailable comes to 0"), "{said}");
    stage.wait_pods_ready("app=shop", 3).await?;

    let (applied, said) = try_apply(&kubectl, &with_default_strategy("2.0.0")?).await?;
    assert!(applied && said.contains("Warning:") && said.contains("use maxSurge 0"), "{said}");
    let waiting = wait::until("the surge Pod's reason", PATIENCE, async || {
        let reasons = stage.wait_unschedulable("app=shop", 1).await?;
        let said = reasons.iter().any(|text| text.contains("version of module shop is still on the base"));
        if said { Ok(()) } else { Err(StageError::Broken(format!("{reasons:?}"))) }
    });
    waiting.await?;
    stage.wait_modules(&[("shop:1.0.0", 3)]).await?;

    let (applied, said) =
        try_apply(&kubectl, &release("2.0.0")?.max_unavailable(json!("34%")).yaml()).await?;
    assert!(applied && !said.contains("Warning:"), "{said}");
    kubectl.run(&["rollout", "status", "deployment/shop", "--timeout=90s"]).await?;
    stage.wait_modules(&[("shop:2.0.0", 3)]).await?;
    stage.wait_pods_ready("app=shop", 3).await?;
    stage.assert_no_double_install()?;
    Ok(())
}

/// BL-131: quantities and units that nobody can read, in Pods, annotations of modules and bases, and the policy: each is
/// named where it stands, and everything else goes on.
#[tokio::test]
async fn a_bad_quantity_harms_nothing_else() -> TestResult {
    let odd = BaseSet::deployment("odd", "2.1.0", 1)
        .annotation("stowage.dev/provides", "jdk=17Gi GB, =, spring-boot")
        .annotation("stowage.dev/arklet-port", "1238Mi");
    let stage = Stage::builder().bases(2).pods_per_base(8).build().await?;
    stage.apply_bases(&odd).await?;
    let kubectl = stage.kubectl()?;
    let url = |name: &str| stage.artifacts.module(name, "1.0.0").url();
    let set = |name: &str| -> Result<ModuleSet, StageError> {
        Ok(ModuleSet::deployment(name, "1.0.0", &url(name)?))
    };

    // The API server refuses what is no quantity and what is no field.
    for (resource, quantity) in [("memory", "32i"), ("cpu", "800x"), ("memory", "1GI")] {
        let resources = json!({"requests": {(resource): quantity}});
        let (applied, said) = try_apply(&kubectl, &set("bad")?.field("resources", resources).yaml()).await?;
        assert!(!applied && said.contains("quantit"), "{said}");
    }
    let misspelt = set("bad")?.field("resource", json!({"requests": {"mem": "1GI"}})).yaml();
    let (applied, said) = try_apply(&kubectl, &misspelt).await?;
    assert!(!applied && said.contains("unknown field") && said.contains("containers[0].resource"), "{said}");

    // What only we read is named in the Pod's reason.
    for (name, annotation, value) in [
        ("needs", "stowage.dev/metaspace", "32i"),
        ("range", "stowage.dev/base-version", "[2.1"),
        ("wants", "stowage.dev/requires", "jdk >=17Gi <"),
    ] {
        stage.apply(&set(name)?.annotation(annotation, value).yaml()).await?;
        let text = format!("annotation {annotation} of the Pod cannot be read");
        stage.wait_refused(&format!("app={name}"), &text).await?;
    }
    // A module may ask for what the API server lets pass and no base has.
    let huge = set("huge")?.field("resources", json!({"requests": {"memory": "4Pi"}})).yaml();
    stage.apply(&huge).await?;
    stage.wait_refused("app=huge", "Insufficient memory").await?;

    // A policy with units that do not exist is refused with each place.
    let bad = "defaults: {reserved: {memory: 32i, cpu: 800x}, podsPerBase: 8, versionsPerModule: 1}";
    stage.rewrite_policy(&POLICY.replace("defaults: {podsPerBase: 1, versionsPerModule: 1}", bad))?;
    for program in [&stage.extender, stage.agent(0)?] {
        wait::until("refusal of the policy", PATIENCE, async || {
            let log = program.log_tail(200);
            let line =
                log.lines().find(|line| line.contains("last good one stays in force")).map(str::to_owned);
            match line {
                Some(line) if line.contains("32i") && line.contains("800x") => Ok(()),
                other => Err(other.unwrap_or(log)),
            }
        })
        .await?;
    }

    // All the others run, and the base that nobody can call says why it is no VNode.
    stage.apply(&set("shop")?.replicas(2).yaml()).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    let odd = stage.wait_bases_ready(3).await?.into_iter().find(|pod| pod.name_any().starts_with("odd-"));
    let odd = odd.expect("the odd base").name_any();
    wait::until("a word about the odd base", PATIENCE, async || {
        let log = stage.agent(0)?.log_tail(1000);
        let said = log.lines().any(|line| line.contains(&odd) && line.contains("1238Mi"));
        if said { Ok(()) } else { Err(StageError::Broken(log)) }
    })
    .await?;
    assert_eq!(stage.wait_vnodes_ready(2).await?.len(), 2);
    assert!(stage.extender.exit_status().is_none() && stage.agent(0)?.exit_status().is_none());
    Ok(())
}
