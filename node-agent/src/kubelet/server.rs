//! The routes of the endpoint, and the server behind them.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query as UrlQuery, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use jiff::Timestamp;
use kube::Api;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use service::file_watch::POLL;
use service::serve::{bind, serve};
use service::tasks::Tasks;
use service::tls::ReloadedTls;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::authentication::{Authentication, Unknown, User};
use super::authorization::{Authorization, Denied};
use super::logs::{self, Follower, Source};
use super::query::Raw;
use super::settings::{KubeletError, Settings};
use crate::journal::{Journal, Run};
use crate::lease::Term;

/// Followers at once: each is a connection and a task.
const FOLLOWERS: usize = 64;
/// How long answers may go on after the end was asked for.
const DRAIN: Duration = Duration::from_secs(1);
/// Rights that open logs: the fine one, and the one for all that a kubelet serves.
const LOGS: [&str; 2] = ["log", "proxy"];
/// For everything else.
const REST: [&str; 1] = ["proxy"];

/// How an answer ended; closed, because statuses are ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: u16,
}

/// All that requests share.
pub(super) struct Shared {
    pub(super) journal: Journal,
    pub(super) authentication: Authentication,
    pub(super) authorization: Authorization,
    pub(super) term: watch::Receiver<Option<Term>>,
    pub(super) shutdown: CancellationToken,
    followers: Arc<Semaphore>,
    answers: Family<CodeLabel, Counter>,
}

impl Shared {
    pub(super) fn new(
        client: &kube::Client,
        tokens: bool,
        journal: Journal,
        term: watch::Receiver<Option<Term>>,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            journal,
            authentication: Authentication::new(tokens.then(|| Api::all(client.clone()))),
            authorization: Authorization::new(Api::all(client.clone())),
            term,
            shutdown,
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
            answers: Family::default(),
        }
    }

    /// Lets a caller pass, or says why not.
    async fn admit(
        &self,
        user: &User,
        request: &Parts,
        subresources: &[&'static str],
        (namespace, pod): (&str, &str),
    ) -> Result<(), Response> {
        // Whoever may not ask about every Node does not learn which VPods there are.
        let node = self.journal.find(namespace, pod).map(|found| found.vpod.node).unwrap_or_default();
        match self.authorization.may(user, &request.method, subresources, &node).await {
            Ok(()) => Ok(()),
            Err(Denied::Forbidden) => {
                let wanted = subresources.join(" or nodes/");
                let text = format!("Forbidden (user={:?}, needs nodes/{wanted})\n", user.name);
                Err((StatusCode::FORBIDDEN, text).into_response())
            }
            Err(Denied::NotAsked) => {
                Err(unavailable("the API server could not be asked for the caller's rights"))
            }
        }
    }
}

fn unavailable(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

/// The endpoint, listening and not yet answering.
pub struct Endpoint {
    listener: TcpListener,
    tls: ReloadedTls,
    tokens: bool,
}

impl Endpoint {
    /// Reads the certificate and takes the port.
    ///
    /// # Errors
    /// When either cannot be had: VNodes must not name a port that nobody serves.
    pub fn open(settings: Settings, registry: &mut Registry) -> Result<Self, KubeletError> {
        let Settings { address, tls, tokens, shown: _ } = settings;
        let tls = ReloadedTls::start(tls, Timestamp::now, registry)?;
        Ok(Self { listener: bind(address)?, tls, tokens })
    }

    /// Serves the journal, to those whom the cluster behind `client` lets read it, while `term` lasts.
    pub fn start(
        self,
        tasks: &mut Tasks,
        client: &kube::Client,
        journal: Journal,
        term: watch::Receiver<Option<Term>>,
        registry: &mut Registry,
    ) {
        let Self { listener, tls, tokens } = self;
        let shared = Shared::new(client, tokens, journal, term, tasks.shutdown());
        registry.sub_registry_with_prefix("stowage_agent").register(
            "kubelet_requests",
            "Answers of the kubelet endpoint, by status",
            shared.answers.clone(),
        );
        let config = tls.config();
        tasks.companion("certificate of the kubelet endpoint", tls.follow(POLL, tasks.shutdown()));
        let serving = serve(listener, Some(config), router(Arc::new(shared)), tasks.shutdown(), DRAIN);
        tasks.companion("kubelet endpoint", serving);
    }
}

/// All routes, each behind authentication.
pub(super) fn router(shared: Arc<Shared>) -> Router {
    let refused = any(refuse);
    Router::new()
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs))
        .route("/exec/{*pod}", refused.clone())
        .route("/run/{*pod}", refused.clone())
        .route("/attach/{*pod}", refused.clone())
        .route("/portForward/{*pod}", refused)
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), identify))
        .with_state(shared)
}

