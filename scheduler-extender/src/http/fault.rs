//! Why there is no verdict.

use crate::wire::{QuestionError, plain};

/// Why a request has no verdict. Each has a stable code for metrics; the text is what users read in an Event.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The first lists of Nodes and Pods are not complete.
    #[error("stowage-extender has not yet read all Nodes and Pods")]
    NotSynced,
    /// A watch has been failing for too long.
    #[error("stowage-extender cannot reach the API server, what it knows is stale")]
    Stale,
    /// Too large, or broken off.
    #[error("the request is larger than stowage-extender accepts, or was cut off")]
    Body,
    /// Not understood.
    #[error(transparent)]
    Question(#[from] QuestionError),
    /// All fitting nodes are just being given to other Pods, and what became of those was not seen in time. They may
    /// yet not come, without anything that would wake the Pod: it is told to come again instead of being refused.
    #[error("the fitting virtual nodes were just given to other Pods, trying again")]
    Reserved,
    /// `bind`: the base cannot take the Pod any more. kube-scheduler gives the place back and starts anew.
    #[error("the node can no longer take the Pod: {0}")]
    Refused(String),
    /// `bind`: the Pod is not there any more, or another has its name.
    #[error("the Pod is gone")]
    PodGone,
    /// `bind`: the Pod is bound to another node.
    #[error("the Pod is already bound to another node")]
    BoundElsewhere,
    /// `bind`: the API server did not do it.
    #[error("the API server did not bind the Pod: {0}")]
    Api(String),
    /// `bind` without a way to the API server.
    #[error("this stowage-extender does not bind")]
    NoClient,
    /// The deadline passed.
    #[error("stowage-extender did not decide in time")]
    Late,
    /// The answer could not be written, or the handler was lost.
    #[error("stowage-extender failed to answer")]
    Internal,
}

impl Fault {
    /// The text on one line without percent signs, which old kube-schedulers take as a format.
    pub fn plain(&self) -> String {
        plain(&self.to_string())
    }

    /// The code under which metrics count it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotSynced => "not_synced",
            Self::Stale => "stale",
            Self::Body => "body",
            Self::Question(_) => "question",
            Self::Reserved => "reserved",
            Self::Refused(_) => "refused",
            Self::PodGone => "pod_gone",
            Self::BoundElsewhere => "bound_elsewhere",
            Self::Api(_) => "api",
            Self::NoClient => "no_client",
            Self::Late => "late",
            Self::Internal => "internal",
        }
    }
}
