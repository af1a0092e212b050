//! One burst: Pods, a scheduler that finds them, and what it took.

use std::{
    collections::HashSet,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use harness::{
    controlplane::ControlPlane, fetch, network, program::Program, samples, usage, wait, workdir::Workdir,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::watcher::{self, Event},
};
use tokio::sync::oneshot;

use crate::{Args, Mode, null_extender::NullExtender, objects};

const NAMESPACE: &str = "default";
/// Writes under way at once.
const WRITES: usize = 32;
/// Longest time for one burst.
const LIMIT: Duration = Duration::from_mins(2);

/// What one burst took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// Bindings per second, from the first seen to the last.
    pub(crate) pods_per_s: f64,
    /// Processor seconds of kube-scheduler per 1,000 Pods.
    pub(crate) scheduler: f64,
    /// The same of our extender.
    pub(crate) extender: Option<Handling>,
}

/// What our extender says about a burst.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handling {
    /// Processor seconds per 1,000 Pods.
    pub(crate) processor: f64,
    /// Mean time of a filter in ms, waiting included.
    pub(crate) filter: f64,
    /// Mean time of a prioritize in ms.
    pub(crate) prioritize: f64,
    /// Filters that ended without a verdict because of placements not yet seen.
    pub(crate) reserved: f64,
}

/// A control plane with VNodes.
pub(crate) struct Bench<'a> {
    control_plane: &'a ControlPlane,
    null: &'a NullExtender,
    client: Client,
    args: Args,
    files: Workdir,
}

/// Our extender, running.
struct Ours {
    program: Program,
    url: String,
    admin: String,
}

impl<'a> Bench<'a> {
    /// Makes the VNodes.
    pub(crate) async fn prepare(
        control_plane: &'a ControlPlane,
        null: &'a NullExtender,
        args: Args,
    ) -> anyhow::Result<Self> {
        let client = control_plane.client()?;
        let nodes: Api<Node> = Api::all(client.clone());
        let taints = objects::taints();
        stream::iter(0..args.vnodes)
            .map(|index| post(&nodes, index, args.slots, &taints))
            .buffer_unordered(WRITES)
            .try_collect::<()>()
            .await?;
        let files = Workdir::new("bench-scheduler")?;
        Ok(Self { control_plane, null, client, args, files })
    }

    /// Runs one burst and cleans up after it.
    pub(crate) async fn run(&self, mode: Mode) -> anyhow::Result<Sample> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.create_pods(&pods).await?;
        let ours = match mode {
            Mode::None | Mode::Null | Mode::Silent => None,
            Mode::Normal | Mode::Decisive => Some(self.start_ours(mode).await?),
        };
        let sample = self.measure(mode, &pods, ours.as_ref()).await?;
        drop(ours);
        pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
        wait::until("an empty namespace", LIMIT, async || {
            let left = pods.list_metadata(&ListParams::default().limit(1)).await;
            let left = left.map_err(|error| error.to_string())?.items.len();
            if left == 0 { Ok(()) } else { Err("Pods are left".to_owned()) }
        })
        .await?;
        Ok(sample)
    }

    async fn create_pods(&self, pods: &Api<Pod>) -> anyhow::Result<()> {
        let modules = self.args.modules;
        stream::iter(0..self.args.pods)
            .map(async |index| {
                let pod = objects::pod(index, modules)?;
                pods.create(&PostParams::default(), &pod).await.context("a Pod was not made")?;
                Ok(())
            })
            .buffer_unordered(WRITES)
            .try_collect()
            .await
    }

    async fn start_ours(&self, mode: Mode) -> anyhow::Result<Ours> {
        let policy =
            self.files.write(&format!("{}.yaml", mode.name()), &objects::policy(&self.args, mode))?;
        let (port, admin) = (network::free_port()?, network::free_port()?);
        let program = Program::new("stowage-extender")
            .arg(format!("--listen=127.0.0.1:{port}"))
            .arg(format!("--admin-address=127.0.0.1:{admin}"))
            .arg(format!("--policy-file={}", policy.display()))
            .arg(format!("--kubeconfig={}", self.control_plane.kubeconfig_path().display()))
            .start()?;
        let admin = format!("http://127.0.0.1:{admin}");
        program.wait_http(&format!("{admin}/readyz")).await?;
        Ok(Ours { program, url: format!("http://127.0.0.1:{port}/scheduler"), admin })
    }

    async fn measure(&self, mode: Mode, pods: &Api<Pod>, ours: Option<&Ours>) -> anyhow::Result<Sample> {
        let (null, silent) = (self.null.url(), self.null.silent_url());
        let url = match mode {
            Mode::None => None,
            Mode::Null => Some(null.as_str()),
            Mode::Silent => Some(silent.as_str()),
            Mode::Normal | Mode::Decisive => ours.map(|ours| ours.url.as_str()),
        };
        let configuration = objects::scheduler(url)?;
        let (first, bound_first) = oneshot::channel();
        let (last, bound_last) = oneshot::channel();
        let (listed, begun) = oneshot::channel();
        let watch = tokio::spawn(follow(pods.clone(), self.args.pods, listed, first, last));
        let measured = async {
            begun.await.context("the watch ended")?;
            let scheduler = self.control_plane.start_scheduler(mode.name(), &configuration).await?;
            let pid = scheduler.process_id()?;
            let used = || -> anyhow::Result<_> {
                Ok((
                    usage::processor_seconds(pid)?,
                    ours.map(|ours| usage::processor_seconds(ours.program.id())).transpose()?,
                ))
            };
            let from = bound_first.await.context("the watch ended")?;
            let before = used()?;
            let to = bound_last.await.context("the watch ended")?;
            let after = used()?;
            anyhow::Ok((from, to, before, after))
        };
        let measured = tokio::time::timeout(LIMIT, measured).await;
        watch.abort();
        let (from, to, before, after) =
            measured.with_context(|| format!("not all Pods were bound within {LIMIT:?}"))??;
        let pods = f64::from(u32::try_from(self.args.pods)?);
        let per_thousand = |before: f64, after: f64| (after - before) * 1000.0 / pods;
        let extender = match (ours, before.1.zip(after.1)) {
            (Some(ours), Some((before, after))) => {
                Some(Handling { processor: per_thousand(before, after), ..ours.handling().await? })
            }
            _ => None,
        };
        Ok(Sample {
            pods_per_s: (pods - 1.0) / to.duration_since(from).as_secs_f64(),
            scheduler: per_thousand(before.0, after.0),
            extender,
        })
    }
}

