//! What the policy says to the fleet, apart from what each actor reads of it itself.

use std::sync::Arc;
use std::time::Duration;

use policy::Policy;
use policy::model::{BaseLike, OverloadPolicy};
use policy::version::Version;

use crate::brake;
use crate::discovery::BaseSpec;
use crate::fitting::Lasting;
use crate::vnode::Limits;

/// When the brakes close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brakes {
    /// Over bases.
    pub bases: brake::Limits,
    /// Over modules.
    pub modules: brake::Limits,
}

/// Fewer bases than this are no fleet.
const FEWEST_BASES: usize = 4;

type LimitsFor = Arc<dyn Fn(&BaseSpec) -> Limits + Send + Sync>;

/// The rules in force. Replaced whole when the policy changes.
#[derive(Clone)]
pub struct Rules {
    paused: bool,
    brakes: Brakes,
    interval: Duration,
    gate_limit: Option<Duration>,
    lasting: Arc<Lasting>,
    placement: Arc<Policy>,
    limits: LimitsFor,
}

impl Rules {
    /// Rules made of these parts; all else as without a policy file.
    pub fn new(
        paused: bool,
        brakes: Brakes,
        interval: Duration,
        limits: impl Fn(&BaseSpec) -> Limits + Send + Sync + 'static,
    ) -> Self {
        let policy = Policy::default();
        Self {
            paused,
            brakes,
            interval,
            gate_limit: policy.operations.gates.modules_ready_limit,
            lasting: Arc::new(Lasting::of(&policy)),
            placement: Arc::new(policy),
            limits: Arc::new(limits),
        }
    }

    /// The rules of a policy.
    pub fn of(policy: Arc<Policy>) -> Self {
        let brake = &policy.operations.brake;
        let brakes = Brakes {
            bases: brake::Limits { share_percent: brake.max_share_of_bases, at_least: FEWEST_BASES },
            modules: brake::Limits {
                share_percent: brake.max_share_of_modules,
                at_least: usize::try_from(brake.min_modules).unwrap_or(usize::MAX),
            },
        };
        let operations = &policy.operations;
        Self {
            paused: operations.paused,
            brakes,
            interval: operations.health.interval,
            gate_limit: operations.gates.modules_ready_limit,
            lasting: Arc::new(Lasting::of(&policy)),
            placement: Arc::clone(&policy),
            limits: Arc::new(move |spec| limits(&policy, spec)),
        }
    }

    /// Whether everything is paused.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// When the brakes close.
    pub fn brakes(&self) -> Brakes {
        self.brakes
    }

    /// How long a silent base waits for others: all bases are asked within one interval and a bit, so that one network
    /// fault shows within this time.
    pub fn settle_silence(&self) -> Duration {
        self.interval.mul_f64(1.2)
    }

    /// How long the readiness gate of a base waits for its modules; `None`: for ever.
    pub fn gate_limit(&self) -> Option<Duration> {
        self.gate_limit
    }

    /// Which bases are places for a template's Pods.
    pub fn lasting(&self) -> &Lasting {
        &self.lasting
    }

    /// Which bases are places for a Pod now.
    pub fn placement(&self) -> &Policy {
        &self.placement
    }

    /// What the policy says of self-healing.
    pub fn overload(&self) -> OverloadPolicy {
        self.placement.operations.overload
    }

    /// What holds for one base.
    pub fn limits(&self, spec: &BaseSpec) -> Limits {
        (self.limits)(spec)
    }
}

/// What the policy allows on one base.
pub(crate) fn allowed(policy: &Policy, spec: &BaseSpec) -> policy::model::Limits {
    let version = spec.version.as_deref().and_then(|text| Version::parse(text).ok());
    policy.limits_for(&BaseLike { stack: &spec.stack, version: version.as_ref(), labels: &spec.labels })
}

fn limits(policy: &Policy, spec: &BaseSpec) -> Limits {
    let found = allowed(policy, spec);
    let reserved = [
        ("cpu", found.reserved.cpu),
        ("memory", found.reserved.memory),
        ("ephemeral-storage", found.reserved.ephemeral_storage),
    ];
    Limits {
        pods: found.pods_per_base,
        reserved: reserved.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect(),
        metaspace_high_percent: policy.operations.overload.metaspace_high_percent,
    }
}

/// Installs in flight, fleet-wide; 0: no limit.
pub fn downloads(policy: &Policy) -> usize {
    usize::try_from(policy.operations.install.downloads_at_once).unwrap_or(usize::MAX)
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules")
            .field("paused", &self.paused)
            .field("brakes", &self.brakes)
            .finish_non_exhaustive()
    }
}
