//! The fleet with an API server that takes everything, and actors that only write down what they are told.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Mutex;

use http::{Request, Response};
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::base::{Event, Health, Hold};
use crate::rules::Brakes;
use crate::{brake, vnode};

mod healing;
mod losing;
mod sidecars;

use healing::report;

/// What the actors were told, as short words, by VNode.
type Told = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

#[derive(Default)]
struct Events(Mutex<Vec<&'static str>>);

impl EventSink for Events {
    fn emit(&self, event: Event) {
        self.0.lock().expect("lock").push(event.reason);
    }
}

/// Calls that change something, as `METHOD path`.
type Writes = Arc<Mutex<Vec<String>>>;
/// What the last call of each kind and path sent.
type Sent = Arc<Mutex<BTreeMap<String, Value>>>;

struct Rig {
    handle: FleetHandle,
    told: Told,
    writes: Writes,
    sent: Sent,
    events: Arc<Events>,
    /// Namespaces of the module cluster that are paused.
    paused: watch::Sender<Arc<BTreeSet<String>>>,
    terms: watch::Sender<Option<Term>>,
    releases: watch::Sender<u64>,
    shutdown: CancellationToken,
    note: crate::lease::LeaseNote,
    _rules: watch::Sender<Arc<Rules>>,
}

/// GET: nothing is there but what a test put into `bodies`, and Leases. A budget keeps Pods named `kept`. Everything else is taken, and answered with what was sent.
fn client(writes: &Writes, bodies: &Sent) -> kube::Client {
    let (writes, bodies) = (Arc::clone(writes), Arc::clone(bodies));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (writes, bodies) = (Arc::clone(&writes), Arc::clone(&bodies));
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            let (status, answer) = if parts.method == "GET" {
                let missing =
                    json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
                let put = bodies.lock().expect("lock").get(&format!("GET {path}")).cloned();
                match put {
                    Some(object) => (200, object),
                    None if path.contains("/leases/") => (200, json!({"metadata": {"uid": "made"}})),
                    None => (404, missing),
                }
            } else {
                let call = format!("{} {path}", parts.method);
                writes.lock().expect("lock").push(call.clone());
                let sent: Value =
                    serde_json::from_slice(&body.collect_bytes().await.expect("body")).unwrap_or_default();
                bodies.lock().expect("lock").insert(call, sent.clone());
                let found = path.strip_prefix("/api/v1/nodes/virtual-node-java-shop-base");
                let uid = found.map_or("made".to_owned(), |number| format!("n{number}"));
                let mut answer = json!({"metadata": {"name": path.rsplit('/').next(), "uid": uid, "resourceVersion": "1"}});
                if sent.is_object() && parts.method == "POST" {
                    answer = sent;
                    answer["metadata"]["uid"] = json!("made");
                    answer["metadata"]["resourceVersion"] = json!("1");
                }
                let kept =
                    json!({"kind": "Status", "status": "Failure", "reason": "TooManyRequests", "code": 429});
                if path.ends_with("/kept/eviction") { (429, kept) } else { (200, answer) }
            };
            let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
            Ok::<_, Infallible>(Response::builder().status(status).body(body).expect("response"))
        }
    });
    kube::Client::new(service, "default")
}

fn word(message: &Message) -> String {
    match message {
        Message::Base(spec) => spec.leaving.map_or("base".to_owned(), |why| format!("base {why:?}")),
        Message::Gone => "gone".to_owned(),
        Message::Pod(pod) => format!("pod {}", pod.metadata.uid.as_deref().unwrap_or_default()),
        Message::PodGone { uid } => format!("pod-gone {uid}"),
        Message::PodsSynced => "synced".to_owned(),
        Message::Hold(Hold { brake: true, .. }) => "hold brake".to_owned(),
        Message::Hold(Hold { pause: true, .. }) => "hold pause".to_owned(),
        Message::Hold(_) => "hold no".to_owned(),
        Message::SilenceCounts => "silence-counts".to_owned(),
        Message::Reinstall { uid, container } => format!("reinstall {uid}/{container}"),
        Message::Exhausted => "exhausted".to_owned(),
        Message::Inventory(inventory) => format!("inventory {}", inventory.is_some()),
    }
}

impl Rig {
    fn start() -> Self {
        Self::with(1, None)
    }

    fn of_clusters(clusters: usize) -> Self {
        Self::with(clusters, None)
    }

    fn start_for(own: Option<OwnBase>) -> Self {
        Self::with(1, own)
    }

