//! Bases that end or go.

use super::*;

/// A relist without most VPods (a restored etcd): nothing is uninstalled.
#[tokio::test(start_paused = true)]
async fn vpods_that_vanish_without_order_are_held_by_the_brake() {
    let pods: Vec<Pod> = (0..12).map(|pod| vpod(1, &format!("p{pod}"))).collect();
    let rig = of_one_base(pods.clone()).await;
    // One that was ordered passes at once.
    let ordered = deleted(pods[0].clone());
    rig.send(Input::Pod(Feed::Deleted(Arc::new(ordered)))).await;
    rig.until("it is told", |rig| rig.told(1).contains(&"pod-gone p0".to_owned())).await;
    rig.send(Input::Pod(Feed::Begin)).await;
    rig.send(Input::Pod(Feed::Complete)).await;
    rig.until("the brake closes", |rig| rig.told(1).last().is_some_and(|word| word == "hold brake")).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(rig.told(1).iter().filter(|word| word.starts_with("pod-gone")).count(), 1);
    // They come back.
    for pod in pods.into_iter().skip(1) {
        rig.send(Input::Pod(Feed::Applied(Arc::new(pod)))).await;
    }
    rig.until("the brake opens", |rig| rig.told(1).contains(&"hold no".to_owned())).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(rig.told(1).iter().filter(|word| word.starts_with("pod-gone")).count(), 1);
}

/// An evicted Pod keeps its object for long, and its address goes to the next.
#[tokio::test(start_paused = true)]
async fn a_base_that_ended_is_gone_though_its_pod_is_still_there() {
    let rig = of_one_base(vec![vpod(1, "p1")]).await;
    let mut ended = base(1);
    ended.status.as_mut().expect("status").phase = Some("Failed".to_owned());
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(ended.clone())))).await;
    rig.send(Input::Node(Feed::Applied(marked_node(1)))).await;
    rig.until("the actor is dismissed", |rig| rig.told(1).contains(&"gone".to_owned())).await;
    rig.send(Input::Pod(Feed::Deleted(Arc::new(vpod(1, "p1"))))).await;
    let deleted = format!("DELETE /api/v1/nodes/{}", name(1));
    rig.until("the VNode goes", |rig| rig.written(&deleted)).await;
    rig.send(Input::Node(Feed::Deleted(node(1, EMPTY)))).await;
    let told = rig.told(1).len();
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(ended)))).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(rig.told(1).len(), told, "it does not come back");
}

/// A list that names another Node under the name of the one before: that one is gone, this one is not.
#[tokio::test(start_paused = true)]
async fn a_node_that_replaced_another_is_not_taken_for_gone() {
    let rig = of_one_base(vec![vpod(1, "p1")]).await;
    let mut next = (*node(1, EMPTY).node).clone();
    next.metadata.uid = Some("next".to_owned());
    rig.send(Input::Node(Feed::Begin)).await;
    rig.send(Input::Node(Feed::Listed(SeenNode::new(next)))).await;
    rig.send(Input::Node(Feed::Complete)).await;
    assert_eq!(rig.diag().await["vnodes"], json!(1));
}

/// Whoever waits for the Node to be marked must not call an address that may be another Pod's by now.
#[tokio::test(start_paused = true)]
async fn calls_to_a_base_that_is_gone_end_before_its_node_is_marked() {
    let rig = of_one_base(vec![vpod(1, "p1")]).await;
    let leaving = deleted(base(1));
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(leaving)))).await;
    rig.until("the actor knows", |rig| rig.told(1).contains(&"gone".to_owned())).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(rig.told(1)[3..], ["hold pause", "gone"], "its VPods stay until the Node keeps others away");
    rig.send(Input::Node(Feed::Applied(marked_node(1)))).await;
    rig.until("they may go", |rig| rig.told(1).last().is_some_and(|word| word == "hold no")).await;
}

fn deletions(rig: &Rig) -> usize {
    rig.writes.lock().expect("lock").iter().filter(|write| write.starts_with("DELETE")).count()
}

