use serde_json::{Value, json};

use super::*;

fn node(name: &str, changes: &[(&str, Value)]) -> Node {
    let mut node = json!({
        "metadata": {"name": name, "uid": name,
            "labels": {"app.kubernetes.io/managed-by": "stowage", "stowage.dev/base-cluster": "default",
                "basement.koupleless.io/stack": "java", "basement.koupleless.io/version": "2.1.0",
                "stowage.dev/version-major": "2", "team": "shop"},
            "annotations": {"stowage.dev/base": "bases/b", "stowage.dev/inventory":
                r#"{"v":1,"provides":{"jdk":"17.0.1"},"modules":[{"name":"shop","version":"1.0.0"}]}"#}},
        "spec": {"taints": [{"key": "schedule.koupleless.io/virtual-node", "value": "true", "effect": "NoExecute"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}
    });
    for (pointer, value) in changes {
        *node.pointer_mut(pointer).expect(pointer) = value.clone();
    }
    serde_json::from_value(node).expect("node")
}

fn template(changes: &Value) -> Template {
    let mut spec = json!({"containers": [{"name": "shop", "image": "https://repo/shop.jar",
        "env": [{"name": "MODULE_VERSION", "value": "1.0.0"}]}]});
    merge(&mut spec, changes);
    read(&json!({"metadata": {"labels": {"stowage.dev/module-pod": "true"}}, "spec": spec}), true)
        .expect("modules")
}

fn merge(into: &mut Value, changes: &Value) {
    for (key, value) in changes.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}

fn read(template: &Value, completed: bool) -> Option<Template> {
    Template::read("shop", &serde_json::from_value(template.clone()).expect("template"), completed)
}

fn policy(text: &str) -> Lasting {
    let text = format!("apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n{text}");
    Lasting::of(&policy::file::load(&text).expect("policy").policy)
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]}}}})
}

fn fits(template: &Template, rules: &Lasting, node: &Node) -> bool {
    count(template, rules, [node]) == 1
}

#[test]
fn what_a_template_says_of_nodes_decides() {
    let field = |name: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}}}})
    };
    let version = "basement.koupleless.io/version";
    for (what, change, expected) in [
        ("nothing", json!({}), true),
        ("a selector", json!({"nodeSelector": {"team": "shop"}}), true),
        ("another selector", json!({"nodeSelector": {"team": "pay"}}), false),
        ("a missing label", json!({"nodeSelector": {"size": "large"}}), false),
        ("In", expression(version, "In", &["2.0.0", "2.1.0"]), true),
        ("In, another", expression(version, "In", &["2.0.0"]), false),
        ("NotIn", expression(version, "NotIn", &["2.1.0"]), false),
        ("NotIn of a missing label", expression("size", "NotIn", &["large"]), true),
        ("Exists", expression("size", "Exists", &[]), false),
        ("DoesNotExist", expression("size", "DoesNotExist", &[]), true),
        ("Gt", expression("stowage.dev/version-major", "Gt", &["1"]), true),
        ("Gt, equal", expression("stowage.dev/version-major", "Gt", &["2"]), false),
        ("Lt", expression("stowage.dev/version-major", "Lt", &["3"]), true),
        ("Gt of no number", expression("team", "Gt", &["1"]), false),
        ("an operator of the future", expression(version, "Like", &["2.*"]), false),
        ("a name", field("n"), true),
        ("another name", field("m"), false),
        (
            "no term",
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{}]}}}}),
            false,
        ),
    ] {
        assert_eq!(fits(&template(&change), &policy(""), &node("n", &[])), expected, "{what}");
    }
}

#[test]
fn bases_that_take_nothing_are_left_out() {
    let plain = template(&json!({}));
    let taint = |key: &str, effect: &str| {
        json!([{"key": "schedule.koupleless.io/virtual-node", "value": "true", "effect": "NoExecute"},
            {"key": key, "value": "true", "effect": effect}])
    };
    let condition = |status: &str| json!([{"type": "Ready", "status": status}]);
    for (what, pointer, value, expected) in [
        ("ready", "/status/conditions", condition("True"), true),
        ("not ready", "/status/conditions", condition("False"), false),
        ("silent agent", "/status/conditions", condition("Unknown"), false),
        ("leaving", "/spec/taints", taint("stowage.dev/leaving", "NoSchedule"), false),
        (
            "overloaded",
            "/spec/taints",
            taint("schedule.koupleless.io/metaspace-overload", "NoSchedule"),
            false,
        ),
        ("a taint of somebody's", "/spec/taints", taint("dedicated", "NoSchedule"), false),
        ("a soft taint", "/spec/taints", taint("dedicated", "PreferNoSchedule"), true),
        ("no node of ours", "/metadata/labels", json!({}), false),
    ] {
        assert_eq!(fits(&plain, &policy(""), &node("n", &[(pointer, value)])), expected, "{what}");
    }
    let tolerant = template(&json!({"tolerations": [
        {"key": "schedule.koupleless.io/virtual-node", "operator": "Equal", "value": "true", "effect": "NoExecute"},
        {"key": "dedicated", "operator": "Exists"}]}));
    assert!(fits(&tolerant, &policy(""), &node("n", &[("/spec/taints", taint("dedicated", "NoSchedule"))])));
    let wrong = template(&json!({"tolerations": [
        {"key": "schedule.koupleless.io/virtual-node", "operator": "Equal", "value": "True", "effect": "NoExecute"}]}));
    assert!(!fits(&wrong, &policy(""), &node("n", &[])), "the value of the taint counts");
}

