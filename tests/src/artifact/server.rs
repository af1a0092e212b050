//! Serves module jars over HTTP, and the troubles that a server of artifacts can have.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::{StreamExt, stream};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::jar::ModuleJar;

/// Pieces in which a slow download comes.
const PIECES: usize = 10;
/// Between the first half of a truncated download and its end.
const FLUSH: Duration = Duration::from_millis(30);

/// The server cannot serve.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address that was asked for.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A module jar cannot be made.
    #[error("cannot pack {file}")]
    Pack {
        /// The jar.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What goes wrong with a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// This status instead of the jar.
    Status(u16),
    /// Half of the jar, then the end of the connection.
    Truncate,
    /// The jar comes in pieces over this time.
    Slow(Duration),
    /// No answer while the trouble lasts.
    Hang,
    /// No answer before another download was refused by the limit.
    Crowd,
    /// A page of text with status 200.
    NotAJar,
}

#[derive(Debug)]
struct Armed {
    /// Path of the file that it concerns; none for all.
    path: Option<String>,
    trouble: Trouble,
    left: Option<usize>,
}

#[derive(Debug, Default)]
struct Stock {
    files: HashMap<String, Bytes>,
    downloads: HashMap<String, usize>,
    authorized: HashMap<String, Vec<Option<String>>>,
    troubles: Vec<Armed>,
    open: usize,
    most_open: usize,
    limit: Option<usize>,
    refused: watch::Sender<usize>,
}

#[derive(Debug, Clone, Default)]
struct Store(Arc<Mutex<Stock>>);

impl Store {
    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self, path: &str) -> Option<Trouble> {
        let mut stock = self.stock();
        let place = stock
            .troubles
            .iter()
            .position(|armed| armed.path.as_deref().is_none_or(|wanted| wanted == path))?;
        let armed = stock.troubles.get_mut(place)?;
        let trouble = armed.trouble;
        if let Some(left) = &mut armed.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                stock.troubles.remove(place);
            }
        }
        Some(trouble)
    }
}

/// Counts one open download while it lives.
struct Open(Store);

impl Open {
    /// None when the limit is reached.
    fn take(store: &Store) -> Option<Self> {
        let mut stock = store.stock();
        if stock.limit.is_some_and(|limit| stock.open >= limit) {
            stock.refused.send_modify(|refused| *refused += 1);
            return None;
        }
        stock.open += 1;
        stock.most_open = stock.most_open.max(stock.open);
        Some(Self(store.clone()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.stock().open -= 1;
    }
}

/// A server of module jars. Dropping it ends it.
#[derive(Debug)]
pub struct ArtifactServer {
    addr: SocketAddr,
    store: Store,
    _life: DropGuard,
}

impl ArtifactServer {
    /// Serves on any free port of the loopback interface.
    ///
    /// # Errors
    /// [`ServerError::Listen`] when there is none.
    pub async fn start() -> Result<Self, ServerError> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    /// Serves on an address.
    ///
    /// # Errors
    /// [`ServerError::Listen`] when it is in use or not of this machine.
    pub async fn start_at(addr: SocketAddr) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let store = Store::default();
        let router = Router::new().route("/{*path}", get(download)).with_state(store.clone());
        let life = CancellationToken::new();
        let stop = life.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                // It only ends when it is dropped.
                _ = async { axum::serve(listener, router).await } => {}
            }
        });
        Ok(Self { addr: bound, store, _life: life.drop_guard() })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A module to be made and served.
    pub fn module(&self, name: &str, version: &str) -> ModuleBuilder<'_> {
        ModuleBuilder {
            server: self,
            jar: ModuleJar::new(name, version),
            file: format!("{name}-{version}.jar"),
        }
    }

    /// The address of a file, served or not.
    pub fn url(&self, file: &str) -> String {
        format!("http://{}/{file}", self.addr)
    }

    /// Serves any content under a name.
    pub fn put(&self, file: &str, content: impl Into<Bytes>) -> String {
        self.store.stock().files.insert(file.to_owned(), content.into());
        self.url(file)
    }

    /// Takes a file away: 404 from now on.
    pub fn remove(&self, file: &str) {
        self.store.stock().files.remove(file);
    }

    /// Requests for a file so far, answered or not.
    pub fn downloads(&self, file: &str) -> usize {
        self.store.stock().downloads.get(file).copied().unwrap_or(0)
    }

    /// The `Authorization` fields of the requests for a file.
    pub fn authorizations(&self, file: &str) -> Vec<Option<String>> {
        self.store.stock().authorized.get(file).cloned().unwrap_or_default()
    }

    /// More downloads than this at once are answered with 503.
    pub fn limit(&self, most: Option<usize>) {
        self.store.stock().limit = most;
    }

    /// Most downloads that were open at once, and how many were refused by the limit.
    pub fn pressure(&self) -> (usize, usize) {
        let stock = self.store.stock();
        (stock.most_open, *stock.refused.borrow())
    }

    /// Trouble with the next `count` requests for a file, or for any.
    pub fn next(&self, count: usize, file: Option<&str>, trouble: Trouble) {
        self.arm(file, trouble, Some(count));
    }

    /// Trouble with a file, or with any, until [`heal`](Self::heal).
    pub fn always(&self, file: Option<&str>, trouble: Trouble) {
        self.arm(file, trouble, None);
    }

    fn arm(&self, file: Option<&str>, trouble: Trouble, left: Option<usize>) {
        if left != Some(0) {
            self.store.stock().troubles.push(Armed { path: file.map(str::to_owned), trouble, left });
        }
    }

    /// Ends every trouble and the limit.
    pub fn heal(&self) {
        let mut stock = self.store.stock();
        stock.troubles.clear();
        stock.limit = None;
    }
}

