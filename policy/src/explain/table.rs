//! Verdicts as a table for a terminal.

use std::fmt::Write;

use super::{Facts, Said, Verdict};

/// Best base first: a row for each term where the Pod fits, a row for each rule that rejects where it does not; with
/// `all` a row for every rule. What bases and Pods wrote is shown without control characters.
pub fn table(verdicts: &[Verdict], all: bool) -> String {
    let mut verdicts: Vec<&Verdict> = verdicts.iter().collect();
    verdicts.sort_by_key(|verdict| (std::cmp::Reverse(verdict.score), verdict.node.as_str()));
    let mut rows = vec![["NODE", "FITS", "SCORE", "SLOTS", "RULE OR TERM", "SAYS"].map(str::to_owned)];
    for verdict in verdicts {
        let before = rows.len();
        for (what, says) in lines(verdict, all) {
            let head = if rows.len() == before { head(verdict) } else { Default::default() };
            let [node, fits, score, slots] = head;
            rows.push([node, fits, score, slots, what, says]);
        }
    }
    aligned(&rows)
}

fn head(verdict: &Verdict) -> [String; 4] {
    let fits = if verdict.fits { "yes" } else { "no" };
    let score = verdict.score.map_or("-".to_owned(), |score| score.to_string());
    let slots = format!("{}/{}", verdict.slots.taken, verdict.slots.of);
    [verdict.node.clone(), fits.to_owned(), score, slots]
}

fn lines(verdict: &Verdict, all: bool) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for Said { rule, objection, facts } in &verdict.rules {
        let says = match objection {
            Some(objection) => format!("{} [{}]; {}", objection.text, objection.code, listed(facts)),
            None if all => format!("ok; {}", listed(facts)),
            None => continue,
        };
        found.push(((*rule).to_owned(), says));
    }
    for said in &verdict.terms {
        found.push((said.term.to_owned(), format!("{:.1} of 10, weight {}", said.score, said.weight)));
    }
    if found.is_empty() {
        found.push((String::new(), String::new()));
    }
    found
}

fn listed(facts: &Facts) -> String {
    facts.iter().map(|(name, fact)| format!("{name}: {fact}")).collect::<Vec<_>>().join("; ")
}

/// The last column is as wide as it is.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            // Writing to a String cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.extend(line.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }));
        text.push('\n');
    }
    text
}
