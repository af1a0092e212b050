//! Files that come from the code, and files that people start from, are in step with it.
//!
//! With `STOWAGE_UPDATE_GOLDEN=1` the generated ones are written anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use policy::{OperationsPolicy, Policy, Reason, file};
use serde_json::Value;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[track_caller]
fn in_step(path: &str, actual: &str) {
    let path = here(path);
    if std::env::var_os("STOWAGE_UPDATE_GOLDEN").is_some() {
        fs::write(&path, actual).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == actual, "{} is out of step, run the test with STOWAGE_UPDATE_GOLDEN=1", path.display());
}

fn samples() -> Vec<(String, String)> {
    let found = fs::read_dir(here("samples")).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap())
    });
    found.collect()
}

fn schema(kind: &str) -> Value {
    match kind {
        "PlacementPolicy" => file::placement_schema().to_value(),
        "OperationsPolicy" => file::operations_schema().to_value(),
        other => panic!("{other}"),
    }
}

#[test]
fn stored_schemas_are_the_generated_ones() {
    in_step("schema/placement-policy.json", &format!("{:#}\n", schema("PlacementPolicy")));
    in_step("schema/operations-policy.json", &format!("{:#}\n", schema("OperationsPolicy")));
}

#[test]
fn samples_are_in_order_and_fit_the_schema() {
    let samples = samples();
    assert!(samples.len() >= 6);
    for (name, text) in samples {
        let loaded = file::load(&text).unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
        assert_eq!(loaded.warnings, [], "{name}");
        for document in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            let schema = schema(document["kind"].as_str().unwrap());
            let validator = jsonschema::validator_for(&schema).unwrap();
            let errors: Vec<String> =
                validator.iter_errors(&document).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{name}: {errors:?}");
        }
    }
}

#[test]
fn the_operations_sample_holds_the_defaults() {
    let (_, text) = samples().into_iter().find(|(name, _)| name == "operations.yaml").unwrap();
    assert_eq!(file::load(&text).unwrap().policy.operations, OperationsPolicy::default());
}

/// Every path of a schema: `limits[].bases.labels`.
fn paths(schema: &Value, node: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(reference) = node["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return paths(schema, &schema["definitions"][name], path, found);
    }
    for alternative in node["anyOf"].as_array().into_iter().flatten() {
        paths(schema, alternative, path, found);
    }
    for (name, field) in node["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        found.push(path.clone());
        paths(schema, field, &path, found);
    }
    if node.get("items").is_some() {
        paths(schema, &node["items"], &format!("{path}[]"), found);
    }
}

/// Writes a document in which the field at `path` has a value of no type.
fn document_with(kind: &str, path: &str) -> String {
    let mut text = format!("apiVersion: policy.stowage.dev/v1alpha1\nkind: {kind}\n");
    let mut closing = String::new();
    for piece in path.split('.') {
        let (name, open, close) = match piece.strip_suffix("[]") {
            Some(name) => (name, "[{", "}]"),
            None => (piece, "{", "}"),
        };
        let _ = write!(text, "{name}: {open}");
        closing.insert_str(0, close);
    }
    text + "nobodyKnowsThis: 1" + &closing
}

#[test]
fn schema_and_reader_know_the_same_fields() {
    for kind in ["PlacementPolicy", "OperationsPolicy"] {
        let schema = schema(kind);
        let mut found = Vec::new();
        paths(&schema, &schema, "", &mut found);
        assert!(found.len() > 20, "{found:?}");
        for path in found.iter().filter(|path| !["apiVersion", "kind"].contains(&path.as_str())) {
            // Labels have any names.
            let problems = file::load(&document_with(kind, path)).err().unwrap_or_default();
            assert!(!problems.is_empty() || path.ends_with("labels"), "{path}");
            for problem in problems {
                let unknown = problem.message.starts_with("unknown field");
                assert!(
                    !unknown || problem.text == "nobodyKnowsThis",
                    "{path} is in the schema only: {problem}"
                );
            }
        }
        // The other way: what the reader offers where a field is unknown stands in the schema.
        let leaf = |path: &str| path.rsplit('.').next().unwrap().trim_end_matches("[]").to_owned();
        let names: Vec<String> = found.iter().map(|path| leaf(path)).collect();
        for path in &found {
            for problem in file::load(&document_with(kind, path)).err().unwrap_or_default() {
                let Some(expected) = problem.message.strip_prefix("unknown field, expected one of ") else {
                    continue;
                };
                for name in expected.split(", ") {
                    assert!(names.contains(&name.to_owned()), "{name} is missing from the schema of {kind}");
                }
            }
        }
    }
}

#[test]
fn the_manual_names_every_field() {
    let manual = fs::read_to_string(here("../docs/policy-file.md")).unwrap();
    for kind in ["PlacementPolicy", "OperationsPolicy"] {
        let schema = schema(kind);
        let mut found = Vec::new();
        paths(&schema, &schema, "", &mut found);
        for path in found {
            let name = path.rsplit('.').next().unwrap();
            assert!(manual.contains(&format!("{name}`")), "docs/policy-file.md lacks {path}");
        }
    }
}

#[test]
fn the_manuals_examples_are_in_order() {
    let manual = fs::read_to_string(here("../docs/policy-file.md")).unwrap();
    let mut examples = 0;
    for block in manual.split("```yaml\n").skip(1) {
        let text = block.split("```").next().unwrap();
        if text.contains("policy.stowage.dev/") {
            file::load(text).unwrap_or_else(|problems| panic!("{problems:?}"));
            examples += 1;
        }
    }
    assert!(examples >= 1);
}

/// The example that stands in the description of the format: every part of it works, and lint says what in it has no
/// effect yet.
#[test]
fn the_whole_example_is_in_order() {
    let text = fs::read_to_string(here("tests/examples/whole.yaml")).unwrap();
    let loaded = file::load(&text).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(
        (loaded.policy.limits.len(), loaded.policy.compatibility.len(), loaded.policy.scoring.len()),
        (2, 1, 4)
    );
    let warnings: Vec<(&str, &str)> =
        loaded.warnings.iter().map(|problem| (problem.path.as_str(), problem.message.as_str())).collect();
    assert_eq!(
        warnings,
        [
            ("compatibility[0].versions", "the range admits 3.0-SNAPSHOT, as in Maven"),
            ("compatibility[0].requires.base.version", "the range admits 3-SNAPSHOT, as in Maven"),
            ("compatibility[0].requires.provides[1].versions", "the range admits 3-SNAPSHOT, as in Maven"),
            ("scoring[2].term", "this term scores all bases alike, as they are not divided among agents"),
        ]
    );
}

#[test]
fn the_list_of_reasons_is_the_generated_one() {
    let mut text = String::from(
        "# Reasons\n\nWhy a module Pod does not go to a node. `kubectl describe pod` shows the text, metrics carry the \
         code. Words in `<>` are names of the Pod itself;\nnothing else in a text ever changes. Of an *unresolvable* \
         reason kube-scheduler knows that evicting Pods would not help.\n\nThis page is generated from the code.\n\n| \
         code | text | kind |\n|---|---|---|\n",
    );
    for reason in Reason::examples() {
        let kind = if reason.resolvable() { "resolvable" } else { "unresolvable" };
        let _ = writeln!(text, "| `{}` | {} | {kind} |", reason.code(), reason.text().replace('<', "\\<"));
    }
    in_step("../docs/reasons.md", &text);
}

#[test]
fn the_default_policy_is_what_an_empty_one_says() {
    let text = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n";
    assert_eq!(file::load(text).unwrap().policy, Policy::default());
}
