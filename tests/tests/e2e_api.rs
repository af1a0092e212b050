//! An API server that is slow, refuses, forgets or breaks off, seen by the agent alone: a proxy stands between the two.

#![allow(clippy::expect_used, reason = "a test stops at what it did not expect")]

use std::time::{Duration, Instant};

use harness::{
    Failure, TestResult,
    proxy::{ApiFault, ApiProxy, Calls},
    stage::{BaseSet, ModuleSet, Stage, pod_condition},
    wait,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use policy::contract::names;
use serde_json::json;

mod vnodes;
use vnodes::*;

/// A proxy with the rights of the agent.
async fn proxy(stage: &Stage) -> Result<ApiProxy, Failure> {
    let account = stage.cluster()?.kubeconfig_for_service_account(SYSTEM, "stowage-agent").await?;
    Ok(ApiProxy::start(&account).await?)
}

/// Starts an agent behind the proxy.
async fn start_behind(stage: &mut Stage, proxy: &ApiProxy) -> TestResult {
    start_with(stage, proxy, &[]).await
}

/// The same, with more flags.
async fn start_with(stage: &mut Stage, proxy: &ApiProxy, flags: &[&str]) -> TestResult {
    let kubeconfig = format!("--module-kubeconfig={}", proxy.kubeconfig().display());
    let flags: Vec<&str> = flags.iter().copied().chain([kubeconfig.as_str()]).collect();
    stage.start_agent(&flags).await?;
    Ok(())
}

async fn scale(stage: &Stage, replicas: u32) -> TestResult {
    stage.kubectl()?.run(&["scale", "deployment", "shop", &format!("--replicas={replicas}")]).await?;
    Ok(())
}

/// BL-120: watches that end with 410, in their body and as an answer, make the agent list again and no more: it does not
/// end, and no VPod is missed.
#[tokio::test]
async fn expired_watches_are_listed_again() -> TestResult {
    let mut stage = Stage::builder().bases(3).agents(0).build().await?;
    let proxy = proxy(&stage).await?;
    proxy.faults().always(Calls::watch(None), ApiFault::Expired(Duration::from_secs(2)));
    start_behind(&mut stage, &proxy).await?;
    stage.wait_vnodes_ready(3).await?;
    let known = Lookout::vnodes_ready(&stage).await;
    stage.apply(&shop(&stage, 2)?.yaml()).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    for replicas in [3, 1, 2] {
        stage.kubectl()?.run(&["scale", "deployment", "shop", &format!("--replicas={replicas}")]).await?;
        stage.wait_modules(&[("shop:1.0.0", replicas)]).await?;
    }
    // The two lists of the start, of base Pods and of VPods, and at least one more.
    wait::until("another list of Pods", SOON, async || {
        let lists = proxy.faults().count(&Calls::list("pods"));
        if lists > 2 { Ok(()) } else { Err(NotYet(format!("{lists} lists"))) }
    })
    .await?;

    // Refused at once, several times in a row.
    let gone = ApiFault::Status { code: 410, retry_after: None };
    let refused = proxy.faults().always(Calls::watch(None), gone);
    let before = proxy.faults().count(&Calls::watch(None));
    wait::until("refused watches", SOON, async || {
        let tried = proxy.faults().count(&Calls::watch(None)) - before;
        if tried >= 10 { Ok(()) } else { Err(NotYet(format!("{tried} tries"))) }
    })
    .await?;
    proxy.faults().remove(refused);
    stage.kubectl()?.run(&["delete", "deployment", "shop"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[]).await?;
    assert_eq!(stage.agent(0)?.exit_status(), None);
    stage.assert_no_double_install()?;
    known.assert_quiet();
    Ok(())
}

/// BL-103: while the list of Pods has not come, the agent decides nothing that depends on it: no uninstall, no deletion,
/// no Failed. Leases do not wait for it.
#[tokio::test]
async fn a_late_list_of_pods_costs_nothing() -> TestResult {
    let mut stage = Stage::builder().bases(4).agents(1).pods_per_base(2).build().await?;
    let pods = run_shop(&stage, 4).await?;
    let url = stage.artifacts.module("cart", "1.0.0").url()?;
    stage.apply(&ModuleSet::deployment("cart", "1.0.0", &url).replicas(4).yaml()).await?;
    stage.wait_pods_ready("app=cart", 4).await?;
    stage.remove_agents();
    let proxy = proxy(&stage).await?;
    let late = Duration::from_secs(12);
    proxy.faults().always(Calls::list("pods"), ApiFault::Delay(late));
    // Base Pods are listed without delay.
    let direct = stage.cluster()?.kubeconfig_for_service_account(SYSTEM, "stowage-agent").await?;
    let ready = Lookout::pods_ready(&stage, "app=shop").await;
    let flags = [
        format!("--module-kubeconfig={}", proxy.kubeconfig().display()),
        format!("--base-kubeconfig={}", direct.display()),
    ];
    stage.start_agent(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    wait_metric(stage.agent(0)?, "stowage_agent_bases", &[], 4.0).await?;
    wait::throughout("modules left alone", late, async || {
        let done = (stage.uninstalls("shop")?, stage.uninstalls("cart")?, stage.installs("shop")?);
        if done == (0, 0, 4) { Ok(()) } else { Err(NotYet(format!("{done:?}"))) }
    })
    .await?;
    stage.agent(0)?.wait_ready().await?;
    let names = vnode_names(&stage).await?;
    wait_renewed(&stage, &names, Timestamp::now(), "agent-0", SOON).await?;
    assert_eq!(uids(&stage.pods("app=shop").await?), uids(&pods));
    ready.assert_quiet();
    stage.kubectl()?.run(&["scale", "deployment", "cart", "--replicas=3"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 4), ("cart:1.0.0", 3)]).await?;
    assert_eq!((stage.installs("shop")?, stage.installs("cart")?, stage.uninstalls("shop")?), (4, 4, 0));
    Ok(())
}

/// BL-016, BL-082: an agent whose renewals only get errors stops acting before its Lease ends, and the standby takes
/// over; when its errors end, it is the standby.
#[tokio::test]
async fn an_agent_that_cannot_renew_stops() -> TestResult {
    let mut stage = Stage::builder().bases(2).agents(0).build().await?;
    let proxy = proxy(&stage).await?;
    start_behind(&mut stage, &proxy).await?;
    stage.wait_vnodes_ready(2).await?;
    run_shop(&stage, 1).await?;
    stage.start_agent(&[]).await?;
    let known = Lookout::vnodes_known(&stage).await;
    let failing = ApiFault::Status { code: 500, retry_after: None };
    proxy.faults().always(Calls::writes("leases"), failing);
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 0.0).await?;
    let writes =
        (proxy.faults().count(&Calls::writes("pods")), proxy.faults().count(&Calls::writes("nodes")));
    wait_leader(&stage, "agent-1", SOON).await?;
    let names = vnode_names(&stage).await?;
    wait_renewed(&stage, &names, Timestamp::now(), "agent-1", SOON).await?;
    stage.kubectl()?.run(&["scale", "deployment", "shop", "--replicas=2"]).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    let later = (proxy.faults().count(&Calls::writes("pods")), proxy.faults().count(&Calls::writes("nodes")));
    assert_eq!(later, writes, "the agent that could not renew still writes");

    proxy.faults().clear();
    stage.agent(1)?.kill9();
    wait_leader(&stage, "agent-0", SOON).await?;
    stage.kubectl()?.run(&["scale", "deployment", "shop", "--replicas=1"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 1)]).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 1));
    known.assert_quiet();
    Ok(())
}