/// A pause holds what is left of a base that is gone, too.
#[tokio::test(start_paused = true)]
async fn nothing_is_cleaned_up_while_paused() {
    let rig = Rig::start();
    let paused = |number: usize| {
        let mut node = (*node(number, EMPTY).node).clone();
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(policy::contract::names::PAUSED.to_owned(), "true".to_owned());
        SeenNode::new(node)
    };
    rig.lists(vec![], vec![paused(1), paused(2)], vec![vpod(1, "p1")]).await;
    rig.lead();
    tokio::time::sleep(Duration::from_mins(10)).await;
    let marked = format!("PATCH /api/v1/nodes/{}", name(1));
    assert!(!rig.written(&marked) && deletions(&rig) == 0, "{:?}", rig.writes.lock());
    rig.send(Input::Node(Feed::Applied(marked_node(1)))).await;
    rig.until("the pause is over", |rig| rig.written("DELETE /api/v1/namespaces/shop/pods/p1")).await;
    assert!(!rig.written(&format!("DELETE /api/v1/nodes/{}", name(2))), "this one is still paused");
}

/// Modules whose VPods vanished while no agent ran weigh as many as they are, not as many as their VPods.
#[tokio::test(start_paused = true)]
async fn a_vpod_that_was_lost_before_the_start_weighs_its_modules() {
    let rig = Rig::start();
    let module = |number: usize| {
        json!({"name": format!("m{number}"), "version": "1.0", "state": "activated",
            "owner": "shop/lost/lost"})
    };
    let inventory = json!({"v": 1, "modules": (0..4).map(module).collect::<Vec<_>>()}).to_string();
    let pods = (0..10).map(|pod| vpod(1, &format!("p{pod}"))).collect();
    rig.lists(vec![base(1)], vec![node(1, &inventory)], pods).await;
    rig.lead();
    rig.until("the brake closes", |rig| rig.events.0.lock().expect("lock").contains(&"BrakeClosed")).await;
    assert_eq!(rig.diag().await["brake"]["modules"]["on"], true);
}

/// Failed VPods, and Pods that are none of ours, make no loss smaller.
#[tokio::test(start_paused = true)]
async fn only_living_module_pods_count_as_what_is_left() {
    let mut pods: Vec<Pod> = (0..12).map(|pod| vpod(1, &format!("p{pod}"))).collect();
    for number in 0..40 {
        let mut pod = vpod(1, &format!("x{number}"));
        if number % 2 == 0 {
            pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        } else if let Some(spec) = &mut pod.spec {
            spec.tolerations = None;
        }
        pods.push(pod);
    }
    let rig = of_one_base(pods.clone()).await;
    rig.send(Input::Pod(Feed::Begin)).await;
    for pod in pods.into_iter().skip(3) {
        rig.send(Input::Pod(Feed::Listed(Arc::new(pod)))).await;
    }
    rig.send(Input::Pod(Feed::Complete)).await;
    rig.until("the brake closes", |rig| rig.told(1).last().is_some_and(|word| word == "hold brake")).await;
    assert!(rig.told(1).iter().all(|word| !word.starts_with("pod-gone")));
}

/// What comes and goes leaves nothing behind, whoever leads.
#[tokio::test(start_paused = true)]
async fn a_base_without_vnode_is_forgotten_with_its_pod() {
    let rig = Rig::start();
    let starting = |number: usize| {
        let mut pod = base(number);
        pod.status.as_mut().expect("status").container_statuses.as_mut().expect("statuses")[0].ready = false;
        pod
    };
    rig.lists(vec![starting(1)], vec![], vec![]).await;
    let known = async |bases: usize, missing: usize| {
        let diag = rig.diag().await;
        assert_eq!((&diag["bases"], &diag["missing"]), (&json!(bases), &json!(missing)));
    };
    known(1, 0).await;
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(starting(1))))).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    known(0, 0).await;

    rig.lead();
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(starting(2))))).await;
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(base(3))))).await;
    rig.until("the actor is told", |rig| rig.told(3).len() == 2).await;
    known(2, 0).await;
    for pod in [starting(2), base(3)] {
        rig.send(Input::BasePod(0, Feed::Deleted(Box::new(pod)))).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    known(0, 0).await;
}

