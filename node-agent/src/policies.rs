//! The policy file, and what follows it while it changes.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use policy::Policy;
use prometheus_client::registry::Registry;
use service::file_watch::POLL;
use service::policy_file::{PolicyFile, PolicyFileError, PolicyFlags, Status, Versioned, lines};
use service::tasks::Tasks;
use tokio::sync::watch;

use crate::base::{Downloads, Event, EventKind, EventSink};
use crate::rules::Rules;
use crate::sidecar;

/// What follows the policy file.
pub struct Policies {
    /// As every actor reads it.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// What it says to the fleet.
    pub rules: watch::Receiver<Arc<Rules>>,
    /// What bounds installs in flight.
    pub downloads: Arc<Downloads>,
}

/// Reads the policy file and follows it. `lease` is where Events about it are shown. `alone`: what one agent for one
/// base cannot keep of it is taken out, with a warning.
///
/// # Errors
/// When the first one is not usable.
pub fn policies(
    tasks: &mut Tasks,
    flags: PolicyFlags,
    registry: &mut Registry,
    events: &Arc<dyn EventSink>,
    lease: ObjectReference,
    alone: bool,
) -> Result<Policies, PolicyFileError> {
    let narrowed = move |policy| if alone { sidecar::alone(policy) } else { (policy, None) };
    let read = move |text: &str| match policy::file::load(text) {
        Ok(loaded) => {
            let (policy, warning) = narrowed(loaded.policy);
            Ok((Arc::new(policy), lines(&loaded.warnings).into_iter().chain(warning).collect()))
        }
        Err(problems) => Err(lines(&problems)),
    };
    let fallback = move || {
        let (policy, warning) = narrowed(Policy::default());
        if let Some(warning) = warning {
            tracing::warn!(warning, "policy");
        }
        Arc::new(policy)
    };
    let file = PolicyFile::open(flags, fallback, read, Timestamp::now, registry)?;
    let (mut current, mut status) = (file.current(), file.status());
    let first = Arc::clone(&current.borrow_and_update().policy);
    let downloads = Arc::new(Downloads::new(crate::rules::downloads(&first)));
    let (policy, policy_end) = watch::channel(Arc::clone(&first));
    let (rules, rules_end) = watch::channel(Arc::new(Rules::of(first)));
    let shutdown = tasks.shutdown();
    tasks.companion("policy file", file.follow(POLL, tasks.shutdown()));
    let (counter, events) = (Arc::clone(&downloads), Arc::clone(events));
    tasks.companion("policy", async move {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok::<(), std::convert::Infallible>(()),
                Ok(()) = current.changed() => {
                    let new: Arc<Versioned<Arc<Policy>>> = current.borrow_and_update().clone();
                    counter.set_limit(crate::rules::downloads(&new.policy));
                    policy.send_replace(Arc::clone(&new.policy));
                    rules.send_replace(Arc::new(Rules::of(Arc::clone(&new.policy))));
                }
                Ok(()) = status.changed() => refused(&status.borrow_and_update(), &lease, &*events),
            }
        }
    });
    Ok(Policies { policy: policy_end, rules: rules_end, downloads })
}

fn refused(status: &Status, lease: &ObjectReference, events: &dyn EventSink) {
    let Some(refused) = &status.refused else { return };
    events.emit(Event {
        regarding: lease.clone(),
        kind: EventKind::Warning,
        reason: "PolicyRefused",
        action: "Reload",
        note: format!(
            "the policy file is not taken, the last good one holds: {}",
            refused.problems.join("; ")
        ),
    });
}
