//! Waits on Pods and Nodes.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod, PodCondition};
use kube::{Api, ResourceExt, api::ListParams};
use policy::contract::{names, node_name};

use super::{BASES, PATIENCE, Stage, StageError, VNODES, follow};
use crate::kubelet;

/// A condition of a Pod.
pub fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// One line: name, phase, readiness, Node, and why it is not as it should be.
pub fn describe_pod(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("-");
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("no node");
    let ready = if kubelet::is_ready(pod) { "Ready" } else { "not Ready" };
    let leaving = if pod.metadata.deletion_timestamp.is_some() { ", terminating" } else { "" };
    let mut parts = vec![format!("{} {phase}, {ready}{leaving}, on {node}", pod.name_any())];
    let text = |reason: &Option<String>, message: &Option<String>| {
        format!("{} {}", reason.as_deref().unwrap_or_default(), message.as_deref().unwrap_or_default())
    };
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    for condition in conditions.iter().filter(|condition| condition.status != "True") {
        let why = text(&condition.reason, &condition.message);
        parts.push(format!("{}={} {why}", condition.type_, condition.status));
    }
    let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    for container in containers {
        let state = container.state.as_ref();
        if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
            parts.push(format!("{} waits: {}", container.name, text(&waiting.reason, &waiting.message)));
        }
        if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
            parts.push(format!("{} ended: {}", container.name, text(&ended.reason, &ended.message)));
        }
    }
    parts.join("; ")
}

fn describe_pods(pods: &[&Pod]) -> String {
    if pods.is_empty() {
        return "no Pods".to_owned();
    }
    pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n")
}

pub(super) fn node_is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(super) fn describe_node(node: &Node) -> String {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready").map_or_else(
        || "no Ready".to_owned(),
        |ready| {
            let (reason, message) = (ready.reason.as_deref(), ready.message.as_deref());
            format!("Ready={} {} {}", ready.status, reason.unwrap_or_default(), message.unwrap_or_default())
        },
    );
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let taints: Vec<_> = taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    let inventory = node.annotations().get(names::INVENTORY).map_or("", String::as_str);
    format!("{} {ready} [{}] {inventory}", node.name_any(), taints.join(", "))
}

impl Stage {
    /// The name of the `VNode` of a base Pod (of the cluster id `default`).
    pub fn vnode_of(&self, base_pod: &str) -> String {
        node_name(names::DEFAULT_STACK, &self.namespace, base_pod, names::DEFAULT_CLUSTER)
    }

    /// Follows the Pods of a selector in the stage's namespace until `accept` answers `Ok`.
    pub async fn wait_pods<T>(
        &self,
        selector: &str,
        what: &str,
        limit: Duration,
        accept: impl FnMut(&[&Pod]) -> Result<T, String>,
    ) -> Result<T, StageError> {
        Ok(follow::objects(self.api::<Pod>(), selector, what, limit, accept).await?)
    }

    /// Waits until exactly `count` Pods are there, none of them terminating, all Ready.
    pub async fn wait_pods_ready(&self, selector: &str, count: usize) -> Result<Vec<Pod>, StageError> {
        let what = format!("{count} Ready Pods of {selector}");
        self.wait_pods(selector, &what, PATIENCE, |pods| {
            let good = |pod: &&&Pod| pod.metadata.deletion_timestamp.is_none() && kubelet::is_ready(pod);
            if pods.len() == count && pods.iter().filter(good).count() == count {
                return Ok(pods.iter().map(|&pod| pod.clone()).collect());
            }
            Err(describe_pods(pods))
        })
        .await
    }

    /// Waits until no such Pod is left.
    pub async fn wait_no_pods(&self, selector: &str) -> Result<(), StageError> {
        let what = format!("end of all Pods of {selector}");
        self.wait_pods(selector, &what, PATIENCE, |pods| {
            if pods.is_empty() { Ok(()) } else { Err(describe_pods(pods)) }
        })
        .await
    }

