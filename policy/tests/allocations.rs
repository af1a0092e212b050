//! The hot path of the extender: a base that is admitted costs no allocation, and neither does a refusal or a score.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]

use std::{fmt::Write, hint::black_box, sync::Arc};

use policy::{
    Applicant, BaseView, FleetView, Policy, Reason,
    contract::{BaseFacts, ModulePod, PodKind, classify},
    file, score,
};
use serde_json::json;

/// Allocations and bytes of `work`.
#[track_caller]
fn costs_nothing<T>(what: &str, work: impl Fn() -> T) {
    // What is built once is not counted.
    black_box(work());
    let used = allocation_counter::measure(|| {
        black_box(work());
    });
    assert_eq!((used.count_total, used.bytes_total), (0, 0), "{what}");
}

/// 50 rules that matter for the module, and 50 that do not.
fn policy() -> Policy {
    let mut text = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\nlimits:\n- {bases: {labels: {size: large}}, podsPerBase: 8, modulesPerBase: 64, versionsPerModule: 2}\naccess: [{bases: {}, namespaces: ['shop-*', shop]}]\nartifacts: {allow: [{scheme: https, host: '*.example.com'}]}\nscoring: [{term: spread}, {term: metaspaceHeadroom}, {term: hostSpread}, {term: zoneSpread}, {term: recentFailures}, {term: baseVersion}, {term: baseRevision}]\ncompatibility:\n".to_owned();
    for number in 0..50 {
        let _ = write!(
            text,
            "- {{module: shop, versions: '[1,{end})', requires: {{base: {{stack: java, version: '>=2.1 <3-alpha', labels: {{size: large}}}}, provides: [{{name: jdk, versions: '>=11'}}], modules: [{{name: m1}}]}}, conflicts: {{modules: [{{name: 'legacy-{number}-*'}}]}}}}\n- {{module: other-{number}, conflicts: {{modules: [{{name: nobody}}]}}}}\n",
            end = number + 2,
        );
    }
    file::load(&text).unwrap_or_else(|problems| panic!("{problems:?}")).policy
}

fn base(ready: &str, modules: usize) -> BaseFacts {
    let modules: Vec<_> = (0..modules)
        .map(|n| json!({"name": format!("m{n}"), "version": "1.0.0", "state": "activated", "contextPath": format!("/m{n}"),
                        "owner": (n % 2 == 0).then(|| format!("shop/p{n}/u{n}"))}))
        .collect();
    let inventory = json!({"v": 1, "modules": modules, "provides": {"jdk": "17"}, "multiVersion": true,
                           "metaspace": {"max": 1000, "used": 500, "lowest": 400}, "failures": [{"module": "x", "version": "1"}]});
    let node = json!({
        "metadata": {"name": "n1",
            "labels": {"app.kubernetes.io/managed-by": "stowage", "basement.koupleless.io/version": "2.1.0", "size": "large",
                       "stowage.dev/host": "h1", "stowage.dev/zone": "z1"},
            "annotations": {"stowage.dev/base": "shop/b", "stowage.dev/inventory": inventory.to_string(),
                            "stowage.dev/base-revision": "w/h@2026-01-01T00:00:00Z"}},
        "status": {"allocatable": {"pods": "8"}, "conditions": [{"type": "Ready", "status": ready}]},
    });
    BaseFacts::from_node(&serde_json::from_value(node).unwrap()).unwrap().unwrap()
}

fn pod(name: &str, uid: &str, image: &str) -> Arc<ModulePod> {
    let pod = json!({
        "metadata": {"namespace": "shop", "name": name, "uid": uid, "annotations": {
            "stowage.dev/base-version": ">=2", "stowage.dev/requires": "jdk >=11", "stowage.dev/conflicts": "bad-*",
            "stowage.dev/context-path": format!("/{name}-own"), "stowage.dev/metaspace": "10"}},
        "spec": {"tolerations": [{"key": "schedule.koupleless.io/virtual-node"}],
                 "containers": [{"name": name, "image": image, "env": [{"name": "MODULE_VERSION", "value": "1.0.0"}]}]},
    });
    match classify(&serde_json::from_value(pod).unwrap()) {
        PodKind::Module(pod) => Arc::new(*pod),
        other => panic!("{other:?}"),
    }
}

#[test]
fn deciding_allocates_nothing() {
    let (policy, new) = (policy(), pod("shop", "new", "https://repo.example.com/shop.jar"));
    let bound: Vec<_> =
        (0..6).map(|n| pod(&format!("m{n}"), &format!("u{n}"), "https://repo.example.com/m.jar")).collect();
    let reserved = [pod("late", "late", "https://repo.example.com/late.jar")];
    let good = base("True", 20);
    let view = BaseView { facts: &good, pods: &bound, reserved: &reserved };
    let (applicant, limits) = (Applicant::new(&policy, &new), policy.limits_for(&good.like()));
    assert_eq!(applicant.decide(&view, &limits), Ok(()));
    costs_nothing("the limits of a base", || policy.limits_for(&good.like()));
    costs_nothing("a base that is admitted", || applicant.decide(&view, &limits));
    costs_nothing("a base that is admitted by the agent", || applicant.admit(&view, &limits));
    // What is prepared once for each request grows with the rules that speak of the Pod, not one by one.
    let prepared = allocation_counter::measure(|| {
        black_box(Applicant::new(&policy, &new));
    });
    assert!(prepared.count_total <= 40, "{} allocations", prepared.count_total);

    let silent = base("False", 20);
    let refusals = [
        (BaseView { facts: &silent, ..view }, new.clone(), Reason::NotReady),
        (view, pod("shop", "new", "file:///x.jar"), Reason::Artifact { container: "shop".into() }),
        (
            view,
            pod("m3", "new", "https://repo.example.com/m.jar"),
            Reason::SameModule { module: "m3".into() },
        ),
    ];
    for (view, new, reason) in refusals {
        let applicant = Applicant::new(&policy, &new);
        assert_eq!(applicant.decide(&view, &limits).unwrap_err().reason, reason);
        costs_nothing("a base that is refused", || applicant.decide(&view, &limits));
    }
}

#[test]
fn scoring_a_base_allocates_nothing() {
    let (policy, new) = (policy(), pod("shop", "new", "https://repo.example.com/shop.jar"));
    let bases: Vec<BaseFacts> = (0..50).map(|_| base("True", 5)).collect();
    let views: Vec<BaseView<'_>> = bases.iter().map(BaseView::empty).collect();
    let fleet = FleetView::of(&policy, &new, views.iter().copied());
    costs_nothing("the score of a base", || score(&policy, &new, &views[0], &fleet));
    // What is built once for each request grows with hosts, zones, versions and revisions, not with bases.
    let many = allocation_counter::measure(|| {
        black_box(FleetView::of(&policy, &new, views.iter().copied()));
    });
    assert!(many.count_total <= 24, "{} allocations for {} bases", many.count_total, views.len());
}
