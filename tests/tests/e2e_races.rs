//! Placement under pressure with a real kube-scheduler: bursts, Pods that must not stay stuck, evictions.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at what it did not expect"
)]

mod placing;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use harness::{
    Failure, TestResult, priority,
    proxy::{ApiFault, Calls},
    samples::samples,
    wait,
};
use kube::{ResourceExt, api::ListParams};
use placing::{Field, Layout, NAMESPACE, SOON, module_pod, node_of, sample, vnode};
use policy::contract::names;
use serde_json::{Value, json};
use tokio::time::Instant;

const POLICY: &str =
    "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {podsPerBase: 8}\n";
const CONFLICT: &str = "compatibility:\n- {module: m0, conflicts: {modules: [{name: m1}]}}\n";
/// Pods that come when a leader has gone, so that the next one has work, however fast the last one was.
const LATER: usize = 50;
/// Longest time until a Pod that fits now has a place.
const PROMISE: Duration = Duration::from_secs(5);

/// What breaks a rule: a module twice on a base, or two that do not bear each other.
fn violations(placed: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let wrong = |modules: &Vec<String>| {
        let names: BTreeSet<&str> = modules.iter().map(String::as_str).collect();
        names.len() < modules.len() || modules.len() > 8 || (names.contains("m0") && names.contains("m1"))
    };
    placed
        .iter()
        .filter(|(_, modules)| wrong(modules))
        .map(|(node, modules)| format!("{node}: {modules:?}"))
        .collect()
}

/// 500 Pods at once over 200 bases: 80 of `m0` and 80 of `m1`, which do not bear each other, and 170 of two others.
fn burst() -> Vec<Value> {
    let counts = [("m0", 80), ("m1", 80), ("m2", 170), ("m3", 170)];
    let mut pods: Vec<(usize, Value)> = counts
        .iter()
        .flat_map(|&(module, count)| {
            (0..count)
                .map(move |number| (number * 170 / count, module_pod(&format!("{module}-{number}"), module)))
        })
        .collect();
    pods.sort_by_key(|(order, _)| *order);
    pods.into_iter().map(|(_, pod)| pod).collect()
}

/// The extender that is asked, of those whose schedulers could lead; no two are, unless a scheduler has ended.
async fn at_work(field: &Field, able: &[usize]) -> Result<Option<usize>, Failure> {
    let mut asked = Vec::new();
    for number in able {
        if field.calls_of(*number, "filter").await? > 0 {
            asked.push(*number);
        }
    }
    assert!(asked.len() <= 1, "two lead at once: {asked:?} of {able:?}");
    Ok(asked.first().copied())
}

async fn burst_keeps_every_rule(layout: Layout<'_>) -> TestResult {
    let nodes = (0..200).map(|number| vnode(&format!("v{number}"), "2.1.0", 8)).collect();
    let policy = format!("{POLICY}{CONFLICT}");
    let mut field = Field::new(Layout { policy: &policy, ..layout }, nodes).await?;
    let mut pods = burst();
    let mut later: Vec<_> = (1..layout.pairs).map(|_| pods.split_off(pods.len() - LATER)).collect();
    field.create(pods).await?;
    let mut able: Vec<usize> = (0..layout.pairs).collect();
    let deadline = Instant::now() + 2 * SOON;
    loop {
        let placed = field.placed().await?;
        assert_eq!(violations(&placed), Vec::<String>::new());
        let count: usize = placed.values().map(Vec::len).sum();
        if count == 500 {
            break;
        }
        able.retain(|number| field.schedulers[*number].exit_status().is_none());
        if count > 0
            && able.len() > 1
            && let Some(leader) = at_work(&field, &able).await?
        {
            // The one that leads goes away with what it has promised; the others have promised nothing.
            field.schedulers[leader].stop();
            field.extenders[leader].kill9();
            able.retain(|number| *number != leader);
            field.create(later.pop().unwrap_or_default()).await?;
        }
        assert!(Instant::now() < deadline, "{count} of 500 are placed: {}", field.extenders[0].log_tail(30));
        wait::until("more bound Pods", SOON, async || {
            let now: usize =
                field.placed().await.map_err(|error| error.to_string())?.values().map(Vec::len).sum();
            if now > count { Ok(()) } else { Err(format!("{now} bound")) }
        })
        .await?;
    }
    assert_eq!(able.len(), 1, "everything was placed before each leader but the last could go");
    assert_eq!(at_work(&field, &able).await?, Some(able[0]), "the last one placed something");
    if layout.bind && layout.sharing > 1 {
        let bindings = field.calls_of_each("bind").await?;
        assert!(bindings.iter().all(|calls| *calls > 50), "one of them was hardly asked: {bindings:?}");
    }
    Ok(())
}

