//! The policy file: read at the start, followed while running, never replaced by a bad one.
//!
//! [`PolicyFile`] owns the file and publishes two values: the policy in force ([`PolicyFile::current`]) and how the
//! last reading went ([`PolicyFile::status`]), from which callers make Events. It is generic over what is read, so
//! that it can be tested without a policy; [`PolicyFile::open`] takes the reader.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::file_watch::FileWatch;

/// Where the policy stands.
#[derive(Debug, Clone, Default, Args)]
pub struct PolicyFlags {
    /// The policy file; reloaded when it changes. Without it every default holds
    #[arg(long, value_name = "FILE")]
    pub policy_file: Option<PathBuf>,
}

/// A `ConfigMap` holds no more.
const SIZE_LIMIT: u64 = 1024 * 1024;

/// A policy with what identifies it.
#[derive(Debug)]
pub struct Versioned<T> {
    /// Counts the policies taken into force by this process, from 1; 0: no file was named.
    pub generation: u64,
    /// First 12 hex digits of the file's SHA-256; empty when no file was named.
    pub hash: String,
    /// The policy.
    pub policy: T,
}

/// How the last reading went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Of the policy in force.
    pub generation: u64,
    /// Of the policy in force.
    pub hash: String,
    /// When it came into force.
    pub since: Timestamp,
    /// What is to be said about the policy in force though it is valid.
    pub warnings: Vec<String>,
    /// Why the file as it is now is not in force; `None`: it is.
    pub refused: Option<Refused>,
}

/// A file that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Identifies the content; empty when it could not be read.
    pub hash: String,
    /// All that is wrong with it, each with its place.
    pub problems: Vec<String>,
}

/// The file is not usable, and there is none in force yet.
#[derive(Debug, thiserror::Error)]
#[error("the policy file {} is not usable:\n  {}", path.display(), problems.join("\n  "))]
pub struct PolicyFileError {
    /// The file.
    pub path: PathBuf,
    /// All that is wrong with it.
    pub problems: Vec<String>,
}

/// What a reader makes of a file: the policy and warnings.
pub type Parsed<T> = Result<(T, Vec<String>), Vec<String>>;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InForce {
    hash: String,
}

#[derive(Clone, Default)]
struct Metrics {
    generation: Gauge,
    in_force: Family<InForce, Gauge>,
    last_success: Gauge<f64, AtomicU64>,
    failures: Counter,
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        let Self { generation, in_force, last_success, failures } = self;
        let text = "Policies taken into force by this process";
        registry.register("policy_generation", text, generation.clone());
        registry.register("policy_in_force", "1 for the hash of the policy in force", in_force.clone());
        let text = "When the policy file was last read and found good, Unix time";
        registry.register("policy_last_success_timestamp_seconds", text, last_success.clone());
        let text = "Policy files refused; the last good one stays in force";
        registry.register("policy_reload_failures", text, failures.clone());
    }

    fn took(&self, generation: u64, hash: &str) {
        self.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        // One series at a time: a hash per edit would grow without end.
        self.in_force.clear();
        self.in_force.get_or_create(&InForce { hash: hash.to_owned() }).set(1);
    }

    #[expect(clippy::cast_precision_loss, reason = "Unix seconds fit a float exactly")]
    fn good_at(&self, now: Timestamp) {
        self.last_success.set(now.as_second() as f64);
    }
}

type Reader<T> = Box<dyn Fn(&str) -> Parsed<T> + Send + Sync>;

/// The policy file and its one owner.
pub struct PolicyFile<T> {
    path: Option<PathBuf>,
    reader: Reader<T>,
    clock: fn() -> Timestamp,
    current: watch::Sender<Arc<Versioned<T>>>,
    status: watch::Sender<Status>,
    metrics: Metrics,
}

