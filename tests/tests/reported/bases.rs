//! Bases that answer oddly or not at all, and an agent that finds something else than it left.

use std::time::Duration;

use harness::{
    Failure, TestResult,
    arklet::{Fault, On},
    stage::{BaseSet, ModuleSet, Stage},
    wait,
};
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use policy::contract::names;
use serde_json::json;
use tokio::time::Instant;

use crate::vnodes::{self, Lookout, NotYet, node_leases, run_shop, vnode_names, wait_metric, wait_renewed};
use crate::vpods::*;

const MIB: u64 = 1 << 20;

/// BL-010: the metaspace of a base jumps up and down at every look. The VNode stays Ready, its Lease is renewed as ever, and
/// the Node is not written each time, because each write would wake every Pod that waits for a place.
#[tokio::test]
async fn a_figure_that_jumps_is_not_written_each_time() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let base = stage.base("base-0")?;
    let curve = (0..500).map(|look| if look % 2 == 0 { 20 * MIB } else { 200 * MIB });
    base.faults()?.report_metaspace(curve);
    let journal = base.journal()?;
    let looked = journal.count("health");
    journal.until(SOON, |journal| journal.count("health") > looked).await?;
    let (ready, names) = (Lookout::vnodes_ready(&stage).await, vnode_names(&stage).await?);
    let writes =
        async || stage.agent(0)?.metric("stowage_agent_api_calls_total", &["resource=\"nodes\""]).await;
    let before = writes().await?;
    let since = Timestamp::now();
    journal.until(SOON, |journal| journal.count("health") > looked + 4).await?;
    let written = writes().await? - before;
    assert!(written < 2.5, "{written} writes of the Node");
    wait_renewed(&stage, &names, since, "agent-0", Duration::from_secs(15)).await?;
    ready.assert_quiet();
    Ok(())
}

/// BL-115, BL-117: four modules cost a base no more questions than one, neither while all is well nor while it answers
/// everything with 404: a list for all, at the pace of the policy. When it answers again all are Ready at once, and none was
/// installed anew.
#[tokio::test]
async fn a_base_is_asked_once_a_period_whatever_is_on_it() -> TestResult {
    const QUERIES: usize = 8;
    let stage = Stage::builder().bases(1).pods_per_base(4).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let names = ["shop", "cart", "pay", "mail"];
    for name in names {
        let url = jar(&stage, name, "1.0.0")?;
        stage.apply(&ModuleSet::deployment(name, "1.0.0", &url).label("four", "yes").pod_yaml(name)).await?;
    }
    stage.wait_pods_ready("four=yes", 4).await?;
    let base = stage.base("base-0")?;
    let journal = base.journal()?;
    let period = async || -> Result<(), Failure> {
        let (queries, looks) = (journal.count("queryAllBiz"), journal.count("health"));
        let began = Instant::now();
        journal.until(SOON, |journal| journal.count("queryAllBiz") >= queries + QUERIES).await?;
        // One a second; the first may be due at once.
        let shortest = Duration::from_millis(QUERIES as u64 * 1000 - 1200);
        assert!(began.elapsed() >= shortest, "{QUERIES} queries in {:?}", began.elapsed());
        let looks = journal.count("health") - looks;
        assert!(looks <= QUERIES / 6 + 1, "{looks} questions about the JVM");
        Ok(())
    };
    queried(&base, 2).await?;
    period().await?;
    let deeds_before = deeds(&base)?;
    base.faults()?.always(On::any(), Fault::Status(404));
    queried(&base, 1).await?;
    period().await?;
    assert_eq!(deeds(&base)?, deeds_before, "nothing is tried on a base that knows nothing");
    base.faults()?.clear();
    stage.wait_pods_ready("four=yes", 4).await?;
    assert_eq!(deeds(&base)?, deeds_before);
    Ok(())
}

