//! The endpoint without a network: requests go to the router, reviews to a server that is made up.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures::StreamExt;
use http_body_util::BodyExt;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::server::{Shared, router};
use crate::journal::{Journal, Limits, VPod};
use crate::lease::Term;

const NODE: &str = "virtual-node-java-bases-base-0";

/// What the API server was asked.
type Asked = Arc<Mutex<Vec<Value>>>;

/// Knows the tokens `good` (user `reader`) and `other`, and lets `reader` read what `open` names.
fn api(asked: &Asked, open: &'static [&'static str]) -> kube::Client {
    let asked = Arc::clone(asked);
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let asked = Arc::clone(&asked);
        async move {
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            let mut review: Value = serde_json::from_slice(&body).expect("JSON");
            asked.lock().expect("no panic").push(review.clone());
            review["status"] = if review["kind"] == "TokenReview" {
                match review["spec"]["token"].as_str() {
                    Some("good") => {
                        json!({"authenticated": true, "user": {"username": "reader", "groups": ["g"]}})
                    }
                    Some("other") => json!({"authenticated": true, "user": {"username": "other"}}),
                    // A name without authentication is none.
                    _ => json!({"authenticated": false, "user": {"username": "reader"}}),
                }
            } else {
                let attributes = &review["spec"]["resourceAttributes"];
                let wanted = attributes["subresource"].as_str().unwrap_or_default();
                let named = attributes["name"] == NODE || open.contains(&"every node");
                json!({"allowed": review["spec"]["user"] == "reader" && open.contains(&wanted) && named})
            };
            let body = kube::client::Body::from(serde_json::to_vec(&review).expect("JSON"));
            let created = http::Response::builder().status(201).header("content-type", "application/json");
            Ok::<_, Infallible>(created.body(body).expect("a response"))
        }
    });
    kube::Client::new(service, "default")
}

struct Rig {
    router: Router,
    journal: Journal,
    asked: Asked,
    terms: watch::Sender<Option<Term>>,
    shutdown: CancellationToken,
}

fn rig(open: &'static [&'static str]) -> Rig {
    let asked = Asked::default();
    let journal = Journal::limited(Limits { vpod: 4_096, all: 65_536 });
    let vpod = VPod {
        uid: "u-1".to_owned(),
        namespace: "shop".to_owned(),
        name: "shop-1".to_owned(),
        node: NODE.to_owned(),
    };
    journal.open(&vpod, ["shop", "cart"].map(str::to_owned).into_iter());
    let (terms, term) = watch::channel(Some(Term::unlimited()));
    let shutdown = CancellationToken::new();
    let client = api(&asked, open);
    let shared = Shared::new(&client, true, journal.clone(), term, shutdown.clone());
    Rig { router: router(Arc::new(shared)), journal, asked, terms, shutdown }
}

impl Rig {
    fn note(&self, second: i64, container: Option<&str>, text: &str) {
        let at = Timestamp::from_second(1_800_000_000 + second).expect("time");
        self.journal.note("u-1", container, 0, at, text);
    }

    async fn send(&self, method: &str, path: &str, token: Option<&str>) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).expect("a request");
        self.router.clone().oneshot(request).await.expect("an answer")
    }

    async fn get(&self, path: &str, token: Option<&str>) -> (StatusCode, String) {
        let answer = self.send("GET", path, token).await;
        let status = answer.status();
        let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8(bytes.to_vec()).expect("text"))
    }

    fn count(&self, kind: &str) -> usize {
        self.asked.lock().expect("no panic").iter().filter(|review| review["kind"] == kind).count()
    }
}

const SHOP: &str = "/containerLogs/shop/shop-1/shop";

