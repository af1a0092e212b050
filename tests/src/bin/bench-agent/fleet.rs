//! The bases, the agent, and what is done with them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use harness::{
    controlplane::Options,
    kubelet::is_ready,
    stage::{Base, BaseSet, ModuleSet, Stage},
    usage, wait,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use tokio::task::JoinHandle;

use crate::{
    Args,
    samples::{Idle, Latencies, Rates, Restart, between},
};

/// Writes under way at once.
const WRITES: usize = 16;
/// Longest time for anything.
const LIMIT: Duration = Duration::from_mins(10);
/// An agent that writes nothing but Leases and heartbeats for so long has nothing to do.
const QUIET: Duration = Duration::from_secs(2);
/// Seconds from one heartbeat of a VNode to the next.
const HEARTBEAT: f64 = 300.0;
const VERSION: &str = "1.0.0";
/// Holds no Pod back: no limit of downloads, and room on every base for both measurements.
const POLICY: &str = "\
apiVersion: policy.stowage.dev/v1alpha1
kind: PlacementPolicy
defaults: {podsPerBase: 4}
---
apiVersion: policy.stowage.dev/v1alpha1
kind: OperationsPolicy
install: {downloadsAtOnce: 0}
";

/// A control plane with bases, and an agent.
pub(crate) struct Fleet {
    stage: Stage,
    bases: Vec<Arc<Base>>,
    seen: Arc<Seen>,
    _watch: Watch,
}

/// What a watch of Pods shows.
#[derive(Default)]
struct Seen {
    bound_since: Mutex<HashMap<String, Timestamp>>,
    ready_since: Mutex<HashMap<String, Timestamp>>,
    /// Pods that were Ready and are not.
    lost: Mutex<HashMap<String, Timestamp>>,
}

struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Fleet {
    pub(crate) async fn set_up(args: &Args) -> anyhow::Result<Self> {
        let small = |pod: &mut serde_json::Value| {
            if let Some(container) = pod.pointer_mut("/containers/0").and_then(|found| found.as_object_mut())
            {
                container.remove("resources");
            }
        };
        let set = BaseSet::stateful("base", "2.1.0", args.bases).pod_spec(small);
        let options = Options {
            controller_manager_args: vec!["--kube-api-qps=1000".to_owned()],
            ..Options::named("bench-agent")
        };
        let stage = Stage::builder()
            .base_set(set)
            .exclusive(options)
            .policy(POLICY)
            .without_waiting()
            .build()
            .await?;
        let count = args.bases as usize;
        let ready = |pods: &[&Pod]| {
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            if ready == count { Ok(()) } else { Err(format!("{ready} of {count}")) }
        };
        stage.wait_pods("app=base", "bases", LIMIT, ready).await?;
        let shown = |nodes: &[&Node]| {
            let ready = nodes.iter().filter(|node| answers(node)).count();
            if ready == count { Ok(()) } else { Err(format!("{ready} of {count}")) }
        };
        stage.wait_vnodes("VNodes", LIMIT, shown).await?;
        let bases = stage.all_bases();
        let seen = Arc::new(Seen::default());
        let watch = Watch(tokio::spawn(follow(stage.api(), Arc::clone(&seen))));
        Ok(Self { stage, bases, seen, _watch: watch })
    }

    /// Waits until the agent has written all that it had to, then measures for some seconds in which nobody asks for
    /// anything.
    pub(crate) async fn idle(&self, seconds: u64) -> anyhow::Result<Idle> {
        self.settle().await?;
        let agent = self.stage.agent(0)?;
        let (began, before, writes) =
            (Instant::now(), usage::processor_seconds(agent.id())?, self.writes().await?);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let (after, later) = (usage::processor_seconds(agent.id())?, self.writes().await?);
        let passed = began.elapsed().as_secs_f64();
        Ok(Idle {
            memory_mib: usage::memory_mib(agent.id())?,
            anonymous_mib: usage::anonymous_mib(agent.id())?,
            peak_mib: usage::peak_memory_mib(agent.id())?,
            processor_percent: (after - before) / passed * 100.0,
            lease_writes_per_s: (later.0 - writes.0) / passed,
            other_writes_per_s: (later.1 - writes.1) / passed,
        })
    }

    /// Waits for two seconds in which the agent wrote nothing but Leases and at most twice the heartbeats that are due.
    async fn settle(&self) -> anyhow::Result<()> {
        let bases = f64::from(u32::try_from(self.bases.len())?);
        let heartbeats = 2.0 * QUIET.as_secs_f64() * bases / HEARTBEAT;
        let mut last = (Instant::now(), f64::NAN);
        wait::until("pause in the agent's writes", LIMIT, async || {
            let (_, others) = self.writes().await.map_err(|error| error.to_string())?;
            if last.1.is_nan() || others - last.1 > heartbeats {
                last = (Instant::now(), others);
            }
            if last.0.elapsed() >= QUIET { Ok(()) } else { Err(format!("{others} writes so far")) }
        })
        .await?;
        Ok(())
    }

    /// Writes of the agent so far: to Leases, and all others.
    async fn writes(&self) -> anyhow::Result<(f64, f64)> {
        let text = self.stage.agent(0)?.get("/metrics").await?;
        let (mut leases, mut others) = (0.0, 0.0);
        for line in text.lines().filter(|line| line.starts_with("stowage_agent_api_calls_total{")) {
            let reads =
                ["get", "list", "watch"].iter().any(|verb| line.contains(&format!("verb=\"{verb}\"")));
            let count: f64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default();
            if line.contains("resource=\"leases\"") {
                leases += count;
            } else if !reads {
                others += count;
            }
        }
        Ok((leases, others))
    }

    /// Pods one after the other.
    pub(crate) async fn single(&self, count: usize) -> anyhow::Result<Latencies> {
        let mut latencies = Latencies::default();
        for (index, base) in (0..count).zip(self.bases.iter().cycle()) {
            let (pod, module) = (format!("single-{index}"), format!("single-{index}"));
            self.stage.artifacts.module(&module, VERSION).url()?;
            self.create(&pod, &module).await?;
            let bound = self.bind(&pod, base).await?;
            self.wait_ready(std::slice::from_ref(&pod)).await?;
            self.measure(&pod, &module, base, bound, &mut latencies)?;
        }
        Ok(latencies)
    }

    /// Pods on as many bases, all at once.
    pub(crate) async fn burst(&self, count: usize) -> anyhow::Result<(Latencies, Rates)> {
        let pods: Vec<(String, &Arc<Base>)> =
            (0..count).map(|index| format!("burst-{index}")).zip(&self.bases).collect();
        self.stage.artifacts.module("burst", VERSION).url()?;
        stream::iter(&pods)
            .map(|(pod, _)| self.create(pod, "burst"))
            .buffer_unordered(WRITES)
            .try_collect::<Vec<()>>()
            .await?;
        let node_writes = self.node_writes(&pods).await?;
        self.settle().await?;
        let began = (Instant::now(), Timestamp::now());
        let bound: Vec<Timestamp> = stream::iter(&pods)
            .map(|(pod, base)| self.bind(pod, base))
            .buffered(WRITES)
            .try_collect()
            .await?;
        let bindings = began.0.elapsed();
        let names: Vec<String> = pods.iter().map(|(pod, _)| pod.clone()).collect();
        self.wait_ready(&names).await?;
        let mut latencies = Latencies::default();
        for ((pod, base), bound) in pods.iter().zip(&bound) {
            self.measure(pod, "burst", base, *bound, &mut latencies)?;
        }
        let ends = latencies.to_install.iter().zip(&bound).map(|(after, bound)| *bound + *after);
        let installs = ends.max().map(|last| between(began.1, last)).unwrap_or_default();
        Ok((latencies, Rates { bindings, node_writes, installs }))
    }

    /// Writes each Node once, as many at once as the bindings: the raw rate of the API server for the writes that installs
    /// wait for.
    async fn node_writes(&self, pods: &[(String, &Arc<Base>)]) -> anyhow::Result<Duration> {
        let text = "x".repeat(300);
        let patch = serde_json::json!({"metadata": {"annotations": {"bench.example.com/raw": text}}});
        let (nodes, patch): (Api<Node>, _) = (Api::all(self.stage.client()), Patch::Strategic(patch));
        let began = Instant::now();
        stream::iter(pods)
            .map(|(_, base)| {
                let (nodes, patch, name) = (&nodes, &patch, self.stage.vnode_of(base.pod()));
                async move { nodes.patch_status(&name, &PatchParams::default(), patch).await }
            })
            .buffer_unordered(WRITES)
            .try_collect::<Vec<Node>>()
            .await?;
        Ok(began.elapsed())
    }

    /// Kills the agent and starts it again.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<Restart> {
        let (operations, asked) = (self.operations()?, self.asked()?);
        self.seen.lost.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.stage.agents().first_mut().context("no agent")?.restart()?;
        let began = Instant::now();
        wait::until("question to every base", LIMIT, async || {
            let now = self.asked().map_err(|error| error.to_string())?;
            let left = now.iter().zip(&asked).filter(|(now, before)| now <= before).count();
            if left == 0 { Ok(()) } else { Err(format!("{left} bases not asked")) }
        })
        .await?;
        let all_asked = began.elapsed();
        self.idle(20).await?;
        let later = self.operations()?;
        let not_ready = self.seen.lost.lock().unwrap_or_else(PoisonError::into_inner).len();
        Ok(Restart {
            all_asked,
            installs: later.0 - operations.0,
            uninstalls: later.1 - operations.1,
            not_ready,
        })
    }

    /// `installBiz` and `uninstallBiz` at all bases so far.
    fn operations(&self) -> anyhow::Result<(usize, usize)> {
        let mut sum = (0, 0);
        for base in &self.bases {
            let journal = base.journal()?;
            sum = (sum.0 + journal.count("installBiz"), sum.1 + journal.count("uninstallBiz"));
        }
        Ok(sum)
    }

    /// Queries at each base so far.
    fn asked(&self) -> anyhow::Result<Vec<usize>> {
        self.bases.iter().map(|base| Ok(base.journal()?.count("queryAllBiz"))).collect()
    }

    async fn create(&self, name: &str, module: &str) -> anyhow::Result<()> {
        let url = self.stage.artifacts.url(&format!("{module}-{VERSION}.jar"));
        let text = ModuleSet::deployment(module, VERSION, &url).pod_yaml(name);
        let mut pod: Pod = serde_json::from_str(&text)?;
        // Nobody binds it but this program.
        pod.spec.get_or_insert_default().scheduler_name = Some("bench".to_owned());
        self.stage.api::<Pod>().create(&PostParams::default(), &pod).await?;
        Ok(())
    }

    /// Binds a Pod and says when it began to.
    async fn bind(&self, name: &str, base: &Base) -> anyhow::Result<Timestamp> {
        let target = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.stage.vnode_of(base.pod())),
            ..ObjectReference::default()
        };
        let mut binding = Binding { target, ..Binding::default() };
        binding.metadata.name = Some(name.to_owned());
        let began = Timestamp::now();
        let answer: serde_json::Value = self
            .stage
            .api::<Pod>()
            .create_subresource("binding", name, &PostParams::default(), &binding)
            .await?;
        ensure!(answer.get("status").and_then(|status| status.as_str()) != Some("Failure"), "{answer}");
        Ok(began)
    }

    async fn wait_ready(&self, pods: &[String]) -> anyhow::Result<()> {
        wait::until("Ready Pods", LIMIT, async || {
            let ready = self.seen.ready_since.lock().unwrap_or_else(PoisonError::into_inner);
            let left = pods.iter().filter(|pod| !ready.contains_key(*pod)).count();
            if left == 0 { Ok(()) } else { Err(format!("{left} Pods are not Ready")) }
        })
        .await?;
        Ok(())
    }

    fn measure(
        &self,
        pod: &str,
        module: &str,
        base: &Base,
        bound: Timestamp,
        latencies: &mut Latencies,
    ) -> anyhow::Result<()> {
        let operations = base.journal()?.operations();
        let install =
            operations.iter().find(|entry| entry.module() == Some(module)).context("no installBiz")?;
        let answer = install.answer.as_ref().context("no answer to installBiz")?;
        let answered = install.at + answer.after;
        let ready = self.seen.ready_since.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = *ready.get(pod).with_context(|| format!("{pod} was not seen Ready"))?;
        let seen = self.seen.bound_since.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = *seen.get(pod).with_context(|| format!("{pod} was not seen bound"))?;
        latencies.to_watch.push(between(bound, seen));
        latencies.watch_to_install.push(between(seen, install.at));
        latencies.to_install.push(between(bound, install.at));
        latencies.to_ready.push(between(answered, ready));
        Ok(())
    }
}

fn answers(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn follow(pods: Api<Pod>, seen: Arc<Seen>) {
    let config = watcher::Config::default().labels("app!=base");
    let mut events = std::pin::pin!(watcher(pods, config).default_backoff().applied_objects());
    while let Some(event) = events.next().await {
        // A broken watch begins again by itself.
        let Ok(pod) = event else { continue };
        if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
            let mut bound = seen.bound_since.lock().unwrap_or_else(PoisonError::into_inner);
            bound.entry(pod.name_any()).or_insert_with(Timestamp::now);
        }
        let mut ready = seen.ready_since.lock().unwrap_or_else(PoisonError::into_inner);
        if is_ready(&pod) {
            ready.entry(pod.name_any()).or_insert_with(Timestamp::now);
        } else if ready.contains_key(&pod.name_any()) {
            seen.lost.lock().unwrap_or_else(PoisonError::into_inner).insert(pod.name_any(), Timestamp::now());
        }
    }
}
