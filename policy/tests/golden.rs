//! Golden pairs: a policy, a Node and Pods go in, a verdict comes out.
//!
//! `<rule>/<case>.input.yaml` holds perhaps a policy, one Node, and Pods; the Pod named `new` knocks, the others are
//! bound. With `STOWAGE_UPDATE_GOLDEN=1` the expected files are written anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

use std::{fs, path::Path, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Pod};
use policy::{
    BaseView, Policy, Reason,
    contract::{BaseFacts, PodKind, classify},
    decide, file, rule,
};
use serde::Deserialize;
use serde_json::Value;

fn verdict(text: &str) -> Result<(), Reason> {
    let mut policy = Policy::default();
    let mut node = None;
    let mut knocking = None;
    let mut bound = Vec::new();
    for document in text.split("---\n") {
        if document.starts_with("apiVersion: policy.stowage.dev/") {
            policy = file::load(document).unwrap_or_else(|problems| panic!("{problems:?}")).policy;
            continue;
        }
        let value: Value = serde_saphyr::from_str(document).unwrap();
        if value["kind"] == "Node" {
            node = Some(Node::deserialize(value).unwrap());
            continue;
        }
        let pod = Pod::deserialize(value).unwrap();
        match (pod.metadata.name.as_deref(), classify(&pod)) {
            (Some("new"), kind) => knocking = Some(kind),
            (_, PodKind::Module(module)) => bound.push(Arc::new(*module)),
            (name, kind) => panic!("{name:?} is {kind:?}"),
        }
    }
    let facts = BaseFacts::from_node(&node.expect("a Node")).unwrap();
    let knocking = knocking.expect("a Pod named new");
    let Some(module) = rule::kind::check(&knocking, facts.is_some())? else { return Ok(()) };
    let facts = facts.expect("rule kind sends module Pods to virtual nodes only");
    let view = BaseView { pods: &bound, ..BaseView::empty(&facts) };
    decide::decide(&policy, module, &view).map_err(|rejection| rejection.reason)
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

#[test]
fn every_case_has_its_verdict() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let update = std::env::var_os("STOWAGE_UPDATE_GOLDEN").is_some();
    let mut count = 0;
    let mut wrong = Vec::new();
    for rule in fs::read_dir(&root).unwrap() {
        for case in fs::read_dir(rule.unwrap().path()).unwrap() {
            let path = case.unwrap().path();
            let Some(stem) = path.to_str().unwrap().strip_suffix(".input.yaml") else { continue };
            count += 1;
            let actual = shown(verdict(&fs::read_to_string(&path).unwrap()));
            let expected = Path::new(stem).with_extension("expected.yaml");
            if update {
                fs::write(&expected, actual).unwrap();
            } else if fs::read_to_string(&expected).ok().as_deref() != Some(actual.as_str()) {
                wrong.push(format!("{}:\n{actual}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 60, "only {count} cases found");
}
