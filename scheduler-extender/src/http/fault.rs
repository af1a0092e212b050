//! Why there is no verdict.

use strum::{EnumDiscriminants, EnumIter, IntoEnumIterator};

use crate::wire::{QuestionError, plain};

/// Why a request has no verdict. Each has a stable code for metrics; the text is what users read in an Event.
#[derive(Debug, thiserror::Error, EnumDiscriminants)]
#[strum_discriminants(name(FaultKind), vis(), derive(EnumIter))]
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
    /// The same, but those Pods were given them some time ago. That may last for minutes, so nobody waits for it.
    #[error("the fitting virtual nodes were given to Pods that are not seen there since, trying again")]
    Overdue,
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
            Self::Overdue => "overdue",
            Self::Refused(_) => "refused",
            Self::PodGone => "pod_gone",
            Self::BoundElsewhere => "bound_elsewhere",
            Self::Api(_) => "api",
            Self::NoClient => "no_client",
            Self::Late => "late",
            Self::Internal => "internal",
        }
    }

    /// What it means and what to do, for documents. One line.
    pub const fn advice(&self) -> &'static str {
        match self {
            Self::NotSynced => {
                "The extender has just started; over within seconds. When it lasts, `/readyz` names the list that is missing, and the log says whether the API server or a right of its account is in the way"
            }
            Self::Stale => {
                "A watch has been failing for longer than `--stale-after`; no module is placed until it is back. Of one that fails the log and `stowage_extender_watch_failures_total` say which; one that hangs is silent. Look at the API server and the network in between"
            }
            Self::Body => {
                "More than `--body-limit` (`bind`: 64 KiB), or the connection ended first. Set `nodeCacheCapable: true`; with whole Nodes raise the limit"
            }
            Self::Question(_) => {
                "No kube-scheduler of a known version asks so. See who else reaches `--listen`, and whether a proxy changes requests"
            }
            Self::Reserved => {
                "All nodes that fit were given to other Pods a moment ago ([which](#placements-not-yet-seen)). Nothing to do; when it lasts there are more Pods than places: add bases. Or more Pods are on their way than can be remembered: give kube-scheduler a higher `clientConnection.qps`"
            }
            Self::Overdue => {
                "Pods were placed more than two seconds ago and are not seen bound, so their bindings take long, fail without a clear no, or the watch lags. Each keeps its place for `--reservation-lifetime`, with `bindVerb` a minute more. Look at the API server, at webhooks on `pods/binding`, and at the outcomes `api` and `late` of `bind`"
            }
            Self::Refused(_) => {
                "`bind`: the place was taken after the filter had answered, and the [reason](#verdicts) follows. kube-scheduler starts anew; nothing to do"
            }
            Self::PodGone => "`bind`: the Pod was deleted, or made anew, while it was placed. Nothing to do",
            Self::BoundElsewhere => {
                "`bind`: somebody else placed the Pod. When it happens again, two schedulers work for one `schedulerName` without a common Lease"
            }
            Self::Api(_) => {
                "`bind`: what the API server said follows. With `forbidden` the extender's account lacks [rights](rbac.md), as where `bindVerb` is configured without its overlay; else look at the API server and at quotas and admission there"
            }
            Self::NoClient => {
                "`bind` came to an extender that was built without a way to the API server; `stowage-extender` always has one"
            }
            Self::Late => {
                "It took longer than `--request-deadline`. The extender lacks processor time (look for throttling, raise its limit), or with `bind` the API server is slow: `stowage_extender_request_duration_seconds`"
            }
            Self::Internal => "A defect. The log says more; please report it",
        }
    }

    /// Each kind, with every text that it may have, in the order of the list; for documents.
    pub fn examples() -> impl Iterator<Item = Vec<Self>> {
        FaultKind::iter().map(|kind| match kind {
            FaultKind::NotSynced => vec![Self::NotSynced],
            FaultKind::Stale => vec![Self::Stale],
            FaultKind::Body => vec![Self::Body],
            FaultKind::Question => QuestionError::examples().map(Self::Question).collect(),
            FaultKind::Reserved => vec![Self::Reserved],
            FaultKind::Overdue => vec![Self::Overdue],
            FaultKind::Refused => vec![Self::Refused("<reason>".to_owned())],
            FaultKind::PodGone => vec![Self::PodGone],
            FaultKind::BoundElsewhere => vec![Self::BoundElsewhere],
            FaultKind::Api => vec![Self::Api("<what it said>".to_owned())],
            FaultKind::NoClient => vec![Self::NoClient],
            FaultKind::Late => vec![Self::Late],
            FaultKind::Internal => vec![Self::Internal],
        })
    }
}
