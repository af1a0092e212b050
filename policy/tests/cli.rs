//! The command line tool, run as a program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

use std::{fs, path::Path};

use assert_cmd::Command;

const SNAPSHOT: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata:
    name: n1
    labels: {app.kubernetes.io/managed-by: stowage, team: shop}
    annotations: {stowage.dev/base: shop/base-1, stowage.dev/inventory: '{"v":1}'}
  status: {conditions: [{type: Ready, status: "True"}]}
- apiVersion: v1
  kind: Node
  metadata:
    name: n2
    labels: {app.kubernetes.io/managed-by: stowage, basement.koupleless.io/stack: nodejs}
    annotations: {stowage.dev/base: shop/base-2, stowage.dev/inventory: '{"v":1}'}
- apiVersion: v1
  kind: Pod
  metadata: {namespace: shop, name: shop-1, uid: u1}
  spec:
    nodeName: n1
    tolerations: [{key: schedule.koupleless.io/virtual-node, operator: Exists}]
    containers: [{name: shop, image: "https://repo.example.com/shop.jar", env: [{name: MODULE_VERSION, value: "1"}]}]
- apiVersion: v1
  kind: Pod
  metadata: {namespace: shop, name: web, uid: u2}
  spec: {containers: [{name: web}]}
"#;

fn tool() -> Command {
    Command::cargo_bin("stowage-policy").unwrap()
}

fn sample(name: &str) -> String {
    format!("{}/samples/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn output(command: &mut Command, code: i32) -> String {
    let output = command.assert().code(code).get_output().clone();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

fn written(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn lint_is_silent_when_all_is_well() {
    assert_eq!(output(tool().args(["lint", &sample("operations.yaml")]), 0), "");
}

#[test]
fn lint_shows_every_error_with_its_line() {
    let text = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\nlimits:\n- podsPerBase: many\n  color: red\n";
    let shown = output(tool().args(["lint", "-"]).write_stdin(text), 1);
    assert_eq!(
        shown,
        "<stdin>:4:16: error: limits[0].podsPerBase: expected an integer of at least 0\n  - podsPerBase: many\n              \
           \u{20}  ^\n<stdin>:5:3: error: limits[0].color: unknown field, expected one of bases, podsPerBase, \
         modulesPerBase, versionsPerModule, reserved\n    color: red\n    ^\n"
    );
}

#[test]
fn warnings_fail_only_when_strict() {
    let text = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n";
    let shown = output(tool().args(["lint", "-"]).write_stdin(text), 0);
    assert!(shown.starts_with("<stdin>:1:1: warning: without `access` every namespace"), "{shown}");
    output(tool().args(["lint", "--strict", "-"]).write_stdin(text), 1);
}

#[test]
fn what_cannot_be_read_is_exit_code_2() {
    let shown = output(tool().args(["lint", "/nonexistent/policy.yaml"]), 2);
    assert!(shown.starts_with("stowage-policy: cannot read /nonexistent/policy.yaml"), "{shown}");
    let shown = output(tool().args(["explain", "--pod", "a/b", "-"]).write_stdin("{\"kind\": "), 2);
    assert!(shown.contains("neither a JSON nor a YAML snapshot"), "{shown}");
}

#[test]
fn explain_says_why_for_every_base() {
    let shown = output(tool().args(["explain", "--pod", "shop/shop-1", "-"]).write_stdin(SNAPSHOT), 0);
    assert_eq!(
        shown,
        "n1: yes, score 10\nn2: no, the base has another stack [Stack]; the base is not ready [NotReady]\n"
    );
    let shown = output(
        tool().args(["explain", "--pod", "shop/shop-1", "--node", "n2", "-"]).write_stdin(SNAPSHOT),
        1,
    );
    assert!(shown.starts_with("n2: no"), "{shown}");
    let shown = output(tool().args(["explain", "--pod", "shop/web", "-"]).write_stdin(SNAPSHOT), 1);
    assert_eq!(shown, "no node: a virtual node takes module Pods only [NotAModulePod]\n");
    let shown = output(tool().args(["explain", "--pod", "shop/none", "-"]).write_stdin(SNAPSHOT), 2);
    assert!(shown.contains("holds no Pod shop/none"), "{shown}");
}

#[test]
fn simulate_compares_two_policies() {
    let directory = tempfile::tempdir().unwrap();
    let strict = written(
        directory.path(),
        "strict.yaml",
        "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\naccess: [{bases: {}, namespaces: [payments]}]\n",
    );
    let snapshot = written(directory.path(), "snapshot.yaml", SNAPSHOT);
    assert_eq!(
        output(tool().args(["simulate", "--after", &strict, &snapshot]), 1),
        "shop/shop-1: fits on 1 bases before, 0 after (would not be placed again where it is)\n  2 Access\n"
    );
    assert_eq!(
        output(tool().args(["simulate", "--after", &sample("minimal.yaml"), &snapshot]), 0),
        "shop/shop-1: fits on 1 bases before, 1 after\n  1 Stack\n"
    );
}

#[test]
fn schemas_are_printed() {
    for (kind, title) in [("placement", "PlacementPolicy"), ("operations", "OperationsPolicy")] {
        let schema: serde_json::Value =
            serde_json::from_str(&output(tool().args(["schema", kind]), 0)).unwrap();
        assert_eq!(schema["title"], title);
    }
}
