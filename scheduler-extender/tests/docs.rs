//! docs/extender.md says what the program has: flags, metrics, reasons and faults. With `STOWAGE_UPDATE_DOCS=1` the
//! tables are written anew instead of compared.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use jiff::Timestamp;
use policy::Reason;
use prometheus_client::registry::Registry;
use rig::tls::{Authority, swap};
use scheduler_extender::args::Args;
use scheduler_extender::http::Fault;
use scheduler_extender::metrics::Metrics;
use scheduler_extender::placement::Refusal;
use service::policy_file::{PolicyFile, PolicyFlags};
use service::tls::{ClientCertificates, ReloadedTls, TlsFiles};

fn page() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/extender.md")
}

/// Compares the block between `<!-- name -->` and `<!-- /name -->` with `table`.
fn hold(name: &str, table: &str) {
    let text = std::fs::read_to_string(page()).expect("docs/extender.md");
    let (start, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (head, rest) = text.split_once(&start).expect("start of the block");
    let (block, tail) = rest.split_once(&end).expect("end of the block");
    if std::env::var_os("STOWAGE_UPDATE_DOCS").is_some() {
        std::fs::write(page(), format!("{head}{start}{table}{end}{tail}")).expect("write");
    } else {
        assert_eq!(block, table, "run the test with STOWAGE_UPDATE_DOCS=1 and review the change");
    }
}

fn flags() -> String {
    let mut table = "| flag | default | meaning |\n|---|---|---|\n".to_owned();
    let command = Args::command();
    for argument in command.get_arguments().filter(|argument| argument.get_long().is_some()) {
        let long = argument.get_long().unwrap_or_default();
        let values: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = values.first().map_or_else(|| "-".to_owned(), |value| format!("`{value}`"));
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        writeln!(table, "| `--{long}` | {default} | {help} |").expect("a String");
    }
    table
}

fn metrics() -> String {
    let mut registry = Registry::default();
    let _ = Metrics::register(&mut registry);
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path();
    let authority = Authority::new();
    swap(path, 0, &authority.pair(2090), &authority.pem);
    let files = TlsFiles {
        certificate: path.join("tls.crt"),
        key: path.join("tls.key"),
        client_ca: None,
        client_certificates: ClientCertificates::Required,
    };
    let _ =
        ReloadedTls::start(files, Timestamp::now, &mut registry).unwrap_or_else(|error| panic!("{error}"));
    let reader = |_: &str| Ok(((), Vec::new()));
    let _ =
        PolicyFile::open(PolicyFlags::default(), || (), reader, Timestamp::now, &mut registry).expect("open");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
    let mut help = BTreeMap::new();
    let mut table = "| metric | type | meaning |\n|---|---|---|\n".to_owned();
    for line in text.lines() {
        if let Some((name, meaning)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            help.insert(name.to_owned(), meaning.trim_end_matches('.').to_owned());
        }
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let meaning = help.get(name).expect("HELP comes before TYPE");
            writeln!(table, "| `{name}{suffix}` | {kind} | {meaning} |").expect("a String");
        }
    }
    table
}

fn reasons() -> String {
    let mut table = "| code | text | goes into |\n|---|---|---|\n".to_owned();
    let ours = [Refusal::UnknownNode, Refusal::MalformedNode, Refusal::NoSlot];
    for refusal in ours.into_iter().chain(Reason::examples().into_iter().map(Refusal::Rule)) {
        let map = if refusal.resolvable() { "FailedNodes" } else { "FailedAndUnresolvableNodes" };
        let text = refusal.text().replace('<', "\\<");
        writeln!(table, "| `{}` | {text} | `{map}` |", refusal.code()).expect("a String");
    }
    table
}

fn faults() -> String {
    let mut table = "| outcome | text | what it means, and what to do |\n|---|---|---|\n".to_owned();
    let mut codes = BTreeSet::new();
    for texts in Fault::examples() {
        let fault = texts.first().expect("a text");
        assert!(texts.iter().all(|other| other.code() == fault.code()) && codes.insert(fault.code()));
        let texts: Vec<_> = texts.iter().map(|fault| fault.plain().replace('<', "\\<")).collect();
        writeln!(table, "| `{}` | {} | {} |", fault.code(), texts.join("<br>"), fault.advice())
            .expect("a String");
    }
    table
}

