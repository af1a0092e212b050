//! `stowage-policy simulate`.

use std::{io::Write, path::Path};

use super::{InputError, Outcome, input};
use crate::{
    Policy,
    contract::PodKind,
    decide::decide,
    simulate::{Fit, compare},
    view::BaseView,
};

pub(super) fn run(
    before: Option<&Path>,
    after: &Path,
    snapshot: &Path,
    out: &mut impl Write,
) -> Result<Outcome, InputError> {
    let (before, after) = (input::policy(before)?, input::policy(Some(after))?);
    let snapshot = input::snapshot(snapshot)?;
    let bases: Vec<BaseView<'_>> = snapshot.bases.iter().map(|facts| snapshot.view(facts)).collect();
    let mut stranded = 0;
    for (key, kind) in &snapshot.pods {
        let PodKind::Module(pod) = kind else { continue };
        if pod.terminal || pod.deleting {
            continue;
        }
        let fit = compare(&before, &after, pod, &bases);
        stranded += usize::from(fit.after == 0);
        let here = bases.iter().find(|base| Some(&base.facts.node) == pod.node_name.as_ref());
        let stays = here.map_or("", |base| standing(&after, pod, base));
        let Fit { before, after, .. } = fit;
        writeln!(out, "{key}: fits on {before} bases before, {after} after{stays}")
            .map_err(InputError::Write)?;
        for (code, count) in fit.rejected_after {
            writeln!(out, "  {count} {code}").map_err(InputError::Write)?;
        }
    }
    if stranded == 0 { Ok(Outcome::Well) } else { Ok(Outcome::Bad) }
}

/// Running Pods are never removed by a policy change, but would not be placed there again.
fn standing(policy: &Policy, pod: &crate::contract::ModulePod, base: &BaseView<'_>) -> &'static str {
    if decide(policy, pod, base).is_ok() { "" } else { " (would not be placed again where it is)" }
}