/// BL-121: while the API server turns everything away the agent asks seldom, and goes on by itself afterwards.
#[tokio::test]
async fn an_overloaded_api_server_is_not_pressed() -> TestResult {
    let mut stage = Stage::builder().bases(3).agents(0).build().await?;
    let proxy = proxy(&stage).await?;
    start_behind(&mut stage, &proxy).await?;
    stage.wait_vnodes_ready(3).await?;
    run_shop(&stage, 3).await?;
    let busy = ApiFault::Status { code: 429, retry_after: Some(Duration::from_secs(5)) };
    // Watches under way end as well.
    proxy.faults().always(Calls::watch(None), ApiFault::Reset);
    proxy.faults().always(Calls::any(), busy);
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 0.0).await?;
    let span = Duration::from_secs(10);
    let before = proxy.faults().count(&Calls::any());
    wait::throughout("patience", span, async || {
        let asked = proxy.faults().count(&Calls::any()) - before;
        if asked <= 40 { Ok(()) } else { Err(NotYet(format!("{asked} calls in less than {span:?}"))) }
    })
    .await?;
    proxy.faults().clear();
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 1.0).await?;
    stage.kubectl()?.run(&["scale", "deployment", "shop", "--replicas=2"]).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 1));
    assert_eq!(stage.agent(0)?.exit_status(), None);
    Ok(())
}

