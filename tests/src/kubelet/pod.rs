//! One base Pod, from its binding to its end: a task with a mailbox, the only writer of its status.

use std::{net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use policy::contract::names;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until},
};

use super::{
    runtime::{Running, Runtime, Start},
    status::{State, View, render},
    termination::terminate,
};

/// First pause before a crashed container is started again; doubles. Real ones wait 10 s to 5 min.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LAST_BACKOFF: Duration = Duration::from_secs(5);
/// Pause between two tries to reach the API server.
const RETRY: Duration = Duration::from_millis(500);

/// What reaches a Pod's task.
pub(super) enum Message {
    /// The watch saw it.
    Changed(Box<Pod>),
    /// The watch saw that it is gone (deleted without grace).
    Gone,
    /// Kill the container and start it again at once; answered when it runs and the API knows.
    Restart(oneshot::Sender<()>),
    /// Kill the container and let it be found dead.
    Crash,
    /// The readiness probe's verdict from now on; answered when the API knows.
    Ready(bool, oneshot::Sender<()>),
}

/// The task of one Pod.
pub(super) struct Worker {
    pub(super) client: Client,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) pod: Pod,
    pub(super) view: View,
    pub(super) running: Option<Box<dyn Running>>,
    written: Option<PodStatus>,
    backoff: Duration,
}

enum Next {
    Message(Option<Message>),
    Ended(i32),
    StartNow,
}

impl Worker {
    pub(super) fn new(
        client: Client,
        runtime: Arc<dyn Runtime>,
        pod: Pod,
        ip: IpAddr,
        host_ip: IpAddr,
        ready: bool,
    ) -> Self {
        let waiting = State::Waiting { reason: "ContainerCreating", message: String::new() };
        let view = View { ip, host_ip, started: now(), state: waiting, ready, restarts: 0, last: None };
        Self { client, runtime, pod, view, running: None, written: None, backoff: FIRST_BACKOFF }
    }

    /// Runs the Pod until its object is gone.
    pub(super) async fn run(mut self, mut mailbox: mpsc::UnboundedReceiver<Message>) {
        let mut start_at = Some(Instant::now());
        if self.pod.metadata.deletion_timestamp.is_some() {
            return self.finish(None).await;
        }
        loop {
            match next(self.running.as_deref(), start_at, &mut mailbox).await {
                Next::Message(None | Some(Message::Gone)) => return,
                Next::Message(Some(Message::Changed(pod))) => {
                    self.pod = *pod;
                    if self.pod.metadata.deletion_timestamp.is_some() {
                        return self.end(&mut mailbox).await;
                    }
                    self.write().await;
                }
                Next::Message(Some(Message::Ready(ready, done))) => {
                    self.view.ready = ready;
                    self.write().await;
                    done.send(()).ok();
                }
                Next::Message(Some(Message::Crash)) => {
                    if let Some(running) = &self.running {
                        running.kill();
                    }
                }
                Next::Message(Some(Message::Restart(done))) => {
                    if let Some(running) = self.running.take() {
                        running.kill();
                        let code = running.ended().await;
                        self.ended(code, "ContainerCreating").await;
                    }
                    self.start().await;
                    start_at = self.retry_at();
                    done.send(()).ok();
                }
                Next::Ended(code) => {
                    self.running = None;
                    if self.is_final(code) {
                        self.view.state = State::Ended { code, at: now() };
                        self.write().await;
                    } else {
                        self.ended(code, "CrashLoopBackOff").await;
                        start_at = self.retry_at();
                    }
                }
                Next::StartNow => {
                    self.start().await;
                    start_at = self.retry_at();
                }
            }
        }
    }

