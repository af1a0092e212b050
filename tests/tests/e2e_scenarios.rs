//! What happens to whole fleets: a rollout of the bases under many modules, a restore of etcd under a running agent, a
//! fleet that is filled at once.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test stops at what it did not expect")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures::StreamExt;
use harness::{
    Failure, TestResult,
    arklet::Entry,
    artifact::Trouble,
    controlplane::Options,
    kubelet::is_ready,
    stage::{BaseSet, ModuleSet, Stage, StageError},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use policy::contract::names;
use serde_json::json;
use tokio::{sync::watch, task::JoinSet};

mod vnodes;
use vnodes::*;

/// Set to run the scenarios with as many bases and modules as they are meant for. That takes a quarter of an hour on two
/// cores.
const FULL: &str = "STOWAGE_FULL_SCENARIOS";

/// How large a scenario is, and how long its steps may take on a machine that does other things too.
#[derive(Debug, Clone, Copy)]
struct Size {
    bases: u32,
    modules: u32,
    /// Downloads at once that a server of artifacts bears.
    downloads: usize,
    /// How long each takes there.
    download: Duration,
    limit: Duration,
}

impl Size {
    /// 60 bases with 30 modules each if that is asked for, else a fifth of both: a 25th of the Pods.
    fn wanted() -> Self {
        if std::env::var_os(FULL).is_some_and(|value| value != "0") {
            let (download, limit) = (Duration::from_millis(300), Duration::from_mins(20));
            Self { bases: 60, modules: 30, downloads: 20, download, limit }
        } else {
            let (download, limit) = (Duration::from_millis(100), Duration::from_mins(3));
            Self { bases: 12, modules: 6, downloads: 4, download, limit }
        }
    }

    fn names(self) -> Vec<String> {
        let others = (1..self.modules).map(|number| format!("module-{number}"));
        std::iter::once("core".to_owned()).chain(others).collect()
    }

    /// Room for all modules on each base, and nothing that is given up early.
    fn policy(self) -> String {
        policy(&[
            ("podsPerBase: 1", &format!("podsPerBase: {}", self.modules)),
            ("drain: {", "gates: {modulesReadyLimit: never}\ndrain: {"),
        ])
    }
}

/// Module Pods as a watch shows them, counted at every single event.
#[derive(Debug, Clone, Default)]
struct Census {
    /// UID to module, and whether the Pod takes traffic.
    pods: BTreeMap<String, (String, bool)>,
    /// Pods that take traffic, by module.
    ready: BTreeMap<String, usize>,
    /// The fewest there were of a module, since [`Watched::count_anew`].
    least: BTreeMap<String, usize>,
    /// Names of Pods that were ever Failed.
    failed: BTreeSet<String>,
}

impl Census {
    fn put(&mut self, pod: &Pod) {
        let Some(module) = pod.labels().get("app").cloned() else { return };
        if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Failed") {
            self.failed.insert(pod.name_any());
        }
        let serves = is_ready(pod) && pod.metadata.deletion_timestamp.is_none();
        let before = self.pods.insert(uid(pod), (module.clone(), serves));
        self.count(&module, before.is_some_and(|(_, served)| served), serves);
    }

    fn remove(&mut self, pod: &Pod) {
        if let Some((module, served)) = self.pods.remove(&uid(pod)) {
            self.count(&module, served, false);
        }
    }

    fn count(&mut self, module: &str, before: bool, after: bool) {
        let ready = self.ready.entry(module.to_owned()).or_default();
        *ready = *ready + usize::from(after) - usize::from(before);
        if let Some(least) = self.least.get_mut(module) {
            *least = (*least).min(*ready);
        }
    }

    /// Whether each of these modules has so many Pods, all of which take traffic.
    fn is_full(&self, modules: &[String], each: usize) -> bool {
        self.pods.len() == modules.len() * each
            && modules.iter().all(|module| self.ready.get(module) == Some(&each))
    }
}

