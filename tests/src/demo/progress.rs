//! Lines with times.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

/// Counts from its start.
pub(super) struct Progress(Instant);

impl Progress {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Says what goes on now.
    pub(super) fn begin(&self, what: &str) {
        self.line("...", what);
    }

    /// Says what has been reached.
    pub(super) fn done(&self, what: &str) {
        self.line("ok ", what);
    }

    /// Says what has become of an operation.
    pub(super) fn ended(&self, what: &str, took: Duration, error: Option<&str>) {
        let seconds = took.as_secs_f64();
        match error {
            None => self.line("ok ", &format!("{what} ({seconds:.1} s)")),
            Some(error) => self.line("BAD", &format!("{what} failed after {seconds:.1} s: {error}")),
        }
    }

    fn line(&self, mark: &str, what: &str) {
        let seconds = self.0.elapsed().as_secs_f64();
        // A closed standard output is no reason to end.
        writeln!(io::stdout(), "{seconds:6.1} s  {mark} {what}").ok();
    }
}
