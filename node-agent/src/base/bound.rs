//! One bound VPod as its base's actor keeps it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodStatus};
use kube::Resource;
use policy::Policy;
use policy::contract::module::{ModulePod, PodKind, TemplateKey, classify};
use policy::contract::names;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use super::release::Release;
use super::state::{Desired, Removal, Want};
use crate::failure::Artifact;
use crate::vpod::delete::Drain;
use crate::vpod::ended::UNINSTALLED;
use crate::vpod::has_ended;
use crate::vpod::probe::{Probes, Verdict};

/// A write that is on its way or failed.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) running: bool,
    /// Its turn is waited for.
    pub(super) queued: bool,
    /// It is its turn.
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) failures: u32,
    pub(super) next: Option<Timestamp>,
}

impl Attempt {
    pub(super) fn due(&self, now: Timestamp) -> bool {
        !self.running && !self.queued && self.next.is_none_or(|next| next <= now)
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed(&mut self, now: Timestamp) {
        self.running = false;
        self.failures = self.failures.saturating_add(1);
        let seconds = 2_i64.saturating_pow(self.failures.min(5)).saturating_sub(1);
        self.next = now.checked_add(jiff::SignedDuration::from_secs(seconds)).ok();
    }
}

/// Values of the annotation that asks for a retry, on a VPod and on its controller. Only a new one is a wish.
#[derive(Debug)]
pub(super) struct Wishes {
    own: Option<String>,
    controller: Option<String>,
    /// The controller was asked once: what it says now can be new.
    asked: bool,
}

impl Wishes {
    pub(super) fn begin(own: Option<String>) -> Self {
        Self { own, controller: None, asked: false }
    }

    /// Whether the VPod's own value is a new wish.
    pub(super) fn own(&self, value: Option<&str>) -> bool {
        value.is_some() && value != self.own.as_deref()
    }

    /// Whether the controller's value is a new wish; the first one tells what was there before.
    pub(super) fn controller(&mut self, value: Option<&str>) -> bool {
        let asked = std::mem::replace(&mut self.asked, true);
        let new = asked && value.is_some() && value != self.controller.as_deref();
        self.controller = value.map(ToOwned::to_owned);
        new
    }
}

/// The probes of one run of a module.
#[derive(Debug)]
pub(super) struct Probing {
    pub(super) probes: Probes,
    /// Tells this run from the ones before it.
    pub(super) run: u64,
    pub(super) verdict: Verdict,
    /// What it gives up may be installed again: no accident of many.
    pub(super) passed: bool,
    /// Its `preStop` hook, once it was called because the run was given up.
    pub(super) hook: Option<Hook>,
    pub(super) task: AbortHandle,
}

/// How far a `preStop` hook is that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    Running,
    Over,
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A status that the API server took, and what it shows instead.
#[derive(Debug)]
pub(super) struct Futile {
    pub(super) sent: PodStatus,
    pub(super) shown: PodStatus,
}

/// A bound VPod.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, none excludes another")]
pub(super) struct Bound {
    pub(super) pod: Arc<Pod>,
    pub(super) module_pod: Option<Arc<ModulePod>>,
    pub(super) desired: Desired,
    /// Set once it failed for good, until that is written.
    pub(super) failed: Option<(&'static str, String)>,
    /// Its last status is written because its object stays; the object is taken away after that.
    pub(super) ending: bool,
    pub(super) drain: Option<Drain>,
    /// Release in place: leaving the traffic.
    pub(super) release: Option<Release>,
    /// It wants something else than when its view was planned.
    pub(super) outdated: bool,
    pub(super) started: Timestamp,
    pub(super) writing: Attempt,
    /// How often the API server would not have its last status.
    pub(super) refusals: u32,
    pub(super) deleting: Attempt,
    pub(super) reading: Attempt,
    /// What was sent and is shown otherwise: not sent again while it is shown so.
    pub(super) futile: Option<Box<Futile>>,
    pub(super) probes: BTreeMap<String, Probing>,
    /// Its success was told to the memory of failures.
    pub(super) proven: bool,
    pub(super) told_fields: bool,
    pub(super) told_stuck: bool,
    /// Its object was taken away though its modules may still be on the base; counted once.
    pub(super) forced: bool,
    pub(super) told_waiting: Option<&'static str>,
    /// While it is held as lethal: the wishes for a retry that were there before.
    pub(super) lethal: Option<Wishes>,
    /// When its controller was last asked for a retry.
    pub(super) asked: Option<Timestamp>,
    /// The policy by which its needs were read; `None` when they must be read anew.
    pub(super) needs_by: Option<Arc<Policy>>,
    /// Why it goes first in a circle of requirements, once told.
    pub(super) told_first: Option<String>,
}

impl Bound {
    pub(super) fn new(pod: Arc<Pod>, now: Timestamp) -> Self {
        let meta = &pod.metadata;
        let desired = Desired {
            uid: meta.uid.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            want: Want::Reading,
            terminal: false,
            removal: Removal::None,
            rejected: None,
            paused: false,
            not_before: None,
            needs: BTreeMap::new(),
        };
        let started =
            pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or(now, |time| time.0);
        let mut bound = Self {
            pod: Arc::clone(&pod),
            module_pod: None,
            desired,
            failed: None,
            ending: false,
            drain: None,
            release: None,
            outdated: false,
            started,
            writing: Attempt::default(),
            refusals: 0,
            deleting: Attempt::default(),
            reading: Attempt::default(),
            futile: None,
            probes: BTreeMap::new(),
            proven: false,
            told_fields: false,
            told_stuck: false,
            forced: false,
            told_waiting: None,
            lethal: None,
            asked: None,
            needs_by: None,
            told_first: None,
        };
        bound.take(pod);
        bound
    }

