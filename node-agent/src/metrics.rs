//! What is counted. Every label is a closed set, so the number of series does not grow with the fleet.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::base::Meter;

/// How a call to an API server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ApiResult {
    /// Taken.
    Ok,
    /// 404.
    NotFound,
    /// 409.
    Conflict,
    /// 422 or another 4xx.
    Refused,
    /// 401 or 403.
    Forbidden,
    /// 429.
    Throttled,
    /// 5xx.
    Server,
    /// No answer in time.
    Timeout,
    /// No answer at all.
    Transport,
}

impl ApiResult {
    /// The class of an error.
    pub fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                404 => Self::NotFound,
                409 => Self::Conflict,
                401 | 403 => Self::Forbidden,
                429 => Self::Throttled,
                500.. => Self::Server,
                _ => Self::Refused,
            },
            _ => Self::Transport,
        }
    }
}

/// Labels of a call to an API server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ApiCall {
    resource: &'static str,
    verb: &'static str,
    result: ApiResult,
}

/// A stable code: `ok` or the code of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabel {
    result: &'static str,
}

/// The name of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WatchLabel {
    watch: &'static str,
}

/// Which kind of drift.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DriftLabel {
    kind: &'static str,
}

/// Which brake.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BrakeLabel {
    of: &'static str,
}

/// A step of healing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StepLabel {
    step: &'static str,
}

/// All metrics of the agent. One per process, shared.
#[derive(Debug)]
pub struct Metrics {
    /// 1 while this agent leads.
    pub leader: Gauge,
    /// Bases that discovery knows.
    pub bases: Gauge,
    /// Bases that do not answer.
    pub silent_bases: Gauge,
    /// VNodes of ours.
    pub vnodes: Gauge,
    /// Pods bound to our VNodes and not terminal.
    pub vpods: Gauge,
    /// VNodes to which the cluster handed out a Pod CIDR.
    pub pod_cidrs: Gauge,
    /// Messages that wait for the fleet.
    pub queue_depth: Gauge,
    /// Events that were dropped.
    pub events_dropped: Counter,
    /// Age of the oldest VNode Lease.
    pub lease_age: Gauge<f64, AtomicU64>,
    api_calls: Family<ApiCall, Counter>,
    brake: Family<BrakeLabel, Gauge>,
    drift: Family<DriftLabel, Gauge>,
    watch_errors: Family<WatchLabel, Counter>,
    installs: Family<ResultLabel, Counter>,
    install_seconds: Histogram,
    uninstalls: Family<ResultLabel, Counter>,
    status_writes: Family<ResultLabel, Counter>,
    checks: Family<ResultLabel, Counter>,
    forced: Counter,
    scaled: Family<ResultLabel, Counter>,
    healing: Family<StepLabel, Gauge>,
    healing_steps: Family<StepLabel, Counter>,
    healing_evictions: Family<ResultLabel, Counter>,
}

impl Metrics {
    /// Registers everything.
    pub fn new(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("stowage_agent");
        let metrics = Self {
            leader: Gauge::default(),
            bases: Gauge::default(),
            silent_bases: Gauge::default(),
            vnodes: Gauge::default(),
            vpods: Gauge::default(),
            pod_cidrs: Gauge::default(),
            queue_depth: Gauge::default(),
            events_dropped: Counter::default(),
            lease_age: Gauge::default(),
            api_calls: Family::default(),
            brake: Family::default(),
            drift: Family::default(),
            watch_errors: Family::default(),
            installs: Family::default(),
            install_seconds: Histogram::new([
                0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
            ]),
            uninstalls: Family::default(),
            status_writes: Family::default(),
            checks: Family::default(),
            forced: Counter::default(),
            scaled: Family::default(),
            healing: Family::default(),
            healing_steps: Family::default(),
            healing_evictions: Family::default(),
        };
        registry.register("leader", "1 while this agent holds the Lease and acts", metrics.leader.clone());
        registry.register("bases", "Bases that discovery knows", metrics.bases.clone());
        registry.register("silent_bases", "Bases that do not answer", metrics.silent_bases.clone());
        registry.register("vnodes", "Nodes that stand for bases", metrics.vnodes.clone());
        registry.register("vpods", "Pods bound to our VNodes and not terminal", metrics.vpods.clone());
        registry.register(
            "pod_cidrs",
            "VNodes to which the cluster handed out a Pod CIDR",
            metrics.pod_cidrs.clone(),
        );
        registry.register("queue_depth", "Messages that wait for the fleet", metrics.queue_depth.clone());
        registry.register(
            "events_dropped",
            "Events dropped because too many waited",
            metrics.events_dropped.clone(),
        );
        registry.register_with_unit(
            "node_lease_age",
            "Age of the VNode Lease that was renewed longest ago",
            Unit::Seconds,
            metrics.lease_age.clone(),
        );
        registry.register(
            "api_calls",
            "Calls to API servers by resource, verb and result",
            metrics.api_calls.clone(),
        );
        registry.register("brake", "1 while removals are held, by what is lost", metrics.brake.clone());
        registry.register("drift", "What is not as it should be, by kind", metrics.drift.clone());
        registry.register("watch_errors", "Errors of watches", metrics.watch_errors.clone());
        registry.register("installs", "Ended installBiz calls by result", metrics.installs.clone());
        registry.register_with_unit(
            "install",
            "Time from installBiz to its answer",
            Unit::Seconds,
            metrics.install_seconds.clone(),
        );
        registry.register("uninstalls", "Ended uninstallBiz calls by result", metrics.uninstalls.clone());
        registry.register("status_writes", "Writes of VPod status by result", metrics.status_writes.clone());
        registry.register("checks", "queryAllBiz calls by result", metrics.checks.clone());
        registry.register(
            "forced_removals",
            "VPods removed while their base did not answer",
            metrics.forced.clone(),
        );
        registry.register(
            "deployments_scaled",
            "Tries to bring a Deployment to the number of its bases, by result",
            metrics.scaled.clone(),
        );
        registry.register("healing", "Overloaded bases by step of their healing", metrics.healing.clone());
        registry.register("healing_steps", "Steps of healing that began", metrics.healing_steps.clone());
        registry.register(
            "healing_evictions",
            "Evictions asked for by healing, by result",
            metrics.healing_evictions.clone(),
        );
        metrics
    }

