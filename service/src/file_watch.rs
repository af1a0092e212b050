//! Says when files may have changed.
//!
//! `ConfigMap` and Secret volumes swap a symlink in the *directory*; a watch on the file itself goes blind after the
//! first swap. So the directory is watched, and because notifications do not exist everywhere (network file systems,
//! exhausted inotify instances) the caller also wakes up on a slow clock. Callers compare contents.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// The slow clock: how late a change is seen when no notification comes.
pub const POLL: Duration = Duration::from_secs(10);
/// A swap is several operations; the last one counts.
const SETTLE: Duration = Duration::from_millis(50);

/// Wakes its one owner when one of the files may have changed.
pub struct FileWatch {
    events: mpsc::Receiver<()>,
    poll: Duration,
    // Dropping it stops the notifications.
    _watcher: Option<RecommendedWatcher>,
}

impl FileWatch {
    /// Watches the directories of `files`; without notifications it falls back to the clock alone, with a log line.
    pub fn new<'a>(files: impl IntoIterator<Item = &'a Path>, poll: Duration) -> Self {
        let (sender, events) = mpsc::channel(1);
        let directories: BTreeSet<PathBuf> = files.into_iter().map(directory).collect();
        let watcher = watch(&directories, sender)
            .inspect_err(
                |error| tracing::warn!(%error, "no file notifications, files are polled every {poll:?}"),
            )
            .ok();
        Self { events, poll, _watcher: watcher }
    }

    /// Returns when something happened in a watched directory, or the clock struck.
    pub async fn changed(&mut self) {
        tokio::select! {
            event = self.events.recv() => {
                if event.is_none() {
                    // No watcher: the clock alone.
                    tokio::time::sleep(self.poll).await;
                }
            }
            () = tokio::time::sleep(self.poll) => return,
        }
        tokio::time::sleep(SETTLE).await;
        while self.events.try_recv().is_ok() {}
    }
}

fn directory(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn watch(directories: &BTreeSet<PathBuf>, sender: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own reads are events too (open, close); only changes count. An error may hide a change.
        if event.map_or(true, |event| !event.kind.is_access()) {
            // A full channel already says "changed".
            let _ = sender.try_send(());
        }
    })?;
    for directory in directories {
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}
