//! `stowage-policy lint`.

use std::{io::Write, path::Path};

use super::{InputError, Outcome, input};
use crate::file::{self, Problem};

pub(super) fn run(path: &Path, strict: bool, out: &mut impl Write) -> Result<Outcome, InputError> {
    let text = input::policy_text(path)?;
    let name = if path == Path::new("-") { "<stdin>".to_owned() } else { path.display().to_string() };
    let (errors, warnings) = match file::load(&text) {
        Ok(loaded) => (Vec::new(), loaded.warnings),
        Err(problems) => (problems, Vec::new()),
    };
    for (problems, word) in [(&errors, "error"), (&warnings, "warning")] {
        for problem in problems {
            show(&name, &text, word, problem, out).map_err(InputError::Write)?;
        }
    }
    if errors.is_empty() && (!strict || warnings.is_empty()) { Ok(Outcome::Well) } else { Ok(Outcome::Bad) }
}

/// The message, then the line with a caret under the place.
fn show(name: &str, text: &str, word: &str, problem: &Problem, out: &mut impl Write) -> std::io::Result<()> {
    let Problem { line, column, path, message, .. } = problem;
    let field = if path.is_empty() { String::new() } else { format!("{path}: ") };
    writeln!(out, "{name}:{line}:{column}: {word}: {field}{message}")?;
    let Some(offending) = text.lines().nth(line.saturating_sub(1)) else { return Ok(()) };
    let offending: String =
        offending.chars().take(160).map(|c| if c.is_control() { ' ' } else { c }).collect();
    writeln!(out, "  {offending}")?;
    if *column <= 160 { writeln!(out, "  {}^", " ".repeat(column.saturating_sub(1))) } else { Ok(()) }
}
