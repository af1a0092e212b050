//! A proxy in front of an API server, which fails on demand: for one client alone, and without touching the server.
//!
//! Its client gets a kubeconfig that names the proxy, over plain HTTP and without credentials; the proxy asks the API
//! server with those of the kubeconfig that it was started with. So the client has exactly the rights of that account.
//!
//! ```no_run
//! # async fn example(account: &std::path::Path) -> harness::TestResult {
//! use std::time::Duration;
//! use harness::proxy::{ApiFault, ApiProxy, Calls};
//! let proxy = ApiProxy::start(account).await?;
//! // stowage-agent --module-kubeconfig=<proxy.kubeconfig()>
//! let slow = proxy.faults().always(Calls::list("pods"), ApiFault::Delay(Duration::from_secs(20)));
//! proxy.faults().remove(slow);
//! # Ok(()) }
//! ```

mod faults;
mod times;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use futures::{StreamExt, TryStreamExt, stream};
use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{
        ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST, RETRY_AFTER,
        TRANSFER_ENCODING,
    },
};
use jiff::SignedDuration;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::StreamReader,
};

pub use faults::{ApiFault, ApiFaults, Calls, FaultId};
use faults::{Fate, is_watch};

use crate::workdir::Workdir;

/// Largest body of a request: objects are smaller.
const LONGEST_BODY: usize = 4 << 20;
/// Largest answer that is held to be rewritten.
const LONGEST_LIST: usize = 64 << 20;

/// Why the proxy does not run.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// No address, or no file.
    #[error("the proxy could not be set up: {0}")]
    File(#[from] io::Error),
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig of the proxy: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// No client could be made.
    #[error("the client of the proxy: {0}")]
    Client(Box<kube::Error>),
}

/// A running proxy; dropping it closes all its connections.
#[derive(Debug)]
pub struct ApiProxy {
    kubeconfig: PathBuf,
    faults: ApiFaults,
    _serving: JoinSet<()>,
    _workdir: Workdir,
}

#[derive(Clone)]
struct Passage {
    client: Client,
    faults: ApiFaults,
}

impl ApiProxy {
    /// Starts one that uses the credentials of `kubeconfig`.
    pub async fn start(kubeconfig: &Path) -> Result<Self, ProxyError> {
        let account = Kubeconfig::read_from(kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(account, &KubeConfigOptions::default()).await?;
        // Watches last; the client on the other side has limits of its own.
        config.read_timeout = None;
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|error| ProxyError::Client(Box::new(error)))?;
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let server = format!("http://{}", listener.local_addr()?);
        let workdir = Workdir::new("api-proxy")?;
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": server}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody", "namespace": namespace}}],
        });
        let kubeconfig = workdir.write("proxy.kubeconfig", &text.to_string())?;
        let faults = ApiFaults::default();
        let passage = Passage { client, faults: faults.clone() };
        let router = Router::new().fallback(pass).with_state(passage);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the proxy ended");
            }
        });
        Ok(Self { kubeconfig, faults, _serving: serving, _workdir: workdir })
    }

    /// For the client of the proxy.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What goes wrong, and what was asked.
    pub fn faults(&self) -> &ApiFaults {
        &self.faults
    }
}

async fn pass(State(passage): State<Passage>, request: Request) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let mut ending = None;
    for fault in passage.faults.take(&method, &uri) {
        match fault {
            ApiFault::Delay(time) => tokio::time::sleep(time).await,
            ApiFault::Hang => std::future::pending().await,
            ApiFault::Reset => return broken(),
            ApiFault::Status { code, retry_after } => return refusal(code, retry_after),
            ApiFault::Expired(after) => ending = Some(after),
            ApiFault::Lose(_) | ApiFault::Double | ApiFault::Mute | ApiFault::Hold | ApiFault::Skew(_) => {}
        }
    }
    let answer = forward(&passage, request).await;
    match answer {
        Ok(answer) if is_watch(&uri) && answer.status().is_success() => {
            let answer = watched(answer, passage.faults, method, uri);
            match ending {
                Some(after) => expiring(answer, after),
                None => answer,
            }
        }
        Ok(answer) => plain(answer, passage.faults.skew()).await,
        Err(error) => {
            tracing::debug!(%method, %uri, %error, "the API server does not answer the proxy");
            broken()
        }
    }
}

