//! Pods that were refused everywhere, and when they are woken. "Case N" is a fault that extenders have had.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::{Method, Request};
use rig::{Rig, bound, module_pod, state, vnode};
use scheduler_extender::cache::Change;
use serde_json::Value;

/// Names of the Pods to be woken now.
fn due(rig: &Rig) -> Vec<String> {
    due_at(rig, Instant::now())
}

fn due_at(rig: &Rig, now: Instant) -> Vec<String> {
    rig.extender.due(now, 100).pods.iter().map(|refused| refused.pod.name.to_string()).collect()
}

async fn refused(rig: &Rig, pod: &Value, names: &[&str]) {
    let answer = rig.filter(pod, names).await;
    assert_eq!((answer["Error"].as_str(), answer["NodeNames"].as_array().map(Vec::len)), (Some(""), Some(0)));
}

const STACK: &str = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n\
                     compatibility:\n- {module: shop, conflicts: {modules: [{name: cart}]}}\n";
const NO_RULE: &str = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n";

/// Case 25: a policy that lets the Pod in wakes it, one that does not wakes nobody.
#[tokio::test]
async fn a_new_policy_wakes_whom_it_lets_in() {
    let waiting = module_pod("p", "shop", "1");
    let cart = bound(module_pod("c", "cart", "1"), "v0");
    let rig = Rig::new(state(&[vnode("v0")], &[waiting.clone(), cart]));
    rig.set_policy(STACK);
    refused(&rig, &waiting, &["v0"]).await;
    assert!(due(&rig).is_empty());
    rig.set_policy_as(3, STACK);
    assert!(due(&rig).is_empty());
    rig.set_policy_as(4, NO_RULE);
    assert_eq!(due(&rig), ["p"]);
    assert!(due(&rig).is_empty(), "once");
}

/// Cases 4, 25, 38: kube-scheduler hears of the end of a Pod before we do and asks at once; when we hear of it, it is
/// told to ask again.
#[tokio::test]
async fn a_base_freed_after_the_answer_wakes_the_pod() {
    let (waiting, there) = (module_pod("p", "shop", "1"), bound(module_pod("old", "shop", "1"), "v0"));
    let mut cache = state(&[vnode("v0")], &[waiting.clone(), there]);
    let rig = Rig::new(cache.clone());
    refused(&rig, &waiting, &["v0"]).await;
    assert!(due(&rig).is_empty());
    cache.apply(Change::PodGone("biz/old".into()));
    rig.view.publish(cache.clone());
    assert_eq!(due(&rig), ["p"]);
    // It asked again and was placed: nothing is left to do.
    assert_eq!(rig.filter(&waiting, &["v0"]).await["NodeNames"][0], "v0");
    cache.apply(rig::node(&vnode("v1")));
    rig.view.publish(cache);
    assert!(due(&rig).is_empty());
    assert!(rig.metrics().contains("stowage_extender_pods_refused 0"));
}

/// A Pod is woken for places it can have: not for a base without a slot, which kube-scheduler would not ask about; not
/// when it is bound, going or gone; and rarely when waking does not help.
#[tokio::test]
async fn nobody_is_woken_in_vain() {
    let waiting = module_pod("p", "shop", "1");
    let mut cache = state(&[vnode("v0")], &[waiting.clone(), bound(module_pod("old", "shop", "1"), "v0")]);
    let rig = Rig::new(cache.clone());
    refused(&rig, &waiting, &["v0"]).await;
    let mut full = vnode("full");
    full["status"]["allocatable"]["pods"] = serde_json::json!("0");
    cache.apply(rig::node(&full));
    rig.view.publish(cache.clone());
    assert!(due(&rig).is_empty());
    let start = Instant::now();
    let mut woken = 0;
    for second in 0..60 {
        cache.apply(rig::node(&vnode("v1")));
        rig.view.publish(cache.clone());
        woken += due_at(&rig, start + Duration::from_secs(second)).len();
    }
    assert_eq!(woken, 6, "after 0, 1, 3, 7, 15 and 31 s");
    rig.set_policy_as(9, NO_RULE);
    assert_eq!(
        due_at(&rig, start + Duration::from_secs(59)),
        ["p"],
        "what was in vain was so by another policy"
    );
    cache.apply(rig::pod(&bound(waiting.clone(), "v1")));
    cache.apply(rig::node(&vnode("v2")));
    rig.view.publish(cache.clone());
    assert!(due_at(&rig, start + Duration::from_mins(30)).is_empty());
}

/// The API server has no time for the first attempt; nothing else happens, and the Pod is woken all the same.
#[tokio::test]
async fn who_could_not_be_woken_is_woken_later() {
    let waiting = module_pod("p", "shop", "1");
    let old = bound(module_pod("old", "shop", "1"), "v0");
    let mut cache = state(&[vnode("v0")], &[waiting.clone(), old]);
    let rig = Rig::new(cache.clone());
    refused(&rig, &waiting, &["v0"]).await;
    cache.apply(Change::PodGone("biz/old".into()));
    rig.view.publish(cache);
    let (asked, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let busy = AtomicBool::new(true);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        asked.send(request.method().clone()).unwrap_or_default();
        let code = if busy.swap(false, Ordering::Relaxed) { 503 } else { 200 };
        std::future::ready(Ok::<_, std::convert::Infallible>(rig::answered(code, &serde_json::json!({}))))
    });
    let client = kube::Client::new(service, "default");
    let waking = tokio::spawn(scheduler_extender::nudge::run(Arc::clone(&rig.extender), client));
    for _ in 0..2 {
        let call = tokio::time::timeout(Duration::from_mins(1), seen.recv()).await.expect("in time");
        assert_eq!(call.expect("the client lives"), Method::PATCH);
    }
    waking.abort();
    assert!(
        rig.metrics().contains(r#"stowage_extender_nudges_total{outcome="failed"} 1"#),
        "{}",
        rig.metrics()
    );
}

/// Only what may let a Pod in is a reason to look again: a base, or a Pod that comes to one with what others need, but
/// no other Node, whose status changes all the time.
#[test]
fn only_bases_and_their_pods_loosen() {
    let mut cache = state(&[vnode("v0"), rig::ordinary_node("worker")], &[]);
    let mut loosens = |change| {
        let before = cache.loosened;
        cache.apply(change);
        cache.loosened > before
    };
    assert!(!loosens(rig::node(&rig::ordinary_node("worker"))));
    assert!(loosens(rig::node(&vnode("v0"))));
    let provider = module_pod("p", "shop", "1");
    assert!(!loosens(rig::pod(&provider)));
    assert!(loosens(rig::pod(&bound(provider, "v0"))));
    assert!(loosens(Change::PodGone("biz/p".into())));
}
