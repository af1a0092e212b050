//! A text that whoever leads keeps on the agent's Lease, for whoever leads next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by the loop that writes the Lease and the fleet. Clones are the same note.
#[derive(Debug, Clone, Default)]
pub struct LeaseNote(Arc<Mutex<Inner>>);

/// What shall stand on the Lease.
#[derive(Debug, Clone, Default)]
pub(super) enum Wanted {
    /// What stands there.
    #[default]
    AsItIs,
    /// This.
    Text(String),
    /// Nothing.
    Nothing,
}

#[derive(Debug, Default)]
struct Inner {
    wanted: Wanted,
    /// What stands there.
    stored: Option<String>,
    /// There is no Lease: what is wanted counts as written.
    alone: bool,
}

impl LeaseNote {
    /// A note without a Lease.
    pub(super) fn alone() -> Self {
        let note = Self::default();
        note.inner().alone = true;
        note
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This shall stand on the Lease from the next renewal on; `None`: nothing.
    pub fn want(&self, text: Option<String>) {
        let mut inner = self.inner();
        if inner.alone {
            inner.stored.clone_from(&text);
        }
        inner.wanted = text.map_or(Wanted::Nothing, Wanted::Text);
    }

    /// Whatever stands there stays: a term ended.
    pub fn leave(&self) {
        self.inner().wanted = Wanted::AsItIs;
    }

    /// What stood on the Lease when it was last read or written.
    pub fn stored(&self) -> Option<String> {
        self.inner().stored.clone()
    }

    /// What the next write puts there.
    pub(super) fn wanted(&self) -> Wanted {
        self.inner().wanted.clone()
    }

    /// The Lease was read, or written.
    pub(super) fn saw(&self, text: Option<&str>) {
        self.inner().stored = text.map(str::to_owned);
    }
}
