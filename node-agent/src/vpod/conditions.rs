//! The list of conditions of a Pod: ours are set, the others pass through as they are.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use super::render::whole;

pub(super) struct Conditions {
    list: Vec<PodCondition>,
    now: Timestamp,
}

impl Conditions {
    pub(super) fn of(status: &PodStatus, now: Timestamp) -> Self {
        Self { list: status.conditions.clone().unwrap_or_default(), now }
    }

    pub(super) fn status(&self, kind: &str) -> Option<&str> {
        self.list.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.as_str())
    }

    /// Sets a condition; the transition time moves with the status alone.
    pub(super) fn set(&mut self, kind: &str, value: bool, reason: Option<&str>, message: Option<String>) {
        let status = if value { "True" } else { "False" };
        let reason = reason.map(ToOwned::to_owned);
        let message = message.filter(|message| !message.is_empty());
        if let Some(known) = self.list.iter_mut().find(|condition| condition.type_ == kind) {
            if known.status != status {
                status.clone_into(&mut known.status);
                known.last_transition_time = Some(whole(self.now));
            }
            known.reason = reason;
            known.message = message;
        } else {
            self.list.push(PodCondition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason,
                message,
                last_transition_time: Some(whole(self.now)),
                ..PodCondition::default()
            });
        }
    }

    pub(super) fn into_list(self) -> Vec<PodCondition> {
        self.list
    }
}
