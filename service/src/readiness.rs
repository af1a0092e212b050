//! What must hold before the program says it is ready: named checks, registered at start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

type Probe = Arc<dyn Fn() -> bool + Send + Sync>;

/// The list of checks. Clones share it. Written at start, read by `/readyz`.
#[derive(Clone, Default)]
pub struct Readiness {
    checks: Arc<RwLock<Vec<(String, Probe)>>>,
}

/// One check that its owner sets; not ready until it does.
#[derive(Debug, Clone)]
pub struct ReadyCheck(Arc<AtomicBool>);

impl ReadyCheck {
    /// Says whether the condition holds now.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Whether the condition holds.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Readiness {
    /// No checks: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check that is false until its owner sets it.
    pub fn register(&self, name: impl Into<String>) -> ReadyCheck {
        let check = ReadyCheck(Arc::new(AtomicBool::new(false)));
        let probe = check.clone();
        self.register_probe(name, move || probe.is_ready());
        check
    }

    /// Adds a check that is asked each time. The closure must be quick and must not block.
    pub fn register_probe(&self, name: impl Into<String>, probe: impl Fn() -> bool + Send + Sync + 'static) {
        let mut checks = self.checks.write().unwrap_or_else(PoisonError::into_inner);
        checks.push((name.into(), Arc::new(probe)));
    }

    /// The names of the checks that do not hold, in the order they were registered.
    pub fn missing(&self) -> Vec<String> {
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        checks.iter().filter(|(_, probe)| !probe()).map(|(name, _)| name.clone()).collect()
    }
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readiness").field("missing", &self.missing()).finish()
    }
}
