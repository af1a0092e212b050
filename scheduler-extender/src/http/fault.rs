//! Why there is no verdict.

use crate::wire::QuestionError;

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
    /// The deadline passed.
    #[error("stowage-extender did not decide in time")]
    Late,
    /// The answer could not be written, or the handler was lost.
    #[error("stowage-extender failed to answer")]
    Internal,
}

impl Fault {
    /// The code under which metrics count it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotSynced => "not_synced",
            Self::Stale => "stale",
            Self::Body => "body",
            Self::Question(_) => "question",
            Self::Reserved => "reserved",
            Self::Late => "late",
            Self::Internal => "internal",
        }
    }
}
