//! The admin server: its own address, so that probes and metrics never queue behind the product's own traffic.
//!
//! `GET /livez` answers while the runtime turns; `GET /readyz` lists the checks that do not hold; `GET /metrics` is
//! OpenMetrics; `GET /diag` is what the program knows, as JSON; `PUT /log-level` changes the log filter. The last two
//! answer callers on the same host only, since whoever reaches the address may ask: `kubectl port-forward` comes from there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Extension, Router};
use clap::Args;
use prometheus_client::registry::Registry;

use crate::logs::LogLevel;
use crate::readiness::Readiness;

/// Where the admin server listens.
#[derive(Debug, Clone, Args)]
pub struct AdminFlags {
    /// Address of the admin server: `/livez`, `/readyz`, `/metrics`, `/diag`, `/log-level`
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8081")]
    pub admin_address: SocketAddr,
}

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const LOG_LEVEL_LIMIT: usize = 4 * 1024;
const ELSEWHERE: &str = "this is answered on the loopback address only, which kubectl port-forward reaches\n";
const DIAG_LIMIT: Duration = Duration::from_secs(5);

type DiagFuture = Pin<Box<dyn Future<Output = serde_json::Value> + Send>>;
type Diag = Box<dyn Fn() -> DiagFuture + Send + Sync>;

/// What the admin server shows. Built at start, then turned into a router.
pub struct Admin {
    readiness: Readiness,
    registry: Registry,
    log_level: LogLevel,
    diag: BTreeMap<&'static str, Diag>,
}

impl Admin {
    /// Shows `registry` under `/metrics` and `readiness` under `/readyz`.
    pub fn new(readiness: Readiness, registry: Registry, log_level: LogLevel) -> Self {
        Self { readiness, registry, log_level, diag: BTreeMap::new() }
    }

