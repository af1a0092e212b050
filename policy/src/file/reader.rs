//! Typed readings of the tree. Each notes what is wrong and goes on, so that all errors come at once.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use super::{
    Problem, duration,
    tree::{Entry, Node, Position, Value},
};
use crate::{
    model::{Glob, Quantity},
    version::Range,
};

/// What a reading found out.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

/// A value and the way to it.
#[derive(Debug)]
pub(super) struct Field<'a> {
    pub(super) path: String,
    node: &'a Node,
}

/// The fields of an object.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    path: String,
    at: Position,
    entries: &'a [Entry],
}

impl Report {
    pub(super) fn problem(&mut self, field: &Field<'_>, message: impl Into<String>) {
        self.problems.push(note(field, message.into()));
    }

    pub(super) fn warning(&mut self, field: &Field<'_>, message: impl Into<String>) {
        self.warnings.push(note(field, message.into()));
    }

    pub(super) fn at_start(&mut self, message: &str) {
        self.problems.push(Problem {
            line: 1,
            column: 1,
            path: String::new(),
            text: String::new(),
            message: message.to_owned(),
        });
    }
}

fn note(field: &Field<'_>, message: String) -> Problem {
    let Position { line, column } = field.node.at;
    let text = match &field.node.value {
        Value::Scalar { text, .. } => cut(text),
        Value::List(_) | Value::Map(_) => String::new(),
    };
    Problem { line, column, path: field.path.clone(), text, message }
}

