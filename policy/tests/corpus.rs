//! Hostile policy files: no panic, and time and memory within bounds.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "helpers of tests")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use policy::file::{self, LONGEST};

/// Time for one file of at most 1 MiB, on a busy machine and without optimisation.
const LONGEST_TIME: Duration = Duration::from_secs(20);
/// Memory for one file, at its peak: a tree of 100,000 values at most, some copies of the text, and the report.
const MOST_MEMORY: u64 = 96 * 1024 * 1024;

const HEAD: &str = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n";

#[track_caller]
fn survives(name: &str, text: &str) {
    let began = Instant::now();
    let mut findings = 0;
    let used = allocation_counter::measure(|| {
        findings = match file::load(text) {
            Ok(loaded) => loaded.warnings.len(),
            Err(problems) => {
                assert!(!problems.is_empty(), "{name}: refused without a reason");
                problems.len()
            }
        };
    });
    assert!(began.elapsed() < LONGEST_TIME, "{name}: {:?}", began.elapsed());
    assert!(used.bytes_max < MOST_MEMORY, "{name}: {} bytes for {findings} findings", used.bytes_max);
}

fn repeated(piece: &str, tail: &str) -> String {
    let count = LONGEST.saturating_sub(HEAD.len() + 64 + tail.len()) / piece.len();
    format!("{HEAD}{}{tail}", piece.repeat(count))
}

fn numbered(count: u32, line: impl Fn(u32) -> String) -> String {
    (0..count).map(line).collect::<Vec<_>>().concat()
}

#[test]
fn what_is_small_but_odd() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        survives(&path.display().to_string(), &String::from_utf8_lossy(&bytes));
        count += 1;
    }
    assert!(count >= 15, "only {count} files");
}

#[test]
fn what_is_as_large_as_it_may_be() {
    for (name, text) in [
        ("opening brackets", repeated("[", "")),
        ("opening braces", repeated("{a: ", "")),
        ("nested lists", repeated("- ", "x")),
        ("nested keys", repeated("? ", "x")),
        ("one long line", repeated("x", "")),
        ("one long quoted text", format!("{HEAD}limits: \"{}\"", "\\n".repeat(400_000))),
        ("one long key", repeated("k", ": 1")),
        ("many documents", repeated("---\n", "")),
        ("many policies", HEAD.repeat(2) + &format!("---\n{HEAD}").repeat(15_000)),
        ("many limits", format!("{HEAD}limits:\n{}", "- {podsPerBase: 3}\n".repeat(30_000))),
        (
            "many different limits",
            format!("{HEAD}limits:\n{}", numbered(30_000, |n| format!("- {{podsPerBase: {n}}}\n"))),
        ),
        (
            "many entries of compatibility",
            format!("{HEAD}compatibility:\n{}", "- {module: a}\n".repeat(40_000)),
        ),
        ("many unknown fields", format!("{HEAD}{}", numbered(40_000, |n| format!("f{n}: 1\n")))),
        ("one field many times", format!("{HEAD}{}", "limits: []\n".repeat(40_000))),
        (
            "many labels",
            format!(
                "{HEAD}limits:\n- bases:\n    labels:\n{}",
                numbered(40_000, |n| format!("      l{n}: v\n"))
            ),
        ),
        ("many stars", format!("{HEAD}access: [{{bases: {{}}, namespaces: ['{}']}}]", "*a".repeat(400_000))),
        ("many commas", repeated(",", "")),
        ("many comments", repeated("# x\n", "")),
        ("many tabs", repeated("\t", "")),
        ("many carriage returns", repeated("\r", "")),
        ("many marks of order", repeated("\u{feff}", "")),
        ("too long", " ".repeat(LONGEST + 1)),
    ] {
        survives(name, &text);
    }
}

/// Every beginning of a good file, and the file with every character replaced by another one.
#[test]
fn what_is_nearly_good() {
    let text = include_str!("examples/whole.yaml");
    for (at, _) in text.char_indices() {
        survives("cut", &text[..at]);
    }
    for (at, character) in text.char_indices() {
        let (before, rest) = (&text[..at], &text[at + character.len_utf8()..]);
        for other in ["", "\n", ":", "[", "\"", "\u{0}", "é", "- "] {
            survives("changed", &format!("{before}{other}{rest}"));
        }
    }
}
