//! Rule `access`: whether the Pod's namespace may use the base.

use crate::{decide::Question, reason::Reason};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let Some(access) = &question.policy.access else { return Ok(()) };
    let base = question.base.facts.like();
    let admitted = access.iter().any(|entry| entry.admits(&question.pod.namespace, &base));
    if admitted { Ok(()) } else { Err(Reason::Access) }
}
