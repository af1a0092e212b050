//! Placements just made and not yet seen: what the next question is answered.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::sync::Arc;

use policy::Policy;
use rig::{Rig, bound, module_pod, state, vnode};
use scheduler_extender::cache::{Change, State};
use serde_json::Value;
use service::policy_file::Versioned;

/// A base with one slot.
fn narrow(name: &str) -> Value {
    let mut node = vnode(name);
    node["status"]["allocatable"]["pods"] = serde_json::json!("1");
    node
}

fn decisive(rig: &Rig) {
    let policy = Policy { decisive: true, ..Policy::default() };
    rig.policy.send_replace(Arc::new(Versioned { generation: 2, hash: "d".to_owned(), policy }));
}

fn names(answer: &Value) -> Vec<String> {
    answer["NodeNames"]
        .as_array()
        .expect("array")
        .iter()
        .map(|name| name.as_str().expect("text").to_owned())
        .collect()
}

/// Case 40 in small: the second Pod of a burst does not get the place that the first one just got; it is told to come
/// again, and when the placement is seen it is refused for good.
#[tokio::test]
async fn the_last_place_is_given_once() {
    let mut cache = state(&[vnode("v0")], &[]);
    let rig = Rig::new(cache.clone());
    let (first, second) = (module_pod("a", "shop", "1"), module_pod("b", "shop", "1"));
    assert_eq!(names(&rig.filter(&first, &["v0"]).await), ["v0"]);
    assert_eq!(names(&rig.filter(&first, &["v0"]).await), ["v0"], "asking again is answered alike");
    let answer = rig.filter(&second, &["v0"]).await;
    assert!(answer["Error"].as_str().expect("text").contains("just given to other Pods"), "{answer}");
    cache.apply(rig::pod(&bound(first, "v0")));
    rig.view.publish(cache);
    let answer = rig.filter(&second, &["v0"]).await;
    assert_eq!(answer["Error"], "");
    assert!(answer["FailedNodes"]["v0"].is_string(), "{answer}");
    assert!(rig.metrics().contains("stowage_extender_reservations 0"));
}

/// Of two replicas the second is answered once the first is seen on `v1`, and goes to `v0`.
async fn second_waits_for_first(mut cache: State, what: &str) -> Arc<Rig> {
    let rig = Arc::new(Rig::new(cache.clone()));
    let (first, second) = (module_pod("a", "shop", "1"), module_pod("b", "shop", "1"));
    assert_eq!(names(&rig.filter(&first, &["v0", "v1"]).await), ["v0", "v1"]);
    let waiting = {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move { rig.filter(&second, &["v0", "v1"]).await })
    };
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "{what}");
    cache.apply(rig::pod(&bound(first, "v1")));
    rig.view.publish(cache);
    assert_eq!(names(&waiting.await.expect("no panic")), ["v0"], "{what}");
    rig
}

