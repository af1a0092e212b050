//! What must hold for every policy, base and Pod.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]

use std::{collections::BTreeMap, sync::Arc};

use policy::{
    BaseLike, BaseView, FleetView, Policy,
    contract::{BaseFacts, ModulePod, PodKind, classify},
    decide, explain, file, may_hinder,
    model::Limits,
    score,
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

const NAMES: [&str; 4] = ["shop", "cart", "legacy-pay", "ledger"];
const VERSIONS: [&str; 4] = ["1.0.0", "1.4.0", "2.0.0", "2.1-SNAPSHOT"];
const RANGES: [&str; 5] = [">=1 <2", "[2,3)", "1.*", "*", "[1.4.0]"];
const GLOBS: [&str; 4] = ["shop", "legacy-*", "*", "cart"];

fn facts(node: &Value) -> BaseFacts {
    BaseFacts::from_node(&serde_json::from_value(node.clone()).unwrap()).unwrap().unwrap()
}

fn module_pod(pod: &Value) -> Arc<ModulePod> {
    match classify(&serde_json::from_value(pod.clone()).unwrap()) {
        PodKind::Module(pod) => Arc::new(*pod),
        other => panic!("{other:?}"),
    }
}

fn some_module() -> impl Strategy<Value = (&'static str, &'static str)> {
    (select(&NAMES[..]), select(&VERSIONS[..]))
}

prop_compose! {
    fn some_node()(
        number in 0..1000u32,
        stack in select(&["java", "nodejs"][..]),
        version in option::of(select(&VERSIONS[..])),
        size in select(&["small", "large"][..]),
        modules in vec((some_module(), any::<bool>()), 0..4),
        jdk in option::of(select(&["11", "17.0.2", "odd one"][..])),
        failures in vec(some_module(), 0..2),
        multi in any::<bool>(),
        known in 0..8u8,
        ready in prop::bool::weighted(0.9),
        lowest in 0..100u32,
    ) -> Value {
        let modules: Vec<Value> = modules
            .iter()
            .enumerate()
            .map(|(at, ((name, version), foreign))| {
                let owner = if *foreign { Value::Null } else { json!(format!("shop/p{at}/u{at}")) };
                json!({"name": name, "version": version, "state": "activated", "owner": owner, "contextPath": format!("/{name}")})
            })
            .collect();
        let failures: Vec<Value> = failures.iter().map(|(m, v)| json!({"module": m, "version": v})).collect();
        let inventory = json!({
            "v": 1, "modules": modules, "failures": failures, "multiVersion": multi, "truncated": known == 1,
            "provides": jdk.map(|jdk| json!({"jdk": jdk})).unwrap_or(json!({})),
            "metaspace": {"max": 100, "used": lowest, "lowest": lowest},
        });
        let mut labels = json!({
            "app.kubernetes.io/managed-by": "stowage", "basement.koupleless.io/stack": stack, "size": size,
            "stowage.dev/host": format!("h{}", number % 3), "stowage.dev/zone": format!("z{}", number % 2),
        });
        if let Some(version) = version {
            labels["basement.koupleless.io/version"] = json!(version);
        }
        let mut annotations = json!({"stowage.dev/base": format!("shop/base-{number}")});
        if known > 0 {
            annotations["stowage.dev/inventory"] = json!(inventory.to_string());
        }
        json!({
            "metadata": {"name": format!("n{number}"), "labels": labels, "annotations": annotations},
            "status": {"allocatable": {"pods": "8"}, "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        })
    }
}

prop_compose! {
    // The stack is always named: an entry that asks for a stack stands in for the Pod's own word, see the rule `stack`.
    fn some_pod(uid: &'static str)(
        namespace in select(&["shop", "pay"][..]),
        modules in vec((some_module(), any::<bool>()), 1..3),
        stack in select(&["java", "nodejs"][..]),
        range in option::of(select(&RANGES[..])),
        need in option::of(0..120u32),
        scheme in select(&["https://repo/", "file:///"][..]),
        deleting in prop::bool::weighted(0.2),
    ) -> Value {
        let mut annotations = json!({"stowage.dev/stack": stack});
        if let Some(range) = range {
            annotations["stowage.dev/base-version"] = json!(range);
        }
        if let Some(need) = need {
            annotations["stowage.dev/metaspace"] = json!(need.to_string());
        }
        let containers: Vec<Value> = modules
            .iter()
            .enumerate()
            .map(|(at, ((name, version), written))| {
                let value = if *written {
                    json!({"name": "MODULE_VERSION", "value": version})
                } else {
                    json!({"name": "MODULE_VERSION", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}})
                };
                json!({"name": format!("c{at}"), "image": format!("{scheme}{name}.jar"), "env": [value, {"name": "MODULE_NAME", "value": name}]})
            })
            .collect();
        json!({
            "metadata": {"namespace": namespace, "name": uid, "uid": uid, "annotations": annotations,
                         "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z")},
            "spec": {"tolerations": [{"key": "schedule.koupleless.io/virtual-node"}], "containers": containers},
        })
    }
}

fn some_selector() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        select(&["small", "large"][..]).prop_map(|size| json!({"labels": {"size": size}})),
        select(&RANGES[..]).prop_map(|range| json!({"version": range})),
        select(&["java", "nodejs"][..]).prop_map(|stack| json!({"stack": stack})),
    ]
}

