//! A small kubelet: it runs base Pods without containers.
//!
//! It posts plain Nodes and keeps them alive, takes the Pods that are bound to them, gives each an address of its own
//! and a [`Runtime`] (a simulated arklet, or a user's own command), and sets them Running and Ready. Readiness gates,
//! restarts after a crash, `preStop`, SIGTERM, SIGKILL at the end of the grace period and the removal of the object
//! are as by a real one. So base Deployments scale, roll and get evicted for real.

mod command;
mod node;
mod pod;
mod runtime;
mod status;
mod termination;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use self::pod::{Message, Worker};
pub use self::{
    command::ShellCommand,
    runtime::{Exit, Idle, Running, Runtime, RuntimeError, Start},
    status::{condition, is_ready},
};
use crate::{
    namespace::SCOPE,
    network::{self, NetworkError},
};

/// How often Leases are renewed, as kubelets do.
const RENEWAL: Duration = Duration::from_secs(10);

/// Why the kubelet could not do something.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A Node or its Lease was refused.
    #[error("node {node}: {source}")]
    Node {
        /// The Node.
        node: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// Its Pods could not be listed.
    #[error("the Pods of node {node} could not be listed: {source}")]
    List {
        /// The Node.
        node: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// An object that is none.
    #[error("the Node is no object: {source}")]
    Object {
        /// Why.
        source: serde_json::Error,
    },
    /// No address left.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The kubelet runs no such Pod.
    #[error("the kubelet runs no Pod {namespace}/{name}")]
    NoPod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// The kubelet of some plain Nodes. Dropping it kills the containers and leaves the objects as they are, as when the
/// machines die.
pub struct Kubelet {
    inner: Arc<Inner>,
    _watch: JoinSet<()>,
}

struct Inner {
    client: Client,
    runtime: Arc<dyn Runtime>,
    scope: String,
    ready_at_start: AtomicBool,
    nodes: Mutex<BTreeMap<String, NodeState>>,
    pods: Mutex<Pods>,
}

struct NodeState {
    ip: IpAddr,
    silent: bool,
}

#[derive(Default)]
struct Pods {
    /// By UID.
    running: HashMap<String, Entry>,
    /// Never started again: late events of them may still come.
    finished: HashSet<String>,
    /// Aborted with the kubelet.
    tasks: JoinSet<()>,
}

struct Entry {
    namespace: String,
    name: String,
    ip: IpAddr,
    mailbox: mpsc::UnboundedSender<Message>,
}

impl Kubelet {
    /// Starts without any Node. It takes Pods of this scope (the value of the label
    /// [`SCOPE`], see [`Namespace::scope`](crate::namespace::Namespace::scope)), or all Pods
    /// if it is empty.
    pub async fn start(client: Client, scope: &str, runtime: impl Runtime) -> Result<Self, KubeletError> {
        Self::start_shared(client, scope, Arc::new(runtime)).await
    }

    /// The same with a runtime that the test keeps a hand on.
    pub async fn start_shared(
        client: Client,
        scope: &str,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self, KubeletError> {
        tokio::task::spawn_blocking(network::ensure).await.unwrap_or(Ok(()))?;
        let inner = Arc::new(Inner {
            client,
            runtime,
            scope: scope.to_owned(),
            ready_at_start: AtomicBool::new(true),
            nodes: Mutex::default(),
            pods: Mutex::default(),
        });
        let mut watch = JoinSet::new();
        watch.spawn(watch_pods(Arc::clone(&inner)));
        watch.spawn(renew_leases(Arc::clone(&inner)));
        Ok(Self { inner, _watch: watch })
    }

    /// Posts a Node and returns its name in the API, `<name>-<scope>`: Nodes have no namespace.
    pub async fn add_node(&self, name: &str) -> Result<String, KubeletError> {
        self.add_node_with(name, &[]).await
    }

    /// The same with more labels (`topology.kubernetes.io/zone`, say).
    pub async fn add_node_with(&self, name: &str, labels: &[(&str, &str)]) -> Result<String, KubeletError> {
        let full = self.node_name(name);
        let mut all = BTreeMap::from([
            ("kubernetes.io/hostname".to_owned(), full.clone()),
            ("kubernetes.io/os".to_owned(), "linux".to_owned()),
            ("kubernetes.io/arch".to_owned(), "amd64".to_owned()),
        ]);
        if !self.inner.scope.is_empty() {
            all.insert(SCOPE.to_owned(), self.inner.scope.clone());
        }
        all.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let ip = IpAddr::V4(network::allocate_ip()?);
        self.inner.nodes().insert(full.clone(), NodeState { ip, silent: false });
        node::post(&self.inner.client, &full, ip, &all).await?;
        // Pods that were bound before the Node was ours.
        let bound = ListParams::default().fields(&format!("spec.nodeName={full}"));
        let pods = Api::<Pod>::all(self.inner.client.clone())
            .list(&bound)
            .await
            .map_err(|source| KubeletError::List { node: full.clone(), source: Box::new(source) })?;
        for pod in pods {
            self.inner.see(pod);
        }
        Ok(full)
    }

    /// The name in the API of a Node that was added under this name.
    pub fn node_name(&self, name: &str) -> String {
        let scope = &self.inner.scope;
        if scope.is_empty() { name.to_owned() } else { format!("{name}-{scope}") }
    }

    /// Stops renewing a Node's Lease, as when the machine is cut off, or starts again. The name is that of
    /// [`add_node`](Self::add_node)'s argument.
    pub fn set_silent(&self, name: &str, silent: bool) {
        if let Some(node) = self.inner.nodes().get_mut(&self.node_name(name)) {
            node.silent = silent;
        }
    }

    /// Whether containers that start from now on are ready at once (they are, by default).
    pub fn set_ready_at_start(&self, ready: bool) {
        self.inner.ready_at_start.store(ready, Ordering::Relaxed);
    }

    /// What the readiness probe of a base Pod says from now on. Resolves when its status is written.
    pub async fn set_ready(&self, namespace: &str, name: &str, ready: bool) -> Result<(), KubeletError> {
        let (done, written) = oneshot::channel();
        self.tell(namespace, name, Message::Ready(ready, done))?;
        written.await.map_err(|_| no_pod(namespace, name))
    }

    /// Kills the base container and starts it again in the same Pod. Resolves when it runs and its status is written;
    /// it was not ready in between, and its restart count is one more.
    pub async fn restart_container(&self, namespace: &str, name: &str) -> Result<(), KubeletError> {
        let (done, restarted) = oneshot::channel();
        self.tell(namespace, name, Message::Restart(done))?;
        restarted.await.map_err(|_| no_pod(namespace, name))
    }

    /// Kills the base container. The kubelet notices and restarts it after 0.1 s, doubling with each crash up to 5 s.
    pub fn crash_container(&self, namespace: &str, name: &str) -> Result<(), KubeletError> {
        self.tell(namespace, name, Message::Crash)
    }

    /// The address of a base Pod.
    pub fn ip(&self, namespace: &str, name: &str) -> Result<IpAddr, KubeletError> {
        let pods = self.inner.pods();
        pods.find(namespace, name).map(|entry| entry.ip).ok_or_else(|| no_pod(namespace, name))
    }

    fn tell(&self, namespace: &str, name: &str, message: Message) -> Result<(), KubeletError> {
        let pods = self.inner.pods();
        let sent = pods.find(namespace, name).and_then(|entry| entry.mailbox.send(message).ok());
        sent.ok_or_else(|| no_pod(namespace, name))
    }
}

fn no_pod(namespace: &str, name: &str) -> KubeletError {
    KubeletError::NoPod { namespace: namespace.to_owned(), name: name.to_owned() }
}

impl Pods {
    fn find(&self, namespace: &str, name: &str) -> Option<&Entry> {
        self.running
            .values()
            .find(|entry| entry.name == name && entry.namespace == namespace && !entry.mailbox.is_closed())
    }
}

impl Inner {
    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, NodeState>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A Pod as the watch or a list shows it.
    fn see(&self, pod: Pod) {
        let (Some(uid), Some(node)) = (pod.uid(), pod.spec.as_ref().and_then(|spec| spec.node_name.clone()))
        else {
            return;
        };
        let Some(host_ip) = self.nodes().get(&node).map(|node| node.ip) else { return };
        let terminal = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .is_some_and(|phase| phase == "Failed" || phase == "Succeeded");
        let mut pods = self.pods();
        if let Some(entry) = pods.running.get(&uid) {
            // A closed mailbox is that of a Pod which ended just now.
            entry.mailbox.send(Message::Changed(Box::new(pod))).ok();
            return;
        }
        if pods.finished.contains(&uid) || (terminal && pod.metadata.deletion_timestamp.is_none()) {
            return;
        }
        let ip = match network::allocate_ip() {
            Ok(ip) => IpAddr::V4(ip),
            Err(error) => {
                tracing::error!(%error, "a base Pod gets no address");
                return;
            }
        };
        let (mailbox, receiver) = mpsc::unbounded_channel();
        let entry =
            Entry { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any(), ip, mailbox };
        let ready = self.ready_at_start.load(Ordering::Relaxed);
        let worker = Worker::new(self.client.clone(), Arc::clone(&self.runtime), pod, ip, host_ip, ready);
        pods.running.insert(uid, entry);
        pods.tasks.spawn(worker.run(receiver));
    }

    fn gone(&self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        let mut pods = self.pods();
        if let Some(entry) = pods.running.remove(&uid) {
            entry.mailbox.send(Message::Gone).ok();
            pods.finished.insert(uid);
        }
    }

    /// After a new list: what is not in it is gone.
    fn only(&self, listed: &HashSet<String>) {
        let mut pods = self.pods();
        let missing: Vec<String> =
            pods.running.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in missing {
            if let Some(entry) = pods.running.remove(&uid) {
                entry.mailbox.send(Message::Gone).ok();
                pods.finished.insert(uid);
            }
        }
    }
}

async fn watch_pods(inner: Arc<Inner>) {
    let mut config = watcher::Config::default();
    if !inner.scope.is_empty() {
        config = config.labels(&format!("{SCOPE}={}", inner.scope));
    }
    let mut events = std::pin::pin!(watcher(Api::<Pod>::all(inner.client.clone()), config).default_backoff());
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(pod)) => inner.see(pod),
            Ok(watcher::Event::Delete(pod)) => inner.gone(&pod),
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(pod)) => {
                listed.extend(pod.uid());
                inner.see(pod);
            }
            Ok(watcher::Event::InitDone) => inner.only(&listed),
            Err(error) => tracing::warn!(%error, "the kubelet's watch of Pods failed"),
        }
    }
}

async fn renew_leases(inner: Arc<Inner>) {
    let mut ticks = interval(RENEWAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let alive: Vec<String> = {
            let nodes = inner.nodes();
            nodes.iter().filter(|(_, node)| !node.silent).map(|(name, _)| name.clone()).collect()
        };
        for node in alive {
            if let Err(error) = node::renew(&inner.client, &node).await {
                tracing::warn!(%error, "the kubelet's Lease was not renewed");
            }
        }
    }
}
