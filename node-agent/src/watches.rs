//! The watches of the agent: what each asks for, how its objects are trimmed, and where they go.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use policy::contract::names;
use service::readiness::Readiness;
use service::tasks::Tasks;
use service::watching::watch as watching;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::discovery::Selector;
use crate::fleet::{
    Delta, Endpoints, Feed, FleetHandle, Following, Input, Mirror, Slice, Unplaced, WatchBoard, Workload,
    follow, is_vnode_name,
};
use crate::metrics::Metrics;
use crate::sidecar::OwnBase;
use crate::trim;
use crate::vnode::SeenNode;

/// What all watches share.
pub struct Watches {
    /// Named checks, one for each watch.
    pub readiness: Readiness,
    /// Their state, for `/diag`.
    pub board: WatchBoard,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Where most of them go.
    pub fleet: FleetHandle,
    /// How often everything is listed anew.
    pub relist: Duration,
}

impl Watches {
    fn following(&self, kind: &'static str, name: String, shutdown: CancellationToken) -> Following {
        Following {
            kind,
            ready: self.readiness.register(format!("watch {name}")),
            name,
            board: self.board.clone(),
            metrics: Arc::clone(&self.metrics),
            shutdown,
        }
    }

    /// Base Pods, in all namespaces or in some. Says how many watches that takes.
    pub fn base_pods(
        &self,
        tasks: &mut Tasks,
        client: &Client,
        selector: &Selector,
        namespaces: &[String],
    ) -> usize {
        let mut apis: Vec<(String, Api<Pod>)> = namespaces
            .iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|namespace| {
                (format!("base pods in {namespace}"), Api::namespaced(client.clone(), namespace))
            })
            .collect();
        if apis.is_empty() {
            apis.push(("base pods".to_owned(), Api::all(client.clone())));
        }
        let count = apis.len();
        for (source, (name, api)) in apis.into_iter().enumerate() {
            let config = watcher::Config::default().labels(selector.as_str());
            let following = self.following("base_pods", name, tasks.shutdown());
            let inbox = self.fleet.inbox.clone();
            let deliver = move |feed| send(inbox.clone(), Input::BasePod(source, feed));
            tasks.companion(
                "watch of base Pods",
                follow(
                    watching(api, config, self.relist),
                    following,
                    |pod| Some(Box::new(trim::pod(pod))),
                    deliver,
                ),
            );
        }
        count
    }

    /// What an agent for one base looks at: its own Pod, its VNode, and the VPods there. Pods that had its name before, or
    /// have it after, are no business of its.
    pub fn own(&self, tasks: &mut Tasks, client: &Client, cluster: &str, own: &OwnBase) {
        let selector = format!("{}={}", names::SIDECAR, names::SIDECAR_YES);
        let config =
            watcher::Config::default().fields(&format!("metadata.name={}", own.pod)).labels(&selector);
        let following = self.following("base_pods", "base pod".to_owned(), tasks.shutdown());
        let inbox = self.fleet.inbox.clone();
        let deliver = move |feed| send(inbox.clone(), Input::BasePod(0, feed));
        let uid = own.uid.clone();
        let trim =
            move |pod: Pod| (pod.metadata.uid.as_ref() == Some(&uid)).then(|| Box::new(trim::pod(pod)));
        let api = Api::<Pod>::namespaced(client.clone(), &own.namespace);
        let stream = watching(api, config, self.relist);
        tasks.companion("watch of the base Pod", follow(stream, following, trim, deliver));
        let nodes = ours(cluster).fields(&format!("metadata.name={}", own.node));
        self.nodes(tasks, client, nodes);
        let pods = watcher::Config::default().fields(&format!("spec.nodeName={}", own.node));
        self.pods(tasks, client, pods);
    }

    /// What an agent for many bases looks at besides their Pods.
    pub fn all(&self, tasks: &mut Tasks, client: &Client, cluster: &str) {
        self.nodes(tasks, client, ours(cluster));
        // One watch for all: a watch for each VNode would starve on the one connection.
        self.pods(tasks, client, watcher::Config::default().fields("spec.nodeName!="));
        self.unplaced(tasks, client);
        self.workloads(tasks, client);
    }

    /// Nodes of our base cluster.
    fn nodes(&self, tasks: &mut Tasks, client: &Client, config: watcher::Config) {
        let following = self.following("nodes", "nodes".to_owned(), tasks.shutdown());
        let inbox = self.fleet.inbox.clone();
        let deliver = move |feed| send(inbox.clone(), Input::Node(feed));
        let stream = watching(Api::<Node>::all(client.clone()), config, self.relist);
        tasks.companion(
            "watch of Nodes",
            follow(stream, following, |node| Some(SeenNode::new(node)), deliver),
        );
    }

    /// Pods on VNodes.
    fn pods(&self, tasks: &mut Tasks, client: &Client, config: watcher::Config) {
        let following = self.following("pods", "pods".to_owned(), tasks.shutdown());
        let inbox = self.fleet.inbox.clone();
        let deliver = move |feed| send(inbox.clone(), Input::Pod(feed));
        let stream = watching(Api::<Pod>::all(client.clone()), config, self.relist);
        tasks.companion("watch of Pods", follow(stream, following, trimmed_vpod, deliver));
    }

    /// Module Pods without a Node, which new bases wait for.
    fn unplaced(&self, tasks: &mut Tasks, client: &Client) {
        let config = watcher::Config::default().fields("spec.nodeName=,status.phase=Pending");
        let following = self.following("unplaced_pods", "pods without a node".to_owned(), tasks.shutdown());
        let inbox = self.fleet.inbox.clone();
        let deliver = move |feed| send(inbox.clone(), Input::Unplaced(feed));
        let stream = watching(Api::<Pod>::all(client.clone()), config, self.relist);
        let trim = |pod| Unplaced::of(pod).map(Arc::new);
        tasks.companion("watch of Pods without a Node", follow(stream, following, trim, deliver));
    }

    /// Controllers whose Pods concern bases.
    fn workloads(&self, tasks: &mut Tasks, client: &Client) {
        self.daemon_sets(tasks, client);
        self.deployments(tasks, client);
    }

    /// `DaemonSets`, for the readiness gate of bases.
    fn daemon_sets(&self, tasks: &mut Tasks, client: &Client) {
        let following = self.following("daemonsets", "daemonsets".to_owned(), tasks.shutdown());
        let inbox = self.fleet.inbox.clone();
        let deliver = move |feed| send(inbox.clone(), Input::DaemonSet(feed));
        let api = Api::<DaemonSet>::all(client.clone());
        let stream = watching(api, watcher::Config::default(), self.relist);
        let trim = |set| Some(Arc::new(Workload::of_daemon_set(set)));
        tasks.companion("watch of DaemonSets", follow(stream, following, trim, deliver));
    }

    /// Deployments, for those that follow their bases.
    fn deployments(&self, tasks: &mut Tasks, client: &Client) {
        let following = self.following("deployments", "deployments".to_owned(), tasks.shutdown());
        let inbox = self.fleet.inbox.clone();
        let deliver = move |feed| send(inbox.clone(), Input::Deployment(feed));
        let api = Api::<Deployment>::all(client.clone());
        let stream = watching(api, watcher::Config::default(), self.relist);
        let trim = |deployment| Some(Arc::new(Workload::of_deployment(deployment)));
        tasks.companion("watch of Deployments", follow(stream, following, trim, deliver));
    }

    /// EndpointSlices, for who still sends traffic to a VPod.
    pub fn endpoints(&self, tasks: &mut Tasks, client: &Client) -> Endpoints {
        let endpoints = Endpoints::default();
        let following = self.following("endpointslices", "endpointslices".to_owned(), tasks.shutdown());
        let store = endpoints.clone();
        let deliver = move |feed| {
            store.take(feed);
            std::future::ready(true)
        };
        let api = Api::<EndpointSlice>::all(client.clone());
        let stream = watching(api, watcher::Config::default(), self.relist);
        let trim = |slice| Some(Slice::new(slice, is_vnode_name));
        tasks.companion("watch of EndpointSlices", follow(stream, following, trim, deliver));
        endpoints
    }

    /// Namespaces that are paused.
    pub fn paused(&self, tasks: &mut Tasks, client: &Client) -> watch::Receiver<Arc<BTreeSet<String>>> {
        let (paused, paused_end) = watch::channel(Arc::default());
        let following = self.following("namespaces", "namespaces".to_owned(), tasks.shutdown());
        let (feeds, feeds_end) = mpsc::channel(64);
        let deliver = move |feed| send(feeds.clone(), feed);
        let api = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
        let stream = watching(api, watcher::Config::default(), self.relist);
        tasks.companion(
            "watch of Namespaces",
            follow(stream, following, |namespace| Some(paused_name(&namespace)), deliver),
        );
        tasks.companion("paused Namespaces", gather(feeds_end, paused, tasks.shutdown()));
        paused_end
    }
}