prop_compose! {
    fn some_entry()(
        module in select(&GLOBS[..]),
        versions in option::of(select(&RANGES[..])),
        base in option::of(some_selector()),
        jdk in option::of(select(&RANGES[..])),
        needed in option::of(select(&NAMES[..])),
        unwanted in option::of(select(&GLOBS[..])),
    ) -> Value {
        let mut entry = json!({"module": module, "requires": {}, "conflicts": {}});
        if let Some(versions) = versions { entry["versions"] = json!(versions); }
        if let Some(base) = base { entry["requires"]["base"] = base; }
        if let Some(jdk) = jdk { entry["requires"]["provides"] = json!([{"name": "jdk", "versions": jdk}]); }
        if let Some(needed) = needed { entry["requires"]["modules"] = json!([{"name": needed}]); }
        if let Some(unwanted) = unwanted { entry["conflicts"]["modules"] = json!([{"name": unwanted}]); }
        entry
    }
}

/// Modules that require each other in a circle are refused: what would close one requires nothing.
fn without_circles(entries: Vec<Value>) -> Vec<Value> {
    entries.into_iter().fold(Vec::new(), |mut kept, mut entry| {
        let tried = [&kept[..], &[entry.clone()]].concat();
        let document = json!({
            "apiVersion": "policy.stowage.dev/v1alpha1", "kind": "PlacementPolicy", "compatibility": tried,
        });
        if file::load(&document.to_string()).is_err() {
            entry["requires"].as_object_mut().unwrap().remove("modules");
        }
        kept.push(entry);
        kept
    })
}

fn some_entries() -> impl Strategy<Value = Vec<Value>> {
    vec(some_entry(), 0..3).prop_map(without_circles)
}

prop_compose! {
    fn some_limit()(
        bases in some_selector(),
        pods in option::of(0..9u32),
        modules in option::of(0..9u32),
        versions in option::of(1..4u32),
        cpu in option::of(0..3000u32),
    ) -> Value {
        let mut entry = json!({"bases": bases});
        if let Some(pods) = pods { entry["podsPerBase"] = json!(pods); }
        if let Some(modules) = modules { entry["modulesPerBase"] = json!(modules); }
        if let Some(versions) = versions { entry["versionsPerModule"] = json!(versions); }
        if let Some(cpu) = cpu { entry["reserved"] = json!({"cpu": format!("{cpu}m")}); }
        entry
    }
}