    /// Counts a call to an API server.
    pub fn api_call(&self, resource: &'static str, verb: &'static str, result: ApiResult) {
        self.api_calls.get_or_create(&ApiCall { resource, verb, result }).inc();
    }

    /// Counts a call by what came of it.
    pub fn api<T>(&self, resource: &'static str, verb: &'static str, result: &Result<T, kube::Error>) {
        self.api_call(resource, verb, result.as_ref().map_or_else(ApiResult::of, |_| ApiResult::Ok));
    }

    /// Shows whether a brake is on.
    pub fn brake(&self, of: &'static str, on: bool) {
        self.brake.get_or_create(&BrakeLabel { of }).set(i64::from(on));
    }

    /// Shows how much has drifted.
    pub fn drift(&self, kind: &'static str, count: usize) {
        self.drift.get_or_create(&DriftLabel { kind }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a try to scale a Deployment.
    pub fn scaled(&self, result: &'static str) {
        self.scaled.get_or_create(&ResultLabel { result }).inc();
    }

    /// Shows how many overloaded bases are at a step.
    pub fn healing(&self, step: &'static str, count: usize) {
        self.healing.get_or_create(&StepLabel { step }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a step of healing that begins.
    pub fn healing_step(&self, step: &'static str) {
        self.healing_steps.get_or_create(&StepLabel { step }).inc();
    }

    /// Counts an eviction that was asked for.
    pub fn healing_eviction(&self, result: &'static str) {
        self.healing_evictions.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts an error of a watch.
    pub fn watch_error(&self, watch: &'static str) {
        self.watch_errors.get_or_create(&WatchLabel { watch }).inc();
    }
}

impl Meter for Metrics {
    fn install(&self, code: &'static str, seconds: f64) {
        self.installs.get_or_create(&ResultLabel { result: code }).inc();
        self.install_seconds.observe(seconds);
    }

    fn uninstall(&self, code: &'static str) {
        self.uninstalls.get_or_create(&ResultLabel { result: code }).inc();
    }

    fn status_write(&self, code: &'static str) {
        self.status_writes.get_or_create(&ResultLabel { result: code }).inc();
    }

    fn check(&self, ok: bool) {
        self.checks.get_or_create(&ResultLabel { result: if ok { "ok" } else { "missed" } }).inc();
    }

    fn forced(&self) {
        self.forced.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_registered_under_one_prefix() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        metrics.api_call("nodes", "patch", ApiResult::Conflict);
        metrics.install("ok", 0.2);
        metrics.brake("bases", true);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
        for line in [
            "stowage_agent_api_calls_total{resource=\"nodes\",verb=\"patch\",result=\"Conflict\"} 1",
            "stowage_agent_installs_total{result=\"ok\"} 1",
            "stowage_agent_install_seconds_count 1",
            "stowage_agent_brake{of=\"bases\"} 1",
            "stowage_agent_leader 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
        }
    }
}
