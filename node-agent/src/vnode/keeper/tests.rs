//! A keeper beside others that keep the API server busy.

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use prometheus_client::registry::Registry;
use serde_json::json;

use super::*;
use crate::vnode::render::tests::{frame, show};

struct Silent;

impl EventSink for Silent {
    fn emit(&self, _event: Event) {}
}

/// Takes everything, and writes down the paths.
fn api_server() -> (Arc<Mutex<Vec<String>>>, kube::Client) {
    let writes: Arc<Mutex<Vec<String>>> = Arc::default();
    let book = Arc::clone(&writes);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let path = request.uri().path().to_owned();
        book.lock().expect("lock").push(path.clone());
        let answer =
            json!({"metadata": {"name": path.rsplit('/').next(), "uid": "n1", "resourceVersion": "1"}});
        let body = kube::client::Body::from(answer.to_string().into_bytes());
        std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
    });
    (writes, kube::Client::new(service, "default"))
}

fn context(client: kube::Client, owner_calls: &Arc<Semaphore>, node_calls: &Arc<Semaphore>) -> KeeperContext {
    KeeperContext {
        nodes: Arc::new(Api::all(client.clone())),
        leases: Arc::new(NodeLeases::new(client)),
        identity: "me".into(),
        cluster: "default".into(),
        frame: Arc::new(frame()),
        term: Term::unlimited(),
        observe: false,
        metrics: Arc::new(Metrics::new(&mut Registry::default())),
        events: Arc::new(Silent),
        owner_calls: Arc::clone(owner_calls),
        node_calls: Arc::clone(node_calls),
        lease_calls: Arc::new(Semaphore::new(1)),
        removed: mpsc::unbounded_channel().0,
    }
}

/// A keeper of a Node that is there.
fn keep(context: KeeperContext) -> (mpsc::UnboundedSender<Order>, tokio::task::JoinHandle<()>) {
    let show = show();
    let provider_id = render(&show, &frame()).provider_id;
    let node = json!({"metadata": {"name": show.spec.node, "uid": "n1", "resourceVersion": "1",
        "labels": {"app.kubernetes.io/managed-by": "stowage", "stowage.dev/base-cluster": "default"}},
        "spec": {"providerID": provider_id}});
    let seen = SeenNode::new(serde_json::from_value(node).expect("node"));
    let keeper = Keeper::new(context, show.spec.node.clone(), Some(seen), Arc::default());
    let (orders, orders_end) = mpsc::unbounded_channel();
    (orders, tokio::spawn(keeper.run(orders_end)))
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_while_a_node_write_waits_for_others() {
    let (writes, client) = api_server();
    let owner_calls = Arc::new(Semaphore::new(0));
    let (orders, task) = keep(context(client, &owner_calls, &Arc::new(Semaphore::new(0))));
    let (written, mut answer) = oneshot::channel();
    orders.send(Order::Show(Box::new(show()), vec![written])).expect("sent");
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert!(answer.try_recv().is_err(), "the write waits");
    let renewed = |path: &&String| path.contains("/leases/");
    let count = writes.lock().expect("lock").iter().filter(renewed).count();
    assert!((6..=8).contains(&count), "{count} renewals in 65 s");
    owner_calls.add_permits(1);
    answer.await.expect("answered").expect("written");
    drop(orders);
    task.await.expect("no panic");
}

/// In a burst every base has something to write: what an install waits for does not stand behind all of that.
#[tokio::test(start_paused = true)]
async fn an_owner_does_not_wait_behind_other_writes() {
    let (writes, client) = api_server();
    let owner_calls = Arc::new(Semaphore::new(1));
    let context = context(client, &owner_calls, &Arc::new(Semaphore::new(0)));
    let (orders, task) = keep(context);
    let mut show = show();
    orders.send(Order::Show(Box::new(show.clone()), Vec::new())).expect("sent");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let nodes = || writes.lock().expect("lock").iter().filter(|path| path.contains("/nodes/")).count();
    assert_eq!(nodes(), 0, "others are before it");
    let (written, answer) = oneshot::channel();
    Arc::make_mut(&mut show.report).bound = 1;
    orders.send(Order::Show(Box::new(show), vec![written])).expect("sent");
    answer.await.expect("answered").expect("written");
    assert!(nodes() > 0);
    drop(orders);
    task.await.expect("no panic");
}

/// The Node went, and another agent made one of this name, before the keeper heard that its call had done its work.
#[tokio::test(start_paused = true)]
async fn a_removal_does_not_touch_the_next_node() {
    let deleted: Arc<Mutex<Vec<(String, serde_json::Value)>>> = Arc::default();
    let book = Arc::clone(&deleted);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let book = Arc::clone(&book);
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let body = request.into_body().collect_bytes().await.expect("body");
            let sent: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let mut code = 200;
            let mut answer = json!({"metadata": {"name": "n", "uid": "l1", "resourceVersion": "1",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n2"}]}});
            if method == http::Method::DELETE {
                let mut book = book.lock().expect("lock");
                book.push((path, sent["preconditions"]["uid"].clone()));
                if book.len() == 1 {
                    code = 500;
                    answer = json!({"kind": "Status", "status": "Failure", "code": 500, "reason": "InternalError"});
                }
            }
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::builder().status(code).body(body).expect("an answer"))
        }
    });
    let calls = Arc::new(Semaphore::new(1));
    let mut context = context(kube::Client::new(service, "default"), &calls, &calls);
    let (removed, mut removed_end) = mpsc::unbounded_channel();
    context.removed = removed;
    let name = show().spec.node.clone();
    let (orders, task) = keep(context);
    orders.send(Order::Remove).expect("sent");
    while deleted.lock().expect("lock").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let next = json!({"metadata": {"name": name, "uid": "n2", "resourceVersion": "9",
        "labels": {"app.kubernetes.io/managed-by": "stowage", "stowage.dev/base-cluster": "default"}}});
    let next = SeenNode::new(serde_json::from_value(next).expect("node"));
    orders.send(Order::Deleted("n1".to_owned())).expect("sent");
    orders.send(Order::Seen(next)).expect("sent");
    assert_eq!(removed_end.recv().await, Some((name.clone(), Some("n1".to_owned()))));
    task.await.expect("no panic");
    let first = (format!("/api/v1/nodes/{name}"), json!("n1"));
    assert_eq!(*deleted.lock().expect("lock"), [first], "neither the Node nor its Lease");
}

