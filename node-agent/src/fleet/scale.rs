//! Deployments that follow their bases: `stowage.dev/scale: bases` keeps the replicas at the number of fitting bases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use policy::contract::{BaseFacts, names};
use serde_json::json;
use tokio::time::Instant;

use super::{Fleet, Input, Workload};
use crate::base::{Event, EventKind, Health};
use crate::lease::Term;
use crate::rules::Rules;
use crate::vnode::SeenNode;

/// A number of bases must stay the same for so long: bases that come and go together are one change.
const SETTLE: Duration = Duration::from_secs(5);
/// How soon a Deployment is looked at again after a call about it.
const AGAIN: Duration = Duration::from_secs(5);
/// The same where it cannot be scaled, for a reason that a person must take away.
const LATER: Duration = Duration::from_mins(1);
/// Longest time one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// What the fleet remembers of a Deployment that follows its bases, by UID.
#[derive(Debug, Default)]
pub(super) struct Scales {
    scalings: BTreeMap<String, Scaling>,
    /// What Nodes are to templates, by name of the Node.
    places: BTreeMap<String, Place>,
    /// The rules that `places` were judged by.
    rules: Option<Arc<Rules>>,
}

/// A Node as it was judged. Rules run anew only when the Node, the Deployment or the policy is another: every second
/// many Deployments are held against many Nodes.
#[derive(Debug)]
struct Place {
    node: Arc<Node>,
    base: Option<BaseFacts>,
    /// By UID of the Deployment.
    judged: BTreeMap<String, Judged>,
}

#[derive(Debug, PartialEq)]
struct Judged {
    version: Option<String>,
    ready: bool,
    fits: bool,
}

impl Place {
    fn new(node: Arc<Node>) -> Self {
        let base = BaseFacts::from_node(&node).ok().flatten();
        Self { node, base, judged: BTreeMap::new() }
    }

    /// Whether the Deployment fits, with the base as ready as given; `judge` says so where it is not known.
    fn fits(
        &mut self,
        deployment: &Workload,
        ready: bool,
        judge: impl FnOnce(&Node, &BaseFacts) -> bool,
    ) -> bool {
        let Some(base) = &mut self.base else { return false };
        if let Some(known) = self.judged.get(&deployment.uid)
            && known.ready == ready
            && known.version == deployment.version
        {
            return known.fits;
        }
        base.ready = ready;
        let fits = judge(&self.node, base);
        self.judged
            .insert(deployment.uid.clone(), Judged { version: deployment.version.clone(), ready, fits });
        fits
    }
}

impl Scales {
    /// Follows the Nodes and the rules.
    fn refresh(&mut self, seen: &BTreeMap<String, SeenNode>, rules: &Arc<Rules>) {
        if !self.rules.as_ref().is_some_and(|known| Arc::ptr_eq(known, rules)) {
            self.rules = Some(Arc::clone(rules));
            self.places.clear();
        }
        self.places
            .retain(|name, place| seen.get(name).is_some_and(|seen| Arc::ptr_eq(&seen.node, &place.node)));
        for (name, seen) in seen {
            if !self.places.contains_key(name) {
                self.places.insert(name.clone(), Place::new(Arc::clone(&seen.node)));
            }
        }
    }

    /// Keeps these Deployments only.
    fn keep(&mut self, following: &[Arc<Workload>]) {
        let before = self.scalings.len();
        self.scalings.retain(|uid, _| following.iter().any(|deployment| deployment.uid == *uid));
        if self.scalings.len() != before {
            for place in self.places.values_mut() {
                place.judged.retain(|uid, _| self.scalings.contains_key(uid));
            }
        }
        if following.is_empty() {
            self.places.clear();
        }
    }
}

#[derive(Debug)]
struct Scaling {
    wanted: i32,
    since: Instant,
    not_before: Instant,
    calling: bool,
    told: Option<&'static str>,
}

/// How a try to scale ended.
#[derive(Debug)]
pub enum Scaled {
    /// It has other replicas now.
    Done {
        /// How many it had: what is known of it may be newer by now.
        from: i32,
        /// How many it has.
        to: i32,
    },
    /// An autoscaler of this name has the say.
    Autoscaled(String),
    /// Something else; it is tried again.
    Failed(String),
}