#[tokio::test]
async fn nobody_without_a_name_gets_anything() {
    let rig = rig(&["log", "proxy", "every node"]);
    for path in [SHOP, "/containerLogs/a/b/c", "/exec/shop/shop-1/shop", "/pods", "/healthz", "/"] {
        for token in [None, Some("bad"), Some("")] {
            assert_eq!(rig.get(path, token).await.0, StatusCode::UNAUTHORIZED, "{path} {token:?}");
        }
    }
    assert_eq!(rig.count("SubjectAccessReview"), 0, "no rights are looked up for nobody");
    assert_eq!(rig.count("TokenReview"), 1, "a bad token is remembered");
}

/// BL-137: rights first; then only journals are there, and whoever asks for figures gets a plain 404.
#[tokio::test]
async fn rights_are_asked_for_as_a_kubelet_does() {
    let fine = rig(&["log"]);
    assert_eq!(fine.get(SHOP, Some("good")).await.0, StatusCode::OK);
    assert_eq!(fine.get(SHOP, Some("good")).await.0, StatusCode::OK);
    assert_eq!((fine.count("TokenReview"), fine.count("SubjectAccessReview")), (1, 1), "both are remembered");
    let asked = fine.asked.lock().expect("no panic").last().cloned().expect("a review");
    let attributes =
        json!({"verb": "get", "version": "v1", "resource": "nodes", "subresource": "log", "name": NODE});
    assert_eq!(asked["spec"]["resourceAttributes"], attributes);
    assert_eq!(asked["spec"]["groups"], json!(["g"]));

    let (status, text) = fine.get(SHOP, Some("other")).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(text.contains("nodes/log or nodes/proxy"), "{text}");
    assert_eq!(
        fine.get("/exec/shop/shop-1/shop", Some("good")).await.0,
        StatusCode::FORBIDDEN,
        "log is not proxy"
    );

    let whole = rig(&["proxy"]);
    assert_eq!(whole.get(SHOP, Some("good")).await.0, StatusCode::OK);
    // Whoever may not ask about every Node does not learn which VPods there are.
    assert_eq!(whole.get("/containerLogs/shop/none/shop", Some("good")).await.0, StatusCode::FORBIDDEN);
    let all = rig(&["proxy", "every node"]);
    assert_eq!(all.get("/containerLogs/shop/none/shop", Some("good")).await.0, StatusCode::NOT_FOUND);
    assert_eq!(all.get("/containerLogs/shop/shop-1/none", Some("good")).await.0, StatusCode::NOT_FOUND);
    for path in ["/pods", "/stats/summary", "/metrics/resource"] {
        assert_eq!(all.get(path, Some("good")).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn commands_and_ports_are_refused_in_words() {
    let rig = rig(&["proxy"]);
    for (method, path) in [
        ("POST", "/exec/shop/shop-1/shop?command=ls"),
        ("GET", "/exec/shop/shop-1/u-1/shop"),
        ("POST", "/attach/shop/shop-1/shop"),
        ("POST", "/portForward/shop/shop-1"),
        ("POST", "/run/shop/shop-1/shop"),
    ] {
        let answer = rig.send(method, path, Some("good")).await;
        assert_eq!(answer.status(), StatusCode::NOT_IMPLEMENTED, "{path}");
        let text = answer.into_body().collect().await.expect("a body").to_bytes();
        assert!(String::from_utf8_lossy(&text).contains("go to the base Pod"));
    }
    assert_eq!(rig.send("POST", SHOP, Some("good")).await.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn options_choose_lines() {
    let rig = rig(&["log"]);
    for second in 0..5 {
        rig.note(second, Some("shop"), &format!("line {second}"));
    }
    rig.note(5, Some("cart"), "another container");
    let ask = async |query: &str| rig.get(&format!("{SHOP}?{query}"), Some("good")).await;
    let lines = |text: &str| {
        text.lines().map(|line| line.rsplit("line ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (status, all) = ask("").await;
    assert_eq!(
        (status, lines(&all)),
        (StatusCode::OK, ["0", "1", "2", "3", "4"].map(str::to_owned).to_vec())
    );
    assert!(all.starts_with("2027-01-15T08:00:00.000Z line 0\n"), "{all}");
    assert_eq!(lines(&ask("tailLines=2").await.1), ["3", "4"]);
    assert_eq!(ask("tailLines=0").await.1, "");
    assert_eq!(lines(&ask("sinceTime=2027-01-15T08:00:03Z").await.1), ["3", "4"]);
    assert_eq!(ask("limitBytes=10").await.1, "2027-01-15");
    let (_, stamped) = ask("timestamps=true&tailLines=1").await;
    assert_eq!(stamped, "2027-01-15T08:00:04.000000000Z 2027-01-15T08:00:04.000Z line 4\n");
    assert_eq!(ask("stream=Stderr").await.1, "");
    for wrong in ["tailLines=-1", "sinceSeconds=1&sinceTime=2027-01-15T08:00:03Z", "follow=no"] {
        assert_eq!(ask(wrong).await.0, StatusCode::BAD_REQUEST, "{wrong}");
    }
    let (status, text) = ask("previous=true").await;
    assert!(status == StatusCode::BAD_REQUEST && text.contains("previous run"), "{status} {text}");
    rig.journal.note("u-1", Some("shop"), 1, Timestamp::UNIX_EPOCH, "again");
    assert_eq!(lines(&ask("previous=true").await.1), ["0", "1", "2", "3", "4"]);
    assert!(ask("").await.1.ends_with(" again\n"));
}

#[tokio::test]
async fn followers_see_what_comes_and_the_end() {
    let rig = rig(&["log"]);
    rig.note(0, Some("shop"), "first");
    let follow = async |query: &str| {
        let answer = rig.send("GET", &format!("{SHOP}?follow=true{query}"), Some("good")).await;
        assert_eq!(answer.status(), StatusCode::OK);
        answer.into_body().into_data_stream()
    };
    let text = |piece: Option<Result<axum::body::Bytes, axum::Error>>| {
        String::from_utf8(piece.expect("a piece").expect("whole").to_vec()).expect("text")
    };
    let (mut whole, mut short) = (follow("").await, follow("&tailLines=0&limitBytes=30").await);
    assert!(text(whole.next().await).ends_with(" first\n"));
    assert_eq!(text(short.next().await), "");
    rig.note(1, Some("cart"), "of another container");
    rig.note(2, None, "of the whole VPod");
    assert!(text(whole.next().await).ends_with(" of the whole VPod\n"));
    assert_eq!(text(short.next().await), "2027-01-15T08:00:02.000Z of th");
    assert!(short.next().await.is_none(), "no more bytes were asked for");
    rig.note(3, Some("shop"), "uninstalled");
    rig.journal.close("u-1");
    assert!(text(whole.next().await).ends_with(" uninstalled\n"));
    assert!(whole.next().await.is_none(), "the VPod is gone");
}

#[tokio::test]
async fn followers_are_few_and_end_with_the_term() {
    let rig = rig(&["log"]);
    let path = format!("{SHOP}?follow=true&tailLines=0");
    let mut followers = Vec::new();
    while followers.len() < 65 {
        let answer = rig.send("GET", &path, Some("good")).await;
        if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        followers.push(answer.into_body().into_data_stream());
    }
    assert_eq!(followers.len(), 64);
    let last = followers.pop();
    drop(last);
    let again = rig.send("GET", &path, Some("good")).await;
    assert_eq!(again.status(), StatusCode::OK, "who leaves makes room");
    let mut follower = again.into_body().into_data_stream();
    follower.next().await.expect("the empty beginning").expect("whole");
    rig.terms.send_replace(None);
    assert!(follower.next().await.is_none(), "another agent acts now");
    let (status, text) = rig.get(SHOP, Some("good")).await;
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.contains("does not act"), "{status} {text}");
    rig.shutdown.cancel();
}
