//! What the end-to-end tests of `VNode`s, Leases, restarts and the brake ask.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    reason = "each test binary uses some of it, and a test stops at what it did not expect"
)]

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use harness::{
    Failure, TestResult,
    kubelet::is_ready,
    stage::{Daemon, ModuleSet, POLICY, Stage, VNODES, describe_pod},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Event, Node, NodeCondition, Pod},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::ListParams,
    runtime::watcher::{self, watcher},
};
use policy::contract::{Inventory, names};
use serde::de::DeserializeOwned;
use tokio::{sync::oneshot, task::JoinSet};

/// For one step of a test on a machine that does other things as well.
pub const SOON: Duration = Duration::from_secs(45);
/// What the contract gives a standby to take over. A Lease has whole seconds of jitter on a busy machine.
pub const TAKEOVER: Duration = Duration::from_secs(20);
/// Where our programs, and the agents' Lease, live.
pub const SYSTEM: &str = "stowage-system";
/// A base that is held back does not seem lost for this long; what is not done then is not done.
pub const SETTLED: Duration = Duration::from_secs(6);

/// What a probe of [`wait`] saw instead. No [`Failure`], which would count as the failure of its test.
#[derive(Debug)]
pub struct NotYet(pub String);

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for NotYet {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The policy of the stage with some of its settings changed.
pub fn policy(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(POLICY.to_owned(), |policy, (from, to)| {
        assert!(policy.contains(from), "the policy has no {from}");
        policy.replace(from, to)
    })
}

/// The policy of the stage, paused.
pub fn paused_policy() -> String {
    policy(&[("kind: OperationsPolicy\n", "kind: OperationsPolicy\npaused: true\n")])
}

/// Rewrites the policy file, and waits until the first agent has it.
pub async fn change_policy(stage: &Stage, yaml: &str) -> TestResult {
    const GENERATION: &str = "policy_generation";
    let before = stage.agent(0)?.metric(GENERATION, &[]).await?;
    stage.rewrite_policy(yaml)?;
    wait_metric(stage.agent(0)?, GENERATION, &[], before + 1.0).await
}

/// A Deployment of a module with so many replicas, and its jar.
pub fn shop(stage: &Stage, replicas: u32) -> Result<ModuleSet, Failure> {
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    Ok(ModuleSet::deployment("shop", "1.0.0", &url).replicas(replicas))
}

/// Applies that Deployment and waits for it.
pub async fn run_shop(stage: &Stage, replicas: u32) -> Result<Vec<Pod>, Failure> {
    stage.apply(&shop(stage, replicas)?.yaml()).await?;
    Ok(stage.wait_pods_ready("app=shop", replicas as usize).await?)
}

pub fn uid<K: Resource>(object: &K) -> String {
    object.meta().uid.clone().expect("the API server gives UIDs")
}

pub fn uids<K: Resource>(objects: &[K]) -> Vec<String> {
    let mut uids: Vec<_> = objects.iter().map(uid).collect();
    uids.sort();
    uids
}

pub fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("it is bound")
}

pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Status and reason of a Node's condition Ready.
pub fn readiness(node: &Node) -> (&str, &str) {
    condition(node, "Ready")
        .map_or(("-", "-"), |ready| (ready.status.as_str(), ready.reason.as_deref().unwrap_or("-")))
}

pub fn inventory(node: &Node) -> Inventory {
    let text = node.annotations().get(names::INVENTORY).expect("an inventory");
    Inventory::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let text = |taint: &k8s_openapi::api::core::v1::Taint| {
        format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect)
    };
    taints.iter().map(text).collect()
}

/// Waits for a Ready `VNode` that `accept` likes.
pub async fn ready_vnode(
    stage: &Stage,
    name: &str,
    what: &str,
    accept: impl Fn(&Node) -> bool,
) -> Result<Node, Failure> {
    let good = |node: Option<&Node>| node.is_some_and(|node| readiness(node).0 == "True" && accept(node));
    let node = wait::object(&stage.nodes(), name, what, SOON, good).await?;
    Ok(node.expect("it is there"))
}

fn amounts(of: Option<&BTreeMap<String, Quantity>>) -> BTreeMap<&str, &str> {
    of.into_iter().flatten().map(|(name, amount)| (name.as_str(), amount.0.as_str())).collect()
}

/// Capacity and allocatable.
pub fn resources(node: &Node) -> (BTreeMap<&str, &str>, BTreeMap<&str, &str>) {
    let status = node.status.as_ref().expect("a status");
    (amounts(status.capacity.as_ref()), amounts(status.allocatable.as_ref()))
}

/// Names of the `VNode`s there are.
pub async fn vnode_names(stage: &Stage) -> Result<Vec<String>, Failure> {
    let nodes = stage.nodes().list(&ListParams::default().labels(VNODES)).await?;
    Ok(nodes.iter().map(ResourceExt::name_any).collect())
}

pub fn node_leases(client: Client) -> Api<Lease> {
    Api::namespaced(client, "kube-node-lease")
}

pub fn agent_leases(client: Client) -> Api<Lease> {
    Api::namespaced(client, SYSTEM)
}

pub fn holder(lease: &Lease) -> String {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default()
}

pub fn renewed(lease: &Lease) -> Timestamp {
    lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0).unwrap_or_default()
}

/// Leases of `VNode`s by name.
pub async fn leases(stage: &Stage) -> Result<BTreeMap<String, Lease>, kube::Error> {
    let ours = ListParams::default().labels(VNODES);
    let leases = node_leases(stage.client()).list(&ours).await?;
    Ok(leases.into_iter().map(|lease| (lease.name_any(), lease)).collect())
}

