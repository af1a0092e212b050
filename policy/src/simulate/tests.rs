use std::sync::Arc;

use super::*;
use crate::{
    contract::{BaseFacts, PodKind, classify},
    file,
};

fn base(name: &str, labels: &str) -> BaseFacts {
    let text = format!(
        "{{metadata: {{name: {name}, labels: {{app.kubernetes.io/managed-by: stowage, {labels}}}, annotations: \
         {{stowage.dev/base: shop/{name}, stowage.dev/inventory: '{{\"v\":1}}'}}}}, status: {{conditions: [{{type: Ready, \
         status: 'True'}}]}}}}"
    );
    BaseFacts::from_node(&serde_saphyr::from_str(&text).unwrap()).unwrap().unwrap()
}

fn pod(namespace: &str, name: &str, node: &str) -> Arc<ModulePod> {
    let text = format!(
        "{{metadata: {{namespace: {namespace}, name: {name}, uid: {name}}}, spec: {{nodeName: {node}, tolerations: [{{key: \
         schedule.koupleless.io/virtual-node}}], containers: [{{name: {name}, image: 'https://repo/a.jar', env: [{{name: \
         MODULE_VERSION, value: '1'}}]}}]}}}}"
    );
    match classify(&serde_saphyr::from_str(&text).unwrap()) {
        PodKind::Module(pod) => Arc::new(*pod),
        other => panic!("{other:?}"),
    }
}

fn policy(body: &str) -> Policy {
    let text = format!("apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n{body}");
    file::load(&text).unwrap().policy
}

#[test]
fn what_changes_for_pods_modules_and_bases() {
    let (small, large) = (base("n1", "size: small"), base("n2", "size: large"));
    let (on_small, on_large) = ([pod("shop", "a", "n1"), pod("shop", "b", "n1")], [pod("pay", "c", "n2")]);
    let mut going = (*pod("shop", "d", "n2")).clone();
    going.deleting = true;
    let bases = [
        BaseView { pods: &on_small, ..BaseView::empty(&small) },
        BaseView { pods: &on_large, ..BaseView::empty(&large) },
    ];
    let all: Vec<(&str, &ModulePod)> =
        vec![("shop/a", &on_small[0]), ("shop/b", &on_small[1]), ("pay/c", &on_large[0]), ("shop/d", &going)];
    let before = policy("defaults: {podsPerBase: 2}");
    let after = policy(
        "limits: [{bases: {labels: {size: small}}, podsPerBase: 1}]\ndefaults: {podsPerBase: 4}\naccess: [{bases: {labels: \
         {size: large}}, namespaces: [shop]}]",
    );
    let report = compare(&before, &after, all.iter().copied(), &bases);
    let expected = Summary { pods: 3, bases: 2, changed: 3, displaced: 3, stranded: 1, crowded: 1 };
    assert_eq!(report.summary, expected);
    let a = &report.pods["shop/a"];
    assert_eq!((a.before, a.after, a.displaced, a.is_stranded()), (2, 1, true, false));
    assert_eq!((a.lost.as_slice(), a.gained.len()), (["n1".to_owned()].as_slice(), 0));
    assert_eq!(report.pods["pay/c"].rejected, BTreeMap::from([("Access", 2)]));
    assert_eq!(report.modules["pay/c:1"], ModuleChange { pods: 1, changed: 1, displaced: 1, stranded: 1 });
    let n1 = &report.bases["n1"];
    assert_eq!((n1.pods, n1.pods_per_base, n1.lost, n1.displaced.len()), (2, [2, 1], 3, 2));
    assert!(report.summary.is_worse());
    assert!(
        report.to_string().contains("n1    2     2 -> 1 (too full)  no limit          +0 -3 Pods"),
        "{report}"
    );

    let back = compare(&after, &before, all.iter().copied(), &bases).summary;
    assert_eq!(back, Summary { pods: 3, bases: 2, changed: 3, ..Summary::default() });
    let same = compare(&before, &before, all.iter().copied(), &bases);
    assert_eq!(same.summary, Summary { pods: 3, bases: 2, ..Summary::default() });
    assert_eq!(
        same.to_string(),
        "0 of 3 Pods may go elsewhere, 0 displaced, 0 stranded; 0 of 2 bases too full\n"
    );
}