/// Follows all module Pods of a stage.
struct Watched {
    census: watch::Receiver<Census>,
    reset: watch::Sender<u64>,
    _task: JoinSet<()>,
}

impl Watched {
    fn start(stage: &Stage) -> Self {
        let api: Api<Pod> = stage.api();
        let (sender, census) = watch::channel(Census::default());
        let (reset, mut resets) = watch::channel(0);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let config = watcher::Config::default().labels(&format!("{}=true", names::MODULE_POD));
            let mut events = std::pin::pin!(watcher(api, config).default_backoff());
            loop {
                tokio::select! {
                    Some(event) = events.next() => sender.send_modify(|census| match event {
                        Ok(Event::Apply(pod) | Event::InitApply(pod)) => census.put(&pod),
                        Ok(Event::Delete(pod)) => census.remove(&pod),
                        Ok(Event::Init | Event::InitDone) | Err(_) => {}
                    }),
                    Ok(()) = resets.changed() => {
                        resets.borrow_and_update();
                        sender.send_modify(|census| census.least = census.ready.clone());
                    }
                    else => return,
                }
            }
        });
        Self { census, reset, _task: task }
    }

    /// Waits until a census is as wanted.
    async fn wait(&mut self, what: &str, limit: Duration, wanted: impl Fn(&Census) -> bool) -> TestResult {
        let reached = tokio::time::timeout(limit, self.census.wait_for(|census| wanted(census))).await;
        if let Ok(reached) = reached.map(|seen| seen.map(drop)) {
            return Ok(reached?);
        }
        let census = self.census.borrow();
        Err(Failure::from(format!(
            "no {what} within {limit:?}: {} Pods, Ready {:?}",
            census.pods.len(),
            census.ready
        )))
    }

    /// The least is counted anew.
    async fn count_anew(&mut self) -> TestResult {
        self.reset.send_modify(|number| *number += 1);
        self.wait("new count", SOON, |census| !census.least.is_empty()).await
    }
}

fn url(stage: &Stage, module: &str, version: &str) -> Result<String, Failure> {
    Ok(stage.artifacts.module(module, version).url()?)
}

/// The bases roll while every one of them carries the modules of many `DaemonSets`. Each new base waits for its modules
/// before the rollout goes on, so that none of them ever has fewer than 70 % of its instances Ready.
#[tokio::test]
async fn a_rollout_of_bases_keeps_the_modules_up() -> TestResult {
    let size = Size::wanted();
    let each = size.bases as usize;
    let bases = |version: &str| {
        BaseSet::deployment("base", version, size.bases)
            .pod_spec(|pod| pod["readinessGates"] = json!([{"conditionType": names::MODULES_READY_GATE}]))
    };
    let stage = Stage::builder().policy(&size.policy()).base_set(bases("2.1.0")).build().await?;
    let modules = size.names();
    let mut watched = Watched::start(&stage);
    let begun = Instant::now();
    for module in &modules {
        stage.apply(&ModuleSet::daemon_set(module, "1.0.0", &url(&stage, module, "1.0.0")?).yaml()).await?;
    }
    watched.wait("Ready modules on all bases", size.limit, |census| census.is_full(&modules, each)).await?;
    let filled = begun.elapsed();

    // 25 % surge and 25 % unavailable are the defaults of a Deployment.
    watched.count_anew().await?;
    let begun = Instant::now();
    stage.apply_bases(&bases("2.2.0")).await?;
    let limit = format!("--timeout={}s", size.limit.as_secs());
    stage.base_kubectl()?.run(&["rollout", "status", "deployment", "base", &limit]).await?;
    watched
        .wait("Ready modules on the new bases", size.limit, |census| census.is_full(&modules, each))
        .await?;
    let census = watched.census.borrow().clone();
    let least = modules.iter().map(|module| census.least[module]).min().expect("modules");
    println!(
        "{each} bases x {} modules: filled in {filled:.1?}, rolled in {:.1?}, never fewer than {least} of {each} Ready",
        modules.len(),
        begun.elapsed()
    );
    for module in &modules {
        let least = census.least[module];
        assert!(least * 10 >= each * 7, "{module} had only {least} of {each} instances Ready");
    }
    assert_eq!(census.failed, BTreeSet::new());
    let wanted: Vec<(String, usize)> =
        modules.iter().map(|module| (format!("{module}:1.0.0"), each)).collect();
    let wanted: Vec<(&str, usize)> = wanted.iter().map(|(module, count)| (module.as_str(), *count)).collect();
    stage.wait_modules(&wanted).await?;
    stage.assert_no_double_install()?;
    for module in &modules {
        assert_eq!(stage.installs(module)?, 2 * each, "{module}: one install on each base, old and new");
    }
    Ok(())
}