impl Fleet {
    /// Brings the replicas of Deployments to the number of bases that they fit.
    pub(super) fn look_at_scales(&mut self, now: Instant) {
        let held = self.brake.is_on() || self.module_brake.is_on() || self.rules.is_paused();
        if !self.begun || !self.deployments.is_synced() || held || self.context.observe {
            return;
        }
        let following: Vec<Arc<Workload>> =
            self.deployments.values().filter(|set| set.scale.is_some() && !set.deleting).cloned().collect();
        let mut scales = std::mem::take(&mut self.scales);
        scales.keep(&following);
        if !following.is_empty() {
            scales.refresh(&self.seen, &self.rules);
        }
        for deployment in following {
            self.look_at_scale(&mut scales, &deployment, now);
        }
        self.scales = scales;
    }

    fn look_at_scale(&self, scales: &mut Scales, deployment: &Arc<Workload>, now: Instant) {
        let fitting = self.fitting(&mut scales.places, deployment);
        let fitting = fitting.map(|count| i32::try_from(count).unwrap_or(i32::MAX));
        let scaling = scales.scalings.entry(deployment.uid.clone()).or_insert(Scaling {
            wanted: -1,
            since: now,
            not_before: now,
            calling: false,
            told: None,
        });
        let wanted = match fitting {
            Ok(wanted) => wanted,
            Err(note) => {
                if scaling.told.replace(note) != Some(note) {
                    self.tell_scale(deployment, EventKind::Warning, "ScaleIgnored", note.to_owned());
                }
                return;
            }
        };
        if scaling.wanted != wanted {
            scaling.wanted = wanted;
            scaling.since = now;
        }
        let settled = now.saturating_duration_since(scaling.since) >= SETTLE && now >= scaling.not_before;
        if wanted == deployment.replicas || scaling.calling || !settled {
            return;
        }
        scaling.calling = true;
        self.scale(deployment, wanted);
    }

