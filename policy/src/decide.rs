//! Whether a module Pod may go to a base.

use crate::{
    applicant::Applicant,
    contract::ModulePod,
    model::{Limits, Policy},
    reason::Reason,
    rule,
    view::BaseView,
};

/// A Pod may not go to a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why.
    pub reason: Reason,
}

/// Everything a rule may look at.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The Pod with what concerns it in the policy.
    pub applicant: &'a Applicant<'a>,
    /// The policy in force.
    pub policy: &'a Policy,
    /// The Pod.
    pub pod: &'a ModulePod,
    /// The base.
    pub base: BaseView<'a>,
    /// The limits of the base.
    pub limits: &'a Limits,
}

/// What a rule says.
pub type Check = fn(&Question<'_>) -> Result<(), Reason>;

/// A rule: its name, and what it says.
pub type Rule = (&'static str, Check);

const COMPATIBILITY: &str = "compatibility";

/// Every rule in the order in which they are asked: first what the Pod and the base are, whoever else is there, then
/// what changes with time and neighbours.
pub const RULES: [Rule; 12] = [
    ("annotations", rule::annotations::check),
    ("access", rule::access::check),
    ("artifact", rule::artifact::check),
    ("stack", rule::stack::check),
    ("base version", rule::base_version::check),
    (COMPATIBILITY, rule::compatibility::check),
    ("leaving", rule::leaving::check),
    ("same module", rule::same_module::check),
    ("context path", rule::context_path::check),
    ("module limit", rule::module_limit::check),
    ("metaspace", rule::metaspace::check),
    ("recent failure", rule::recent_failure::check),
];

/// The rules whose answer lies in what the agent itself decides from what it finds on the base: a base that comes back,
/// other versions, back-off.
const LEFT_TO_THE_AGENT: [&str; 3] = ["leaving", "same module", "recent failure"];

impl Applicant<'_> {
    /// Whether kube-scheduler may place the Pod on `base`, which has these limits: the first rule that rejects speaks.
    ///
    /// Pods that are no module Pods never get here, see [`rule::kind`].
    ///
    /// # Errors
    /// Why not.
    pub fn decide(&self, base: &BaseView<'_>, limits: &Limits) -> Result<(), Rejection> {
        first(&self.question(base, limits), RULES)
    }

    /// Whether the agent may install the Pod, which is bound to `base` already: the rules that do not depend on what the
    /// agent itself decides from what it finds on the base. A required module that is not there yet is waited for.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, base: &BaseView<'_>, limits: &Limits) -> Result<(), Rejection> {
        let rules = RULES.iter().filter(|(name, _)| !LEFT_TO_THE_AGENT.contains(name));
        let rules = rules.map(|(name, check)| {
            let waits = *name == COMPATIBILITY;
            if waits { (*name, rule::compatibility::check_but_for_modules as Check) } else { (*name, *check) }
        });
        first(&self.question(base, limits), rules)
    }

    pub(crate) fn question<'b>(&'b self, base: &BaseView<'b>, limits: &'b Limits) -> Question<'b> {
        Question { applicant: self, policy: self.policy, pod: self.pod, base: *base, limits }
    }
}

/// [`Applicant::decide`] for one base.
///
/// # Errors
/// Why not.
pub fn decide(policy: &Policy, pod: &ModulePod, base: &BaseView<'_>) -> Result<(), Rejection> {
    Applicant::new(policy, pod).decide(base, &policy.limits_for(&base.facts.like()))
}

/// [`Applicant::admit`] for one base.
///
/// # Errors
/// Why not.
pub fn admit(policy: &Policy, pod: &ModulePod, base: &BaseView<'_>) -> Result<(), Rejection> {
    Applicant::new(policy, pod).admit(base, &policy.limits_for(&base.facts.like()))
}

/// What every rule says, for people who ask why.
pub fn trace(
    policy: &Policy,
    pod: &ModulePod,
    base: &BaseView<'_>,
) -> Vec<(&'static str, Result<(), Reason>)> {
    let (applicant, limits) = (Applicant::new(policy, pod), policy.limits_for(&base.facts.like()));
    let question = applicant.question(base, &limits);
    RULES.iter().map(|(name, check)| (*name, check(&question))).collect()
}

fn first(question: &Question<'_>, rules: impl IntoIterator<Item = Rule>) -> Result<(), Rejection> {
    rules.into_iter().try_for_each(|(_, check)| check(question)).map_err(|reason| Rejection { reason })
}