impl<T: Send + Sync + 'static> PolicyFile<T> {
    /// Reads the file for the first time, and registers the metrics. Without a path `fallback` is in force for ever.
    ///
    /// # Errors
    /// When the file cannot be read or is wrong: at the start there is no good one to keep.
    pub fn open(
        flags: PolicyFlags,
        fallback: impl FnOnce() -> T,
        reader: impl Fn(&str) -> Parsed<T> + Send + Sync + 'static,
        clock: fn() -> Timestamp,
        registry: &mut Registry,
    ) -> Result<Self, PolicyFileError> {
        let PolicyFlags { policy_file: path } = flags;
        let now = clock();
        let (versioned, warnings) = match &path {
            None => (Versioned { generation: 0, hash: String::new(), policy: fallback() }, Vec::new()),
            Some(file) => {
                let refuse = |problems| PolicyFileError { path: file.clone(), problems };
                let text = read(file).map_err(|problem| refuse(vec![problem]))?;
                let (policy, warnings) = reader(&text).map_err(refuse)?;
                (Versioned { generation: 1, hash: hash(&text), policy }, warnings)
            }
        };
        let metrics = Metrics::default();
        metrics.register(registry);
        metrics.took(versioned.generation, &versioned.hash);
        metrics.good_at(now);
        for warning in &warnings {
            tracing::warn!(warning, "policy");
        }
        tracing::info!(generation = versioned.generation, hash = versioned.hash, "policy in force");
        let status = Status {
            generation: versioned.generation,
            hash: versioned.hash.clone(),
            since: now,
            warnings,
            refused: None,
        };
        Ok(Self {
            path,
            reader: Box::new(reader),
            clock,
            current: watch::Sender::new(Arc::new(versioned)),
            status: watch::Sender::new(status),
            metrics,
        })
    }

    /// The policy in force; changes when a new one is taken.
    pub fn current(&self) -> watch::Receiver<Arc<Versioned<T>>> {
        self.current.subscribe()
    }

    /// How the last reading went; changes when a file is taken or refused. Callers write Events from it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Follows the file until `shutdown`.
    ///
    /// # Errors
    /// Never; the type fits [`crate::tasks::Tasks`].
    pub async fn follow(
        self,
        poll: Duration,
        shutdown: CancellationToken,
    ) -> Result<(), std::convert::Infallible> {
        let Some(path) = self.path.clone() else {
            shutdown.cancelled().await;
            return Ok(());
        };
        let mut watch = FileWatch::new([path.as_path()], poll);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = watch.changed() => self.reload(&path),
            }
        }
    }

    fn reload(&self, path: &Path) {
        let now = (self.clock)();
        let text = match read(path) {
            Ok(text) => text,
            Err(problem) => return self.refuse(String::new(), vec![problem]),
        };
        let hash = hash(&text);
        let (in_force, refused) = {
            let status = self.status.borrow();
            (status.hash == hash, status.refused.as_ref().is_some_and(|refused| refused.hash == hash))
        };
        if in_force {
            self.metrics.good_at(now);
            self.status.send_if_modified(|status| status.refused.take().is_some());
            return;
        }
        if refused {
            return;
        }
        match (self.reader)(&text) {
            Ok((policy, warnings)) => self.take(Versioned { generation: 0, hash, policy }, warnings, now),
            Err(problems) => self.refuse(hash, problems),
        }
    }

    fn take(&self, mut versioned: Versioned<T>, warnings: Vec<String>, now: Timestamp) {
        versioned.generation = self.status.borrow().generation + 1;
        self.metrics.took(versioned.generation, &versioned.hash);
        self.metrics.good_at(now);
        for warning in &warnings {
            tracing::warn!(warning, "policy");
        }
        tracing::info!(generation = versioned.generation, hash = versioned.hash, "new policy in force");
        let (generation, hash) = (versioned.generation, versioned.hash.clone());
        self.current.send_replace(Arc::new(versioned));
        self.status.send_replace(Status { generation, hash, since: now, warnings, refused: None });
    }

    fn refuse(&self, hash: String, problems: Vec<String>) {
        let refused = Refused { hash, problems };
        // Said once per content, not with every tick of the clock.
        let new = self.status.send_if_modified(|status| {
            let new = status.refused.as_ref() != Some(&refused);
            if new {
                status.refused = Some(refused.clone());
            }
            new
        });
        if new {
            self.metrics.failures.inc();
            let problems = display_all(&refused.problems);
            tracing::error!(problems, "new policy refused, the last good one stays in force");
        }
    }
}

