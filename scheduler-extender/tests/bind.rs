//! `POST /scheduler/bind`, against an API server that the test plays. "Case N" is a fault that extenders have had.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode};
use futures::future::join_all;
use http_body_util::BodyExt;
use rig::{Rig, answered, bind, bound, failure, module_pod, ordinary_pod, state, vnode};
use scheduler_extender::cache::State;
use serde_json::{Value, json};

/// What the API server was sent, and what it answers to bindings and reads.
#[derive(Clone, Default)]
struct ApiServer {
    sent: Arc<Mutex<Vec<(Method, String, Value)>>>,
    /// To the first binding and so on; the last also to those after it.
    refusals: Vec<(u16, String)>,
    pod: Option<Value>,
    silent: bool,
    /// Answers with a page of text, as a proxy does that reaches no API server.
    pages: bool,
}

impl ApiServer {
    fn refusing(code: u16, message: &str) -> Self {
        Self::refusing_with(&[code], message)
    }

    fn refusing_with(codes: &[u16], message: &str) -> Self {
        let refusals = codes.iter().map(|code| (*code, message.to_owned())).collect();
        Self { refusals, ..Self::default() }
    }

    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            async move { Ok::<_, std::convert::Infallible>(server.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(self, request: Request<kube::client::Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("body").to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        self.sent.lock().expect("lock").push((parts.method.clone(), parts.uri.path().to_owned(), body));
        if self.silent {
            std::future::pending::<()>().await;
        }
        if self.pages {
            let page = Response::builder().status(404).body(Body::from("404 page not found"));
            return page.expect("an answer");
        }
        let failure = |code: u16, message: &str| (code, failure(code, message));
        let nth = self.bindings().len().saturating_sub(1);
        let refusal = self.refusals.get(nth).or(self.refusals.last());
        let (code, answer) = match (parts.method == Method::POST, refusal, self.pod) {
            (true, Some((code, message)), _) => failure(*code, message),
            (true, None, _) => (
                201,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
            ),
            (false, _, Some(pod)) => (200, pod),
            (false, _, None) => failure(404, "not found"),
        };
        answered(code, &answer)
    }

    fn bindings(&self) -> Vec<Value> {
        let sent = self.sent.lock().expect("lock");
        sent.iter().filter(|(method, ..)| method == Method::POST).map(|(_, _, body)| body.clone()).collect()
    }
}

fn rig(server: &ApiServer, nodes: &[Value], pods: &[Value]) -> Rig {
    Rig::with_client(state(nodes, pods), server.client())
}

/// BL-030: one call, a Binding: the Pod itself is not written before it is bound.
#[tokio::test]
async fn a_pod_is_bound_with_its_uid() {
    let server = ApiServer::default();
    let rig = rig(&server, &[vnode("v0")], &[module_pod("p", "shop", "1")]);
    assert_eq!(bind(&rig, "p", "v0").await, "");
    let sent = server.sent.lock().expect("lock").clone();
    assert_eq!(sent[0].1, "/api/v1/namespaces/biz/pods/p/binding");
    assert_eq!(sent[0].2["metadata"]["uid"], "uid-p");
    assert_eq!(sent[0].2["target"], json!({"apiVersion": "v1", "kind": "Node", "name": "v0"}));
    assert!(rig.metrics().contains("stowage_extender_reservations 1"), "{}", rig.metrics());
}

/// Case 6, BL-026: a second call for a Pod that is bound already, seen or not, is a success when the node is the same.
#[tokio::test]
async fn a_second_call_is_no_failure() {
    let there = bound(module_pod("p", "shop", "1"), "v0");
    let mut server = ApiServer::refusing(409, "pod p is already assigned to node v0");
    server.pod = Some(there.clone());
    let unseen = rig(&server, &[vnode("v0"), vnode("v1")], &[module_pod("p", "shop", "1")]);
    assert_eq!(bind(&unseen, "p", "v0").await, "");
    assert_eq!(bind(&unseen, "p", "v1").await, "the Pod is already bound to another node");
    let seen = rig(&ApiServer::default(), &[vnode("v0")], &[there]);
    assert_eq!(bind(&seen, "p", "v0").await, "");
    assert_eq!(bind(&seen, "p", "v1").await, "the Pod is already bound to another node");
}

/// Case 22, BL-034: whatever the API server refuses, the place is free again.
#[tokio::test]
async fn a_refused_binding_leaves_nothing_behind() {
    for code in [400, 403, 404, 409, 422] {
        let server = ApiServer::refusing(code, "100% no");
        let rig = rig(&server, &[vnode("v0")], &[module_pod("p", "shop", "1"), module_pod("q", "shop", "1")]);
        let error = bind(&rig, "p", "v0").await;
        let gone = [404, 409].contains(&code);
        assert_eq!(error.contains("the Pod is gone"), gone, "{code}: {error}");
        assert!(!error.contains('%') && (gone || error.contains("100 no")), "{code}: {error}");
        assert!(rig.metrics().contains("stowage_extender_reservations 0\n"), "{code}");
        // The other Pod of the module meets the API server, not us.
        assert!(!bind(&rig, "q", "v0").await.contains("can no longer take"), "{code}");
        assert_eq!(server.bindings().len(), 2);
    }
}

/// Case 6: an error of the API server may come after the binding, so the place stays taken too.
#[tokio::test]
async fn a_doubtful_binding_keeps_the_place() {
    for code in [500, 503, 504] {
        let server = ApiServer::refusing(code, "100% no");
        let rig = rig(&server, &[vnode("v0")], &[module_pod("p", "shop", "1"), module_pod("q", "shop", "1")]);
        assert_eq!(bind(&rig, "p", "v0").await, "the API server did not bind the Pod: 100 no");
        assert!(bind(&rig, "q", "v0").await.contains("already has module shop"), "{code}");
        assert_eq!(server.bindings().len(), 1);
    }
}

/// Case 6: a clear no to a second binding says nothing of the first, which may be on its way still; that the Pod is gone does.
#[tokio::test]
async fn a_second_binding_that_is_refused_does_not_free_the_place() {
    let server = ApiServer::refusing_with(&[504, 403, 404, 403], "no");
    let rig = rig(&server, &[vnode("v0")], &[module_pod("p", "shop", "1"), module_pod("q", "shop", "1")]);
    let not_bound = "the API server did not bind the Pod: no";
    let taken = async || bind(&rig, "q", "v0").await.contains("already has module shop");
    for _ in 0..2 {
        assert_eq!(bind(&rig, "p", "v0").await, not_bound);
        assert!(taken().await);
    }
    assert_eq!(bind(&rig, "p", "v0").await, "the Pod is gone");
    assert_eq!(bind(&rig, "q", "v0").await, not_bound, "the place is free");
}

/// A 404 may be the word of a proxy or a webhook: whether the Pod is gone the API server says when it is asked for it.
#[tokio::test]
async fn not_every_404_is_a_pod_that_is_gone() {
    let p = module_pod("p", "shop", "1");
    let mut server = ApiServer::refusing(404, "page not found");
    let gone = rig(&server, &[vnode("v0")], std::slice::from_ref(&p));
    assert_eq!(bind(&gone, "p", "v0").await, "the Pod is gone");
    let proxy = ApiServer { pages: true, ..server.clone() };
    let q = module_pod("q", "shop", "1");
    let (p_there, nobody_knows) = (Some(p.clone()), rig(&proxy, &[vnode("v0")], &[p.clone(), q.clone()]));
    let not_bound = "the API server did not bind the Pod: ";
    assert!(bind(&nobody_knows, "p", "v0").await.starts_with(not_bound));
    assert!(bind(&nobody_knows, "q", "v0").await.contains("already has module shop"), "p may yet come");
    server.pod = p_there;
    let there = rig(&server, &[vnode("v0")], &[p, q]);
    assert_eq!(bind(&there, "p", "v0").await, format!("{not_bound}page not found"));
    assert!(!bind(&there, "q", "v0").await.contains("already has module"), "the place is free");
}

/// Case 6: kube-scheduler gives the only slot of a base back when the binding had no answer; it may yet be taken, so the
/// next Pod goes elsewhere at once, or is told to come again.
#[tokio::test]
async fn a_slot_that_may_yet_be_taken_is_not_answered() {
    let narrow = |name| {
        let mut node = vnode(name);
        node["status"]["allocatable"]["pods"] = json!("1");
        node
    };
    let server = ApiServer::refusing(504, "no");
    let (p, q) = (module_pod("p", "shop", "1"), module_pod("q", "cart", "1"));
    let rig = rig(&server, &["v0", "v1"].map(narrow), &[p.clone(), q.clone()]);
    let answered = async |pod: &Value, nodes: &[&str]| rig.filter(pod, nodes).await["NodeNames"].clone();
    assert_eq!(answered(&q, &["v0", "v1"]).await, json!(["v0", "v1"]));
    assert!(!bind(&rig, "p", "v0").await.is_empty());
    assert!(rig.metrics().contains("stowage_extender_reservations 2\n"), "q was answered two nodes");
    assert_eq!(answered(&q, &["v0", "v1"]).await, json!(["v1"]));
    // Soon nobody waits for it any more.
    for said in ["just given to other Pods", "not seen there since"] {
        let alone = async || rig.filter(&q, &["v0"]).await["Error"].as_str().expect("text").to_owned();
        while !alone().await.contains(said) {
            assert!(said.contains("since") && alone().await.contains("trying again"), "{said}");
        }
    }
    assert_eq!(answered(&p, &["v0", "v1"]).await, json!(["v0", "v1"]), "its own is in nobody's way");
    let explain = Request::get("/explain?namespace=biz&pod=q").header("accept", "application/json");
    let (_, text) = rig.call(explain.body(Body::empty()).expect("a request")).await;
    let explained: Value = serde_json::from_str(&text).expect("JSON");
    let nodes = explained["nodes"].as_array().expect("nodes");
    let fits = |name: &str| nodes.iter().find(|node| node["node"] == name).map(|node| node["fits"].clone());
    assert_eq!([fits("v0"), fits("v1")], [Some(json!(false)), Some(json!(true))], "{text}");
}

/// Case 6, BL-026: no answer in time. The binding may have happened, so the place stays taken until it is seen or too
/// old.
#[tokio::test]
async fn a_binding_without_answer_keeps_the_place() {
    let server = ApiServer { silent: true, ..ApiServer::default() };
    let limits =
        scheduler_extender::http::Limits { deadline: std::time::Duration::from_millis(30), ..rig::LIMITS };
    let (p, q) = (module_pod("p", "shop", "1"), module_pod("q", "shop", "1"));
    let rig = Rig::build(state(&[vnode("v0"), vnode("v1")], &[p.clone(), q]), limits, Some(server.client()));
    assert_eq!(bind(&rig, "p", "v0").await, "stowage-extender did not decide in time");
    let refused = async || {
        let error = bind(&rig, "q", "v0").await;
        assert!(error.contains("the base already has module shop in this version"), "{error}");
    };
    refused().await;
    // kube-scheduler gave up and asks again; the binding may yet happen.
    assert_eq!(rig.filter(&p, &["v1"]).await["NodeNames"][0], "v1");
    refused().await;
    assert_eq!(bind(&rig, "p", "v1").await, "stowage-extender did not decide in time");
    refused().await;
    assert_eq!(server.bindings().len(), 2);
}

/// Cases 18, 20 and 40, BL-033: many Pods at once for one place: one gets it, and none of the others reaches the API
/// server.
#[tokio::test]
async fn one_of_many_gets_the_place() {
    let mut one_slot = vnode("one-slot");
    one_slot["status"]["allocatable"]["pods"] = json!("1");
    let names: Vec<String> = (0..200).map(|number| format!("p{number}")).collect();
    // Different modules, which nothing but the slot keeps apart; and replicas of one module, where slots are plenty.
    for (node, replicas) in [("one-slot", false), ("v0", true)] {
        let server = ApiServer::default();
        let pods: Vec<_> =
            names.iter().map(|name| module_pod(name, if replicas { "shop" } else { name }, "1")).collect();
        let rig = rig(&server, &[one_slot.clone(), vnode("v0")], &pods);
        let errors = join_all(names.iter().map(|name| bind(&rig, name, node))).await;
        assert_eq!(errors.iter().filter(|error| error.is_empty()).count(), 1, "{errors:?}");
        assert_eq!(server.bindings().len(), 1);
        let text = if replicas { "already has module shop" } else { "no slot left" };
        assert!(errors.iter().all(|error| error.is_empty() || error.contains(text)), "{errors:?}");
    }
}

/// Case 3: the node or the Pod went away, or the Pod was made anew, between the answer and the binding.
#[tokio::test]
async fn what_is_gone_is_not_bound() {
    let mut server = ApiServer::default();
    let gone = rig(&server, &[vnode("v0")], &[module_pod("p", "shop", "1")]);
    assert!(bind(&gone, "p", "v1").await.contains("not yet known"));
    let error = bind(&gone, "p", "V0").await;
    assert!(error.contains("a Node that cannot exist"), "{error}");
    assert_eq!(bind(&gone, "q", "v0").await, "the Pod is gone");
    let mut anew = module_pod("r", "shop", "1");
    anew["metadata"]["uid"] = json!("another");
    server.pod = Some(anew);
    let again = rig(&server, &[vnode("v0")], &[]);
    assert_eq!(bind(&again, "r", "v0").await, "the Pod is gone");
    assert!(server.bindings().is_empty());
}

/// A Pod that our watch has not delivered yet is read, and judged like any other.
#[tokio::test]
async fn a_pod_not_yet_seen_is_read() {
    let server = ApiServer { pod: Some(module_pod("p", "shop", "1")), ..ApiServer::default() };
    let rig = rig(&server, &[vnode("v0"), vnode("v1")], &[bound(module_pod("other", "shop", "1"), "v1")]);
    assert!(bind(&rig, "p", "v1").await.contains("already has module shop"));
    assert_eq!(bind(&rig, "p", "v0").await, "");
}

/// Cases 13 and 41, BL-123: no answer is a success by accident.
#[tokio::test]
async fn faults_bind_nothing() {
    let server = ApiServer::default();
    let rig = rig(&server, &[vnode("v0")], &[]);
    for body in ["", "{}", "null", r#"{"PodName":"p","PodNamespace":"biz","Node":"v0"}"#] {
        let (status, text) = rig.send("bind", body).await;
        assert_eq!(status, StatusCode::OK);
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert!(answer["Error"].as_str().is_some_and(|error| !error.is_empty()), "{body}: {text}");
    }
    let unsynced = Rig::with_client(State::default(), server.client());
    assert_eq!(bind(&unsynced, "p", "v0").await, "stowage-extender has not yet read all Nodes and Pods");
    let alone = Rig::new(state(&[vnode("v0")], &[module_pod("p", "shop", "1")]));
    assert_eq!(bind(&alone, "p", "v0").await, "this stowage-extender does not bind");
    assert!(server.sent.lock().expect("lock").is_empty());
}

/// BL-123: whoever calls, nothing but a module Pod is bound to a `VNode`.
#[tokio::test]
async fn only_module_pods_are_bound_to_vnodes() {
    let server = ApiServer { pod: Some(ordinary_pod("p")), ..ApiServer::default() };
    let rig = rig(&server, &[vnode("v0")], &[]);
    let error = bind(&rig, "p", "v0").await;
    assert!(error.contains("module Pods only"), "{error}");
    assert_eq!(server.bindings(), Vec::<Value>::new());
}

/// Case 27, BL-113: bindings that hang at the API server hold up nobody else: neither other bindings nor verdicts.
#[tokio::test]
async fn bindings_that_hang_hold_up_nobody() {
    let server = ApiServer { silent: true, ..ApiServer::default() };
    let names: Vec<String> = (0..100).map(|number| format!("p{number}")).collect();
    let pods: Vec<_> = names.iter().map(|name| module_pod(name, name, "1")).collect();
    let nodes: Vec<_> = (0..100).map(|number| vnode(&format!("v{number}"))).collect();
    let rig = rig(&server, &nodes, &pods);
    let bindings = join_all(names.iter().enumerate().map(|(number, name)| {
        let (rig, node) = (&rig, format!("v{number}"));
        async move { bind(rig, name, &node).await }
    }));
    let verdict = async {
        while server.bindings().len() < names.len() {
            tokio::task::yield_now().await;
        }
        let answer = rig.filter(&module_pod("other", "other", "1"), &["v0", "v99"]).await;
        (answer, rig.prioritize(&module_pod("other", "other", "1"), &["v0", "v99"]).await)
    };
    let (answer, scores) = tokio::select! {
        biased;
        errors = bindings => panic!("a silent API server answered: {errors:?}"),
        verdict = verdict => verdict,
    };
    assert_eq!(answer["NodeNames"], json!(["v0", "v99"]));
    assert_eq!(scores, json!([]), "one is as good as the other");
}