/// Nodes that agents of this base cluster made.
fn ours(cluster: &str) -> watcher::Config {
    let selector = format!("{}={},{}={cluster}", names::MANAGED_BY, names::MANAGER, names::BASE_CLUSTER);
    watcher::Config::default().labels(&selector)
}

async fn send<T: Send>(sender: mpsc::Sender<T>, item: T) -> bool {
    sender.send(item).await.is_ok()
}

/// A Namespace by name and whether it is paused.
fn paused_name(namespace: &PartialObjectMeta<Namespace>) -> (String, bool) {
    let paused = namespace.annotations().get(names::PAUSED).is_some_and(|value| value == "true");
    (namespace.name_any(), paused)
}

async fn gather(
    mut feeds: mpsc::Receiver<Feed<(String, bool)>>,
    paused: watch::Sender<Arc<BTreeSet<String>>>,
    shutdown: CancellationToken,
) -> Result<(), Infallible> {
    let mut mirror: Mirror<bool> = Mirror::default();
    let mut names = BTreeSet::new();
    loop {
        let feed = tokio::select! {
            Some(feed) = feeds.recv() => feed,
            () = shutdown.cancelled() => return Ok(()),
            else => {
                shutdown.cancelled().await;
                return Ok(());
            }
        };
        let before = names.clone();
        // Namespaces are kept by name: theirs cannot be reused while the old one is there.
        let mut missing = Vec::new();
        for delta in mirror.take(feed, |(name, paused): &(String, bool)| (name.clone(), *paused)) {
            match delta {
                Delta::Put((name, true)) => {
                    names.insert(name);
                }
                Delta::Put((name, false)) | Delta::Gone { last: Some((name, _)), .. } => {
                    names.remove(&name);
                }
                Delta::Gone { kept: true, last: None } => missing.push(()),
                Delta::Gone { .. } | Delta::Synced => {}
            }
        }
        if !missing.is_empty() {
            names.retain(|name| mirror.get(name) == Some(&true));
        }
        if names != before {
            tracing::info!(namespaces = ?names, "paused namespaces");
            paused.send_replace(Arc::new(names.clone()));
        }
    }
}