/// Cases 20, 40, BL-033: one scheduler and its extender.
#[tokio::test]
async fn a_burst_breaks_no_rule() -> TestResult {
    burst_keeps_every_rule(Layout { name: "burst", pairs: 1, ..Layout::default() }).await
}

/// Cases 20, 40, BL-030, BL-033: the same with `bindVerb`.
#[tokio::test]
async fn a_burst_breaks_no_rule_when_the_extender_binds() -> TestResult {
    burst_keeps_every_rule(Layout { name: "burst-bind", pairs: 1, bind: true, ..Layout::default() }).await
}

/// Cases 24, 32, 42: three schedulers with an extender each; in the middle of the burst the leading pair is killed, and so is
/// the one that leads then.
#[tokio::test]
async fn a_burst_breaks_no_rule_when_the_leader_dies() -> TestResult {
    burst_keeps_every_rule(Layout { name: "burst-three", pairs: 3, ..Layout::default() }).await
}

/// Cases 24, 32, 42, BL-034: the same with `bindVerb`.
#[tokio::test]
async fn a_burst_breaks_no_rule_when_the_leader_that_binds_dies() -> TestResult {
    burst_keeps_every_rule(Layout { name: "burst-three-bind", pairs: 3, bind: true, ..Layout::default() })
        .await
}

/// Cases 18, 20: two extenders, both at work for one scheduler: neither knows what the other has promised, and the verb
/// `bind` keeps every rule all the same.
#[tokio::test]
async fn a_burst_breaks_no_rule_with_two_extenders_at_work() -> TestResult {
    let layout = Layout { name: "burst-both", pairs: 1, bind: true, sharing: 2, ..Layout::default() };
    burst_keeps_every_rule(layout).await
}

/// Case 40: what a watch that hangs does not show may have happened. The second replica, which would rather be on the
/// base of the first too, gets its place when a new watch has shown the first.
#[tokio::test]
async fn a_watch_that_hangs_gives_no_place_twice() -> TestResult {
    let layout = Layout { name: "hangs", policy: POLICY, proxied: true, ..Layout::default() };
    let nodes = ["v0", "v1"].map(|name| vnode(name, "2.1.0", 8));
    let field = Field::new(layout, nodes.to_vec()).await?;
    let preferred = json!([{"weight": 100, "preference": {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["v0"]}],
    }}]);
    let replica = |name: &str| {
        let mut pod = module_pod(name, "m0");
        pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
            preferred.clone();
        pod
    };
    let (faults, watches) = (field.faults(), Calls::watch(Some("pods")));
    let fault = faults.always(watches.clone(), ApiFault::Mute);
    field.create(vec![replica("first")]).await?;
    assert_eq!(field.bound("first", SOON).await?, "v0");
    wait::until("watch of Pods that hangs", SOON, async || {
        if faults.muted(&watches) == 1 { Ok(()) } else { Err("it does not yet") }
    })
    .await?;
    faults.remove(fault);
    let before = faults.count(&watches);
    field.create(vec![replica("second")]).await?;
    assert_eq!(field.bound("second", SOON).await?, "v1");
    assert!(faults.count(&watches) > before, "no new watch has shown the first");
    Ok(())
}

/// Case 18: two schedulers, which know nothing of what the other is about to place, and 50 Pods for one place that becomes
/// free ten times: with `bindVerb` it is never given twice.
#[tokio::test]
async fn two_schedulers_never_fill_one_place_twice() -> TestResult {
    let layout = Layout { name: "rivals", policy: POLICY, bind: true, ..Layout::default() };
    let mut field = Field::new(layout, vec![vnode("v0", "2.1.0", 1)]).await?;
    field.add_scheduler("rival").await?;
    let pods = (0..50).map(|number| {
        let mut pod = module_pod(&format!("p{number}"), &format!("m{number}"));
        if number % 2 == 0 {
            pod["spec"]["schedulerName"] = json!("rival");
        }
        pod
    });
    field.create(pods.collect()).await?;
    wait::until("both at work", SOON, async || {
        let pods = field.pods().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let asked = pods.iter().filter(|pod| pod.status.as_ref().is_some_and(|of| of.conditions.is_some()));
        let asked = asked.filter_map(|pod| pod.spec.as_ref()?.scheduler_name.as_deref());
        let asked: BTreeSet<&str> = asked.collect();
        if asked.len() == 2 { Ok(()) } else { Err(format!("{asked:?}")) }
    })
    .await?;
    let mut schedulers = BTreeSet::new();
    for round in 0..10 {
        let winner = wait::until("one that has the place", SOON, async || {
            let pods = field.pods().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let bound: Vec<_> = pods.items.into_iter().filter(|pod| node_of(pod).is_some()).collect();
            let names: Vec<String> = bound.iter().map(ResourceExt::name_any).collect();
            assert!(names.len() <= 1, "round {round}: {names:?}");
            bound.into_iter().next().ok_or_else(|| "nobody".to_owned())
        })
        .await?;
        schedulers.extend(winner.spec.as_ref().and_then(|spec| spec.scheduler_name.clone()));
        field.delete(&winner.name_any()).await?;
    }
    println!("{} bindings were asked for; {schedulers:?} won", field.calls("bind").await?);
    Ok(())
}

