//! Writes records to a file or to standard output.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Counts, Record};

/// Records written at once.
const BATCH: usize = 256;
/// How long the writer waits at the end for the last records of actors.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Why the log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file.
    #[error("--audit-log: cannot open {path} to append", path = .0.display())]
    Open(PathBuf, #[source] io::Error),
}

/// Owns the file.
#[derive(Debug)]
pub struct Writer {
    /// `None`: standard output.
    path: Option<PathBuf>,
    sink: Option<File>,
    records: mpsc::Receiver<Record>,
    counts: Counts,
    /// The last write may have ended within a line.
    torn: bool,
}

impl Writer {
    pub(super) fn open(
        path: &Path,
        records: mpsc::Receiver<Record>,
        counts: Counts,
    ) -> Result<Self, AuditError> {
        let path = (path != Path::new("-")).then(|| path.to_owned());
        let opened = match &path {
            None => io::stdout().as_fd().try_clone_to_owned().map(std::fs::File::from),
            Some(path) => options().open(path),
        };
        let shown = || path.clone().unwrap_or_else(|| "-".into());
        let sink = File::from_std(opened.map_err(|error| AuditError::Open(shown(), error))?);
        Ok(Self { path, sink: Some(sink), records, counts, torn: false })
    }

    /// Writes until the shutdown, and then what still comes from actors that end.
    ///
    /// # Errors
    /// Never: what cannot be written is counted.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), std::convert::Infallible> {
        let mut hangups = signal(SignalKind::hangup()).ok().filter(|_| self.path.is_some());
        let mut batch = Vec::with_capacity(BATCH);
        let ended = async {
            shutdown.cancelled().await;
            tokio::time::sleep(LAST_WAIT).await;
        };
        tokio::pin!(ended);
        loop {
            tokio::select! {
                biased;
                count = self.records.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return Ok(());
                    }
                    self.write(&mut batch).await;
                }
                () = hangup(&mut hangups) => {
                    tracing::info!("SIGHUP: the audit log is opened anew");
                    self.sink = None;
                    self.reopen().await;
                }
                () = &mut ended => return Ok(()),
            }
        }
    }

    async fn write(&mut self, batch: &mut Vec<Record>) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let mut text = Vec::with_capacity(batch.len() * 512);
        if self.torn {
            text.push(b'\n');
        }
        for record in batch.drain(..) {
            // Texts and numbers only: nothing in it can fail to serialise.
            if serde_json::to_writer(&mut text, &record).is_ok() {
                text.push(b'\n');
            }
        }
        if self.sink.is_none() {
            self.reopen().await;
        }
        let result = match &mut self.sink {
            None => Err(io::Error::other("not open")),
            // One write for whole lines: with O_APPEND no other writer comes between.
            Some(sink) => match sink.write_all(&text).await {
                Ok(()) => sink.flush().await,
                Err(error) => Err(error),
            },
        };
        match result {
            Ok(()) => {
                self.torn = false;
                self.counts.written.inc_by(count);
            }
            Err(error) => {
                tracing::error!(%error, records = count, "audit log not written");
                self.torn = true;
                self.counts.errors.inc();
                self.counts.lost.inc_by(count);
                if self.path.is_some() {
                    self.sink = None;
                }
            }
        }
    }

    async fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        let path = path.clone();
        let opened = tokio::task::spawn_blocking(move || options().open(path)).await;
        match opened.map_err(io::Error::other).flatten() {
            Ok(file) => self.sink = Some(File::from_std(file)),
            Err(error) => {
                self.counts.errors.inc();
                tracing::error!(%error, "audit log not opened");
            }
        }
    }
}

/// Only ever appended to, and for nobody else to read.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options
}

async fn hangup(signals: &mut Option<Signal>) {
    match signals {
        Some(signals) => {
            if signals.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}
