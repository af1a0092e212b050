//! What runs inside a base Pod: the seam between the kubelet and the arklet simulator, or a user's own command.

use std::net::IpAddr;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;

/// Any error of a runtime; the container then crashes and is restarted with back-off.
pub type RuntimeError = Box<dyn std::error::Error + Send + Sync>;

/// One start of a base container.
#[derive(Debug, Clone)]
pub struct Start {
    /// The Pod as last seen, bound to the kubelet's node.
    pub pod: Pod,
    /// The Pod's own address. It stays the same when the container is restarted.
    pub ip: IpAddr,
    /// How often the container was started before in this Pod.
    pub restarts: u32,
}

/// Starts base containers. One runtime serves all Pods of a [`Kubelet`](super::Kubelet).
pub trait Runtime: Send + Sync + 'static {
    /// Starts the container. It is Running, and by default Ready, when this resolves.
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Box<dyn Running>, RuntimeError>>;
}

/// A running base container. Dropping it kills it.
pub trait Running: Send + Sync + 'static {
    /// Where arklet listens, when that is not 1238: the kubelet writes it to the annotation `stowage.dev/arklet-port`.
    fn port(&self) -> Option<u16> {
        None
    }

    /// SIGTERM: end soon. Must not block.
    fn terminate(&self);

    /// SIGKILL: end at once. Must not block.
    fn kill(&self);

    /// Resolves with the exit code when it has ended, for whatever reason (143 after SIGTERM, 137 after SIGKILL).
    /// May be called more than once.
    fn ended(&self) -> BoxFuture<'static, i32>;
}

/// A container that does nothing until it is told to end; it listens nowhere.
#[derive(Debug, Default, Clone, Copy)]
pub struct Idle;

impl Runtime for Idle {
    fn start(&self, _: Start) -> BoxFuture<'_, Result<Box<dyn Running>, RuntimeError>> {
        Box::pin(async { Ok(Box::new(Exit::new()) as Box<dyn Running>) })
    }
}

/// A switch from "runs" to "has ended": what runtimes inside this process need to be [`Running`].
#[derive(Debug)]
pub struct Exit(tokio::sync::watch::Sender<Option<i32>>);

impl Exit {
    /// Runs.
    pub fn new() -> Self {
        Self(tokio::sync::watch::Sender::new(None))
    }

    /// Has ended with this code; later calls change nothing.
    pub fn end(&self, code: i32) {
        self.0.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(code);
            first
        });
    }
}

impl Default for Exit {
    fn default() -> Self {
        Self::new()
    }
}

impl Running for Exit {
    fn terminate(&self) {
        self.end(143);
    }

    fn kill(&self) {
        self.end(137);
    }

    fn ended(&self) -> BoxFuture<'static, i32> {
        let mut ended = self.0.subscribe();
        Box::pin(async move {
            // Dropped without an end: as if killed.
            ended.wait_for(Option::is_some).await.ok().and_then(|code| *code).unwrap_or(137)
        })
    }
}
