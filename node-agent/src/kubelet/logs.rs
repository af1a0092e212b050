//! The lines of a container as a body: what is there, then, for followers, what comes.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::stream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::query::Query;
use crate::journal::{Journal, Line, Reading, Run};
use crate::lease::Term;

/// A follower is let go after this time, as a kubelet does.
pub(super) const LONGEST: Duration = Duration::from_hours(4);

/// What a body is made of.
pub(super) struct Source {
    pub(super) journal: Journal,
    pub(super) uid: String,
    pub(super) container: String,
    pub(super) query: Query,
}

/// What ends the following.
pub(super) struct Follower {
    pub(super) changes: watch::Receiver<()>,
    pub(super) term: watch::Receiver<Option<Term>>,
    pub(super) shutdown: CancellationToken,
    /// One of few.
    pub(super) place: OwnedSemaphorePermit,
}

/// The lines that are there.
pub(super) fn first(reading: &Reading, query: &Query) -> Bytes {
    let since = reading.lines.iter().filter(|line| query.since.is_none_or(|since| line.at >= since));
    let since: Vec<&Line> = if query.stderr { Vec::new() } else { since.collect() };
    let skipped = query.tail.map_or(0, |tail| since.len().saturating_sub(tail));
    let whole = query.since.is_none() && query.tail.is_none();
    rendered(since.into_iter().skip(skipped), reading.gap && whole, query)
}

fn rendered<'a>(lines: impl Iterator<Item = &'a Line>, gap: bool, query: &Query) -> Bytes {
    let mut text = String::new();
    let mut lines = lines.peekable();
    if let Some(line) = lines.peek().filter(|_| gap) {
        append(&mut text, line.at, "earlier lines were dropped: a journal keeps the newest only", query);
    }
    for line in lines {
        append(&mut text, line.at, &line.text, query);
    }
    text.into()
}

fn append(out: &mut String, at: jiff::Timestamp, line: &str, query: &Query) {
    if query.timestamps {
        write!(out, "{at:.9} ").ok();
    }
    // A String takes everything.
    writeln!(out, "{at:.3} {line}").ok();
}

/// The first lines, and with a follower those that come.
pub(super) fn body(source: Source, reading: &Reading, follower: Option<Follower>) -> Body {
    let begin = first(reading, &source.query);
    let mut left = source.query.limit.unwrap_or(usize::MAX);
    let begin = cut(begin, &mut left);
    let Some(follower) = follower.filter(|_| !reading.closed && left > 0) else { return begin.into() };
    let state = Following { source, follower, next: reading.next, left, until: Instant::now() + LONGEST };
    Body::from_stream(stream::unfold((Some(begin), Some(state)), |(begin, state)| async move {
        // An empty first piece sends the head of the answer, so that the caller knows that it waits for lines.
        if let Some(begin) = begin {
            return Some((Ok::<_, Infallible>(begin), (None, state)));
        }
        let (piece, state) = state?.more().await?;
        Some((Ok(piece), (None, state)))
    }))
}

/// At most what is left of the bytes that were asked for.
fn cut(mut piece: Bytes, left: &mut usize) -> Bytes {
    piece.truncate(*left);
    *left = left.saturating_sub(piece.len());
    piece
}

struct Following {
    source: Source,
    follower: Follower,
    next: u64,
    left: usize,
    until: Instant,
}

impl Following {
    /// Waits for lines; `None` when no more come.
    async fn more(mut self) -> Option<(Bytes, Option<Self>)> {
        loop {
            let Source { journal, uid, container, query } = &self.source;
            let Follower { changes, term, shutdown, place: _place } = &mut self.follower;
            tokio::select! {
                changed = changes.changed() => changed.ok()?,
                _ = term.wait_for(Option::is_none) => return None,
                () = shutdown.cancelled() => return None,
                () = tokio::time::sleep_until(self.until) => return None,
            }
            let reading = journal.read(uid, container, Run::Current, self.next)?;
            self.next = reading.next;
            let piece =
                if query.stderr { Bytes::new() } else { rendered(reading.lines.iter(), reading.gap, query) };
            let piece = cut(piece, &mut self.left);
            let over = reading.closed || self.left == 0;
            if !piece.is_empty() || over {
                return Some((piece, (!over).then_some(self)));
            }
        }
    }
}
