//! Healing that an earlier agent began, and what holds it up.

use jiff::Timestamp;
use policy::contract::names;

use super::*;
use crate::base::Report;
use crate::healing::{Awaited, Cause, Evicted, Healing, Notes, Step};

pub(super) fn report(health: Health, drained: bool) -> Arc<Report> {
    Arc::new(Report {
        health,
        inventory: policy::contract::Inventory::default(),
        bound: 0,
        full: drained,
        drained,
        unhealthy: BTreeSet::new(),
        load: crate::healing::Load::Unknown,
        started_at: None,
    })
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("time")
}

/// One that began a moment ago.
fn healing(number: usize, step: Step, evicted: Option<&str>) -> Healing {
    let now = Timestamp::now();
    let evicted = evicted.map(|uid| Evicted {
        uid: uid.to_owned(),
        controller: Some("r".to_owned()),
        elsewhere: 0,
        awaited: true,
    });
    let begun = (step != Step::Waiting).then_some(now);
    Healing { step, begun, evicted, ..Healing::found(&format!("u{number}"), None, Cause::Exhausted, at(100)) }
}

fn healing_node(number: usize, healing: &Healing) -> SeenNode {
    let mut node = (*node(number, EMPTY).node).clone();
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(names::HEALING.to_owned(), healing.to_annotation());
    SeenNode::new(node)
}

fn controlled(mut pod: Pod) -> Pod {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "r", "controller": true}]);
    pod.metadata.owner_references = serde_json::from_value(owner).expect("owner");
    pod.metadata.creation_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("time");
    pod
}

