//! The agent ends as by `kill -9` at every step of an install, a release in place and a deletion, and another start goes
//! on: the right state, nothing twice, and no install that the Node does not know of.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod ends;
mod vpods;

use std::{
    collections::BTreeSet,
    os::unix::process::ExitStatusExt,
    process::Command,
    time::{Duration, Instant},
};

use harness::{
    Failure, TestResult,
    arklet::{Fault, On},
    program::Program,
    stage::{ModuleSet, POLICY, Stage},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use policy::contract::{Inventory, names};
use serde_json::json;
use vpods::*;

/// The test build of the agent, and the variable that says where it ends.
const PROGRAM: &str = "stowage-agent-faults";
const VARIABLE: &str = "STOWAGE_FAULT_POINT";
/// How long a standby may take.
const TAKEOVER: Duration = Duration::from_secs(20);

/// Where the agent dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    /// At a fault point, when it is reached for the n-th time.
    At(&'static str, u32),
    /// By SIGKILL as soon as the base has read this request.
    OnTheWire(&'static str),
}
use Death::{At, OnTheWire};

const INSTALL: [Death; 11] = [
    At("InstallPlanned", 1),
    At("OwnerWritten", 1),
    At("InstallChecked", 1),
    OnTheWire("installBiz"),
    At("InstallAnswered", 1),
    At("InstallConfirmed", 1),
    At("OutcomeNoted", 1),
    At("StatusWriting", 1),
    At("StatusWritten", 1),
    At("StatusWriting", 2),
    At("StatusWritten", 2),
];
const RELEASE: [Death; 11] = [
    At("StatusWriting", 1),
    At("StatusWritten", 1),
    At("ReleaseDrained", 1),
    OnTheWire("uninstallBiz"),
    At("UninstallAnswered", 1),
    At("UninstallConfirmed", 1),
    At("OutcomeNoted", 1),
    At("OwnerWritten", 1),
    OnTheWire("installBiz"),
    At("InstallAnswered", 1),
    At("OutcomeNoted", 2),
];
const DELETE: [Death; 11] = [
    At("DrainBegun", 1),
    At("HooksDone", 1),
    At("Drained", 1),
    At("UninstallPlanned", 1),
    OnTheWire("uninstallBiz"),
    At("UninstallAnswered", 1),
    At("UninstallConfirmed", 1),
    At("OutcomeNoted", 1),
    At("ObjectDeleting", 1),
    At("ObjectDeleted", 1),
    At("StatusWritten", 1),
];

/// Each life dies one step further than the one before it: a step that was decided and not written is decided again.
const STEPS: [Death; 6] = [
    At("HealingWriting", 1),
    At("HealingWriting", 2),
    At("HealingWriting", 2),
    At("HealingWriting", 2),
    At("HealingWriting", 2),
    At("HealingWriting", 2),
];
/// Before and after the eviction of the module, then of the base.
const EVICTIONS: [Death; 4] =
    [At("HealingEvicting", 1), At("HealingEvicted", 1), At("HealingEvicting", 1), At("HealingEvicted", 1)];

/// The points that the test build has.
fn points() -> Result<BTreeSet<String>, Failure> {
    let output = Command::new(Program::find(PROGRAM)?).env(VARIABLE, "list").output()?;
    assert!(output.status.success());
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// Every point of the test build is a death of one of these tests; a point that does not exist is refused; and the shipped
/// program knows nothing of all this.
#[test]
fn every_fault_point_is_tried() -> TestResult {
    let operations = [INSTALL, RELEASE, DELETE].concat().into_iter();
    let tried: BTreeSet<_> = operations
        .chain(ends::ENDS.map(|point| At(point, 1)))
        .chain(STEPS)
        .chain(EVICTIONS)
        .filter_map(|death| if let At(point, _) = death { Some(point.to_owned()) } else { None })
        .collect();
    assert_eq!(tried, points()?);
    let unknown = Command::new(Program::find(PROGRAM)?).env(VARIABLE, "Nowhere").output()?;
    assert!(!unknown.status.success());
    assert!(String::from_utf8(unknown.stderr)?.contains("there is no point Nowhere"));
    let holds = |program: &str| -> Result<bool, Failure> {
        let code = std::fs::read(Program::find(program)?)?;
        Ok(code.windows(VARIABLE.len()).any(|window| window == VARIABLE.as_bytes()))
    };
    assert!(holds(PROGRAM)? && !holds("stowage-agent")?);
    Ok(())
}

/// What is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Install,
    Release,
    Delete,
}

/// One module through its life on `base-0`.
struct Walk<'a> {
    stage: &'a mut Stage,
    module: String,
    /// The orders in which the agent dies while the base stops the module.
    slow: Vec<Order>,
}

impl Walk<'_> {
    /// A jar whose module is taken off by this order; slowly, where the agent dies meanwhile and must find it at that.
    fn jar(&self, version: &str, taken_off: Order) -> Result<String, Failure> {
        let jar = self.stage.artifacts.module(&self.module, version);
        let stops = Duration::from_secs(if self.slow.contains(&taken_off) { 2 } else { 0 });
        Ok(jar.with(|jar| jar.stops_in(stops)).url()?)
    }

    fn arm(&mut self, agent: usize, death: Option<Death>) -> TestResult {
        let value = match death {
            Some(At(point, count)) => Some(format!("{point}:{count}")),
            _ => None,
        };
        let agent = &mut self.stage.agents()[agent];
        agent.set_env(VARIABLE, value.as_deref());
        agent.restart()?;
        Ok(())
    }

    /// Slow enough for the agent to be killed in the middle.
    fn slow_down(&self, death: Death) -> TestResult {
        let faults = self.stage.base("base-0")?;
        let faults = faults.faults()?;
        match death {
            OnTheWire("installBiz") => faults.next(1, On::install(), Fault::Slow(Duration::from_secs(2))),
            OnTheWire(_) | At(..) => return Ok(()),
        };
        Ok(())
    }

    async fn order(&self, order: Order) -> TestResult {
        let (stage, module) = (&*self.stage, self.module.as_str());
        let pods = stage.api::<Pod>();
        match order {
            Order::Install => {
                let set = ModuleSet::deployment(module, "1.0.0", &self.jar("1.0.0", Order::Release)?)
                    .pod_field("nodeName", json!(stage.vnode_of("base-0")))
                    // Nobody listens there: as for a kubelet, a hook that fails stops nothing.
                    .field("lifecycle", json!({"preStop": {"httpGet": {"path": "/", "port": 9}}}));
                stage.apply(&set.pod_yaml(module)).await?;
            }
            Order::Release => {
                let label = format!("{}{module}", names::MODULE_LABEL_PREFIX);
                let image = self.jar("2.0.0", Order::Delete)?;
                let patch = json!({
                    "metadata": {"labels": {(label): "2.0.0"}},
                    "spec": {"containers": [{"name": module, "image": image}]},
                });
                pods.patch(module, &PatchParams::default(), &Patch::Strategic(patch)).await?;
            }
            Order::Delete => {
                pods.delete(module, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }

    /// Waits until the agent is dead, and looks at what stands written then: no install is on a base whose owner is not on
    /// the Node.
    async fn dies(&self, agent: usize, death: Death) -> TestResult {
        let (stage, module) = (&*self.stage, self.module.as_str());
        let pod = stage.api::<Pod>().get_opt(module).await?.and_then(|pod| pod.uid());
        let base = stage.base("base-0")?;
        let agent = stage.agent(agent)?;
        if let OnTheWire(command) = death {
            let asked = |answered: bool| {
                move |entry: &harness::arklet::Entry| {
                    let same = entry.command == command && entry.module() == Some(module);
                    same && entry.answer.is_some() == answered
                }
            };
            let journal = base.journal()?;
            journal.until(SOON, |journal| journal.operations().iter().any(asked(false))).await?;
            agent.kill9();
        } else {
            let status = agent.wait_end(SOON).await?;
            assert_eq!(status.signal(), Some(6), "{death:?} of {module}: {status}");
        }
        let node = stage.nodes().get(&stage.vnode_of("base-0")).await?;
        let inventory = Inventory::parse(node.annotations().get(names::INVENTORY).expect("an inventory"))?;
        for biz in base.simulator()?.modules().iter().filter(|biz| biz.name == module) {
            let known = inventory.modules.iter().find(|known| {
                *known.name == *biz.name && *known.version == *biz.version && known.owner.is_some()
            });
            let owner = known.and_then(|known| known.owner.as_ref()).map(|owner| owner.uid.to_string());
            assert!(owner.is_some(), "{death:?}: {}:{} has no owner", biz.name, biz.version);
            assert!(pod.is_none() || owner == pod, "{death:?}: {}:{} of {owner:?}", biz.name, biz.version);
        }
        Ok(())
    }

    /// The state that an order comes to, and every call that was made for it: each once.
    async fn comes_true(&self, order: Order, after: Option<Death>) -> TestResult {
        let (stage, module) = (&*self.stage, self.module.as_str());
        let calls: &[&str] =
            &["installBiz 1.0.0", "uninstallBiz 1.0.0", "installBiz 2.0.0", "uninstallBiz 2.0.0"];
        let (version, calls) = match order {
            Order::Install => (Some("1.0.0"), &calls[..1]),
            Order::Release => (Some("2.0.0"), &calls[..3]),
            Order::Delete => (None, calls),
        };
        if let Some(version) = version {
            let id = format!(":{module}:{version}");
            pod_is(stage, module, &format!("Ready Pod at {version} after {after:?}"), |pod| {
                let runs = |status: &k8s_openapi::api::core::v1::ContainerStatus| {
                    status.ready && status.container_id.as_deref().is_some_and(|found| found.ends_with(&id))
                };
                harness::kubelet::is_ready(pod) && containers(pod).iter().all(runs)
            })
            .await?;
        } else {
            wait::gone(&stage.api::<Pod>(), module, SOON).await?;
        }
        let held: Vec<String> = version.map(|version| format!("{module}:{version}")).into_iter().collect();
        let held: Vec<&str> = held.iter().map(String::as_str).collect();
        stage.assert_bases_hold(&[("base-0", &held)]).await?;
        let deeds = deeds(&*stage.base("base-0")?)?;
        let mine: Vec<_> = deeds
            .iter()
            .filter_map(|deed| {
                let (command, id) = deed.split_once(' ')?;
                let version = id.strip_prefix(module)?.strip_prefix(':')?;
                Some(format!("{command} {version}"))
            })
            .collect();
        assert_eq!(mine, calls, "{order:?} after {after:?}");
        stage.assert_no_double_install()?;
        Ok(())
    }
}

/// Module after module is installed, released in place and deleted; in each of these the agent dies once and is started
/// again, which arms its next death.
async fn walks(lives: impl Iterator<Item = (usize, [Death; 3])>) -> TestResult {
    let policy = POLICY.replace("podsPerBase: 1", "podsPerBase: 5");
    let mut stage = Stage::builder().bases(1).policy(&policy).agent_program(PROGRAM).build().await?;
    for (number, deaths) in lives {
        let orders = [Order::Install, Order::Release, Order::Delete];
        let slow = orders.into_iter().zip(deaths).filter(|(_, death)| *death == OnTheWire("uninstallBiz"));
        let slow = slow.map(|(order, _)| order).collect();
        let mut walk = Walk { stage: &mut stage, module: format!("m{number}"), slow };
        for (order, death) in orders.into_iter().zip(deaths) {
            if let At("StatusWriting" | "StatusWritten", _) = death {
                // What is still to be told of the order before is not told to die at.
                queried(&*walk.stage.base("base-0")?, 2).await?;
            }
            walk.arm(0, Some(death))?;
            walk.stage.agent(0)?.wait_ready().await?;
            walk.slow_down(death)?;
            walk.order(order).await?;
            walk.dies(0, death).await?;
            walk.arm(0, None)?;
            walk.comes_true(order, Some(death)).await?;
        }
    }
    Ok(())
}

fn lives() -> impl Iterator<Item = (usize, [Death; 3])> {
    INSTALL.into_iter().zip(RELEASE).zip(DELETE).map(|((i, r), d)| [i, r, d]).enumerate()
}

#[tokio::test]
async fn an_agent_killed_at_an_even_step_goes_on() -> TestResult {
    Box::pin(walks(lives().filter(|(number, _)| number % 2 == 0))).await
}

#[tokio::test]
async fn an_agent_killed_at_an_odd_step_goes_on() -> TestResult {
    Box::pin(walks(lives().filter(|(number, _)| number % 2 == 1))).await
}

/// The same with a standby that takes over each time, within the time that it has.
#[tokio::test]
async fn the_standby_goes_on_where_the_leader_died() -> TestResult {
    let policy = POLICY.replace("podsPerBase: 1", "podsPerBase: 5");
    let mut stage =
        Stage::builder().bases(1).policy(&policy).agents(2).agent_program(PROGRAM).build().await?;
    let deaths = [
        (Order::Install, "InstallAnswered"),
        (Order::Release, "UninstallAnswered"),
        (Order::Delete, "Drained"),
    ];
    let mut walk = Walk { stage: &mut stage, module: "shop".to_owned(), slow: Vec::new() };
    // Both are armed before anything is ordered: whoever stands by reaches no point.
    walk.arm(1, Some(At(deaths[1].1, 1)))?;
    walk.arm(0, Some(At(deaths[0].1, 1)))?;
    let mut leader = 0;
    for (number, (order, point)) in deaths.into_iter().enumerate() {
        let term = format!("the term of agent {leader}");
        wait::until(&term, SOON, async || {
            let agent = walk.stage.agent(leader).map_err(|error| error.to_string())?;
            match agent.metric("stowage_agent_leader", &[]).await {
                Ok(leads) if leads > 0.0 => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        })
        .await?;
        walk.order(order).await?;
        walk.dies(leader, At(point, 1)).await?;
        let died = Instant::now();
        walk.comes_true(order, Some(At(point, 1))).await?;
        assert!(died.elapsed() < TAKEOVER + Duration::from_secs(10), "{:?}", died.elapsed());
        walk.arm(leader, deaths.get(number + 2).map(|(_, point)| At(point, 1)))?;
        leader = 1 - leader;
    }
    Ok(())
}

/// The agent dies at every step of a healing, twice over: the base is replaced once, and its module is installed once
/// elsewhere.
#[tokio::test]
async fn a_healing_goes_on_where_the_agent_died() -> TestResult {
    let policy = POLICY.replace("podsPerBase: 1", "podsPerBase: 5");
    let mut stage = Stage::builder().bases(3).policy(&policy).agent_program(PROGRAM).build().await?;
    let shop = ModuleSet::deployment("shop", "1.0.0", &jar(&stage, "shop", "1.0.0")?);
    stage.apply(&shop.yaml()).await?;
    for (number, deaths) in [&STEPS[..], &EVICTIONS[..]].into_iter().enumerate() {
        let pods = stage.wait_pods_ready("app=shop", 1).await?;
        let node = node_of(&pods[0]);
        let (bases, installs) = (stage.all_bases(), stage.installs("shop")?);
        let base =
            bases.iter().rev().find(|base| stage.vnode_of(base.pod()) == node).expect("its base").clone();
        base.faults()?.always(On::install().of("boom"), Fault::MetaspaceFull);
        let boom = format!("boom-{number}");
        let set = ModuleSet::deployment("boom", "1.0.0", &jar(&stage, "boom", "1.0.0")?)
            .pod_field("nodeName", json!(node));
        let mut walk = Walk { stage: &mut stage, module: boom.clone(), slow: Vec::new() };
        let mut died = 0;
        for death in deaths {
            walk.arm(0, Some(*death))?;
            if died == 0 {
                walk.stage.agent(0)?.wait_ready().await?;
                walk.stage.apply(&set.pod_yaml(&boom)).await?;
            }
            died += usize::from(dies_or_heals(walk.stage, &base, &boom).await?);
        }
        walk.arm(0, None)?;
        wait::until("a successor of the base", TAKEOVER * 9, async || heals(&stage, &base, &boom).await)
            .await?;
        assert!(died >= 3, "{deaths:?}: {died} deaths");
        stage.wait_vnodes_ready(3).await?;
        let moved = stage.wait_pods_ready("app=shop", 1).await?;
        assert_ne!(node_of(&moved[0]), node, "it did not wait for the new base");
        assert_eq!(stage.installs("shop")?, installs + 1);
        assert_eq!(stage.all_bases().len(), bases.len() + 1, "one new base");
        stage.assert_no_double_install()?;
    }
    Ok(())
}

/// Whether the base has a Ready successor; what made it sick is taken away as soon as the Node says that it is.
async fn heals(stage: &Stage, base: &harness::stage::Base, boom: &str) -> Result<(), String> {
    let node = stage.nodes().get_opt(&stage.vnode_of(base.pod())).await.map_err(|error| error.to_string())?;
    if node.is_some_and(|node| node.annotations().contains_key(names::HEALING)) {
        // Gone by now, or in a moment.
        stage.api::<Pod>().delete(boom, &DeleteParams::default()).await.ok();
    }
    let pod = stage.base_pods().get_opt(base.pod()).await.map_err(|error| error.to_string())?;
    match pod {
        Some(pod) if pod.uid().as_deref() != Some(base.uid()) && harness::kubelet::is_ready(&pod) => Ok(()),
        _ => Err("not yet".to_owned()),
    }
}

/// Waits until the agent is dead, or the base has a successor, and says whether it is dead.
async fn dies_or_heals(stage: &Stage, base: &harness::stage::Base, boom: &str) -> Result<bool, Failure> {
    let agent = stage.agent(0)?;
    let seen = wait::until("a death, or the end of the healing", TAKEOVER * 9, async || {
        let healed = heals(stage, base, boom).await;
        if agent.exit_status().is_some() { Ok(true) } else { healed.map(|()| false) }
    });
    Ok(seen.await?)
}
