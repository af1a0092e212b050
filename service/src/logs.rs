//! Logs: to standard error, for people or as JSON, with a level that can be changed while running.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Registry, reload};

/// How logs are written.
#[derive(Debug, Clone, Args)]
pub struct LogFlags {
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,kube=debug`
    #[arg(long, value_name = "FILTER", default_value = "info", env = "STOWAGE_LOG_LEVEL")]
    pub log_level: String,
    /// How a line looks
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Human)]
    pub log_format: LogFormat,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text for people.
    Human,
    /// One JSON object a line.
    Json,
}

/// Why logs could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The filter's text is not understood.
    #[error("cannot read the log level {text:?}: {source}")]
    Filter {
        /// The text as given.
        text: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Somebody else installed a log subscriber.
    #[error("cannot install the log subscriber: {0}")]
    Install(#[from] TryInitError),
    /// The subscriber is gone.
    #[error("cannot change the log level: {0}")]
    Reload(#[from] reload::Error),
}

/// Changes the log level while the program runs; clones change the same one.
#[derive(Debug, Clone)]
pub struct LogLevel {
    handle: Option<reload::Handle<EnvFilter, Registry>>,
}

impl LogLevel {
    /// A level that changes nothing, for programs and tests without a subscriber of ours.
    #[must_use]
    pub const fn detached() -> Self {
        Self { handle: None }
    }

    /// Replaces the filter.
    ///
    /// # Errors
    /// When `text` is no filter; the old one stays in force.
    pub fn set(&self, text: &str) -> Result<(), LogsError> {
        let filter = parse(text)?;
        if let Some(handle) = &self.handle {
            handle.reload(filter)?;
        }
        Ok(())
    }
}

/// Installs the process-wide log subscriber.
///
/// # Errors
/// When the filter is not understood, or a subscriber is installed already.
pub fn init(flags: &LogFlags) -> Result<LogLevel, LogsError> {
    let LogFlags { log_level, log_format } = flags;
    let (filter, handle) = reload::Layer::new(parse(log_level)?);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match log_format {
        LogFormat::Human => registry.with(lines).try_init()?,
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init()?,
    }
    Ok(LogLevel { handle: Some(handle) })
}

fn parse(text: &str) -> Result<EnvFilter, LogsError> {
    let text = text.trim();
    EnvFilter::from_str(text).map_err(|source| LogsError::Filter { text: text.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_no_filter_is_refused_with_its_text() {
        let error = LogLevel::detached().set("info,kube=loud").expect_err("loud is no level");
        assert!(error.to_string().contains("info,kube=loud"), "{error}");
        LogLevel::detached().set(" debug\n").expect("a trailing newline is what curl sends");
    }
}
