//! Rule `compatibility`: what modules need is there, and what they do not bear is not.

use std::sync::Arc;

use crate::{
    applicant::Feud,
    contract::{Module, ModulePod, ModuleState},
    decide::Question,
    model::{ModulePattern, Patterns, Requirements},
    reason::Reason,
};

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
    let Question { applicant, pod, .. } = *question;
    for concern in &applicant.needs {
        let (module, entry) = (concern.module, concern.entry()?);
        if entry.base.as_ref().is_some_and(|base| !base.labels_match(&question.base.facts.labels)) {
            return Err(Reason::BaseLabels { module: module.name.clone() });
        }
        provides(question, Some(module), &entry.requirements)?;
        modules(question, Some(module), &entry.requirements)?;
    }
    provides(question, None, &pod.requirements)?;
    modules(question, None, &pod.requirements)?;
    // What cannot be resolved spoke first.
    for feud in &applicant.feuds {
        conflicts(question, feud.module, &feud.unbearable)?;
    }
    for feud in &applicant.feuds {
        conflicts(question, feud.module, &applicant.unbearable)?;
        unwelcome(question, feud)?;
    }
    Ok(())
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

/// One of `patterns` is on the base or in the same Pod.
fn conflicts(question: &Question<'_>, module: &Module, patterns: &Patterns<'_>) -> Result<(), Reason> {
    let beside = |other: &Module| {
        other.name != module.name && patterns.may_mean(&other.name, other.comparable.as_ref())
    };
    if there(question, module, patterns)? || question.pod.modules.iter().any(beside) {
        return Err(Reason::Conflict { module: module.name.clone() });
    }
    Ok(())
}

/// The other direction: a module on the base does not bear this one.
fn unwelcome(question: &Question<'_>, feud: &Feud<'_>) -> Result<(), Reason> {
    let module = feud.module;
    let meant =
        |pattern: &ModulePattern| pattern.matches(&module.name, module.comparable.as_ref()) != Some(false);
    let averse = |other: &ModulePod| {
        other.requirements.conflicts.iter().any(meant) && other.modules.iter().any(|m| m.name != module.name)
    };
    let mut staying = question.base.others(question.pod).filter(|other| !other.deleting);
    if there(question, module, &feud.averse)? || staying.any(averse) {
        return Err(Reason::Conflict { module: module.name.clone() });
    }
    Ok(())
}

/// One of `patterns`, and not another version of `module`, is on the base.
fn there(question: &Question<'_>, module: &Module, patterns: &Patterns<'_>) -> Result<bool, Reason> {
    if patterns.is_empty() {
        return Ok(false);
    }
    super::whole_inventory(question)?;
    let mut staying = question.base.staying_like(question.pod, |glance| patterns.may_be(glance));
    Ok(staying.any(|other| patterns.may_mean(other.name, other.comparable) && *other.name != *module.name))
}