/// Case 25: nothing in the cluster changes but the policy file; each time the Pod has a place within 5 s, because the
/// extender wakes it.
#[tokio::test]
async fn a_new_policy_places_what_the_old_one_refused() -> TestResult {
    const ROUNDS: usize = 100;
    let policy = format!("{POLICY}{CONFLICT}");
    let layout = Layout { name: "reload", policy: &policy, ..Layout::default() };
    let field = Field::new(layout, vec![vnode("v0", "2.1.0", 8)]).await?;
    field.create(vec![module_pod("first", "m0")]).await?;
    field.bound("first", SOON).await?;
    let (mut slowest, mut nudged) = (Duration::ZERO, 0);
    for round in 0..ROUNDS {
        let name = format!("second-{round}");
        field.create(vec![module_pod(&name, "m1")]).await?;
        let why = field.refused(&name).await?;
        assert!(why.contains("conflicts with module m1"), "{why}");
        let start = Instant::now();
        field.rewrite_policy(POLICY)?;
        field.bound(&name, PROMISE).await?;
        slowest = slowest.max(start.elapsed());
        nudged += usize::from(was_nudged(&field, &name).await?);
        field.delete(&name).await?;
        field.rewrite_policy(&policy)?;
        // Until the stricter policy is in force, the next one would be placed at once.
        wait::until("stricter policy in force", SOON, async || {
            let metrics = field.metrics(0).await.map_err(|error| error.to_string())?;
            let seen = samples(&metrics, "policy_generation", &[]).next().unwrap_or_default();
            if seen == (2 * round + 3).to_string() { Ok(()) } else { Err(format!("{seen} policies")) }
        })
        .await?;
    }
    println!("{nudged} of {ROUNDS} were nudged, the slowest took {slowest:?}");
    shows_nudges(&field, nudged, ROUNDS).await
}

/// Cases 4, 38: a base freed 100 times, and each time the Pod that waited has it within 5 s. Every other time the extender
/// hears of it only after kube-scheduler has asked again, in vain; then it wakes the Pod.
#[tokio::test]
async fn a_freed_base_is_taken_each_time() -> TestResult {
    let started = now()?;
    let layout = Layout { name: "freed", policy: POLICY, proxied: true, ..Layout::default() };
    let field = Field::new(layout, vec![vnode("v0", "2.1.0", 8)]).await?;
    let faults = field.faults();
    field.create(vec![module_pod("p0", "m0")]).await?;
    field.bound("p0", SOON).await?;
    let (mut slowest, mut nudged, mut last) = (Duration::ZERO, 0, started);
    for round in 1..=100 {
        let (old, new) = (format!("p{}", round - 1), format!("p{round}"));
        field.create(vec![module_pod(&new, "m0")]).await?;
        let why = field.refused(&new).await?;
        assert!(why.contains("already has module m0"), "{why}");
        let asked = field.calls("filter").await?;
        let late = round % 2 == 0;
        let hold = late.then(|| faults.always(Calls::watch(Some("pods")), ApiFault::Hold));
        last = now()?;
        field.delete(&old).await?;
        if let Some(hold) = hold {
            wait::until("question in vain", SOON, async || {
                let calls = field.calls("filter").await.map_err(|error| error.to_string())?;
                if calls > asked { Ok(()) } else { Err(format!("{calls} calls")) }
            })
            .await?;
            faults.remove(hold);
        }
        let start = Instant::now();
        field.bound(&new, PROMISE).await?;
        slowest = slowest.max(start.elapsed());
        nudged += usize::from(late && was_nudged(&field, &new).await?);
    }
    println!("{nudged} of 50 were nudged, the slowest took {slowest:?}");
    assert!(slowest < PROMISE, "{slowest:?}");
    shows_nudges(&field, nudged, 50).await?;
    shows_the_cluster(&field, started, last).await
}

/// Whether the extender has woken a Pod.
async fn was_nudged(field: &Field, pod: &str) -> Result<bool, Failure> {
    Ok(field.pods().get(pod).await?.annotations().contains_key(names::NUDGED))
}