    /// How many bases a Deployment fits, as far as this agent itself knows them; else why it is not scaled.
    fn fitting(
        &self,
        places: &mut BTreeMap<String, Place>,
        deployment: &Workload,
    ) -> Result<usize, &'static str> {
        if deployment.scale.as_deref() != Some(names::SCALE_BASES) {
            return Err("the annotation stowage.dev/scale must say `bases`");
        }
        let template = deployment.template.as_ref().ok_or(
            "the annotation stowage.dev/scale is of no effect: the Pods of this Deployment are no module Pods",
        )?;
        let fits = |(name, place): &mut (&String, &mut Place)| {
            let ready = self.counts_as_ready(name);
            let judge = |node: &Node, base: &BaseFacts| template.fits(self.rules.lasting(), node, base);
            let leaving = place.base.as_ref().is_none_or(|base| base.leaving || base.cordoned);
            place.fits(deployment, ready, judge)
                // A change of the policy takes no module away that runs.
                || (ready && !leaving && template.may_stand_on(&place.node) && self.runs_on(deployment, name))
        };
        let mut places: Vec<_> = places.iter_mut().collect();
        Ok(places.iter_mut().filter_map(|place| fits(place).then_some(())).count())
    }

    /// A base counts until this agent knows better: after an outage of ours all VNodes may be Unknown for a moment, and
    /// that must not scale anything down.
    fn counts_as_ready(&self, node: &str) -> bool {
        let Some(slot) = self.slots.get(node) else { return true };
        let base = slot.actor.as_ref().and_then(|actor| self.bases.get(&actor.uid));
        match slot.report.as_ref().map(|report| &report.health) {
            Some(Health::Silent { .. }) => !slot.counted,
            Some(Health::Starting) => base.is_none_or(|base| base.started),
            Some(Health::Answering) | None => true,
        }
    }

    fn runs_on(&self, deployment: &Workload, node: &str) -> bool {
        let pods = self.pods_on.get(node).into_iter().flat_map(|pods| pods.values());
        pods.into_iter().any(|pod| super::pods::lives(pod) && is_of(pod, deployment))
    }

    fn scale(&self, deployment: &Arc<Workload>, wanted: i32) {
        let Some(term) = self.term.clone() else { return };
        let (client, own) = (self.context.module_client.clone(), self.own.clone());
        let (calls, deployment) = (Arc::clone(&self.calls), Arc::clone(deployment));
        let metrics = Arc::clone(&self.context.metrics);
        let token = term.token().clone();
        term.tracker().clone().spawn(token.run_until_cancelled_owned(async move {
            let Ok(_permit) = calls.acquire().await else { return };
            let scaled = tokio::time::timeout(CALL_LIMIT, scale(&client, &term, &deployment, wanted)).await;
            let scaled = scaled.unwrap_or_else(|_| Scaled::Failed(format!("no answer in {CALL_LIMIT:?}")));
            metrics.scaled(match scaled {
                Scaled::Done { .. } => "ok",
                Scaled::Autoscaled(_) => "autoscaled",
                Scaled::Failed(_) => "error",
            });
            let _ = own.send(Input::Scaled { uid: deployment.uid.clone(), scaled });
        }));
    }

    pub(super) fn on_scaled(&mut self, uid: &str, scaled: Scaled) {
        let now = Instant::now();
        let Some(scaling) = self.scales.scalings.get_mut(uid) else { return };
        scaling.calling = false;
        scaling.not_before = now + AGAIN;
        let Some(deployment) = self.deployments.get(uid).cloned() else { return };
        let (namespace, name) = (&deployment.namespace, &deployment.name);
        match scaled {
            Scaled::Done { from, to } => {
                scaling.told = None;
                tracing::info!(namespace, name, replicas = to, "a Deployment follows its bases");
                let note = format!("scaled from {from} to {to}, the number of fitting bases");
                self.tell_scale(&deployment, EventKind::Normal, "ScaledToBases", note);
            }
            Scaled::Autoscaled(by) => {
                scaling.not_before = now + LATER;
                if scaling.told.replace("autoscaled") != Some("autoscaled") {
                    let note = format!(
                        "the HorizontalPodAutoscaler {by} scales this Deployment, and stowage.dev/scale would too: neither \
                         would get its way, so the annotation is not acted on; take one of them away"
                    );
                    self.tell_scale(&deployment, EventKind::Warning, "ScaleConflict", note);
                }
            }
            Scaled::Failed(error) => {
                tracing::warn!(namespace, name, error, "a Deployment that follows its bases was not scaled");
            }
        }
    }

    fn tell_scale(&self, deployment: &Workload, kind: EventKind, reason: &'static str, note: String) {
        let regarding = ObjectReference {
            api_version: Some("apps/v1".to_owned()),
            kind: Some("Deployment".to_owned()),
            namespace: Some(deployment.namespace.clone()),
            name: Some(deployment.name.clone()),
            uid: Some(deployment.uid.clone()),
            ..ObjectReference::default()
        };
        self.context.events.emit(Event { regarding, kind, reason, action: "Scale", note });
    }
}

async fn scale(client: &kube::Client, term: &Term, deployment: &Workload, wanted: i32) -> Scaled {
    let autoscalers: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), &deployment.namespace);
    let autoscalers = match autoscalers.list(&ListParams::default()).await {
        Ok(list) => list.items,
        Err(error) => return Scaled::Failed(error.to_string()),
    };
    if let Some(by) = autoscalers.iter().find(|autoscaler| scales(autoscaler, deployment)) {
        return Scaled::Autoscaled(by.metadata.name.clone().unwrap_or_default());
    }
    if !term.holds() {
        return Scaled::Failed("this agent does not lead any more".to_owned());
    }
    // The version that was judged: whoever changed the Deployment meanwhile may have taken the annotation off.
    let patch = json!({
        "metadata": {"uid": deployment.uid, "resourceVersion": deployment.version},
        "spec": {"replicas": wanted},
    });
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &deployment.namespace);
    let parameters = PatchParams::default();
    match deployments.patch_scale(&deployment.name, &parameters, &Patch::Merge(&patch)).await {
        Ok(_) => Scaled::Done { from: deployment.replicas, to: wanted },
        Err(error) => Scaled::Failed(error.to_string()),
    }
}

fn scales(autoscaler: &HorizontalPodAutoscaler, deployment: &Workload) -> bool {
    let target = autoscaler.spec.as_ref().map(|spec| &spec.scale_target_ref);
    target.is_some_and(|target| target.kind == "Deployment" && target.name == deployment.name)
}