    /// Waits until `count` Pods of a selector are Pending because they could not be scheduled, and returns the texts.
    pub async fn wait_unschedulable(&self, selector: &str, count: usize) -> Result<Vec<String>, StageError> {
        let what = format!("{count} unschedulable Pods of {selector}");
        self.wait_pods(selector, &what, PATIENCE, |pods| {
            let texts: Vec<String> = pods
                .iter()
                .filter_map(|pod| pod_condition(pod, "PodScheduled"))
                .filter(|condition| condition.status == "False")
                .map(|condition| condition.message.clone().unwrap_or_default())
                .collect();
            if texts.len() == count { Ok(texts) } else { Err(describe_pods(pods)) }
        })
        .await
    }

    /// Waits until the one Pod of a selector is not scheduled for a reason that contains `text`, and returns all of it.
    /// The first attempt may have met Nodes that were not yet what they are now.
    pub async fn wait_refused(&self, selector: &str, text: &str) -> Result<String, StageError> {
        let what = format!("Pod of {selector} that is refused because {text:?}");
        self.wait_pods(selector, &what, PATIENCE, |pods| {
            let [pod] = pods else { return Err(describe_pods(pods)) };
            pod_condition(pod, "PodScheduled")
                .filter(|condition| condition.status == "False")
                .and_then(|condition| condition.message.clone())
                .filter(|message| message.contains(text))
                .ok_or_else(|| describe_pod(pod))
        })
        .await
    }

    /// Pods of a selector as they are now.
    pub async fn pods(&self, selector: &str) -> Result<Vec<Pod>, StageError> {
        Ok(self.api::<Pod>().list(&ListParams::default().labels(selector)).await?.items)
    }

    /// Waits until exactly `count` base Pods are there, all Ready.
    pub async fn wait_bases_ready(&self, count: usize) -> Result<Vec<Pod>, StageError> {
        let what = format!("{count} Ready base Pods");
        let accept = |pods: &[&Pod]| {
            if pods.len() == count && pods.iter().all(|pod| kubelet::is_ready(pod)) {
                return Ok(pods.iter().map(|&pod| pod.clone()).collect());
            }
            Err(describe_pods(pods))
        };
        Ok(follow::objects(self.base_pods(), BASES, &what, PATIENCE, accept).await?)
    }

    /// Follows the `VNode`s until `accept` answers `Ok`.
    pub async fn wait_vnodes<T>(
        &self,
        what: &str,
        limit: Duration,
        accept: impl FnMut(&[&Node]) -> Result<T, String>,
    ) -> Result<T, StageError> {
        Ok(follow::objects(self.nodes(), VNODES, what, limit, accept).await?)
    }

    /// Waits until exactly `count` `VNode`s are there, all Ready and none leaving.
    pub async fn wait_vnodes_ready(&self, count: usize) -> Result<Vec<Node>, StageError> {
        self.wait_vnodes(&format!("{count} Ready VNodes"), PATIENCE, |nodes| {
            let good = |node: &&&Node| {
                let leaving = node.spec.as_ref().is_some_and(|spec| {
                    spec.taints.iter().flatten().any(|taint| taint.key == names::LEAVING_TAINT)
                });
                node_is_ready(node) && !leaving
            };
            if nodes.len() == count && nodes.iter().filter(good).count() == count {
                return Ok(nodes.iter().map(|&node| node.clone()).collect());
            }
            if nodes.is_empty() {
                return Err("no VNodes".to_owned());
            }
            Err(nodes.iter().map(|node| describe_node(node)).collect::<Vec<_>>().join("\n"))
        })
        .await
    }

    /// Events about an object of the stage's namespace, oldest first, as `Reason: message`.
    pub async fn events_of(&self, name: &str) -> Result<Vec<String>, StageError> {
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let mut events = self.api::<Event>().list(&about).await?.items;
        events.sort_by_key(|event| event.metadata.creation_timestamp.as_ref().map(|time| time.0));
        let text = |event: &Event| {
            format!("{}: {}", event.reason.as_deref().unwrap_or("-"), event.message.as_deref().unwrap_or("-"))
        };
        Ok(events.iter().map(text).collect())
    }

    /// Events about a Node (they lie in the namespace `default`).
    pub async fn events_of_node(&self, name: &str) -> Result<Vec<String>, StageError> {
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events: Api<Event> = Api::namespaced(self.client(), "default");
        let events = events.list(&about).await?.items;
        let text = |event: &Event| {
            format!("{}: {}", event.reason.as_deref().unwrap_or("-"), event.message.as_deref().unwrap_or("-"))
        };
        Ok(events.iter().map(text).collect())
    }
}
