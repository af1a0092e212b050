//! The rules of the house, so that they are kept without anybody remembering them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at what it did not expect"
)]

mod errors_page;

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

/// Numbers of field reports in a text.
fn reports_in(text: &str) -> BTreeSet<u32> {
    let numbers = text.split("BL-").skip(1).map(|rest| rest.chars().take_while(char::is_ascii_digit));
    numbers.filter_map(|digits| digits.collect::<String>().parse().ok()).collect()
}

/// The tests of a source whose comments carry numbers of field reports, and the lines that carry one elsewhere.
fn marked_tests(source: &str) -> (Vec<(String, BTreeSet<u32>)>, Vec<String>) {
    let (mut tests, mut strays) = (Vec::new(), Vec::new());
    let (mut above, mut is_test) = (Vec::<&str>::new(), false);
    for line in source.lines() {
        let code = line.trim_start();
        if code.starts_with("///") {
            above.push(line);
            continue;
        }
        if code.starts_with("#[") {
            is_test |= code.starts_with("#[test]") || code.starts_with("#[tokio::test");
            continue;
        }
        let name = code.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).map(|(name, _)| name);
        let numbers = reports_in(&above.join("\n"));
        match name.filter(|_| is_test) {
            Some(name) if !numbers.is_empty() => tests.push((name.to_owned(), numbers)),
            Some(_) => {}
            None => {
                strays
                    .extend(above.iter().filter(|line| !reports_in(line).is_empty()).map(|&l| l.to_owned()));
            }
        }
        if !reports_in(line).is_empty() {
            strays.push(line.to_owned());
        }
        above.clear();
        is_test = false;
    }
    (tests, strays)
}

/// Numbers up to the last that were given to no field report.
const NO_REPORTS: [u32; 22] =
    [2, 15, 21, 22, 27, 35, 43, 51, 56, 68, 74, 81, 90, 95, 96, 100, 102, 107, 110, 124, 138, 139];
const LAST_REPORT: u32 = 142;

/// The page of field reports has each report once, with its public thread, and what shows it: tests, which carry its
/// number, or a place in docs/limits.md. A number stands at tests only, and only at those that the page names for it.
#[test]
fn field_reports_and_tests_name_each_other() {
    let (mut carried, mut wrong) = (BTreeMap::<u32, BTreeSet<String>>::new(), Vec::new());
    for path in all("rs") {
        let (tests, strays) = marked_tests(&read(&path));
        for (name, numbers) in tests {
            for number in numbers {
                carried.entry(number).or_default().insert(name.clone());
            }
        }
        wrong.extend(strays.iter().map(|line| format!("{}: not at a test: {}", path.display(), line.trim())));
    }
    let limits = read(&repository().join("docs/limits.md"));
    let places: BTreeSet<String> = limits.lines().filter(|line| line.starts_with('#')).map(anchor).collect();
    let mut rows = Vec::new();
    for line in read(&repository().join("docs/field-reports.md")).lines().filter(|l| l.starts_with("| BL-")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, fault, thread, answer, shown] = cells.as_slice() else { panic!("five cells: {line}") };
        let numbers: Vec<u32> = reports_in(number).into_iter().collect();
        let &[number] = numbers.as_slice() else { panic!("one number: {line}") };
        rows.push(number);
        if fault.is_empty() || answer.is_empty() || !thread.contains("](https://github.com/") {
            wrong.push(format!("BL-{number} lacks the fault, the thread, or the answer"));
        }
        let named: BTreeSet<String> = shown.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let carrying = carried.remove(&number).unwrap_or_default();
        wrong
            .extend(named.difference(&carrying).map(|test| format!("BL-{number}: {test} does not carry it")));
        wrong.extend(carrying.difference(&named).map(|test| format!("BL-{number}: {test} is not named")));
        let anchors = shown.split("](limits.md#").skip(1).filter_map(|rest| rest.split(')').next());
        let unknown: Vec<_> = anchors.clone().filter(|place| !places.contains(*place)).collect();
        if !unknown.is_empty() || (named.is_empty() && anchors.count() == 0) {
            wrong.push(format!("BL-{number} has no test and no place in docs/limits.md {unknown:?}"));
        }
    }
    wrong.extend(carried.iter().map(|(number, tests)| format!("BL-{number} has no row: {tests:?}")));
    let wanted: Vec<u32> = (1..=LAST_REPORT).filter(|number| !NO_REPORTS.contains(number)).collect();
    assert_eq!((rows, wanted.len()), (wanted, 120), "each report once, in the order of the numbers");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn numbers_are_found_at_tests_and_elsewhere() {
    let number = |digits: &str| format!("{}{digits}", "BL-");
    let lines = [
        &format!("/// {}, {}: a fault.", number("001"), number("002")),
        "#[tokio::test(start_paused = true)]",
        "async fn it_is_shown() {",
        &format!("    // {}", number("003")),
        "}",
        &format!("/// {}", number("004")),
        "fn no_test() {}",
    ];
    let (tests, strays) = marked_tests(&lines.join("\n"));
    assert_eq!(tests, [("it_is_shown".to_owned(), BTreeSet::from([1, 2]))]);
    assert_eq!(strays.len(), 2, "{strays:?}");
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

/// BL-133: docs/pod-fields.md says of each field what the agent does with it.
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
