//! mTLS, rotation, and reloads while requests run, over real connections.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::registry::Registry;
use rig::tls::{Authority, Caller, Pair, swap};
use rig::{Rig, module_pod, state, vnode};
use serde_json::json;
use service::tls::{ReloadedTls, TlsFiles};
use tokio_util::sync::CancellationToken;

/// A short clock: inotify may be used up on the machine that runs the test.
const POLL: Duration = Duration::from_millis(100);

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    config: axum_server::tls_rustls::RustlsConfig,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn serve(directory: &Path, rig: &Rig) -> Server {
    let files = TlsFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        client_ca: Some(directory.join("ca.crt")),
    };
    let tls =
        ReloadedTls::start(files, Timestamp::now, &mut Registry::default()).unwrap_or_else(|e| panic!("{e}"));
    let listener = service::serve::bind(([127, 0, 0, 1], 0).into()).expect("bind");
    let address = listener.local_addr().expect("address");
    let (config, shutdown) = (tls.config(), CancellationToken::new());
    tokio::spawn(tls.follow(POLL, shutdown.clone()));
    let router = rig.router.clone();
    let served = Some(config.clone());
    tokio::spawn(service::serve::serve(listener, served, router, shutdown.clone(), Duration::from_secs(1)));
    Server { address, shutdown, config }
}

async fn call(caller: &Caller) -> std::io::Result<(u16, String)> {
    let caller = caller.clone();
    tokio::task::spawn_blocking(move || caller.connect()?.filter(&question())).await.expect("no panic")
}

fn question() -> String {
    json!({"Pod": module_pod("p", "shop", "1"), "NodeNames": ["v0"]}).to_string()
}

fn accepted((status, body): &(u16, String)) -> bool {
    *status == 200 && body.contains(r#""NodeNames":["v0"]"#)
}

async fn rotated(server: &Server, before: &Arc<rustls::ServerConfig>) {
    let changed = async {
        while Arc::ptr_eq(before, &server.config.get_inner()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), changed).await.expect("the new set is taken");
}

/// Case 17: only clients of our authority are heard.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let (ours, theirs) = (Authority::new(), Authority::new());
    swap(directory.path(), 0, &ours.pair(2090), &ours.pem);
    let rig = Rig::new(state(&[vnode("v0")], &[]));
    let server = serve(directory.path(), &rig);
    let caller = |pair: Option<&Pair>| Caller::new(server.address, &ours.pem, pair);

    assert!(accepted(&call(&caller(Some(&ours.pair(2090)))).await.expect("a client of ours")));
    assert!(call(&caller(None)).await.is_err(), "no certificate");
    assert!(call(&caller(Some(&theirs.pair(2090)))).await.is_err(), "another authority");
    assert!(call(&caller(Some(&ours.pair(2001)))).await.is_err(), "expired");
    assert!(
        call(&Caller::new(server.address, &theirs.pem, Some(&ours.pair(2090)))).await.is_err(),
        "wrong server CA"
    );
}

/// Case 17: a rotated authority counts for new connections; open ones go on.
#[tokio::test(flavor = "multi_thread")]
async fn certificate_and_authority_rotate_while_connections_are_open() {
    let directory = tempfile::tempdir().expect("directory");
    let (old, new) = (Authority::new(), Authority::new());
    swap(directory.path(), 0, &old.pair(2090), &old.pem);
    let rig = Rig::new(state(&[vnode("v0")], &[]));
    let server = serve(directory.path(), &rig);
    let old_client = Caller::new(server.address, &old.pem, Some(&old.pair(2090)));
    let mut open = old_client.connect().expect("connect");
    let (first, mut open) =
        tokio::task::spawn_blocking(move || (open.filter(&question()), open)).await.expect("join");
    assert!(accepted(&first.expect("answer")));

    let before = server.config.get_inner();
    swap(directory.path(), 1, &new.pair(2090), &new.pem);
    rotated(&server, &before).await;
    let again = tokio::task::spawn_blocking(move || open.filter(&question())).await.expect("join");
    assert!(accepted(&again.expect("the open connection goes on")));
    assert!(call(&old_client).await.is_err(), "the old authority is out");
    let new_client = Caller::new(server.address, &new.pem, Some(&new.pair(2090)));
    assert!(accepted(&call(&new_client).await.expect("the new one is in")));
}

/// 10,000 requests on connections that come and go, while certificates and the policy change 100 times: none fails.
#[tokio::test(flavor = "multi_thread")]
async fn reloads_under_fire_fail_no_request() {
    const CALLERS: usize = 8;
    const CONNECTIONS: usize = 25;
    const REQUESTS: usize = 50;
    const CHANGES: usize = 100;
    let directory = tempfile::tempdir().expect("directory");
    let authority = Authority::new();
    swap(directory.path(), 0, &authority.pair(2090), &authority.pem);
    let rig = Rig::new(state(&[vnode("v0")], &[]));
    let server = serve(directory.path(), &rig);
    let caller = Caller::new(server.address, &authority.pem, Some(&authority.pair(2090)));
    let running = Arc::new(AtomicUsize::new(CALLERS));
    let started = server.config.get_inner();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (caller, running) = (caller.clone(), Arc::clone(&running));
            tokio::task::spawn_blocking(move || {
                let mut good = 0;
                for _ in 0..CONNECTIONS {
                    let mut connection = caller.connect().expect("connect");
                    for _ in 0..REQUESTS {
                        good += usize::from(accepted(&connection.filter(&question()).expect("answer")));
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
                good
            })
        })
        .collect();
    let mut last = authority.pair(2090);
    for change in 1..=CHANGES {
        last = authority.pair(2090);
        swap(directory.path(), change, &last, &authority.pem);
        rig.set_policy(&format!(
            "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {{podsPerBase: {change}}}\n"
        ));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut good = 0;
    for caller in callers {
        good += caller.await.expect("no panic");
    }
    assert_eq!(good, CALLERS * CONNECTIONS * REQUESTS);
    rotated(&server, &started).await;
    assert!(!last.certificate.is_empty());
}