impl Ours {
    /// From the metrics.
    async fn handling(&self) -> anyhow::Result<Handling> {
        let (status, text) = fetch::get(&format!("{}/metrics", self.admin), Duration::from_secs(5)).await?;
        ensure!(status.is_success(), "metrics: {status}");
        let mean = |verb: &str| {
            let verb = format!("verb=\"{verb}\"");
            let of = |what: &str| {
                samples::sum(&text, &format!("stowage_extender_request_duration_seconds_{what}"), &[&verb])
            };
            of("sum") * 1000.0 / of("count").max(1.0)
        };
        let ended = |outcome: &str| samples::sum(&text, "stowage_extender_requests_total", &[outcome]);
        let reserved = ended("outcome=\"reserved\"") + ended("outcome=\"overdue\"");
        Ok(Handling { processor: 0.0, filter: mean("filter"), prioritize: mean("prioritize"), reserved })
    }
}

async fn post(
    nodes: &Api<Node>,
    index: usize,
    slots: usize,
    taints: &serde_json::Value,
) -> anyhow::Result<()> {
    let node = objects::node(index, slots)?;
    nodes.create(&PostParams::default(), &node).await.context("a VNode was not made")?;
    let taints = Patch::Merge(taints);
    nodes.patch(&objects::node_name(index), &PatchParams::default(), &taints).await.context("no taint")?;
    Ok(())
}

/// Tells when the watch has begun, when it shows the first binding, and when the last. Lives in a task of its own, so
/// that nothing else delays what it sees.
async fn follow(
    pods: Api<Pod>,
    count: usize,
    listed: oneshot::Sender<()>,
    first: oneshot::Sender<Instant>,
    last: oneshot::Sender<Instant>,
) {
    let (mut listed, mut first) = (Some(listed), Some(first));
    let mut bound = HashSet::new();
    let mut events = pin!(watcher::watcher(pods, watcher::Config::default()));
    while let Some(event) = events.next().await {
        let pod = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => pod,
            Ok(Event::InitDone) => {
                listed.take().map(|listed| listed.send(()));
                continue;
            }
            Ok(Event::Init | Event::Delete(_)) => continue,
            Err(error) => {
                eprintln!("the watch of the Pods: {error}");
                continue;
            }
        };
        if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
            let now = Instant::now();
            first.take().map(|first| first.send(now));
            bound.insert(pod.name_any());
            if bound.len() == count {
                last.send(now).ok();
                return;
            }
        }
    }
}