    fn is_final(&self, code: i32) -> bool {
        match self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => true,
            Some("OnFailure") => code == 0,
            _ => false,
        }
    }

    /// When to start again: never while it runs.
    fn retry_at(&mut self) -> Option<Instant> {
        if self.running.is_some() {
            return None;
        }
        let at = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).min(LAST_BACKOFF);
        Some(at)
    }

    async fn ended(&mut self, code: i32, reason: &'static str) {
        self.view.restarts += 1;
        self.view.last = Some((code, now()));
        self.view.state = State::Waiting { reason, message: format!("the base ended with exit code {code}") };
        self.write().await;
    }

    async fn start(&mut self) {
        let start = Start { pod: self.pod.clone(), ip: self.view.ip, restarts: self.view.restarts };
        match self.runtime.start(start).await {
            Ok(running) => {
                if let Some(port) = running.port() {
                    self.annotate(port).await;
                }
                self.running = Some(running);
                self.view.state = State::Running { since: now() };
            }
            Err(error) => {
                tracing::warn!(pod = self.pod.name_any(), %error, "the base did not start");
                self.view.state = State::Waiting { reason: "RunContainerError", message: error.to_string() };
            }
        }
        self.write().await;
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.pod.namespace().unwrap_or_default())
    }

    async fn annotate(&self, port: u16) {
        let patch =
            Patch::Merge(json!({"metadata": {"annotations": {names::ARKLET_PORT: port.to_string()}}}));
        while let Err(error) = self.api().patch(&self.pod.name_any(), &PatchParams::default(), &patch).await {
            self.report(&error, "annotate");
            if is_settled(&error) {
                return;
            }
            sleep(RETRY).await;
        }
    }

    /// Writes the status if it differs from what was written last, and tries until the API server takes it.
    async fn write(&mut self) {
        let status = render(&self.pod, &self.view, now());
        if self.written.as_ref() == Some(&status) {
            return;
        }
        let patch = Patch::Strategic(json!({"metadata": {"uid": self.pod.uid()}, "status": status}));
        loop {
            match self.api().patch_status(&self.pod.name_any(), &PatchParams::default(), &patch).await {
                Ok(pod) => {
                    self.pod = pod;
                    self.written = Some(status);
                    return;
                }
                Err(error) if is_settled(&error) => return self.report(&error, "write the status of"),
                Err(error) => self.report(&error, "write the status of"),
            }
            sleep(RETRY).await;
        }
    }

    fn report(&self, error: &kube::Error, action: &str) {
        tracing::warn!(pod = self.pod.name_any(), %error, "could not {action} the Pod");
    }

    /// Deletion with grace, during which the readiness probe goes on.
    async fn end(mut self, mailbox: &mut mpsc::UnboundedReceiver<Message>) {
        let Some(running) = self.running.take() else {
            return self.finish(None).await;
        };
        let pod = self.pod.clone();
        let mut terminating = std::pin::pin!(terminate(&pod, self.view.ip, running.as_ref()));
        let code = loop {
            tokio::select! {
                code = &mut terminating => break code,
                message = mailbox.recv() => match message {
                    // Deleted by force; dropping the container kills it.
                    None | Some(Message::Gone) => return,
                    Some(Message::Ready(ready, done)) => {
                        self.view.ready = ready;
                        self.write().await;
                        done.send(()).ok();
                    }
                    Some(Message::Changed(pod)) => self.pod = *pod,
                    Some(Message::Crash) => running.kill(),
                    Some(Message::Restart(_)) => {}
                },
            }
        };
        self.finish(Some(code)).await;
    }

    /// The last status, then the object.
    async fn finish(&mut self, code: Option<i32>) {
        if let Some(code) = code {
            self.view.state = State::Ended { code, at: now() };
            self.write().await;
        }
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: self.pod.uid(), resource_version: None }),
            ..DeleteParams::default().grace_period(0)
        };
        while let Err(error) = self.api().delete(&self.pod.name_any(), &params).await {
            self.report(&error, "delete");
            if is_settled(&error) {
                return;
            }
            sleep(RETRY).await;
        }
    }
}

/// Whether trying again is of no use: the Pod is gone, another has its name, or the API server refuses what we say.
fn is_settled(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(answer) if matches!(answer.code, 400..=428 | 430..=499))
}

async fn next(
    running: Option<&dyn Running>,
    start_at: Option<Instant>,
    mailbox: &mut mpsc::UnboundedReceiver<Message>,
) -> Next {
    let ended = async {
        match running {
            Some(running) => running.ended().await,
            None => std::future::pending().await,
        }
    };
    let start = async {
        match start_at {
            Some(at) if running.is_none() => sleep_until(at).await,
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        message = mailbox.recv() => Next::Message(message),
        code = ended => Next::Ended(code),
        () = start => Next::StartNow,
    }
}

/// The API's times have whole seconds; more would be read back changed.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
