//! Why a module waits.

/// Why a module waits. Closed; the texts of [`Reason::as_str`] are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The base does not answer or has not started.
    WaitingForBase,
    /// The base is leaving and takes nothing new.
    BaseLeaving,
    /// `installBiz` is on its way, or the module is starting.
    Installing,
    /// Waits for a slot, or for another module of the same name.
    Queued,
    /// Waits for an earlier module of the same Pod, or for one that it requires.
    WaitingForModule,
    /// Tried and failed; tried again later.
    InstallBackOff,
    /// Another version belongs to a VPod that lives.
    WaitingForOldVersion,
    /// The same name and version belongs to another VPod on this base.
    SameModule,
    /// Another version is there that we did not install.
    ForeignModule,
    /// Loaded, but another version is the active one.
    Deactivated,
    /// Still starting after the time limit.
    InstallTimeout,
    /// The base restarted; the module is installed again.
    Replaying,
    /// The new version replaces the old one in place; the Pod leaves the traffic first.
    Releasing,
    /// The base has as many VPods as the policy allows.
    BaseFull,
    /// The policy does not let this Pod onto this base.
    PolicyRejected,
    /// The base died shortly after this module was installed, again and again.
    Lethal,
    /// The base's class memory is used up.
    MetaspaceExhausted,
    /// Brake or pause.
    Paused,
    /// Its probes failed; it is taken off and comes back.
    Unhealthy,
    /// Its probes failed again and again; it comes back after a while.
    CrashLoopBackOff,
    /// Being uninstalled.
    Uninstalling,
    /// Label and environment name different versions.
    VersionMismatch,
    /// The Secret may not be read.
    SecretForbidden,
    /// What `valueFrom` points to does not exist.
    MissingReference,
    /// No version, or one that cannot be used.
    InvalidVersion,
    /// The image is no URL of a module.
    InvalidImage,
    /// The Pod uses a field that a module cannot honour.
    UnsupportedField,
    /// Two containers name the same module.
    DuplicateModule,
    /// A reference could not be read yet.
    Reading,
}

impl Reason {
    /// Stable text for status and docs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WaitingForBase => "WaitingForBase",
            Self::BaseLeaving => "BaseLeaving",
            Self::Installing => "Installing",
            Self::Queued => "Queued",
            Self::WaitingForModule => "WaitingForModule",
            Self::InstallBackOff => "InstallBackOff",
            Self::WaitingForOldVersion => "WaitingForOldVersion",
            Self::SameModule => "SameModule",
            Self::ForeignModule => "ForeignModule",
            Self::Deactivated => "Deactivated",
            Self::InstallTimeout => "InstallTimeout",
            Self::Replaying => "Replaying",
            Self::Releasing => "Releasing",
            Self::BaseFull => "BaseFull",
            Self::PolicyRejected => "PolicyRejected",
            Self::Lethal => "Lethal",
            Self::MetaspaceExhausted => "MetaspaceExhausted",
            Self::Paused => "Paused",
            Self::Unhealthy => "Unhealthy",
            Self::CrashLoopBackOff => "CrashLoopBackOff",
            Self::Uninstalling => "Uninstalling",
            Self::VersionMismatch => "VersionMismatch",
            Self::SecretForbidden => "SecretForbidden",
            Self::MissingReference => "MissingReference",
            Self::InvalidVersion => "InvalidVersion",
            Self::InvalidImage => "InvalidImage",
            Self::UnsupportedField => "UnsupportedField",
            Self::DuplicateModule => "DuplicateModule",
            Self::Reading => "Reading",
        }
    }
}