/// The controller of a `DaemonSet` lets its Pods tolerate a cordon.
#[test]
fn a_cordon_keeps_away_all_but_daemon_sets() {
    let cordoned = json!({"unschedulable": true, "taints": [
        {"key": "schedule.koupleless.io/virtual-node", "value": "true", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]});
    let template = json!({"spec": {
        "tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
        "containers": [{"name": "shop", "image": "https://repo/shop.jar",
            "env": [{"name": "MODULE_VERSION", "value": "1.0.0"}]}]}});
    let of_deployment = read(&template, true).expect("modules");
    let of_daemon_set = read(&template, false).expect("modules");
    for (change, expected) in [(vec![], [true, true]), (vec![("/spec", cordoned)], [false, true])] {
        let node = node("n", &change);
        assert_eq!(
            [&of_deployment, &of_daemon_set].map(|template| fits(template, &policy(""), &node)),
            expected
        );
    }
}

#[test]
fn the_lasting_rules_of_the_policy_decide() {
    for (what, text, expected) in [
        ("open access", "access: [{bases: {}, namespaces: ['*']}]", true),
        ("no access", "access: [{bases: {}, namespaces: [pay]}]", false),
        ("no access to this base", "access: [{bases: {labels: {team: pay}}, namespaces: [shop]}]", false),
        ("another host", "artifacts: {allow: [{scheme: https, host: other}]}", false),
        ("a base range", "compatibility: [{module: shop, requires: {base: {version: '>=3'}}}]", false),
        (
            "a capability",
            "compatibility: [{module: shop, requires: {provides: [{name: jdk, versions: '>=17'}]}}]",
            true,
        ),
        (
            "a missing one",
            "compatibility: [{module: shop, requires: {provides: [{name: jdk, versions: '>=21'}]}}]",
            false,
        ),
        (
            "a module that may come yet",
            "compatibility: [{module: shop, requires: {modules: [{name: ledger}]}}]",
            true,
        ),
        ("a full base", "defaults: {podsPerBase: 1, modulesPerBase: 1}", true),
    ] {
        assert_eq!(fits(&template(&json!({})), &policy(text), &node("n", &[])), expected, "{what}");
    }
}

#[test]
fn annotations_of_the_template_decide() {
    let with = |key: &str, value: &str| {
        let template = json!({
            "metadata": {"labels": {"stowage.dev/module-pod": "true"}, "annotations": {key: value}},
            "spec": {"containers": [{"name": "shop", "image": "https://repo/shop.jar",
                "env": [{"name": "MODULE_VERSION", "value": "1.0.0"}]}]}
        });
        fits(&read(&template, true).expect("modules"), &policy(""), &node("n", &[]))
    };
    assert!(with("stowage.dev/base-version", ">=2.1 <3") && !with("stowage.dev/base-version", ">=2.2"));
    assert!(with("stowage.dev/stack", "java") && !with("stowage.dev/stack", "node"));
}

#[test]
fn a_template_is_completed_only_where_the_api_server_completes_pods() {
    let marked = json!({"metadata": {"labels": {"stowage.dev/module-pod": "true"}},
        "spec": {"containers": [{"name": "a", "env": [{"name": "MODULE_VERSION", "value": "1"}]}]}});
    assert!(read(&marked, true).is_some());
    assert!(read(&marked, false).is_none(), "a DaemonSet's controller reads the template as it is");
    let plain = json!({"spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "a"}]}});
    assert!(read(&plain, true).is_none());
}

#[test]
fn all_fitting_nodes_are_counted() {
    let nodes = [node("a", &[]), node("b", &[]), node("c", &[("/status/conditions", json!([]))])];
    assert_eq!(count(&template(&json!({})), &policy(""), &nodes), 2);
    assert_eq!(count(&template(&json!({"nodeSelector": {"team": "x"}})), &policy(""), &nodes), 0);
}
