//! The simulated base under faults, over restarts, with traffic, and in large numbers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures::{StreamExt, stream};
use harness::arklet::{BizState, Fault, Footprint, On, Options, Simulator, Throwable};
use harness::artifact::{ArtifactServer, Trouble};
use harness::fetch;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
const MIB: u64 = 1 << 20;

/// The bytes behind the head of a reply.
async fn raw(addr: SocketAddr, command: &str, body: &Value) -> io::Result<Vec<u8>> {
    let body = body.to_string();
    let head = format!("POST /{command} HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all((head + &body).as_bytes()).await?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await?;
    let start = reply.windows(4).position(|part| part == b"\r\n\r\n").map_or(reply.len(), |place| place + 4);
    Ok(reply.split_off(start))
}

async fn call(base: &Simulator, command: &str, body: Value) -> Value {
    let reply = raw(base.addr(), command, &body).await.unwrap();
    serde_json::from_slice(&reply)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&reply)))
}

fn input(name: &str, version: &str, url: &str) -> Value {
    json!({"bizName": name, "bizVersion": version, "bizUrl": url})
}

async fn started() -> (Simulator, ArtifactServer) {
    (Simulator::start(Options::default()).await.unwrap(), ArtifactServer::start().await.unwrap())
}

#[tokio::test]
async fn a_lost_answer_leaves_the_module_installed_and_in_the_journal() {
    let (base, artifacts) = started().await;
    let url = artifacts.module("shop", "1").url().unwrap();
    base.faults().next(1, On::install().of("shop"), Fault::LoseAnswer);
    assert_eq!(raw(base.addr(), "installBiz", &input("shop", "1", &url)).await.unwrap(), b"");
    assert_eq!(base.state("shop", "1"), Some(BizState::Activated));
    let entry = base.journal().operations().pop().unwrap();
    let answer = entry.answer.clone().unwrap();
    assert_eq!(
        (answer.code.as_str(), answer.inner.as_deref(), answer.delivered),
        ("SUCCESS", Some("SUCCESS"), false)
    );
    assert_eq!((entry.module(), entry.version()), (Some("shop"), Some("1")));
    let again = call(&base, "installBiz", input("shop", "1", &url)).await;
    assert_eq!(again["data"]["code"], "REPEAT_BIZ");
    assert_eq!((base.journal().installs("shop"), artifacts.downloads("shop-1.jar")), (2, 2));
}

