//! Rule `compatibility`: what modules need is there, and what they do not bear is not.

use std::sync::Arc;

use crate::{
    contract::{Module, ModuleState},
    decide::Question,
    model::{CompatibilityEntry, ModulePattern, Requirements},
    reason::Reason,
};

/// The entries that speak of a module of the Pod, with that module. An entry whose versions decide about a module of
/// unknown version is the reason `module version unknown`.
pub(crate) fn entries<'a>(
    question: &Question<'a>,
) -> impl Iterator<Item = (&'a Module, Result<&'a CompatibilityEntry, Reason>)> {
    let Question { policy, pod, .. } = *question;
    pod.modules.iter().flat_map(move |module| {
        policy.compatibility.iter().filter_map(move |entry| {
            match entry.module.matches(&module.name, module.comparable.as_ref()) {
                Some(false) => None,
                Some(true) => Some((module, Ok(entry))),
                None => Some((module, Err(Reason::ModuleVersionUnknown { module: module.name.clone() }))),
            }
        })
    })
}

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    check_all(question, modules)
}

/// All of it but the modules that must be there, for whoever waits for those.
pub(crate) fn check_but_for_modules(question: &Question<'_>) -> Result<(), Reason> {
    check_all(question, |_, _, _| Ok(()))
}

fn check_all(
    question: &Question<'_>,
    modules: impl Fn(&Question<'_>, Option<&Module>, &Requirements) -> Result<(), Reason>,
) -> Result<(), Reason> {
    let mut conflict = Ok(());
    for (module, entry) in entries(question) {
        let entry = entry?;
        if entry.base.as_ref().is_some_and(|base| !base.labels_match(&question.base.facts.labels)) {
            return Err(Reason::BaseLabels { module: module.name.clone() });
        }
        provides(question, Some(module), &entry.requirements)?;
        modules(question, Some(module), &entry.requirements)?;
        conflict = conflict.and_then(|()| conflicts(question, module, &entry.requirements.conflicts));
    }
    provides(question, None, &question.pod.requirements)?;
    modules(question, None, &question.pod.requirements)?;
    // What cannot be resolved speaks first.
    for module in &question.pod.modules {
        conflict = conflict
            .and_then(|()| conflicts(question, module, &question.pod.requirements.conflicts))
            .and_then(|()| unwelcome(question, module));
    }
    conflict
}

fn provides(question: &Question<'_>, module: Option<&Module>, needs: &Requirements) -> Result<(), Reason> {
    let name = || -> Option<Arc<str>> { module.map(|module| module.name.clone()) };
    for need in &needs.provides {
        let inventory = super::inventory(question)?;
        let provided = match &need.versions {
            None => inventory.provides.contains_key(&need.name),
            Some(range) => question.base.facts.provides.get(&need.name).is_some_and(|v| range.contains(v)),
        };
        if !provided {
            return Err(if inventory.truncated && !inventory.provides.contains_key(&need.name) {
                Reason::InventoryTruncated
            } else {
                Reason::MissingCapability { module: name() }
            });
        }
    }
    Ok(())
}

fn modules(question: &Question<'_>, module: Option<&Module>, needs: &Requirements) -> Result<(), Reason> {
    for need in &needs.modules {
        let inventory = super::inventory(question)?;
        if !together(question, need) && !active(question, need) {
            return Err(if inventory.truncated {
                Reason::InventoryTruncated
            } else {
                Reason::MissingModule { module: module.map(|module| module.name.clone()) }
            });
        }
    }
    Ok(())
}

/// In the same Pod.
fn together(question: &Question<'_>, need: &ModulePattern) -> bool {
    question
        .pod
        .modules
        .iter()
        .any(|module| need.matches(&module.name, module.comparable.as_ref()) == Some(true))
}

/// Activated on the base, and not about to leave.
fn active(question: &Question<'_>, need: &ModulePattern) -> bool {
    // The cheap question first: most modules have another name.
    question.base.entries().any(|(entry, version)| {
        need.matches(&entry.name, version) == Some(true)
            && entry.state == ModuleState::Activated
            && question.base.stays(entry)
    })
}

/// One of `patterns` is on the base or in the same Pod. A version that is not known may be the one.
fn conflicts(question: &Question<'_>, module: &Module, patterns: &[ModulePattern]) -> Result<(), Reason> {
    if patterns.is_empty() {
        return Ok(());
    }
    super::whole_inventory(question)?;
    let meant = |name: &str, version| patterns.iter().any(|p| p.matches(name, version) != Some(false));
    let there = question
        .base
        .staying(question.pod)
        .any(|other| *other.name != *module.name && meant(other.name, other.comparable));
    let beside = question
        .pod
        .modules
        .iter()
        .any(|other| other.name != module.name && meant(&other.name, other.comparable.as_ref()));
    if there || beside { Err(Reason::Conflict { module: module.name.clone() }) } else { Ok(()) }
}

/// The other direction: a module on the base does not bear this one.
fn unwelcome(question: &Question<'_>, module: &Module) -> Result<(), Reason> {
    let meant = |patterns: &[ModulePattern]| {
        patterns.iter().any(|p| p.matches(&module.name, module.comparable.as_ref()) != Some(false))
    };
    let refuses = question.policy.compatibility.iter().filter(|entry| meant(&entry.requirements.conflicts));
    for entry in refuses {
        super::whole_inventory(question)?;
        let mut staying = question.base.staying(question.pod);
        if staying
            .any(|o| *o.name != *module.name && entry.module.matches(o.name, o.comparable) != Some(false))
        {
            return Err(Reason::Conflict { module: module.name.clone() });
        }
    }
    let staying = question.base.others(question.pod).filter(|other| !other.deleting);
    let mut pods = staying.filter(|other| other.modules.iter().any(|m| m.name != module.name));
    if pods.any(|other| meant(&other.requirements.conflicts)) {
        return Err(Reason::Conflict { module: module.name.clone() });
    }
    Ok(())
}