fn cut(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

impl<'a> Field<'a> {
    pub(super) fn document(node: &'a Node) -> Self {
        Self { path: String::new(), node }
    }

    pub(super) fn position(&self) -> Position {
        self.node.at
    }

    /// An object, whatever its fields.
    pub(super) fn head(&self, report: &mut Report) -> Option<Fields<'a>> {
        let Value::Map(entries) = &self.node.value else {
            report.problem(self, "expected an object");
            return None;
        };
        Some(Fields { path: self.path.clone(), at: self.node.at, entries })
    }

    /// An object with fields of these names only, each once and with a value.
    pub(super) fn object(&self, names: &[&str], report: &mut Report) -> Option<Fields<'a>> {
        let fields = self.head(report)?;
        for (index, entry) in fields.entries.iter().enumerate() {
            let mut note = |message: String| {
                report.problems.push(Problem {
                    line: entry.at.line,
                    column: entry.at.column,
                    path: joined(&self.path, &cut(&entry.key)),
                    text: cut(&entry.key),
                    message,
                });
            };
            if !names.contains(&entry.key.as_str()) {
                note(format!("unknown field, expected one of {}", names.join(", ")));
            } else if fields.entries.iter().take(index).any(|earlier| earlier.key == entry.key) {
                note("this field stands here twice".to_owned());
            } else if entry.value.is_nothing() {
                note("this field has no value".to_owned());
            }
        }
        Some(fields)
    }

    /// A list; each element with its index in the path.
    pub(super) fn list(&self, report: &mut Report) -> Option<Vec<Field<'a>>> {
        let Value::List(nodes) = &self.node.value else {
            report.problem(self, "expected a list");
            return None;
        };
        let fields = nodes.iter().enumerate();
        Some(fields.map(|(index, node)| Field { path: format!("{}[{index}]", self.path), node }).collect())
    }

    /// Names to texts.
    pub(super) fn texts(&self, report: &mut Report) -> Option<BTreeMap<String, String>> {
        let Value::Map(entries) = &self.node.value else {
            report.problem(self, "expected an object of texts");
            return None;
        };
        let mut found = BTreeMap::new();
        for entry in entries {
            let field = Field { path: joined(&self.path, &cut(&entry.key)), node: &entry.value };
            let text = field.text(report)?;
            if found.insert(entry.key.clone(), text.to_owned()).is_some() {
                report.problem(&field, "this name stands here twice");
            }
        }
        Some(found)
    }

    /// A text that is not empty, quoted or not.
    pub(super) fn text(&self, report: &mut Report) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar { text, .. } if !text.is_empty() && !self.node.is_nothing() => Some(text),
            _ => {
                report.problem(self, "expected a text");
                None
            }
        }
    }

    /// What `parse` makes of the text; `None` is the problem that it is not `expected`.
    pub(super) fn parsed<T>(
        &self,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        report: &mut Report,
    ) -> Option<T> {
        let value = match &self.node.value {
            Value::Scalar { text, .. } => parse(text),
            Value::List(_) | Value::Map(_) => None,
        };
        if value.is_none() {
            report.problem(self, format!("expected {expected}"));
        }
        value
    }

    /// A number without quotes.
    pub(super) fn integer(&self, within: RangeInclusive<u32>, report: &mut Report) -> Option<u32> {
        let expected = if *within.end() == u32::MAX {
            format!("an integer of at least {}", within.start())
        } else {
            format!("an integer from {} to {}", within.start(), within.end())
        };
        let plain = matches!(&self.node.value, Value::Scalar { plain: true, .. });
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let read = |text: &str| text.parse().ok().filter(|n| plain && digits(text) && within.contains(n));
        self.parsed(&expected, read, report)
    }

    /// `true` or `false`; not `yes`, not `on`.
    pub(super) fn boolean(&self, report: &mut Report) -> Option<bool> {
        let plain = matches!(&self.node.value, Value::Scalar { plain: true, .. });
        let read = |text: &str| match text {
            "true" if plain => Some(true),
            "false" if plain => Some(false),
            _ => None,
        };
        self.parsed("true or false", read, report)
    }

    pub(super) fn duration(&self, report: &mut Report) -> Option<Duration> {
        self.parsed("a duration such as 10s or 5m, of at most a year", duration::parse, report)
    }

    /// A duration of more than nothing.
    pub(super) fn positive_duration(&self, report: &mut Report) -> Option<Duration> {
        let positive = |text: &str| duration::parse(text).filter(|d| !d.is_zero());
        self.parsed("a duration of more than 0, such as 10s or 5m", positive, report)
    }

    /// A duration, or the word that stands for `None`.
    #[expect(
        clippy::option_option,
        reason = "the outer one says that the field was wrong, as in all readings"
    )]
    pub(super) fn duration_or(&self, word: &str, report: &mut Report) -> Option<Option<Duration>> {
        let read = |text: &str| if text == word { Some(None) } else { duration::parse(text).map(Some) };
        self.parsed(&format!("`{word}` or a duration such as 10s or 5m"), read, report)
    }

    pub(super) fn percent(&self, report: &mut Report) -> Option<u32> {
        let read = |text: &str| {
            let digits = text.strip_suffix('%')?;
            let number = digits.parse().ok()?;
            (digits.bytes().all(|b| b.is_ascii_digit()) && number <= 100).then_some(number)
        };
        self.parsed("a percentage from 0% to 100%", read, report)
    }

    pub(super) fn range(&self, report: &mut Report) -> Option<Range> {
        let text = self.text(report)?;
        match Range::parse(text) {
            Ok(range) => {
                if range.is_never() {
                    report.warning(self, "no version is in this range, so nothing ever matches");
                }
                for version in range.previews_admitted() {
                    let message = format!("the range admits {version}-SNAPSHOT, as in Maven");
                    report.warning(self, message);
                }
                Some(range)
            }
            Err(error) => {
                report.problem(self, format!("not a range of versions: {error}"));
                None
            }
        }
    }

    pub(super) fn quantity(&self, report: &mut Report) -> Option<Quantity> {
        let text = self.text(report)?;
        Quantity::parse(text).map_err(|error| report.problem(self, error.to_string())).ok()
    }

    pub(super) fn glob(&self, report: &mut Report) -> Option<Glob> {
        self.text(report).map(Glob::new)
    }

    /// One of these words.
    pub(super) fn one_of<T: Copy>(&self, words: &[(&str, T)], report: &mut Report) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let expected = if names.len() > 1 { format!("one of {}", names.join(", ")) } else { names.join("") };
        let read = |text: &str| words.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        self.parsed(&expected, read, report)
    }
}

impl<'a> Fields<'a> {
    /// The field, if it is there and has a value.
    pub(super) fn get(&self, name: &str) -> Option<Field<'a>> {
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        (!entry.value.is_nothing()).then(|| Field { path: joined(&self.path, name), node: &entry.value })
    }

    pub(super) fn required(&self, name: &str, report: &mut Report) -> Option<Field<'a>> {
        let found = self.get(name);
        if found.is_none() {
            report.problems.push(Problem {
                line: self.at.line,
                column: self.at.column,
                path: self.path.clone(),
                text: String::new(),
                message: format!("the field `{name}` is missing"),
            });
        }
        found
    }

    /// Reads a field into `slot`, which holds its default.
    pub(super) fn set<T>(
        &self,
        name: &str,
        slot: &mut T,
        read: impl FnOnce(&Field<'a>, &mut Report) -> Option<T>,
        report: &mut Report,
    ) {
        let Some(field) = self.get(name) else { return };
        if let Some(value) = read(&field, report) {
            *slot = value;
        }
    }
}
