//! Pages that give each fact about Kubernetes the tests that hold it.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::panic,
    reason = "each test binary uses some of it, and a test stops at what it did not expect"
)]

use std::path::{Path, PathBuf};

/// Where the tests that a page names as `file::test` may lie, `{}` being the file.
const PLACES: [&str; 4] =
    ["tests/tests/{}.rs", "tests/tests/{}/mod.rs", "scheduler-extender/tests/{}.rs", "node-agent/src/{}.rs"];

/// A page names tests that exist, at least one for each fact, and every test of this source.
pub(crate) fn assert_tests_exist(page: &str, ours: &str) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(repository.join(page)).expect("the page");
    let (mut rows, mut of_facts) = (Vec::<Vec<&str>>::new(), false);
    for line in text.lines() {
        // Other tables may say other things.
        of_facts = line.starts_with("| fact |") || of_facts && line.starts_with('|');
        if of_facts && line.starts_with("| ") && !line.starts_with("| fact |") {
            rows.push(line.trim_matches('|').split('|').map(str::trim).collect());
        }
    }
    assert!(rows.len() >= 10, "{rows:?}");
    let mut named = Vec::new();
    for row in &rows {
        let [fact, tests] = &row[..] else { panic!("{row:?}") };
        let tests: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "{fact}");
        for named_test in tests {
            let (file, name) =
                named_test.rsplit_once("::").unwrap_or_else(|| panic!("{named_test} names no file"));
            let declared = format!("fn {name}(");
            let has = |place: &&str| {
                let file: PathBuf = repository.join(place.replace("{}", file));
                std::fs::read_to_string(file).is_ok_and(|source| source.contains(&declared))
            };
            assert!(PLACES.iter().any(has), "no {name} in {file}");
            named.push(name);
        }
    }
    for (at, found) in ours.match_indices("#[tokio::test]\nasync fn ") {
        let rest = ours.get(at + found.len()..).unwrap_or_default();
        let name = rest.split('(').next().unwrap_or_default();
        assert!(named.contains(&name), "{page} does not name {name}");
    }
}
