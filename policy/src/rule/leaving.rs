//! Rules `leaving`, `overloaded`, `not ready`: the base takes nothing now.

use crate::{decide::Question, reason::Reason};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let facts = question.base.facts;
    if facts.leaving {
        Err(Reason::Leaving)
    } else if facts.overloaded {
        Err(Reason::Overloaded)
    } else if !facts.ready {
        Err(Reason::NotReady)
    } else {
        Ok(())
    }
}
