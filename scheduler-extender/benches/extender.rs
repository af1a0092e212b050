//! Time of `filter` and `prioritize` in the handler: parse, decide, write. No network, no kube-scheduler.
//!
//! Prints a table for people and one JSON line per row for programs. Half of the nodes fit, the others hold the module
//! already; every node has an inventory with five modules and one bound Pod.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a bench may fail")]

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use rig::{Rig, bound, module_pod, state, vnode_with};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const POLICY: &str = r#"
apiVersion: policy.stowage.dev/v1alpha1
kind: PlacementPolicy
limits:
- bases: {stack: java, version: ">=2.1"}
  podsPerBase: 8
  modulesPerBase: 24
artifacts: {allow: [{scheme: https, host: repo.example.com}]}
compatibility:
- {module: shop, requires: {base: {version: ">=2 <3"}, provides: [{name: jdk, versions: ">=17"}]}, conflicts: {modules: [{name: "legacy-*"}]}}
scoring:
- {term: spread, weight: 3}
- {term: metaspaceHeadroom, weight: 2}
- {term: zoneSpread, weight: 1}
"#;

fn node(index: usize) -> Value {
    let modules: Vec<_> = (0..5)
        .map(|module| {
            let name = if module == 0 && index.is_multiple_of(2) {
                "shop".to_owned()
            } else {
                format!("m{module}-{index}")
            };
            json!({"name": name, "version": "1.4.0", "state": "activated", "contextPath": format!("/{name}")})
        })
        .collect();
    let metaspace = json!({"max": 256_000_000, "used": 100_000_000, "lowest": 90_000_000});
    let inventory =
        json!({"v": 1, "modules": modules, "metaspace": metaspace, "provides": {"jdk": "17.0.2"}});
    let mut node = vnode_with(&name(index), &inventory);
    node["metadata"]["labels"]["stowage.dev/zone"] = json!(format!("zone-{}", index % 3));
    node
}

fn name(index: usize) -> String {
    format!("virtual-node-java-bases-base-7d9fbc-{index:05}")
}

fn percentile(sorted: &[Duration], thousandths: usize) -> u128 {
    let index = (sorted.len() * thousandths / 1000).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0, Duration::as_micros)
}

async fn measure(rig: &Rig, verb: &'static str, body: &str, rounds: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds / 10 {
        let body = body.to_owned();
        let started = Instant::now();
        let (status, text) = rig.send(verb, body).await;
        let took = started.elapsed();
        assert_eq!(status, StatusCode::OK, "{text}");
        // The first tenth warms caches up.
        if round >= rounds / 10 {
            times.push(took);
        }
    }
    times.sort_unstable();
    times
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let mut lines = Vec::new();
    println!("{:<12}{:>8}{:>10}{:>10}{:>10}", "verb", "names", "p50 us", "p99 us", "p99.9 us");
    for (names, rounds) in [(100, 5_000), (1_000, 2_000), (5_000, 1_000), (15_000, 300)] {
        let nodes: Vec<_> = (0..names).map(node).collect();
        let pods: Vec<_> = (0..names)
            .map(|n| bound(module_pod(&format!("p{n}"), &format!("m1-{n}"), "1.4.0"), &name(n)))
            .collect();
        let rig = Rig::new(state(&nodes, &pods));
        rig.set_policy(POLICY);
        let asked: Vec<_> = (0..names).map(name).collect();
        let body = json!({"Pod": module_pod("shop-new", "shop", "1.4.0"), "Nodes": null, "NodeNames": asked})
            .to_string();
        for verb in ["filter", "prioritize"] {
            let times = runtime.block_on(measure(&rig, verb, &body, rounds));
            let [p50, p99, p999] = [500, 990, 999].map(|thousandths| percentile(&times, thousandths));
            println!("{verb:<12}{names:>8}{p50:>10}{p99:>10}{p999:>10}");
            lines.push(json!({
                "bench": "extender", "verb": verb, "names": names, "p50_us": p50, "p99_us": p99, "p999_us": p999,
            }));
        }
    }
    for line in lines {
        println!("{line}");
    }
}