#[tokio::test]
async fn answers_that_cannot_be_read() {
    let (base, _) = started().await;
    let query = async || raw(base.addr(), "queryAllBiz", &json!({})).await;
    let faults = base.faults();

    faults.next(1, On::query(), Fault::Truncate);
    assert!(serde_json::from_slice::<Value>(&query().await.unwrap()).is_err());
    faults.next(1, On::query(), Fault::Text("<html>".to_owned()));
    assert_eq!(query().await.unwrap(), b"<html>");
    faults.next(1, On::query(), Fault::Status(503));
    assert_eq!(query().await.unwrap(), b"<html>503</html>");
    faults.next(1, On::query(), Fault::WrongTypes);
    assert_eq!(serde_json::from_slice::<Value>(&query().await.unwrap()).unwrap()["code"], 200);
    faults.next(1, On::query(), Fault::Oversize(3 << 20));
    assert!(query().await.unwrap().len() > 3 << 20);
    faults.next(1, On::query(), Fault::Reset);
    assert_eq!(query().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    faults.next(1, On::query(), Fault::Hang);
    assert!(timeout(SHORT, query()).await.is_err());
    faults.next(1, On::query(), Fault::Latency(SHORT));
    let begun = std::time::Instant::now();
    assert_eq!(serde_json::from_slice::<Value>(&query().await.unwrap()).unwrap()["code"], "SUCCESS");
    assert!(begun.elapsed() >= SHORT);
    assert_eq!(base.journal().count("queryAllBiz"), 8);
}

#[tokio::test]
async fn a_port_that_refuses_opens_again() {
    let (base, _) = started().await;
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    base.faults().refuse(true);
    timeout(LIMIT, async {
        while !raw(base.addr(), "help", &json!({})).await.is_err_and(|e| refused(&e)) {}
    })
    .await
    .unwrap();
    base.faults().clear();
    timeout(LIMIT, async { while raw(base.addr(), "help", &json!({})).await.is_err() {} }).await.unwrap();
}

#[tokio::test]
async fn installs_that_fail_each_in_its_way() {
    let (base, artifacts) = started().await;
    let url = artifacts.module("shop", "1").url().unwrap();
    let install = || call(&base, "installBiz", input("shop", "1", &url));
    let on = || On::install().of("shop");

    base.faults().next(1, on(), Fault::Conflict);
    let reply = install().await;
    assert_eq!((&reply["code"], reply.get("data")), (&json!("FAILED"), None));
    assert!(reply["message"].as_str().unwrap().contains("installBiz conflict"));

    let thrown = Throwable::parse("java.lang.NoClassDefFoundError: com/acme/Gone");
    base.faults().next(1, on(), Fault::MainThrows(thrown));
    let reply = install().await;
    assert_eq!(reply["message"], "Internal Error: java.lang.reflect.InvocationTargetException");
    assert!(
        reply["errorStackTrace"]
            .as_str()
            .unwrap()
            .contains("Caused by: java.lang.NoClassDefFoundError: com/acme/Gone")
    );
    assert_eq!(base.state("shop", "1"), None);

    base.faults().next(1, on(), Fault::MetaspaceFull);
    assert_eq!(install().await["message"], "Internal Error: Metaspace");

    base.faults().next(1, on(), Fault::Vanish);
    assert_eq!(install().await["data"]["code"], "SUCCESS");
    assert_eq!(base.state("shop", "1"), None);

    base.faults().next(1, on(), Fault::Identity("other".to_owned(), "9".to_owned()));
    assert_eq!(install().await["data"]["bizInfos"][0]["identity"], "other:9");

    base.faults().next(1, on(), Fault::MainThrows(Throwable::parse("java.lang.IllegalStateException: x")));
    base.faults().next(1, on(), Fault::KeepBroken);
    install().await;
    assert_eq!(base.state("shop", "1"), Some(BizState::Broken));
    assert_eq!(install().await["data"]["code"], "REPEAT_BIZ");
}

#[tokio::test]
async fn a_server_of_jars_in_trouble() {
    let (base, artifacts) = started().await;
    let url = artifacts.module("shop", "1").url().unwrap();
    let install = || call(&base, "installBiz", input("shop", "1", &url));
    let file = Some("shop-1.jar");
    artifacts.next(1, file, Trouble::Status(401));
    assert!(install().await["message"].as_str().unwrap().contains("HTTP response code: 401"));
    artifacts.next(1, file, Trouble::Truncate);
    assert!(install().await["message"].as_str().unwrap().contains("zip END header not found"));
    artifacts.next(1, file, Trouble::NotAJar);
    assert!(install().await["message"].as_str().unwrap().contains("zip END header not found"));
    artifacts.limit(Some(0));
    assert!(install().await["message"].as_str().unwrap().contains("HTTP response code: 503"));
    artifacts.heal();
    artifacts.next(1, file, Trouble::Hang);
    assert!(timeout(SHORT, install()).await.is_err());
    assert_eq!(artifacts.downloads("shop-1.jar"), 5);
    assert_eq!(artifacts.pressure().1, 1);

    // The one that hangs still holds its identity.
    let other = artifacts.module("cart", "1").url().unwrap();
    artifacts.always(Some("cart-1.jar"), Trouble::Slow(SHORT));
    let begun = std::time::Instant::now();
    assert_eq!(call(&base, "installBiz", input("cart", "1", &other)).await["data"]["code"], "SUCCESS");
    assert!(begun.elapsed() >= SHORT);
}

#[tokio::test]
async fn a_restart_loses_modules_but_not_the_journal() {
    let (base, artifacts) = started().await;
    let url = artifacts.module("shop", "1").url().unwrap();
    call(&base, "installBiz", input("shop", "1", &url)).await;
    base.restart().await.unwrap();
    assert_eq!(call(&base, "queryAllBiz", json!({})).await["data"], json!([]));
    assert_eq!((base.journal().installs("shop"), base.lives().borrow().starts), (1, 2));
    base.crash().await.unwrap();
    assert!(raw(base.addr(), "help", &json!({})).await.is_err() && !base.is_up());
    base.boot().await.unwrap();
    assert!(base.is_up());
}

#[tokio::test]
async fn modules_share_a_port_by_their_context_paths() {
    let addr = SocketAddr::from((Ipv4Addr::new(127, 9, 2, 1), 0));
    let base = Simulator::start(Options::at(addr)).await.unwrap();
    let artifacts = ArtifactServer::start().await.unwrap();
    let get = |path: &'static str| fetch::get(path, LIMIT);
    for name in ["shop", "cart"] {
        let url = artifacts.module(name, "1").serves(18080).url().unwrap();
        assert_eq!(call(&base, "installBiz", input(name, "1", &url)).await["code"], "SUCCESS");
    }
    assert_eq!(get("http://127.9.2.1:18080/shop/health").await.unwrap().0, 200);
    assert_eq!(get("http://127.9.2.1:18080/none").await.unwrap().0, 404);
    assert_eq!(base.traffic("shop", "1").served, 1);
    base.faults().serve_status("shop", Some(500));
    assert_eq!(get("http://127.9.2.1:18080/shop/health").await.unwrap().0, 500);
    assert_eq!(get("http://127.9.2.1:18080/cart/health").await.unwrap().0, 200);
    base.faults().serve_status("shop", None);
    assert_eq!(get("http://127.9.2.1:18080/shop/health").await.unwrap().0, 200);

    let twin =
        artifacts.module("twin", "1").serves(18080).with(|jar| jar.context_path("/shop")).url().unwrap();
    let reply = call(&base, "installBiz", input("twin", "1", &twin)).await;
    assert!(reply["errorStackTrace"].as_str().unwrap().contains("Child name '/shop' is not unique"));

    call(&base, "uninstallBiz", json!({"bizName": "shop", "bizVersion": "1"})).await;
    assert_eq!(get("http://127.9.2.1:18080/shop/health").await.unwrap().0, 404);
    call(&base, "uninstallBiz", json!({"bizName": "cart", "bizVersion": "1"})).await;
    assert!(get("http://127.9.2.1:18080/cart").await.is_err());
}

#[tokio::test]
async fn a_leak_fills_the_metaspace_and_the_base_decays() {
    let options = Options {
        max_metaspace: Some(48 * MIB),
        own_footprint: Footprint { bytes: 20 * MIB, classes: 4000 },
        calls_after_exhaustion: 3,
        ..Options::default()
    };
    let base = Simulator::start(options).await.unwrap();
    let artifacts = ArtifactServer::start().await.unwrap();
    let url = artifacts.module("leaky", "1").with(|jar| jar.leaks().metaspace(9 * MIB)).url().unwrap();
    let jvm = || async {
        call(&base, "health", json!({"type": "system", "metrics": ["jvm"]})).await["data"]["healthData"]["jvm"].clone()
    };
    let mut floor = 0;
    for _ in 0..3 {
        assert_eq!(call(&base, "installBiz", input("leaky", "1", &url)).await["code"], "SUCCESS");
        call(&base, "uninstallBiz", json!({"bizName": "leaky", "bizVersion": "1"})).await;
        let figures = jvm().await;
        let used = figures["java used metaspace"].as_u64().unwrap();
        assert!(used > floor && figures["unload class count"] == 0);
        floor = used;
    }
    let reply = call(&base, "installBiz", input("leaky", "1", &url)).await;
    assert!(
        reply["errorStackTrace"]
            .as_str()
            .unwrap()
            .contains("Caused by: java.lang.OutOfMemoryError: Metaspace")
    );
    assert_eq!(base.state("leaky", "1"), Some(BizState::Broken));
    let again = call(&base, "installBiz", input("leaky", "1", &url)).await;
    assert_eq!(again["data"]["code"], "REPEAT_BIZ");
    assert!(timeout(SHORT, jvm()).await.is_err());
    let other = call(&base, "installBiz", input("other", "1", &url)).await;
    assert_eq!(other["message"], "Internal Error: Metaspace");
    let last = raw(base.addr(), "queryAllBiz", &json!({})).await;
    assert_eq!(last.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    base.restart().await.unwrap();
    assert_eq!(call(&base, "installBiz", input("leaky", "1", &url)).await["code"], "SUCCESS");
}

#[tokio::test]
async fn reported_figures_can_be_made_up() {
    let (base, _) = started().await;
    base.faults().report_metaspace([250 * MIB, 100 * MIB]);
    let used = || async {
        call(&base, "health", json!({"type": "system"})).await["data"]["healthData"]["jvm"]["java used metaspace"].clone()
    };
    assert_eq!((used().await, used().await), (json!(250 * MIB), json!(100 * MIB)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_bases_answer_in_one_process() {
    let artifacts = ArtifactServer::start().await.unwrap();
    let url = artifacts.module("shop", "1").url().unwrap();
    let mut bases = Vec::new();
    for number in 0..1000_u16 {
        let [high, low] = number.to_be_bytes();
        let addr = SocketAddr::from((Ipv4Addr::new(127, 20, high, low + u8::from(low == 0)), 0));
        bases.push(Simulator::start(Options::at(addr)).await.unwrap());
    }
    let installed = stream::iter(&bases).map(|base| call(base, "installBiz", input("shop", "1", &url)));
    let codes: Vec<Value> =
        installed.buffer_unordered(50).map(|reply| reply["data"]["code"].clone()).collect().await;
    assert_eq!(codes, vec![json!("SUCCESS"); 1000]);
    assert_eq!(
        bases.iter().filter(|base| base.state("shop", "1") == Some(BizState::Activated)).count(),
        1000
    );
    assert_eq!(artifacts.downloads("shop-1.jar"), 1000);
}

#[tokio::test]
async fn a_base_announces_itself() {
    let (sent, mut beats) = tokio::sync::mpsc::channel(1);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().route(
        "/heartbeat",
        axum::routing::post(async move |axum::Json(beat): axum::Json<Value>| {
            sent.send(beat).await.unwrap();
            "SUCCESS"
        }),
    );
    tokio::spawn(async { axum::serve(listener, router).await });
    let base = Simulator::start(Options { heartbeat: Some(endpoint), ..Options::default() }).await.unwrap();
    let beat = timeout(LIMIT, beats.recv()).await.unwrap().unwrap();
    assert_eq!((&beat["port"], &beat["state"]), (&json!(base.addr().port()), &json!("activated")));
    assert_eq!(beat["baseMetadata"]["identity"], "127.0.0.1");
}
