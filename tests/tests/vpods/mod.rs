//! What the end-to-end tests of operations, failures and deletions ask of `VPod`s and bases.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use axum::{Router, extract::State, routing::get};
use harness::{
    Failure, TestResult, fetch,
    kubelet::is_ready,
    stage::{Base, POLICY, Stage, describe_pod, pod_condition},
    wait,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateWaiting, ContainerStatus, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

/// For one step of a test on a machine that does other things as well.
pub(crate) const SOON: Duration = Duration::from_secs(45);

/// The policy of the stage with some of its settings changed.
pub(crate) fn policy(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(POLICY.to_owned(), |policy, (from, to)| {
        assert!(policy.contains(from), "the policy has no {from}");
        policy.replace(from, to)
    })
}

pub(crate) fn uid(pod: &Pod) -> String {
    pod.uid().expect("the API server gives UIDs")
}

pub(crate) fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("it is bound")
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The status of a condition, or `-`.
pub(crate) fn status_of<'a>(pod: &'a Pod, condition: &str) -> &'a str {
    pod_condition(pod, condition).map_or("-", |condition| condition.status.as_str())
}

pub(crate) fn containers(pod: &Pod) -> &[ContainerStatus] {
    pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or_default()
}

pub(crate) fn restarts(pod: &Pod) -> Vec<i32> {
    containers(pod).iter().map(|container| container.restart_count).collect()
}

/// Why containers wait.
pub(crate) fn waiting(pod: &Pod) -> Vec<&ContainerStateWaiting> {
    let state = |container| -> Option<&ContainerStateWaiting> {
        let container: &ContainerStatus = container;
        container.state.as_ref()?.waiting.as_ref()
    };
    containers(pod).iter().filter_map(state).collect()
}

pub(crate) fn waits_for(pod: &Pod, reason: &str) -> bool {
    waiting(pod).iter().any(|waiting| waiting.reason.as_deref() == Some(reason))
}

/// Follows one Pod until it is as wanted.
pub(crate) async fn pod_is(
    stage: &Stage,
    name: &str,
    what: &str,
    mut accept: impl FnMut(&Pod) -> bool,
) -> Result<Pod, Failure> {
    let pod = wait::object(&stage.api::<Pod>(), name, what, SOON, |pod| pod.is_some_and(&mut accept)).await?;
    Ok(pod.expect("it was accepted"))
}

pub(crate) async fn pod_ready(stage: &Stage, name: &str) -> Result<Pod, Failure> {
    pod_is(stage, name, "Ready Pod", is_ready).await
}

/// Waits for a container that waits for this reason.
pub(crate) async fn pod_waits(stage: &Stage, name: &str, reason: &str) -> Result<Pod, Failure> {
    pod_is(stage, name, &format!("Pod that waits for {reason}"), |pod| waits_for(pod, reason)).await
}

/// The base behind a Pod's VNode.
pub(crate) fn base_of(stage: &Stage, pod: &Pod) -> Arc<Base> {
    let node = node_of(pod);
    let base = stage.all_bases().into_iter().find(|base| stage.vnode_of(base.pod()) == node);
    base.expect("a base stands behind the VNode")
}

/// Waits until a Pod is Failed, and gives the reason and the message of its condition `installed`.
pub(crate) async fn pod_failed(stage: &Stage, name: &str) -> Result<(String, String), Failure> {
    let pod = pod_is(stage, name, "Failed Pod", |pod| phase(pod) == "Failed").await?;
    let installed = pod_condition(&pod, "module.koupleless.io/installed").expect("a condition");
    assert_eq!(installed.status, "False", "{}", describe_pod(&pod));
    Ok((installed.reason.clone().unwrap_or_default(), installed.message.clone().unwrap_or_default()))
}

