//! Installs that fail: what is tried again, what is not, what people see, and how the loop of controllers is bounded.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod bounds;
mod doubt;
mod found;
mod vpods;

use std::{collections::BTreeSet, time::Duration};

use harness::{
    TestResult,
    arklet::{Fault, On, Throwable},
    artifact::{ModuleJar, Trouble},
    kubelet::is_ready,
    stage::{ModuleSet, PATIENCE, Stage, describe_pod},
    wait,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::DeleteParams};
use policy::contract::{Inventory, names};
use vpods::*;

/// BL-047: the download fails before the base lists anything. The Pod says so with the base's words, stays Pending, is
/// tried again, and runs as soon as the server of jars is well.
#[tokio::test]
async fn a_download_that_fails_is_tried_again() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.artifacts.always(Some("shop-1.0.0.jar"), Trouble::Status(503));
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    let waits = pod_waits(&stage, "shop", "InstallBackOff").await?;
    let message = waiting(&waits)[0].message.clone().unwrap_or_default();
    assert!(message.contains("503") && message.contains("attempt 1 of 5"), "{message}");
    assert_eq!((phase(&waits), status_of(&waits, "module.koupleless.io/installed")), ("Pending", "False"));
    assert!(!is_ready(&waits));
    assert!(event(&stage, "shop", "InstallFailed").await?.contains("503"));

    stage.artifacts.heal();
    pod_ready(&stage, "shop").await?;
    if stage.is_simulated() {
        assert!((2..=5).contains(&stage.installs("shop")?), "{}", stage.installs("shop")?);
        stage.assert_no_double_install()?;
    }
    Ok(())
}

/// BL-054: the base answers 503 for a while. The Pod is tried again and again with growing pauses, also when the agent
/// is started anew in the middle, and runs when the base is well, without anybody's help.
#[tokio::test]
async fn a_base_that_refuses_for_a_while_gets_its_module_after_a_restart_of_the_agent() -> TestResult {
    let mut stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let url = jar(&stage, "shop", "1.0.0")?;
    let base = stage.base("base-0")?;
    let (journal, faults) = (base.journal()?, base.faults()?);
    // A 503 that stands in place of the answer: the module is not installed either.
    faults
        .always(On::install(), Fault::MainThrows(Throwable::new("java.lang.IllegalStateException", "busy")));
    faults.always(On::install(), Fault::Status(503));
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    journal.until(SOON, |journal| journal.installs("shop") >= 2).await?;
    pod_waits(&stage, "shop", "InstallBackOff").await?;

    let agent = stage.agents().first_mut().expect("an agent");
    agent.restart()?;
    agent.wait_live().await?;
    let before = journal.installs("shop");
    journal.until(SOON, |journal| journal.installs("shop") > before).await?;
    faults.clear();
    pod_ready(&stage, "shop").await?;
    let tries = journal.installs("shop");
    assert!(tries <= 8, "{tries} installs");
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// BL-055: a main that fails again and again is a transient failure until its limit: then the Pod is Failed with the
/// root cause.
#[tokio::test]
async fn attempts_are_counted_and_end() -> TestResult {
    let policy = policy(&[("attempts: 5", "attempts: 3"), ("initial: 1s", "initial: 200ms")]);
    let stage = Stage::builder().bases(1).policy(&policy).build().await?;
    let url = stage.artifacts.module("shop", "1.0.0").fails("java.lang.IllegalStateException: no database");
    let set = ModuleSet::deployment("shop", "1.0.0", &url.url()?);
    stage.apply(&set.pod_yaml("shop")).await?;
    let (reason, message) = pod_failed(&stage, "shop").await?;
    assert_eq!(reason, "StartFailed");
    assert!(message.contains("no database"), "{message}");
    if stage.is_simulated() {
        assert_eq!(stage.installs("shop")?, 3);
    }
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    Ok(())
}

/// BL-048: what cannot get better by itself ends Failed after one try: code and root cause stand in the Pod and in an
/// Event, and nothing of it is left on the base.
#[tokio::test]
async fn permanent_failures_end_failed_with_their_root_cause() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(10).build().await?;
    let artifacts = &stage.artifacts;
    let denied = jar(&stage, "denied", "1.0.0")?;
    artifacts.always(Some("denied-1.0.0.jar"), Trouble::Status(401));
    let text = artifacts.module("nojar", "1.0.0").with(ModuleJar::without_manifest).url()?;
    let class = artifacts.module("class", "1.0.0").fails("java.lang.NoClassDefFoundError: com/example/Cart");
    let class = class.url()?;
    let other = artifacts.module("other", "7.0.0").named("differs-1.0.0.jar").url()?;
    let cases = [
        ("absent", artifacts.url("absent.jar"), "ArtifactNotFound", "absent.jar"),
        ("denied", denied, "ArtifactDenied", "401"),
        ("scheme", "oss://bucket/shop.jar".to_owned(), "BadUrl", "oss"),
        ("nojar", text, "NotAModuleJar", "MANIFEST.MF"),
        ("class", class, "ClassError", "com/example/Cart"),
        ("differs", other, "IdentityDiffers", "other:7.0.0"),
    ];
    for (name, url, ..) in &cases {
        stage.apply(&ModuleSet::deployment(name, "1.0.0", url).pod_yaml(name)).await?;
    }
    for (name, _, code, cause) in &cases {
        let (reason, message) = pod_failed(&stage, name).await?;
        assert!(reason == *code, "{name}: {reason}: {message}");
        assert!(message.contains(cause) && message.contains(name), "{name}: {message}");
        let told = event(&stage, name, "InstallFailed").await?;
        assert!(told.contains(cause), "{name}: {told}");
        event(&stage, name, "Failed").await?;
        if stage.is_simulated() {
            assert_eq!(stage.installs(name)?, 1, "{name}");
        }
    }
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    Ok(())
}

