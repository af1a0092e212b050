//! What has failed lately, by template: shared by all actors of the process.
//!
//! A controller replaces a Failed Pod at once and without back-off, so nothing but this memory stands between
//! a broken jar and an install on every base in a row. Held in memory, rebuilt from the newest Failed VPods
//! after a restart; those are kept for that, older ones deleted.

mod template;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use policy::contract::module::TemplateKey;

use template::Template;

/// Failed VPods kept for each template.
pub const KEPT: usize = 3;
/// Different bases (or failures in all) after which a template is slowed down.
pub const PATIENCE: usize = 3;
/// Templates remembered; the one whose last failure is oldest goes first.
const TEMPLATES: usize = 4096;
/// Artifacts remembered as proven; the oldest goes first.
const PROVEN: usize = 16_384;

/// `install.templateBackoff` of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// First wait.
    pub initial: Duration,
    /// Longest wait.
    pub max: Duration,
}

/// A Failed VPod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailedPod {
    /// When it failed.
    pub at: Timestamp,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

/// A module as it is installed: name, version, and hash of URL and arguments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Artifact {
    /// Name of the module.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Hash of URL and arguments.
    pub hash: String,
}

/// The memory. All methods are quick and never wait for anything but each other.
#[derive(Debug, Default)]
pub struct Memory {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    templates: BTreeMap<TemplateKey, Template>,
    proven: BTreeSet<Artifact>,
    proven_order: VecDeque<Artifact>,
}

impl Memory {
    /// An empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What is kept stays true even if a holder panicked half-way: each change is one insertion.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before when nothing of this template may be tried. Claims nothing.
    pub fn not_before(
        &self,
        template: &TemplateKey,
        artifacts: &[Artifact],
        backoff: Backoff,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let inner = self.lock();
        let proven = inner.all_proven(artifacts);
        inner.templates.get(template)?.not_before(proven, backoff).filter(|at| *at > now)
    }

    /// Asks to try this template now. `Ok` claims the try: of many VPods that wait for the same moment one
    /// goes, the others are told when to come back.
    pub fn admit(
        &self,
        template: &TemplateKey,
        artifacts: &[Artifact],
        backoff: Backoff,
        now: Timestamp,
    ) -> Result<(), Timestamp> {
        let mut inner = self.lock();
        let proven = inner.all_proven(artifacts);
        match inner.templates.get_mut(template) {
            Some(template) => template.admit(proven, backoff, now),
            None => Ok(()),
        }
    }

    /// A VPod of this template failed for good on a base. Gives back the Failed VPods that are too many now.
    pub fn failed(&self, template: &TemplateKey, base_uid: &str, pod: FailedPod) -> Vec<FailedPod> {
        let mut inner = self.lock();
        let too_many = inner.templates.entry(template.clone()).or_default().failed(base_uid, pod);
        inner.bound();
        too_many
    }

    /// A Failed VPod of this template is gone.
    pub fn forget_pod(&self, template: &TemplateKey, uid: &str) {
        if let Some(template) = self.lock().templates.get_mut(template) {
            template.forget_pod(uid);
        }
    }

    /// All modules of a VPod of this template are active on a base: its failures are history, and the
    /// artifacts are proven.
    pub fn active(&self, template: Option<&TemplateKey>, artifacts: &[Artifact]) {
        let mut inner = self.lock();
        if let Some(template) = template.and_then(|template| inner.templates.get_mut(template)) {
            template.reset();
        }
        for artifact in artifacts {
            if inner.proven.insert(artifact.clone()) {
                inner.proven_order.push_back(artifact.clone());
            }
        }
        while inner.proven_order.len() > PROVEN {
            if let Some(oldest) = inner.proven_order.pop_front() {
                inner.proven.remove(&oldest);
            }
        }
    }

    /// The value of `stowage.dev/retry` on a VPod or its controller: one that was not seen before resets the
    /// template. Gives back whether it did.
    pub fn retry(&self, template: &TemplateKey, value: &str) -> bool {
        self.lock().templates.get_mut(template).is_some_and(|template| template.retry(value))
    }

    /// Templates that are slowed down now.
    pub fn slowed(&self) -> usize {
        self.lock().templates.values().filter(|template| template.slowed()).count()
    }
}

impl Inner {
    fn all_proven(&self, artifacts: &[Artifact]) -> bool {
        !artifacts.is_empty() && artifacts.iter().all(|artifact| self.proven.contains(artifact))
    }

    fn bound(&mut self) {
        while self.templates.len() > TEMPLATES {
            let oldest =
                self.templates.iter().min_by_key(|(_, template)| template.last()).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { return };
            self.templates.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
