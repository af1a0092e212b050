//! How the agent works.

use std::time::Duration;

/// `kind: OperationsPolicy`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationsPolicy {
    /// No install, uninstall, eviction, healing; Leases, status and queries go on.
    pub paused: bool,
    /// Queries.
    pub health: HealthPolicy,
    /// Readiness gates.
    pub gates: GatesPolicy,
    /// Installs.
    pub install: InstallPolicy,
    /// Uninstalls.
    pub drain: DrainPolicy,
    /// Self-healing.
    pub overload: OverloadPolicy,
    /// What stops mass deletion.
    pub brake: BrakePolicy,
}

/// Queries of bases.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthPolicy {
    /// Shortest time between two queries of one base.
    pub interval: Duration,
    /// Timeout of one query.
    pub timeout: Duration,
    /// Missed checks in a row until the base is not ready; at least 2.
    pub failures_before_not_ready: u32,
    /// Module Pods of a base silent this long are evicted; `None`: never.
    pub evict_silent_after: Option<Duration>,
}

/// Readiness gates.
#[derive(Clone, Debug, PartialEq)]
pub struct GatesPolicy {
    /// Then `stowage.dev/modules-ready` turns True anyway; `None`: never.
    pub modules_ready_limit: Option<Duration>,
    /// Longest wait for foreign gates on deletion; `None`: what the grace period leaves.
    pub load_balancer_limit: Option<Duration>,
}

/// Installs.
#[derive(Clone, Debug, PartialEq)]
pub struct InstallPolicy {
    /// Of one `installBiz`, and for a module found starting.
    pub timeout: Duration,
    /// Transient tries for each Pod, then Failed; at least 1.
    pub attempts: u32,
    /// Between tries.
    pub backoff: BackoffPolicy,
    /// For each template after it failed on three bases.
    pub template_backoff: BackoffPolicy,
    /// Modules of different Pods at once on one base; at least 1.
    pub parallel_per_base: u32,
    /// Installs in flight over the fleet; 0: no limit.
    pub downloads_at_once: u32,
    /// What happens with another version that we did not install.
    pub foreign: ForeignModules,
    /// When a module is held because its base restarts after its installs.
    pub lethal: LethalPolicy,
}

/// A back-off that doubles from `initial` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// First wait.
    pub initial: Duration,
    /// Longest wait.
    pub max: Duration,
}

/// What happens with another version that is foreign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignModules {
    /// The Pod waits.
    #[default]
    Wait,
    /// It is uninstalled.
    Replace,
}

/// When a module counts as lethal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LethalPolicy {
    /// Restarts of the base; at least 1.
    pub restarts: u32,
    /// This soon after an install.
    pub within: Duration,
}

/// Uninstalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainPolicy {
    /// After no `EndpointSlice` says ready.
    pub wait: Duration,
    /// Past the grace period of a Pod on an unreachable base.
    pub force_after: Duration,
}

/// Self-healing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverloadPolicy {
    /// Whether it acts.
    pub mode: OverloadMode,
    /// Threshold of the lowest use, 1 to 100 percent.
    pub metaspace_high_percent: u32,
    /// Cycles that must stay above it; at least 3.
    pub cycles: u32,
    /// Then `NoExecute`; zero: at once.
    pub eviction_deadline: Duration,
    /// Bases healing at once; at least 1.
    pub max_bases_at_once: u32,
    /// When the modules have nowhere to go.
    pub without_place: WithoutPlace,
}

/// Whether self-healing acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverloadMode {
    /// It does.
    #[default]
    Active,
    /// Events and metrics only.
    DryRun,
    /// Not at all.
    Disabled,
}

/// What self-healing does when the modules have nowhere to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutPlace {
    /// It waits.
    #[default]
    Wait,
    /// It goes on.
    Proceed,
}

/// What stops mass deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrakePolicy {
    /// Percent of at least four known bases.
    pub max_share_of_bases: u32,
    /// Percent of at least [`Self::min_modules`] modules of ours.
    pub max_share_of_modules: u32,
    /// See [`Self::max_share_of_modules`].
    pub min_modules: u32,
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            interval: seconds(10),
            timeout: seconds(5),
            failures_before_not_ready: 3,
            evict_silent_after: None,
        }
    }
}

impl Default for GatesPolicy {
    fn default() -> Self {
        Self { modules_ready_limit: Some(seconds(600)), load_balancer_limit: None }
    }
}

impl Default for InstallPolicy {
    fn default() -> Self {
        Self {
            timeout: seconds(300),
            attempts: 5,
            backoff: BackoffPolicy { initial: seconds(2), max: seconds(300) },
            template_backoff: BackoffPolicy { initial: seconds(60), max: seconds(600) },
            parallel_per_base: 2,
            downloads_at_once: 20,
            foreign: ForeignModules::default(),
            lethal: LethalPolicy { restarts: 3, within: seconds(60) },
        }
    }
}

impl Default for DrainPolicy {
    fn default() -> Self {
        Self { wait: seconds(10), force_after: seconds(60) }
    }
}

impl Default for OverloadPolicy {
    fn default() -> Self {
        Self {
            mode: OverloadMode::default(),
            metaspace_high_percent: 90,
            cycles: 3,
            eviction_deadline: seconds(600),
            max_bases_at_once: 1,
            without_place: WithoutPlace::default(),
        }
    }
}

impl Default for BrakePolicy {
    fn default() -> Self {
        Self { max_share_of_bases: 50, max_share_of_modules: 20, min_modules: 10 }
    }
}