/// A module group with one module that fails for good: the others are uninstalled before the Pod is Failed, because
/// Failed frees the slot.
#[tokio::test]
async fn a_group_with_a_failing_module_leaves_nothing() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let (shop, nowhere) = (jar(&stage, "shop", "1.0.0")?, stage.artifacts.url("nowhere.jar"));
    let group = ModuleSet::deployment("shop", "1.0.0", &shop).module("cart", "1.0.0", &nowhere);
    stage.apply(&group.pod_yaml("shop")).await?;
    let (reason, message) = pod_failed(&stage, "shop").await?;
    assert_eq!(reason, "ArtifactNotFound");
    assert!(message.contains("cart"), "{message}");
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    if stage.is_simulated() {
        let deeds = deeds(&*stage.base("base-0")?)?;
        assert_eq!(deeds, ["installBiz shop:1.0.0", "installBiz cart:1.0.0", "uninstallBiz shop:1.0.0"]);
    }
    Ok(())
}

/// While a module of a group is tried again the good ones stay, and only the failing one is tried.
#[tokio::test]
async fn a_group_keeps_its_good_modules_while_one_is_tried_again() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let (shop, cart) = (jar(&stage, "shop", "1.0.0")?, jar(&stage, "cart", "1.0.0")?);
    stage.artifacts.next(2, Some("cart-1.0.0.jar"), Trouble::Status(503));
    let group = ModuleSet::deployment("shop", "1.0.0", &shop).module("cart", "1.0.0", &cart);
    stage.apply(&group.pod_yaml("shop")).await?;
    pod_waits(&stage, "shop", "InstallBackOff").await?;
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    pod_ready(&stage, "shop").await?;
    if stage.is_simulated() {
        assert_eq!((stage.installs("shop")?, stage.installs("cart")?), (1, 3));
        assert_eq!(stage.uninstalls("shop")?, 0);
    }
    Ok(())
}

/// A `ReplicaSet` replaces Failed Pods at once: after failures on three bases the agent holds the replacements, keeps the
/// newest three Failed Pods, remembers all that over its own restart, and lets go when somebody asks for a retry.
#[tokio::test]
async fn replacements_of_a_failing_template_are_held() -> TestResult {
    // Longer than this test waits: what goes on, goes on because somebody asked.
    let policy = policy(&[("install: {", "install: {templateBackoff: {initial: 5m, max: 10m}, ")]);
    let mut stage = Stage::builder().bases(5).policy(&policy).build().await?;
    let nowhere = stage.artifacts.url("nowhere.jar");
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &nowhere).yaml()).await?;
    let held = async |stage: &Stage| {
        let what = "a Pod that is held and three Failed ones";
        stage
            .wait_pods("app=shop", what, SOON, |pods| {
                let held = pods.iter().any(|pod| phase(pod) == "Pending" && waits_for(pod, "InstallBackOff"));
                let failed = pods.iter().filter(|pod| phase(pod) == "Failed").count();
                let told: Vec<_> = pods.iter().map(|pod| describe_pod(pod)).collect();
                if held && failed == 3 { Ok(()) } else { Err(told.join("\n")) }
            })
            .await
    };
    held(&stage).await?;
    let bases: BTreeSet<_> = stage.pods("app=shop").await?.iter().map(node_of).collect();
    assert!(bases.len() >= 3, "tried on {bases:?}");
    if stage.is_simulated() {
        assert_eq!(stage.installs("shop")?, 3);
        queried(&*stage.base("base-0")?, 4).await?;
        assert_eq!(stage.installs("shop")?, 3, "a held template is left alone");
    }
    let agent = stage.agents().first_mut().expect("an agent");
    agent.restart()?;
    agent.wait_ready().await?;
    if stage.is_simulated() {
        // After a restart the bases are asked as soon as the new term has begun.
        queried(&*stage.base("base-0")?, 4).await?;
        assert_eq!(stage.installs("shop")?, 3, "the memory of failures outlives the agent");
    }
    held(&stage).await?;

    // The jar appears, and somebody asks for another try.
    stage.artifacts.module("shop", "1.0.0").named("nowhere.jar").url()?;
    stage.kubectl()?.run(&["annotate", "deployment", "shop", &format!("{}=now", names::RETRY)]).await?;
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    Ok(())
}

