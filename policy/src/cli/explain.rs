//! `stowage-policy explain`.

use std::{io::Write, path::Path};

use serde::Serialize;

use super::{InputError, Outcome, Output, input, json};
use crate::{
    explain::{Verdict, explain, table},
    rule,
    view::BaseView,
};

/// What is asked.
pub(super) struct Asked<'a> {
    pub(super) policy: Option<&'a Path>,
    pub(super) pod: &'a str,
    pub(super) node: Option<&'a str>,
    pub(super) all: bool,
    pub(super) output: Output,
    pub(super) snapshot: &'a Path,
}

/// The answer as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation<'a> {
    pod: &'a str,
    /// Where the Pod is bound to.
    bound_to: Option<&'a str>,
    /// Why no rule was asked: it is no module Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<Refused>,
    nodes: &'a [Verdict],
    /// Nodes of ours that cannot be understood, with the reason.
    broken: &'a [(String, String)],
}

#[derive(Serialize)]
struct Refused {
    code: &'static str,
    text: String,
}

pub(super) fn run(asked: &Asked<'_>, out: &mut impl Write) -> Result<Outcome, InputError> {
    let policy = input::policy(asked.policy)?;
    let snapshot = input::snapshot(asked.snapshot)?;
    let kind = snapshot.pods.iter().find(|(key, _)| key == asked.pod).map(|(_, kind)| kind);
    let kind = kind.ok_or_else(|| InputError::NoPod(asked.pod.to_owned()))?;
    let (module, refused) = match rule::kind::check(kind, true) {
        Ok(module) => (module, None),
        Err(reason) => (None, Some(Refused { code: reason.code(), text: reason.text() })),
    };
    let mut nodes = Vec::new();
    if let Some(module) = module {
        let all: Vec<BaseView<'_>> = snapshot.bases.iter().map(|facts| snapshot.view(facts)).collect();
        nodes = explain(&policy, module, &all);
        nodes.retain(|verdict| asked.node.is_none_or(|node| node == verdict.node));
    }
    let fitting = nodes.iter().filter(|verdict| verdict.fits).count();
    let bound_to = module.and_then(|module| module.node_name.as_deref());
    match asked.output {
        Output::Json => {
            json(
                &Explanation { pod: asked.pod, bound_to, refused, nodes: &nodes, broken: &snapshot.broken },
                out,
            )?;
        }
        Output::Table => {
            let place = bound_to.map_or("not bound".to_owned(), |node| format!("bound to {node}"));
            let broken = snapshot.broken.iter().map(|(name, error)| format!("{name}: {error}\n"));
            let answer = || {
                format!(
                    "Pod {}, {place}; fits on {fitting} of {} virtual nodes\n\n{}{}",
                    asked.pod,
                    nodes.len(),
                    table(&nodes, asked.all),
                    broken.collect::<String>()
                )
            };
            let text =
                refused.map_or_else(answer, |Refused { code, text }| format!("no node: {text} [{code}]\n"));
            out.write_all(text.as_bytes()).map_err(InputError::Write)?;
        }
    }
    if fitting > 0 { Ok(Outcome::Well) } else { Ok(Outcome::Bad) }
}