/// Waits for an Event about an object that begins so.
pub(crate) async fn event(stage: &Stage, name: &str, beginning: &str) -> Result<String, Failure> {
    let probe = async || {
        let events = stage.events_of(name).await.map_err(|error| error.to_string())?;
        let found = events.iter().find(|event| event.starts_with(beginning));
        found.cloned().ok_or_else(|| format!("{events:?}"))
    };
    Ok(wait::until(&format!("Event {beginning} of {name}"), SOON, probe).await?)
}

/// The address of a jar that is served.
pub(crate) fn jar(stage: &Stage, name: &str, version: &str) -> Result<String, Failure> {
    Ok(stage.artifacts.module(name, version).url()?)
}

/// Operates a base past the agent, as a person with curl.
pub(crate) async fn by_hand(base: &Base, command: &str, body: Value) -> Result<Value, Failure> {
    let url = format!("http://{}/{command}", base.address());
    let (_, text) = fetch::post_json(&url, body.to_string().into(), SOON).await?;
    Ok(serde_json::from_str(&text)?)
}

pub(crate) async fn install_by_hand(base: &Base, name: &str, version: &str, url: &str) -> TestResult {
    let reply =
        by_hand(base, "installBiz", json!({"bizName": name, "bizVersion": version, "bizUrl": url})).await?;
    assert_eq!(reply["code"], "SUCCESS", "{reply}");
    Ok(())
}

pub(crate) async fn uninstall_by_hand(base: &Base, name: &str, version: &str) -> TestResult {
    let reply = by_hand(base, "uninstallBiz", json!({"bizName": name, "bizVersion": version})).await?;
    assert_eq!(reply["code"], "SUCCESS", "{reply}");
    Ok(())
}

/// Waits until a base was asked for its modules so many times more: time, as the agent counts it.
pub(crate) async fn queried(base: &Base, times: usize) -> TestResult {
    let journal = base.journal()?;
    let wanted = journal.count("queryAllBiz") + times;
    journal.until(SOON, |journal| journal.count("queryAllBiz") >= wanted).await?;
    Ok(())
}

/// What was done to a base's modules, in order: `installBiz shop:1.0.0`.
pub(crate) fn deeds(base: &Base) -> Result<Vec<String>, Failure> {
    let operations = base.journal()?.operations();
    let deed = |entry: &harness::arklet::Entry| {
        let (name, version) = (entry.module().unwrap_or("-"), entry.version().unwrap_or("-"));
        format!("{} {name}:{version}", entry.command)
    };
    Ok(operations.iter().map(deed).collect())
}

/// Fails the test unless a text holds none of these words.
pub(crate) fn assert_silent_about(what: &str, text: &impl fmt::Debug, words: &[&str]) {
    let text = format!("{text:?}");
    for word in words {
        assert!(!text.contains(word), "{what} tells {word}: {text}");
    }
}

/// A server that notes when it was asked: a module's own, as its `preStop` hook asks the address of the base.
pub(crate) async fn hook(
    ip: IpAddr,
    tasks: &mut JoinSet<()>,
) -> Result<(u16, watch::Receiver<Option<Timestamp>>), Failure> {
    let (told, asked) = watch::channel(None);
    let told = Arc::new(told);
    let answer = async |State(told): State<Arc<watch::Sender<Option<Timestamp>>>>| {
        told.send_replace(Some(Timestamp::now()));
        "bye\n"
    };
    let router = Router::new().route("/drain", get(answer)).with_state(told);
    let listener = TcpListener::bind((ip, 0)).await?;
    let port = listener.local_addr()?.port();
    tasks.spawn(async move {
        // It ends with its task.
        axum::serve(listener, router).await.ok();
    });
    Ok((port, asked))
}

/// When the base was asked to uninstall a module.
pub(crate) fn uninstalled_at(stage: &Stage, base: &str) -> Result<Timestamp, Failure> {
    let operations = stage.base(base)?.journal()?.operations();
    let entry = operations.iter().find(|entry| entry.command == "uninstallBiz").expect("an uninstall");
    Ok(entry.at)
}
