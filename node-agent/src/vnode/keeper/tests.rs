//! A keeper beside others that keep the API server busy.

use std::convert::Infallible;
use std::sync::Mutex;

use prometheus_client::registry::Registry;
use serde_json::json;

use super::*;
use crate::vnode::render::tests::{frame, show};

struct Silent;

impl EventSink for Silent {
    fn emit(&self, _event: Event) {}
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_while_a_node_write_waits_for_others() {
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
    let client = kube::Client::new(service, "default");
    let node_calls = Arc::new(Semaphore::new(0));
    let (removed, _removed_end) = mpsc::unbounded_channel();
    let context = KeeperContext {
        nodes: Api::all(client.clone()),
        leases: Api::namespaced(client, crate::lease::node::NAMESPACE),
        identity: "me".to_owned(),
        cluster: "default".to_owned(),
        frame: Arc::new(frame()),
        term: Term::unlimited(),
        observe: false,
        metrics: Arc::new(Metrics::new(&mut Registry::default())),
        events: Arc::new(Silent),
        node_calls: Arc::clone(&node_calls),
        lease_calls: Arc::new(Semaphore::new(1)),
        removed,
    };
    let show = show();
    let provider_id = render(&show, &frame()).provider_id;
    let node = json!({"metadata": {"name": show.spec.node, "uid": "n1", "resourceVersion": "1",
        "labels": {"app.kubernetes.io/managed-by": "stowage", "stowage.dev/base-cluster": "default"}},
        "spec": {"providerID": provider_id}});
    let seen = SeenNode::new(serde_json::from_value(node).expect("node"));
    let keeper = Keeper::new(context, show.spec.node.clone(), Some(seen), Arc::default());
    let (orders, orders_end) = mpsc::unbounded_channel();
    let task = tokio::spawn(keeper.run(orders_end));
    let (written, mut answer) = oneshot::channel();
    orders.send(Order::Show(Box::new(show), vec![written])).expect("sent");
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert!(answer.try_recv().is_err(), "the write waits");
    let renewed = |path: &&String| path.contains("/leases/");
    let count = writes.lock().expect("lock").iter().filter(renewed).count();
    assert!((6..=8).contains(&count), "{count} renewals in 65 s");
    node_calls.add_permits(1);
    answer.await.expect("answered").expect("written");
    drop(orders);
    task.await.expect("no panic");
}
