//! nodeSelector, required node affinity and tolerations, as kube-scheduler reads them. Pure.

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

/// Whether a Pod of this spec may stand on this Node.
pub(super) fn admits(spec: &PodSpec, node: &Node) -> bool {
    selected(spec, node)
        && terms(spec).is_none_or(|terms| terms.iter().any(|term| matches_term(term, node)))
        && tolerates(spec, node)
}

fn selected(spec: &PodSpec, node: &Node) -> bool {
    spec.node_selector.iter().flatten().all(|(key, value)| label(node, key) == Some(value.as_str()))
}

fn terms(spec: &PodSpec) -> Option<&[NodeSelectorTerm]> {
    let required = spec
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    Some(&required.node_selector_terms)
}

/// All of a term must hold; an empty term holds nowhere.
fn matches_term(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|wanted| holds(wanted, label(node, &wanted.key)))
        && fields
            .iter()
            .all(|wanted| wanted.key == "metadata.name" && holds(wanted, node.metadata.name.as_deref()))
}

fn holds(wanted: &NodeSelectorRequirement, found: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let listed = found.is_some_and(|found| values.iter().any(|value| value == found));
    let numbers = || Some((found?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match wanted.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => numbers().is_some_and(|(found, bound)| found > bound),
        "Lt" => numbers().is_some_and(|(found, bound)| found < bound),
        _ => false,
    }
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn tolerates(spec: &PodSpec, node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|taint| taint.effect != "PreferNoSchedule").all(|taint| {
        // What the node controller puts there comes and goes with the Ready condition, which is judged by itself.
        taint.key.starts_with("node.kubernetes.io/")
            || spec.tolerations.iter().flatten().any(|toleration| tolerates_one(toleration, taint))
    })
}

pub(super) fn tolerates_one(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "" | "Equal" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}