/// Bases that crash before arklet ever answered have no VNodes that could be lost.
#[tokio::test(start_paused = true)]
async fn bases_that_never_answered_do_not_close_the_brake() {
    let rig = Rig::start();
    let nodes = (1..=4).map(|number| node(number, EMPTY)).collect();
    rig.lists((1..=10).map(base).collect(), nodes, vec![]).await;
    rig.lead();
    rig.until("the actors are told", |rig| (1..=10).all(|number| rig.told(number).len() == 2)).await;
    for number in 5..=10 {
        rig.handle.publish.send(silent(number)).expect("sent");
    }
    rig.until("they are out of count", |rig| (5..=10).all(|number| counts(rig, number) == 1)).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(rig.diag().await["brake"]["bases"]["on"], false);
    // One of them answers, and is one to be lost from then on.
    let answers = report(Health::Answering, false);
    rig.handle.publish.send(Publish { report: answers, ..silent(5) }).expect("sent");
    rig.shown(5, "health", "answering").await;
    rig.handle.publish.send(silent(5)).expect("sent");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(counts(&rig, 5), 1, "it waits for others");
}

/// What probes give up, one module of each VPod.
fn unhealthy(pods: &[&str]) -> Publish {
    let mut report = report(Health::Answering, false);
    Arc::make_mut(&mut report).unhealthy =
        pods.iter().map(|pod| ((*pod).to_owned(), "m".to_owned())).collect();
    Publish { node: name(1), report, written: None }
}

fn reinstalls(rig: &Rig) -> Vec<String> {
    rig.told(1).into_iter().filter(|word| word.starts_with("reinstall")).collect()
}

