//! The rules of the house, so that they are kept without anybody remembering them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at what it did not expect"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_path_buf()
}

fn files_below(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a folder entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files_below(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

fn all(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files_below(&repository(), extension, &mut found);
    found.sort();
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    path: Option<PathBuf>,
    /// `dev`, `build`, or none for an ordinary one.
    kind: Option<String>,
}

/// Our crates, each with those of ours that it needs to be built.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(repository())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo metadata answers JSON");
    metadata
        .packages
        .into_iter()
        .map(|package| {
            let ours = package.dependencies.into_iter().filter(|d| d.path.is_some() && d.kind.is_none());
            (package.name, ours.map(|dependency| dependency.name).collect())
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let dependencies = dependencies();
    let allowed = BTreeMap::from([
        ("policy", vec![]),
        ("service", vec![]),
        ("scheduler-extender", vec!["policy", "service"]),
        ("node-agent", vec!["policy", "service"]),
        ("harness", vec!["policy", "service", "scheduler-extender", "node-agent"]),
    ]);
    let known: Vec<_> = dependencies.keys().map(String::as_str).collect();
    let mut expected: Vec<_> = allowed.keys().copied().collect();
    expected.sort_unstable();
    assert_eq!(known, expected, "a crate has come or gone: say here what it may know");
    for (name, may) in allowed {
        for dependency in dependencies.get(name).into_iter().flatten() {
            assert!(may.contains(&dependency.as_str()), "{name} must not know {dependency}");
        }
    }
}

/// What decides must stay free of what acts: no runtime, no HTTP, no API client.
#[test]
fn policy_knows_no_effects() {
    let manifest = read(&repository().join("policy/Cargo.toml"));
    let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
    for name in ["tokio", "axum", "hyper", "kube", "reqwest", "tower"] {
        let named = dependencies.lines().any(|line| line.split(['.', ' ', '=']).next() == Some(name));
        assert!(!named, "policy must not know {name}");
    }
}

#[test]
fn files_are_of_a_size_to_be_read() {
    let long: Vec<_> = all("rs")
        .into_iter()
        .map(|path| (read(&path).lines().count(), path))
        .filter(|(lines, path)| *lines > if path.ends_with("src/main.rs") { 39 } else { 500 })
        .collect();
    assert!(long.is_empty(), "too long: {long:?}");
}

#[test]
fn rooms_have_names() {
    let vague: Vec<_> = all("rs")
        .into_iter()
        .filter(|path| {
            let path = path.strip_prefix(repository()).unwrap_or(path).with_extension("");
            path.iter().any(|part| {
                ["utils", "util", "common", "helpers", "helper", "misc", "manager"]
                    .iter()
                    .any(|name| part == *name)
            })
        })
        .collect();
    assert!(vague.is_empty(), "name them by what they hold: {vague:?}");
}

/// Targets of the Makefile: what stands before a colon at the start of a line.
fn targets() -> BTreeSet<String> {
    read(&repository().join("Makefile"))
        .lines()
        .filter(|line| !line.starts_with(['\t', '#', '.', ' ']) && !line.contains(":="))
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(names, _)| names.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn every_make_command_in_the_docs_exists() {
    let targets = targets();
    let mut seen = 0;
    for page in pages() {
        // Commands stand in code: between backticks, or at the start of a line of a block.
        for part in read(&page).lines().flat_map(|line| {
            let code = line.split('`').skip(1).step_by(2).chain(line.starts_with("make ").then_some(line));
            code.map(str::to_owned).collect::<Vec<_>>()
        }) {
            let Some(rest) = part.strip_prefix("make ") else { continue };
            let target = rest.split_whitespace().next().unwrap_or_default();
            assert!(targets.contains(target), "{}: there is no `make {target}`", page.display());
            seen += 1;
        }
    }
    assert!(seen >= 2, "the README tells how to start");
}

fn pages() -> Vec<PathBuf> {
    let pages = all("md");
    assert!(pages.iter().any(|page| page.ends_with("README.md")));
    pages
}

/// The anchor that GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_in_the_docs_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let anchored = || {
                heading.is_empty()
                    || read(&target).lines().any(|line| line.starts_with('#') && anchor(line) == heading)
            };
            if !target.exists() || (target.is_file() && !anchored()) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
        // Paths named in code must exist as well: a page about a file that has moved misleads.
        for code in text.split('`').skip(1).step_by(2) {
            let path_like = ["docs/", "manifests/", "tests/controlplane/", "policy/samples/"]
                .iter()
                .any(|folder| code.starts_with(folder) && !code.contains([' ', '*', '<', '\n']));
            if path_like && !repository().join(code).exists() {
                broken.push(format!("{}: `{code}`", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The comment and attributes above each function of that name.
fn comments_of(name: &str, sources: &[String]) -> Vec<String> {
    let declared = format!("fn {name}(");
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.contains(&declared)) {
        let mut above = String::new();
        for line in source.lines() {
            if line.contains(&declared) {
                found.push(above.clone());
            }
            if line.trim_start().starts_with("///") || line.trim_start().starts_with("#[") {
                above.push_str(line);
                above.push('\n');
            } else {
                above.clear();
            }
        }
    }
    found
}

/// Numbers of field reports in a text.
fn reports_in(text: &str) -> BTreeSet<String> {
    let numbers = text.split("BL-").skip(1).map(|rest| rest.chars().take_while(char::is_ascii_digit));
    numbers.map(Iterator::collect::<String>).filter(|digits| !digits.is_empty()).collect()
}

/// Each test that the page of field reports names is there and carries the number; no number is without a row; and what
/// no test shows is named at the end.
#[test]
fn every_test_that_the_field_reports_name_exists() {
    let sources: Vec<String> = all("rs").iter().map(|path| read(path)).collect();
    let page = read(&repository().join("docs/field-reports.md"));
    let later = reports_in(page.trim_end().rsplit("\n\n").next().unwrap_or_default());
    let mut wrong = Vec::new();
    let mut rows = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| BL-")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, .., tests] = cells.as_slice() else { panic!("a row without cells: {line}") };
        rows.extend(reports_in(number));
        for name in tests.split('`').skip(1).step_by(2) {
            let comments = comments_of(name, &sources);
            if !comments.iter().any(|comment| comment.contains(number)) {
                let what = if comments.is_empty() { "there" } else { "marked with it" };
                wrong.push(format!("{number} names the test {name}, which is not {what}"));
            }
        }
        if tests.is_empty() && !later.is_superset(&reports_in(number)) {
            wrong.push(format!("{number} has no test, and the end of the page does not name it"));
        }
    }
    let marked: BTreeSet<_> = sources.iter().flat_map(|source| reports_in(source)).collect();
    wrong.extend(marked.difference(&rows).map(|number| format!("BL-{number} has no row")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// After `make` the words of a variable are make's: it would expand `$BASE_PORT` to nothing.
#[test]
fn base_commands_stand_before_make() {
    for page in pages() {
        for line in read(&page).lines() {
            let after_make = line.split("make ").skip(1).any(|rest| rest.contains("STOWAGE_BASE_COMMAND="));
            assert!(!after_make, "{}: {line}", page.display());
        }
    }
}

/// String literals of a line of code.
fn literals(line: &str) -> impl Iterator<Item = &str> {
    let code = if line.trim_start().starts_with("//") { "" } else { line };
    code.split('"').skip(1).step_by(2)
}

/// Labels, annotations and taints are spelt in one file. Words for people, which have spaces, may name them too.
#[test]
fn keys_are_spelt_in_one_file() {
    let mut found = Vec::new();
    for folder in ["policy", "service", "scheduler-extender", "node-agent"] {
        let mut sources = Vec::new();
        files_below(&repository().join(folder).join("src"), "rs", &mut sources);
        for path in sources {
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let is_test = name.ends_with("tests") || path.iter().any(|part| part == "tests");
            if is_test || path.ends_with("contract/names.rs") {
                continue;
            }
            // Test modules stand at the end of a file.
            let source = read(&path);
            let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for literal in code.lines().flat_map(literals).filter(|literal| !literal.contains(' ')) {
                if literal.starts_with("stowage.dev/") || literal.contains("koupleless.io/") {
                    found.push(format!("{}: {literal}", path.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "write them into policy/src/contract/names.rs: {found:#?}");
}

/// docs/pod-fields.md says of each field what the agent does with it.
#[test]
fn the_page_of_pod_fields_says_what_the_agent_does() {
    let source = read(&repository().join("node-agent/src/vpod/fields.rs"));
    let page = read(&repository().join("docs/pod-fields.md"));
    for (list, class) in [("REFUSED", "refused"), ("IGNORED", "warned"), ("HONOURED", "honoured")] {
        let list_text =
            source.split(&format!("const {list}:")).nth(1).and_then(|rest| rest.split("];").next());
        let fields: Vec<_> = list_text
            .unwrap_or_else(|| panic!("fields.rs has no list {list}"))
            .split('"')
            .skip(1)
            .step_by(2)
            .filter(|text| text.starts_with("spec."))
            .collect();
        assert!(!fields.is_empty(), "{list} is empty");
        for field in fields {
            let told = page.lines().any(|line| {
                line.contains(&format!("`{field}`"))
                    && line.split('|').nth(2).is_some_and(|cell| cell.trim() == class)
            });
            assert!(told, "docs/pod-fields.md does not say that {field} is {class}");
        }
    }
}