/// Case 40: kube-scheduler does not tell which node it took, so the second Pod waits until it is seen.
#[tokio::test]
async fn the_second_of_a_burst_waits_until_the_first_is_seen() {
    let rig = second_waits_for_first(state(&[vnode("v0"), vnode("v1")], &[]), "8 slots").await;
    // It was tried twice and counts once.
    let metrics = rig.metrics();
    for line in [
        r#"stowage_extender_request_nodes_count{verb="filter"} 2"#,
        r#"stowage_extender_verdicts_total{reason="fits"} 3"#,
        r#"stowage_extender_verdicts_total{reason="SameModule"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

/// kube-scheduler may know more slots than the cache does: of a Node whose status is not seen yet, where a Pod just left, or
/// where they were raised from one. So the second Pod waits there too.
#[tokio::test]
async fn slots_that_are_not_seen_yet_are_not_given_twice() {
    let tenant = bound(module_pod("tenant", "cart", "1"), "v1");
    for (slots, pods) in [("0", vec![]), ("2", vec![tenant.clone()]), ("1", vec![tenant])] {
        let mut node = vnode("v1");
        node["status"]["allocatable"]["pods"] = serde_json::json!(slots);
        second_waits_for_first(state(&[vnode("v0"), node], &pods), &format!("{slots} slots")).await;
    }
}

/// What was raised from one slot between the two is asked about as if it had been claimed; and where the policy says that
/// there will be more, an only slot is not believed.
#[tokio::test]
async fn slots_that_are_raised_meanwhile_are_not_given_twice() {
    let mut cache = state(&[narrow("v0"), narrow("v1")], &[]);
    let replica = |name| module_pod(name, "shop", "1");
    let is_told_to_wait = async |rig: &Rig| {
        let answer = rig.filter(&replica("b"), &["v0", "v1"]).await;
        answer["Error"].as_str().is_some_and(|text| text.contains("just given to other Pods"))
    };
    let rig = Rig::new(cache.clone());
    assert_eq!(names(&rig.filter(&replica("a"), &["v0", "v1"]).await), ["v0", "v1"]);
    assert!(!is_told_to_wait(&rig).await, "kube-scheduler counts");
    cache.apply(rig::node(&vnode("v0")));
    cache.apply(rig::node(&vnode("v1")));
    rig.view.publish(cache);
    assert!(is_told_to_wait(&rig).await);

    let rig = Rig::new(state(&[narrow("v0"), narrow("v1")], &[]));
    assert_eq!(names(&rig.filter(&replica("a"), &["v0", "v1"]).await), ["v0", "v1"]);
    rig.set_policy(
        "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {podsPerBase: 8}\n",
    );
    assert!(is_told_to_wait(&rig).await);
}

/// A base that is gone for a moment is still one that the first Pod may have gone to.
#[tokio::test]
async fn a_node_that_is_made_again_is_not_given_twice() {
    let mut cache = state(&[vnode("v0"), vnode("v1")], &[]);
    let rig = Rig::new(cache.clone());
    assert_eq!(names(&rig.filter(&module_pod("a", "shop", "1"), &["v0", "v1"]).await), ["v0", "v1"]);
    for gone in ["v0", "v1"] {
        cache.apply(Change::NodeGone(gone.into()));
    }
    cache.apply(rig::node(&vnode("v2")));
    for back in ["v1", "v0"] {
        cache.apply(rig::node(&vnode(back)));
    }
    rig.view.publish(cache);
    let answer = rig.filter(&module_pod("b", "shop", "1"), &["v0", "v1", "v2"]).await;
    assert_eq!(names(&answer), ["v2"], "{answer}");
}

/// Cases 30 and 40: with one slot on a base, or another module, nobody waits and every fitting node is answered.
#[tokio::test]
async fn nobody_waits_without_need() {
    let rig = Rig::new(state(&["v0", "v1"].map(narrow), &[]));
    for pod in ["a", "b", "c"] {
        assert_eq!(names(&rig.filter(&module_pod(pod, "shop", "1"), &["v0", "v1"]).await), ["v0", "v1"]);
    }
    let rig = Rig::new(state(&[vnode("v0"), vnode("v1")], &[]));
    for module in ["shop", "cart", "stock"] {
        assert_eq!(names(&rig.filter(&module_pod(module, module, "1"), &["v0", "v1"]).await), ["v0", "v1"]);
    }
}

/// However often something is published meanwhile, a Pod is told to come again when its patience is over, long before the
/// deadline: kube-scheduler places nothing else while it waits. A large question is answered on another thread, so each
/// try sees something published.
#[tokio::test]
async fn patience_ends_though_the_cluster_never_rests() {
    let cache = state(&[vnode("v0")], &[]);
    let rig = Rig::new(cache.clone());
    assert_eq!(names(&rig.filter(&module_pod("a", "shop", "1"), &["v0"]).await), ["v0"]);
    let view = rig.view.clone();
    let restless = tokio::spawn(async move {
        loop {
            view.publish(cache.clone());
            tokio::task::yield_now().await;
        }
    });
    let mut second = module_pod("b", "shop", "1");
    second["metadata"]["annotations"] = serde_json::json!({"note": "x".repeat(1 << 20)});
    let answer = rig.filter(&second, &["v0"]).await;
    restless.abort();
    assert!(answer["Error"].as_str().expect("text").contains("just given to other Pods"), "{answer}");
}

/// Bases with one slot and with several in one fleet: a Pod stands in nobody's way on those that it was not asked about.
#[tokio::test]
async fn a_placement_counts_where_it_may_be_and_nowhere_else() {
    let rig = Rig::new(state(&[narrow("v0"), vnode("v1"), vnode("v2")], &[]));
    let replica = |name| module_pod(name, "shop", "1");
    assert_eq!(names(&rig.filter(&replica("a"), &["v0"]).await), ["v0"]);
    assert_eq!(names(&rig.filter(&replica("b"), &["v0", "v1"]).await), ["v0", "v1"]);
    assert_eq!(names(&rig.filter(&replica("c"), &["v0", "v1", "v2"]).await), ["v0", "v2"]);
}

/// Case 20: 50 Pods at once for 20 places, decisively: each place is given to exactly one of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_parallel_burst_gives_each_place_once() {
    let nodes: Vec<_> = (0..20).map(|n| format!("v{n}")).collect();
    let objects: Vec<_> = nodes.iter().map(|name| vnode(name)).collect();
    let rig = Arc::new(Rig::new(state(&objects, &[])));
    decisive(&rig);
    let calls: Vec<_> = (0..50)
        .map(|n| {
            let (rig, nodes) = (Arc::clone(&rig), nodes.clone());
            tokio::spawn(async move {
                let asked: Vec<&str> = nodes.iter().map(String::as_str).collect();
                names(&rig.filter(&module_pod(&format!("p{n}"), "shop", "1"), &asked).await)
            })
        })
        .collect();
    let mut given = Vec::new();
    for call in calls {
        given.extend(call.await.expect("no panic"));
    }
    given.sort_unstable();
    let mut expected = nodes.clone();
    expected.sort_unstable();
    assert_eq!(given, expected);
}

/// Case 20: 200 replicas at once for the one place that one base has for their module: exactly one is told the base, whether
/// the filter decides or kube-scheduler does, and the others are refused for good once that one is seen.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_is_told_the_only_place() {
    for decides in [false, true] {
        let mut cache = state(&[vnode("v0")], &[]);
        let rig = Arc::new(Rig::new(cache.clone()));
        if decides {
            decisive(&rig);
        }
        let replica = |n: usize| module_pod(&format!("p{n}"), "shop", "1");
        let ask = || {
            let calls = (0..200).map(|n| {
                let (rig, pod) = (Arc::clone(&rig), replica(n));
                tokio::spawn(async move { rig.filter(&pod, &["v0"]).await })
            });
            futures::future::join_all(calls.collect::<Vec<_>>())
        };
        let answers: Vec<Value> = ask().await.into_iter().map(|answer| answer.expect("no panic")).collect();
        let won: Vec<usize> = (0..200).filter(|n| names(&answers[*n]) == ["v0"]).collect();
        let [winner] = won[..] else { panic!("decisive {decides}: {won:?}") };
        for (n, answer) in answers.iter().enumerate().filter(|(n, _)| *n != winner) {
            assert!(names(answer).is_empty(), "{n}: {answer}");
            assert!(
                answer["Error"].as_str().expect("text").contains("just given to other Pods"),
                "{n}: {answer}"
            );
        }
        assert!(rig.metrics().contains("stowage_extender_reservations 1\n"));
        cache.apply(rig::pod(&bound(replica(winner), "v0")));
        rig.view.publish(cache);
        for (n, answer) in ask().await.into_iter().enumerate().filter(|(n, _)| *n != winner) {
            let answer = answer.expect("no panic");
            assert_eq!((names(&answer).len(), &answer["Error"]), (0, &Value::from("")), "{n}");
            assert!(answer["FailedNodes"]["v0"].is_string(), "{n}: {answer}");
        }
    }
}