/// etcd goes back to an older state under a running agent: some VPods are one version older, some were never made. The
/// brake holds everything on the bases until an operator lets it go; then the bases get exactly what the API says.
#[tokio::test]
async fn a_restore_of_etcd_removes_nothing_by_itself() -> TestResult {
    const BASES: usize = 8;
    let builder = Stage::builder().exclusive(Options::named("restored")).bases(8).pods_per_base(2);
    let mut stage = builder.build().await?;
    run_shop(&stage, 8).await?;
    let backup = stage.cluster()?.backup()?;

    // The hour after: a release, and a module that is new.
    let release = ModuleSet::deployment("shop", "2.0.0", &url(&stage, "shop", "2.0.0")?).replicas(8);
    stage.apply(&release.max_unavailable(json!("50%")).yaml()).await?;
    stage
        .apply(&ModuleSet::deployment("cart", "1.0.0", &url(&stage, "cart", "1.0.0")?).replicas(8).yaml())
        .await?;
    stage.wait_modules(&[("shop:2.0.0", BASES), ("cart:1.0.0", BASES)]).await?;
    stage.wait_pods_ready("app=cart", BASES).await?;
    stage.wait_pods_ready("app=shop", BASES).await?;
    let operations = |stage: &Stage| -> Result<[usize; 4], StageError> {
        let (shop, cart) = ("shop", "cart");
        Ok([stage.installs(shop)?, stage.uninstalls(shop)?, stage.installs(cart)?, stage.uninstalls(cart)?])
    };
    assert_eq!(operations(&stage)?, [2 * BASES, BASES, BASES, 0]);

    stage.restore(&backup).await?;
    wait_brake(stage.agent(0)?, "modules", true).await?;
    wait::throughout("modules left alone", Duration::from_secs(20), async || {
        let done = operations(&stage)?;
        if done == [2 * BASES, BASES, BASES, 0] { Ok(()) } else { Err(NotYet(format!("{done:?}"))) }
    })
    .await?;
    stage.wait_modules(&[("shop:2.0.0", BASES), ("cart:1.0.0", BASES)]).await?;
    assert_eq!(stage.pods("app=cart").await?.len(), 0, "the state is the older one");

    release_brake(&stage).await?;
    stage.wait_modules(&[("shop:1.0.0", BASES)]).await?;
    stage.wait_pods_ready("app=shop", BASES).await?;
    assert_eq!(operations(&stage)?, [3 * BASES, 2 * BASES, BASES, BASES]);
    stage.assert_no_double_install()?;
    Ok(())
}