/// Numbers of the cases that a comment begins with, as in "Cases 4, 25 and 38: ...".
fn cases_in(comment: &str) -> BTreeSet<u32> {
    let begins = |text: &str| text.starts_with("Case ") || text.starts_with("Cases ");
    let text = comment.trim_start_matches("///").trim_start();
    let head = text.split_once(':').map(|(head, _)| head).filter(|head| begins(head)).unwrap_or_default();
    head.split([',', ' ']).filter_map(|word| word.parse().ok()).collect()
}

/// The functions of a source, with the cases in the comment of each.
fn numbered(source: &str) -> BTreeMap<String, BTreeSet<u32>> {
    let (mut found, mut numbers) = (BTreeMap::new(), BTreeSet::new());
    for line in source.lines() {
        if line.starts_with("///") {
            numbers.extend(cases_in(line));
        } else if !line.starts_with("#[") {
            let name = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
            if let Some((name, _)) = name {
                found.insert(name.to_owned(), std::mem::take(&mut numbers));
            }
            numbers.clear();
        }
    }
    found
}

/// The tests of the sources in these folders, by source as docs/extender-cases.md names it.
fn numbered_tests() -> BTreeMap<String, BTreeMap<String, BTreeSet<u32>>> {
    let mut found = BTreeMap::new();
    for folder in ["tests", "../tests/tests", "../tests/tests/loops"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|end| end == "rs") {
                let file = path.strip_prefix(path.ancestors().nth(2).expect("a folder")).expect("below it");
                let file = file.strip_prefix("tests").unwrap_or(file).display().to_string();
                found.insert(file, numbered(&std::fs::read_to_string(&path).expect("a source")));
            }
        }
    }
    found
}

/// docs/extender-cases.md: each test that it names is there and carries a number of its row, each number of the row
/// stands at one of its tests, and each test that carries a number is named in the row of it.
#[test]
fn the_tests_of_cases_carry_their_numbers() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/extender-cases.md");
    let page = std::fs::read_to_string(path).expect("docs/extender-cases.md");
    let sources = numbered_tests();
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case ")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let numbers: BTreeSet<u32> = cells[0].split(", ").filter_map(|word| word.parse().ok()).collect();
        assert!(!numbers.is_empty() && !cells[2].is_empty(), "{row}");
        let mut told = BTreeSet::new();
        let mut tests = 0;
        let mut file = "";
        let is_source = |word: &&str| Path::new(word).extension().is_some_and(|end| end == "rs");
        // Outside of backticks stands the file that the tests after it are in.
        for (position, part) in cells[2].split('`').enumerate() {
            if position % 2 == 0 {
                let named = part.split([' ', ';']).rfind(is_source);
                file = named.unwrap_or(file);
            } else if !file.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                tests += 1;
                named.extend(numbers.iter().map(|number| (*number, file.to_owned(), part.to_owned())));
                match sources.get(file).and_then(|tests| tests.get(part)) {
                    None => wrong.push(format!("{file} has no test {part}")),
                    Some(cases) if cases.is_disjoint(&numbers) => {
                        wrong.push(format!("{file}: {part} has none of {numbers:?}"));
                    }
                    Some(cases) => told.extend(cases),
                }
            }
        }
        if tests > 0 && !told.is_superset(&numbers) {
            wrong.push(format!("{numbers:?} are not all at the tests of their row: {told:?}"));
        }
    }
    assert!(named.len() > 40, "{named:?}");
    for (file, test, numbers) in
        sources.iter().flat_map(|(file, tests)| tests.iter().map(move |(t, n)| (file, t, n)))
    {
        let missing =
            numbers.iter().filter(|number| !named.contains(&(**number, file.clone(), test.clone())));
        wrong.extend(missing.map(|number| format!("case {number} does not name {file} {test}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// In one test: with `STOWAGE_UPDATE_DOCS` set they write the same file.
#[test]
fn the_page_says_what_the_program_has() {
    hold("flags", &flags());
    hold("metrics", &metrics());
    hold("reasons", &reasons());
    hold("faults", &faults());
}
