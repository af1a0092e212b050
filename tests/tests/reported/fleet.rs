//! More bases than a person looks at: how long things take, and what stays when they are gone.

use std::{collections::BTreeMap, time::Duration};

use harness::{
    Failure, TestResult,
    kubelet::is_ready,
    stage::{ModuleSet, Stage, pod_condition},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use crate::vnodes::{Lookout, NotYet, vnode_names, wait_metric, wait_renewed};
use crate::vpods::*;

const BASES: u32 = 60;
/// With so many things going on at once nothing is quick on a small machine.
const PATIENT: Duration = Duration::from_secs(150);

async fn scale(stage: &Stage, replicas: u32) -> Result<Duration, Failure> {
    let began = Instant::now();
    stage.kubectl()?.run(&["scale", "deployment", "shop", &format!("--replicas={replicas}")]).await?;
    stage
        .wait_pods("app=shop", &format!("{replicas} Ready Pods"), PATIENT, |pods| {
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            let done = pods.len() == replicas as usize && ready == pods.len();
            if done { Ok(()) } else { Err(format!("{ready} of {} are Ready", pods.len())) }
        })
        .await?;
    Ok(began.elapsed())
}

/// Seconds from the answer of a base to its install until the Pod was Ready, longest last; the API keeps whole seconds.
fn delays(stage: &Stage, pods: &[Pod]) -> Result<Vec<i64>, Failure> {
    let mut answered = BTreeMap::new();
    for base in stage.all_bases() {
        let operations = base.journal()?.operations();
        let last = operations.iter().rev().find(|entry| entry.command == "installBiz");
        let at = last.and_then(|entry| Some(entry.at + entry.answer.as_ref()?.after));
        answered.insert(stage.vnode_of(base.pod()), at.expect("it was installed there"));
    }
    let delay = |pod: &Pod| {
        let ready = pod_condition(pod, "Ready").and_then(|ready| ready.last_transition_time.clone());
        let answered = answered.get(&node_of(pod)).copied().unwrap_or_default();
        ready.expect("a time").0.as_second() - answered.as_second()
    };
    let mut delays: Vec<i64> = pods.iter().map(delay).collect();
    delays.sort_unstable();
    Ok(delays)
}

/// Lines of `/metrics`: one for each series.
async fn series(stage: &Stage) -> Result<usize, Failure> {
    Ok(stage.agent(0)?.get("/metrics").await?.lines().filter(|line| !line.starts_with('#')).count())
}

/// BL-085, BL-104, BL-112, BL-114, BL-136: sixty bases get a module all at once, lose it, and get it again; the agent is
/// killed and started again. Pods are Ready soon after their install was answered, no Lease grows old, the agent that
/// comes installs nothing, and no series of metrics is left of Pods that are gone.
#[tokio::test]
async fn sixty_bases_at_once() -> TestResult {
    let mut stage = Stage::builder().bases(BASES).build().await?;
    let known = Lookout::vnodes_known(&stage).await;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(0).yaml()).await?;
    let took = scale(&stage, BASES).await?;
    assert!(took < Duration::from_mins(2), "{BASES} modules in {took:?}");
    let age = stage.agent(0)?.metric("stowage_agent_node_lease_age_seconds", &[]).await?;
    assert!(age < 25.0, "a Lease of {age} s");
    let delays = delays(&stage, &stage.pods("app=shop").await?)?;
    // Five seconds are for nine of ten: etcd, API server and sixty bases share the machine.
    assert!(delays[delays.len() * 9 / 10] <= 5, "{delays:?} s from installed to Ready");
    assert!(delays.iter().all(|delay| *delay <= 20), "{delays:?} s from installed to Ready");

    let before = series(&stage).await?;
    scale(&stage, 0).await?;
    stage.wait_modules(&[]).await?;
    scale(&stage, BASES).await?;
    let after = series(&stage).await?;
    assert!(after <= before + before / 10, "{before} series, now {after}");

    let nodes = vnode_names(&stage).await?;
    let installs = stage.installs("shop")?;
    let ready = Lookout::pods_ready(&stage, "app=shop").await;
    stage.agents()[0].kill9();
    stage.agents()[0].restart()?;
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 1.0).await?;
    wait_renewed(&stage, &nodes, Timestamp::now(), "agent-0", Duration::from_secs(15)).await?;
    wait::until("a round of checks", SOON, async || {
        let checks = stage.agent(0)?.metric("stowage_agent_checks_total", &["result=\"ok\""]).await?;
        if checks >= 2.0 * f64::from(BASES) { Ok(()) } else { Err(NotYet(format!("{checks} checks"))) }
    })
    .await?;
    assert_eq!((stage.installs("shop")?, installs), (2 * BASES as usize, 2 * BASES as usize));
    stage.assert_no_double_install()?;
    ready.assert_quiet();
    known.assert_quiet();
    Ok(())
}