/// Writes that break off half-way, conflicts and refusals now and then: all is done in the end, and nothing twice.
#[tokio::test]
async fn writes_that_fail_are_made_again() -> TestResult {
    let mut stage = Stage::builder().bases(3).agents(0).build().await?;
    let proxy = proxy(&stage).await?;
    start_behind(&mut stage, &proxy).await?;
    stage.wait_vnodes_ready(3).await?;
    for fault in [
        ApiFault::Reset,
        ApiFault::Status { code: 409, retry_after: None },
        ApiFault::Status { code: 422, retry_after: None },
        ApiFault::Status { code: 429, retry_after: Some(Duration::from_secs(1)) },
        ApiFault::Status { code: 500, retry_after: None },
    ] {
        let faults = [Calls::writes("pods"), Calls::writes("nodes")];
        let ids: Vec<_> =
            faults.iter().map(|calls| proxy.faults().always(calls.clone(), fault.clone())).collect();
        let before = proxy.faults().count(&Calls::writes("nodes"));
        stage.apply(&shop(&stage, 3)?.yaml()).await?;
        // Ownership is written before an install is sent, so that nothing is sent meanwhile.
        wait::until("failed writes", SOON, async || {
            let tried = proxy.faults().count(&Calls::writes("nodes")) - before;
            if tried >= 3 { Ok(()) } else { Err(NotYet(format!("{tried} tries"))) }
        })
        .await?;
        assert_eq!(stage.installs("shop")?, 0, "{fault:?}: an install was sent before its owner was written");
        for id in ids {
            proxy.faults().remove(id);
        }
        stage.wait_pods_ready("app=shop", 3).await?;
        assert_eq!(stage.installs("shop")?, 3, "{fault:?}");
        stage.kubectl()?.run(&["delete", "deployment", "shop"]).await?;
        stage.wait_no_pods("app=shop").await?;
        stage.wait_modules(&[]).await?;
        for base in stage.all_bases() {
            base.journal()?.clear();
        }
    }
    Ok(())
}

/// BL-118: a fleet in which nothing happens costs Lease renewals and nothing else.
#[tokio::test]
async fn an_idle_fleet_renews_its_leases_only() -> TestResult {
    let mut stage = Stage::builder().bases(3).agents(0).build().await?;
    let proxy = proxy(&stage).await?;
    start_behind(&mut stage, &proxy).await?;
    stage.wait_vnodes_ready(3).await?;
    run_shop(&stage, 3).await?;
    let written =
        || ["nodes", "pods", "events"].map(|resource| proxy.faults().count(&Calls::writes(resource)));
    // What was still to be told is told: first figures, Events.
    let names = vnode_names(&stage).await?;
    wait_renewed(&stage, &names, Timestamp::now(), "agent-0", SOON).await?;
    let (before, renewals) = (written(), proxy.faults().count(&Calls::writes("leases")));
    let span = Duration::from_secs(20);
    wait::throughout("idleness", span, async || {
        let now = written();
        if now == before {
            Ok(())
        } else {
            Err(NotYet(format!("nodes, pods, events: {before:?}, now {now:?}")))
        }
    })
    .await?;
    // Two or three of each VNode, and one each 5 s of the agents' own.
    let renewals = proxy.faults().count(&Calls::writes("leases")) - renewals;
    assert!((6..=15).contains(&renewals), "{renewals} renewals in {span:?}");
    Ok(())
}