#[tokio::test(start_paused = true)]
async fn what_probes_give_up_is_installed_again_unless_it_is_too_much_at_once() {
    let pods: Vec<String> = (0..12).map(|pod| format!("p{pod}")).collect();
    let rig = of_one_base(pods.iter().map(|pod| vpod(1, pod)).collect()).await;
    rig.handle.publish.send(unhealthy(&["p0"])).expect("sent");
    rig.until("one may go", |rig| reinstalls(rig) == ["reinstall p0/m"]).await;
    rig.handle.publish.send(unhealthy(&[])).expect("sent");
    rig.shown(1, "health", "answering").await;

    // The same accident: the one that was installed again counts with these.
    rig.handle.publish.send(unhealthy(&["p1", "p2", "p3"])).expect("sent");
    rig.until("the brake closes", |rig| rig.events.0.lock().expect("lock").contains(&"BrakeClosed")).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(reinstalls(&rig).len(), 1, "held");
    let diag = rig.diag().await;
    assert_eq!(diag["brake"]["probes"]["on"], true);
    assert_eq!(diag["brake"]["modules"]["on"], false);
    assert!(!rig.told(1).contains(&"hold brake".to_owned()), "all else goes on");

    rig.handle.publish.send(unhealthy(&["p3"])).expect("sent");
    rig.until("enough are well", |rig| reinstalls(rig).last().is_some_and(|word| word == "reinstall p3/m"))
        .await;
    assert_eq!(reinstalls(&rig).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_operator_lets_modules_be_installed_again() {
    let pods: Vec<String> = (0..12).map(|pod| format!("p{pod}")).collect();
    let rig = of_one_base(pods.iter().map(|pod| vpod(1, pod)).collect()).await;
    let all: Vec<&str> = pods.iter().map(String::as_str).collect();
    rig.handle.publish.send(unhealthy(&all)).expect("sent");
    rig.until("the brake closes", |rig| rig.events.0.lock().expect("lock").contains(&"BrakeClosed")).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(reinstalls(&rig).is_empty());
    rig.releases.send_modify(|count| *count += 1);
    rig.until("all may go", |rig| reinstalls(rig).len() == 12).await;
}

fn silent(number: usize) -> Publish {
    let health = Health::Silent { since: jiff::Timestamp::UNIX_EPOCH, reason: "refused".to_owned() };
    Publish { node: name(number), report: report(health, false), written: None }
}

async fn of_four_bases(silent_ones: usize) -> Rig {
    let rig = Rig::start();
    let bases = (1..=4).map(base).collect();
    rig.lists(bases, (1..=4).map(|number| node(number, EMPTY)).collect(), vec![]).await;
    rig.lead();
    rig.until("the actors are told", |rig| (1..=4).all(|number| rig.told(number).len() == 2)).await;
    for number in 1..=silent_ones {
        rig.handle.publish.send(silent(number)).expect("sent");
    }
    rig
}

fn counts(rig: &Rig, number: usize) -> usize {
    rig.told(number).iter().filter(|word| *word == "silence-counts").count()
}

/// One silent base: its VPods and its VNode wait together until the others had time to be silent too.
#[tokio::test(start_paused = true)]
async fn silence_counts_once_it_cannot_be_everybodys() {
    let rig = of_four_bases(1).await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(counts(&rig, 1), 0, "not before one interval and a bit is over");
    assert_eq!(rig.diag().await["nodes"][name(1)]["silenceCounts"], false);
    rig.until("it counts", |rig| counts(rig, 1) == 1).await;
    assert_eq!(rig.diag().await["nodes"][name(1)]["silenceCounts"], true);
    // The same silence is said again with other figures.
    let mut again = silent(1);
    Arc::make_mut(&mut again.report).bound = 1;
    rig.handle.publish.send(again).expect("sent");
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(counts(&rig, 1), 1);
    rig.handle.publish.send(Publish { report: report(Health::Answering, false), ..silent(1) }).expect("sent");
    rig.shown(1, "health", "answering").await;
    rig.handle.publish.send(silent(1)).expect("sent");
    rig.until("a new silence counts anew", |rig| counts(rig, 1) == 2).await;
}

/// A broken network of ours: no base is shown silent, and no actor may act on it, until an operator says so.
#[tokio::test(start_paused = true)]
async fn the_silence_of_most_bases_is_held() {
    let rig = of_four_bases(3).await;
    rig.until("the brake closes", |rig| rig.events.0.lock().expect("lock").contains(&"BrakeClosed")).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!((1..=4).map(|number| counts(&rig, number)).sum::<usize>(), 0);
    rig.releases.send_modify(|count| *count += 1);
    rig.until("all of it counts", |rig| (1..=3).all(|number| counts(rig, number) == 1)).await;
}

/// BL-036: the same name, another Pod: the old one goes in order before the new one begins.
#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_is_another_base() {
    let rig = of_one_base(vec![]).await;
    let leaving = deleted(base(1));
    rig.send(Input::BasePod(0, Feed::Deleted(Box::new(leaving)))).await;
    let mut second = base(1);
    second.metadata.uid = Some("u1b".to_owned());
    rig.send(Input::BasePod(0, Feed::Applied(Box::new(second)))).await;
    let marked = format!("PATCH /api/v1/nodes/{}", name(1));
    rig.until("the Node is marked", |rig| rig.written(&marked)).await;
    rig.send(Input::Node(Feed::Applied(marked_node(1)))).await;
    let deleted = format!("DELETE /api/v1/nodes/{}", name(1));
    rig.until("the old VNode goes", |rig| rig.written(&deleted)).await;
    rig.send(Input::Node(Feed::Deleted(node(1, EMPTY)))).await;
    rig.until("the new base begins", |rig| rig.told(1).len() == 7).await;
    let told = ["inventory true", "synced", "hold pause", "gone", "hold no", "inventory false", "synced"];
    assert_eq!(rig.told(1), told);
}