/// Turns a reader's own problems into lines.
pub fn lines<P: Display>(problems: &[P]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn display_all(problems: &[String]) -> String {
    problems.join("; ")
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(6).fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn read(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    // To open a pipe waits for its other end, and with it everything else here.
    if !std::fs::metadata(path).map_err(cannot)?.is_file() {
        return Err(format!("{} is no regular file", path.display()));
    }
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mut text = String::new();
    file.take(SIZE_LIMIT + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() as u64 > SIZE_LIMIT {
        return Err(format!("{} is larger than {SIZE_LIMIT} bytes", path.display()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    /// A reader for tests: a number, `0` with a warning.
    fn number(text: &str) -> Parsed<u32> {
        let number: u32 = text.trim().parse().map_err(|error| vec![format!("line 1: {error}")])?;
        Ok((number, if number == 0 { vec!["zero does nothing".to_owned()] } else { Vec::new() }))
    }

    fn open(path: &Path) -> Result<PolicyFile<u32>, PolicyFileError> {
        PolicyFile::open(
            PolicyFlags { policy_file: Some(path.into()) },
            || 9,
            number,
            now,
            &mut Registry::default(),
        )
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("folder");
        let text = open(folder.path()).map(drop).expect_err("a folder").to_string();
        assert!(text.contains("is no regular file"), "{text}");
    }

    #[test]
    fn the_start_needs_a_good_file_and_says_all_that_is_wrong() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("policy.yaml");
        let error = open(&path).err().expect("missing").to_string();
        assert!(error.contains("policy.yaml") && error.contains("No such file"), "{error}");
        std::fs::write(&path, "x").expect("write");
        assert!(open(&path).err().expect("bad").to_string().contains("line 1: invalid digit"));
        std::fs::write(&path, vec![b'1'; 1024 * 1024 + 1]).expect("write");
        assert!(open(&path).err().expect("big").to_string().contains("larger than"));
        std::fs::write(&path, "4").expect("write");
        let file = open(&path).expect("good");
        assert_eq!((file.current().borrow().policy, file.current().borrow().generation), (4, 1));
    }

    #[test]
    fn without_a_file_the_defaults_hold() {
        let file = PolicyFile::open(PolicyFlags::default(), || 9, number, now, &mut Registry::default())
            .expect("open");
        assert_eq!((file.current().borrow().policy, file.current().borrow().generation), (9, 0));
    }

    #[test]
    fn a_bad_file_keeps_the_last_good_one_and_is_said_once() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("policy.yaml");
        std::fs::write(&path, "4").expect("write");
        let file = open(&path).expect("good");
        let mut status = file.status();
        status.mark_unchanged();

        std::fs::write(&path, "x").expect("write");
        file.reload(&path);
        file.reload(&path);
        assert_eq!(file.current().borrow().policy, 4);
        assert_eq!(file.metrics.failures.get(), 1);
        assert!(status.has_changed().expect("open"));
        let refused = status.borrow_and_update().refused.clone().expect("refused");
        assert_eq!(refused.problems, ["line 1: invalid digit found in string"]);
        file.reload(&path);
        assert!(!status.has_changed().expect("open"), "said once");

        std::fs::write(&path, "4").expect("write");
        file.reload(&path);
        let again = status.borrow_and_update().clone();
        assert_eq!((again.refused, again.generation), (None, 1));
        std::fs::write(&path, "0").expect("write");
        file.reload(&path);
        assert_eq!((file.current().borrow().policy, file.current().borrow().generation), (0, 2));
        assert_eq!(status.borrow().warnings, ["zero does nothing"]);
        std::fs::remove_file(&path).expect("remove");
        file.reload(&path);
        assert_eq!(file.current().borrow().policy, 0, "a file that vanished changes nothing");
        assert!(status.borrow().refused.is_some());
    }

    #[tokio::test]
    async fn a_swapped_config_map_is_seen_each_time() {
        let directory = tempfile::tempdir().expect("directory");
        let root = directory.path();
        let swap = |name: &str, text: &str| {
            std::fs::create_dir(root.join(name)).expect("directory");
            std::fs::write(root.join(name).join("policy.yaml"), text).expect("write");
            std::os::unix::fs::symlink(name, root.join("..tmp")).expect("symlink");
            std::fs::rename(root.join("..tmp"), root.join("..data")).expect("rename");
        };
        swap("..1", "1");
        let path = root.join("policy.yaml");
        std::os::unix::fs::symlink("..data/policy.yaml", &path).expect("symlink");
        let file = open(&path).expect("good");
        let mut current = file.current();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(file.follow(Duration::from_millis(200), shutdown.clone()));
        for (name, text, wanted) in [("..2", "2", 2), ("..3", "3", 3)] {
            swap(name, text);
            let seen = current.wait_for(|versioned| versioned.policy == wanted);
            tokio::time::timeout(Duration::from_secs(20), seen).await.expect("in time").expect("open");
        }
        shutdown.cancel();
        task.await.expect("no panic").expect("ended");
    }
}
