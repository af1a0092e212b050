//! Bases with an agent of their own, as the agent of the fleet sees them, and as that agent does.

use policy::contract::names;

use super::*;

fn labelled(mut pod: Pod) -> Pod {
    pod.metadata.labels.get_or_insert_default().insert(names::SIDECAR.to_owned(), "true".to_owned());
    pod
}

fn labelled_node(seen: &SeenNode) -> SeenNode {
    let mut node = (*seen.node).clone();
    node.metadata.labels.get_or_insert_default().insert(names::SIDECAR.to_owned(), "true".to_owned());
    SeenNode::new(node)
}

/// Five bases: an agent that did not know better would take them for lost when it cannot see their Pods.
fn five() -> (Vec<Pod>, Vec<SeenNode>) {
    let bases = (1..=5).map(|number| labelled(base(number))).collect();
    (bases, (1..=5).map(|number| labelled_node(&node(number, EMPTY))).collect())
}

fn gone(rig: &Rig, number: usize) -> bool {
    rig.written(&format!("DELETE /api/v1/nodes/{}", name(number)))
}

async fn remove(rig: &Rig, number: usize) {
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(deleted(labelled(base(number))))))).await;
}

#[tokio::test(start_paused = true)]
async fn the_fleet_leaves_a_base_with_an_agent_alone_until_it_is_gone() {
    let rig = Rig::start();
    let (bases, nodes) = five();
    rig.lists(bases, nodes, vec![vpod(1, "p1"), vpod(2, "p2")]).await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!((1..=5).all(|number| rig.told(number).is_empty()), "no actors");
    assert!(rig.writes.lock().expect("lock").is_empty(), "no Lease is renewed, nothing is written");

    remove(&rig, 1).await;
    rig.until("nothing new may come", |rig| rig.written(&format!("PATCH /api/v1/nodes/{}", name(1)))).await;
    rig.send(Input::Node(Feed::Applied(labelled_node(&marked_node(1))))).await;
    rig.until("its VPod goes", |rig| rig.written("DELETE /api/v1/namespaces/shop/pods/p1")).await;
    rig.send(Input::Pod(Feed::Deleted(Arc::new(vpod(1, "p1"))))).await;
    rig.until("its VNode goes", |rig| gone(rig, 1)).await;
    let lease = format!("DELETE /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", name(1));
    rig.until("its Lease goes", |rig| rig.written(&lease)).await;
    let others = |write: &String| (2..=5).any(|number| write.contains(&name(number)));
    assert!(!rig.writes.lock().expect("lock").iter().any(others));
}

/// Somebody takes the label off a VNode; its agent puts it back.
#[tokio::test(start_paused = true)]
async fn a_vnode_without_its_label_gets_no_second_agent() {
    let rig = Rig::start();
    let (bases, nodes) = five();
    rig.lists(bases, nodes, vec![vpod(1, "p1")]).await;
    rig.lead();
    rig.send(Input::Node(Feed::Applied(node(1, EMPTY)))).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(rig.told(1).is_empty(), "no actor");
    assert!(rig.writes.lock().expect("lock").is_empty(), "{:#?}", rig.writes.lock());
}

/// A base whose Pod has the same name as the one before is cleaned up by its own agent, while it has one.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_replaced_base_is_left_to_the_next_agent() {
    let rig = Rig::start();
    let mut next = labelled(base(1));
    next.metadata.uid = Some("next".to_owned());
    rig.lists(vec![next.clone()], vec![labelled_node(&node(1, EMPTY))], vec![]).await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(rig.writes.lock().expect("lock").is_empty(), "{:#?}", rig.writes.lock());
    assert!(rig.told(1).is_empty(), "no actor for the next one");
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(deleted(next))))).await;
    rig.until("both are gone", |rig| gone(rig, 1)).await;
}

/// A list of Pods without them, and a look-up that finds nothing: a restored API server.
#[tokio::test(start_paused = true)]
async fn many_vanishing_at_once_are_held_by_the_brake() {
    let rig = Rig::start();
    let (bases, nodes) = five();
    rig.lists(bases, nodes, vec![]).await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(1)).await;
    rig.send(Input::BasePod(0, Feed::Begin)).await;
    rig.send(Input::BasePod(0, Feed::Complete)).await;
    rig.until("the brake closes", |rig| rig.events.0.lock().expect("lock").contains(&"BrakeClosed")).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!((1..=5).all(|number| !gone(&rig, number)));
}

/// The selector of bases need not match them.
#[tokio::test(start_paused = true)]
async fn a_next_pod_that_no_watch_shows_has_an_agent_too() {
    let rig = Rig::start();
    let mut next = labelled(base(1));
    next.metadata.uid = Some("next".to_owned());
    let path = "GET /api/v1/namespaces/shop/pods/base1";
    rig.sent.lock().expect("lock").insert(path.to_owned(), serde_json::to_value(next).expect("JSON"));
    rig.lists(vec![], vec![labelled_node(&node(1, EMPTY))], vec![]).await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(rig.writes.lock().expect("lock").is_empty(), "{:#?}", rig.writes.lock());
    rig.sent.lock().expect("lock").remove(path);
    rig.until("both are gone", |rig| gone(rig, 1)).await;
}

/// Fewer than the brake is for: none of them counts twice.
#[tokio::test(start_paused = true)]
async fn few_that_vanish_are_cleaned_up() {
    let rig = Rig::start();
    let bases: Vec<Pod> = (1..=3).map(|number| labelled(base(number))).collect();
    rig.lists(bases.clone(), (1..=3).map(|number| labelled_node(&node(number, EMPTY))).collect(), vec![])
        .await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(2)).await;
    rig.send(Input::BasePod(0, Feed::Begin)).await;
    rig.send(Input::BasePod(0, Feed::Listed(Box::new(bases[2].clone())))).await;
    rig.send(Input::BasePod(0, Feed::Complete)).await;
    rig.until("two are gone", |rig| gone(rig, 1) && gone(rig, 2)).await;
    assert!(!rig.has_told("BrakeClosed") && !gone(&rig, 3));
}