/// Events that come twice change nothing. Events that never come are found by the next list: a Pod that was bound, one
/// that is to go, one that is gone, a VNode that is gone.
#[tokio::test]
async fn doubled_and_lost_events_are_made_good() -> TestResult {
    let mut stage = Stage::builder().bases(3).agents(0).build().await?;
    let proxy = proxy(&stage).await?;
    proxy.faults().always(Calls::watch(None), ApiFault::Double);
    start_with(&mut stage, &proxy, &["--relist-interval=5s"]).await?;
    stage.wait_vnodes_ready(3).await?;
    run_shop(&stage, 2).await?;
    let losing = |types| proxy.faults().always(Calls::watch(None), ApiFault::Lose(types));

    let lost = losing(&["ADDED", "MODIFIED"]);
    scale(&stage, 3).await?;
    stage.wait_pods_ready("app=shop", 3).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 0));
    scale(&stage, 2).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (3, 1));
    stage.wait_pods_ready("app=shop", 2).await?;
    proxy.faults().remove(lost);

    let lost = losing(&["DELETED"]);
    let node = vnode_names(&stage).await?.remove(0);
    let before = uid(&stage.nodes().get(&node).await?);
    let pods = stage.pods("app=shop").await?;
    let pod = pods.iter().find(|pod| node_of(pod) != node).expect("a Pod elsewhere");
    stage.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    stage.nodes().delete(&node, &DeleteParams::default()).await?;
    ready_vnode(&stage, &node, "new VNode of the name", |node| uid(node) != before).await?;
    stage.wait_pods_ready("app=shop", 2).await?;
    stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    proxy.faults().remove(lost);
    // The successor may have come to the same base, where the module was adopted.
    let moved = stage.uninstalls("shop")?;
    assert_eq!(stage.installs("shop")?, moved + 2);
    assert!(moved <= 2, "{moved} uninstalls");
    assert!(proxy.faults().lost() > 0);
    stage.assert_no_double_install()?;
    Ok(())
}

/// A watch that hangs without failing is noticed when its round should be over, which is long before anything runs into
/// the time-out of a connection.
#[tokio::test]
async fn a_watch_that_hangs_is_noticed() -> TestResult {
    let mut stage = Stage::builder().bases(2).agents(0).build().await?;
    let proxy = proxy(&stage).await?;
    start_behind(&mut stage, &proxy).await?;
    stage.wait_vnodes_ready(2).await?;
    run_shop(&stage, 1).await?;
    let mute = proxy.faults().always(Calls::watch(None), ApiFault::Mute);
    scale(&stage, 2).await?;
    let began = Instant::now();
    wait::until("a watch of Pods that hangs", SOON, async || {
        let hanging = proxy.faults().muted(&Calls::watch(Some("pods")));
        if hanging > 0 { Ok(()) } else { Err(NotYet("none hangs".to_owned())) }
    })
    .await?;
    // What hangs goes on hanging; later ones work.
    proxy.faults().remove(mute);
    stage.wait_pods_ready("app=shop", 2).await?;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(75), "noticed after {took:?}");
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 0));
    assert_eq!(proxy.faults().count(&Calls::list("endpointslices")), 1, "it goes on without a list");
    Ok(())
}

