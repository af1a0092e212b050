use std::sync::Arc;

use super::*;
use crate::{
    contract::{BaseFacts, PodKind, classify},
    model::{LimitEntry, LimitValues, Prefer, ScoreTerm},
};

fn base(name: &str, labels: &str, annotations: &str) -> BaseFacts {
    let text = format!(
        "{{metadata: {{name: {name}, labels: {{app.kubernetes.io/managed-by: stowage, {labels}}}, annotations: \
         {{stowage.dev/base: shop/{name}, {annotations}}}}}}}"
    );
    BaseFacts::from_node(&serde_saphyr::from_str(&text).unwrap()).unwrap().unwrap()
}

fn pod(uid: &str, module: &str) -> Arc<ModulePod> {
    let text = format!(
        "{{metadata: {{namespace: shop, name: p, uid: '{uid}'}}, spec: {{tolerations: [{{key: \
         schedule.koupleless.io/virtual-node}}], containers: [{{name: {module}, env: [{{name: MODULE_VERSION, value: \
         '1'}}]}}]}}}}"
    );
    match classify(&serde_saphyr::from_str(&text).unwrap()) {
        PodKind::Module(pod) => Arc::new(*pod),
        other => panic!("{other:?}"),
    }
}

fn policy(terms: &[(Term, u32)]) -> Policy {
    let values = LimitValues { pods_per_base: Some(4), ..LimitValues::default() };
    Policy {
        limits: vec![LimitEntry { values, ..LimitEntry::default() }],
        scoring: terms.iter().map(|&(term, weight)| ScoreTerm { term, weight }).collect(),
        ..Policy::default()
    }
}

/// Scores of bases, each with its Pods, for a Pod with module `a`.
fn scores(terms: &[(Term, u32)], bases: &[(&BaseFacts, &[Arc<ModulePod>])]) -> Vec<i64> {
    let policy = policy(terms);
    let knocking = pod("new", "a");
    let views: Vec<BaseView<'_>> =
        bases.iter().map(|&(facts, pods)| BaseView { pods, ..BaseView::empty(facts) }).collect();
    let fleet = FleetView::of(&policy, &knocking, views.iter().copied());
    views.iter().map(|view| score(&policy, &knocking, view, &fleet)).collect()
}

#[test]
fn spread_and_pack_mirror_each_other() {
    let (one, two) = (base("one", "", ""), base("two", "", ""));
    let taken = [pod("u1", "b"), pod("u2", "c"), pod("u3", "d")];
    let bases: &[(&BaseFacts, &[Arc<ModulePod>])] = &[(&one, &taken), (&two, &[])];
    assert_eq!(scores(&[(Term::Spread, 1)], bases), [3, 10]);
    assert_eq!(scores(&[(Term::Pack, 1)], bases), [8, 0]);
    assert_eq!(scores(&[], bases), [0, 0], "no terms, no difference");
}

#[test]
fn reservations_count_once() {
    let facts = base("one", "", "");
    let (bound, placed) = ([pod("u1", "b")], [pod("u1", "b"), pod("u2", "c")]);
    let policy = policy(&[(Term::Pack, 1)]);
    let view = BaseView { facts: &facts, pods: &bound, reserved: &placed };
    assert_eq!(score(&policy, &pod("new", "a"), &view, &FleetView::default()), 5, "two of four");
}

#[test]
fn hosts_and_zones_with_fewer_siblings_come_first() {
    let full = base("one", "stowage.dev/host: h1, stowage.dev/zone: z1", "");
    let free = base("two", "stowage.dev/host: h2, stowage.dev/zone: z1", "");
    let unknown = base("three", "", "");
    let taken = [pod("u1", "a"), pod("u2", "b")];
    let bases: &[(&BaseFacts, &[Arc<ModulePod>])] = &[(&full, &taken), (&free, &[]), (&unknown, &[])];
    assert_eq!(scores(&[(Term::HostSpread, 1)], bases), [5, 10, 5], "only module a counts");
    assert_eq!(scores(&[(Term::ZoneSpread, 1)], bases), [5, 5, 5]);
}

#[test]
fn metaspace_and_failures() {
    let inventory = |text: &str| format!("stowage.dev/inventory: '{{\"v\":1,{text}}}'");
    let roomy = base("one", "", &inventory(r#""metaspace":{"max":100,"used":50,"lowest":20}"#));
    let unknown = base("two", "", &inventory(r#""metaspace":{"used":50,"lowest":20}"#));
    let failed = base("three", "", &inventory(r#""failures":[{"module":"x","version":"1"}]"#));
    let bases: &[(&BaseFacts, &[Arc<ModulePod>])] = &[(&roomy, &[]), (&unknown, &[]), (&failed, &[])];
    assert_eq!(scores(&[(Term::MetaspaceHeadroom, 1)], bases), [8, 5, 5]);
    assert_eq!(scores(&[(Term::RecentFailures, 1)], bases), [10, 10, 8]);
    assert_eq!(
        scores(&[(Term::MetaspaceHeadroom, 1), (Term::RecentFailures, 3)], bases),
        [10, 9, 7],
        "weighted"
    );
}

#[test]
fn versions_and_revisions() {
    let version = |name: &str, version: &str, revision: &str| {
        base(
            name,
            &format!("basement.koupleless.io/version: '{version}'"),
            &format!("stowage.dev/base-revision: 'w/{revision}'"),
        )
    };
    let old = version("one", "1.9", "h1@2026-01-01T00:00:00Z");
    let middle = version("two", "1.10", "h2@2026-01-03T00:00:00Z");
    // The old revision got a young Pod: its oldest one still decides.
    let new = version("three", "2", "h1@2026-01-04T00:00:00Z");
    let bases: &[(&BaseFacts, &[Arc<ModulePod>])] = &[(&old, &[]), (&middle, &[]), (&new, &[])];
    assert_eq!(scores(&[(Term::BaseVersion(Prefer::Newest), 1)], bases), [0, 5, 10]);
    assert_eq!(scores(&[(Term::BaseVersion(Prefer::Oldest), 1)], bases), [10, 5, 0]);
    assert_eq!(scores(&[(Term::BaseRevision, 1)], bases), [0, 10, 0]);
}