/// What just failed on a base stands in its inventory until the back-off ends, and its like is kept away meanwhile: a
/// second VPod of the version waits, and is placed when the entry is gone, without anybody's help.
#[tokio::test]
async fn a_version_that_just_failed_is_kept_away_for_its_back_off() -> TestResult {
    let policy = policy(&[("install: {", "install: {templateBackoff: {initial: 30s, max: 30s}, ")]);
    let stage = Stage::builder().bases(1).policy(&policy).build().await?;
    let vnode = stage.vnode_of("base-0");
    let failures = |node: &Node| {
        let text = node.annotations().get(names::INVENTORY).expect("an inventory");
        let inventory = Inventory::parse(text).expect("our own");
        let known = inventory.failures.iter();
        known.map(|failure| format!("{}:{}", failure.module, failure.version)).collect::<Vec<_>>()
    };
    let shown = async |wanted: &[&str]| {
        let what = format!("inventory with the failures {wanted:?}");
        wait::object(&stage.nodes(), &vnode, &what, PATIENCE, |node| {
            node.is_some_and(|node| failures(node) == wanted)
        })
        .await
    };
    let absent = stage.artifacts.url("absent.jar");
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &absent).pod_yaml("shop")).await?;
    shown(&["shop:1.0.0"]).await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).named("again").pod_yaml("again")).await?;
    stage.wait_refused("app=again", "1 this version of module shop just failed on the base").await?;

    shown(&[]).await?;
    let what = "Ready Pod after the back-off";
    wait::object(&stage.api::<Pod>(), "again", what, PATIENCE, |pod| pod.is_some_and(is_ready)).await?;
    assert_eq!(phase(&stage.api::<Pod>().get("shop").await?), "Failed");
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// Credentials in the URL of a module stand in the Pod's own spec and nowhere else: not in its status, in no Event, log,
/// metric, `/diag` or Node, whether the install succeeds or fails.
#[tokio::test]
async fn credentials_in_urls_are_never_shown() -> TestResult {
    const WORDS: [&str; 3] = ["hunter2", "s3cr3t-token", "reader:"];
    let stage = Stage::builder().bases(1).pods_per_base(3).build().await?;
    let with_credentials =
        |url: &str| format!("{}?token=s3cr3t-token", url.replace("http://", "http://reader:hunter2@"));
    let good = with_credentials(&jar(&stage, "good", "1.0.0")?);
    let absent = with_credentials(&stage.artifacts.url("absent.jar"));
    let busy = with_credentials(&jar(&stage, "busy", "1.0.0")?);
    stage.artifacts.always(Some("busy-1.0.0.jar"), Trouble::Status(503));
    for (name, url) in [("good", &good), ("absent", &absent), ("busy", &busy)] {
        stage.apply(&ModuleSet::deployment(name, "1.0.0", url).pod_yaml(name)).await?;
    }
    pod_ready(&stage, "good").await?;
    pod_failed(&stage, "absent").await?;
    pod_waits(&stage, "busy", "InstallBackOff").await?;
    event(&stage, "busy", "InstallFailed").await?;
    for name in ["good", "absent", "busy"] {
        let pod = stage.api::<Pod>().get(name).await?;
        assert_silent_about("the status", &pod.status, &WORDS);
        assert_silent_about("an Event", &stage.events_of(name).await?, &WORDS);
    }
    let node = stage.vnode_of("base-0");
    assert_silent_about("the Node", &stage.nodes().get(&node).await?, &WORDS);
    assert_silent_about("an Event", &stage.events_of_node(&node).await?, &WORDS);
    let agent = stage.agent(0)?;
    for path in ["/metrics", "/diag"] {
        assert_silent_about(path, &agent.get(path).await?, &WORDS);
    }
    assert_silent_about("the log of the agent", &std::fs::read_to_string(agent.log_file())?, &WORDS);
    let extender = std::fs::read_to_string(stage.extender.log_file())?;
    assert_silent_about("the log of the extender", &extender, &WORDS);
    Ok(())
}

/// The kubelet of these tests is as hard as a real one: on a deletion it runs `preStop`, then the base dies by SIGTERM,
/// all within the grace period, and neither it nor we put a finalizer on the base that would delay that.
#[tokio::test]
async fn a_base_ends_within_its_grace_period_without_finalizers() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).yaml()).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    let base = stage.base("base-0")?;
    let pod = stage.base_pods().get("base-0").await?;
    assert_eq!(pod.metadata.finalizers, None);
    let grace = DeleteParams::default().grace_period(4);
    let began = jiff::Timestamp::now();
    stage.base_pods().delete("base-0", &grace).await?;
    let pods: Api<Pod> = stage.base_pods();
    wait::object(&pods, "base-0", "end of this Pod", SOON, |now| {
        now.is_none_or(|now| now.uid() != pod.uid())
    })
    .await?;
    let took = jiff::Timestamp::now().duration_since(began);
    assert!(took.as_secs() >= 2, "preStop sleeps two seconds, the base was gone after {took:?}");
    if stage.is_simulated() {
        assert_eq!(base.modules().await, None, "the first base is dead");
        // It left the traffic and the base before the base died, or died with it; either way nothing came twice.
        assert_eq!(base.journal()?.installs("shop"), 1);
    }
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    Ok(())
}
