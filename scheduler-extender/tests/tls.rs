//! mTLS, rotation, and reloads while requests run, over real connections.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    registry: Registry,
}

impl Server {
    /// Waits until the certificate that lives until the end of a year is in use. A set is read with its authority last,
    /// so that is in use then too.
    async fn serves(&self, year: i32) {
        let wanted: Timestamp = format!("{year}-12-31T00:00:00Z").parse().expect("time");
        let wanted = format!("tls_certificate_not_after_timestamp_seconds {}.0\n", wanted.as_second());
        let taken = async {
            let mut text = String::new();
            while !text.contains(&wanted) {
                tokio::task::yield_now().await;
                text.clear();
                prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("text");
            }
        };
        tokio::time::timeout(Duration::from_mins(1), taken).await.expect("the new set is taken");
    }
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
    let mut registry = Registry::default();
    let tls = ReloadedTls::start(files, Timestamp::now, &mut registry).unwrap_or_else(|e| panic!("{e}"));
    let listener = service::serve::bind(([127, 0, 0, 1], 0).into()).expect("bind");
    let address = listener.local_addr().expect("address");
    let (config, shutdown) = (tls.config(), CancellationToken::new());
    tokio::spawn(tls.follow(POLL, shutdown.clone()));
    let router = rig.router.clone();
    let served = Some(config.clone());
    tokio::spawn(service::serve::serve(listener, served, router, shutdown.clone(), Duration::from_secs(1)));
    Server { address, shutdown, config, registry }
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

/// Callers on connections that come and go. Each new connection is made as was said last.
struct Callers {
    said: watch::Sender<(u64, Caller)>,
    /// By caller, how its newest connection is made.
    heard: Arc<[AtomicU64]>,
    answered: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Callers {
    const COUNT: usize = 8;
    /// On one connection.
    const REQUESTS: usize = 10;

    fn start(caller: Caller) -> Self {
        let (said, _) = watch::channel((0, caller));
        let heard: Arc<[AtomicU64]> = (0..Self::COUNT).map(|_| AtomicU64::new(0)).collect();
        let (answered, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let tasks = (0..Self::COUNT)
            .map(|number| {
                let (said, heard) = (said.subscribe(), Arc::clone(&heard));
                let (answered, done) = (Arc::clone(&answered), Arc::clone(&done));
                tokio::task::spawn_blocking(move || {
                    while !done.load(Ordering::SeqCst) {
                        let (version, caller) = said.borrow().clone();
                        heard[number].store(version, Ordering::SeqCst);
                        let mut connection = caller.connect().expect("connect");
                        for _ in 0..Self::REQUESTS {
                            let answer = connection.filter(&question()).expect("answer");
                            assert!(accepted(&answer), "{answer:?}");
                            answered.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        Self { said, heard, answered, done, tasks }
    }

    /// Waits until something holds, which fails when a caller has ended.
    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let held = async {
            while !holds(self) {
                assert!(!self.tasks.iter().any(tokio::task::JoinHandle::is_finished), "a request failed");
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(5), held).await.expect("in time");
    }

    /// From now on connections are made like this, and none that was made otherwise shakes hands any more.
    async fn call_as(&self, caller: Caller) {
        self.said.send_modify(|said| *said = (said.0 + 1, caller));
        let version = self.said.borrow().0;
        self.until(|callers| callers.heard.iter().all(|heard| heard.load(Ordering::SeqCst) == version)).await;
    }

    async fn end(self) {
        self.done.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("every request is answered well");
        }
    }
}

/// What is done to the server's files at a change, and to the callers after it.
struct Step {
    /// Who signs the server's certificate.
    server: usize,
    /// Whose clients the server admits.
    admitted: &'static [usize],
    /// Whom callers trust, and who signs their certificate.
    callers: Option<(&'static [usize], usize)>,
}

/// From one authority to another and back, for both sides. Both are trusted while both are in use.
const ROTATION: [Step; 6] = [
    Step { server: 0, admitted: &[0, 1], callers: Some((&[0, 1], 1)) },
    Step { server: 1, admitted: &[1, 0], callers: Some((&[1], 1)) },
    Step { server: 1, admitted: &[1], callers: None },
    Step { server: 1, admitted: &[1, 0], callers: Some((&[1, 0], 0)) },
    Step { server: 0, admitted: &[0, 1], callers: Some((&[0], 0)) },
    Step { server: 0, admitted: &[0], callers: None },
];

/// Requests on connections that come and go, while certificates, their authorities and the policy file change 100 times,
/// each time after another 100 requests: none fails, and none sees a mixture of two policies.
#[tokio::test(flavor = "multi_thread")]
async fn reloads_under_fire_fail_no_request() {
    const CHANGES: u64 = 100;
    const REQUESTS_BETWEEN: u64 = 100;
    const FIRST_YEAR: i32 = 2090;
    let directory = tempfile::tempdir().expect("directory");
    let authorities = [Authority::new(), Authority::new()];
    let bundle =
        |numbers: &[usize]| numbers.iter().map(|number| &*authorities[*number].pem).collect::<String>();
    swap(directory.path(), 0, &authorities[0].pair(FIRST_YEAR), &bundle(&[0]));
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
    let caller = |trusted: &[usize], own: usize| {
        Caller::new(server.address, &bundle(trusted), Some(&authorities[own].pair(FIRST_YEAR)))
    };
    let callers = Callers::start(caller(&[0], 0));
    for (change, step) in (1..=CHANGES).zip(ROTATION.iter().cycle()) {
        let answered = change * REQUESTS_BETWEEN;
        callers.until(|callers| callers.answered.load(Ordering::SeqCst) >= answered).await;
        let version = usize::try_from(change).expect("small");
        let year = FIRST_YEAR + i32::try_from(change).expect("small");
        swap(directory.path(), version, &authorities[step.server].pair(year), &bundle(step.admitted));
        std::fs::write(&new, policy_text(POLICIES[version % 2])).expect("write");
        std::fs::rename(&new, &file).expect("rename");
        let taken = current.wait_for(|in_force| in_force.generation == change + 1);
        tokio::time::timeout(Duration::from_mins(1), taken).await.expect("in time").expect("followed");
        server.serves(year).await;
        match step.callers {
            Some((trusted, own)) => callers.call_as(caller(trusted, own)).await,
            None => assert!(call(&caller(&[0, 1], 1 - step.server)).await.is_err(), "one authority is out"),
        }
    }
    callers.end().await;
}
