//! The fleet's own calls to API servers. Each runs beside the fleet, and its answer comes back as an input.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::Instant;

use super::{Fleet, Input};
use crate::lease::node::phase;
use crate::vnode::HostFacts;

/// Longest time one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Real nodes remembered; far more than a cluster has.
const HOSTS: usize = 10_000;
/// How soon a real node is looked up again of which nothing was learnt.
const HOST_AGAIN: Duration = Duration::from_secs(30);
/// How long what was learnt holds, and how soon it is tried again where a person must first give the right to.
const HOST_REFRESH: Duration = Duration::from_mins(10);

/// Real nodes under bases.
#[derive(Debug, Default)]
pub(super) struct Hosts(BTreeMap<String, Host>);

#[derive(Debug, Default)]
struct Host {
    /// `None` before the first answer.
    facts: Option<Arc<HostFacts>>,
    /// When it is looked up again; `None` while it is.
    due: Option<Instant>,
}

impl Hosts {
    /// What is known of a real node; `None` while it is being looked up for the first time.
    pub(super) fn facts(&self, name: Option<&str>) -> Option<Arc<HostFacts>> {
        match name.and_then(|name| self.0.get(name)) {
            Some(host) => host.facts.clone(),
            None => Some(Arc::default()),
        }
    }

    /// Whether it must be looked up now; then it is.
    fn asks(&mut self, name: &str, now: Instant) -> bool {
        if self.0.len() >= HOSTS && !self.0.contains_key(name) {
            self.0.clear();
        }
        match self.0.entry(name.to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(Host::default());
                true
            }
            Entry::Occupied(mut entry) => entry.get_mut().due.take_if(|due| *due <= now).is_some(),
        }
    }

    /// The answer, good until `due`; without facts what was known before holds on. Gives back whether that changes
    /// anything.
    fn answered(&mut self, name: &str, facts: Option<HostFacts>, due: Instant) -> bool {
        let host = self.0.entry(name.to_owned()).or_default();
        host.due = Some(due);
        let facts = match (facts, &host.facts) {
            (None, Some(_)) => return false,
            (facts, _) => facts.unwrap_or_default(),
        };
        if host.facts.as_deref() == Some(&facts) {
            return false;
        }
        host.facts = Some(Arc::new(facts));
        true
    }
}

impl Fleet {
    /// Looks up the real nodes under bases of which too little, or nothing new, is known.
    pub(super) fn look_up_hosts(&mut self) {
        let names: BTreeSet<String> = self.bases.values().filter_map(|spec| spec.host.clone()).collect();
        self.hosts.0.retain(|name, _| names.contains(name));
        for name in names {
            self.want_host(Some(&name));
        }
    }

    /// Looks up a real node, unless what is known of it is good enough.
    pub(super) fn want_host(&mut self, name: Option<&str>) {
        let Some(name) = name else { return };
        if !self.hosts.asks(name, Instant::now()) {
            return;
        }
        let api: Api<Node> = Api::all(self.context.base_client.clone());
        let (own, calls, name) = (self.own.clone(), Arc::clone(&self.calls), name.to_owned());
        let metrics = Arc::clone(&self.context.metrics);
        tokio::spawn(async move {
            let Ok(_permit) = calls.acquire().await else { return };
            let result = tokio::time::timeout(CALL_LIMIT, api.get_opt(&name)).await;
            let (facts, again) = match result {
                Ok(result) => {
                    metrics.api("nodes", "get", &result);
                    let again = again(&result);
                    let facts = result.inspect_err(
                        |error| tracing::warn!(host = name, %error, "nothing new is known of the real node under a base"),
                    );
                    (facts.ok().flatten().as_ref().map(host_facts), again)
                }
                Err(_) => (None, HOST_AGAIN),
            };
            // Spread, so that hosts of bases that were found together are not all asked about together.
            let due = Instant::now() + again + phase(&name, again / 2);
            let _ = own.send(Input::Host { name, facts, due });
        });
    }

    pub(super) fn on_host(&mut self, name: &str, facts: Option<HostFacts>, due: Instant) {
        if !self.hosts.answered(name, facts, due) {
            return;
        }
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

/// How soon to ask again after this answer.
fn again(result: &Result<Option<Node>, kube::Error>) -> Duration {
    match result {
        Ok(Some(_)) => HOST_REFRESH,
        Err(kube::Error::Api(status)) if status.is_forbidden() => HOST_REFRESH,
        Ok(None) | Err(_) => HOST_AGAIN,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_look_up_is_repeated_and_takes_away_nothing() {
        let now = Instant::now();
        let facts = |zone: &str| Some(HostFacts { zone: Some(zone.to_owned()), ..HostFacts::default() });
        let zone = |hosts: &Hosts| hosts.facts(Some("h")).map(|facts| facts.zone.clone());
        let mut hosts = Hosts::default();
        assert!(hosts.asks("h", now) && !hosts.asks("h", now), "asked once");
        assert_eq!(zone(&hosts), None, "VNodes wait for the answer");
        assert!(hosts.answered("h", None, now + HOST_AGAIN));
        assert_eq!(zone(&hosts), Some(None), "they do not wait for ever");
        assert!(!hosts.asks("h", now));
        let later = now + HOST_AGAIN;
        assert!(hosts.asks("h", later) && !hosts.asks("h", later));
        assert!(hosts.answered("h", facts("a"), later));
        assert!(hosts.asks("h", later) && !hosts.answered("h", facts("a"), later), "nothing new");
        assert!(hosts.asks("h", later) && !hosts.answered("h", None, later), "a failure says nothing");
        assert_eq!(zone(&hosts), Some(Some("a".to_owned())));
    }

    #[test]
    fn what_a_person_must_allow_is_not_asked_for_all_the_time() {
        let refused = |code: u16, reason: &str| {
            let status = serde_json::json!({"status": "Failure", "code": code, "reason": reason});
            Err(kube::Error::Api(serde_json::from_value(status).expect("status")))
        };
        assert_eq!(again(&Ok(Some(Node::default()))), HOST_REFRESH);
        assert_eq!(again(&refused(403, "Forbidden")), HOST_REFRESH);
        assert_eq!(again(&refused(500, "InternalError")), HOST_AGAIN);
        assert_eq!(again(&Ok(None)), HOST_AGAIN);
    }
}