    fn with(clusters: usize, own: Option<OwnBase>) -> Self {
        let shutdown = CancellationToken::new();
        let (told, writes, sent): (Told, Writes, Sent) = Default::default();
        let (paused, paused_end) = watch::channel(Arc::default());
        let events = Arc::new(Events::default());
        let (leader, terms, releases) = LeaderHandle::without_lease();
        terms.send_replace(None);
        let brakes = Brakes {
            bases: brake::Limits { share_percent: 50, at_least: 4 },
            modules: brake::Limits { share_percent: 20, at_least: 10 },
        };
        let limits =
            |_: &BaseSpec| vnode::Limits { pods: 1, reserved: BTreeMap::new(), metaspace_high_percent: 90 };
        let rules = Rules::new(false, brakes, Duration::from_secs(10), limits);
        let (rules, rules_end) = watch::channel(Arc::new(rules));
        let book = Arc::clone(&told);
        let start_actor: StartActor = Arc::new(move |spec, term| {
            let (mailbox, mut messages) = mpsc::unbounded_channel();
            let book = Arc::clone(&book);
            let done = async move {
                let (mut gone, mut held) = (false, false);
                while let Some(Some(message)) = term.token().run_until_cancelled(messages.recv()).await {
                    gone |= matches!(message, Message::Gone);
                    if let Message::Hold(hold) = &message {
                        held = hold.any();
                    }
                    book.lock().expect("lock").entry(spec.node.clone()).or_default().push(word(&message));
                    if gone && !held {
                        return;
                    }
                }
            };
            Started { mailbox, done: Box::pin(done) }
        });
        let frame = Frame {
            taint_value: "true".to_owned(),
            copy_topology: false,
            default_capacity: BTreeMap::new(),
            kubelet: None,
        };
        let context = FleetContext {
            cluster: "default".to_owned(),
            own,
            shutdown: shutdown.clone(),
            identity: "me".to_owned(),
            frame: Arc::new(frame),
            observe: false,
            base_watches: 1,
            base_client: client(&writes, &sent),
            base_clock: ServerClock::default(),
            one_cluster: clusters == 1,
            module_client: client(&writes, &sent),
            lease: ("ns".to_owned(), "lease".to_owned()),
            rules: rules_end,
            paused: paused_end,
            leader,
            start_actor,
            journal: crate::journal::Journal::default(),
            events: events.clone(),
            metrics: Arc::new(Metrics::new(&mut Registry::default())),
        };
        let note = context.leader.note.clone();
        let (handle, ends) = mailboxes();
        tokio::spawn(Fleet::new(context).run(ends, shutdown.clone()));
        Self { handle, told, writes, sent, events, paused, terms, releases, shutdown, note, _rules: rules }
    }

    async fn send(&self, input: Input) {
        self.handle.inbox.send(input).await.expect("the fleet lives");
    }

    /// All first lists, complete.
    async fn lists(&self, bases: Vec<Pod>, nodes: Vec<SeenNode>, pods: Vec<Pod>) {
        self.send(Input::BasePod(0, Feed::Begin)).await;
        for base in bases {
            self.send(Input::BasePod(0, Feed::Listed(Box::new(base)))).await;
        }
        self.send(Input::BasePod(0, Feed::Complete)).await;
        self.send(Input::Node(Feed::Begin)).await;
        for node in nodes {
            self.send(Input::Node(Feed::Listed(node))).await;
        }
        self.send(Input::Node(Feed::Complete)).await;
        self.send(Input::Pod(Feed::Begin)).await;
        for pod in pods {
            self.send(Input::Pod(Feed::Listed(Arc::new(pod)))).await;
        }
        self.send(Input::Pod(Feed::Complete)).await;
    }

    fn lead(&self) {
        self.terms.send_replace(Some(Term::unlimited()));
    }

    /// What the actor of the n-th base was told.
    fn told(&self, number: usize) -> Vec<String> {
        self.told.lock().expect("lock").get(&name(number)).cloned().unwrap_or_default()
    }

    fn written(&self, what: &str) -> bool {
        self.writes.lock().expect("lock").iter().any(|write| write == what)
    }

    fn has_told(&self, event: &str) -> bool {
        self.events.0.lock().expect("lock").contains(&event)
    }

