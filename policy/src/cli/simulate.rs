//! `stowage-policy simulate`.

use std::{io::Write, path::Path};

use super::{FailOn, InputError, Outcome, Output, input, json};
use crate::{
    contract::PodKind,
    simulate::{BaseChange, compare},
    view::BaseView,
};

/// What is asked.
pub(super) struct Asked<'a> {
    pub(super) before: Option<&'a Path>,
    pub(super) after: &'a Path,
    pub(super) fail_on: FailOn,
    pub(super) output: Output,
    pub(super) snapshot: &'a Path,
}

pub(super) fn run(asked: &Asked<'_>, out: &mut impl Write) -> Result<Outcome, InputError> {
    let (before, after) = (input::policy(asked.before)?, input::policy(Some(asked.after))?);
    let snapshot = input::snapshot(asked.snapshot)?;
    let bases: Vec<BaseView<'_>> = snapshot.bases.iter().map(|facts| snapshot.view(facts)).collect();
    let pods = snapshot.pods.iter().filter_map(|(key, kind)| match kind {
        PodKind::Module(pod) => Some((key.as_str(), &**pod)),
        PodKind::Incomplete(_) | PodKind::Foreign => None,
    });
    let report = compare(&before, &after, pods, &bases);
    match asked.output {
        Output::Json => json(&report, out)?,
        Output::Table => write!(out, "{report}").map_err(InputError::Write)?,
    }
    let summary = &report.summary;
    let bad = match asked.fail_on {
        FailOn::Never => false,
        FailOn::Stranded => summary.stranded > 0,
        FailOn::Worse => summary.is_worse(),
        FailOn::Change => report.bases.values().any(BaseChange::is_change) || summary.changed > 0,
    };
    if bad { Ok(Outcome::Bad) } else { Ok(Outcome::Well) }
}
