//! Rule `artifact`: whether the modules may come from where they come from. What is no URL is never allowed.

use crate::{
    contract::{ArtifactSource, Module},
    decide::Question,
    model::allowed_by_default,
    reason::Reason,
};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    let allowed = |source: &ArtifactSource| match &question.policy.artifacts {
        None => allowed_by_default(source),
        Some(entries) => entries.iter().any(|entry| entry.admits(source)),
    };
    let refused = |module: &&Module| !module.source.as_ref().is_some_and(allowed);
    match question.pod.modules.iter().find(refused) {
        Some(module) => Err(Reason::Artifact { container: module.container.clone() }),
        None => Ok(()),
    }
}