/// BL-129: nothing listens on the port that a base names. It is no VNode, and the agent says where it asked and what came of
/// it; with the right port it is one, without anything having to be deleted.
#[tokio::test]
async fn a_base_behind_a_closed_port_is_told() -> TestResult {
    let set = BaseSet::stateful("odd", "2.1.0", 1).annotation(names::ARKLET_PORT, "1239");
    let stage = Stage::builder().base_set(set).without_waiting().build().await?;
    stage.wait_bases_ready(1).await?;
    let place = format!("{}:1239", stage.base("odd-0")?.ip());
    let agent = stage.agent(0)?;
    wait::until("a word about the base", SOON, async || {
        let log = agent.log_tail(1000);
        let told = |line: &&str| line.contains(&place) && line.contains("refused");
        match log.lines().find(told) {
            Some(_) => Ok(()),
            None => Err(log),
        }
    })
    .await?;
    assert!(stage.nodes().get_opt(&stage.vnode_of("odd-0")).await?.is_none());
    // Where a person looks first: the base Pod.
    let told = event(&stage, "odd-0", "BaseNotAnswering: no VNode is made for this base").await?;
    assert!(told.contains(&place) && told.contains(names::ARKLET_PORT), "{told}");
    let port = format!("{}=1238", names::ARKLET_PORT);
    stage.base_kubectl()?.run(&["annotate", "pod", "odd-0", "--overwrite", &port]).await?;
    stage.wait_vnodes_ready(1).await?;
    Ok(())
}

/// BL-009, BL-141: while no agent runs one Lease is deleted, and a later release, as it seems, leaves more in a Node than
/// this one knows. The agent that comes makes the Lease anew, reads what it can, and takes over without an install and
/// without a Pod that is not Ready; what it does not know on the Node stays.
#[tokio::test]
async fn an_agent_takes_over_what_another_release_left() -> TestResult {
    let mut stage = Stage::builder().bases(2).build().await?;
    let pods = run_shop(&stage, 2).await?;
    let nodes = vnode_names(&stage).await?;
    stage.agents()[0].term(Duration::from_secs(20)).await?;
    node_leases(stage.client()).delete(&stage.vnode_of("base-0"), &DeleteParams::default()).await?;

    let name = stage.vnode_of("base-1");
    let node = stage.nodes().get(&name).await?;
    let text = &node.metadata.annotations.expect("annotations")[names::INVENTORY];
    let mut inventory: serde_json::Value = serde_json::from_str(text)?;
    inventory["later"] = json!({"a": [1]});
    inventory["modules"][0]["later"] = json!(true);
    let metadata = json!({"labels": {"stowage.dev/later": "yes"},
                          "annotations": {(names::INVENTORY): inventory.to_string(), "stowage.dev/later": "yes"}});
    let patch = Patch::Merge(json!({"metadata": metadata}));
    stage.nodes().patch(&name, &PatchParams::default(), &patch).await?;

    let (ready, known) = (Lookout::pods_ready(&stage, "app=shop").await, Lookout::vnodes_known(&stage).await);
    let since = Timestamp::now();
    stage.agents()[0].restart()?;
    wait_metric(stage.agent(0)?, "stowage_agent_leader", &[], 1.0).await?;
    wait_renewed(&stage, &nodes, since, "agent-0", Duration::from_secs(15)).await?;
    for base in ["base-0", "base-1"] {
        queried(&*stage.base(base)?, 3).await?;
    }
    let node = stage.nodes().get(&name).await?;
    assert_eq!(vnodes::inventory(&node).modules.len(), 1);
    assert_eq!(
        node.metadata.labels.unwrap_or_default().get("stowage.dev/later").map(String::as_str),
        Some("yes")
    );
    wait::until("two Leases", SOON, async || {
        let leases = vnodes::leases(&stage).await?;
        if leases.len() == 2 { Ok(()) } else { Err(NotYet(format!("{} Leases", leases.len()))) }
    })
    .await?;
    assert_eq!(vnodes::uids(&stage.pods("app=shop").await?), vnodes::uids(&pods));
    assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 0));
    assert_eq!(
        stage.nodes().list(&ListParams::default().labels(harness::stage::VNODES)).await?.items.len(),
        2
    );
    ready.assert_quiet();
    known.assert_quiet();
    Ok(())
}