#[tokio::test]
async fn decisive_answers_the_best_node_only() {
    let rig =
        Rig::new(state(&[vnode("full"), vnode("empty")], &[bound(module_pod("x", "cart", "1"), "full")]));
    decisive(&rig);
    assert_eq!(names(&rig.filter(&module_pod("p", "shop", "1"), &["full", "empty"]).await), ["empty"]);
}

/// Verdicts are remembered by template and node, and forgotten with the Node, its Pods and the policy.
#[tokio::test]
async fn memory_never_outlives_what_it_was_made_from() {
    let mut cache = state(&[vnode("v0"), vnode("v1")], &[]);
    let rig = Rig::new(cache.clone());
    let replica = |n: usize| module_pod(&format!("shop-{n}"), "shop", "1");
    assert_eq!(names(&rig.filter(&replica(0), &["v0", "v1"]).await), ["v0", "v1"]);
    cache.apply(rig::pod(&bound(replica(0), "v0")));
    rig.view.publish(cache.clone());
    assert_eq!(names(&rig.filter(&replica(1), &["v0", "v1"]).await), ["v1"], "a Pod came");
    cache.apply(rig::pod(&bound(replica(1), "v1")));
    rig.view.publish(cache.clone());
    let refused = rig.filter(&replica(2), &["v0", "v1"]).await;
    assert_eq!(refused, rig.filter(&replica(3), &["v0", "v1"]).await, "remembered");
    assert_eq!(refused["FailedNodes"].as_object().map(serde_json::Map::len), Some(2));
    assert_eq!(
        names(&rig.filter(&module_pod("cart-0", "cart", "1"), &["v0", "v1"]).await),
        ["v0", "v1"],
        "another kind"
    );
    cache.apply(scheduler_extender::cache::Change::PodGone("biz/shop-0".into()));
    rig.view.publish(cache.clone());
    assert_eq!(names(&rig.filter(&replica(4), &["v0", "v1"]).await), ["v0"], "a Pod went");
    let mut leaving = vnode("v0");
    leaving["spec"]["unschedulable"] = serde_json::json!(true);
    cache.apply(rig::node(&leaving));
    rig.view.publish(cache);
    assert_eq!(
        names(&rig.filter(&replica(4), &["v0", "v1"]).await),
        Vec::<String>::new(),
        "the Node changed"
    );
    let rig = Rig::new(state(&[vnode("v0")], &[]));
    assert_eq!(names(&rig.filter(&replica(0), &["v0"]).await), ["v0"]);
    rig.set_policy(
        "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {modulesPerBase: 0}\n",
    );
    assert_eq!(names(&rig.filter(&replica(0), &["v0"]).await), Vec::<String>::new(), "the policy changed");
}

