//! The audit log: who had which module put onto which base, and what came of it. Append-only JSON lines.
//!
//! Actors give records to an [`AuditLog`], which never waits; one [`Writer`] owns the file. What cannot be written is
//! counted, and never holds anything up. No record holds a URL: it may carry credentials.

mod record;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use record::{Actor, Base, Operation, Record, Subject, digest_of};
pub use writer::{AuditError, Writer};

/// Records that may wait for the writer. A burst of 1,000 installs makes 2,000.
const WAITING: usize = 8192;

/// Where the audit log goes.
#[derive(Debug, Clone, Default, Args)]
pub struct AuditFlags {
    /// Append a JSON line to FILE (`-`: standard output) for every module installed, switched, adopted, uninstalled or
    /// refused; SIGHUP opens FILE anew
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
}

/// What is counted.
#[derive(Debug, Clone, Default)]
struct Counts {
    written: Counter,
    lost: Counter,
    errors: Counter,
}

/// Takes records in. Cheap to clone; the default one takes nothing.
#[derive(Debug, Clone, Default)]
pub struct AuditLog {
    open: Option<Arc<Open>>,
}

#[derive(Debug)]
struct Open {
    records: mpsc::Sender<Record>,
    lost: Counter,
}

impl AuditLog {
    /// Opens the log; `None` where no flag asks for one.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(flags: &AuditFlags, registry: &mut Registry) -> Result<Option<(Self, Writer)>, AuditError> {
        let Some(path) = &flags.audit_log else { return Ok(None) };
        let counts = Counts::default();
        let registry = registry.sub_registry_with_prefix("stowage_agent");
        registry.register("audit_records", "Lines written to the audit log", counts.written.clone());
        registry.register(
            "audit_lost",
            "Records of the audit log that were not written: too many waited, or the write failed",
            counts.lost.clone(),
        );
        registry.register("audit_write_errors", "Failed writes to the audit log", counts.errors.clone());
        let (records, waiting) = mpsc::channel(WAITING);
        let lost = counts.lost.clone();
        let writer = Writer::open(path, waiting, counts)?;
        Ok(Some((Self { open: Some(Arc::new(Open { records, lost })) }, writer)))
    }

    /// Takes a record; it is lost, and counted, when too many wait.
    pub fn record(&self, record: Record) {
        let Some(open) = &self.open else { return };
        if open.records.try_send(record).is_err() {
            open.lost.inc();
        }
    }

    /// An operation that is about to be sent.
    pub fn begin(&self, subject: Subject) -> Pending {
        Pending { log: self.clone(), subject, sent: None }
    }
}

/// An operation on its way. One that was sent and never ended is recorded as `unknown` when this is dropped: the actor
/// ended before the base answered.
#[derive(Debug)]
pub struct Pending {
    log: AuditLog,
    subject: Subject,
    sent: Option<Instant>,
}

impl Pending {
    /// The call goes out now.
    pub fn sent(&mut self) {
        self.sent = Some(Instant::now());
        self.tell("sent", None);
    }

    /// The call came back; says nothing where none was sent. `result` is `ok` or the code of a failure.
    pub fn ended(&mut self, result: &'static str) {
        if let Some(sent) = self.sent.take() {
            self.tell(result, Some(sent));
        }
    }

    fn tell(&self, result: &'static str, since: Option<Instant>) {
        let mut record = Record::new(Timestamp::now(), self.subject.clone(), result);
        record.millis = since.map(|since| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX));
        self.log.record(record);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.ended("unknown");
    }
}

#[cfg(test)]
mod tests;
