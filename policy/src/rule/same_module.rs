//! Rule `same module`: never the same name and version twice, and no more versions side by side than allowed.
//!
//! An instance that is already leaving does not count. A version that is not known counts as any version.

use crate::{contract::Module, decide::Question, reason::Reason, view::Instance};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let inventory = super::whole_inventory(question)?;
    let allowed = if inventory.multi_version { question.limits.versions_per_module } else { 1 };
    for (at, module) in question.pod.modules.iter().enumerate() {
        let mine = question.pod.modules.iter().take(at).map(instance);
        let same_name = |other: &Instance<'_>| *other.name == *module.name;
        let there = question.base.staying_like(question.pod, |glance| glance == module.glance);
        let others = there.chain(mine).filter(same_name);
        judge(module, others, allowed)?;
    }
    Ok(())
}

fn instance(module: &Module) -> Instance<'_> {
    Instance { name: &module.name, version: module.known_version(), comparable: module.comparable.as_ref() }
}

fn judge<'a>(
    module: &Module,
    others: impl Iterator<Item = Instance<'a>>,
    allowed: u32,
) -> Result<(), Reason> {
    // An empty vector allocates nothing, and most of the time nobody has the name.
    let mut versions = Vec::new();
    for other in others {
        match (module.known_version(), other.version) {
            (Some(wanted), Some(there)) if wanted != there => {
                if !versions.contains(&there) {
                    versions.push(there);
                }
            }
            _ => return Err(Reason::SameModule { module: module.name.clone() }),
        }
    }
    if versions.len() >= usize::try_from(allowed).unwrap_or(usize::MAX) {
        return Err(Reason::OtherVersion { module: module.name.clone() });
    }
    Ok(())
}
