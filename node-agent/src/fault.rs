//! Points at which a test build of the agent ends as by `kill -9`. Compiled only with the feature `fault-points`, which no
//! shipped build has.
//!
//! `STOWAGE_FAULT_POINT=OwnerWritten` ends the process when that point is reached, `OwnerWritten:2` when it is reached
//! for the second time, and `STOWAGE_FAULT_POINT=list` prints all points instead of running.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The environment variable that names the point.
pub const VARIABLE: &str = "STOWAGE_FAULT_POINT";

macro_rules! points {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A step of an operation after which nothing more is done.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum FaultPoint {
            $($(#[$doc])* $name,)*
        }

        impl FaultPoint {
            /// Every point, in the order of an operation.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

points! {
    /// An install was decided; nothing of it is written or sent.
    InstallPlanned,
    /// The owner stands on the Node; the base was not asked yet.
    OwnerWritten,
    /// The base was asked and lists nothing of it; `installBiz` is about to be sent.
    InstallChecked,
    /// `installBiz` was answered; the answer is not judged.
    InstallAnswered,
    /// The list after the install was read.
    InstallConfirmed,
    /// The status of a VPod is about to be written.
    StatusWriting,
    /// The status of a VPod was written; the actor does not know it yet.
    StatusWritten,
    /// A VPod has failed for good and nothing of it is on the base; nothing is written.
    FailedPlanned,
    /// The API server took that a VPod is Failed; nothing is remembered of it.
    FailedWritten,
    /// A version that is loaded shall become the active one; nothing was sent.
    SwitchPlanned,
    /// `switchBiz` was answered; the answer is not judged.
    SwitchAnswered,
    /// A VPod released in place is out of the traffic; its old version may go.
    ReleaseDrained,
    /// A VPod was first seen being deleted.
    DrainBegun,
    /// The hooks of a VPod being deleted have run.
    HooksDone,
    /// A VPod being deleted is out of the traffic; its modules may go.
    Drained,
    /// An uninstall was decided; nothing was sent.
    UninstallPlanned,
    /// `uninstallBiz` was answered; the answer is not judged.
    UninstallAnswered,
    /// The list after the uninstall was read.
    UninstallConfirmed,
    /// The outcome of an operation is known to the actor, and to nobody else.
    OutcomeNoted,
    /// Nothing of a deleted VPod is on the base; its object is about to be removed.
    ObjectDeleting,
    /// The API server took the removal of the object.
    ObjectDeleted,
    /// A step of healing was decided; it is not written yet.
    HealingWriting,
    /// The eviction of a VPod or of the base Pod is about to be asked for.
    HealingEvicting,
    /// The eviction was answered; nobody knows it yet.
    HealingEvicted,
}

#[derive(Debug)]
struct Armed {
    point: FaultPoint,
    /// How often it must still be reached.
    left: AtomicU32,
}

static ARMED: OnceLock<Armed> = OnceLock::new();

/// Why a point cannot be armed.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// There is no such point.
    #[error("{VARIABLE}: there is no point {0}")]
    NoSuchPoint(String),
    /// The number behind the colon is none, or 0.
    #[error("{VARIABLE}: {0} is no count")]
    NoCount(String),
}

fn read(text: &str) -> Result<(FaultPoint, u32), ArmError> {
    let (name, count) = text.split_once(':').unwrap_or((text, "1"));
    let point = FaultPoint::ALL.iter().find(|point| point.as_str() == name);
    let point = point.ok_or_else(|| ArmError::NoSuchPoint(name.to_owned()))?;
    let count = count.parse().ok().filter(|count| *count > 0);
    Ok((*point, count.ok_or_else(|| ArmError::NoCount(text.to_owned()))?))
}

/// Arms the point that the environment names. Gives back whether the points are only to be listed.
///
/// # Errors
/// When there is no such point.
pub fn arm() -> Result<bool, ArmError> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(false) };
    if text == "list" {
        return Ok(true);
    }
    let (point, count) = read(&text)?;
    // Armed once, before anything runs.
    let _ = ARMED.set(Armed { point, left: AtomicU32::new(count) });
    Ok(false)
}

impl FaultPoint {
    /// Ends the process at once if this is the point that was armed, and its time has come.
    pub fn reached(self) {
        let Some(armed) = ARMED.get().filter(|armed| armed.point == self) else { return };
        if armed.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            eprintln!("fault point {} reached", self.as_str());
            std::process::abort();
        }
    }
}
