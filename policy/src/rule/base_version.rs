//! Rule `base version`: the base's version is inside every range that is asked for, by the Pod and by the policy.

use crate::{decide::Question, reason::Reason, version::Range};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let version = question.base.facts.version.as_ref();
    let outside = |range: &Range| !version.is_some_and(|version| range.contains(version));
    if question.pod.base_version.as_ref().is_some_and(outside) {
        return Err(Reason::BaseVersion);
    }
    for concern in &question.applicant.needs {
        if concern.entry()?.base.as_ref().and_then(|base| base.version.as_ref()).is_some_and(outside) {
            return Err(Reason::BaseVersion);
        }
    }
    Ok(())
}
