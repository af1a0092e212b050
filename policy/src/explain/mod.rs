//! Why a Pod goes or does not go to each base. Used by `stowage-policy explain` and by the extender's `/explain`.

mod facts;
mod table;

use serde::Serialize;

use crate::{
    applicant::Applicant,
    contract::ModulePod,
    decide::{RULES, Rule},
    model::Policy,
    reason::Reason,
    score::{FleetView, score, terms},
    view::BaseView,
};

pub use facts::Facts;
pub(crate) use table::aligned;
pub use table::table;

/// What the rules and the terms say about one base.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Name of the Node.
    pub node: String,
    /// Whether no rule rejects.
    pub fits: bool,
    /// 0 to 10 where the Pod may go there.
    pub score: Option<i64>,
    /// Places for Pods on the Node, which kube-scheduler counts itself.
    pub slots: Slots,
    /// Every rule, in the order in which they are asked; the first that rejects is what kube-scheduler is told.
    pub rules: Vec<Said>,
    /// The score by term, where the Pod may go there.
    pub terms: Vec<TermSaid>,
}

/// Places for Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Slots {
    /// Pods that are there or about to be, without the one in question.
    pub taken: usize,
    /// `allocatable.pods` of the Node.
    pub of: u32,
}

/// What one rule says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Said {
    /// Name of the rule.
    pub rule: &'static str,
    /// Why it rejects; `None`: it does not.
    #[serde(flatten)]
    pub objection: Option<Objection>,
    /// What it looked at, by name.
    pub facts: Facts,
}

/// Why a rule rejects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Objection {
    /// Code of the reason.
    pub code: &'static str,
    /// Text of the reason.
    pub text: String,
    /// Whether it may help that other Pods go away.
    pub resolvable: bool,
}

/// What one term says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TermSaid {
    /// Name of the term.
    pub term: &'static str,
    /// How much it counts.
    pub weight: u32,
    /// 0 to 10.
    pub score: f64,
}

impl Verdict {
    /// The rules that reject, in order.
    pub fn rejections(&self) -> impl Iterator<Item = (&'static str, &Objection)> {
        self.rules.iter().filter_map(|said| Some((said.rule, said.objection.as_ref()?)))
    }
}

impl Objection {
    fn new(reason: &Reason) -> Self {
        Self { code: reason.code(), text: reason.text(), resolvable: reason.resolvable() }
    }
}

/// One verdict for each base, in their order.
pub fn explain(policy: &Policy, pod: &ModulePod, bases: &[BaseView<'_>]) -> Vec<Verdict> {
    let fleet = FleetView::of(policy, pod, bases.iter().copied());
    let applicant = Applicant::new(policy, pod);
    bases.iter().map(|base| explain_base(&applicant, base, &fleet)).collect()
}

/// The verdict about one base. `fleet` is what the terms compare it with.
pub fn explain_base(applicant: &Applicant<'_>, base: &BaseView<'_>, fleet: &FleetView<'_>) -> Verdict {
    let Applicant { policy, pod, .. } = *applicant;
    let limits = policy.limits_for(&base.facts.like());
    let question = applicant.question(base, &limits);
    let said = |&(rule, check): &Rule| Said {
        rule,
        objection: check(&question).err().as_ref().map(Objection::new),
        facts: facts::of(rule, &question),
    };
    let rules: Vec<Said> = RULES.iter().map(said).collect();
    let fits = rules.iter().all(|said| said.objection.is_none());
    let terms = if fits { terms(policy, pod, base, fleet) } else { Vec::new() };
    Verdict {
        node: base.facts.node.to_string(),
        fits,
        score: fits.then(|| score(policy, pod, base, fleet)),
        slots: Slots { taken: base.others(pod).count(), of: base.facts.allocatable_pods },
        rules,
        terms: terms
            .iter()
            .map(|said| TermSaid { term: said.term.name(), weight: said.weight, score: said.score })
            .collect(),
    }
}

#[cfg(test)]
mod tests;
