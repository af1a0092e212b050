//! `POST /scheduler/bind` by several extenders at once, on one API server that the test plays. Their caches show nothing
//! of what is being bound.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::http::{Method, Request};
use futures::future::join_all;
use http_body_util::BodyExt;
use rig::{Rig, bind, module_pod, state, vnode};
use scheduler_extender::shared::SharedPlacements;
use serde_json::{Value, json};

/// What the API server knows: Leases with their versions, and Pods.
#[derive(Default)]
struct Known {
    leases: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    version: u64,
    conflicts: usize,
    /// What it answers to bindings instead of binding.
    refusal: Option<u16>,
}

#[derive(Clone, Default)]
struct ApiServer(Arc<Mutex<Known>>);

impl ApiServer {
    fn with(pods: &[Value]) -> Self {
        let server = Self::default();
        let mut known = server.0.lock().expect("lock");
        for pod in pods {
            known.pods.insert(pod["metadata"]["name"].as_str().expect("a name").to_owned(), pod.clone());
        }
        drop(known);
        server
    }

    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            async move {
                // Others come in between any two requests.
                tokio::task::yield_now().await;
                let (parts, body) = request.into_parts();
                let body = body.collect().await.expect("body").to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let path = parts.uri.path().to_owned();
                let query = parts.uri.query().unwrap_or_default().to_owned();
                let (code, answer) =
                    server.0.lock().expect("lock").answer(&parts.method, &path, &query, body);
                tokio::task::yield_now().await;
                Ok::<_, std::convert::Infallible>(rig::answered(code, &answer))
            }
        });
        kube::Client::new(service, "default")
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.0.lock().expect("lock"));
    }

    fn bound(&self) -> Vec<(String, String)> {
        let known = self.0.lock().expect("lock");
        let node = |pod: &Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
        known.pods.iter().filter_map(|(name, pod)| Some((name.clone(), node(pod)?))).collect()
    }

    /// All placements in all Leases.
    fn placements(&self) -> Vec<Value> {
        let known = self.0.lock().expect("lock");
        let texts = known
            .leases
            .values()
            .filter_map(|lease| lease["metadata"]["annotations"]["stowage.dev/placements"].as_str());
        texts.flat_map(|text| serde_json::from_str::<Vec<Value>>(text).expect("JSON")).collect()
    }
}

fn failure(code: u16) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Other" };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no", "reason": reason,
        "code": code,
    });
    (code, status)
}

impl Known {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Value) -> (u16, Value) {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        match (method, path) {
            (&Method::POST, _) if name == "binding" => self.bind(path, &body),
            (&Method::GET, "/api/v1/pods") => {
                let node =
                    query.split("nodeName%3D").nth(1).expect("a node").split('&').next().unwrap_or_default();
                let items: Vec<_> =
                    self.pods.values().filter(|pod| pod["spec"]["nodeName"] == node).collect();
                (
                    200,
                    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}),
                )
            }
            (&Method::GET, _) if path.contains("/leases/") => {
                self.leases.get(&name).map_or_else(|| failure(404), |lease| (200, lease.clone()))
            }
            (&Method::GET, _) => self.pods.get(&name).map_or_else(|| failure(404), |pod| (200, pod.clone())),
            (&Method::POST, _) => {
                let name = body["metadata"]["name"].as_str().expect("a name").to_owned();
                if self.leases.contains_key(&name) { failure(409) } else { self.store(name, body) }
            }
            (&Method::PUT, _)
                if self.leases[&name]["metadata"]["resourceVersion"]
                    == body["metadata"]["resourceVersion"] =>
            {
                self.store(name, body)
            }
            (&Method::PUT, _) => {
                self.conflicts += 1;
                failure(409)
            }
            other => panic!("{other:?}"),
        }
    }

    fn store(&mut self, name: String, mut lease: Value) -> (u16, Value) {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.leases.insert(name, lease.clone());
        (200, lease)
    }

    fn bind(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let name = path.split('/').nth(6).expect("a Pod");
        if let Some(code) = self.refusal {
            return failure(code);
        }
        let Some(pod) = self.pods.get_mut(name) else { return failure(404) };
        if pod["metadata"]["uid"] != body["metadata"]["uid"] || !pod["spec"]["nodeName"].is_null() {
            return failure(409);
        }
        pod["spec"]["nodeName"] = body["target"]["name"].clone();
        (201, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
    }
}

/// An extender with a cache of its own, which knows these Pods as waiting.
fn extender(server: &ApiServer, nodes: &[Value], pods: &[Value]) -> Rig {
    let shared = SharedPlacements::new(server.client(), "stowage-system");
    Rig::sharing(state(nodes, pods), server.client(), shared)
}

