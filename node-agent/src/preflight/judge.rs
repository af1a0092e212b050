//! From facts of a cluster to findings. Pure.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod};
use policy::contract::names;

use super::{Code, Finding, Level};
use crate::discovery::has_pre_stop;
use crate::named::{key, some};

/// Names in a text.
const SHOWN: usize = 5;

/// What was seen of the clusters.
#[derive(Debug, Default)]
pub struct Facts {
    /// Nodes of the module cluster.
    pub nodes: Vec<Node>,
    /// Deployments of the module cluster.
    pub deployments: Vec<Deployment>,
    /// `DaemonSets` of the module cluster.
    pub daemon_sets: Vec<DaemonSet>,
    /// Pods that are to become bases; `None` where no selector was given.
    pub bases: Option<Vec<Pod>>,
    /// Version of the module cluster's API server.
    pub version: String,
    /// Resources of `admissionregistration.k8s.io/v1` there.
    pub admission: Vec<String>,
    /// What the account may not do, as `verb resource (where)`.
    pub forbidden: Vec<String>,
    /// What could not be seen, for want of rights.
    pub unseen: Vec<&'static str>,
}

/// Says what the facts mean for an installation.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![
        pod_cidrs(facts),
        cloud_controller(facts),
        autoscaler(facts),
        daemon_sets(facts),
        api_versions(facts),
        rights(facts),
    ];
    findings.extend(bases(facts));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

fn finding(code: Code, level: Level, found: impl Into<String>, advice: &'static str) -> Finding {
    Finding { code, level, found: found.into(), advice }
}

/// Nodes that are no VNodes.
fn real(facts: &Facts) -> impl Iterator<Item = &Node> {
    facts.nodes.iter().filter(|node| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(names::MANAGED_BY)).is_none_or(|by| by != names::MANAGER)
    })
}

fn pod_cidrs(facts: &Facts) -> Finding {
    let with = real(facts).filter(|node| {
        node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref()).is_some_and(|cidr| !cidr.is_empty())
    });
    let code = Code::PodCidrAllocation;
    match with.count() {
        0 => finding(code, Level::Ok, "Nodes get no ranges of Pod addresses from the controller manager", ""),
        count => finding(
            code,
            Level::Warning,
            format!(
                "{count} Nodes have spec.podCIDR: the controller manager would give one to every VNode too"
            ),
            "each VNode takes a range that a real node may need: leave room in --cluster-cidr for as many Nodes more as \
             there are bases, or let the network plug-in own the addresses",
        ),
    }
}

fn cloud_controller(facts: &Facts) -> Finding {
    let of_cloud = |node: &&Node| {
        let Some(spec) = &node.spec else { return false };
        let provided = spec
            .provider_id
            .as_deref()
            .is_some_and(|id| !id.is_empty() && !id.starts_with(names::PROVIDER_SCHEME) && !is_local(id));
        let tainted = spec
            .taints
            .iter()
            .flatten()
            .any(|taint| taint.key.starts_with("node.cloudprovider.kubernetes.io/"));
        provided || tainted
    };
    let code = Code::CloudController;
    match real(facts).filter(of_cloud).count() {
        0 => finding(code, Level::Ok, "no cloud controller manages Nodes", ""),
        count => finding(
            code,
            Level::Warning,
            format!(
                "{count} Nodes belong to a cloud: its controller may delete Nodes whose machine it does not find"
            ),
            "make sure that it passes over Nodes whose providerID begins with stowage:// (most do), or keep VNodes in a \
             cluster without one; the agent makes a deleted Node anew, but its Pods are gone then",
        ),
    }
}

/// Local clusters for trial set a provider id without a cloud behind it.
fn is_local(id: &str) -> bool {
    ["kind://", "k3s://"].iter().any(|scheme| id.starts_with(scheme))
}

fn autoscaler(facts: &Facts) -> Finding {
    let is_one = |deployment: &&Deployment| {
        let named = deployment.metadata.name.as_deref().unwrap_or_default();
        let template = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let images = template
            .iter()
            .flat_map(|spec| &spec.containers)
            .filter_map(|container| container.image.as_deref())
            .collect::<Vec<_>>();
        ["cluster-autoscaler", "karpenter"]
            .iter()
            .any(|word| named.contains(word) || images.iter().any(|image| image.contains(word)))
    };
    let found: Vec<String> =
        facts.deployments.iter().filter(is_one).map(|deployment| key(&deployment.metadata)).collect();
    if found.is_empty() {
        return finding(Code::ClusterAutoscaler, Level::Ok, "no cluster autoscaler was found", "");
    }
    finding(
        Code::ClusterAutoscaler,
        Level::Warning,
        format!("an autoscaler manages Nodes: {}", some(found.iter().map(String::as_str), SHOWN)),
        "Pods that wait for a VNode may make it add machines that do not help: exclude module Pods (they tolerate a taint that \
         no machine has), and VNodes from its scale-down",
    )
}

