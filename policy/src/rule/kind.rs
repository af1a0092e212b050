//! Rule `kind`: module Pods belong on `VNode`s, and nothing else does.

use crate::{
    contract::{ModulePod, PodKind},
    reason::Reason,
};

/// The module Pod that the other rules go on with; `None` for a Pod that is none of our business.
pub fn check(pod: &PodKind, on_vnode: bool) -> Result<Option<&ModulePod>, Reason> {
    match pod {
        PodKind::Module(pod) if on_vnode => Ok(Some(pod)),
        PodKind::Module(_) => Err(Reason::NotAVNode),
        PodKind::Incomplete(incomplete) => Err(Reason::IncompleteModulePod {
            container: incomplete.container.clone(),
            missing: incomplete.missing,
        }),
        PodKind::Foreign if on_vnode => Err(Reason::NotAModulePod),
        PodKind::Foreign => Ok(None),
    }
}
