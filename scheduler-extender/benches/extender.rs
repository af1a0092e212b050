//! Time of `filter` and `prioritize` as a caller sees it: over HTTP on one kept connection on loopback.
//!
//! The policy has 50 rules. Half of the nodes fit, the others hold the module already; every node has an inventory with
//! five modules, and one bound Pod or three. Asked about are Pods of one template, all nodes by both verbs; the same as kube-scheduler
//! does it, which asks `prioritize` about what fits only; Pods of a new template each, of which nothing is remembered;
//! and, at 500 Nodes, whole Nodes. Prints a table for people, and one JSON line per verb and row for programs.

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
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

type HttpClient = Client<HttpConnector, Full<Bytes>>;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VERBS: [&str; 2] = ["filter", "prioritize"];

/// What is asked.
#[derive(Clone, Copy)]
enum Mode {
    /// Names, about Pods of one template; all of them by both verbs.
    Names,
    /// The same as kube-scheduler does it: `prioritize` is asked about what fits only.
    InTurn,
    /// The same about a Pod of another template each time.
    NewTemplate,
    /// Whole Nodes.
    Full,
}

impl Mode {
    /// In the JSON lines, where it is not the usual one.
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Names => None,
            Self::InTurn => Some("in-turn"),
            Self::NewTemplate => Some("new-template"),
            Self::Full => Some("full"),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Names => "",
            Self::InTurn => ", in turn",
            Self::NewTemplate => ", new",
            Self::Full => ", full",
        }
    }
}

/// A line for programs; the fields in this order.
#[derive(Serialize)]
struct Line {
    bench: &'static str,
    verb: &'static str,
    names: usize,
    p50_us: u128,
    p99_us: u128,
    p999_us: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
}

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

/// Every third base has three Pods instead of one, so that not all are worth the same.
fn pods(index: usize) -> impl Iterator<Item = Value> {
    let pod = move |n: usize| module_pod(&format!("p{n}-{index}"), &format!("m{n}-{index}"), "1.4.0");
    (1..=if index.is_multiple_of(3) { 3 } else { 1 }).map(move |n| bound(pod(n), &name(index)))
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

/// One round: the question of `filter`, and that of `prioritize`.
type Round = (Bytes, Bytes);

/// Times of `filter`, of `prioritize` right after it, and of both together; each sorted.
async fn measure(address: SocketAddr, rounds: usize, round: impl Fn(usize) -> Round) -> [Vec<Duration>; 3] {
    let client: HttpClient = Client::builder(TokioExecutor::new()).build_http();
    let urls = VERBS.map(|verb| format!("http://{address}/scheduler/{verb}"));
    let mut times = [const { Vec::new() }; 3];
    for number in 0..rounds + rounds / 10 {
        let (filter, prioritize) = round(number);
        let mut took = [Duration::ZERO; 2];
        for ((url, body), took) in urls.iter().zip([filter, prioritize]).zip(&mut took) {
            let started = Instant::now();
            let (status, size) = send(&client, url, body).await;
            *took = started.elapsed();
            assert!(status == StatusCode::OK && size > 100, "{status}, {size} bytes");
        }
        // The first tenth warms caches up.
        if number >= rounds / 10 {
            let [filter, prioritize] = took;
            for (all, time) in times.iter_mut().zip([filter, prioritize, filter + prioritize]) {
                all.push(time);
            }
        }
    }
    for all in &mut times {
        all.sort_unstable();
    }
    times
}

/// A question with names, as kube-scheduler writes it.
fn question(pod: &Value, names: &[String]) -> Bytes {
    format!(r#"{{"Pod":{pod},"Nodes":null,"NodeNames":{}}}"#, json!(names)).into()
}

/// A Pod of its own template where `template` says so.
fn asked_pod(template: Option<usize>) -> Value {
    let mut pod = module_pod("shop-new", "shop", "1.4.0");
    if let Some(number) = template {
        pod["spec"]["containers"][0]["image"] =
            json!(format!("https://repo.example.com/{number}/shop-1.4.0-ark-biz.jar"));
    }
    pod
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let mut lines = Vec::new();
    println!("{:<28}{:>8}{:>10}{:>10}{:>10}", "verb", "names", "p50 us", "p99 us", "p99.9 us");
    for (names, rounds) in [(100, 3_000), (500, 1_000), (1_000, 2_000), (5_000, 1_000), (15_000, 300)] {
        let nodes: Vec<_> = (0..names).map(node).collect();
        let pods: Vec<_> = (0..names).flat_map(pods).collect();
        let rig = Rig::new(state(&nodes, &pods));
        rig.set_policy(&policy());
        let address = runtime.block_on(async { serve(&rig) });
        let asked: Vec<String> = (0..names).map(name).collect();
        // The others hold the module already.
        let fitting: Vec<String> = asked.iter().skip(1).step_by(2).cloned().collect();
        let pod = asked_pod(None);
        let (all, rest) = (question(&pod, &asked), question(&pod, &fitting));
        let whole = if names == 500 {
            json!({"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}})
        } else {
            json!({})
        };
        let whole = Bytes::from(whole.to_string());
        let modes: &[Mode] =
            if names == 500 { &[Mode::Full] } else { &[Mode::Names, Mode::InTurn, Mode::NewTemplate] };
        for &mode in modes {
            let round = |number: usize| match mode {
                Mode::Names => (all.clone(), all.clone()),
                Mode::InTurn => (all.clone(), rest.clone()),
                Mode::NewTemplate => {
                    let pod = asked_pod(Some(number));
                    (question(&pod, &asked), question(&pod, &fitting))
                }
                Mode::Full => (whole.clone(), whole.clone()),
            };
            let times = runtime.block_on(measure(address, rounds, round));
            for (verb, times) in ["filter", "prioritize", "filter + prioritize"].into_iter().zip(&times) {
                let [p50, p99, p999] = [500, 990, 999].map(|thousandths| percentile(times, thousandths));
                let title = format!("{verb}{}", mode.title());
                println!("{title:<28}{names:>8}{p50:>10}{p99:>10}{p999:>10}");
                if VERBS.contains(&verb) {
                    let mode = mode.name();
                    lines.push(Line {
                        bench: "extender",
                        verb,
                        names,
                        p50_us: p50,
                        p99_us: p99,
                        p999_us: p999,
                        mode,
                    });
                }
            }
        }
    }
    for line in lines {
        println!("{}", serde_json::to_string(&line).expect("JSON"));
    }
}