fn daemon_sets(facts: &Facts) -> Finding {
    let tolerates_all = |set: &&DaemonSet| {
        let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let Some(spec) = spec else { return false };
        let all = spec.tolerations.iter().flatten().any(|toleration| {
            let effect = toleration.effect.as_deref().unwrap_or_default();
            toleration.key.as_deref().unwrap_or_default().is_empty()
                && toleration.operator.as_deref() == Some("Exists")
                && (effect.is_empty() || effect == "NoExecute")
        });
        all && !excludes_vnodes(spec)
    };
    let found: Vec<String> =
        facts.daemon_sets.iter().filter(tolerates_all).map(|set| key(&set.metadata)).collect();
    if found.is_empty() {
        return finding(Code::TolerateAllDaemonSets, Level::Ok, "no DaemonSet would put Pods on VNodes", "");
    }
    finding(
        Code::TolerateAllDaemonSets,
        Level::Warning,
        format!(
            "DaemonSets that tolerate every taint would put Pods on VNodes: {}",
            some(found.iter().map(String::as_str), SHOWN)
        ),
        "add the node affinity `type NotIn [virtual-kubelet]` to their templates; the agent sets such Pods Failed, and their \
         controller makes new ones again and again",
    )
}

/// A node affinity, or a selector, that no VNode meets.
fn excludes_vnodes(spec: &k8s_openapi::api::core::v1::PodSpec) -> bool {
    let terms = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
        .map(|required| required.node_selector_terms.as_slice())
        .unwrap_or_default();
    let excludes = |requirement: &k8s_openapi::api::core::v1::NodeSelectorRequirement| {
        let ours = [("type", "virtual-kubelet"), (names::MANAGED_BY, names::MANAGER)];
        let listed = |value: &str| requirement.values.iter().flatten().any(|listed| listed == value);
        ours.iter().any(|(key, value)| {
            requirement.key == *key
                && (requirement.operator == "DoesNotExist"
                    || (requirement.operator == "NotIn" && listed(value)))
        })
    };
    !terms.is_empty() && terms.iter().all(|term| term.match_expressions.iter().flatten().any(excludes))
}

fn api_versions(facts: &Facts) -> Finding {
    let has = |resource: &str| facts.admission.iter().any(|found| found == resource);
    if facts.unseen.contains(&"the API's resources") {
        return finding(Code::ApiVersions, Level::Warning, "the API's resources could not be read", "");
    }
    if !has("validatingadmissionpolicies") {
        return finding(
            Code::ApiVersions,
            Level::Problem,
            format!("the API server ({}) has no ValidatingAdmissionPolicy v1", facts.version),
            "Kubernetes 1.30 or later is needed: the policy that confines the agent's account is one",
        );
    }
    if !has("mutatingadmissionpolicies") {
        return finding(
            Code::ApiVersions,
            Level::Warning,
            format!("the API server ({}) has no MutatingAdmissionPolicy v1", facts.version),
            "use manifests/overlays/no-mutating-policies, and complete your module Pods with manifests/components/module-pods",
        );
    }
    finding(
        Code::ApiVersions,
        Level::Ok,
        format!("the API server ({}) has all that is needed", facts.version),
        "",
    )
}

fn rights(facts: &Facts) -> Finding {
    if facts.forbidden.is_empty() {
        return finding(Code::Rights, Level::Ok, "this account has every right that the agent needs", "");
    }
    finding(
        Code::Rights,
        Level::Problem,
        format!("this account may not: {}", facts.forbidden.join(", ")),
        "apply manifests/base/agent/rbac.yaml and manifests/base/agent/bases/rbac.yaml, or run this as the agent's account",
    )
}

