//! Rule `metaspace`: the declared need fits into what is left. An unknown maximum admits.
//!
//! Left is the maximum, less the lowest use since classes were last unloaded, less what placements not yet installed
//! declare.

use crate::{
    contract::{ModulePod, ModuleState},
    decide::Question,
    reason::Reason,
    view::BaseView,
};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let Some(need) = question.pod.metaspace else { return Ok(()) };
    match left(&question.base, question.pod) {
        Some(left) if need > left => Err(Reason::Metaspace),
        _ => Ok(()),
    }
}

/// Bytes left for `pod`; `None` where the maximum is not known.
pub(crate) fn left(base: &BaseView<'_>, pod: &ModulePod) -> Option<u64> {
    let metaspace = base.facts.metaspace()?;
    let promised: u64 = base
        .others(pod)
        .filter(|other| !other.deleting)
        .filter_map(|other| other.metaspace.filter(|_| !installed(*base, other)))
        .fold(0, u64::saturating_add);
    Some(metaspace.max?.saturating_sub(metaspace.lowest).saturating_sub(promised))
}

fn installed(base: BaseView<'_>, pod: &ModulePod) -> bool {
    pod.modules.iter().all(|module| {
        base.entries().any(|(entry, _)| {
            entry.name == module.name
                && entry.state != ModuleState::Resolved
                && entry.owner.as_ref().is_some_and(|owner| owner.uid == pod.uid)
        })
    })
}
