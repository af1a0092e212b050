//! Rule `stack`: the base has the technology that is asked for, by the Pod or by the policy; else `java`.

use crate::{contract::names::DEFAULT_STACK, decide::Question, reason::Reason};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let stack = &*question.base.facts.stack;
    let mut asked = question.pod.stack.is_some();
    let mut holds = question.pod.stack.as_deref().is_none_or(|wanted| wanted == stack);
    for concern in &question.applicant.needs {
        if let Some(wanted) = concern.entry()?.base.as_ref().and_then(|base| base.stack.as_deref()) {
            asked = true;
            holds &= wanted == stack;
        }
    }
    if holds && (asked || stack == DEFAULT_STACK) { Ok(()) } else { Err(Reason::Stack) }
}
