//! The order in which a VPod goes: hook, out of the traffic, drain, uninstall. Pure; the effects are the
//! actor's. All of it fits into the grace period, whatever the parts would like to take.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HTTPGetAction, Pod};
use policy::contract::names;

use super::probe::Kind;

/// How often slices and gates are looked at; both are local.
const LOOK: Duration = Duration::from_millis(200);

/// Where the removal of one VPod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    since: Timestamp,
    deadline: Timestamp,
    hooks: Hooks,
    clear: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hooks {
    Pending,
    Running,
    Done,
}

/// What the removal depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "four independent facts")]
pub struct Facts {
    /// Some module of the VPod is active, so that there may be traffic.
    pub active: bool,
    /// It has a preStop httpGet.
    pub hooks: bool,
    /// An EndpointSlice lists it as ready.
    pub listed_ready: bool,
    /// A readiness gate of somebody else is still True.
    pub foreign_gate: bool,
}

/// What the policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `drain.wait`.
    pub wait: Duration,
    /// `gates.loadBalancerLimit`; `None` is what the grace period leaves.
    pub load_balancer: Option<Duration>,
}

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Call the hooks, then look again.
    Hooks,
    /// Nothing until then.
    Wait(Timestamp),
    /// Out of the traffic, or out of time.
    Uninstall,
}

impl Drain {
    /// A removal that ends at `deadline` (the deletionTimestamp already has the grace period in it), by the same
    /// clock as `now`. It never takes longer than `grace`.
    pub fn new(now: Timestamp, deadline: Timestamp, grace: Duration) -> Self {
        let latest = now.checked_add(grace).unwrap_or(Timestamp::MAX);
        Self { since: now, deadline: deadline.clamp(now, latest), hooks: Hooks::Pending, clear: None }
    }

    /// When the grace period is over.
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// There are more hooks to be called, once the ones under way are over; they have as long as the first ones had.
    pub fn more_hooks(&mut self, deadline: Timestamp, now: Timestamp) {
        if self.hooks != Hooks::Running || now >= self.last() {
            self.hooks = Hooks::Pending;
            self.deadline = deadline;
        }
    }

    /// When it must be uninstalled at the latest: the uninstall itself needs a moment of the grace period.
    fn last(&self) -> Timestamp {
        let grace = Duration::try_from(self.deadline.duration_since(self.since)).unwrap_or_default();
        let margin = (grace / 5).min(Duration::from_secs(2));
        self.deadline.checked_sub(margin).unwrap_or(self.deadline)
    }

    /// All hooks were answered or failed.
    pub fn hooks_done(&mut self) {
        self.hooks = Hooks::Done;
    }

    /// Decides what is done next.
    pub fn next(&mut self, facts: Facts, limits: Limits, now: Timestamp) -> Next {
        let last = self.last();
        if !facts.active || now >= last {
            return Next::Uninstall;
        }
        let look = Next::Wait(plus(now, LOOK).min(last));
        match self.hooks {
            Hooks::Pending if facts.hooks => {
                self.hooks = Hooks::Running;
                return Next::Hooks;
            }
            Hooks::Running => return Next::Wait(last),
            Hooks::Pending | Hooks::Done => {}
        }
        if facts.listed_ready {
            self.clear = None;
            return look;
        }
        let gates_until = match limits.load_balancer {
            Some(limit) => plus(self.since, limit).min(last),
            None => last.checked_sub(limits.wait).unwrap_or(last),
        };
        if facts.foreign_gate && now < gates_until {
            return look;
        }
        let clear = *self.clear.get_or_insert(now);
        let until = plus(clear, limits.wait).min(last);
        if now < until { Next::Wait(until) } else { Next::Uninstall }
    }
}

fn plus(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The grace period of a Pod that is being deleted, else the one it asks for.
pub fn grace(pod: &Pod) -> Duration {
    let seconds = pod
        .metadata
        .deletion_grace_period_seconds
        .or_else(|| pod.spec.as_ref()?.termination_grace_period_seconds)
        .unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// How long the `preStop` hook of a container may take that its probe gives up, where it has one: the time that the probe
/// gives, else the Pod's. `None`: there is no hook, or no time for it.
pub fn hook_of_probe(pod: &Pod, container: &str, kind: Kind) -> Option<Duration> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let container = containers.find(|known| known.name == container)?;
    container.lifecycle.as_ref()?.pre_stop.as_ref()?.http_get.as_ref()?;
    let probe = match kind {
        Kind::Startup => container.startup_probe.as_ref(),
        Kind::Liveness => container.liveness_probe.as_ref(),
        Kind::Readiness => None,
    };
    let own = probe.and_then(|probe| u64::try_from(probe.termination_grace_period_seconds?).ok());
    Some(own.map_or_else(|| grace(pod), Duration::from_secs)).filter(|limit| !limit.is_zero())
}

/// Whether a readiness gate that is not ours is True.
pub fn foreign_gate(pod: &Pod) -> bool {
    let conditions = || pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten()).any(|gate| {
        gate.condition_type != names::READY_GATE
            && conditions()
                .any(|condition| condition.type_ == gate.condition_type && condition.status == "True")
    })
}

