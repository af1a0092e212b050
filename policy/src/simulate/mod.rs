//! A policy against a snapshot, before and after: what would change for each Pod, each module and each base.
//!
//! Where a policy stands alone nothing moves: running Pods are never removed by a policy change. What is said here is
//! where each Pod could be placed if it were placed now, with all others where they are.

mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{applicant::Applicant, contract::ModulePod, model::Policy, view::BaseView};

/// What would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Counts over all Pods and bases.
    pub summary: Summary,
    /// By namespace and module, such as `shop/cart:1.0.0`.
    pub modules: BTreeMap<String, ModuleChange>,
    /// By Node.
    pub bases: BTreeMap<String, BaseChange>,
    /// By `namespace/name`.
    pub pods: BTreeMap<String, PodChange>,
}

/// Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Module Pods that were looked at: neither terminal nor being deleted.
    pub pods: usize,
    /// Bases that were looked at.
    pub bases: usize,
    /// Pods that may go to other bases than before.
    pub changed: usize,
    /// Pods that were welcome where they are and are not any more.
    pub displaced: usize,
    /// Pods that fit somewhere before and nowhere after.
    pub stranded: usize,
    /// Bases that hold more Pods than the new limit, and did not exceed the old one.
    pub crowded: usize,
}

/// What would change for a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModuleChange {
    /// Its Pods.
    pub pods: usize,
    /// Those that may go to other bases than before.
    pub changed: usize,
    /// See [`Summary::displaced`].
    pub displaced: usize,
    /// See [`Summary::stranded`].
    pub stranded: usize,
}

/// What would change for a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodChange {
    /// Where it is bound to.
    pub node: Option<String>,
    /// Bases whose rules take it under the first policy.
    pub before: usize,
    /// Bases whose rules take it under the second.
    pub after: usize,
    /// It is bound to a base that took it and does not any more.
    pub displaced: bool,
    /// Bases that take it under the second policy only.
    pub gained: Vec<String>,
    /// Bases that take it under the first policy only.
    pub lost: Vec<String>,
    /// How often each reason's code is said under the second policy.
    pub rejected: BTreeMap<&'static str, usize>,
}

/// What would change for a base.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BaseChange {
    /// Pods bound to it, neither terminal nor being deleted.
    pub pods: usize,
    /// `podsPerBase`, before and after.
    pub pods_per_base: [u32; 2],
    /// `modulesPerBase`, before and after; `None`: no limit.
    pub modules_per_base: [Option<u32>; 2],
    /// Pods that it takes under the second policy only.
    pub gained: usize,
    /// Pods that it takes under the first policy only.
    pub lost: usize,
    /// Pods on it that are not welcome any more.
    pub displaced: Vec<String>,
}

/// Asks both policies about every Pod and every base. Pods that are terminal or being deleted are left out.
pub fn compare<'a>(
    before: &Policy,
    after: &Policy,
    pods: impl IntoIterator<Item = (&'a str, &'a ModulePod)>,
    bases: &[BaseView<'_>],
) -> Report {
    let mut report = Report::default();
    for base in bases {
        let limits = [before, after].map(|policy| policy.limits_for(&base.facts.like()));
        let living = base.pods.iter().filter(|pod| !pod.terminal && !pod.deleting).count();
        let change = BaseChange {
            pods: living,
            pods_per_base: limits.each_ref().map(|limits| limits.pods_per_base),
            modules_per_base: limits.each_ref().map(|limits| limits.modules_per_base),
            ..BaseChange::default()
        };
        report.summary.crowded += usize::from(change.is_crowded());
        report.bases.insert(base.facts.node.to_string(), change);
    }
    report.summary.bases = bases.len();
    for (key, pod) in pods.into_iter().filter(|(_, pod)| !pod.terminal && !pod.deleting) {
        report.add(key, pod, [before, after], bases);
    }
    report
}

impl Report {
    fn add(&mut self, key: &str, pod: &ModulePod, [before, after]: [&Policy; 2], bases: &[BaseView<'_>]) {
        let mut change =
            PodChange { node: pod.node_name.as_deref().map(str::to_owned), ..PodChange::default() };
        let applicants = [before, after].map(|policy| Applicant::new(policy, pod));
        for base in bases {
            let [old, new] = applicants
                .each_ref()
                .map(|applicant| applicant.decide(base, &applicant.policy.limits_for(&base.facts.like())));
            let old = old.is_ok();
            if let Err(rejection) = &new {
                *change.rejected.entry(rejection.reason.code()).or_default() += 1;
            }
            let new = new.is_ok();
            change.before += usize::from(old);
            change.after += usize::from(new);
            if old == new {
                continue;
            }
            let node = base.facts.node.to_string();
            let there = self.bases.entry(node.clone()).or_default();
            if new {
                there.gained += 1;
                change.gained.push(node);
            } else {
                there.lost += 1;
                if pod.node_name.as_ref() == Some(&base.facts.node) {
                    there.displaced.push(key.to_owned());
                    change.displaced = true;
                }
                change.lost.push(node);
            }
        }
        let [changed, displaced, stranded] =
            [change.is_change(), change.displaced, change.is_stranded()].map(usize::from);
        self.summary.pods += 1;
        self.summary.changed += changed;
        self.summary.displaced += displaced;
        self.summary.stranded += stranded;
        for module in &pod.modules {
            let version = module.known_version().unwrap_or("?");
            let sum = self.modules.entry(format!("{}/{}:{version}", pod.namespace, module.name)).or_default();
            sum.pods += 1;
            sum.changed += changed;
            sum.displaced += displaced;
            sum.stranded += stranded;
        }
        self.pods.insert(key.to_owned(), change);
    }
}

impl Summary {
    /// Whether anything is worse for what runs or wants to run.
    pub fn is_worse(&self) -> bool {
        self.displaced + self.stranded + self.crowded > 0
    }
}

impl PodChange {
    /// Whether the two policies differ about it.
    pub fn is_change(&self) -> bool {
        !(self.gained.is_empty() && self.lost.is_empty())
    }

    /// Whether it fits nowhere any more.
    pub fn is_stranded(&self) -> bool {
        self.before > 0 && self.after == 0
    }
}

impl BaseChange {
    /// Whether anything differs.
    pub fn is_change(&self) -> bool {
        let [pods, more] = self.pods_per_base;
        let [modules, more_modules] = self.modules_per_base;
        pods != more || modules != more_modules || self.gained + self.lost > 0
    }

    /// Whether it holds more Pods than the new limit though not more than the old one.
    pub fn is_crowded(&self) -> bool {
        let [before, after] = self.pods_per_base.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        self.pods > after && self.pods <= before
    }
}

#[cfg(test)]
mod tests;
