//! Rule `module limit`: how many modules the base would hold, foreign ones and those still leaving included.

use crate::{decide::Question, reason::Reason};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let Some(limit) = question.limits.modules_per_base else { return Ok(()) };
    super::whole_inventory(question)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // Most bases are far from it, whoever owns what.
    if most(question) > limit && total(question) > limit { Err(Reason::ModuleLimit) } else { Ok(()) }
}

/// At least [`total`], and counted without looking at any module.
fn most(question: &Question<'_>) -> usize {
    let of_pods: usize = question.base.others(question.pod).map(|other| other.modules.len()).sum();
    question.pod.modules.len() + of_pods + question.base.entries().count()
}

/// Modules on the base with the Pod's.
pub(crate) fn total(question: &Question<'_>) -> usize {
    let mine = &question.pod.modules;
    // A leaving module that one of ours replaces is gone before ours comes.
    let replaced = |name: &str| mine.iter().any(|module| *module.name == *name);
    let of_pods =
        question.base.others(question.pod).flat_map(|other| other.modules.iter().map(move |m| (other, m)));
    let bound = of_pods.filter(|(other, module)| !(other.deleting && replaced(&module.name))).count();
    let rest = question
        .base
        .entries()
        .filter(|(entry, _)| match &entry.owner {
            None => true,
            Some(owner) => {
                owner.uid != question.pod.uid && !question.base.has_owner(entry) && !replaced(&entry.name)
            }
        })
        .count();
    bound + rest + mine.len()
}
