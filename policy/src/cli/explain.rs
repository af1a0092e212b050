//! `stowage-policy explain`.

use std::{io::Write, path::Path};

use super::{InputError, Outcome, input};
use crate::{explain::explain, rule, view::BaseView};

pub(super) fn run(
    policy: Option<&Path>,
    pod: &str,
    node: Option<&str>,
    snapshot: &Path,
    out: &mut impl Write,
) -> Result<Outcome, InputError> {
    let policy = input::policy(policy)?;
    let snapshot = input::snapshot(snapshot)?;
    let kind = snapshot.pods.iter().find(|(key, _)| key == pod).map(|(_, kind)| kind);
    let kind = kind.ok_or_else(|| InputError::NoPod(pod.to_owned()))?;
    let module = match rule::kind::check(kind, true) {
        Ok(Some(module)) => module,
        Ok(None) => return Ok(Outcome::Bad),
        Err(reason) => {
            writeln!(out, "no node: {} [{}]", reason.text(), reason.code()).map_err(InputError::Write)?;
            return Ok(Outcome::Bad);
        }
    };
    let all: Vec<BaseView<'_>> = snapshot.bases.iter().map(|facts| snapshot.view(facts)).collect();
    let verdicts = explain(&policy, module, &all);
    let mut fits = false;
    for verdict in verdicts.iter().filter(|verdict| node.is_none_or(|node| node == verdict.node)) {
        let line = if let Some(score) = verdict.score {
            fits = true;
            writeln!(out, "{}: yes, score {score}", verdict.node)
        } else {
            let reasons: Vec<String> =
                verdict.rejections.iter().map(|said| format!("{} [{}]", said.text, said.code)).collect();
            writeln!(out, "{}: no, {}", verdict.node, reasons.join("; "))
        };
        line.map_err(InputError::Write)?;
    }
    for (name, error) in &snapshot.broken {
        writeln!(out, "{name}: no, {error}").map_err(InputError::Write)?;
    }
    if fits { Ok(Outcome::Well) } else { Ok(Outcome::Bad) }
}
