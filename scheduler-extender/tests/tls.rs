//! mTLS, rotation, and reloads while requests run, over real connections.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use policy::Policy;
use prometheus_client::registry::Registry;
use rig::tls::{Authority, Caller, Pair, swap};
use rig::{Rig, module_pod, state, vnode, vnode_with};
use scheduler_extender::explain::{self, ClientTlsFlags, ExplainArgs};
use scheduler_extender::http::{Extender, router};
use scheduler_extender::metrics::Metrics;
use serde_json::json;
use service::policy_file::{PolicyFile, PolicyFlags, Versioned, lines};
use service::tls::{ClientCertificates, ReloadedTls, TlsFiles};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A short clock: inotify may be used up on the machine that runs the test.
const POLL: Duration = Duration::from_millis(100);

type InForce = Versioned<Policy>;

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
        client_certificates: ClientCertificates::Required,
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

/// Case 17, BL-123: only clients of our authority are heard.
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

/// `stowage-extender explain` shows its certificate to an extender that wants one, and says what is wrong otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_is_fetched_with_a_client_certificate() {
    let directory = tempfile::tempdir().expect("directory");
    let (ours, theirs) = (Authority::new(), Authority::new());
    swap(directory.path(), 0, &ours.pair(2090), &ours.pem);
    let server = serve(directory.path(), &Rig::new(state(&[vnode("v0")], &[module_pod("p", "shop", "1")])));
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let (client, stranger) = (ours.pair(2090), theirs.pair(2090));
    let (cert, key) = (file("client.crt", &client.certificate), file("client.key", &client.key));
    let files = |ca: &Path, pair: Option<(&Path, &Path)>| ClientTlsFlags {
        server_ca: Some(ca.to_owned()),
        server_name: None,
        client_cert: pair.map(|(cert, _)| cert.to_owned()),
        client_key: pair.map(|(_, key)| key.to_owned()),
    };
    let asked = async |host: &str, tls: ClientTlsFlags| {
        let server = format!("https://{host}:{}", server.address.port()).parse().expect("an address");
        let args = ExplainArgs { pod: ("biz".to_owned(), "p".to_owned()), server, tls, json: false };
        let mut said = Vec::new();
        match explain::run(args, &mut said).await {
            Ok(()) => Ok(String::from_utf8(said).expect("text")),
            Err(error) => Err(error.to_string()),
        }
    };
    let ca = file("server-ca.crt", &ours.pem);
    let text = asked("localhost", files(&ca, Some((&cert, &key)))).await.expect("an explanation");
    assert!(text.contains("1 of 1 virtual nodes fit"), "{text}");
    // The certificate is for `localhost`; who asks under another name says so.
    assert!(asked("127.0.0.1", files(&ca, Some((&cert, &key)))).await.is_err());
    let named = ClientTlsFlags {
        server_name: Some("localhost".try_into().expect("a name")),
        ..files(&ca, Some((&cert, &key)))
    };
    assert!(asked("127.0.0.1", named).await.is_ok());

    let (their_ca, none) = (file("their-ca.crt", &theirs.pem), file("none.crt", "nothing"));
    let (their_cert, their_key) =
        (file("their.crt", &stranger.certificate), file("their.key", &stranger.key));
    for (what, tls, says) in [
        ("no authority", ClientTlsFlags::default(), "needs --server-ca"),
        ("another authority", files(&their_ca, Some((&cert, &key))), "no stowage-extender answers"),
        ("no certificate", files(&ca, None), "no stowage-extender answers"),
        ("a stranger", files(&ca, Some((&their_cert, &their_key))), "no stowage-extender answers"),
        ("a foreign key", files(&ca, Some((&cert, &their_key))), "cannot use"),
        ("an empty file", files(&none, None), "holds no PEM certificate"),
        ("no key", files(&ca, Some((&cert, &none))), "as PEM private key"),
        ("no file", files(&directory.path().join("missing"), None), "cannot read"),
    ] {
        let error = asked("localhost", tls).await.expect_err(what);
        assert!(error.contains(says), "{what}: {error}");
    }
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

/// Each admits v0 by itself; the limits of one with the defaults of the other refuse it.
const POLICIES: [[&str; 2]; 2] = [
    ["limits: [{modulesPerBase: 8}]", "defaults: {modulesPerBase: 0, versionsPerModule: 2}"],
    ["limits: [{versionsPerModule: 2}]", "defaults: {versionsPerModule: 1, modulesPerBase: 8}"],
];

