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
use serde_json::json;

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
        "Pod shop/shop-1, bound to n1; fits on 1 of 2 virtual nodes\n\n\
         NODE  FITS  SCORE  SLOTS  RULE OR TERM  SAYS\n\
         n1    yes   10     0/0    spread        10.0 of 10, weight 1\n\
         n2    no    -      0/0    stack         the base has another stack [Stack]; base: nodejs; wanted: java\n\
         \u{20}                         leaving       the base is not ready [NotReady]; leaving: false; overloaded: \
         false; ready: false\n"
    );
    let shown = output(
        tool().args(["explain", "--pod", "shop/shop-1", "--node", "n2", "-"]).write_stdin(SNAPSHOT),
        1,
    );
    assert!(shown.contains("\nn2    no") && !shown.contains("n1    yes"), "{shown}");
    let shown =
        output(tool().args(["explain", "--all", "--pod", "shop/shop-1", "-"]).write_stdin(SNAPSHOT), 0);
    assert!(shown.contains("access          ok; admitted: every namespace; namespace: shop"), "{shown}");
    let shown = output(tool().args(["explain", "--pod", "shop/web", "-"]).write_stdin(SNAPSHOT), 1);
    assert_eq!(shown, "no node: a virtual node takes module Pods only [NotAModulePod]\n");
    let shown = output(tool().args(["explain", "--pod", "shop/none", "-"]).write_stdin(SNAPSHOT), 2);
    assert!(shown.contains("holds no Pod shop/none"), "{shown}");
}

fn parsed(command: &mut Command, code: i32) -> serde_json::Value {
    serde_json::from_str(&output(command, code)).unwrap()
}

#[test]
fn explain_as_json() {
    let explain = |pod: &str, code| {
        let arguments = ["explain", "--output", "json", "--pod", pod, "-"];
        parsed(tool().args(arguments).write_stdin(SNAPSHOT), code)
    };
    let found = explain("shop/shop-1", 0);
    assert_eq!((&found["boundTo"], &found["nodes"][0]["fits"]), (&json!("n1"), &json!(true)));
    assert_eq!(found["nodes"][0]["terms"], json!([{"term": "spread", "weight": 1, "score": 10.0}]));
    let rules = found["nodes"][1]["rules"].as_array().unwrap();
    let stack = rules.iter().find(|said| said["rule"] == "stack").unwrap();
    assert_eq!(stack["code"], "Stack");
    assert_eq!(stack["facts"], json!({"base": "nodejs", "wanted": "java"}));
    assert_eq!(explain("shop/web", 1)["refused"]["code"], "NotAModulePod");
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
        "MODULE       PODS  CHANGED  DISPLACED  STRANDED\n\
         shop/shop:1  1     1        1          1\n\n\
         BASE  PODS  PODS PER BASE  MODULES PER BASE  TAKES\n\
         n1    1     1              no limit          +0 -1 Pods\n\n\
         POD          NODE  FITS ON  REJECTED BY  NOTE\n\
         shop/shop-1  n1    1 -> 0   Access 2     stranded: fits nowhere any more\n\n\
         1 of 1 Pods may go elsewhere, 1 displaced, 1 stranded; 0 of 2 bases too full\n"
    );
    let minimal = sample("minimal.yaml");
    assert_eq!(
        output(tool().args(["simulate", "--after", &minimal, "-"]).write_stdin(SNAPSHOT), 0),
        "0 of 1 Pods may go elsewhere, 0 displaced, 0 stranded; 0 of 2 bases too full\n"
    );
    let found = parsed(tool().args(["simulate", "-o", "json", "--after", &strict, &snapshot]), 1);
    assert_eq!(found["summary"]["stranded"], 1);
    assert_eq!(found["pods"]["shop/shop-1"]["lost"], json!(["n1"]));
    assert_eq!(found["bases"]["n1"]["podsPerBase"], json!([1, 1]));
}

#[test]
fn a_pipeline_says_what_it_stops_at() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = written(directory.path(), "snapshot.yaml", SNAPSHOT);
    let strict = written(
        directory.path(),
        "strict.yaml",
        "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\naccess: [{bases: {}, namespaces: [payments]}]\n",
    );
    let run = |flags: &[&str], code| output(tool().arg("simulate").args(flags).arg(&snapshot), code);
    run(&["--after", &strict, "--fail-on", "never"], 0);
    run(&["--after", &strict, "--fail-on", "stranded"], 1);
    run(&["--before", &strict, "--after", &sample("minimal.yaml")], 0);
    run(&["--before", &strict, "--after", &sample("minimal.yaml"), "--fail-on", "change"], 1);
    run(&["--before", &strict, "--after", &strict, "--fail-on", "change"], 0);
    run(&["--after", "/nonexistent.yaml"], 2);
}

#[test]
fn schemas_are_printed() {
    for (kind, title) in [("placement", "PlacementPolicy"), ("operations", "OperationsPolicy")] {
        let schema: serde_json::Value =
            serde_json::from_str(&output(tool().args(["schema", kind]), 0)).unwrap();
        assert_eq!(schema["title"], title);
    }
}

#[test]
fn a_circle_of_required_modules_is_an_error() {
    let text = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\naccess: [{bases: {}, namespaces: ['*']}]\n\
                compatibility:\n- {module: a, requires: {modules: [{name: b}]}}\n- {module: b, requires: {modules: [{name: a}]}}\n";
    let shown = output(tool().args(["lint", "-"]).write_stdin(text), 1);
    let first = "<stdin>:5:3: error: compatibility[0]: a circle, so none of these modules can be the first: compatibility[0] \
                 requires `b`, compatibility[1] requires `a`\n";
    assert!(shown.starts_with(first), "{shown}");
}
