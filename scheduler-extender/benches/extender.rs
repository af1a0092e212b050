//! Time of `filter` and `prioritize` as a caller sees it: over HTTP on one kept connection on loopback.
//!
//! The policy has 50 rules. At 500 names whole Nodes are sent as well (`filter, full`). Prints a table for people and one JSON line per row for programs. Half of the nodes fit, the others hold the module
//! already; every node has an inventory with five modules and one bound Pod.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a bench may fail")]

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rig::{Rig, bound, module_pod, state, vnode_with};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

type HttpClient = Client<HttpConnector, Full<Bytes>>;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HEAD: &str = r#"
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

/// The head with rules up to fifty: limits for other bases, needs and conflicts of this module and of others.
fn policy() -> String {
    let limits: Vec<String> = (0..24)
        .map(|n| format!("- {{bases: {{labels: {{team: t{n}}}}}, podsPerBase: {}}}\n", n % 4 + 1))
        .collect();
    let rules: Vec<String> = (0..24)
        .map(|n| {
            let module = if n % 2 == 0 { "shop".to_owned() } else { format!("other-{n}") };
            format!("- {{module: {module}, conflicts: {{modules: [{{name: rival-{n}}}]}}}}\n")
        })
        .collect();
    HEAD.replace("artifacts:", &format!("{}artifacts:", limits.concat()))
        .replace("scoring:", &format!("{}scoring:", rules.concat()))
}

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

/// Serves the rig as the program does; the address. Must be called inside the runtime.
fn serve(rig: &Rig) -> SocketAddr {
    let listener = service::serve::bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let address = listener.local_addr().expect("an address");
    let never = CancellationToken::new();
    tokio::spawn(service::serve::serve(listener, None, rig.router.clone(), never, Duration::ZERO));
    address
}

async fn send(client: &HttpClient, url: &str, body: Bytes) -> (StatusCode, usize) {
    let request = Request::post(url).header("content-type", "application/json").body(Full::new(body));
    let answer = client.request(request.expect("a request")).await.expect("an answer");
    let status = answer.status();
    (status, answer.into_body().collect().await.expect("a body").to_bytes().len())
}

async fn measure(address: SocketAddr, verb: &'static str, body: &Bytes, rounds: usize) -> Vec<Duration> {
    let client: HttpClient = Client::builder(TokioExecutor::new()).build_http();
    let url = format!("http://{address}/scheduler/{verb}");
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds / 10 {
        let body = body.clone();
        let started = Instant::now();
        let (status, size) = send(&client, &url, body).await;
        let took = started.elapsed();
        assert!(status == StatusCode::OK && size > 100, "{status}, {size} bytes");
        // The first tenth warms caches up.
        if round >= rounds / 10 {
            times.push(took);
        }
    }
    times.sort_unstable();
    times
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let mut lines = Vec::new();
    println!("{:<12}{:>8}{:>10}{:>10}{:>10}", "verb", "names", "p50 us", "p99 us", "p99.9 us");
    for (names, rounds) in [(100, 3_000), (500, 1_000), (1_000, 2_000), (5_000, 1_000), (15_000, 300)] {
        let nodes: Vec<_> = (0..names).map(node).collect();
        let pods: Vec<_> = (0..names)
            .map(|n| bound(module_pod(&format!("p{n}"), &format!("m1-{n}"), "1.4.0"), &name(n)))
            .collect();
        let rig = Rig::new(state(&nodes, &pods));
        rig.set_policy(&policy());
        let address = runtime.block_on(async { serve(&rig) });
        let asked: Vec<_> = (0..names).map(name).collect();
        let body = json!({"Pod": module_pod("shop-new", "shop", "1.4.0"), "Nodes": null, "NodeNames": asked})
            .to_string();
        let by_name = [("filter", "filter", body.clone()), ("prioritize", "prioritize", body)];
        let whole = json!({"Pod": module_pod("shop-new", "shop", "1.4.0"), "Nodes": {"metadata": {}, "items": nodes}});
        let full = (names == 500).then(|| ("filter, full", "filter", whole.to_string()));
        for (title, verb, body) in by_name.into_iter().filter(|_| names != 500).chain(full) {
            let times = runtime.block_on(measure(address, verb, &Bytes::from(body), rounds));
            let [p50, p99, p999] = [500, 990, 999].map(|thousandths| percentile(&times, thousandths));
            println!("{title:<12}{names:>8}{p50:>10}{p99:>10}{p999:>10}");
            lines.push(json!({
                "bench": "extender", "verb": title, "names": names, "p50_us": p50, "p99_us": p99, "p999_us": p999,
            }));
        }
    }
    for line in lines {
        println!("{line}");
    }
}
