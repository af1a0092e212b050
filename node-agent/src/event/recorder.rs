//! The task that writes Events, and the handle that feeds it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::events::v1::{Event as ApiEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use policy::contract::names;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::series::{Fate, Series};
use crate::base::{Event, EventKind, EventSink};
use crate::metrics::Metrics;

/// Events that wait; more are dropped and counted.
const WAITING: usize = 1_024;
/// Longest time one write may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// The API server refuses longer notes.
const LONGEST_NOTE: usize = 1_024;
/// Events of objects without a namespace live here, as kubelet's do.
const CLUSTER_NAMESPACE: &str = "default";

/// Takes Events. Clones feed the same task.
#[derive(Debug, Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
}

impl EventSink for Recorder {
    fn emit(&self, event: Event) {
        if self.sender.try_send(event).is_err() {
            self.metrics.events_dropped.inc();
        }
    }
}

/// A handle, and the task behind it, which runs until `shutdown`. Events are labelled with the base cluster; with
/// `observe` they are logged instead.
pub fn recorder(
    client: Client,
    instance: String,
    cluster: String,
    observe: bool,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) -> (Recorder, impl Future<Output = Result<(), std::convert::Infallible>>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let writer = Writer {
        client,
        instance,
        cluster,
        observe,
        metrics: Arc::clone(&metrics),
        series: Series::default(),
    };
    (Recorder { sender, metrics }, writer.run(receiver, shutdown))
}

struct Writer {
    client: Client,
    instance: String,
    cluster: String,
    observe: bool,
    metrics: Arc<Metrics>,
    series: Series,
}

impl Writer {
    async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        shutdown: CancellationToken,
    ) -> Result<(), std::convert::Infallible> {
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = shutdown.cancelled() => None,
            };
            let Some(event) = event else {
                // A sender may be gone before the shutdown; ending then would end the process.
                shutdown.cancelled().await;
                return Ok(());
            };
            self.record(event).await;
        }
    }

    async fn record(&mut self, event: Event) {
        let fate = self.series.judge(&event, Instant::now(), || unique_name(&event));
        let about = event.regarding.name.as_deref().unwrap_or_default();
        match event.kind {
            EventKind::Normal => tracing::debug!(reason = event.reason, about, note = event.note, "event"),
            EventKind::Warning if fate == Fate::Skip => {}
            EventKind::Warning => tracing::warn!(reason = event.reason, about, note = event.note, "event"),
        }
        if self.observe || fate == Fate::Skip {
            return;
        }
        let namespace = event.regarding.namespace.as_deref().filter(|name| !name.is_empty());
        let namespace = namespace.unwrap_or(CLUSTER_NAMESPACE).to_owned();
        let api: Api<ApiEvent> = Api::namespaced(self.client.clone(), &namespace);
        let written = tokio::time::timeout(CALL_LIMIT, async {
            match fate {
                Fate::Create(name) => {
                    let object =
                        render(event, name, &namespace, (&self.instance, &self.cluster), Timestamp::now());
                    let result = api.create(&PostParams::default(), &object).await;
                    self.metrics.api("events", "create", &result);
                    result.map(|_| ())
                }
                Fate::Count(name, count) => {
                    let series = EventSeries { count, last_observed_time: MicroTime(Timestamp::now()) };
                    let patch = Patch::Merge(serde_json::json!({"series": series}));
                    let result = api.patch(&name, &PatchParams::default(), &patch).await;
                    self.metrics.api("events", "patch", &result);
                    result.map(|_| ())
                }
                Fate::Skip => Ok(()),
            }
        })
        .await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an Event was not written"),
            Err(_) => tracing::debug!("an Event was not written in time"),
        }
    }
}

fn unique_name(event: &Event) -> String {
    let about = event.regarding.name.as_deref().unwrap_or("stowage");
    let about: String = about.chars().take(200).collect();
    format!("{about}.{:016x}", rand::random::<u64>())
}

/// `by`: this process, and the base cluster that it looks after.
fn render(event: Event, name: String, namespace: &str, by: (&str, &str), now: Timestamp) -> ApiEvent {
    let (instance, cluster) = by;
    let Event { regarding, kind, reason, action, note } = event;
    ApiEvent {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            labels: Some(
                [
                    (names::MANAGED_BY.to_owned(), names::MANAGER.to_owned()),
                    (names::BASE_CLUSTER.to_owned(), cluster.to_owned()),
                ]
                .into(),
            ),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        regarding: Some(regarding),
        type_: Some(if kind == EventKind::Warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(reason.to_owned()),
        action: Some(action.to_owned()),
        note: Some(cut(note)),
        reporting_controller: Some(names::AGENT_CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..ApiEvent::default()
    }
}

/// At most [`LONGEST_NOTE`] bytes, cut between characters.
fn cut(mut note: String) -> String {
    if note.len() > LONGEST_NOTE {
        let mut end = LONGEST_NOTE - '…'.len_utf8();
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    #[test]
    fn an_event_has_what_the_api_server_demands() {
        let event = Event {
            regarding: ObjectReference { kind: Some("Node".to_owned()), ..ObjectReference::default() },
            kind: EventKind::Warning,
            reason: "NodeNameTaken",
            action: "Register",
            note: "é".repeat(2_000),
        };
        let object = render(event, "n.1".to_owned(), "default", ("agent-0", "west"), Timestamp::UNIX_EPOCH);
        let labels = object.metadata.labels.expect("labels");
        assert_eq!(labels.get(names::BASE_CLUSTER).map(String::as_str), Some("west"));
        let note = object.note.expect("note");
        assert!(note.len() <= LONGEST_NOTE && note.ends_with('…'));
        assert_eq!(object.type_.as_deref(), Some("Warning"));
        assert_eq!(object.reporting_controller.as_deref(), Some(names::AGENT_CONTROLLER));
        assert_eq!(object.reporting_instance.as_deref(), Some("agent-0"));
        assert!(object.event_time.is_some() && object.action.is_some());
    }
}
