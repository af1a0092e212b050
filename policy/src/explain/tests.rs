use std::sync::Arc;

use super::*;
use crate::{
    contract::{BaseFacts, PodKind, classify},
    file,
};

fn facts(name: &str, labels: &str, inventory: &str) -> BaseFacts {
    let text = format!(
        "{{metadata: {{name: {name}, labels: {{app.kubernetes.io/managed-by: stowage, {labels}}}, annotations: \
         {{stowage.dev/base: shop/{name}, stowage.dev/inventory: '{inventory}'}}}}, status: {{allocatable: {{pods: '4'}}, \
         conditions: [{{type: Ready, status: 'True'}}]}}}}"
    );
    BaseFacts::from_node(&serde_saphyr::from_str(&text).unwrap()).unwrap().unwrap()
}

fn pod(annotations: &str) -> Arc<ModulePod> {
    let text = format!(
        "{{metadata: {{namespace: shop, name: p, uid: u, annotations: {{{annotations}}}}}, spec: {{tolerations: [{{key: \
         schedule.koupleless.io/virtual-node}}], containers: [{{name: a, image: 'https://me:secret@repo.example.com/a.jar?token=x', \
         env: [{{name: MODULE_VERSION, value: '1'}}]}}]}}}}"
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

fn fact<'a>(verdict: &'a Verdict, rule: &str, name: &str) -> Option<&'a str> {
    let said = verdict.rules.iter().find(|said| said.rule == rule)?;
    said.facts.get(name).map(String::as_str)
}

#[test]
fn every_rule_says_what_it_looked_at() {
    let inventory = r#"{"v":1,"modules":[{"name":"a","version":"1"},{"name":"legacy-x","version":"3","contextPath":"/x"}],"provides":{"jdk":"11"},"metaspace":{"max":100,"used":50,"lowest":40},"failures":[{"module":"a","version":"1"}],"contextPath":"/own"}"#;
    let base = facts("n1", "basement.koupleless.io/version: 1.9", inventory);
    let policy = policy(
        "access: [{bases: {}, namespaces: [pay, 'x-*']}]\nartifacts: {allow: [{scheme: oss}]}\nlimits: [{modulesPerBase: \
         2}]\ncompatibility: [{module: a, requires: {base: {stack: nodejs, version: '2.*', labels: {size: large}}, provides: \
         [{name: jdk, versions: '>=17'}]}}]\n",
    );
    let pod =
        pod("stowage.dev/metaspace: '64', stowage.dev/context-path: /x, stowage.dev/conflicts: 'legacy-*'");
    let [verdict] = explain(&policy, &pod, &[BaseView::empty(&base)]).try_into().unwrap();
    assert!(!verdict.fits && verdict.score.is_none() && verdict.terms.is_empty());
    for (rule, name, expected) in [
        ("access", "namespace", "shop"),
        ("access", "admitted", "pay, x-*"),
        ("artifact", "sources", "a: https://repo.example.com:443"),
        ("artifact", "allowed", "oss://*"),
        ("stack", "base", "java"),
        ("stack", "wanted", "nodejs"),
        ("base version", "base", "1.9"),
        ("base version", "wanted", "2.*"),
        ("compatibility", "wantedLabels", "size=large"),
        ("compatibility", "wantedCapabilities", "jdk [17,)"),
        ("compatibility", "provided", "jdk 11"),
        ("compatibility", "conflicts", "legacy-*"),
        ("compatibility", "onBase", "a:1, legacy-x:3"),
        ("leaving", "ready", "true"),
        ("same module", "onBase", "a:1"),
        ("context path", "taken", "legacy-x=/x"),
        ("context path", "ofBase", "/own"),
        ("module limit", "wouldHold", "3"),
        ("module limit", "limit", "2"),
        ("metaspace", "need", "64"),
        ("metaspace", "left", "60"),
        ("recent failure", "failedOnBase", "a:1"),
    ] {
        assert_eq!(fact(&verdict, rule, name), Some(expected), "{rule} {name}");
    }
    let rejecting: Vec<&str> = verdict.rejections().map(|(rule, _)| rule).collect();
    let all: Vec<&str> = RULES.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(
        rejecting,
        all.iter().copied().filter(|r| !["annotations", "leaving"].contains(r)).collect::<Vec<_>>()
    );
    let shown = table(std::slice::from_ref(&verdict), true) + &serde_json::to_string(&verdict).unwrap();
    assert!(!shown.contains("secret") && !shown.contains("token"), "{shown}");
}

#[test]
fn the_inventory_is_named_where_it_is_missing() {
    let mut base = facts("n1", "", r#"{"v":1}"#);
    let pod = pod("");
    let state = |base: &BaseFacts| {
        let verdicts = explain(&Policy::default(), &pod, &[BaseView::empty(base)]);
        fact(&verdicts[0], "same module", "inventory").map(str::to_owned)
    };
    assert_eq!(state(&base), None);
    base.inventory = crate::contract::Known::Nothing;
    assert_eq!(state(&base).as_deref(), Some("not written"));
}

#[test]
fn the_table_is_safe_and_ordered() {
    let (good, odd) = (
        facts("n1", "", r#"{"v":1}"#),
        facts("n2", "basement.koupleless.io/stack: \"\\e[2J\"", r#"{"v":1}"#),
    );
    let policy = policy("scoring: [{term: spread, weight: 3}, {term: recentFailures}]");
    let verdicts = explain(&policy, &pod(""), &[BaseView::empty(&odd), BaseView::empty(&good)]);
    assert_eq!(
        table(&verdicts, false),
        "NODE  FITS  SCORE  SLOTS  RULE OR TERM    SAYS\n\
         n1    yes   10     0/4    spread          10.0 of 10, weight 3\n\
         \x20                         recentFailures  10.0 of 10, weight 1\n\
         n2    no    -      0/4    stack           the base has another stack [Stack]; base: ?[2J; wanted: java\n"
    );
    let json = serde_json::to_value(&verdicts[0]).unwrap();
    assert_eq!(json["rules"][3]["code"], "Stack");
    assert_eq!(json["rules"][3]["facts"]["wanted"], "java");
}

#[test]
fn long_lists_are_cut() {
    let modules: Vec<String> = (0..30).map(|n| format!(r#"{{"name":"m{n:02}","version":"1"}}"#)).collect();
    let base = facts("n1", "", &format!(r#"{{"v":1,"modules":[{}]}}"#, modules.join(",")));
    let policy = policy("compatibility: [{module: a, conflicts: {modules: [{name: z}]}}]");
    let verdicts = explain(&policy, &pod(""), &[BaseView::empty(&base)]);
    let there = fact(&verdicts[0], "compatibility", "onBase").unwrap();
    assert!(there.ends_with("m19:1 and 10 more"), "{there}");
}