/// What woke the Pods was the extender, and each time was counted. Not all Pods need that: kube-scheduler's own write about a
/// refusal wakes a Pod too, once, and comes late on a busy machine.
async fn shows_nudges(field: &Field, nudged: usize, all: usize) -> TestResult {
    assert!(2 * nudged >= all, "{nudged} of {all} were nudged");
    wait::until("count of nudges", SOON, async || {
        let metrics = field.metrics(0).await.map_err(|error| error.to_string())?;
        let woken = samples(&metrics, "stowage_extender_nudges_total", &["outcome=\"woken\""]).next();
        let woken = woken.and_then(|count| count.parse::<usize>().ok());
        if woken >= Some(nudged) { Ok(()) } else { Err(format!("{woken:?} of {nudged}")) }
    })
    .await?;
    Ok(())
}

/// What the metrics say of a cluster with one Node, where the last Pod but one was deleted after `deleted`.
async fn shows_the_cluster(field: &Field, started: f64, deleted: f64) -> TestResult {
    wait::until("count of one Pod", SOON, async || {
        let metrics = field.metrics(0).await.map_err(|error| error.to_string())?;
        let pods =
            sample(&metrics, "stowage_extender_cache_module_pods", "").map_err(|error| error.to_string())?;
        if (0.5..1.5).contains(&pods) { Ok(()) } else { Err(format!("{pods} Pods")) }
    })
    .await?;
    let metrics = field.metrics(0).await?;
    let of = |name: &str, label: &str| sample(&metrics, &format!("stowage_extender_{name}"), label);
    assert!((0.5..1.5).contains(&of("cache_nodes", "")?), "{metrics}");
    let changed = |source| of("cache_last_change_timestamp_seconds", source);
    // The Node is as it was: that its last change is long ago is no fault.
    assert!((started..=now()?).contains(&changed("source=\"nodes\"")?), "{metrics}");
    assert!((deleted..=now()?).contains(&changed("source=\"pods\"")?), "{metrics}");
    let filter = "verb=\"filter\"";
    let filters = [filter];
    let calls = of("request_duration_seconds_count", filter)?;
    let seconds = of("request_duration_seconds_sum", filter)?;
    assert!(calls >= 200.0 && seconds > 0.0 && seconds < 1.5 * calls, "{calls} calls in {seconds} s");
    let outcomes = samples(&metrics, "stowage_extender_requests_total", &filters);
    let outcomes = outcomes.map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    assert!((calls - outcomes).abs() < 0.5, "{calls} were timed, {outcomes} counted");
    Ok(())
}

/// Seconds of Unix time.
fn now() -> Result<f64, Failure> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// Case 9, BL-032: with `preemptVerb` a module of high priority evicts from a full base that fits, and never from one
/// that does not, though kube-scheduler itself would.
#[tokio::test]
async fn evictions_happen_where_they_help() -> TestResult {
    let layout = Layout { name: "preempt", policy: POLICY, preempt: true, ..Layout::default() };
    let field = Field::new(layout, vec![vnode("fits", "2.1.0", 1), vnode("other", "3.0.0", 1)]).await?;
    let class = serde_json::from_value(json!({"metadata": {"name": "urgent"}, "value": 1_000_000}))?;
    priority::create(&field.client, NAMESPACE, &class).await?;
    let low = ["fits", "other"].map(|node| {
        let mut pod = module_pod(&format!("low-{node}"), &format!("low-{node}"));
        pod["spec"]["nodeName"] = json!(node);
        pod
    });
    field.create(low.to_vec()).await?;
    let urgent = |name: &str, range: &str| {
        let mut pod = module_pod(name, name);
        pod["metadata"]["annotations"] = json!({"stowage.dev/base-version": range});
        pod["spec"]["priorityClassName"] = json!("urgent");
        pod
    };
    field.create(vec![urgent("nowhere", ">=9")]).await?;
    let why = field.refused("nowhere").await?;
    assert!(why.contains("2 Too many pods"), "{why}");
    assert_eq!(leaving(&field).await?, Vec::<String>::new(), "both bases are full, and neither fits");
    field.create(vec![urgent("somewhere", ">=2 <3")]).await?;
    wait::until("eviction from the base that fits", SOON, async || {
        let leaving = leaving(&field).await.map_err(|error| error.to_string())?;
        if leaving == ["low-fits"] { Ok(()) } else { Err(format!("{leaving:?} leave")) }
    })
    .await?;
    field.delete("low-fits").await?;
    assert_eq!(field.bound("somewhere", SOON).await?, "fits");
    let pods = field.pods().list(&ListParams::default()).await?;
    let other: Vec<_> = pods.iter().filter(|pod| node_of(pod).as_deref() == Some("other")).collect();
    assert!(matches!(other.as_slice(), [pod] if pod.metadata.deletion_timestamp.is_none()), "{other:?}");
    Ok(())
}

/// Names of Pods being deleted.
async fn leaving(field: &Field) -> Result<Vec<String>, Failure> {
    let pods = field.pods().list(&ListParams::default()).await?;
    let leaving = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
    Ok(leaving.filter_map(|pod| pod.metadata.name.clone()).collect())
}