/// Waits until the Leases of these `VNode`s were renewed after a moment, by `by`.
pub async fn wait_renewed(
    stage: &Stage,
    nodes: &[String],
    since: Timestamp,
    by: &str,
    limit: Duration,
) -> TestResult {
    wait::until(&format!("renewal of the Leases by {by} after {since}"), limit, async || {
        let leases = leases(stage).await?;
        let late: Vec<String> = nodes
            .iter()
            .filter_map(|node| {
                let lease = leases.get(node);
                let good = lease.is_some_and(|lease| renewed(lease) > since && holder(lease) == by);
                let seen = lease.map_or("no Lease".to_owned(), |lease| {
                    format!("{} by {}", renewed(lease), holder(lease))
                });
                (!good).then(|| format!("{node}: {seen}"))
            })
            .collect();
        if late.is_empty() { Ok(()) } else { Err(NotYet(late.join("\n"))) }
    })
    .await?;
    Ok(())
}

/// Waits until the agents' Lease names this holder.
pub async fn wait_leader(stage: &Stage, identity: &str, limit: Duration) -> TestResult {
    let api = agent_leases(stage.client());
    let leads = |lease: Option<&Lease>| lease.is_some_and(|lease| holder(lease) == identity);
    wait::object(&api, "stowage-agent", &format!("Lease of {identity}"), limit, leads).await?;
    Ok(())
}

/// Waits until `/metrics` of an agent shows a value.
pub async fn wait_metric(agent: &Daemon, name: &str, labels: &[&str], wanted: f64) -> TestResult {
    wait::until(&format!("{name} {wanted}"), SOON, async || {
        let value = agent.metric(name, labels).await?;
        if (value - wanted).abs() < 0.5 { Ok(()) } else { Err(NotYet(format!("{name} {value}"))) }
    })
    .await?;
    Ok(())
}

/// Waits until the agent says that it holds, or no longer holds, what is lost (`bases` or `modules`).
pub async fn wait_brake(agent: &Daemon, of: &str, on: bool) -> TestResult {
    wait_metric(agent, "stowage_agent_brake", &[&format!("of=\"{of}\"")], f64::from(u8::from(on))).await
}

/// Lets the brake go, as operators do.
pub async fn release_brake(stage: &Stage) -> TestResult {
    let kubectl = stage.cluster()?.kubectl()?.in_namespace(SYSTEM);
    kubectl.run(&["annotate", "lease", "stowage-agent", "stowage.dev/brake=release"]).await?;
    Ok(())
}

/// Reasons and messages of the Events about the agents' Lease since then: older ones are of tests before this one.
pub async fn events_of_agents(stage: &Stage, since: Timestamp) -> Result<Vec<String>, Failure> {
    let events: Api<Event> = Api::namespaced(stage.client(), SYSTEM);
    let text =
        |event: Event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
    // Kubernetes' times have no fractions of seconds.
    let is_new = |event: &Event| {
        event.metadata.creation_timestamp.as_ref().is_some_and(|time| time.0.as_second() >= since.as_second())
    };
    Ok(events.list(&ListParams::default()).await?.into_iter().filter(is_new).map(text).collect())
}

/// Watches from now on, and remembers what should not have been seen.
pub struct Lookout {
    seen: Arc<Mutex<Vec<String>>>,
    _watch: JoinSet<()>,
}

impl Lookout {
    /// Begins, and returns when everything that is there has been seen once. An object that vanishes, and one for which
    /// `complain` answers, should not have been seen.
    pub async fn on<K>(
        api: Api<K>,
        selector: &str,
        complain: impl Fn(&K) -> Option<String> + Send + 'static,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let (begun, begins) = oneshot::channel();
        let mut begun = Some(begun);
        let notes = Arc::clone(&seen);
        let config = watcher::Config::default().labels(selector);
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            let mut events = std::pin::pin!(watcher(api, config));
            while let Some(event) = events.next().await {
                let complaint = match event {
                    Ok(watcher::Event::InitDone) => {
                        if let Some(begun) = begun.take() {
                            begun.send(()).ok();
                        }
                        None
                    }
                    Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                        complain(&object)
                    }
                    Ok(watcher::Event::Delete(object)) => Some(format!("{} vanished", object.name_any())),
                    // Watches end when the API server does.
                    Ok(watcher::Event::Init) | Err(_) => None,
                };
                let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                notes.extend(complaint.map(|complaint| format!("{}: {complaint}", Timestamp::now())));
            }
        });
        begins.await.expect("the watch begins");
        Self { seen, _watch: watch }
    }

    /// `VNode`s stay, and are never other than Ready.
    pub async fn vnodes_ready(stage: &Stage) -> Self {
        Self::on(stage.nodes(), VNODES, |node: &Node| {
            let (status, reason) = readiness(node);
            (status != "True").then(|| format!("{} Ready={status} {reason}", node.name_any()))
        })
        .await
    }

    /// `VNode`s stay, and never turn Unknown.
    pub async fn vnodes_known(stage: &Stage) -> Self {
        Self::on(stage.nodes(), VNODES, |node: &Node| {
            let (status, reason) = readiness(node);
            (status == "Unknown").then(|| format!("{} Ready=Unknown {reason}", node.name_any()))
        })
        .await
    }

    /// Pods of a selector stay, and are never other than Ready.
    pub async fn pods_ready(stage: &Stage, selector: &str) -> Self {
        let complain = |pod: &Pod| (!is_ready(pod)).then(|| describe_pod(pod));
        Self::on(stage.api::<Pod>(), selector, complain).await
    }

    /// Nothing was seen.
    #[track_caller]
    pub fn assert_quiet(&self) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(seen.is_empty(), "{}", seen.join("\n"));
    }
}