fn bases(facts: &Facts) -> Option<Finding> {
    let bases = facts.bases.as_ref()?;
    if bases.is_empty() {
        return Some(finding(
            Code::NoBases,
            Level::Warning,
            "no Pod matches --base-selector",
            "label the Pod templates of your bases, or give the selector that they have",
        ));
    }
    let without: Vec<String> =
        bases.iter().filter(|pod| !has_pre_stop(pod)).map(|pod| key(&pod.metadata)).collect();
    if without.is_empty() {
        let found = format!("all {} bases have a preStop hook", bases.len());
        return Some(finding(Code::NoPreStop, Level::Ok, found, ""));
    }
    Some(finding(
        Code::NoPreStop,
        Level::Warning,
        format!(
            "{} of {} bases have no preStop hook: {}",
            without.len(),
            bases.len(),
            some(without.iter().map(String::as_str), SHOWN)
        ),
        "add `lifecycle: {preStop: {sleep: {seconds: 15}}}` to the base container, at least drain.wait: without it requests to \
         modules are lost when a base Pod is deleted",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("object")
    }

    fn fine() -> Facts {
        Facts {
            nodes: vec![object(json!({"metadata": {"name": "worker"}, "spec": {"providerID": "kind://x"}}))],
            version: "v1.37.2".to_owned(),
            admission: ["mutatingadmissionpolicies", "validatingadmissionpolicies"]
                .map(str::to_owned)
                .to_vec(),
            ..Facts::default()
        }
    }

    fn level(facts: &Facts, code: Code) -> Level {
        judge(facts).iter().find(|finding| finding.code == code).map(|finding| finding.level).expect("judged")
    }

    #[test]
    fn a_plain_cluster_is_fine() {
        assert!(judge(&fine()).iter().all(|finding| finding.level == Level::Ok), "{:?}", judge(&fine()));
    }

    #[test]
    fn nodes_tell_of_addresses_and_clouds() {
        let with = |spec: Value| {
            let mut facts = fine();
            facts.nodes.push(object(json!({"metadata": {"name": "n"}, "spec": spec})));
            facts
        };
        assert_eq!(level(&with(json!({"podCIDR": "10.0.0.0/24"})), Code::PodCidrAllocation), Level::Warning);
        assert_eq!(
            level(&with(json!({"providerID": "aws:///z/i-1"})), Code::CloudController),
            Level::Warning
        );
        let tainted = json!({"taints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}]});
        assert_eq!(level(&with(tainted), Code::CloudController), Level::Warning);
        let mut ours = with(json!({"podCIDR": "10.0.0.0/24", "providerID": "stowage://default/a/u"}));
        for node in &mut ours.nodes {
            node.metadata.labels = Some([(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned())].into());
        }
        assert_eq!(level(&ours, Code::PodCidrAllocation), Level::Ok, "VNodes themselves say nothing");
    }

    #[test]
    fn workloads_that_would_meddle_are_named() {
        let mut facts = fine();
        facts.deployments.push(object(json!({"metadata": {"namespace": "kube-system", "name": "scaler"},
            "spec": {"selector": {}, "template": {"spec": {"containers": [
                {"name": "a", "image": "registry/cluster-autoscaler:v1"}]}}}})));
        assert_eq!(level(&facts, Code::ClusterAutoscaler), Level::Warning);
        let set = |tolerations: Value, affinity: Value| {
            let mut facts = fine();
            facts.daemon_sets.push(object(json!({"metadata": {"namespace": "kube-system", "name": "logs"},
                "spec": {"selector": {}, "template": {"spec": {"containers": [], "tolerations": tolerations,
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                        {"nodeSelectorTerms": affinity}}}}}}})));
            level(&facts, Code::TolerateAllDaemonSets)
        };
        let all = json!([{"operator": "Exists"}]);
        assert_eq!(set(all.clone(), json!([])), Level::Warning);
        assert_eq!(set(json!([{"operator": "Exists", "effect": "NoExecute"}]), json!([])), Level::Warning);
        assert_eq!(set(json!([{"operator": "Exists", "effect": "NoSchedule"}]), json!([])), Level::Ok);
        assert_eq!(set(json!([{"key": "a", "operator": "Exists"}]), json!([])), Level::Ok);
        let away = json!([{"matchExpressions": [{"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]}]}]);
        assert_eq!(set(all, away), Level::Ok);
    }

    /// BL-140: an API server that lacks what is needed is told before the installation.
    #[test]
    fn api_versions_rights_and_bases() {
        let mut facts = fine();
        facts.admission.retain(|resource| resource != "mutatingadmissionpolicies");
        assert_eq!(level(&facts, Code::ApiVersions), Level::Warning);
        // What is advised is shipped.
        for finding in judge(&facts) {
            for path in finding.advice.split([' ', ',']).filter(|word| word.starts_with("manifests/")) {
                let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
                assert!(std::path::Path::new(&path).exists(), "{path}");
            }
        }
        assert!(judge(&facts).iter().any(|finding| finding.advice.contains("components/module-pods")));
        facts.admission.clear();
        assert_eq!(level(&facts, Code::ApiVersions), Level::Problem);
        facts.forbidden.push("create nodes".to_owned());
        assert_eq!(level(&facts, Code::Rights), Level::Problem);
        assert_eq!(
            judge(&facts).first().map(|finding| finding.level),
            Some(Level::Problem),
            "the worst comes first"
        );
        facts.bases = Some(Vec::new());
        assert_eq!(level(&facts, Code::NoBases), Level::Warning);
        let base = |lifecycle: Value| {
            object(json!({"metadata": {"namespace": "a", "name": "b"}, "spec": {"containers": [
                {"name": "sidecar"}, {"name": "base", "lifecycle": lifecycle}]}}))
        };
        facts.bases = Some(vec![base(json!({"preStop": {"sleep": {"seconds": 15}}}))]);
        assert_eq!(level(&facts, Code::NoPreStop), Level::Ok);
        facts.bases = Some(vec![base(json!({}))]);
        assert_eq!(level(&facts, Code::NoPreStop), Level::Warning);
    }
}