/// Nobody passes without a name.
async fn identify(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let answer = match shared.authentication.user(&parts).await {
        Ok(user) => {
            let mut request = Request::from_parts(parts, body);
            request.extensions_mut().insert(Arc::new(user));
            next.run(request).await
        }
        Err(Unknown::Nobody) => {
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], "Unauthorized\n")
                .into_response()
        }
        Err(Unknown::NotAsked) => unavailable("the API server could not be asked about the token"),
    };
    shared.answers.get_or_create(&CodeLabel { code: answer.status().as_u16() }).inc();
    answer
}

type Caller = axum::Extension<Arc<User>>;

async fn container_logs(
    State(shared): State<Arc<Shared>>,
    axum::Extension(user): Caller,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    UrlQuery(raw): UrlQuery<Raw>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    if let Err(refusal) = shared.admit(&user, &parts, &LOGS, (&namespace, &pod)).await {
        return refusal;
    }
    let query = match raw.read(Timestamp::now()) {
        Ok(query) => query,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    if shared.term.borrow().is_none() {
        return unavailable("this agent does not act: the journal is with the one that does");
    }
    let Some(found) = shared.journal.find(&namespace, &pod) else {
        return missing(&format!("pod {pod:?} is not known in namespace {namespace:?}"));
    };
    if !found.containers.iter().any(|known| **known == *container) {
        return missing(&format!("container {container:?} not found in pod {pod:?}"));
    }
    let uid = found.vpod.uid;
    // Before the first reading, so that nothing is missed in between.
    let changes = shared.journal.changes(&uid).filter(|_| query.follow && !query.previous);
    let run = if query.previous { Run::Previous } else { Run::Current };
    let Some(reading) = shared.journal.read(&uid, &container, run, 0) else {
        let text = format!("previous run of container {container:?} in pod {pod:?} not found\n");
        return (StatusCode::BAD_REQUEST, text).into_response();
    };
    let follower = match changes {
        None => None,
        Some(changes) => {
            let Ok(place) = Arc::clone(&shared.followers).try_acquire_owned() else {
                let text = "too many follow already\n";
                return (StatusCode::TOO_MANY_REQUESTS, text).into_response();
            };
            let (term, shutdown) = (shared.term.clone(), shared.shutdown.clone());
            Some(Follower { changes, term, shutdown, place })
        }
    };
    let source = Source { journal: shared.journal.clone(), uid, container, query };
    let body = logs::body(source, &reading, follower);
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

fn missing(what: &str) -> Response {
    (StatusCode::NOT_FOUND, format!("{what}\n")).into_response()
}

/// A module is no container: there is nothing to run a command in, and its ports are the base's.
async fn refuse(
    State(shared): State<Arc<Shared>>,
    axum::Extension(user): Caller,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let mut words = parts.uri.path().split('/').skip(2);
    let at = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if let Err(refusal) = shared.admit(&user, &parts, &REST, at).await {
        return refusal;
    }
    let text =
        "a VPod is modules inside a base, not containers: exec, attach and port-forward go to the base Pod\n";
    (StatusCode::NOT_IMPLEMENTED, text).into_response()
}

async fn nothing(
    State(shared): State<Arc<Shared>>,
    axum::Extension(user): Caller,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    if let Err(refusal) = shared.admit(&user, &parts, &REST, ("", "")).await {
        return refusal;
    }
    missing("a VNode serves /containerLogs only")
}
