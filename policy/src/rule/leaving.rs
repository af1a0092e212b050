//! Rules `leaving`, `overloaded`, `not ready`: the base takes nothing now. A cordon keeps away who does not tolerate it, as
//! on every Node: kube-scheduler sees to that before it asks, and whoever decides without it must know too.

use crate::{decide::Question, reason::Reason};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let facts = question.base.facts;
    if facts.leaving {
        Err(Reason::Leaving)
    } else if facts.cordoned && !question.pod.tolerates_cordon {
        Err(Reason::Cordoned)
    } else if facts.overloaded {
        Err(Reason::Overloaded)
    } else if !facts.ready {
        Err(Reason::NotReady)
    } else {
        Ok(())
    }
}