/// The preStop hooks of a Pod, by container name.
pub fn hooks(pod: &Pod) -> Vec<(String, HTTPGetAction)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .filter_map(|container| {
            let hook = container.lifecycle.as_ref()?.pre_stop.as_ref()?.http_get.clone()?;
            Some((container.name.clone(), hook))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
    }

    const LIMITS: Limits = Limits { wait: Duration::from_secs(10), load_balancer: None };
    const SERVING: Facts = Facts { active: true, hooks: false, listed_ready: true, foreign_gate: false };
    const CLEAR: Facts = Facts { listed_ready: false, ..SERVING };

    fn drain() -> Drain {
        Drain::new(at(0), at(30_000), Duration::from_secs(30))
    }

    #[test]
    fn the_wait_begins_when_no_slice_says_ready() {
        let mut drain = drain();
        assert_eq!(drain.next(SERVING, LIMITS, at(0)), Next::Wait(at(200)));
        assert_eq!(drain.next(CLEAR, LIMITS, at(3_000)), Next::Wait(at(13_000)));
        assert_eq!(drain.next(CLEAR, LIMITS, at(12_999)), Next::Wait(at(13_000)));
        assert_eq!(drain.next(CLEAR, LIMITS, at(13_000)), Next::Uninstall);
    }

    #[test]
    fn the_grace_period_ends_every_wait() {
        let mut stuck = drain();
        assert_eq!(stuck.next(SERVING, LIMITS, at(27_999)), Next::Wait(at(28_000)));
        assert_eq!(stuck.next(SERVING, LIMITS, at(28_000)), Next::Uninstall);
        let mut late = drain();
        assert_eq!(late.next(CLEAR, LIMITS, at(25_000)), Next::Wait(at(28_000)));
    }

    #[test]
    fn what_never_served_goes_at_once() {
        assert_eq!(drain().next(Facts { active: false, ..SERVING }, LIMITS, at(0)), Next::Uninstall);
    }

    #[test]
    fn hooks_are_called_once_and_waited_for() {
        let mut drain = drain();
        let facts = Facts { hooks: true, ..SERVING };
        assert_eq!(drain.next(facts, LIMITS, at(0)), Next::Hooks);
        assert_eq!(drain.next(facts, LIMITS, at(10)), Next::Wait(at(28_000)));
        drain.hooks_done();
        assert_eq!(drain.next(facts, LIMITS, at(2_000)), Next::Wait(at(2_200)));
    }

    #[test]
    fn gates_of_load_balancers_are_waited_for_up_to_their_limit() {
        let gated = Facts { foreign_gate: true, ..CLEAR };
        let mut grace = drain();
        assert_eq!(grace.next(gated, LIMITS, at(17_900)), Next::Wait(at(18_100)));
        assert_eq!(grace.next(gated, LIMITS, at(18_000)), Next::Wait(at(28_000)));
        let mut limited = drain();
        let limits = Limits { load_balancer: Some(Duration::from_secs(5)), ..LIMITS };
        assert_eq!(limited.next(gated, limits, at(5_000)), Next::Wait(at(15_000)));
        let mut freed = drain();
        assert_eq!(freed.next(gated, LIMITS, at(1_000)), Next::Wait(at(1_200)));
        assert_eq!(freed.next(CLEAR, LIMITS, at(1_200)), Next::Wait(at(11_200)));
    }

    #[test]
    fn without_a_grace_period_nothing_is_waited_for() {
        let mut drain = Drain::new(at(0), at(0), Duration::ZERO);
        assert_eq!(drain.next(SERVING, LIMITS, at(0)), Next::Uninstall);
    }

    #[test]
    fn a_clock_that_differs_changes_nothing() {
        let ahead = Drain::new(at(0), at(600_000), Duration::from_secs(30));
        assert_eq!(ahead.deadline(), at(30_000));
        let behind = Drain::new(at(0), at(-600_000), Duration::from_secs(30));
        assert_eq!(behind.deadline(), at(0));
    }

    #[test]
    fn the_hook_of_what_a_probe_gives_up_has_the_time_of_the_probe_or_of_the_pod() {
        let pod = |own: Option<i64>, grace: i64| -> Pod {
            let liveness =
                serde_json::json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": own});
            let hook = serde_json::json!({"preStop": {"httpGet": {"port": 1}}});
            serde_json::from_value(serde_json::json!({"spec": {"terminationGracePeriodSeconds": grace, "containers": [
                {"name": "shop", "livenessProbe": liveness, "lifecycle": hook}, {"name": "cart", "livenessProbe": liveness}]}}))
            .unwrap()
        };
        let limit =
            |pod: &Pod, container, kind| hook_of_probe(pod, container, kind).map(|limit| limit.as_secs());
        assert_eq!(limit(&pod(Some(5), 60), "shop", Kind::Liveness), Some(5));
        assert_eq!(limit(&pod(Some(5), 60), "shop", Kind::Startup), Some(60), "each probe has its own");
        assert_eq!(limit(&pod(None, 60), "shop", Kind::Liveness), Some(60));
        assert_eq!(limit(&pod(None, 0), "shop", Kind::Liveness), None, "no time for it");
        assert_eq!(limit(&pod(Some(5), 60), "cart", Kind::Liveness), None, "no hook");
    }

    proptest::proptest! {
        #[test]
        fn it_always_ends_within_the_grace_period(grace in 0_i64..120, wait in 0_u64..60, gate: bool, ready: bool, hooks: bool) {
            let mut drain = Drain::new(at(0), at(grace * 1000), Duration::from_secs(grace.unsigned_abs()));
            let limits = Limits { wait: Duration::from_secs(wait), load_balancer: None };
            let facts = Facts { active: true, hooks, listed_ready: ready, foreign_gate: gate };
            let mut now = at(0);
            let mut steps = 0;
            loop {
                match drain.next(facts, limits, now) {
                    Next::Uninstall => break,
                    Next::Hooks => {}
                    Next::Wait(until) => { proptest::prop_assert!(until > now); now = until; }
                }
                steps += 1;
                proptest::prop_assert!(steps < 2_000);
            }
            proptest::prop_assert!(now <= at(grace * 1000));
        }
    }
}