/// A VNode that takes one VPod of this cpu.
fn ready_node(number: usize, cpu: &str) -> SeenNode {
    let mut node = (*node(number, EMPTY).node).clone();
    let status = json!({"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "1", "cpu": cpu}});
    node.status = serde_json::from_value(status).expect("status");
    SeenNode::new(node)
}

/// The same Pod, and its module asks for this cpu.
fn asking(mut pod: Pod, cpu: &str) -> Pod {
    if let Some(spec) = &mut pod.spec {
        let container = &mut spec.containers[0];
        container.image = Some("https://x/m.jar".to_owned());
        container.resources = serde_json::from_value(json!({"requests": {"cpu": cpu}})).expect("resources");
    }
    pod
}

/// A module Pod that kube-scheduler has yet to place.
fn unplaced(cpu: &str) -> Arc<Unplaced> {
    let mut pod = asking(vpod(1, "new"), cpu);
    if let Some(spec) = &mut pod.spec {
        spec.node_name = None;
    }
    Arc::new(Unplaced::of(pod).expect("a module Pod"))
}

const EVICTION: &str = "POST /api/v1/namespaces/shop/pods/p1/eviction";
const BASE_EVICTION: &str = "POST /api/v1/namespaces/shop/pods/base1/eviction";

fn evictions(rig: &Rig) -> usize {
    rig.writes.lock().expect("lock").iter().filter(|write| write.ends_with("/eviction")).count()
}

async fn no_workloads(rig: &Rig) {
    rig.send(Input::Deployment(Feed::Begin)).await;
    rig.send(Input::Deployment(Feed::Complete)).await;
    rig.send(Input::DaemonSet(Feed::Begin)).await;
    rig.send(Input::DaemonSet(Feed::Complete)).await;
    rig.send(Input::Unplaced(Feed::Begin)).await;
    rig.send(Input::Unplaced(Feed::Complete)).await;
}

/// BL-099: what stands on the Node is carried out by whoever leads next, again and again until it has happened.
#[tokio::test(start_paused = true)]
async fn an_eviction_that_was_written_down_is_asked_for() {
    let rig = Rig::start();
    let node = healing_node(1, &healing(1, Step::Evicting, Some("p1")));
    rig.lists(
        vec![controlled(base(1))],
        vec![node],
        vec![controlled(vpod(1, "p1")), controlled(vpod(1, "p2"))],
    )
    .await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(evictions(&rig), 0, "a standby asks for nothing");
    no_workloads(&rig).await;
    rig.lead();
    rig.until("the eviction", |rig| rig.written(EVICTION)).await;
    assert_eq!(rig.told(1)[..2], ["inventory true", "exhausted"], "no install is tried");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(evictions(&rig) > 2, "its budget refuses it for now");
    assert!(!rig.written("POST /api/v1/namespaces/shop/pods/p2/eviction"), "one after the other");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_evicted_from_a_paused_base() {
    let rig = Rig::start();
    let mut node = (*healing_node(1, &healing(1, Step::Evicting, Some("p1"))).node).clone();
    node.metadata.annotations.get_or_insert_default().insert(names::PAUSED.to_owned(), "true".to_owned());
    rig.lists(vec![controlled(base(1))], vec![SeenNode::new(node)], vec![controlled(vpod(1, "p1"))]).await;
    no_workloads(&rig).await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(evictions(&rig), 0);
    rig.send(Input::Node(Feed::Applied(healing_node(1, &healing(1, Step::Evicting, Some("p1")))))).await;
}

/// The base goes, and its place in the budget stays taken until its successor is complete.
#[tokio::test(start_paused = true)]
async fn the_next_base_waits_for_the_successor_of_the_first() {
    let rig = Rig::start();
    let nodes = vec![
        healing_node(1, &healing(1, Step::Replacing, None)),
        healing_node(2, &healing(2, Step::Waiting, None)),
    ];
    rig.lists(vec![controlled(base(1)), controlled(base(2))], nodes, vec![]).await;
    no_workloads(&rig).await;
    rig.lead();
    rig.until("the base is evicted", |rig| rig.written(BASE_EVICTION)).await;
    rig.until("it is noted", |rig| rig.note.stored().is_some_and(|note| note.contains("\"u1\""))).await;
    let mut leaving = controlled(base(1));
    leaving.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("time");
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(leaving.clone())))).await;
    rig.send(Input::Node(Feed::Applied(marked_node(1)))).await;
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(leaving)))).await;
    rig.send(Input::Node(Feed::Deleted(node(1, EMPTY)))).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let begun = |rig: &Rig| rig.has_told("HealingEvicts");
    assert!(!begun(&rig), "nothing has come in its place");
    assert!(rig.has_told("HealingAwaitsSuccessor"));
    assert_eq!(rig.diag().await["healing"]["awaited"], json!(["u1"]));

    let mut successor = controlled(base(3));
    successor.metadata.creation_timestamp =
        serde_json::from_value(json!("2026-01-02T00:00:00Z")).expect("time");
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(successor)))).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(!begun(&rig), "its VNode is not Ready");
    rig.send(Input::Unplaced(Feed::Applied(unplaced("500m")))).await;
    rig.send(Input::Node(Feed::Applied(ready_node(3, "1")))).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(!begun(&rig), "a module has yet to be placed, and there is room for it");
    rig.send(Input::Unplaced(Feed::Applied(unplaced("1500m")))).await;
    rig.until("the next one begins: what cannot come is not waited for", begun).await;
    assert_eq!(rig.note.stored(), None);
}

/// An earlier agent was about to evict a base; its JVM began anew before that. It keeps no place in the budget.
#[tokio::test(start_paused = true)]
async fn a_base_that_stays_after_all_is_not_awaited() {
    let rig = Rig::start();
    let notes = Notes(vec![Awaited::new("u1", "r", at(100))]);
    rig.note.want(notes.to_annotation());
    rig.until("it is noted", |rig| rig.note.stored().is_some()).await;
    rig.lists(vec![controlled(base(1))], vec![node(1, EMPTY)], vec![]).await;
    no_workloads(&rig).await;
    rig.lead();
    rig.until("it is forgotten", |rig| rig.note.stored().is_none()).await;
}

/// A new JVM is another one: what stood there does not hold any more.
#[tokio::test(start_paused = true)]
async fn a_base_that_started_anew_is_not_healed() {
    let rig = Rig::start();
    let mut old = healing(1, Step::Evicting, Some("p1"));
    old.started = Some(at(1));
    let mut restarted = controlled(base(1));
    let running = json!([{"name": "base", "ready": true, "restartCount": 1, "image": "", "imageID": "",
        "state": {"running": {"startedAt": "2026-02-01T00:00:00Z"}}}]);
    if let Some(status) = &mut restarted.status {
        status.container_statuses = serde_json::from_value(running).expect("status");
    }
    rig.lists(vec![restarted], vec![healing_node(1, &old)], vec![controlled(vpod(1, "p1"))]).await;
    no_workloads(&rig).await;
    rig.lead();
    rig.until("its actor is told", |rig| rig.told(1).len() == 3).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(
        (evictions(&rig), rig.told(1)[0].as_str(), rig.told(1)[1].as_str()),
        (0, "inventory true", "pod p1")
    );
}