/// A policy in which every limit is named for every base, so that further entries can only be stricter.
fn policy(limits: &[Value], entries: &[Value], access: Option<&Value>, artifacts: Option<&Value>) -> Policy {
    let mut all = vec![json!({"podsPerBase": 8, "modulesPerBase": 8, "versionsPerModule": 3})];
    all.extend(limits.iter().cloned());
    let mut document = json!({
        "apiVersion": "policy.stowage.dev/v1alpha1", "kind": "PlacementPolicy", "limits": all, "compatibility": entries,
        "scoring": [{"term": "spread"}, {"term": "hostSpread"}, {"term": "baseVersion"}, {"term": "metaspaceHeadroom"}],
    });
    if let Some(access) = access {
        document["access"] = access.clone();
    }
    if let Some(artifacts) = artifacts {
        document["artifacts"] = artifacts.clone();
    }
    file::load(&document.to_string()).unwrap_or_else(|problems| panic!("{problems:?}\n{document}")).policy
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_further_rule_admits_no_base(
        node in some_node(),
        new in some_pod("new"),
        bound in vec(some_pod("u0"), 0..2),
        limits in vec(some_limit(), 0..3),
        entries in some_entries(),
        more_limits in vec(some_limit(), 0..2),
        more_entries in vec(some_entry(), 0..2),
        access in option::of(some_selector()),
        artifacts in any::<bool>(),
    ) {
        let before = policy(&limits, &entries, None, None);
        let access = access.map(|bases| json!([{"bases": bases, "namespaces": ["shop"]}]));
        // The scheme `file`, which a first entry could allow, is refused by both.
        let artifacts = artifacts.then(|| json!({"allow": [{"scheme": "https", "host": "repo"}]}));
        let all = without_circles([entries, more_entries].concat());
        let after = policy(&[limits, more_limits].concat(), &all, access.as_ref(), artifacts.as_ref());
        let (facts, new) = (facts(&node), module_pod(&new));
        let bound: Vec<_> = bound.iter().map(module_pod).collect();
        let view = BaseView { pods: &bound, ..BaseView::empty(&facts) };
        let (old, now) = (decide(&before, &new, &view), decide(&after, &new, &view));
        prop_assert!(old.is_ok() || now.is_err(), "{:?} and now {:?}", old, now);
    }

    #[test]
    fn the_filter_says_the_same_again(
        node in some_node(),
        new in some_pod("new"),
        bound in vec(some_pod("u0"), 0..2),
        entries in some_entries(),
    ) {
        let policy = policy(&[], &entries, None, None);
        let (facts, new) = (facts(&node), module_pod(&new));
        let bound: Vec<_> = bound.iter().map(module_pod).collect();
        let view = BaseView { pods: &bound, ..BaseView::empty(&facts) };
        let first = decide(&policy, &new, &view);
        prop_assert_eq!(&first, &decide(&policy, &new, &view));
        // The place that was taken for it by the first answer does not keep it away.
        let reserved = [new.clone()];
        prop_assert_eq!(&first, &decide(&policy, &new, &BaseView { reserved: &reserved, ..view }));
        // Nor does its own binding, once that is seen.
        let seen: Vec<_> = bound.iter().cloned().chain([new.clone()]).collect();
        prop_assert_eq!(&first, &decide(&policy, &new, &BaseView { pods: &seen, reserved: &reserved, ..view }));
    }

    /// Who cannot hinder a Pod need not be looked at: on no base does it change a verdict for the worse.
    #[test]
    fn who_cannot_hinder_changes_nothing(
        node in some_node(),
        new in some_pod("new"),
        // May own what the inventory lists.
        other in some_pod("u0"),
        objections in vec(option::of(select(&GLOBS[..])), 2),
        entries in some_entries(),
        pathless in any::<bool>(),
    ) {
        let document = json!({
            "apiVersion": "policy.stowage.dev/v1alpha1", "kind": "PlacementPolicy", "compatibility": entries,
            "defaults": {"podsPerBase": 8, "versionsPerModule": 2},
        });
        let policy = file::load(&document.to_string()).unwrap().policy;
        let (mut new, mut other) = (new, other);
        for (pod, glob) in [&mut new, &mut other].into_iter().zip(&objections) {
            let annotations = &mut pod["metadata"]["annotations"];
            if let Some(glob) = glob { annotations["stowage.dev/conflicts"] = json!(glob); }
            if !pathless { annotations["stowage.dev/context-path"] = json!("/ledger"); }
        }
        let (facts, new, other) = (facts(&node), module_pod(&new), module_pod(&other));
        let view = BaseView::empty(&facts);
        let reserved = [other.clone()];
        let alone = decide(&policy, &new, &view);
        let crowded = decide(&policy, &new, &BaseView { reserved: &reserved, ..view });
        prop_assert!(may_hinder(&policy, &new, &other) || alone.is_err() || crowded.is_ok(), "{:?}", crowded);
    }

    #[test]
    fn answers_speak_of_the_bases_asked_for_and_agree(
        nodes in vec(some_node(), 0..5),
        new in some_pod("new"),
        entries in some_entries(),
    ) {
        let policy = policy(&[], &entries, None, None);
        let new = module_pod(&new);
        let facts: Vec<_> = nodes.iter().map(facts).collect();
        let views: Vec<_> = facts.iter().map(BaseView::empty).collect();
        let verdicts = explain::explain(&policy, &new, &views);
        let (asked, told): (Vec<_>, Vec<_>) =
            views.iter().zip(&verdicts).map(|(view, verdict)| (view.facts.node.to_string(), verdict.node.clone())).unzip();
        prop_assert_eq!(asked, told);
        let fleet = FleetView::of(&policy, &new, views.iter().copied());
        for (view, verdict) in views.iter().zip(&verdicts) {
            let decided = decide(&policy, &new, view);
            prop_assert_eq!(verdict.fits, decided.is_ok());
            let first = verdict.rejections().next().map(|(_, objection)| objection.code);
            prop_assert_eq!(first, decided.as_ref().err().map(|rejection| rejection.reason.code()));
            let points = score(&policy, &new, view, &fleet);
            prop_assert!((0..=10).contains(&points));
            prop_assert_eq!(verdict.score, decided.is_ok().then_some(points));
        }
    }

    #[test]
    fn the_strictest_limit_wins_in_any_order(
        (entries, shuffled) in vec(some_limit(), 0..6).prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        size in select(&["small", "large"][..]),
        version in option::of(select(&VERSIONS[..])),
    ) {
        let labels = BTreeMap::from([("size".to_owned(), size.to_owned())]);
        let version = version.map(|text| policy::version::Version::parse(text).unwrap());
        let base = BaseLike { stack: "java", version: version.as_ref(), labels: &labels };
        let policy = |limits: &[Value]| policy(limits, &[], None, None);
        let found: Limits = policy(&entries).limits_for(&base);
        prop_assert_eq!(&found, &policy(&shuffled).limits_for(&base));
        for entry in policy(&entries).limits.iter().filter(|entry| entry.bases.matches(&base)) {
            prop_assert!(entry.values.pods_per_base.is_none_or(|pods| found.pods_per_base <= pods));
            prop_assert!(entry.values.modules_per_base.is_none_or(|modules| found.modules_per_base <= Some(modules)));
            prop_assert!(entry.values.versions_per_module.is_none_or(|versions| found.versions_per_module <= versions));
            prop_assert!(entry.values.reserved.cpu.is_none_or(|cpu| found.reserved.cpu >= cpu));
        }
    }
}