fn trimmed_vpod(pod: Pod) -> Option<Arc<Pod>> {
    let on_vnode = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(is_vnode_name);
    on_vnode.then(|| Arc::new(trim::pod(pod)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn paused_namespaces_follow_the_annotation() {
        let (feeds, feeds_end) = mpsc::channel(8);
        let (paused, mut paused_end) = watch::channel(Arc::default());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(gather(feeds_end, paused, shutdown.clone()));
        let feed = |feed| feeds.send(feed);
        feed(Feed::Begin).await.expect("sent");
        feed(Feed::Listed(("a".to_owned(), true))).await.expect("sent");
        feed(Feed::Listed(("b".to_owned(), true))).await.expect("sent");
        feed(Feed::Complete).await.expect("sent");
        paused_end.wait_for(|names| names.len() == 2).await.expect("both");
        feed(Feed::Applied(("a".to_owned(), false))).await.expect("sent");
        paused_end.wait_for(|names| names.iter().eq(["b"])).await.expect("one");
        feed(Feed::Begin).await.expect("sent");
        feed(Feed::Complete).await.expect("sent");
        paused_end.wait_for(|names| names.is_empty()).await.expect("none");
        shutdown.cancel();
        task.await.expect("no panic").expect("ended");
    }

    /// BL-116: of the Pods of a cluster only those on VNodes are kept, and those without their largest parts.
    #[test]
    fn other_pods_are_dropped_on_arrival() {
        let pod = |node: &str| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "managedFields": [{}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}}, "spec": {"nodeName": node, "containers": []}}))
            .expect("pod")
        };
        assert!(trimmed_vpod(pod("worker-1")).is_none());
        let kept = trimmed_vpod(pod("virtual-node-java-a-b")).expect("kept");
        assert!(kept.metadata.managed_fields.is_none());
        assert_eq!(kept.metadata.annotations.as_ref().map(std::collections::BTreeMap::len), Some(1));
    }
}