/// Whether a Pod is of a Deployment: its `ReplicaSet` is named after it and the hash of the template.
pub(super) fn is_of(pod: &Pod, deployment: &Workload) -> bool {
    let hash = pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::POD_TEMPLATE_HASH));
    pod.metadata.namespace.as_deref() == Some(deployment.namespace.as_str())
        && hash.is_some_and(|hash| {
            let set = format!("{}-{hash}", deployment.name);
            pod.metadata
                .owner_references
                .iter()
                .flatten()
                .any(|owner| owner.kind == "ReplicaSet" && owner.name == set)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        let deployment = json!({"metadata": {"namespace": "shop", "name": "cart", "uid": "d",
            "annotations": {"stowage.dev/scale": "bases"}},
            "spec": {"replicas": 3, "selector": {}, "template": {"spec": {"containers": []}}}});
        Workload::of_deployment(serde_json::from_value(deployment).expect("deployment"))
    }

    #[test]
    fn pods_of_a_deployment_are_told_by_their_replica_set() {
        let pod = |namespace: &str, set: &str, hash: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"namespace": namespace, "labels": {"pod-template-hash": hash},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": "r"}]}}))
            .expect("pod")
        };
        assert!(is_of(&pod("shop", "cart-7d9f", "7d9f"), &workload()));
        assert!(!is_of(&pod("pay", "cart-7d9f", "7d9f"), &workload()));
        assert!(!is_of(&pod("shop", "cart-v2-7d9f", "7d9f"), &workload()));
        assert!(!is_of(&Pod::default(), &workload()));
    }

    #[test]
    fn rules_run_anew_only_when_something_changed() {
        let node = |version: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n", "resourceVersion": version,
                "labels": {"app.kubernetes.io/managed-by": "stowage", "stowage.dev/base-cluster": "default"},
                "annotations": {"stowage.dev/base": "shop/base", "stowage.dev/base-uid": "u",
                    "stowage.dev/inventory": r#"{"v":1}"#}},
                "spec": {"providerID": "stowage://default/shop/u"}}))
            .expect("node")
        };
        let rules = || Arc::new(Rules::of(Arc::new(policy::Policy::default())));
        let (mut seen, mut scales, first) = (BTreeMap::new(), Scales::default(), rules());
        let judged = |scales: &mut Scales, deployment: &Workload, ready: bool| {
            let mut judged = false;
            let place = scales.places.get_mut("n").expect("place");
            let fits = place.fits(deployment, ready, |_, base| {
                judged = true;
                base.ready
            });
            assert_eq!(fits, ready);
            judged
        };
        let mut deployment = workload();
        seen.insert("n".to_owned(), SeenNode::new(node("1")));
        scales.refresh(&seen, &first);
        assert!(judged(&mut scales, &deployment, true), "not known yet");
        scales.refresh(&seen, &first);
        assert!(!judged(&mut scales, &deployment, true), "as before");
        assert!(judged(&mut scales, &deployment, false), "the base is silent");
        deployment.version = Some("2".to_owned());
        assert!(judged(&mut scales, &deployment, false), "the template may be another");
        seen.insert("n".to_owned(), SeenNode::new(node("2")));
        scales.refresh(&seen, &first);
        assert!(judged(&mut scales, &deployment, false), "the Node is another");
        scales.refresh(&seen, &rules());
        assert!(judged(&mut scales, &deployment, false), "the policy is another");
        seen.clear();
        scales.refresh(&seen, &first);
        assert!(scales.places.is_empty());
    }

    #[test]
    fn an_autoscaler_of_the_same_deployment_conflicts() {
        let autoscaler = |kind: &str, name: &str| -> HorizontalPodAutoscaler {
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": name}}}))
            .expect("autoscaler")
        };
        assert!(scales(&autoscaler("Deployment", "cart"), &workload()));
        assert!(!scales(&autoscaler("StatefulSet", "cart"), &workload()));
        assert!(!scales(&autoscaler("Deployment", "shop"), &workload()));
    }

    #[test]
    fn only_a_deployment_that_follows_keeps_its_template() {
        let workload = workload();
        assert_eq!((workload.replicas, workload.scale.as_deref()), (3, Some("bases")));
        assert!(workload.template.is_none(), "no module Pods");
    }
}
