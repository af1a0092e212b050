//! The watches: objects are trimmed to what placement needs as they arrive, and the rest is dropped at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use http::Request;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::client::Body;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use policy::contract::{BaseFacts, ModulePod, PodKind, classify};
use service::watching::watch;
use tokio::sync::mpsc;

use super::nodes::NodeKind;

/// Which watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Of Nodes.
    Nodes,
    /// Of Pods.
    Pods,
}

/// What a watch tells the owner of the state.
#[derive(Debug)]
pub enum Change {
    /// A Node was made or changed.
    Node(NodeUpdate),
    /// A Node is gone.
    NodeGone(Arc<str>),
    /// A Pod was made or changed.
    Pod(PodUpdate),
    /// A Pod is gone; its `namespace/name`.
    PodGone(Arc<str>),
    /// A new list begins.
    ListStarts(Source, Instant),
    /// A list is complete.
    ListEnds(Source, Instant),
    /// A watch failed and is tried again.
    Failed(Source, Instant),
    /// The API server accepted a watch, which need not deliver anything.
    Opened(Source, Instant),
}

/// A Node, trimmed.
#[derive(Debug)]
pub struct NodeUpdate {
    /// Its name.
    pub name: Arc<str>,
    /// What it is to us.
    pub kind: NodeKind,
}

/// A Pod, trimmed.
#[derive(Debug)]
pub struct PodUpdate {
    /// `namespace/name`.
    pub key: Arc<str>,
    /// `None`: no module Pod.
    pub pod: Option<Arc<ModulePod>>,
}

impl From<&Node> for NodeUpdate {
    fn from(node: &Node) -> Self {
        let kind = match BaseFacts::from_node(node) {
            Ok(Some(facts)) => NodeKind::Base(Arc::new(facts)),
            Ok(None) => NodeKind::Ordinary,
            Err(error) => NodeKind::Malformed(error),
        };
        Self { name: node.metadata.name.as_deref().unwrap_or_default().into(), kind }
    }
}

impl From<&Pod> for PodUpdate {
    fn from(pod: &Pod) -> Self {
        let module = match classify(pod) {
            PodKind::Module(module) => Some(Arc::from(module)),
            PodKind::Incomplete(_) | PodKind::Foreign => None,
        };
        Self { key: pod_key(pod), pod: module }
    }
}

fn pod_key(pod: &Pod) -> Arc<str> {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", text(&pod.metadata.namespace), text(&pod.metadata.name)).into()
}

/// Watches Nodes for as long as the owner listens, and lists them anew each `relist`.
///
/// # Errors
/// Never; the type fits [`service::tasks::Tasks`].
pub async fn nodes(client: Client, relist: Duration, owner: mpsc::Sender<Change>) -> Result<(), Infallible> {
    let client = telling(client, Source::Nodes, owner.clone());
    let stream = watch(Api::<Node>::all(client), watcher::Config::default(), relist).default_backoff();
    let gone = |node: &Node| Change::NodeGone(node.metadata.name.as_deref().unwrap_or_default().into());
    forward(Source::Nodes, stream, |node| Change::Node(node.into()), gone, owner).await;
    Ok(())
}

/// Watches Pods that are not finished, for as long as the owner listens. A Pod that finishes is a deletion here, as it
/// is for kube-scheduler.
///
/// # Errors
/// Never; the type fits [`service::tasks::Tasks`].
pub async fn pods(client: Client, relist: Duration, owner: mpsc::Sender<Change>) -> Result<(), Infallible> {
    let config = watcher::Config::default().fields("status.phase!=Succeeded,status.phase!=Failed");
    let client = telling(client, Source::Pods, owner.clone());
    let stream = watch(Api::<Pod>::all(client), config, relist).default_backoff();
    let gone = |pod: &Pod| Change::PodGone(pod_key(pod));
    forward(Source::Pods, stream, |pod| Change::Pod(pod.into()), gone, owner).await;
    Ok(())
}

/// A client that tells the owner of each watch that was accepted: a watcher that resumes is silent until something
/// changes, and one whose attempt hangs is silent too.
fn telling(client: Client, source: Source, owner: mpsc::Sender<Change>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, owner) = (client.clone(), owner.clone());
        let watches = request.uri().query().is_some_and(|query| query.split('&').any(|p| p == "watch=true"));
        async move {
            let response = client.send(request).await?;
            if watches && response.status().is_success() {
                // Nobody to tell: the process ends.
                let _ = owner.send(Change::Opened(source, Instant::now())).await;
            }
            Ok::<_, kube::Error>(response)
        }
    });
    Client::new(service, namespace)
}

async fn forward<K>(
    source: Source,
    stream: impl Stream<Item = watcher::Result<Event<K>>>,
    changed: impl Fn(&K) -> Change,
    gone: impl Fn(&K) -> Change,
    owner: mpsc::Sender<Change>,
) {
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        let change = match event {
            Ok(Event::Init) => Change::ListStarts(source, Instant::now()),
            Ok(Event::InitDone) => Change::ListEnds(source, Instant::now()),
            Ok(Event::Apply(object) | Event::InitApply(object)) => changed(&object),
            Ok(Event::Delete(object)) => gone(&object),
            Err(error) => {
                tracing::warn!(?source, %error, "watch failed, trying again");
                Change::Failed(source, Instant::now())
            }
        };
        if owner.send(change).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body as Answer;
    use http::Response;

    use super::*;

    const LIST: &str =
        r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#;

    /// The second watch is refused, the third hangs for a while, and is then accepted without delivering anything.
    #[tokio::test(start_paused = true)]
    async fn only_an_accepted_watch_is_opened() {
        let watches = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |request: Request<Body>| {
            let watches = Arc::clone(&watches);
            async move {
                let answer =
                    |code: u16, body| Ok::<_, Infallible>(Response::builder().status(code).body(body));
                if !request.uri().query().unwrap_or_default().contains("watch=true") {
                    return answer(200, Answer::from(LIST)).map(|response| response.expect("a response"));
                }
                let response = match watches.fetch_add(1, Ordering::Relaxed) {
                    0 => answer(200, Answer::empty()),
                    1 => answer(429, Answer::empty()),
                    _ => {
                        tokio::time::sleep(std::time::Duration::from_mins(10)).await;
                        answer(
                            200,
                            Answer::from_stream(futures::stream::pending::<Result<&str, Infallible>>()),
                        )
                    }
                };
                response.map(|response| response.expect("a response"))
            }
        });
        let (owner, mut told) = mpsc::channel(16);
        let watching = tokio::spawn(nodes(Client::new(service, "default"), Duration::from_hours(1), owner));
        let mut kinds = Vec::new();
        let started = tokio::time::Instant::now();
        let mut at = Vec::new();
        while kinds.len() < 5 {
            kinds.push(match told.recv().await.expect("the watch lives") {
                Change::ListStarts(Source::Nodes, _) => "list starts",
                Change::ListEnds(Source::Nodes, _) => "list ends",
                Change::Opened(Source::Nodes, _) => "opened",
                Change::Failed(Source::Nodes, _) => "failed",
                other => panic!("{other:?}"),
            });
            at.push(started.elapsed().as_secs() >= 600);
        }
        assert_eq!(kinds, ["list starts", "list ends", "opened", "failed", "opened"]);
        assert_eq!(at, [false, false, false, false, true]);
        watching.abort();
    }
}
