//! What a Pod's scores compare a base with: found by an index as by a walk through all bases.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::time::{Duration, Instant};

use policy::contract::{ModulePod, PodKind, classify};
use policy::{BaseView, FleetView, Policy, score};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use rig::{module_pod, ordinary_node, state, vnode};
use scheduler_extender::cache::{Change, Snapshot, State};
use scheduler_extender::placement::Judge;
use scheduler_extender::reservations::Reservations;
use serde_json::{Value, json};

const HEAD: &str = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n";
const TERMS: &str = "
scoring:
- {term: hostSpread, weight: 5}
- {term: zoneSpread, weight: 3}
- {term: baseVersion, weight: 2, prefer: newest}
- {term: baseRevision, weight: 1}
";
const NODES: [&str; 4] = ["v0", "v1", "v2", "v3"];
const MODULES: [&str; 3] = ["shop", "cart", "stock"];

/// What happens in the cluster.
#[derive(Debug, Clone)]
enum Event {
    Node(Value),
    NodeGone(&'static str),
    Pod(Value),
    PodGone(&'static str),
    /// A Pod is placed, and not seen yet.
    Placed(Value, &'static str),
    /// The same by a binding of our own, which may be one of several.
    Binding(Value, &'static str),
}

fn some_node() -> impl Strategy<Value = Value> {
    let parts = (select(&NODES[..]), 0..3, 0..2, 1..4, 0..3, any::<bool>());
    parts.prop_map(|(name, host, zone, version, revision, is_base)| {
        if !is_base {
            return ordinary_node(name);
        }
        let mut node = vnode(name);
        let labels = &mut node["metadata"]["labels"];
        labels["basement.koupleless.io/version"] = json!(format!("{version}.0.0"));
        labels["stowage.dev/host"] = json!(format!("h{host}"));
        labels["stowage.dev/zone"] = json!(format!("z{zone}"));
        node["metadata"]["annotations"]["stowage.dev/base-revision"] =
            json!(format!("base/r{revision}@2026-11-0{}T00:00:00Z", 3 - revision));
        node
    })
}

/// A Pod with some of the modules, bound or not.
fn some_pod() -> impl Strategy<Value = (Value, &'static str)> {
    let parts = (
        select(&["p0", "p1", "p2", "p3", "p4"][..]),
        vec(select(&MODULES[..]), 1..4),
        select(&["biz", "other"][..]),
        any::<bool>(),
        select(&NODES[..]),
    );
    parts.prop_map(|(name, modules, namespace, deleting, node)| {
        let mut pod = module_pod(name, "shop", "1");
        pod["metadata"]["namespace"] = json!(namespace);
        if deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-01T00:00:00Z");
        }
        let container = &pod["spec"]["containers"][0];
        let containers = modules.iter().map(|module| {
            let mut container = container.clone();
            container["name"] = json!(module);
            container
        });
        pod["spec"]["containers"] = containers.collect();
        (pod, node)
    })
}

fn some_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => some_node().prop_map(Event::Node),
        1 => select(&NODES[..]).prop_map(Event::NodeGone),
        1 => some_pod().prop_map(|(pod, _)| Event::Pod(pod)),
        6 => some_pod().prop_map(|(pod, node)| Event::Pod(rig::bound(pod, node))),
        1 => select(&["biz/p0", "biz/p1", "other/p2"][..]).prop_map(Event::PodGone),
        2 => some_pod().prop_map(|(pod, node)| Event::Placed(pod, node)),
        2 => some_pod().prop_map(|(pod, node)| Event::Binding(pod, node)),
    ]
}

fn module(pod: &Value) -> PodKind {
    classify(&serde_json::from_value(pod.clone()).expect("a Pod"))
}

fn of(kind: &PodKind) -> &ModulePod {
    match kind {
        PodKind::Module(pod) => pod,
        other => panic!("{other:?}"),
    }
}

/// Scores of all bases by a walk through all of them.
fn walked(
    policy: &Policy,
    pod: &ModulePod,
    snapshot: &Snapshot,
    placed: &Reservations,
) -> Vec<(String, i64)> {
    let nodes: Vec<_> = snapshot
        .nodes
        .iter()
        .filter_map(|(name, entry)| Some((name.to_string(), entry.base()?, &*entry.pods, placed.on(name))))
        .collect();
    let views: Vec<_> =
        nodes.iter().map(|(_, facts, pods, reserved)| BaseView { facts, pods, reserved }).collect();
    let fleet = FleetView::of(policy, pod, views.iter().copied());
    nodes
        .iter()
        .zip(&views)
        .map(|((name, ..), view)| (name.clone(), score(policy, pod, view, &fleet)))
        .collect()
}

proptest! {
    #[test]
    fn scores_are_those_of_a_walk(events in vec(some_event(), 1..40), (asking, _) in some_pod()) {
        let policy = policy::file::load(&format!("{HEAD}{TERMS}")).expect("a policy").policy;
        let (mut cache, mut placed, now) = (State::default(), Reservations::new(Duration::from_mins(1)), Instant::now());
        let asking = module(&asking);
        for event in events {
            match event {
                Event::Node(node) => cache.apply(rig::node(&node)),
                Event::NodeGone(name) => cache.apply(Change::NodeGone(name.into())),
                Event::Pod(pod) => cache.apply(rig::pod(&pod)),
                Event::PodGone(key) => cache.apply(Change::PodGone(key.into())),
                Event::Placed(pod, node) => placed.reserve(of(&module(&pod)), node, &cache, now),
                Event::Binding(pod, node) => _ = placed.bind(of(&module(&pod)), node, &cache, now),
            }
            let snapshot = cache.clone();
            let judge = Judge::new(&asking, &snapshot, &policy, &placed);
            let scorer = judge.scorer().expect("a module Pod");
            for (name, points) in walked(&policy, of(&asking), &snapshot, &placed) {
                let entry = snapshot.nodes.get(&name).expect("a base");
                prop_assert_eq!(scorer.score(&name, entry, None), points, "{}", name);
            }
        }
    }
}

/// The walk tells bases apart by each term, so a test that compares with it can fail.
#[test]
fn each_term_tells_bases_apart() {
    let labels = [
        ("hostSpread", "stowage.dev/host", ["h0", "h1"]),
        ("zoneSpread", "stowage.dev/zone", ["z0", "z1"]),
        ("baseVersion, prefer: newest", "basement.koupleless.io/version", ["1.0.0", "2.0.0"]),
    ];
    let revisions = ["base/r0@2026-11-01T00:00:00Z", "base/r1@2026-11-02T00:00:00Z"];
    let mut cases = labels.map(|(term, label, values)| (term, "labels", label, values)).to_vec();
    cases.push(("baseRevision", "annotations", "stowage.dev/base-revision", revisions));
    for (term, kind, key, values) in cases {
        let text = format!("{HEAD}scoring: [{{term: {term}, weight: 1}}]\n");
        let policy = policy::file::load(&text).expect("a policy").policy;
        let nodes = [0, 1].map(|n| {
            let mut node = vnode(NODES[n]);
            node["metadata"][kind][key] = json!(values[n]);
            node
        });
        let replica = |name: &str| module_pod(name, "shop", "1");
        let cache = state(&nodes, &[rig::bound(replica("a"), "v0")]);
        let nobody = Reservations::new(Duration::ZERO);
        let kind = module(&replica("b"));
        let mut bases = walked(&policy, of(&kind), &cache, &nobody);
        bases.sort_unstable();
        let judge = Judge::new(&kind, &cache, &policy, &nobody);
        let scorer = judge.scorer().expect("a module Pod");
        assert!(bases[0].1 < bases[1].1, "{term}: {bases:?}");
        let points = |name| scorer.score(name, cache.nodes.get(name).expect("a base"), None);
        assert_eq!([bases[0].1, bases[1].1], ["v0", "v1"].map(points), "{term}");
    }
}
