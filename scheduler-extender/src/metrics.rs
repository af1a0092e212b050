//! The extender's metrics. docs/extender.md lists them, and a test compares the two.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::cache::{Change, Source, State};

/// `filter`, `prioritize`, `preempt`, `bind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VerbLabel {
    /// The verb.
    pub verb: &'static str,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabels {
    /// The verb.
    pub verb: &'static str,
    /// `answered`, or the code of a fault.
    pub outcome: &'static str,
}

/// What a node got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct VerdictLabel {
    /// `fits`, or the code of the reason.
    pub reason: &'static str,
}

/// How waking a Pod went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct NudgeLabel {
    /// `woken`, `gone`, `failed`.
    pub outcome: &'static str,
}

/// `nodes`, `pods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SourceLabel {
    /// The watched resource.
    pub source: &'static str,
}

/// From 50 µs to 3 s: a call of 100 names on loopback, and a full list of 5,000 Nodes.
const LATENCY_BUCKETS: [f64; 15] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0,
];
/// Names in a question.
const SIZE_BUCKETS: [f64; 8] = [1.0, 10.0, 100.0, 500.0, 1000.0, 5000.0, 10_000.0, 15_000.0];

#[derive(Clone)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// All metrics; clones share the values.
#[derive(Debug, Clone)]
pub struct Metrics {
    durations: Family<VerbLabel, Histogram, Buckets>,
    sizes: Family<VerbLabel, Histogram, Buckets>,
    outcomes: Family<OutcomeLabels, Counter>,
    verdicts: Family<VerdictLabel, Counter>,
    full_nodes: Family<VerbLabel, Counter>,
    too_often: Counter,
    reservations: Gauge,
    waiting: Gauge,
    nudges: Family<NudgeLabel, Counter>,
    cache_nodes: Gauge,
    cache_pods: Gauge,
    changes: Family<SourceLabel, Counter>,
    failures: Family<SourceLabel, Counter>,
    last_change: Family<SourceLabel, Gauge<f64, AtomicU64>>,
}

impl std::fmt::Debug for Buckets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} buckets", self.0.len())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(Buckets(&LATENCY_BUCKETS)),
            sizes: Family::new_with_constructor(Buckets(&SIZE_BUCKETS)),
            outcomes: Family::default(),
            verdicts: Family::default(),
            full_nodes: Family::default(),
            too_often: Counter::default(),
            reservations: Gauge::default(),
            waiting: Gauge::default(),
            nudges: Family::default(),
            cache_nodes: Gauge::default(),
            cache_pods: Gauge::default(),
            changes: Family::default(),
            failures: Family::default(),
            last_change: Family::default(),
        }
    }
}

