//! How many installs may be in flight, fleet-wide. The limit follows the policy while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// A counter of installs in flight whose limit may change at any time; 0 means no limit.
#[derive(Debug, Default)]
pub struct Downloads {
    limit: AtomicUsize,
    used: AtomicUsize,
    freed: Notify,
}

impl Downloads {
    /// A counter with this limit.
    pub fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), ..Self::default() }
    }

    /// Changes the limit; installs that wait look again.
    pub fn set_limit(&self, limit: usize) {
        if self.limit.swap(limit, Ordering::SeqCst) != limit {
            self.freed.notify_waiters();
        }
    }

    /// Installs in flight.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    /// Waits until an install may begin. The slot is free again when the permit is dropped.
    pub async fn acquire(self: &Arc<Self>) -> Permit {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Listening begins before the look, so that a slot freed in between is not missed.
            freed.as_mut().enable();
            if self.take() {
                return Permit { downloads: Arc::clone(self) };
            }
            freed.await;
        }
    }

    fn take(&self) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        self.used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                (limit == 0 || used < limit).then(|| used.saturating_add(1))
            })
            .is_ok()
    }
}

/// One install in flight.
#[derive(Debug)]
pub struct Permit {
    downloads: Arc<Downloads>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.downloads.used.fetch_sub(1, Ordering::SeqCst);
        // All look again: a waiter that was woken and then cancelled must not take the slot with it.
        self.downloads.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_at_the_limit_and_goes_on_when_a_slot_is_freed() {
        let downloads = Arc::new(Downloads::new(1));
        let first = downloads.acquire().await;
        let waiting = tokio::spawn({
            let downloads = Arc::clone(&downloads);
            async move { drop(downloads.acquire().await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
        assert_eq!(downloads.used(), 0);
    }

    #[tokio::test]
    async fn a_raised_limit_lets_the_waiting_in() {
        let downloads = Arc::new(Downloads::new(1));
        let _first = downloads.acquire().await;
        let waiting = tokio::spawn({
            let downloads = Arc::clone(&downloads);
            async move { downloads.acquire().await }
        });
        tokio::task::yield_now().await;
        downloads.set_limit(0);
        let _second = waiting.await.unwrap();
        assert_eq!(downloads.used(), 2);
    }
}
