//! Rule `recent failure`: this version just failed on this base. The agent takes the entry off when its back-off ends.

use crate::{contract::Module, decide::Question, reason::Reason};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let failures = &super::inventory(question)?.failures;
    let failed = |module: &&Module| {
        let version = module.known_version();
        failures.iter().any(|failure| failure.module == module.name && version == Some(&*failure.version))
    };
    match question.pod.modules.iter().find(failed) {
        Some(module) => Err(Reason::RecentFailure { module: module.name.clone() }),
        None => Ok(()),
    }
}
