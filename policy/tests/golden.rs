//! Golden pairs: a policy, a Node and Pods go in, a verdict comes out.
//!
//! `<rule>/<case>.input.yaml` holds perhaps a policy, one Node, and Pods; the Pod named `new` knocks, the others are
//! bound. `golden-scores/<term>/` holds the same with several Nodes, and what each term says of each.
//! With `STOWAGE_UPDATE_GOLDEN=1` the expected files are written anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Pod};
use policy::{
    BaseView, FleetView, Policy, Reason,
    contract::{BaseFacts, ModulePod, PodKind, classify},
    decide, file, rule,
    score::{score, terms},
};
use serde::Deserialize;
use serde_json::Value;

/// What an input file holds.
struct Case {
    policy: Policy,
    nodes: Vec<Node>,
    knocking: PodKind,
    bound: Vec<Arc<ModulePod>>,
}

fn read(text: &str) -> Case {
    let mut policy = Policy::default();
    let (mut nodes, mut knocking, mut bound) = (Vec::new(), None, Vec::new());
    for document in text.split("---\n") {
        if document.starts_with("apiVersion: policy.stowage.dev/") {
            policy = file::load(document).unwrap_or_else(|problems| panic!("{problems:?}")).policy;
            continue;
        }
        let value: Value = serde_saphyr::from_str(document).unwrap();
        if value["kind"] == "Node" {
            nodes.push(Node::deserialize(value).unwrap());
            continue;
        }
        let pod = Pod::deserialize(value).unwrap();
        match (pod.metadata.name.as_deref(), classify(&pod)) {
            (Some("new"), kind) => knocking = Some(kind),
            (_, PodKind::Module(module)) => bound.push(Arc::new(*module)),
            (name, kind) => panic!("{name:?} is {kind:?}"),
        }
    }
    Case { policy, nodes, knocking: knocking.expect("a Pod named new"), bound }
}

fn verdict(text: &str) -> String {
    let Case { policy, nodes, knocking, bound } = read(text);
    let [node] = nodes.as_slice() else { panic!("one Node") };
    let facts = BaseFacts::from_node(node).unwrap();
    let decided = || {
        let Some(module) = rule::kind::check(&knocking, facts.is_some())? else { return Ok(()) };
        let facts = facts.as_ref().expect("rule kind sends module Pods to virtual nodes only");
        let view = BaseView { pods: &bound, ..BaseView::empty(facts) };
        decide::decide(&policy, module, &view).map_err(|rejection| rejection.reason)
    };
    shown(decided())
}

/// `n1: 8 (spread 7.5 x 1)`
fn scores(text: &str) -> String {
    let Case { policy, nodes, knocking, bound } = read(text);
    let PodKind::Module(pod) = knocking else { panic!("a module Pod") };
    let facts: Vec<BaseFacts> =
        nodes.iter().map(|node| BaseFacts::from_node(node).unwrap().unwrap()).collect();
    let on = |facts: &BaseFacts| -> Vec<Arc<ModulePod>> {
        bound.iter().filter(|pod| pod.node_name.as_ref() == Some(&facts.node)).cloned().collect()
    };
    let pods: Vec<_> = facts.iter().map(on).collect();
    let views: Vec<BaseView<'_>> =
        facts.iter().zip(&pods).map(|(facts, pods)| BaseView { pods, ..BaseView::empty(facts) }).collect();
    let fleet = FleetView::of(&policy, &pod, views.iter().copied());
    let line = |view: &BaseView<'_>| {
        let terms = terms(&policy, &pod, view, &fleet);
        let terms =
            terms.iter().map(|said| format!("{} {:.2} x {}", said.term.name(), said.score, said.weight));
        let score = score(&policy, &pod, view, &fleet);
        format!("{}: {score} ({})\n", view.facts.node, terms.collect::<Vec<_>>().join(", "))
    };
    views.iter().map(line).collect()
}

fn shown(verdict: Result<(), Reason>) -> String {
    match verdict {
        Ok(()) => "verdict: accepted\n".to_owned(),
        Err(reason) => format!(
            "verdict: rejected\ncode: {}\ntext: \"{}\"\nresolvable: {}\n",
            reason.code(),
            reason.text(),
            reason.resolvable()
        ),
    }
}

/// Compares every case under `root` with its expected file; returns the names of the folders and the expectations.
fn compared(root: &str, actual: fn(&str) -> String) -> (BTreeSet<String>, Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    let update = std::env::var_os("STOWAGE_UPDATE_GOLDEN").is_some();
    let (mut folders, mut all, mut wrong) = (BTreeSet::new(), Vec::new(), Vec::new());
    for folder in fs::read_dir(&root).unwrap() {
        let folder = folder.unwrap();
        folders.insert(folder.file_name().into_string().unwrap());
        for case in fs::read_dir(folder.path()).unwrap() {
            let path = case.unwrap().path();
            let Some(stem) = path.to_str().unwrap().strip_suffix(".input.yaml") else { continue };
            let actual = actual(&fs::read_to_string(&path).unwrap());
            let expected = format!("{stem}.expected.yaml");
            if update {
                fs::write(&expected, &actual).unwrap();
            } else if fs::read_to_string(&expected).ok().as_deref() != Some(actual.as_str()) {
                wrong.push(format!("{}:\n{actual}", path.display()));
            }
            all.push(actual);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    (folders, all)
}

#[test]
fn every_rule_and_every_reason_has_its_cases() {
    let (folders, verdicts) = compared("tests/golden", verdict);
    let rules = decide::RULES.iter().map(|(rule, _)| rule.replace(' ', "-"));
    for rule in rules.chain(["kind".to_owned()]) {
        assert!(folders.contains(&rule), "no case of the rule {rule}");
    }
    for reason in Reason::examples() {
        let line = format!("code: {}\n", reason.code());
        assert!(verdicts.iter().any(|verdict| verdict.contains(&line)), "no case of {}", reason.code());
    }
    assert!(verdicts.len() > 60, "only {} cases found", verdicts.len());
}

#[test]
fn every_term_has_its_cases() {
    let (folders, scores) = compared("tests/golden-scores", scores);
    let schema = file::placement_schema().to_value();
    let terms = schema["definitions"]["Term"]["enum"].as_array().expect("an enum of terms");
    for term in terms.iter().filter_map(Value::as_str) {
        assert!(folders.contains(term), "no case of the term {term}");
    }
    assert!(scores.len() >= terms.len());
}
