//! A report for a terminal.

use std::fmt::{self, Display};

use super::{BaseChange, ModuleChange, PodChange, Report};
use crate::explain::aligned;

/// What changes, and nothing else: modules, bases, Pods, then the counts.
impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sections = Vec::new();
        let modules = self.modules.iter().filter(|(_, module)| module.changed > 0);
        sections.push(section(["MODULE", "PODS", "CHANGED", "DISPLACED", "STRANDED"], modules.map(module)));
        let bases = self.bases.iter().filter(|(_, base)| base.is_change());
        sections
            .push(section(["BASE", "PODS", "PODS PER BASE", "MODULES PER BASE", "TAKES"], bases.map(base)));
        let pods = self.pods.iter().filter(|(_, pod)| pod.is_change());
        sections.push(section(["POD", "NODE", "FITS ON", "REJECTED BY", "NOTE"], pods.map(pod)));
        for section in sections.iter().flatten() {
            writeln!(f, "{section}")?;
        }
        let sum = &self.summary;
        writeln!(
            f,
            "{} of {} Pods may go elsewhere, {} displaced, {} stranded; {} of {} bases too full",
            sum.changed, sum.pods, sum.displaced, sum.stranded, sum.crowded, sum.bases
        )
    }
}

fn section(head: [&str; 5], rows: impl Iterator<Item = [String; 5]>) -> Option<String> {
    let mut all = vec![head.map(str::to_owned)];
    all.extend(rows);
    (all.len() > 1).then(|| aligned(&all))
}

fn module((name, change): (&String, &ModuleChange)) -> [String; 5] {
    let ModuleChange { pods, changed, displaced, stranded } = change;
    [name.clone(), pods.to_string(), changed.to_string(), displaced.to_string(), stranded.to_string()]
}

fn base((node, change): (&String, &BaseChange)) -> [String; 5] {
    let [before, after] = change.pods_per_base.map(Some);
    let crowded = if change.is_crowded() { " (too full)" } else { "" };
    [
        node.clone(),
        change.pods.to_string(),
        step(before, after) + crowded,
        step(change.modules_per_base[0], change.modules_per_base[1]),
        format!("+{} -{} Pods", change.gained, change.lost),
    ]
}

fn step(before: Option<u32>, after: Option<u32>) -> String {
    let shown = |limit: Option<u32>| limit.map_or("no limit".to_owned(), |limit| limit.to_string());
    if before == after { shown(before) } else { format!("{} -> {}", shown(before), shown(after)) }
}

fn pod((key, change): (&String, &PodChange)) -> [String; 5] {
    let rejected: Vec<String> =
        change.rejected.iter().map(|(code, count)| format!("{code} {count}")).collect();
    let note = match (change.is_stranded(), change.displaced) {
        (true, _) => "stranded: fits nowhere any more",
        (false, true) => "displaced: would not be placed again where it is",
        (false, false) => "",
    };
    [
        key.clone(),
        change.node.clone().unwrap_or_else(|| "-".to_owned()),
        format!("{} -> {}", change.before, change.after),
        rejected.join(", "),
        note.to_owned(),
    ]
}