    /// Adds a section to `/diag`. The closure is called once per request; it may await answers of other tasks.
    #[must_use]
    pub fn diag<F, Fut>(mut self, section: &'static str, hook: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = serde_json::Value> + Send + 'static,
    {
        self.diag.insert(section, Box::new(move || Box::pin(hook())));
        self
    }

    /// The endpoints.
    pub fn router(self) -> Router {
        let local = Router::new()
            .route("/diag", get(diag))
            .route("/log-level", put(log_level).layer(DefaultBodyLimit::max(LOG_LEVEL_LIMIT)))
            .route_layer(middleware::from_fn(only_from_here));
        Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .merge(local)
            .with_state(Arc::new(self))
    }
}

/// Lets callers on this host pass; in a Pod that is its network namespace.
async fn only_from_here(
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    request: Request,
    next: Next,
) -> Response {
    let here = peer.is_some_and(|Extension(ConnectInfo(peer))| peer.ip().to_canonical().is_loopback());
    if !here {
        return (StatusCode::FORBIDDEN, ELSEWHERE).into_response();
    }
    next.run(request).await
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let missing = admin.readiness.missing();
    if missing.is_empty() {
        return "ready\n".into_response();
    }
    let body = format!("not ready: {}\n", missing.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn diag(State(admin): State<Arc<Admin>>) -> Response {
    let mut sections = serde_json::Map::new();
    for (section, hook) in &admin.diag {
        // A section whose owner hangs must not hide the others: a hanging owner is what /diag is read for.
        let value = match tokio::time::timeout(DIAG_LIMIT, hook()).await {
            Ok(value) => value,
            Err(_) => serde_json::json!({"error": "no answer in time"}),
        };
        sections.insert((*section).to_owned(), value);
    }
    axum::Json(sections).into_response()
}

async fn log_level(State(admin): State<Arc<Admin>>, body: Bytes) -> Response {
    let Ok(text) = std::str::from_utf8(&body) else {
        return (StatusCode::BAD_REQUEST, "the log level is not UTF-8\n").into_response();
    };
    match admin.log_level.set(text) {
        Ok(()) => {
            tracing::info!(level = text.trim(), "log level changed");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt;

    use super::*;

    async fn ask(router: &Router, method: &str, path: &str, body: &str) -> (StatusCode, String) {
        ask_from("127.0.0.1:40000", router, method, path, body).await
    }

    async fn ask_from(
        peer: &str,
        router: &Router,
        method: &str,
        path: &str,
        body: &str,
    ) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path).body(Body::from(body.to_owned()));
        let mut request = request.expect("request");
        request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().expect("address")));
        let answer = router.clone().oneshot(request).await.expect("answer");
        let status = answer.status();
        let bytes = answer.into_body().collect().await.expect("body").to_bytes();
        (status, String::from_utf8(bytes.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn readyz_names_what_is_missing_until_it_holds() {
        let readiness = Readiness::new();
        let (nodes, pods) = (readiness.register("nodes"), readiness.register("pods"));
        let router = Admin::new(readiness, Registry::default(), LogLevel::detached()).router();

        assert_eq!(ask(&router, "GET", "/livez", "").await.0, StatusCode::OK);
        let (status, text) = ask(&router, "GET", "/readyz", "").await;
        assert_eq!((status, text.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "not ready: nodes, pods\n"));
        nodes.set(true);
        assert_eq!(ask(&router, "GET", "/readyz", "").await.1, "not ready: pods\n");
        pods.set(true);
        assert_eq!(ask(&router, "GET", "/readyz", "").await, (StatusCode::OK, "ready\n".to_owned()));
        pods.set(false);
        assert_eq!(ask(&router, "GET", "/readyz", "").await.0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn metrics_are_openmetrics_and_diag_has_its_sections() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        registry.register("calls", "Calls", counter.clone());
        counter.inc();
        let router = Admin::new(Readiness::new(), registry, LogLevel::detached())
            .diag("cache", || async { serde_json::json!({"nodes": 3}) })
            .router();

        let (_, text) = ask(&router, "GET", "/metrics", "").await;
        assert!(text.contains("calls_total 1") && text.ends_with("# EOF\n"), "{text}");
        assert_eq!(ask(&router, "GET", "/diag", "").await.1, r#"{"cache":{"nodes":3}}"#);
    }

    #[tokio::test]
    async fn a_bad_log_level_is_refused() {
        let router = Admin::new(Readiness::new(), Registry::default(), LogLevel::detached()).router();
        assert_eq!(ask(&router, "PUT", "/log-level", "debug\n").await.0, StatusCode::NO_CONTENT);
        let (status, text) = ask(&router, "PUT", "/log-level", "kube=loud").await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("kube=loud"), "{text}");
    }

    /// BL-123: who calls from another machine sees nothing of the inside, and changes nothing.
    #[tokio::test]
    async fn callers_elsewhere_see_probes_and_metrics_only() {
        let router = Admin::new(Readiness::new(), Registry::default(), LogLevel::detached()).router();
        for peer in ["10.244.0.9:40000", "[::ffff:10.244.0.9]:40000", "[2001:db8::1]:40000"] {
            for (method, path) in [("GET", "/diag"), ("PUT", "/log-level")] {
                let (status, text) = ask_from(peer, &router, method, path, "debug").await;
                assert_eq!((status, text.as_str()), (StatusCode::FORBIDDEN, ELSEWHERE), "{peer} {path}");
            }
            for path in ["/livez", "/readyz", "/metrics"] {
                assert_eq!(ask_from(peer, &router, "GET", path, "").await.0, StatusCode::OK, "{peer} {path}");
            }
        }
        for peer in ["127.0.0.1:40000", "[::1]:40000", "[::ffff:127.0.0.1]:40000"] {
            let (status, _) = ask_from(peer, &router, "PUT", "/log-level", "debug").await;
            assert_eq!(status, StatusCode::NO_CONTENT, "{peer}");
        }
        let unknown = Request::builder().uri("/diag").body(Body::empty()).expect("request");
        assert_eq!(router.oneshot(unknown).await.expect("answer").status(), StatusCode::FORBIDDEN);
    }

    /// Over a real connection: the server tells who calls.
    #[tokio::test]
    async fn the_server_knows_its_peers() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let router = Admin::new(Readiness::new(), Registry::default(), LogLevel::detached()).router();
        let listener = crate::serve::bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let address = listener.local_addr().expect("address");
        let shutdown = tokio_util::sync::CancellationToken::new();
        let serving = crate::serve::serve(listener, None, router, shutdown.clone(), Duration::from_secs(5));
        let server = tokio::spawn(serving);
        let mut client = tokio::net::TcpStream::connect(address).await.expect("connect");
        let request = b"GET /diag HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        client.write_all(request).await.expect("write");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("read");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{}"), "{answer}");
        shutdown.cancel();
        server.await.expect("no panic").expect("served");
    }
}