/// A Pod that is bound, seen and deleted before anybody asks again leaves nothing behind.
#[tokio::test]
async fn placements_end_when_they_are_seen() {
    let mut cache = state(&[vnode("v0")], &[]);
    let rig = Rig::new(cache.clone());
    let first = module_pod("a", "shop", "1");
    assert_eq!(names(&rig.filter(&first, &["v0"]).await), ["v0"]);
    let following = tokio::spawn(Arc::clone(&rig.extender).settle_as_seen());
    tokio::task::yield_now().await;
    cache.apply(rig::pod(&bound(first, "v0")));
    rig.view.publish(cache.clone());
    tokio::task::yield_now().await;
    cache.apply(scheduler_extender::cache::Change::PodGone("biz/a".into()));
    rig.view.publish(cache);
    assert_eq!(names(&rig.filter(&module_pod("b", "shop", "1"), &["v0"]).await), ["v0"]);
    following.abort();
}

/// Case 40: while a placement comes true, the next replica is asked about, and others make the look through the placements long:
/// whatever is looked at first, it does not go to the same base.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_placement_that_comes_true_is_never_overlooked() {
    let mut cache = state(&[vnode("v0"), vnode("v1")], &[]);
    let rig = Arc::new(Rig::new(cache.clone()));
    let following = tokio::spawn(Arc::clone(&rig.extender).settle_as_seen());
    for n in 0..1_500 {
        let other = module_pod(&format!("other-{n}"), &format!("other-{n}"), "1");
        cache.apply(rig::pod(&other));
        assert_eq!(names(&rig.filter(&other, &["v0", "v1"]).await), ["v0", "v1"]);
    }
    for round in 0..400 {
        let module = format!("shop-{round}");
        let replica = |name| module_pod(&format!("{module}-{name}"), &module, "1");
        let (first, second) = (replica("a"), replica("b"));
        assert_eq!(names(&rig.filter(&first, &["v0", "v1"]).await), ["v0", "v1"], "{round}");
        rig.view.publish(cache.clone());
        // It is told to come again where the first is not seen within its patience, as on a machine without time.
        let asking = {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move {
                loop {
                    let answer = rig.filter(&second, &["v0", "v1"]).await;
                    if answer["Error"] == "" {
                        return names(&answer);
                    }
                }
            })
        };
        cache.apply(rig::pod(&bound(first, "v1")));
        // Each round a little later.
        for _ in 0..round % 40 {
            std::thread::yield_now();
        }
        rig.view.publish(cache.clone());
        assert_eq!(asking.await.expect("no panic"), ["v0"], "{round}");
        cache.apply(Change::PodGone(format!("biz/{module}-a").into()));
        rig.view.publish(cache.clone());
    }
    following.abort();
}