fn policy_text([limits, defaults]: [&str; 2]) -> String {
    format!("apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n{limits}\n{defaults}\n")
}

/// The extender of a rig, with the policy from a file that is followed.
fn follow_policy(rig: &mut Rig, file: &Path, shutdown: CancellationToken) -> watch::Receiver<Arc<InForce>> {
    let reader = |text: &str| {
        let loaded = policy::file::load(text).map_err(|problems| lines(&problems))?;
        Ok((loaded.policy, lines(&loaded.warnings)))
    };
    let flags = PolicyFlags { policy_file: Some(file.to_owned()) };
    let registry = &mut Registry::default();
    let followed = PolicyFile::open(flags, Policy::default, reader, Timestamp::now, registry);
    let followed = followed.unwrap_or_else(|error| panic!("{error}"));
    let current = followed.current();
    let extender = Extender::new(rig.view.clone(), current.clone(), Metrics::register(registry), rig::LIMITS);
    rig.router = router(Arc::new(extender));
    tokio::spawn(followed.follow(POLL, shutdown));
    current
}

/// Requests on connections that come and go, while certificates and the policy file change 100 times: none fails, and
/// none sees a mixture of two policies.
#[tokio::test(flavor = "multi_thread")]
async fn reloads_under_fire_fail_no_request() {
    const CALLERS: usize = 8;
    const REQUESTS: usize = 50;
    const CHANGES: u64 = 100;
    const LEAST: usize = 10_000;
    let directory = tempfile::tempdir().expect("directory");
    let authority = Authority::new();
    swap(directory.path(), 0, &authority.pair(2090), &authority.pem);
    // It holds an older version, so both limits matter.
    let older = json!({"v": 1, "multiVersion": true, "modules": [{"name": "shop", "version": "0", "state": "ACTIVATED"}]});
    let mut rig = Rig::new(state(&[vnode_with("v0", &older)], &[]));
    let [[limits, defaults], [other_limits, other_defaults]] = POLICIES;
    for (parts, admits) in [
        ([limits, defaults], true),
        ([other_limits, other_defaults], true),
        ([limits, other_defaults], false),
        ([other_limits, defaults], false),
    ] {
        rig.set_policy(&policy_text(parts));
        let answer = rig.filter(&module_pod("p", "shop", "1"), &["v0"]).await;
        assert_eq!(answer["NodeNames"] == json!(["v0"]), admits, "{parts:?}: {answer}");
    }

    let policies = tempfile::tempdir().expect("directory");
    let (file, new) = (policies.path().join("policy.yaml"), policies.path().join("new"));
    std::fs::write(&file, policy_text(POLICIES[0])).expect("write");
    let ends = CancellationToken::new();
    let mut current = follow_policy(&mut rig, &file, ends.clone());
    let _ends = ends.drop_guard();
    let server = serve(directory.path(), &rig);
    let caller = Caller::new(server.address, &authority.pem, Some(&authority.pair(2090)));
    let done = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (caller, done, answered) = (caller.clone(), Arc::clone(&done), Arc::clone(&answered));
            tokio::task::spawn_blocking(move || {
                let mut connections = 0;
                while !done.load(Ordering::SeqCst) {
                    let mut connection = caller.connect().expect("connect");
                    for _ in 0..REQUESTS {
                        let answer = connection.filter(&question()).expect("answer");
                        assert!(accepted(&answer), "{answer:?}");
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                    connections += 1;
                }
                connections
            })
        })
        .collect();
    for change in 1..=CHANGES {
        let version = usize::try_from(change).expect("small");
        let before = server.config.get_inner();
        swap(directory.path(), version, &authority.pair(2090), &authority.pem);
        std::fs::write(&new, policy_text(POLICIES[version % 2])).expect("write");
        std::fs::rename(&new, &file).expect("rename");
        let taken = current.wait_for(|in_force| in_force.generation == change + 1);
        tokio::time::timeout(Duration::from_mins(1), taken).await.expect("in time").expect("followed");
        rotated(&server, &before).await;
    }
    let enough = async {
        while answered.load(Ordering::SeqCst) < LEAST {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(5), enough).await.expect("as many requests as promised");
    done.store(true, Ordering::SeqCst);
    for caller in callers {
        assert!(caller.await.expect("every request is answered well") > 0);
    }
}