    /// Takes a newer version of the object; an older one is ignored. Gives back whether its spec or labels
    /// may have changed.
    pub(super) fn take(&mut self, pod: Arc<Pod>) -> bool {
        if older(&pod, &self.pod) {
            return false;
        }
        let changed = pod.spec != self.pod.spec
            || pod.metadata.labels != self.pod.metadata.labels
            || pod.metadata.annotations != self.pod.metadata.annotations;
        // A terminal Pod is never revived, whatever a late event shows.
        self.desired.terminal |= has_ended(&pod);
        self.module_pod = match classify(&pod) {
            PodKind::Module(module_pod) => Some(Arc::from(module_pod)),
            PodKind::Incomplete(_) | PodKind::Foreign => None,
        };
        self.pod = pod;
        if self.leaving() {
            // What goes does not come back: what it loses from now on is no restart.
            self.desired.removal = self.desired.removal.max(Removal::Draining);
        }
        changed
    }

    /// Whether sending this status again would change nothing.
    pub(super) fn is_futile(&self, status: &PodStatus) -> bool {
        let shown = self.pod.status.as_ref();
        self.futile.as_ref().is_some_and(|futile| futile.sent == *status && Some(&futile.shown) == shown)
    }

    /// Terminal, and nothing of it is left to be done.
    pub(super) fn has_ended(&self) -> bool {
        self.desired.terminal && !self.ending
    }

    /// Its object stays after it was deleted.
    pub(super) fn has_finalizers(&self) -> bool {
        self.pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty())
    }

    /// Its object goes with the last finalizer, and asking again changes nothing.
    pub(super) fn only_waits_for_finalizers(&self) -> bool {
        self.has_finalizers() && self.leaving() && self.pod.metadata.deletion_grace_period_seconds == Some(0)
    }

    pub(super) fn leaving(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn template(&self) -> Option<&TemplateKey> {
        self.module_pod.as_ref()?.template.as_ref()
    }

    pub(super) fn artifacts(&self) -> Vec<Artifact> {
        let modules = self.desired.modules().iter();
        modules
            .map(|module| Artifact {
                name: module.id.name.clone(),
                version: module.id.version.clone(),
                hash: module.hash.clone(),
            })
            .collect()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    pub(super) fn condition(&self, kind: &str) -> Option<bool> {
        let conditions = self.pod.status.as_ref()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .map(|condition| condition.status == "True")
    }

    pub(super) fn ready(&self) -> bool {
        self.condition("Ready") == Some(true)
    }

    /// Whether this Failed Pod was failed by us: only those tell something of a template.
    pub(super) fn failed_by_us(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let conditions = self.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut installed = conditions.filter(|condition| condition.type_ == names::INSTALLED_CONDITION);
        phase == Some("Failed")
            && installed.any(|installed| {
                installed.status == "False" && installed.reason.as_deref() != Some(UNINSTALLED)
            })
    }

    pub(super) fn reference(&self) -> ObjectReference {
        self.pod.object_ref(&())
    }
}

fn older(pod: &Pod, known: &Pod) -> bool {
    let version =
        |pod: &Pod| pod.metadata.resource_version.as_deref().and_then(|text| text.parse::<u64>().ok());
    matches!((version(pod), version(known)), (Some(new), Some(old)) if new < old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_pod_with_finalizers_needs_no_second_deletion() {
        let waits = |meta: serde_json::Value| {
            let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": meta})).unwrap();
            Bound::new(Arc::new(pod), Timestamp::UNIX_EPOCH).only_waits_for_finalizers()
        };
        let deleted = |grace: i64, finalizers: &[&str]| {
            serde_json::json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace,
                "finalizers": finalizers})
        };
        assert!(waits(deleted(0, &["x.io/keep"])));
        assert!(!waits(deleted(30, &["x.io/keep"])), "it was not deleted for good yet");
        assert!(!waits(deleted(0, &[])), "it goes at once");
        assert!(!waits(serde_json::json!({"finalizers": ["x.io/keep"]})));
    }

    #[test]
    fn only_a_new_value_is_a_wish() {
        let mut wishes = Wishes::begin(Some("1".to_owned()));
        assert!(!wishes.own(Some("1")) && !wishes.own(None));
        assert!(wishes.own(Some("2")));
        assert!(!wishes.controller(Some("1")), "it was there before");
        assert!(!wishes.controller(Some("1")));
        assert!(wishes.controller(Some("2")));
        let mut none = Wishes::begin(None);
        assert!(!none.controller(None));
        assert!(none.controller(Some("1")));
    }
}
