//! Everything that a simulated base was asked, in order: tests count in it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

/// Queries kept in full; older ones are only counted.
const KEPT_QUERIES: usize = 1000;
/// Commands that change a base; all of them are kept.
const OPERATIONS: [&str; 4] = ["installBiz", "uninstallBiz", "switchBiz", "batchInstallBiz"];

/// What a request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The outer code, or what stands for it when there is no envelope: `hang`, `reset`, `dropped`.
    pub code: String,
    /// The code inside `data`, if there is one.
    pub inner: Option<String>,
    /// The outer message, else the inner one.
    pub message: Option<String>,
    /// The caller got an answer from which it can tell this.
    pub delivered: bool,
    /// From the whole request to the answer.
    pub after: Duration,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Place among all requests of the base, from 0.
    pub sequence: u64,
    /// When it was read.
    pub at: Timestamp,
    /// The command, as in the path.
    pub command: String,
    /// The body; null for none, or for one that was not an object.
    pub body: Value,
    /// What it came to; none while it runs.
    pub answer: Option<Answer>,
}

impl Entry {
    /// The module that the body names.
    pub fn module(&self) -> Option<&str> {
        self.body.get("bizName")?.as_str()
    }

    /// The version that the body names.
    pub fn version(&self) -> Option<&str> {
        self.body.get("bizVersion")?.as_str()
    }

    fn names(&self, module: &str) -> usize {
        let in_list = self.body.get("bizList").and_then(Value::as_array).into_iter().flatten();
        let listed =
            in_list.filter(|item| item.get("bizName").and_then(Value::as_str) == Some(module)).count();
        listed + usize::from(self.module() == Some(module))
    }
}

/// A condition on the journal did not come true in time.
#[derive(Debug, Error)]
#[error("after {waited:?} the base had seen only: {seen}")]
pub struct NotSeen {
    waited: Duration,
    seen: String,
}

#[derive(Debug, Default)]
struct Pages {
    next: u64,
    operations: Vec<Entry>,
    queries: VecDeque<Entry>,
    counts: HashMap<String, usize>,
}

/// The journal of one base; it outlives the base's restarts.
#[derive(Debug, Clone)]
pub struct Journal {
    pages: Arc<Mutex<Pages>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { pages: Arc::default(), changes: Arc::new(watch::Sender::new(0)) }
    }
}

impl Journal {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn begin(&self, command: &str, body: Value) -> u64 {
        let mut pages = self.pages();
        let sequence = pages.next;
        pages.next += 1;
        *pages.counts.entry(command.to_owned()).or_default() += 1;
        let entry = Entry { sequence, at: Timestamp::now(), command: command.to_owned(), body, answer: None };
        if OPERATIONS.contains(&command) {
            pages.operations.push(entry);
        } else {
            if pages.queries.len() == KEPT_QUERIES {
                pages.queries.pop_front();
            }
            pages.queries.push_back(entry);
        }
        drop(pages);
        self.changed();
        sequence
    }

    pub(super) fn end(&self, sequence: u64, answer: Answer) {
        let mut pages = self.pages();
        let pages_mut = &mut *pages;
        let found = pages_mut
            .operations
            .iter_mut()
            .rev()
            .chain(pages_mut.queries.iter_mut().rev())
            .find(|entry| entry.sequence == sequence);
        if let Some(entry) = found {
            entry.answer = Some(answer);
        }
        drop(pages);
        self.changed();
    }

    /// Every operation, oldest first.
    pub fn operations(&self) -> Vec<Entry> {
        self.pages().operations.clone()
    }

    /// The last thousand requests that change nothing, oldest first.
    pub fn queries(&self) -> Vec<Entry> {
        self.pages().queries.iter().cloned().collect()
    }

    /// Requests of a command, or of any path.
    pub fn count(&self, command: &str) -> usize {
        self.pages().counts.get(command).copied().unwrap_or(0)
    }

    /// Times that a module was to be installed, in batches too.
    pub fn installs(&self, module: &str) -> usize {
        let pages = self.pages();
        let installs = pages.operations.iter().filter(|entry| entry.command.ends_with("nstallBiz"));
        installs.filter(|entry| entry.command != "uninstallBiz").map(|entry| entry.names(module)).sum()
    }

    /// Times that a module was to be uninstalled.
    pub fn uninstalls(&self, module: &str) -> usize {
        let pages = self.pages();
        let uninstalls = pages.operations.iter().filter(|entry| entry.command == "uninstallBiz");
        uninstalls.map(|entry| entry.names(module)).sum()
    }

    /// Forgets what was seen so far.
    pub fn clear(&self) {
        let mut pages = self.pages();
        *pages = Pages { next: pages.next, ..Pages::default() };
    }

    /// Waits until the journal meets a condition.
    ///
    /// # Errors
    /// [`NotSeen`] when it does not within `limit`.
    pub async fn until(&self, limit: Duration, mut met: impl FnMut(&Self) -> bool) -> Result<(), NotSeen> {
        let mut changes = self.changes.subscribe();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if met(self) || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limit, wait).await.map_err(|_| NotSeen {
            waited: limit,
            seen: self
                .operations()
                .iter()
                .map(|entry| format!("{} {}", entry.command, entry.module().unwrap_or("-")))
                .collect::<Vec<_>>()
                .join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn installs_are_counted_by_module_and_in_batches() {
        let journal = Journal::default();
        journal.begin("installBiz", json!({"bizName": "shop", "bizVersion": "1"}));
        journal.begin("batchInstallBiz", json!({"bizList": [{"bizName": "shop"}, {"bizName": "cart"}]}));
        journal.begin("uninstallBiz", json!({"bizName": "shop", "bizVersion": "1"}));
        assert_eq!(
            (journal.installs("shop"), journal.installs("cart"), journal.uninstalls("shop")),
            (2, 1, 1)
        );
    }

    #[test]
    fn queries_are_bounded_but_all_are_counted() {
        let journal = Journal::default();
        for _ in 0..KEPT_QUERIES + 5 {
            journal.begin("queryAllBiz", Value::Null);
        }
        assert_eq!((journal.queries().len(), journal.count("queryAllBiz")), (KEPT_QUERIES, KEPT_QUERIES + 5));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_condition_or_the_limit() {
        let journal = Journal::default();
        let other = journal.clone();
        tokio::spawn(async move { other.begin("installBiz", json!({"bizName": "shop"})) });
        journal.until(Duration::from_secs(5), |journal| journal.installs("shop") == 1).await.unwrap();
        let late = journal.until(Duration::from_secs(5), |journal| journal.installs("shop") == 2).await;
        assert!(late.unwrap_err().to_string().contains("installBiz shop"));
    }
}