    /// Time is paused: it passes when all tasks wait, so that this takes none.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(30), async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let in_time = waited.await.is_ok();
        assert!(in_time, "never: {what}\n{:#?}\n{:#?}", self.told.lock(), self.writes.lock());
    }

    /// Waits until `/diag` says so of the n-th VNode: mailboxes are read in any order.
    async fn shown(&self, number: usize, field: &str, value: &str) {
        let shown = tokio::time::timeout(Duration::from_secs(30), async {
            while self.diag().await["nodes"][name(number)][field] != value {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        shown.await.expect(value);
    }

    async fn diag(&self) -> Value {
        let (answer, answered) = oneshot::channel();
        self.send(Input::Diag(answer)).await;
        answered.await.expect("answered")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn name(number: usize) -> String {
    format!("virtual-node-java-shop-base{number}")
}

fn base(number: usize) -> Pod {
    let pod = json!({
        "metadata": {"namespace": "shop", "name": format!("base{number}"), "uid": format!("u{number}")},
        "spec": {"containers": [{"name": "base"}]},
        "status": {"phase": "Running", "podIP": format!("10.0.0.{number}"), "containerStatuses": [
            {"name": "base", "ready": true, "restartCount": 0, "image": "", "imageID": ""}]}
    });
    serde_json::from_value(pod).expect("pod")
}

/// The same Pod, and somebody has ordered its deletion.
fn deleted(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("time");
    pod
}

/// One base with its VNode and these VPods, and an actor that knows them.
async fn of_one_base(pods: Vec<Pod>) -> Rig {
    let told = pods.len() + 2;
    let rig = Rig::start();
    rig.lists(vec![base(1)], vec![node(1, EMPTY)], pods).await;
    rig.lead();
    rig.until("the actor is told", |rig| rig.told(1).len() == told).await;
    rig
}

fn node(number: usize, inventory: &str) -> SeenNode {
    let node = json!({
        "metadata": {"name": name(number), "uid": format!("n{number}"), "resourceVersion": "1",
            "labels": {"app.kubernetes.io/managed-by": "stowage", "stowage.dev/base-cluster": "default"},
            "annotations": {"stowage.dev/base": format!("shop/base{number}"), "stowage.dev/base-uid": format!("u{number}"),
                "stowage.dev/inventory": inventory}},
        "spec": {"providerID": format!("stowage://default/shop/u{number}")}
    });
    SeenNode::new(serde_json::from_value(node).expect("node"))
}

/// The Node of the n-th base when nothing new may come to it.
fn marked_node(number: usize) -> SeenNode {
    let mut node = (*node(number, EMPTY).node).clone();
    node.metadata.resource_version = Some("2".to_owned());
    let taint = json!([{"key": "stowage.dev/leaving", "value": "true", "effect": "NoSchedule"}]);
    if let Some(spec) = &mut node.spec {
        spec.taints = serde_json::from_value(taint).expect("taints");
    }
    SeenNode::new(node)
}

fn vpod(number: usize, uid: &str) -> Pod {
    let pod = json!({
        "metadata": {"namespace": "shop", "name": uid, "uid": uid},
        "spec": {"nodeName": name(number),
            "tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
            "containers": [{"name": "m", "env": [{"name": "MODULE_VERSION", "value": "1.0"}]}]}
    });
    serde_json::from_value(pod).expect("pod")
}

const EMPTY: &str = r#"{"v":1}"#;

#[tokio::test(start_paused = true)]
async fn an_actor_hears_of_everything_in_order_and_only_during_a_term() {
    let rig = Rig::start();
    rig.lists(vec![base(1)], vec![node(1, EMPTY)], vec![vpod(1, "p1"), vpod(2, "p2")]).await;
    assert_eq!(rig.diag().await["leading"], false);
    assert!(rig.told(1).is_empty(), "a standby watches and does nothing");
    assert!(rig.writes.lock().expect("lock").is_empty());
    rig.lead();
    rig.until("the actor is told", |rig| rig.told(1).len() == 3).await;
    assert_eq!(rig.told(1), ["inventory true", "pod p1", "synced"]);
    let lease = format!("PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", name(1));
    rig.until("its Lease is renewed before the base has answered", |rig| rig.written(&lease)).await;
    assert!(
        !rig.writes.lock().expect("lock").iter().any(|write| write.contains("/nodes")),
        "nothing to say yet"
    );

    // The end of the term ends the actor; the next begins with a new one.
    rig.terms.send_replace(None);
    rig.until("standby", |_| true).await;
    rig.lead();
    rig.until("told again", |rig| rig.told(1).len() == 6).await;
}

#[tokio::test(start_paused = true)]
async fn a_vnode_is_made_once_its_base_answered_and_comes_back_when_deleted() {
    let rig = Rig::start();
    rig.lists(vec![base(1)], vec![], vec![]).await;
    rig.lead();
    rig.until("the actor is told", |rig| rig.told(1).len() == 2).await;
    let publish = |health| Publish { node: name(1), report: report(health, false), written: None };
    rig.handle.publish.send(publish(Health::Starting)).expect("sent");
    let created = |rig: &Rig| {
        rig.writes.lock().expect("lock").iter().filter(|write| *write == "POST /api/v1/nodes").count()
    };
    rig.shown(1, "health", "starting").await;
    assert_eq!(created(&rig), 0);
    let (written, answer) = oneshot::channel();
    let publish = Publish { written: Some(written), ..publish(Health::Answering) };
    rig.handle.publish.send(publish).expect("sent");
    answer.await.expect("answered").expect("written");
    assert_eq!(created(&rig), 1);
    // Somebody deletes it.
    let mut made = (*node(1, EMPTY).node).clone();
    made.metadata.uid = Some("made".to_owned());
    rig.send(Input::Node(Feed::Applied(SeenNode::new(made.clone())))).await;
    rig.send(Input::Node(Feed::Deleted(SeenNode::new(made)))).await;
    rig.until("it is back", |rig| created(rig) == 2).await;
}

/// BL-003: what died while no agent ran is cleaned up, and other Nodes are left alone.
#[tokio::test(start_paused = true)]
async fn a_vnode_without_base_is_cleaned_up() {
    let rig = Rig::start();
    let mut foreign = (*node(3, EMPTY).node).clone();
    foreign.metadata.labels = None;
    rig.lists(
        vec![base(2)],
        vec![node(1, EMPTY), node(2, EMPTY), SeenNode::new(foreign)],
        vec![vpod(1, "p1")],
    )
    .await;
    rig.lead();
    let pod = "DELETE /api/v1/namespaces/shop/pods/p1";
    let marked = format!("PATCH /api/v1/nodes/{}", name(1));
    rig.until("the Node is marked", |rig| rig.written(&marked)).await;
    assert!(!rig.written(pod), "its replacement would come back here");
    rig.send(Input::Node(Feed::Applied(marked_node(1)))).await;
    rig.until("its VPod is deleted", |rig| rig.written(pod)).await;
    let node_path = format!("DELETE /api/v1/nodes/{}", name(1));
    assert!(!rig.written(&node_path), "VPods go first");
    rig.send(Input::Pod(Feed::Deleted(Arc::new(vpod(1, "p1"))))).await;
    rig.until("the Node is deleted", |rig| rig.written(&node_path)).await;
    let lease = format!("DELETE /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", name(1));
    rig.until("the Lease is deleted", |rig| rig.written(&lease)).await;
    let deletions =
        rig.writes.lock().expect("lock").iter().filter(|write| write.starts_with("DELETE")).count();
    assert_eq!(deletions, 3);
}

/// A typo in the selector, or an etcd restore: no base is found, and nothing is removed until an operator says so.
#[tokio::test(start_paused = true)]
async fn at_a_start_without_bases_the_brake_holds_everything() {
    let rig = Rig::start();
    rig.lists(vec![], (1..=5).map(|number| node(number, EMPTY)).collect(), vec![vpod(1, "p1")]).await;
    rig.lead();
    rig.until("the brake closes", |rig| rig.events.0.lock().expect("lock").contains(&"BrakeClosed")).await;
    // Far longer than any settling.
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(rig.diag().await["brake"]["bases"]["on"], true);
    let deletions = |rig: &Rig| {
        rig.writes.lock().expect("lock").iter().filter(|write| write.starts_with("DELETE")).count()
    };
    assert_eq!(deletions(&rig), 0);
    let lease = format!("PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", name(4));
    rig.until("Leases are renewed meanwhile", |rig| rig.written(&lease)).await;
    rig.releases.send_modify(|count| *count += 1);
    let marked = format!("PATCH /api/v1/nodes/{}", name(1));
    rig.until("the Node with a VPod is marked", |rig| rig.written(&marked)).await;
    rig.send(Input::Node(Feed::Applied(marked_node(1)))).await;
    // Four Nodes with their Leases, and a VPod.
    rig.until("the operator let go", |rig| deletions(rig) >= 9).await;
}

/// BL-089: a base that ends takes its modules out of the traffic before they are uninstalled.
#[tokio::test(start_paused = true)]
async fn a_base_that_goes_is_drained_before_its_vnode_goes() {
    let rig = of_one_base(vec![]).await;
    let leaving = deleted(base(1));
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(leaving.clone())))).await;
    rig.until("it knows", |rig| rig.told(1).contains(&"base Deleted".to_owned())).await;
    let publish =
        |drained| Publish { node: name(1), report: report(Health::Answering, drained), written: None };
    rig.handle.publish.send(publish(false)).expect("sent");
    let deleted = format!("DELETE /api/v1/nodes/{}", name(1));
    rig.shown(1, "health", "answering").await;
    assert_eq!(rig.diag().await["nodes"][name(1)]["leaving"], "Deleted");
    assert!(!rig.written(&deleted));
    rig.handle.publish.send(publish(true)).expect("sent");
    rig.until("the Node is deleted", |rig| rig.written(&deleted)).await;
    rig.send(Input::Node(Feed::Deleted(node(1, EMPTY)))).await;
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(leaving)))).await;
    rig.until("the actor is dismissed", |rig| rig.told(1).last().is_some_and(|word| word == "gone")).await;
    rig.until("nothing is left", |_| true).await;
    assert_eq!(rig.diag().await["bases"], 0);
}
