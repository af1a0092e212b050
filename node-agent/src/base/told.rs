//! What the tasks of an actor tell it: the ends of queries, operations, reads and writes.

use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::check::Checked;
use super::hooks::Hooked;
use super::operation;
use super::state::ModuleId;
use crate::arklet::Jvm;
use crate::failure::FailedPod;
use crate::vpod::read::Values;
use crate::vpod::write::Written;

/// Where the tasks of an actor tell it what came of them. Each message has a place of its own: a channel keeps room for
/// dozens of the largest kind, for every base, however little is told.
#[derive(Debug, Clone)]
pub(super) struct Tell(mpsc::UnboundedSender<Box<Told>>);

impl Tell {
    pub(super) fn channel() -> (Self, mpsc::UnboundedReceiver<Box<Told>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// An actor that has ended does not listen any more.
    pub(super) fn send(&self, told: Told) {
        let _ = self.0.send(Box::new(told));
    }
}

/// What a task of the actor's own has to tell.
#[derive(Debug)]
pub(super) enum Told {
    Checked(Checked),
    Jvm(Option<Jvm>),
    /// An install goes out to the base.
    Sent(ModuleId),
    Ended(operation::Report),
    Read {
        uid: String,
        values: Values,
    },
    /// It is this VPod's turn to have its status written.
    MayWrite {
        uid: String,
        permit: OwnedSemaphorePermit,
    },
    Written {
        uid: String,
        sent: Box<PodStatus>,
        written: Written,
    },
    /// Asked for a VPod to be taken away; `Ok(true)` is an eviction that was granted.
    Deleted {
        uid: String,
        asked: Result<bool, String>,
    },
    Swept {
        pod: FailedPod,
        error: Option<String>,
    },
    HooksDone {
        uid: String,
        why: Hooked,
    },
    Retry {
        uid: String,
        value: Option<String>,
    },
}
