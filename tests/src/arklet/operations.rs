//! Locks on module identities, and the records of operations that run in the background.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::throwable::Throwable;

/// Which command holds which identity. The key is what a request says, not what is in the jar.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: HashMap<String, &'static str>,
}

impl Locks {
    /// Takes the lock, or names the command that holds it.
    pub(super) fn take(&mut self, key: &str, command: &'static str) -> Result<(), &'static str> {
        if let Some(holder) = self.held.get(key) {
            return Err(holder);
        }
        self.held.insert(key.to_owned(), command);
        Ok(())
    }

    pub(super) fn release(&mut self, key: &str) {
        self.held.remove(key);
    }
}

/// Threads of the pool for background operations.
const POOL_THREADS: u64 = 20;

/// Where a background operation stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    Initialized,
    Executing,
    Succeeded,
    Failed,
}

/// How a background operation ended.
#[derive(Debug)]
pub(super) enum Ending {
    Done,
    Refused(&'static str),
    Thrown(Throwable),
    /// It met a lock: the record gets an end time, but its status stays as it was.
    Conflict,
}

#[derive(Debug, Clone)]
struct Record {
    meta: Value,
    status: Status,
    thread: Option<u64>,
    start: i64,
    end: Option<i64>,
    message: Option<String>,
    throwable: Option<Throwable>,
}

/// The records; they live as long as the JVM.
#[derive(Debug, Default)]
pub(super) struct Operations {
    records: HashMap<String, Record>,
    used: HashSet<String>,
    threads: u64,
}

impl Operations {
    /// Opens a record; false when the id was used before.
    pub(super) fn open(&mut self, id: &str, meta: Value, now: i64) -> bool {
        if !self.used.insert(id.to_owned()) {
            return false;
        }
        let record = Record {
            meta,
            status: Status::Initialized,
            thread: None,
            start: now,
            end: None,
            message: None,
            throwable: None,
        };
        self.records.insert(id.to_owned(), record);
        true
    }

    /// A thread of the pool has taken the operation.
    pub(super) fn taken(&mut self, id: &str) {
        self.threads += 1;
        let thread = (self.threads - 1) % POOL_THREADS + 1;
        if let Some(record) = self.records.get_mut(id) {
            record.thread = Some(thread);
        }
    }

    /// The operation has its lock and runs.
    pub(super) fn executing(&mut self, id: &str) {
        if let Some(record) = self.records.get_mut(id) {
            record.status = Status::Executing;
        }
    }

    pub(super) fn end(&mut self, id: &str, ending: Ending, now: i64) {
        let Some(record) = self.records.get_mut(id) else { return };
        record.end = Some(now);
        match ending {
            Ending::Done => record.status = Status::Succeeded,
            Ending::Refused(message) => {
                record.status = Status::Failed;
                record.message = Some(message.to_owned());
            }
            Ending::Thrown(thrown) => {
                record.status = Status::Failed;
                record.message = Some(thrown.message().to_owned());
                record.throwable = Some(thrown);
            }
            Ending::Conflict => {
                record.message = Some("command conflict, exist unfinished command for this biz".to_owned());
            }
        }
    }

    /// A record as `queryBizOps` and the submit itself show it.
    pub(super) fn show(&self, id: &str) -> Option<Value> {
        let record = self.records.get(id)?;
        let status = match record.status {
            Status::Initialized => "INITIALIZED",
            Status::Executing => "EXECUTING",
            Status::Succeeded => "SUCCEEDED",
            Status::Failed => "FAILED",
        };
        let mut shown = Map::new();
        shown.insert("arkBizMeta".to_owned(), record.meta.clone());
        shown.insert("elapsedTime".to_owned(), json!(record.end.map_or(0, |end| end - record.start)));
        if let Some(end) = record.end {
            shown.insert("endTime".to_owned(), json!(end));
        }
        shown.insert("endTimestamp".to_owned(), json!(record.end.unwrap_or(0)));
        if let Some(message) = &record.message {
            shown.insert("message".to_owned(), json!(message));
        }
        shown.insert("requestId".to_owned(), json!(id));
        shown.insert("startTime".to_owned(), json!(record.start));
        shown.insert("startTimestamp".to_owned(), json!(record.start));
        shown.insert("status".to_owned(), json!(status));
        if let Some(thread) = record.thread {
            shown.insert("threadName".to_owned(), json!(format!("ARKLET-ark-biz-ops-0-T{thread}")));
        }
        if let Some(thrown) = &record.throwable {
            shown.insert("throwable".to_owned(), thrown.dump("$.data.throwable"));
        }
        Some(Value::Object(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_its_holder() {
        let mut locks = Locks::default();
        locks.take("a:1", "installBiz").unwrap();
        assert_eq!(locks.take("a:1", "switchBiz"), Err("installBiz"));
        locks.take("a:2", "switchBiz").unwrap();
        locks.release("a:1");
        locks.take("a:1", "switchBiz").unwrap();
    }

    #[test]
    fn a_conflict_ends_without_leaving_its_first_status() {
        let mut operations = Operations::default();
        assert!(operations.open("r", json!({}), 10));
        assert!(!operations.open("r", json!({}), 11));
        operations.taken("r");
        operations.end("r", Ending::Conflict, 12);
        let shown = operations.show("r").unwrap();
        assert_eq!((&shown["status"], &shown["endTimestamp"]), (&json!("INITIALIZED"), &json!(12)));
        assert_eq!(shown["threadName"], "ARKLET-ark-biz-ops-0-T1");
    }

    #[test]
    fn an_exception_is_kept_in_full() {
        let mut operations = Operations::default();
        operations.open("r", json!({}), 10);
        let thrown = Throwable::parse("java.lang.IllegalStateException: boom").out_of_main().wrapped();
        operations.end("r", Ending::Thrown(thrown), 19);
        let shown = operations.show("r").unwrap();
        assert_eq!(shown["message"], "java.lang.reflect.InvocationTargetException");
        assert_eq!(shown["throwable"]["cause"]["cause"]["message"], "boom");
        assert_eq!(shown["elapsedTime"], 9);
    }
}