/// Half a minute without an API server: nothing is done to a base meanwhile, no VNode turns Unknown and no Pod not Ready,
/// and what was ordered is done afterwards, once.
#[tokio::test]
async fn an_outage_of_half_a_minute_costs_nothing() -> TestResult {
    const OUTAGE: Duration = Duration::from_secs(30);
    let mut stage = Stage::builder().bases(3).agents(0).build().await?;
    let proxy = proxy(&stage).await?;
    start_behind(&mut stage, &proxy).await?;
    stage.wait_vnodes_ready(3).await?;
    let pods = run_shop(&stage, 2).await?;
    let known = Lookout::vnodes_known(&stage).await;
    proxy.faults().always(Calls::watch(None), ApiFault::Mute);
    proxy.faults().always(Calls::any(), ApiFault::Reset);
    let (kept, leaving) = (&pods[0], &pods[1]);
    scale(&stage, 3).await?;
    stage.api::<Pod>().delete(&leaving.name_any(), &DeleteParams::default()).await?;
    wait::throughout("an outage", OUTAGE, async || {
        let done = (stage.installs("shop")?, stage.uninstalls("shop")?);
        if done == (2, 0) { Ok(()) } else { Err(NotYet(format!("{done:?}"))) }
    })
    .await?;
    proxy.faults().clear();
    let after = stage.wait_pods_ready("app=shop", 3).await?;
    assert!(uids(&after).contains(&uid(kept)) && !uids(&after).contains(&uid(leaving)));
    stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (4, 1));
    assert_eq!(stage.agent(0)?.exit_status(), None);
    known.assert_quiet();
    Ok(())
}

/// An agent whose clock is an hour off, either way: a base's gate is not given up, a deletion drains for as long as it
/// should, also one that began before the agent, and nothing is done twice.
#[tokio::test]
async fn a_clock_that_is_off_decides_nothing() -> TestResult {
    let gated = BaseSet::stateful("base", "2.1.0", 2)
        .pod_spec(|pod| pod["readinessGates"] = json!([{"conditionType": names::MODULES_READY_GATE}]));
    let slow_drain = policy(&[("wait: 1s", "wait: 4s"), ("podsPerBase: 1", "podsPerBase: 2")]);
    for skew in [SignedDuration::from_hours(1), SignedDuration::from_hours(-1)] {
        let builder = Stage::builder().base_set(gated.clone()).policy(&slow_drain);
        let mut stage = builder.agents(0).without_waiting().build().await?;
        let proxy = proxy(&stage).await?;
        proxy.faults().always(Calls::any(), ApiFault::Skew(skew));
        let url = stage.artifacts.module("audit", "1.0.0").start_millis(4000).url()?;
        stage.apply(&ModuleSet::daemon_set("audit", "1.0.0", &url).yaml()).await?;
        start_behind(&mut stage, &proxy).await?;
        stage.wait_bases_ready(2).await?;
        for base in stage.base_pods().list(&ListParams::default()).await? {
            let Some(gate) = pod_condition(&base, names::MODULES_READY_GATE) else { continue };
            assert_eq!(gate.reason.as_deref(), Some("ModulesReady"), "{skew}");
        }
        run_shop(&stage, 2).await?;

        let began = Timestamp::now();
        scale(&stage, 1).await?;
        stage.wait_modules(&[("shop:1.0.0", 1), ("audit:1.0.0", 2)]).await?;
        drained(&stage, began, skew)?;
        // The next removal begins under no agent and is finished by a new one.
        stage.remove_agents();
        let began = Timestamp::now();
        scale(&stage, 0).await?;
        start_behind(&mut stage, &proxy).await?;
        stage.wait_modules(&[("audit:1.0.0", 2)]).await?;
        drained(&stage, began, skew)?;
        assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 2));
        assert_eq!((stage.installs("audit")?, stage.uninstalls("audit")?), (2, 0));
    }
    Ok(())
}

/// The last uninstall came after the drain wait, and within the grace period of 30 s.
fn drained(stage: &Stage, began: Timestamp, skew: SignedDuration) -> TestResult {
    let mut last = None;
    for base in stage.all_bases() {
        let operations = base.journal()?.operations();
        let uninstalls =
            operations.iter().filter(|entry| entry.command == "uninstallBiz").map(|entry| entry.at);
        last = last.max(uninstalls.max());
    }
    let after = last.expect("an uninstall").duration_since(began);
    let good = SignedDuration::from_millis(3500)..=SignedDuration::from_secs(30);
    assert!(good.contains(&after), "uninstalled after {after} with a clock that is {skew} off");
    Ok(())
}
