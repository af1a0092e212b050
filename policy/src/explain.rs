//! Why a Pod goes or does not go to each base. Used by `stowage-policy explain` and by the extender's `/explain`.

use serde::Serialize;

use crate::{
    contract::ModulePod,
    decide::trace,
    model::Policy,
    reason::Reason,
    score::{FleetView, score},
    view::BaseView,
};

/// What the rules say about one base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Name of the Node.
    pub node: String,
    /// 0 to 10 where the Pod may go there.
    pub score: Option<i64>,
    /// Every rule that rejects, in the order of the rules; the first is what kube-scheduler is told.
    pub rejections: Vec<Objection>,
}

/// A rule that rejects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Objection {
    /// Name of the rule.
    pub rule: &'static str,
    /// Code of the reason.
    pub code: &'static str,
    /// Text of the reason.
    pub text: String,
    /// Whether it may help that other Pods go away.
    pub resolvable: bool,
}

impl Objection {
    fn new(rule: &'static str, reason: &Reason) -> Self {
        Self { rule, code: reason.code(), text: reason.text(), resolvable: reason.resolvable() }
    }
}

/// One verdict for each base, in their order.
pub fn explain(policy: &Policy, pod: &ModulePod, bases: &[BaseView<'_>]) -> Vec<Verdict> {
    let fleet = FleetView::of(policy, pod, bases.iter().copied());
    let verdict = |base: &BaseView<'_>| {
        let objections = trace(policy, pod, base);
        let rejections: Vec<Objection> = objections
            .iter()
            .filter_map(|(rule, said)| said.as_ref().err().map(|r| Objection::new(rule, r)))
            .collect();
        Verdict {
            node: base.facts.node.to_string(),
            score: rejections.is_empty().then(|| score(policy, pod, base, &fleet)),
            rejections,
        }
    };
    bases.iter().map(verdict).collect()
}
