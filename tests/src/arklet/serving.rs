//! What modules serve over HTTP on the base's address: several modules share a port, told apart by context path.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::faults::Faults;

/// What one module serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Site {
    pub identity: String,
    pub port: u16,
    /// `/shop`, or `/` for everything.
    pub prefix: String,
    /// Status of its answers.
    pub status: u16,
    /// Until then it answers 503.
    pub ready_at: Instant,
}

/// A module cannot serve.
#[derive(Debug, Error)]
pub(super) enum ServeError {
    #[error("Address already in use")]
    Bind(#[source] io::Error),
    #[error("addChild:  Child name '{0}' is not unique")]
    PathTaken(String),
}

/// Requests that modules have answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Answered by an active module with its own status.
    pub served: u64,
    /// Answered with 404 or 503, or cut off because the module went away meanwhile.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Sites {
    by_port: HashMap<u16, Vec<Site>>,
    listeners: HashMap<u16, CancellationToken>,
    traffic: HashMap<String, Traffic>,
}

impl Sites {
    fn find(&self, port: u16, path: &str) -> Option<&Site> {
        let sites = self.by_port.get(&port)?.iter();
        sites.filter(|site| covers(&site.prefix, path)).max_by_key(|site| site.prefix.len())
    }
}

fn covers(prefix: &str, path: &str) -> bool {
    let rest = path.strip_prefix(prefix.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A context path as it stands in a request.
pub(super) fn prefix_of(context_path: &str) -> String {
    format!("/{}", context_path.trim_matches('/'))
}

/// The sites of one base.
#[derive(Debug, Clone)]
pub(super) struct Serving {
    address: IpAddr,
    faults: Faults,
    sites: Arc<Mutex<Sites>>,
    life: CancellationToken,
    tasks: TaskTracker,
}

impl Serving {
    pub(super) fn new(address: IpAddr, faults: Faults, life: CancellationToken, tasks: TaskTracker) -> Self {
        Self { address, faults, sites: Arc::default(), life, tasks }
    }

    fn sites(&self) -> MutexGuard<'_, Sites> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a site up, and opens its port if it is the first there.
    pub(super) async fn open(&self, site: Site) -> Result<(), ServeError> {
        let port = site.port;
        let is_new = !self.sites().listeners.contains_key(&port);
        let listener = if is_new {
            let bound = TcpListener::bind(SocketAddr::new(self.address, port)).await;
            Some(bound.map_err(ServeError::Bind)?)
        } else {
            None
        };
        let mut sites = self.sites();
        let there = sites.by_port.entry(port).or_default();
        if there.iter().any(|other| other.prefix == site.prefix) {
            return Err(ServeError::PathTaken(site.prefix));
        }
        there.push(site);
        if let Some(listener) = listener {
            let stop = self.life.child_token();
            sites.listeners.insert(port, stop.clone());
            self.tasks.spawn(self.clone().accept(listener, port, stop));
        }
        Ok(())
    }

    /// Takes a module's sites down, and closes ports that nobody uses any more.
    pub(super) fn close(&self, identity: &str) {
        let mut sites = self.sites();
        for there in sites.by_port.values_mut() {
            there.retain(|site| site.identity != identity);
        }
        let idle: Vec<u16> =
            sites.by_port.iter().filter(|(_, there)| there.is_empty()).map(|(port, _)| *port).collect();
        for port in idle {
            sites.by_port.remove(&port);
            if let Some(stop) = sites.listeners.remove(&port) {
                stop.cancel();
            }
        }
    }

    pub(super) fn traffic(&self, identity: &str) -> Traffic {
        self.sites().traffic.get(identity).copied().unwrap_or_default()
    }

    async fn accept(self, listener: TcpListener, port: u16, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { continue };
            let serving = self.clone();
            let stop = stop.clone();
            self.tasks.spawn(async move {
                let service = service_fn(move |request| {
                    let serving = serving.clone();
                    async move { serving.answer(port, request).await }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    () = stop.cancelled() => {}
                    // A client that goes away mid-request is its own affair.
                    _ = connection => {}
                }
            });
        }
    }

    async fn answer(
        &self,
        port: u16,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let site = self.sites().find(port, request.uri().path()).cloned();
        let Some(site) = site else { return Ok(page(404, "no such context")) };
        if let Some(wait) = asked_delay(&request) {
            tokio::time::sleep(wait).await;
        }
        let still_there = self.sites().find(port, request.uri().path()).is_some_and(|now| *now == site);
        let is_ready = still_there && Instant::now() >= site.ready_at;
        let mut sites = self.sites();
        let traffic = sites.traffic.entry(site.identity.clone()).or_default();
        if is_ready {
            traffic.served += 1;
            let module = site.identity.split(':').next().unwrap_or_default();
            Ok(page(self.faults.served_status(module).unwrap_or(site.status), &site.identity))
        } else {
            traffic.failed += 1;
            Ok(page(503, "not available"))
        }
    }
}

/// `?delay-millis=N` keeps a request open, for tests of draining.
fn asked_delay(request: &Request<Incoming>) -> Option<Duration> {
    let query = request.uri().query()?;
    let (_, value) = url::form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "delay-millis")?;
    value.parse().ok().map(Duration::from_millis)
}

fn page(status: u16, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    if let Ok(status) = status.try_into() {
        *response.status_mut() = status;
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_covers_whole_segments() {
        assert!(covers("/shop", "/shop") && covers("/shop", "/shop/health") && covers("/", "/anything"));
        assert!(!covers("/shop", "/shopping") && !covers("/shop", "/"));
        assert_eq!(
            (prefix_of("shop"), prefix_of("/"), prefix_of("/a/b/")),
            ("/shop".into(), "/".into(), "/a/b".into())
        );
    }
}
