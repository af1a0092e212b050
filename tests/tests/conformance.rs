//! The conformance suite, which a real arklet passes, against the simulator.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::wait;
use serde::Deserialize;
use tempfile::TempDir;

#[derive(Debug, Deserialize)]
struct Report {
    passed: usize,
    failed: usize,
    skipped: usize,
    checks: Vec<Check>,
}

#[derive(Debug, Deserialize)]
struct Check {
    name: String,
    outcome: String,
    reason: String,
}

/// The simulator as a program; killed when dropped.
struct Program {
    child: Child,
    url: String,
    output: PathBuf,
    _folder: TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("the simulator ends");
    }
}

async fn simulator(flags: &[&str]) -> Program {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("output");
    let child = Command::new(env!("CARGO_BIN_EXE_arklet-simulator"))
        .args(["--port", "0"])
        .args(flags)
        .env_remove("BASE_IP")
        .stdout(File::create(&output).expect("a file for its output"))
        .spawn()
        .expect("the simulator starts");
    let listening = wait::until("the simulator's address", Duration::from_secs(10), || {
        let text = std::fs::read_to_string(&output);
        async move {
            let text = text.map_err(|error| error.to_string())?;
            let url = text.strip_prefix("listening on ").and_then(|rest| rest.split_once('\n'));
            url.map(|(url, _)| url.to_owned()).ok_or(text)
        }
    });
    let url = listening.await.expect("the simulator says where it listens");
    Program { child, url, output, _folder: folder }
}

fn suite(program: &Program, flags: &[&str]) -> Report {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/arklet_conformance.py");
    // The second line of output comes when the restart is over.
    let restart = format!(
        "kill -HUP {}; until [ $(wc -l < {}) -ge 2 ]; do :; done",
        program.child.id(),
        program.output.display()
    );
    let run = Command::new("python3")
        .arg(script)
        .args(["--json", "--silence", "0.7", "--url", &program.url, "--restart-command", &restart])
        .args(flags)
        .stderr(Stdio::inherit())
        .output()
        .expect("the conformance suite needs python3: install it, and see that it is in PATH");
    serde_json::from_slice(&run.stdout).expect("the suite prints a report")
}

fn assert_passed(report: &Report, passed: usize, skipped: usize) {
    let missed: Vec<_> = report
        .checks
        .iter()
        .filter(|check| check.outcome == "failed")
        .map(|check| format!("{}: {}", check.name, check.reason))
        .collect();
    assert_eq!((report.passed, report.failed, report.skipped), (passed, 0, skipped), "{missed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_checks_pass_optional_ones_too() {
    let program = simulator(&[]).await;
    assert_passed(&suite(&program, &["--optional"]), 103, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checks_pass_with_the_flags_of_the_quick_start() {
    let program = simulator(&["--multi-active", "--keep-broken"]).await;
    // Two checks are about a version that is not active.
    assert_passed(&suite(&program, &["--multi-active", "--keep-broken"]), 95, 2);
}