/// Cases 18, 20: Pods of one module for one base, and Pods of many modules for one slot, through three extenders: one is
/// bound, whatever comes in between.
#[tokio::test]
async fn one_of_many_gets_the_place_whoever_binds() {
    for replicas in [true, false] {
        let mut node = vnode("v0");
        if !replicas {
            node["status"]["allocatable"]["pods"] = json!("1");
        }
        let names: Vec<String> = (0..30).map(|number| format!("p{number}")).collect();
        let module = |name: &str| if replicas { "shop".to_owned() } else { name.to_owned() };
        let pods: Vec<_> = names.iter().map(|name| module_pod(name, &module(name), "1")).collect();
        let server = ApiServer::with(&pods);
        // The last one has seen none of the Pods yet.
        let all = [
            extender(&server, &[node.clone()], &pods),
            extender(&server, &[node.clone()], &pods),
            extender(&server, &[node], &[]),
        ];
        let calls = names.iter().enumerate().map(|(at, name)| bind(&all[at % 3], name, "v0"));
        let errors = join_all(calls).await;
        assert_eq!(server.bound().len(), 1, "{errors:?}");
        assert_eq!(errors.iter().filter(|error| error.is_empty()).count(), 1, "{errors:?}");
        assert!(server.0.lock().expect("lock").conflicts > 0, "nobody got in anybody's way");
    }
}

/// Cases 18, 20: forty Pods of four modules for ten bases of many slots: each base has each module once, and all Pods have a place.
#[tokio::test]
async fn a_burst_through_two_extenders_breaks_no_rule() {
    let nodes: Vec<_> = (0..10).map(|n| vnode(&format!("v{n}"))).collect();
    let pods: Vec<_> = (0..40).map(|n| module_pod(&format!("p{n}"), &format!("m{}", n % 4), "1")).collect();
    let server = ApiServer::with(&pods);
    let all = [extender(&server, &nodes, &pods), extender(&server, &nodes, &pods)];
    // As a scheduler that is told no does, each Pod goes on to the next base.
    let place = async |n: usize| {
        for attempt in 0..10 {
            if bind(&all[(n + attempt) % 2], &format!("p{n}"), &format!("v{}", (n / 8 + attempt) % 10))
                .await
                .is_empty()
            {
                return true;
            }
        }
        false
    };
    let done = join_all((0..40).map(place)).await;
    assert!(done.iter().all(|placed| *placed), "{done:?}");
    let bound = server.bound();
    let places: BTreeSet<_> = bound
        .iter()
        .map(|(pod, node)| (node.clone(), pod[1..].parse::<usize>().expect("a number") % 4))
        .collect();
    assert_eq!((bound.len(), places.len()), (40, 40), "{bound:?}");
    // What is seen on its base leaves the Lease with the next placement there.
    assert!(server.placements().len() < 40, "{:?}", server.placements());
}

/// Cases 21, 22: what was surely not bound is forgotten, and what may have been is not.
#[tokio::test]
async fn a_refused_binding_leaves_the_lease() {
    for (code, kept) in [(403, 0), (422, 0), (500, 1), (504, 1)] {
        let pods = [module_pod("p", "shop", "1"), module_pod("q", "shop", "1")];
        let server = ApiServer::with(&pods);
        server.0.lock().expect("lock").refusal = Some(code);
        let all = [extender(&server, &[vnode("v0")], &pods), extender(&server, &[vnode("v0")], &pods)];
        assert!(bind(&all[0], "p", "v0").await.contains("did not bind"), "{code}");
        assert_eq!(server.placements().len(), kept, "{code}");
        server.0.lock().expect("lock").refusal = None;
        let error = bind(&all[1], "q", "v0").await;
        assert_eq!(error.contains("already has module shop"), kept == 1, "{code}: {error}");
        // Its own placement is in nobody's way but others'.
        assert_eq!(bind(&all[1], if kept == 1 { "p" } else { "q" }, "v0").await, "");
    }
}

/// Case 6: the first binding may be on its way still when a second one, through whichever extender, is surely refused.
#[tokio::test]
async fn a_second_binding_that_is_refused_stays_in_the_lease() {
    let pods = [module_pod("p", "shop", "1"), module_pod("q", "shop", "1")];
    let server = ApiServer::with(&pods);
    let all = [extender(&server, &[vnode("v0")], &pods), extender(&server, &[vnode("v0")], &pods)];
    let mut written = Vec::new();
    for (code, by) in [(504, 0), (403, 1), (422, 0)] {
        server.change(|known| known.refusal = Some(code));
        assert!(bind(&all[by], "p", "v0").await.contains("did not bind"), "{code}");
        written.push(server.placements());
        assert_eq!((written[0].len(), written.last()), (1, written.first()), "{code}");
        assert!(bind(&all[1 - by], "q", "v0").await.contains("already has module shop"), "{code}");
    }
    server.change(|known| known.refusal = Some(500));
    assert!(bind(&all[0], "p", "v0").await.contains("did not bind"));
    let placements = server.placements();
    let earlier = placements[0]["earlier"].as_array().map(Vec::len);
    assert_eq!((placements.len(), earlier), (1, Some(1)), "each may yet happen: {placements:?}");
    server.change(|known| {
        known.refusal = None;
        known.pods.remove("p");
    });
    assert_eq!(bind(&all[0], "p", "v0").await, "the Pod is gone");
    assert!(server.placements().is_empty());
}

