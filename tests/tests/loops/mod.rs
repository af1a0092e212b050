//! How often kube-scheduler comes back to a Pod that it could not place, and why.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use harness::{TestResult, controlplane::Extender, wait};
use serde_json::json;

use crate::scripted::{Call, Reply, SOON, Scene, fits_nowhere, fits_nowhere_because, pod};

fn asks() -> Extender {
    Extender::new("")
}

/// Waits until filter was asked so often about a Pod, and returns how long that took.
async fn asked(scene: &Scene, pod: &str, times: usize) -> Result<Duration, harness::Failure> {
    let start = Instant::now();
    wait::until(&format!("{times} questions about {pod}"), SOON, async || {
        let calls = scene.calls("filter", pod).len();
        if calls >= times { Ok(()) } else { Err(format!("{calls} calls")) }
    })
    .await?;
    Ok(start.elapsed())
}

/// Fails if there were more questions about a Pod in this time than one a second, which is what back-off allows here.
fn assert_rested(scene: &Scene, pod: &str, time: Duration) {
    let calls = scene.calls("filter", pod).len() as u64;
    assert!(calls <= 4 + time.as_secs(), "{pod}: {calls} calls in {time:?}");
}

/// A reason that moves wakes its own Pod again and again; a constant one does not, and a moving `Error` does not.
#[tokio::test]
async fn texts_that_move_make_a_hot_loop() -> TestResult {
    let count = AtomicU32::new(0);
    let script = move |call: &Call| {
        let moving = format!("reason {}", count.fetch_add(1, Ordering::Relaxed));
        match call.pod.as_str() {
            "moving" => Reply::Json(fits_nowhere(call, "FailedNodes", &moving)),
            "moving-error" => Reply::Json(json!({"NodeNames": [], "Error": moving})),
            _ => Reply::Json(fits_nowhere(call, "FailedNodes", "constant")),
        }
    };
    let mut scene = Scene::new("loops", 10, script).await?;
    scene.schedule("stowage-scheduler", &asks()).await?;
    let start = Instant::now();
    for name in ["constant", "moving-error", "moving"] {
        scene.create(pod(name, "stowage-scheduler")).await?;
    }
    asked(&scene, "moving", 100).await?;
    for name in ["constant", "moving-error"] {
        assert_rested(&scene, name, start.elapsed());
    }
    Ok(())
}

/// Case 2: with the default sampling kube-scheduler asks about another part of the nodes at each attempt. However constant
/// the reason of each node is, their counts in the message move, and that makes the same loop; with 100 % they do not, and
/// the only node that fits is found by the first question.
#[tokio::test]
async fn sampling_makes_a_hot_loop_of_constant_reasons() -> TestResult {
    let script = |call: &Call| {
        if call.pod == "picky" && call.verb == "filter" {
            return Reply::Json(json!({"NodeNames": ["n999"]}));
        }
        let reason = |node: &str| {
            let number: u32 = node.trim_start_matches('n').parse().unwrap_or_default();
            format!("reason of block {}", number / 40)
        };
        Reply::Json(fits_nowhere_because(call, "FailedNodes", reason))
    };
    let mut scene = Scene::new("sampling", 1_000, script).await?;
    let mut sampling = scene.configuration("sampled", &asks())?;
    sampling.as_object_mut().expect("an object").remove("percentageOfNodesToScore");
    scene.start("sampled", &sampling).await?;
    scene.schedule("complete", &asks()).await?;
    let start = Instant::now();
    for name in ["complete", "sampled"] {
        scene.create(pod(name, name)).await?;
    }
    let took = asked(&scene, "sampled", 100).await?;
    let rested = scene.calls("filter", "complete").len();
    println!("100 calls in {took:.1?}, and {rested} with 100 %");
    assert!(5 * rested < 100, "{rested} calls with 100 % while sampling made 100");
    let nodes = |call: &Call| call.names().as_array().map_or(0, Vec::len);
    // 50 % less one for each 125 nodes.
    assert!(scene.calls("filter", "sampled").iter().all(|call| nodes(call) == 420));
    let complete = scene.calls("filter", "complete");
    assert!(complete.iter().all(|call| nodes(call) == 1_000), "{} calls", complete.len());
    let message = scene.unscheduled("complete", "Unschedulable").await?;
    assert!(message.contains("40 reason of block 3"), "{message}");
    assert_rested(&scene, "complete", start.elapsed());
    scene.create(pod("picky", "complete")).await?;
    assert_eq!(scene.bound("picky").await?, "n999");
    assert_eq!(scene.calls("filter", "picky").len(), 1);
    Ok(())
}

/// What nothing wakes is tried again by the clock: a fault after a second, and after twice as long each time; a refusal
/// when the limit has passed that is five minutes unless a flag says otherwise, at the next look each half minute.
#[tokio::test]
async fn what_nothing_wakes_is_tried_again_by_the_clock() -> TestResult {
    const LIMIT: Duration = Duration::from_secs(10);
    let script = |call: &Call| {
        Reply::Json(match call.pod.as_str() {
            "faulty" => json!({"NodeNames": [], "Error": "our own words"}),
            _ => fits_nowhere(call, "FailedNodes", "constant"),
        })
    };
    let mut scene = Scene::new("clock", 1, script).await?;
    let mut settings = scene.configuration("clock", &asks())?;
    for key in ["podInitialBackoffSeconds", "podMaxBackoffSeconds"] {
        settings.as_object_mut().expect("an object").remove(key);
    }
    let limit = format!("--pod-max-in-unschedulable-pods-duration={}s", LIMIT.as_secs());
    scene.start_with("clock", &settings, &[&limit]).await?;
    for name in ["faulty", "refused"] {
        scene.create(pod(name, "clock")).await?;
    }
    let gaps = |pod: &str| -> Vec<Duration> {
        let calls = scene.calls("filter", pod);
        calls.windows(2).map(|pair| pair[1].at.duration_since(pair[0].at)).collect()
    };
    wait::until("question after the limit", SOON, async || {
        let gaps = gaps("refused");
        if gaps.iter().any(|gap| *gap >= LIMIT) { Ok(()) } else { Err(format!("{gaps:?}")) }
    })
    .await?;
    asked(&scene, "faulty", 5).await?;
    let faulty = gaps("faulty");
    println!("after a fault {faulty:.1?}, after a refusal {:.1?}", gaps("refused"));
    for (gap, at_least) in faulty.iter().zip([1, 2, 4, 8, 10]) {
        // Another clock than kube-scheduler's may be a little off.
        assert!(*gap >= Duration::from_millis(950 * at_least), "{faulty:?}");
    }
    Ok(())
}