/// Its own agent makes a VNode anew while what is left of the last one is cleaned up.
#[tokio::test(start_paused = true)]
async fn a_cleaning_does_not_touch_the_next_vnode() {
    let rig = Rig::start();
    rig.lists(vec![], vec![labelled_node(&node(1, EMPTY))], vec![vpod(1, "p1")]).await;
    rig.lead();
    rig.until("nothing new may come", |rig| rig.written(&format!("PATCH /api/v1/nodes/{}", name(1)))).await;
    let mut next = labelled(base(1));
    next.metadata.uid = Some("next".to_owned());
    let mut made = (*labelled_node(&node(1, EMPTY)).node).clone();
    made.metadata.uid = Some("n1b".to_owned());
    made.metadata.resource_version = Some("5".to_owned());
    made.spec.get_or_insert_default().provider_id = Some("stowage://default/shop/next".to_owned());
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(next.clone())))).await;
    rig.send(Input::Node(Feed::Deleted(labelled_node(&node(1, EMPTY))))).await;
    rig.send(Input::Node(Feed::Applied(SeenNode::new(made)))).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    rig.writes.lock().expect("lock").clear();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(rig.writes.lock().expect("lock").is_empty(), "{:#?}", rig.writes.lock());
    // Its base goes too, and with it what is left.
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(deleted(next))))).await;
    rig.until("nothing new may come", |rig| rig.written(&format!("PATCH /api/v1/nodes/{}", name(1)))).await;
}

/// While a pause holds what is left of a base, its Lease runs out: nobody is there who answers.
#[tokio::test(start_paused = true)]
async fn a_paused_vnode_of_a_dead_base_is_not_kept_alive() {
    let rig = Rig::start();
    let mut paused = (*labelled_node(&node(1, EMPTY)).node).clone();
    let annotations = paused.metadata.annotations.get_or_insert_default();
    annotations.insert(names::PAUSED.to_owned(), "true".to_owned());
    rig.lists(vec![], vec![SeenNode::new(paused)], vec![]).await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(rig.writes.lock().expect("lock").is_empty(), "{:#?}", rig.writes.lock());
    rig.send(Input::Node(Feed::Applied(labelled_node(&node(1, EMPTY))))).await;
    rig.until("the pause is over", |rig| gone(rig, 1)).await;
}

fn sidecar() -> Rig {
    let own = OwnBase {
        namespace: "shop".to_owned(),
        pod: "base1".to_owned(),
        uid: "u1".to_owned(),
        node: name(1),
    };
    Rig::start_for(Some(own))
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_serves_its_base_and_ends_with_it() {
    let rig = sidecar();
    rig.lists(vec![labelled(base(1))], vec![labelled_node(&node(1, EMPTY))], vec![vpod(1, "p1")]).await;
    rig.lead();
    rig.until("the actor is told", |rig| rig.told(1).len() == 3).await;
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(labelled(deleted(base(1))))))).await;
    rig.until("it drains", |rig| rig.told(1).contains(&"base Deleted".to_owned())).await;
    assert!(!rig.shutdown.is_cancelled(), "there is much to do yet");
    // kubelet has ended the base.
    rig.send(Input::BaseEnded).await;
    rig.send(Input::Node(Feed::Applied(labelled_node(&marked_node(1))))).await;
    rig.until("the actor is dismissed", |rig| rig.told(1).contains(&"gone".to_owned())).await;
    rig.send(Input::Pod(Feed::Deleted(Arc::new(vpod(1, "p1"))))).await;
    rig.until("the VNode goes", |rig| gone(rig, 1)).await;
    tokio::time::timeout(Duration::from_secs(30), rig.shutdown.cancelled()).await.expect("it ends by itself");
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_that_drained_its_base_has_nothing_left_to_do() {
    let rig = sidecar();
    rig.lists(vec![labelled(base(1))], vec![labelled_node(&node(1, EMPTY))], vec![]).await;
    rig.lead();
    rig.until("the actor is told", |rig| rig.told(1).len() == 2).await;
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(labelled(deleted(base(1))))))).await;
    rig.until("it drains", |rig| rig.told(1).contains(&"base Deleted".to_owned())).await;
    let publish = Publish { node: name(1), report: report(Health::Answering, true), written: None };
    rig.handle.publish.send(publish).expect("sent");
    rig.until("the VNode goes", |rig| gone(rig, 1)).await;
    rig.send(Input::Node(Feed::Deleted(labelled_node(&node(1, EMPTY))))).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!rig.shutdown.is_cancelled(), "its container is kubelet's to end");
    rig.send(Input::BaseEnded).await;
    tokio::time::timeout(Duration::from_secs(30), rig.shutdown.cancelled()).await.expect("over at once");
}

/// One whose Pod was removed by force from a dead node must not get in the way of the next Pod's agent.
#[tokio::test(start_paused = true)]
async fn a_standby_whose_base_is_gone_ends() {
    let rig = sidecar();
    rig.lists(vec![labelled(base(1))], vec![labelled_node(&node(1, EMPTY))], vec![]).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!rig.shutdown.is_cancelled());
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(labelled(base(1)))))).await;
    tokio::time::timeout(Duration::from_secs(30), rig.shutdown.cancelled()).await.expect("ends");
    assert!(rig.writes.lock().expect("lock").is_empty(), "the VNode is the other agent's");
}