/// A Node that lost its label and is deleted afterwards: the watch tells of neither, and each write was refused.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_ours_any_more_is_made_anew_when_it_goes() {
    const GONE: Duration = Duration::from_secs(100);
    let began = Instant::now();
    let show = show();
    let provider_id = render(&show, &frame()).provider_id;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": show.spec.node, "uid": "n1", "resourceVersion": "1",
        "annotations": {"stowage.dev/base-uid": show.spec.uid}}, "spec": {"providerID": provider_id}});
    let (made, mut made_end) = mpsc::unbounded_channel();
    let lists = Arc::new(AtomicUsize::new(0));
    let listed = Arc::clone(&lists);
    let stripped = node.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let (mut code, mut later) = (200, None);
        let told = if path.contains("/leases") {
            json!({"metadata": {"name": "l", "resourceVersion": "1"}})
        } else if method == http::Method::POST {
            // Whoever waits for it may have ended.
            let _ = made.send(began.elapsed());
            let mut created = stripped.clone();
            created["metadata"]["uid"] = json!("n2");
            created
        } else if method != http::Method::GET {
            code = 403;
            json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"})
        } else if watches {
            later = Some(began + GONE);
            json!({"type": "DELETED", "object": stripped})
        } else {
            listed.fetch_add(1, Ordering::Relaxed);
            let items = if began.elapsed() < GONE { vec![stripped.clone()] } else { Vec::new() };
            json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
        };
        let body = futures::stream::once(async move {
            if let Some(at) = later {
                tokio::time::sleep_until(at).await;
            }
            Ok::<_, Infallible>(hyper::body::Frame::data(bytes::Bytes::from(format!("{told}\n"))))
        });
        let body = http_body_util::BodyExt::boxed_unsync(http_body_util::StreamBody::new(body));
        let answer = http::Response::builder().status(code).body(body).expect("an answer");
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let client = kube::Client::new(service, "default");
    let calls = Arc::new(Semaphore::new(1));
    let context = context(client, &calls, &calls);
    let seen = SeenNode::new(serde_json::from_value(node).expect("node"));
    let keeper = Keeper::new(context, show.spec.node.clone(), Some(seen), Arc::default());
    let (orders, orders_end) = mpsc::unbounded_channel();
    let task = tokio::spawn(keeper.run(orders_end));
    orders.send(Order::Show(Box::new(show), Vec::new())).expect("sent");
    let made = made_end.recv().await.expect("a new Node");
    assert!((GONE..GONE + Duration::from_secs(1)).contains(&made), "made after {made:?}");
    let lists = lists.load(Ordering::Relaxed);
    assert!(lists <= 2, "one watch for all the renewals and tries meanwhile, not {lists}");
    drop(orders);
    task.await.expect("no panic");
}