/// Cases 21, 23: a Pod that is gone is in nobody's way, though its placement is still there.
#[tokio::test]
async fn placements_of_pods_that_are_gone_do_not_count() {
    let pods = [module_pod("p", "shop", "1"), module_pod("q", "shop", "1")];
    let server = ApiServer::with(&pods);
    server.0.lock().expect("lock").refusal = Some(500);
    assert!(!bind(&extender(&server, &[vnode("v0")], &pods), "p", "v0").await.is_empty());
    server.change(|known| {
        known.refusal = None;
        known.pods.remove("p");
    });
    let other = extender(&server, &[vnode("v0")], &pods[1..]);
    assert_eq!(bind(&other, "q", "v0").await, "");
    let uids: Vec<_> = server.placements().iter().map(|placement| placement["uid"].clone()).collect();
    assert_eq!(uids, ["uid-q"]);
}

/// A Pod that has ended on its base has no slot there any more, and one that went to another base has none here.
#[tokio::test]
async fn placements_of_pods_that_ended_or_went_elsewhere_do_not_count() {
    for (status, node) in [(json!({"phase": "Failed"}), "v0"), (json!({}), "v1")] {
        let pods = [module_pod("p", "shop", "1"), module_pod("q", "cart", "1")];
        let server = ApiServer::with(&pods);
        server.0.lock().expect("lock").refusal = Some(504);
        let mut full = vnode("v0");
        full["status"]["allocatable"]["pods"] = json!("1");
        let first = extender(&server, &[full.clone()], &pods);
        assert!(!bind(&first, "p", "v0").await.is_empty());
        server.change(|known| {
            known.refusal = None;
            let pod = known.pods.get_mut("p").expect("p");
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = status.clone();
        });
        let other = extender(&server, &[full], &pods[1..]);
        assert_eq!(bind(&other, "q", "v0").await, "", "{status} {node}");
    }
}

/// A Pod that is seen bound leaves what speaks of other bases, with the next placement of any base in those Leases.
#[tokio::test]
async fn what_is_bound_elsewhere_leaves_the_lease() {
    let p = module_pod("p", "shop", "1");
    let others: Vec<_> = (0..60).map(|n| module_pod(&format!("q{n}"), "cart", "1")).collect();
    let nodes: Vec<_> = (0..60).map(|n| vnode(&format!("v{n}"))).collect();
    let server = ApiServer::with(&[std::slice::from_ref(&p), &others].concat());
    server.change(|known| known.refusal = Some(504));
    assert!(!bind(&extender(&server, &nodes, std::slice::from_ref(&p)), "p", "v0").await.is_empty());
    server.change(|known| known.refusal = None);
    let speaks_of_it = || server.placements().iter().any(|placement| placement["uid"] == "uid-p");
    assert!(speaks_of_it());
    let seen = [&[rig::bound(p, "v1")][..], &others].concat();
    let other = extender(&server, &nodes, &seen);
    // Not on v0, whose own Pods are looked up; sixty bases are in all Leases.
    for n in 1..60 {
        assert_eq!(bind(&other, &format!("q{n}"), &format!("v{n}")).await, "");
    }
    assert!(!speaks_of_it());
}

/// What the cache shows on its base leaves the Lease with the next placement of any base in it.
#[tokio::test]
async fn what_is_seen_leaves_the_lease_with_the_next_placement() {
    let names: Vec<String> = (0..40).map(|number| format!("v{number}")).collect();
    let nodes: Vec<_> = names.iter().map(|name| vnode(name)).collect();
    let pods: Vec<_> = (0..80).map(|n| module_pod(&format!("p{n}"), &format!("m{n}"), "1")).collect();
    let server = ApiServer::with(&pods);
    let first = extender(&server, &nodes, &pods);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(bind(&first, &format!("p{n}"), name).await, "");
    }
    assert_eq!(server.placements().len(), 40);
    let seen: Vec<_> = server.0.lock().expect("lock").pods.values().cloned().collect();
    let other = extender(&server, &nodes, &seen);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(bind(&other, &format!("p{}", n + 40), name).await, "");
    }
    let left: BTreeSet<_> =
        server.placements().iter().map(|placement| placement["uid"].to_string()).collect();
    assert!((0..40).all(|n| !left.contains(&format!("\"uid-p{n}\""))), "{left:?}");
}

/// Something else in the Lease is a fault, and nothing is bound on a guess.
#[tokio::test]
async fn a_lease_that_cannot_be_read_binds_nothing() {
    let pods = [module_pod("p", "shop", "1")];
    let server = ApiServer::with(&pods);
    let rig = extender(&server, &[vnode("v0")], &pods);
    server.0.lock().expect("lock").refusal = Some(403);
    bind(&rig, "p", "v0").await;
    server.change(|known| {
        known.refusal = None;
        for lease in known.leases.values_mut() {
            lease["metadata"]["annotations"]["stowage.dev/placements"] = json!("{");
        }
    });
    assert!(bind(&rig, "p", "v0").await.contains("holds placements that cannot be read"));
    assert!(server.bound().is_empty());
}
