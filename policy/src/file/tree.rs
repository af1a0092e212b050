//! YAML as a tree that knows where everything stands. Scalars keep their text: `2.10` stays `2.10`.

use std::iter::Peekable;

use granit_parser::{Event, Marker, Options, Parser, ScalarStyle, ScanError, Span};

use super::{LONGEST, Problem, reader::Report};

/// Deepest nesting.
const DEEPEST: usize = 32;
/// Most nodes of a file.
const MOST: usize = 100_000;

/// A place in the text, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Scalar { text: String, plain: bool },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) at: Position,
    pub(super) value: Node,
}

impl Node {
    /// Nothing is written, or `null`.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }
}

/// The documents of `text` that hold something. What is not YAML ends the reading.
pub(super) fn documents(text: &str, report: &mut Report) -> Vec<Node> {
    if text.len() > LONGEST {
        report.at_start(&format!("the file has {} bytes, more than {LONGEST}", text.len()));
        return Vec::new();
    }
    let mut options = Options::default();
    options.emit_comments = false;
    let parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder { events: parser.peekable(), left: MOST };
    let mut found = Vec::new();
    loop {
        match builder.document() {
            Ok(Some(node)) if node.is_nothing() => {}
            Ok(Some(node)) => found.push(node),
            Ok(None) => return found,
            Err((at, message)) => {
                report.problems.push(Problem {
                    line: at.line,
                    column: at.column,
                    path: String::new(),
                    text: String::new(),
                    message,
                });
                return found;
            }
        }
    }
}

type Failure = (Position, String);

struct Builder<I: Iterator> {
    events: Peekable<I>,
    left: usize,
}

impl<'a, I: Iterator<Item = Result<(Event<'a>, Span), ScanError>>> Builder<I> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Position)>, Failure> {
        match self.events.next() {
            None => Ok(None),
            Some(Ok((event, span))) => Ok(Some((event, position(&span.start)))),
            Some(Err(error)) => Err((position(error.marker()), format!("not YAML: {}", error.info()))),
        }
    }

    fn document(&mut self) -> Result<Option<Node>, Failure> {
        while let Some((event, at)) = self.next()? {
            match event {
                Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) | Event::Alias(..) => {
                    return self.node(event, at, DEEPEST).map(Some);
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn node(&mut self, event: Event<'a>, at: Position, depth: usize) -> Result<Node, Failure> {
        self.left = self.left.checked_sub(1).ok_or_else(|| (at, format!("more than {MOST} values")))?;
        let depth = depth.checked_sub(1).ok_or_else(|| (at, format!("nested more than {DEEPEST} deep")))?;
        let value = match event {
            Event::Scalar(text, style, anchor, tag) => {
                plainly(at, anchor, tag.is_some())?;
                Value::Scalar { text: text.into_owned(), plain: matches!(style, ScalarStyle::Plain) }
            }
            Event::SequenceStart(_, anchor, tag) => {
                plainly(at, anchor, tag.is_some())?;
                Value::List(self.list(depth)?)
            }
            Event::MappingStart(_, anchor, tag) => {
                plainly(at, anchor, tag.is_some())?;
                Value::Map(self.map(depth)?)
            }
            _ => return Err((at, "anchors and aliases are not supported, write it out".to_owned())),
        };
        Ok(Node { at, value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Failure> {
        let mut found = Vec::new();
        while let Some((event, at)) = self.next()? {
            match event {
                Event::SequenceEnd => break,
                event => found.push(self.node(event, at, depth)?),
            }
        }
        Ok(found)
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Failure> {
        let mut found = Vec::new();
        while let Some((event, at)) = self.next()? {
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let Node { at, value: Value::Scalar { text: key, .. } } = self.node(event, at, depth)? else {
                return Err((at, "a field's name must be plain text".to_owned()));
            };
            let Some((event, value_at)) = self.next()? else { break };
            found.push(Entry { key, at, value: self.node(event, value_at, depth)? });
        }
        Ok(found)
    }
}

/// Anchors would make a small file a large one, tags would change what a text means.
fn plainly(at: Position, anchor: usize, tagged: bool) -> Result<(), Failure> {
    if anchor != 0 {
        return Err((at, "anchors and aliases are not supported, write it out".to_owned()));
    }
    if tagged {
        return Err((at, "tags are not supported".to_owned()));
    }
    Ok(())
}

fn position(marker: &Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col() + 1 }
}