/// Every base gets all its modules at once, from a server of artifacts that refuses more downloads than it can bear. The
/// policy keeps below that, and nothing is refused. Without the policy's limit it refuses: that is tried again, all modules
/// run in the end, the one that the others require is the first on each base, and not one Pod fails on the way.
#[tokio::test]
async fn a_fleet_is_filled_from_a_server_that_refuses() -> TestResult {
    let size = Size { modules: Size::wanted().modules + 1, ..Size::wanted() };
    let (each, bearable) = (size.bases as usize, size.downloads);
    let needs = "compatibility:\n- {module: 'module-*', requires: {modules: [{name: core}]}}\nscoring:\n";
    let careless =
        size.policy().replace("scoring:\n", needs).replace("downloadsAtOnce: 20", "downloadsAtOnce: 0");
    // The server counts a download a little longer than the base that has it.
    let careful = careless.replace("downloadsAtOnce: 0", &format!("downloadsAtOnce: {}", bearable / 2));
    let stage = Stage::builder().policy(&careful).bases(size.bases).build().await?;
    stage.artifacts.limit(Some(bearable));
    stage.artifacts.always(None, Trouble::Slow(size.download));
    let mut watched = Watched::start(&stage);
    let everywhere = async |modules: &[String]| -> TestResult {
        let mut all = Vec::new();
        for module in modules {
            let url = stage.artifacts.module(module, "1.0.0").with(|jar| jar.padding(1 << 16)).url()?;
            all.push(ModuleSet::deployment(module, "1.0.0", &url).replicas(size.bases).yaml());
        }
        stage.apply(&all.join("\n---\n")).await?;
        Ok(())
    };
    let refusals = async || -> Result<usize, Failure> {
        let refused = ["result=\"ArtifactServer\""];
        let told = stage.agent(0)?.metric("stowage_agent_installs_total", &refused).await?;
        let (_, refused) = stage.artifacts.pressure();
        let difference = told - f64::from(u32::try_from(refused)?);
        assert!(difference.abs() < 0.5, "{refused} refused, and the agent counts {told}");
        Ok(refused)
    };

    let (early, rest) = (["early".to_owned()], &size.names()[..size.modules as usize - 1]);
    everywhere(&early).await?;
    watched.wait("Ready early modules", size.limit, |census| census.is_full(&early, each)).await?;
    assert_eq!(refusals().await?, 0, "the policy keeps below what the server bears");

    // The first downloads last until there is one too many, however slowly the machine orders them.
    stage.artifacts.heal();
    stage.artifacts.limit(Some(bearable));
    stage.artifacts.next(bearable, None, Trouble::Crowd);
    stage.artifacts.always(None, Trouble::Slow(size.download));
    change_policy(&stage, &careless).await?;
    let begun = Instant::now();
    everywhere(rest).await?;
    let modules: Vec<String> = early.iter().chain(rest).cloned().collect();
    watched.wait("Ready modules everywhere", size.limit, |census| census.is_full(&modules, each)).await?;
    let (refused, took) = (refusals().await?, begun.elapsed());
    let journals = stage.all_bases().into_iter().map(|base| base.journal().cloned());
    let journals = journals.collect::<Result<Vec<_>, _>>()?;
    let tries = journals.iter().flat_map(|journal| rest.iter().map(|module| journal.installs(module))).max();
    println!(
        "{each} bases x {} modules at once: all Ready after {took:.1?}, {refused} downloads refused, at most {} tries",
        rest.len(),
        tries.unwrap_or_default()
    );
    assert!(refused > 0, "nothing was refused");
    assert_eq!(watched.census.borrow().failed, BTreeSet::new());
    stage.assert_no_double_install()?;
    let (mut installs, mut uninstalls) = (0, 0);
    for module in &modules {
        (installs, uninstalls) = (installs + stage.installs(module)?, uninstalls + stage.uninstalls(module)?);
    }
    assert_eq!(
        (installs, uninstalls),
        (each * modules.len() + refused, 0),
        "what was refused was tried again"
    );
    for journal in journals {
        let operations = journal.operations();
        let succeeded = |entry: &Entry| {
            entry.answer.as_ref().is_some_and(|answer| answer.inner.as_deref() == Some("SUCCESS"))
        };
        let core = |entry: &Entry| entry.module() == Some("core") && succeeded(entry);
        let needs_core = |entry: &Entry| entry.module().is_some_and(|module| module.starts_with("module-"));
        let (core, others) = (operations.iter().position(core), operations.iter().position(needs_core));
        assert!(core.is_some() && core < others, "{operations:?}");
    }
    Ok(())
}