async fn forward(
    passage: &Passage,
    request: Request,
) -> Result<Response, Box<dyn std::error::Error + Send + Sync>> {
    let (mut parts, body) = request.into_parts();
    let mut body = axum::body::to_bytes(body, LONGEST_BODY).await?.to_vec();
    let skew = passage.faults.skew();
    if !skew.is_zero()
        && let Some(earlier) = times::moved(&body, -skew)
    {
        body = earlier;
    }
    for header in [AUTHORIZATION, HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, ACCEPT_ENCODING] {
        parts.headers.remove(header);
    }
    let answer = passage.client.send(Request::from_parts(parts, kube::client::Body::from(body))).await?;
    let (mut parts, body) = answer.into_parts();
    for header in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        parts.headers.remove(header);
    }
    parts.version = http::Version::HTTP_11;
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// The answer to anything but a watch, seen by a clock that is off.
async fn plain(answer: Response, skew: SignedDuration) -> Response {
    if skew.is_zero() {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    let Ok(body) = axum::body::to_bytes(body, LONGEST_LIST).await else { return broken() };
    skew_date(&mut parts.headers, skew);
    let body = times::moved(&body, skew).map_or(body, Bytes::from);
    Response::from_parts(parts, Body::from(body))
}

fn skew_date(headers: &mut HeaderMap, skew: SignedDuration) {
    if let Some(date) = headers.get(DATE).and_then(|date| times::date(date, skew)) {
        headers.insert(DATE, date);
    }
}

/// A watch whose events are lost, doubled, held back or moved in time as the faults of each moment say.
fn watched(answer: Response, faults: ApiFaults, method: Method, uri: Uri) -> Response {
    let (mut parts, body) = answer.into_parts();
    skew_date(&mut parts.headers, faults.skew());
    let bytes = TryStreamExt::map_err(body.into_data_stream(), io::Error::other);
    let lines = FramedRead::new(StreamReader::new(bytes), LinesCodec::new());
    let events = lines.then(move |line| {
        let (faults, method, uri) = (faults.clone(), method.clone(), uri.clone());
        async move {
            faults.released(&method, &uri).await;
            let fate = line.as_ref().map_or(Fate::Delivered(1), |line| faults.fate(&method, &uri, line));
            let skew = faults.skew();
            match fate {
                Fate::Delivered(times) => line.map_err(io::Error::other).map(|line| seen(line, times, skew)),
                Fate::Mute => std::future::pending().await,
            }
        }
    });
    Response::from_parts(parts, Body::from_stream(events))
}

fn seen(line: String, times: usize, skew: SignedDuration) -> Bytes {
    let line = if skew.is_zero() {
        line
    } else {
        times::moved(line.as_bytes(), skew).and_then(|moved| String::from_utf8(moved).ok()).unwrap_or(line)
    };
    Bytes::from(format!("{line}\n").repeat(times))
}

/// An answer that breaks off.
fn broken() -> Response {
    let body = stream::iter([Err::<Bytes, _>(io::Error::from(io::ErrorKind::ConnectionReset))]);
    Response::new(Body::from_stream(body))
}

fn refusal(code: u16, retry_after: Option<Duration>) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "refused by the proxy", "code": code,
        "reason": match code { 409 => "Conflict", 410 => "Expired", 422 => "Invalid", 429 => "TooManyRequests", _ => "InternalError" },
    });
    let mut answer = Response::new(Body::from(status.to_string()));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    if let Some(time) = retry_after {
        answer.headers_mut().insert(RETRY_AFTER, http::HeaderValue::from(time.as_secs()));
    }
    answer
}

/// A watch that ends with the event `ERROR` and code 410, as when etcd was compacted.
fn expiring(answer: Response, after: Duration) -> Response {
    let (parts, body) = answer.into_parts();
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": "too old resource version", "reason": "Expired", "code": 410});
    let last = format!("{}\n", json!({"type": "ERROR", "object": status}));
    let events = TryStreamExt::map_err(body.into_data_stream(), io::Error::other);
    let events = events.take_until(tokio::time::sleep(after));
    let events = events.chain(stream::iter([Ok(Bytes::from(last))]));
    Response::from_parts(parts, Body::from_stream(events))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_expires_after_its_events() {
        let body = Body::from_stream(
            stream::iter([Ok::<_, io::Error>(Bytes::from("{}\n"))]).chain(stream::pending()),
        );
        let answer = expiring(Response::new(body), Duration::from_secs(5));
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        let lines: Vec<_> = std::str::from_utf8(&text).unwrap().lines().collect();
        assert_eq!(lines[0], "{}");
        assert!(lines[1].contains("\"ERROR\"") && lines[1].contains("410"), "{}", lines[1]);
    }
}
