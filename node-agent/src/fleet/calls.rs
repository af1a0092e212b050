//! The fleet's own calls to API servers. Each runs beside the fleet, and its answer comes back as an input.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::Instant;

use super::{Fleet, Input};
use crate::vnode::HostFacts;

/// Longest time one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Real nodes remembered; far more than a cluster has.
const HOSTS: usize = 10_000;

/// Real nodes under bases.
#[derive(Debug, Default)]
pub(super) struct Hosts(BTreeMap<String, Option<Arc<HostFacts>>>);

impl Hosts {
    /// What is known of a real node; `None` while it is being looked up.
    pub(super) fn facts(&self, name: Option<&str>) -> Option<Arc<HostFacts>> {
        match name.and_then(|name| self.0.get(name)) {
            Some(facts) => facts.clone(),
            None => Some(Arc::default()),
        }
    }
}

impl Fleet {
    /// Looks up a real node, once.
    pub(super) fn want_host(&mut self, name: Option<&str>) {
        let Some(name) = name else { return };
        if self.hosts.0.contains_key(name) {
            return;
        }
        if self.hosts.0.len() >= HOSTS {
            self.hosts.0.clear();
        }
        self.hosts.0.insert(name.to_owned(), None);
        let api: Api<Node> = Api::all(self.context.base_client.clone());
        let (own, calls, name) = (self.own.clone(), Arc::clone(&self.calls), name.to_owned());
        let metrics = Arc::clone(&self.context.metrics);
        tokio::spawn(async move {
            let Ok(_permit) = calls.acquire().await else { return };
            let result = tokio::time::timeout(CALL_LIMIT, api.get_opt(&name)).await;
            let facts = match result {
                Ok(result) => {
                    metrics.api("nodes", "get", &result);
                    match result {
                        Ok(node) => node.as_ref().map(host_facts),
                        Err(error) => {
                            tracing::warn!(host = name, %error, "nothing is known of the real node under a base");
                            None
                        }
                    }
                }
                Err(_) => None,
            };
            let _ = own.send(Input::Host { name, facts });
        });
    }

    pub(super) fn on_host(&mut self, name: &str, facts: Option<HostFacts>) {
        self.hosts.0.insert(name.to_owned(), Some(Arc::new(facts.unwrap_or_default())));
        let on_it = self.bases.values().filter(|spec| spec.host.as_deref() == Some(name));
        let nodes: Vec<String> = on_it.map(|spec| spec.node.clone()).collect();
        for node in nodes {
            self.show(&node, Vec::new());
        }
    }

    /// Looks up the missing bases that are due.
    pub(super) fn look_up_due(&mut self, now: Instant) {
        for (uid, namespace, pod) in self.losses.due(now) {
            let api: Api<Pod> = Api::namespaced(self.context.base_client.clone(), &namespace);
            let (own, calls) = (self.own.clone(), Arc::clone(&self.calls));
            let metrics = Arc::clone(&self.context.metrics);
            tokio::spawn(async move {
                let Ok(_permit) = calls.acquire().await else { return };
                let pod = match tokio::time::timeout(CALL_LIMIT, api.get_opt(&pod)).await {
                    Ok(result) => {
                        metrics.api("pods", "get", &result);
                        result
                            .inspect_err(
                                |error| tracing::warn!(namespace, pod, %error, "a base was not looked up"),
                            )
                            .ok()
                    }
                    Err(_) => None,
                };
                // A failed call says nothing; the next one is due soon.
                if let Some(pod) = pod {
                    let _ = own.send(Input::Found { uid, pod: pod.map(Box::new) });
                }
            });
        }
    }

    /// Deletes VPods whose base is gone: nothing is left that could be drained.
    pub(super) fn delete_left(&self, node: &str, left: Vec<Arc<Pod>>) {
        let Some(term) = self.term.clone() else { return };
        let (own, calls, node) = (self.own.clone(), Arc::clone(&self.calls), node.to_owned());
        let (client, observe) = (self.context.module_client.clone(), self.context.observe);
        let metrics = Arc::clone(&self.context.metrics);
        let token = term.token().clone();
        term.tracker().clone().spawn(token.run_until_cancelled_owned(async move {
            for pod in left {
                let Ok(_permit) = calls.acquire().await else { return };
                let (Some(name), Some(namespace)) = (&pod.metadata.name, &pod.metadata.namespace) else {
                    continue;
                };
                if observe || !term.holds() {
                    tracing::info!(node, namespace, name, would = "delete a left-over VPod", "observed");
                    continue;
                }
                let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
                let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
                let parameters = DeleteParams {
                    grace_period_seconds: Some(0),
                    preconditions: Some(preconditions),
                    ..DeleteParams::default()
                };
                if let Ok(result) = tokio::time::timeout(CALL_LIMIT, api.delete(name, &parameters)).await {
                    metrics.api("pods", "delete", &result);
                    match result {
                        Ok(_) => tracing::info!(node, namespace, name, "deleted a VPod whose base is gone"),
                        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                        Err(error) => {
                            tracing::warn!(node, namespace, name, %error, "a left-over VPod stays for now");
                        }
                    }
                }
            }
            let _ = own.send(Input::Cleaned { node });
        }));
    }
}

fn host_facts(node: &Node) -> HostFacts {
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.clone()).unwrap_or_default();
    HostFacts {
        zone: label("topology.kubernetes.io/zone"),
        region: label("topology.kubernetes.io/region"),
        os: label("kubernetes.io/os"),
        arch: label("kubernetes.io/arch"),
        allocatable: allocatable
            .into_iter()
            .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage"))
            .map(|(name, quantity)| (name, quantity.0))
            .collect(),
    }
}
