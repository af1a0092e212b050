//! Tells people where they look that a policy file was refused: an Event.

use std::convert::Infallible;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use policy::contract::names;
use service::policy_file::Status;
use tokio::sync::watch;

/// The object that Events are about.
#[derive(Debug, Clone, Default, Args)]
pub struct OwnPodFlags {
    /// Our own namespace: where Events are written
    #[arg(long, value_name = "NAME", default_value = "stowage-system", env = "POD_NAMESPACE")]
    pub pod_namespace: String,
    /// Our own Pod, which Events are about; without it they are about the namespace
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// UID of our own Pod; with it `kubectl describe` finds the Events
    #[arg(long, value_name = "UID", env = "POD_UID", requires = "pod_name")]
    pub pod_uid: Option<String>,
}

/// The API server refuses longer notes.
const LONGEST_NOTE: usize = 1_024;
/// Longest time for one write, and the time between two attempts.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Writes an Event for each policy file that is refused, for as long as the process lives.
///
/// # Errors
/// Never; the type fits [`service::tasks::Tasks`].
pub async fn run(
    client: Client,
    own_pod: OwnPodFlags,
    mut status: watch::Receiver<Status>,
) -> Result<(), Infallible> {
    let api: Api<Event> = Api::namespaced(client, &own_pod.pod_namespace);
    loop {
        let refused = status.borrow_and_update().clone();
        if let Some(event) = event(&own_pod, &refused, Timestamp::now()) {
            let (parameters, event) = (PostParams::default(), event);
            // Once more when the API server was away; the log and the metric say it too.
            for _ in 0..2 {
                match tokio::time::timeout(CALL_LIMIT, api.create(&parameters, &event)).await {
                    Ok(Ok(_)) => break,
                    Ok(Err(error)) => tracing::warn!(%error, "no Event about the refused policy"),
                    Err(_) => tracing::warn!("no Event about the refused policy in time"),
                }
                tokio::time::sleep(CALL_LIMIT).await;
            }
        }
        if status.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The Event about a status; `None` where nothing was refused.
fn event(own_pod: &OwnPodFlags, status: &Status, now: Timestamp) -> Option<Event> {
    let OwnPodFlags { pod_namespace: namespace, pod_name, pod_uid } = own_pod;
    let refused = status.refused.as_ref()?;
    let about = pod_name.as_ref().unwrap_or(namespace);
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(if pod_name.is_some() { "Pod" } else { "Namespace" }.to_owned()),
        name: Some(about.clone()),
        namespace: Some(namespace.clone()),
        uid: pod_uid.clone(),
        ..ObjectReference::default()
    };
    let note = format!(
        "policy file refused, generation {} stays in force: {}",
        status.generation,
        refused.problems.join("; ")
    );
    Some(Event {
        metadata: ObjectMeta {
            // No dot at the end: the API server takes what stands here for a name.
            generate_name: Some(format!("{about}-")),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        regarding: Some(regarding),
        type_: Some("Warning".to_owned()),
        reason: Some("PolicyRefused".to_owned()),
        action: Some("ReadPolicy".to_owned()),
        note: Some(cut(note)),
        reporting_controller: Some(names::EXTENDER_CONTROLLER.to_owned()),
        reporting_instance: Some(pod_name.clone().unwrap_or_else(|| "stowage-extender".to_owned())),
        ..Event::default()
    })
}

/// At most [`LONGEST_NOTE`] bytes, cut between characters.
fn cut(mut note: String) -> String {
    if note.len() > LONGEST_NOTE {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE - '…'.len_utf8()));
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use service::policy_file::Refused;

    use super::*;

    fn status(problems: Option<Vec<String>>) -> Status {
        Status {
            generation: 3,
            hash: "h".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            warnings: Vec::new(),
            refused: problems.map(|problems| Refused { hash: String::new(), problems }),
        }
    }

    #[test]
    fn a_refused_file_makes_an_event_that_the_api_server_takes() {
        let own = OwnPodFlags {
            pod_namespace: "stowage-system".to_owned(),
            pod_name: Some("scheduler-0".to_owned()),
            pod_uid: Some("u".to_owned()),
        };
        assert!(event(&own, &status(None), Timestamp::UNIX_EPOCH).is_none());
        let problems = vec!["line 3: no such key".to_owned(), "é".repeat(2_000)];
        let made = event(&own, &status(Some(problems)), Timestamp::UNIX_EPOCH).expect("an Event");
        let note = made.note.expect("note");
        assert!(note.contains("generation 3") && note.contains("line 3: no such key"), "{note}");
        assert!(note.len() <= LONGEST_NOTE && note.ends_with('…'));
        let regarding = made.regarding.expect("regarding");
        assert_eq!((regarding.kind.as_deref(), regarding.uid.as_deref()), (Some("Pod"), Some("u")));
        let nobody = OwnPodFlags { pod_name: None, pod_uid: None, ..own };
        let made = event(&nobody, &status(Some(Vec::new())), Timestamp::UNIX_EPOCH).expect("an Event");
        let regarding = made.regarding.expect("regarding");
        assert_eq!(regarding.kind.as_deref(), Some("Namespace"));
        assert_eq!(regarding.namespace, made.metadata.namespace);
    }
}