async fn download(State(store): State<Store>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let content = {
        let mut stock = store.stock();
        *stock.downloads.entry(path.clone()).or_default() += 1;
        let sent =
            headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        stock.authorized.entry(path.clone()).or_default().push(sent);
        stock.files.get(&path).cloned()
    };
    let Some(open) = Open::take(&store) else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let trouble = store.trouble(&path);
    if let Some(Trouble::Status(status)) = trouble {
        return StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR).into_response();
    }
    if trouble == Some(Trouble::Hang) {
        // The client's own timeout, or the end of the server, ends this.
        std::future::pending::<()>().await;
    }
    if trouble == Some(Trouble::Crowd) {
        let mut refused = store.stock().refused.subscribe();
        // The other end lives as long as the server.
        let _ = refused.wait_for(|refused| *refused > 0).await;
    }
    let Some(content) = content else { return StatusCode::NOT_FOUND.into_response() };
    let length = content.len();
    let pieces: Vec<Bytes> =
        content.chunks(length.div_ceil(PIECES).max(1)).map(Bytes::copy_from_slice).collect();
    let body = match trouble {
        Some(Trouble::Truncate) => {
            let half = stream::iter([Ok(content.slice(..length / 2))]);
            // Without a pause the connection would end before anything of it is out.
            let end = stream::once(async {
                tokio::time::sleep(FLUSH).await;
                Err(io::Error::from(io::ErrorKind::ConnectionReset))
            });
            Body::from_stream(half.chain(end))
        }
        Some(Trouble::NotAJar) => return "this is a page of text\n".into_response(),
        trouble => {
            let pause = match trouble {
                Some(Trouble::Slow(time)) => time / u32::try_from(pieces.len()).unwrap_or(1).max(1),
                _ => Duration::ZERO,
            };
            Body::from_stream(stream::iter(pieces).then(move |piece| {
                // The download is open until its last piece is out.
                let _open = &open;
                async move {
                    tokio::time::sleep(pause).await;
                    Ok::<_, io::Error>(piece)
                }
            }))
        }
    };
    ([(header::CONTENT_TYPE, "application/java-archive")], [(header::CONTENT_LENGTH, length)], body)
        .into_response()
}

/// A module on its way to the server: set it up, then take its [`url`](Self::url).
#[derive(Debug)]
#[must_use = "nothing is served before `url`"]
pub struct ModuleBuilder<'a> {
    server: &'a ArtifactServer,
    jar: ModuleJar,
    file: String,
}

impl ModuleBuilder<'_> {
    /// Changes the jar.
    pub fn with(self, change: impl FnOnce(ModuleJar) -> ModuleJar) -> Self {
        Self { jar: change(self.jar), ..self }
    }

    /// Serves it under another file name than `name-version.jar`.
    pub fn named(self, file: &str) -> Self {
        Self { file: file.to_owned(), ..self }
    }

    /// Its main runs this many milliseconds.
    pub fn start_millis(self, millis: u64) -> Self {
        self.with(|jar| jar.starts_in(Duration::from_millis(millis)))
    }

    /// Its main throws: `class: message`.
    pub fn fails(self, throwable: &str) -> Self {
        self.with(|jar| jar.fails(throwable))
    }

    /// It serves HTTP on this port of its base.
    pub fn serves(self, port: u16) -> Self {
        self.with(|jar| jar.serves(port))
    }

    /// Makes the jar, serves it, and gives its address.
    ///
    /// # Errors
    /// [`ServerError::Pack`] when the jar cannot be made.
    pub fn url(self) -> Result<String, ServerError> {
        let packed = self.jar.pack();
        let content = packed.map_err(|source| ServerError::Pack { file: self.file.clone(), source })?;
        Ok(self.server.put(&self.file, content))
    }
}
