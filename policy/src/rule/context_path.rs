//! Rule `context path`: no two web modules share a declared path, and none takes the base's own.

use crate::{contract::Module, decide::Question, reason::Reason};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let modules = &question.pod.modules;
    for (at, module) in modules.iter().enumerate() {
        let Some(path) = module.context_path.as_deref() else { continue };
        let inventory = super::whole_inventory(question)?;
        let base = inventory.context_path.as_deref().is_some_and(|own| same(own, path));
        if base || declared(modules.iter().take(at), module, path) || taken(question, module, path) {
            return Err(Reason::ContextPath { module: module.name.clone() });
        }
    }
    Ok(())
}

/// Versions of one name may share a path: only one of them serves it.
fn declared<'a>(mut modules: impl Iterator<Item = &'a Module>, module: &Module, path: &str) -> bool {
    modules.any(|other| {
        other.name != module.name && other.context_path.as_deref().is_some_and(|theirs| same(theirs, path))
    })
}

fn taken(question: &Question<'_>, module: &Module, path: &str) -> bool {
    let staying = question.base.others(question.pod).filter(|other| !other.deleting);
    if declared(staying.flat_map(|other| other.modules.iter()), module, path) {
        return true;
    }
    question.base.entries().any(|(entry, _)| {
        let mine = entry.owner.as_ref().is_some_and(|owner| owner.uid == question.pod.uid);
        let going = mine || !question.base.stays(entry);
        // arklet says `/` for modules that declare nothing.
        let reported = entry.context_path.as_deref().filter(|theirs| !theirs.trim_matches('/').is_empty());
        !going && entry.name != module.name && reported.is_some_and(|theirs| same(theirs, path))
    })
}

/// `shop`, `/shop` and `/shop/` are the same path.
fn same(a: &str, b: &str) -> bool {
    a.trim_matches('/') == b.trim_matches('/')
}
