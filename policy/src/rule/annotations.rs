//! Annotations that cannot be read: what the Pod wishes is not known, so it goes nowhere.

use crate::{decide::Question, reason::Reason};

pub(crate) fn check(question: &Question<'_>) -> Result<(), Reason> {
    match question.pod.malformed.first() {
        Some(annotation) => Err(Reason::MalformedAnnotation { annotation }),
        None => Ok(()),
    }
}
