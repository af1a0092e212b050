//! Constant load on a Service, as clients behind kube-proxy make it, and every request that was lost with its reason.
//!
//! The client watches the Service's EndpointSlices and sends each request, on a connection of its own, to the next
//! `ready: true` endpoint (to `serving: true` ones only where none is ready, as kube-proxy does). What a slice says takes
//! effect [some time](Load::LAG) after the API server has told it: that is how long rules of a real kube-proxy lag behind.
//! Nothing is tried again: a client without retries must not notice anything.

mod report;
mod targets;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{
    net::TcpStream,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::report::{Lost, Report};
use self::targets::Targets;
use crate::wait::TimedOut;

/// Why load could not be put on, or what came of it.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No endpoint of the Service became ready.
    #[error("no load on {service}: no endpoint is ready")]
    NoEndpoint {
        /// The Service.
        service: String,
        /// How long it was waited for.
        source: TimedOut,
    },
    /// Requests were lost that should not have been.
    #[error("requests were lost:\n{0}")]
    Lossy(Box<Report>),
}

/// Load that goes on until it is [stopped](Self::stop) or dropped.
pub struct Load {
    report: Arc<Mutex<Report>>,
    stop: CancellationToken,
    requests: TaskTracker,
    _tasks: JoinSet<()>,
}

impl Load {
    /// Requests in a second.
    pub const RATE: u32 = 200;
    /// How much later than the API server a client knows of a changed EndpointSlice.
    pub const LAG: Duration = Duration::from_millis(300);
    /// Every so many requests one takes [longer](Self::SLOW).
    const SLOW_EVERY: u64 = 10;
    /// How long these ask the module to take, in milliseconds.
    const SLOW: u64 = 250;
    /// A request that was not answered by then is lost.
    const PATIENCE: Duration = Duration::from_secs(15);
    /// How long a first endpoint is waited for.
    const FIRST: Duration = Duration::from_secs(45);

    /// Puts load on a Service's first port, as soon as one of its endpoints is ready.
    pub async fn on(client: Client, namespace: &str, service: &str, path: &str) -> Result<Self, LoadError> {
        Self::lagging(client, namespace, service, path, Self::LAG).await
    }

    /// The same with another lag.
    pub async fn lagging(
        client: Client,
        namespace: &str,
        service: &str,
        path: &str,
        lag: Duration,
    ) -> Result<Self, LoadError> {
        let (told, mut targets) = watch::channel(Targets::default());
        let mut tasks = JoinSet::new();
        let (changes, coming) = mpsc::unbounded_channel();
        let api: Api<EndpointSlice> = Api::namespaced(client, namespace);
        tasks.spawn(follow(api, service.to_owned(), lag, changes));
        tasks.spawn(apply(coming, told));
        let first = timeout(Self::FIRST, targets.wait_for(|targets| targets.pick(0).is_some())).await;
        let is_there = matches!(first, Ok(Ok(_)));
        drop(first);
        if !is_there {
            let what = "ready endpoint".to_owned();
            let source = TimedOut { what, limit: Self::FIRST, last: "none".to_owned() };
            return Err(LoadError::NoEndpoint { service: service.to_owned(), source });
        }
        let load = Self {
            report: Arc::default(),
            stop: CancellationToken::new(),
            requests: TaskTracker::new(),
            _tasks: tasks,
        };
        load.requests.spawn(send(
            targets,
            path.to_owned(),
            Arc::clone(&load.report),
            load.requests.clone(),
            load.stop.clone(),
        ));
        Ok(load)
    }

    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has come of it so far.
    pub fn so_far(&self) -> Report {
        self.report().clone()
    }

    /// Fails when anything was lost so far.
    pub fn lossless(&self) -> Result<(), LoadError> {
        let report = self.so_far();
        if report.lost() == 0 { Ok(()) } else { Err(LoadError::Lossy(Box::new(report))) }
    }

    /// Sends nothing more, and waits for what is on its way.
    pub async fn stop(self) -> Report {
        self.stop.cancel();
        self.requests.close();
        self.requests.wait().await;
        self.so_far()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Tells what the slices of a Service say, and from when on that counts.
async fn follow(
    api: Api<EndpointSlice>,
    service: String,
    lag: Duration,
    changes: mpsc::UnboundedSender<(Instant, Targets)>,
) {
    let config = watcher::Config::default().labels(&format!("kubernetes.io/service-name={service}"));
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let mut slices: BTreeMap<String, EndpointSlice> = BTreeMap::new();
    let mut listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => {
                slices.clear();
                listed = false;
            }
            Ok(watcher::Event::InitApply(slice) | watcher::Event::Apply(slice)) => {
                slices.insert(slice.name_any(), slice);
            }
            Ok(watcher::Event::Delete(slice)) => {
                slices.remove(&slice.name_any());
            }
            Ok(watcher::Event::InitDone) => listed = true,
            Err(error) => tracing::warn!(%error, "the load's watch of EndpointSlices failed"),
        }
        if listed && changes.send((Instant::now() + lag, Targets::of(slices.values()))).is_err() {
            return;
        }
    }
}

/// Lets changes take effect, in their order, when their time has come.
async fn apply(mut changes: mpsc::UnboundedReceiver<(Instant, Targets)>, told: watch::Sender<Targets>) {
    while let Some((due, targets)) = changes.recv().await {
        sleep_until(due).await;
        told.send_replace(targets);
    }
}

/// Sends requests at the rate. A machine that was busy meanwhile makes up for it in a burst.
async fn send(
    targets: watch::Receiver<Targets>,
    path: String,
    report: Arc<Mutex<Report>>,
    requests: TaskTracker,
    stop: CancellationToken,
) {
    let mut ticks = interval(Duration::from_secs(1) / Load::RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0_u64.. {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let target = targets.borrow().pick(number);
        let delay = if number % Load::SLOW_EVERY == 0 { Load::SLOW } else { 0 };
        let uri = format!("{path}?delay-millis={delay}");
        let report = Arc::clone(&report);
        requests.spawn(async move {
            let answer = match target {
                None => Err(Lost::NoEndpoint),
                Some(target) => {
                    let limited = timeout(Load::PATIENCE, request(target, &uri)).await;
                    limited.unwrap_or(Err(Lost::NotAnswered))
                }
            };
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.count(target, answer);
        });
    }
}

/// One request on a connection of its own. A good answer is the module that gave it.
async fn request(target: SocketAddr, uri: &str) -> Result<String, Lost> {
    let stream = TcpStream::connect(target).await.map_err(|error| Lost::NotConnected(error.kind()))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|_| Lost::Broken)?;
    let request = Request::get(uri)
        .header(http::header::HOST, target.to_string())
        .header(http::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|_| Lost::Broken)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|_| Lost::Broken)?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|_| Lost::Broken)?.to_bytes();
        if status.is_success() {
            Ok(String::from_utf8_lossy(&body).trim().to_owned())
        } else {
            Err(Lost::Status(status.as_u16()))
        }
    };
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}
