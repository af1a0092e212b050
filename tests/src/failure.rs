use std::{cell::Cell, error::Error, fmt, panic::Location, thread};

use crate::workdir;

/// What a test returns.
pub type TestResult = Result<(), Failure>;

thread_local! {
    /// Whether a failure was made on this thread, on which a test and all it drops live.
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the test of this thread is failing, by a panic or by an error that it returns.
pub(crate) fn test_fails() -> bool {
    thread::panicking() || FAILED.get()
}

/// Forgets failures: another test begins on this thread.
pub(crate) fn test_begins() {
    FAILED.set(false);
}

/// Any error, with the line whose `?` let it through. Prints as people read it: the message, and its causes as far as
/// the message does not tell them already.
///
/// ```
/// fn parse(text: &str) -> Result<i32, harness::Failure> {
///     Ok(text.parse()?)
/// }
/// let failure = format!("{:?}", parse("x").unwrap_err());
/// assert!(failure.starts_with("invalid digit found in string\n  at "), "{failure}");
/// ```
pub struct Failure {
    error: Box<dyn Error + Send + Sync>,
    at: &'static Location<'static>,
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        // The test runner tells nobody that a test has returned an error.
        workdir::keep();
        FAILED.set(true);
        Self { error: error.into(), at: Location::caller() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.error.to_string();
        write!(f, "{text}\n  at {}", self.at)?;
        let mut cause = self.error.source();
        while let Some(error) = cause {
            let why = error.to_string();
            if !text.contains(&why) {
                write!(f, "\n  because {why}")?;
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[from] std::num::ParseIntError);

    #[test]
    fn tells_line_and_causes() {
        let failed = || -> TestResult { Err(Outer("x".parse::<i32>().unwrap_err()))? };
        let text = format!("{:?}", failed().unwrap_err());
        assert!(text.starts_with(&format!("outer\n  at {}:", file!())), "{text}");
        assert!(text.ends_with("because invalid digit found in string"), "{text}");
        let text = Failure::from("plain words").to_string();
        assert!(text.starts_with("plain words"), "{text}");
    }
}