impl Metrics {
    /// New metrics, registered.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self {
            durations,
            sizes,
            outcomes,
            verdicts,
            full_nodes,
            too_often,
            reservations,
            waiting,
            nudges,
            cache_nodes,
            cache_pods,
            changes,
            failures,
            last_change,
        } = &metrics;
        let registry = registry.sub_registry_with_prefix("stowage_extender");
        let text = "Time from the complete request to the answer, in the handler";
        registry.register("request_duration_seconds", text, durations.clone());
        registry.register("request_nodes", "Nodes in a request", sizes.clone());
        registry.register(
            "requests",
            "Requests by outcome: answered, or the code of a fault",
            outcomes.clone(),
        );
        registry.register("verdicts", "Verdicts on nodes: fits, or the code of the reason", verdicts.clone());
        let text = "Requests with whole Node objects (nodeCacheCapable: false), which are slow";
        registry.register("full_node_requests", text, full_nodes.clone());
        let text = "Pods that came to the filter more often than back-off explains: something wakes them";
        registry.register("pods_filtered_too_often", text, too_often.clone());
        let text = "Placements just made and not yet seen in the cache";
        registry.register("reservations", text, reservations.clone());
        let text = "Pods that were refused on every node and still wait";
        registry.register("pods_refused", text, waiting.clone());
        let text = "Pods woken because they would fit now, by outcome: woken, gone, failed";
        registry.register("nudges", text, nudges.clone());
        registry.register("cache_nodes", "Nodes in the cache", cache_nodes.clone());
        registry.register("cache_module_pods", "Module Pods in the cache", cache_pods.clone());
        registry.register("cache_changes", "Changes that the watches delivered", changes.clone());
        registry.register("watch_failures", "Failures of the watches", failures.clone());
        let text = "When the watch last delivered something, Unix time";
        registry.register("cache_last_change_timestamp_seconds", text, last_change.clone());
        metrics.start_at_zero();
        metrics
    }

    /// A series that appears with its first event hides that event from `rate()`.
    fn start_at_zero(&self) {
        for verb in ["filter", "prioritize", "preempt", "bind"] {
            drop(self.durations.get_or_create(&VerbLabel { verb }));
            drop(self.outcomes.get_or_create(&OutcomeLabels { verb, outcome: "answered" }));
        }
        for verb in ["filter", "prioritize"] {
            drop(self.sizes.get_or_create(&VerbLabel { verb }));
            drop(self.full_nodes.get_or_create(&VerbLabel { verb }));
        }
        for outcome in ["woken", "gone", "failed"] {
            drop(self.nudges.get_or_create(&NudgeLabel { outcome }));
        }
        drop(self.verdicts.get_or_create(&VerdictLabel { reason: "fits" }));
        for source in [Source::Nodes, Source::Pods].map(label) {
            drop(self.changes.get_or_create(&source));
            drop(self.failures.get_or_create(&source));
            drop(self.last_change.get_or_create(&source));
        }
    }

    /// One finished request.
    pub fn request(&self, verb: &'static str, outcome: &'static str, took: Duration) {
        self.durations.get_or_create(&VerbLabel { verb }).observe(took.as_secs_f64());
        self.outcomes.get_or_create(&OutcomeLabels { verb, outcome }).inc();
    }

    /// The size of a question. Returns the number of full-node requests of the verb so far, this one included.
    pub fn question(&self, verb: &'static str, nodes: usize, full: bool) -> u64 {
        #[expect(clippy::cast_precision_loss, reason = "a count of nodes")]
        self.sizes.get_or_create(&VerbLabel { verb }).observe(nodes as f64);
        let counter = self.full_nodes.get_or_create(&VerbLabel { verb });
        if full {
            counter.inc();
        }
        counter.get()
    }

    /// So many nodes got this verdict.
    pub fn verdicts(&self, reason: &'static str, nodes: u64) {
        self.verdicts.get_or_create(&VerdictLabel { reason }).inc_by(nodes);
    }

    /// A Pod was filtered too often.
    pub fn filtered_too_often(&self) {
        self.too_often.inc();
    }

    /// So many placements wait to be seen.
    pub fn reservations(&self, count: usize) {
        self.reservations.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// So many Pods wait after a refusal.
    pub fn waiting(&self, count: usize) {
        self.waiting.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A Pod was woken, or not.
    pub fn nudge(&self, outcome: &'static str) {
        self.nudges.get_or_create(&NudgeLabel { outcome }).inc();
    }

    pub(crate) fn watch_event(&self, change: &Change) {
        let source = match change {
            Change::Node(_) | Change::NodeGone(_) => Source::Nodes,
            Change::Pod(_) | Change::PodGone(_) => Source::Pods,
            Change::ListStarts(source, _) | Change::ListEnds(source, _) => *source,
            Change::Opened(..) => return,
            Change::Failed(source, _) => {
                self.failures.get_or_create(&label(*source)).inc();
                return;
            }
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.changes.get_or_create(&label(source)).inc();
        self.last_change.get_or_create(&label(source)).set(now.as_secs_f64());
    }

    pub(crate) fn cache_size(&self, state: &State) {
        self.cache_nodes.set(i64::try_from(state.nodes.len()).unwrap_or(i64::MAX));
        self.cache_pods.set(i64::try_from(state.pods.len()).unwrap_or(i64::MAX));
    }
}

fn label(source: Source) -> SourceLabel {
    let source = match source {
        Source::Nodes => "nodes",
        Source::Pods => "pods",
    };
    SourceLabel { source }
}
