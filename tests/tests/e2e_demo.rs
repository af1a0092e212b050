//! `demo`, as `make demo` runs it: in a network namespace of its own, with simulated bases or with a command.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use harness::{TestResult, process::Process, wait, workdir::Workdir};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Everything, from nothing, on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);
const OPERATIONS: [&str; 7] =
    ["online", "offline", "release", "rollback", "replay", "peerScaling", "linkedRelease"];

/// The demo with its output in a file.
fn demo(arguments: &[&str], base_command: Option<&str>) -> Result<(Process, Workdir), harness::Failure> {
    let workdir = Workdir::new("demo-test")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    // This test lies in a namespace already, and the demo is to make its own.
    command.args(arguments).env_remove("STOWAGE_NETNS").env_remove("STOWAGE_BASE_COMMAND");
    if let Some(base_command) = base_command {
        command.env("STOWAGE_BASE_COMMAND", base_command);
    }
    let process = Process::spawn("demo", command, &workdir.path().join("demo.log"))?;
    Ok((process, workdir))
}

fn output(process: &Process) -> String {
    fs::read_to_string(process.log()).unwrap_or_default()
}

async fn walks(base_command: Option<&str>) -> TestResult {
    let (process, _workdir) = demo(&["--once"], base_command)?;
    let status = process.wait(LIMIT).await?;
    let said = output(&process);
    assert!(status.success(), "{status}\n{said}");
    let report: Value = serde_json::from_str(said.lines().last().unwrap_or_default())?;
    assert_eq!((&report["bases"], &report["vnodesReady"]), (&Value::from(4), &Value::from(4)), "{said}");
    let operations = report["operations"].as_object().expect("operations");
    assert_eq!(operations.len(), OPERATIONS.len(), "{said}");
    for name in OPERATIONS {
        assert_eq!(report["operations"][name]["ok"], true, "{name}\n{said}");
        assert!(report["operations"][name]["seconds"].is_number(), "{name}\n{said}");
    }
    let online = said.lines().filter(|line| line.contains("online: ")).count();
    assert_eq!(online, 1, "each operation has one line\n{said}");
    Ok(())
}

#[tokio::test]
async fn seven_operations_on_simulated_bases() -> TestResult {
    walks(None).await
}

/// A real base listens on the port that it is given; so does this one.
#[tokio::test]
async fn seven_operations_on_a_command_of_the_users() -> TestResult {
    walks(Some(&format!("exec {} --port $BASE_PORT", env!("CARGO_BIN_EXE_arklet-simulator")))).await
}

/// Processes in a network namespace.
fn inside(namespace: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    processes.filter(|path| fs::read_link(path.join("ns/net")).is_ok_and(|net| net == namespace)).collect()
}

/// The interactive form, when it has said all it has to say; and the command for another terminal.
async fn stays() -> Result<(Process, Workdir, String), harness::Failure> {
    let (process, workdir) = demo(&[], None)?;
    let command = wait::until("the command for another terminal", LIMIT, async || {
        let said = output(&process);
        if let Some(status) = process.exit_status() {
            return Ok(Err(format!("{status}\n{said}")));
        }
        let command = said.lines().find(|line| line.ends_with("kubectl get pods -o wide"));
        let whole = said.contains("Ctrl-C ends the demo");
        command.filter(|_| whole).map(|command| Ok(command.trim().to_owned())).ok_or(said)
    })
    .await??;
    Ok((process, workdir, command))
}

fn kubectl_of(command: &str) -> (String, PathBuf) {
    let kubectl = command.split(' ').next().unwrap_or_default();
    (kubectl.to_owned(), Path::new(kubectl).parent().expect("it lies in a folder").to_owned())
}

#[tokio::test]
async fn another_terminal_sees_it_and_nothing_stays() -> TestResult {
    let (process, _workdir, command) = stays().await?;
    let (kubectl, folder) = kubectl_of(&command);
    let printed = shell(&command)?;
    let running = |line: &&str| {
        line.starts_with("shop-") && line.contains("Running") && line.contains("virtual-node-java-shop-")
    };
    assert_eq!(printed.lines().filter(running).count(), 3, "{printed}");
    // Each line that is suggested works as it stands.
    let said = output(&process);
    let suggested: Vec<&str> =
        said.lines().map(str::trim).filter(|line| line.starts_with(&kubectl) && *line != command).collect();
    assert!(suggested.len() >= 5, "{said}");
    for line in suggested {
        shell(line)?;
    }

    let id = i32::try_from(process.id())?;
    let namespace = fs::read_link(format!("/proc/{id}/ns/net"))?;
    assert_ne!(namespace, fs::read_link("/proc/self/ns/net")?);
    assert!(inside(&namespace).len() > 5, "the demo has processes");
    kill_process(Pid::from_raw(id).expect("a process id"), Signal::INT)?;
    let status = process.wait(Duration::from_mins(1)).await?;
    assert!(status.success(), "{status}\n{}", output(&process));
    wait::until("end of all that the demo started", Duration::from_secs(30), async || {
        let left = inside(&namespace);
        if left.is_empty() && !folder.exists() {
            Ok(())
        } else {
            Err(format!("{left:?}, {}", folder.display()))
        }
    })
    .await?;
    Ok(())
}

/// Every `kubectl` line of docs/tutorial.md, in its order.
#[tokio::test]
async fn the_tutorial_can_be_followed() -> TestResult {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tutorial.md");
    let page = fs::read_to_string(page)?;
    let lines: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("$ kubectl ")).collect();
    assert!(lines.len() > 20, "{lines:?}");
    let (_process, _workdir, command) = stays().await?;
    let (kubectl, folder) = kubectl_of(&command);
    for line in lines {
        let printed =
            shell(&format!("{kubectl} {}", line.replace("target/demo", &folder.display().to_string())))?;
        let what = line.split(' ').next().unwrap_or_default();
        assert!(what != "get" || printed.lines().count() > 1, "{line}\n{printed}");
    }
    Ok(())
}

fn shell(command: &str) -> Result<String, harness::Failure> {
    let output = Command::new("sh").args(["-c", command]).output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{command}: {}\n{stdout}{stderr}", output.status).into());
    }
    Ok(stdout.into_owned())
}