/// A module that asks for more cpu than any base has left has no place; when one has it, the healing begins.
#[tokio::test(start_paused = true)]
async fn room_for_the_modules_is_looked_for_until_there_is_some() {
    let rig = Rig::start();
    let nodes = vec![healing_node(1, &healing(1, Step::Waiting, None)), ready_node(2, "1")];
    let pods = vec![asking(controlled(vpod(1, "p1")), "1500m")];
    rig.lists(vec![controlled(base(1)), controlled(base(2))], nodes, pods).await;
    no_workloads(&rig).await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let case = rig.diag().await["healing"]["bases"][0].clone();
    assert_eq!((&case["step"], &case["hindrance"]), (&json!("HealingWaits"), &json!("NoPlace")));
    rig.send(Input::Node(Feed::Applied(ready_node(2, "2")))).await;
    rig.until("it begins", |rig| rig.has_told("HealingEvicts")).await;
}

/// Whoever looks at the Node learns that a healing which has begun is stuck, and why.
#[tokio::test(start_paused = true)]
async fn lack_of_room_on_the_way_stands_on_the_node() {
    let rig = Rig::start();
    let node = healing_node(1, &healing(1, Step::Evicting, None));
    rig.lists(vec![controlled(base(1))], vec![node], vec![controlled(vpod(1, "p1"))]).await;
    no_workloads(&rig).await;
    rig.lead();
    rig.until("an Event", |rig| rig.has_told("HealingEvicts")).await;
    let publish = Publish { node: name(1), report: report(Health::Answering, false), written: None };
    rig.handle.publish.send(publish).expect("sent");
    let shown = |rig: &Rig| {
        let sent = rig.sent.lock().expect("lock");
        let status =
            sent.get(&format!("PATCH /api/v1/nodes/{}/status", name(1))).cloned().unwrap_or_default();
        status.to_string().contains("its modules have nowhere to go")
    };
    rig.until("its condition", shown).await;
    assert_eq!(evictions(&rig), 0);
}

#[tokio::test(start_paused = true)]
async fn only_a_granted_eviction_is_told_of() {
    for (pod, told) in [("kept", false), ("p1", true)] {
        let rig = Rig::start();
        let node = healing_node(1, &healing(1, Step::Evicting, Some(pod)));
        rig.lists(vec![controlled(base(1))], vec![node], vec![controlled(vpod(1, pod))]).await;
        no_workloads(&rig).await;
        rig.lead();
        rig.until("it was asked for again", |rig| evictions(rig) >= 3).await;
        assert_eq!(rig.has_told("EvictedFromOverloadedBase"), told, "{pod}");
    }
}

/// Pauses stand on namespaces of the module cluster. A base in another cluster is in none of them, whatever the name.
#[tokio::test(start_paused = true)]
async fn a_base_of_another_cluster_is_not_paused_by_a_namespace_of_its_name() {
    for (clusters, paused, evicts) in
        [(1, "bases", false), (2, "bases", true), (1, "shop", false), (2, "shop", false), (1, "other", true)]
    {
        let rig = Rig::of_clusters(clusters);
        rig.paused.send_replace(Arc::new(BTreeSet::from([paused.to_owned()])));
        let mut base = controlled(base(1));
        base.metadata.namespace = Some("bases".to_owned());
        let node_name = policy::contract::node_name("java", "bases", "base1", "default");
        let mut node = (*healing_node(1, &healing(1, Step::Evicting, Some("p1"))).node).clone();
        node.metadata.name = Some(node_name.clone());
        node.spec.get_or_insert_default().provider_id = Some("stowage://default/bases/u1".to_owned());
        node.metadata
            .annotations
            .get_or_insert_default()
            .insert(names::BASE.to_owned(), "bases/base1".to_owned());
        let mut pod = controlled(vpod(1, "p1"));
        pod.spec.get_or_insert_default().node_name = Some(node_name);
        rig.lists(vec![base], vec![SeenNode::new(node)], vec![pod]).await;
        no_workloads(&rig).await;
        rig.lead();
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(rig.written(EVICTION), evicts, "{clusters} clusters, {paused} paused");
    }
}
