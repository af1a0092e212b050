//! The demo: bases and modules on a real control plane, in a network namespace of their own, until Ctrl-C; or the
//! seven operations one after the other.

mod operations;
mod progress;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

pub use self::terminal::TerminalError;
use self::{operations::Report, progress::Progress, terminal::Terminal};
use crate::{
    controlplane::Options,
    kubelet::ShellCommand,
    stage::{Stage, StageError},
    workdir,
};

/// The namespace of the samples.
const NAMESPACE: &str = "shop";
/// Base Pods in `manifests/samples/bases.yaml`.
const BASES: usize = 4;

/// Bases and modules on a real control plane, without Docker, root or network, until Ctrl-C. The environment variable
/// `STOWAGE_BASE_COMMAND` names a command to run as base instead of a simulator: it finds `BASE_PORT`, `BASE_POD` and
/// `BASE_NAMESPACE` in its environment.
#[derive(Debug, Parser)]
#[command(name = "demo")]
pub struct Args {
    /// Walk the seven operations, print the time of each and a line of JSON, and end
    #[arg(long)]
    pub once: bool,
}

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Something on the stage failed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The way in for other terminals could not be made.
    #[error(transparent)]
    Terminal(#[from] TerminalError),
    /// Signals cannot be waited for.
    #[error("signals: {0}")]
    Signal(#[source] std::io::Error),
    /// The report is no JSON.
    #[error("the report: {0}")]
    Report(#[from] serde_json::Error),
}

/// Runs it. The exit code is 0 when it was ended by a signal, or when all operations succeeded.
pub async fn run(args: Args) -> Result<ExitCode, DemoError> {
    let Args { once } = args;
    let (mut interrupted, mut terminated, mut hung_up) = (
        signal(SignalKind::interrupt()).map_err(DemoError::Signal)?,
        signal(SignalKind::terminate()).map_err(DemoError::Signal)?,
        signal(SignalKind::hangup()).map_err(DemoError::Signal)?,
    );
    let signalled = async {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
            _ = hung_up.recv() => {}
        }
    };
    // Boxed, because they are large.
    let play = async { if once { Box::pin(walk()).await } else { Box::pin(stay()).await } };
    tokio::select! {
        ended = play => ended,
        () = signalled => {
            println!("\nThe demo ends.");
            // Interrupted before it came to its end, it has shown nothing.
            Ok(if once { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

/// From nothing to Ready VNodes.
async fn start(progress: &Progress) -> Result<Stage, StageError> {
    let options = Options::named("demo");
    let what = match ShellCommand::from_environment()? {
        Some(_) => "bases of your own (STOWAGE_BASE_COMMAND)",
        None => "simulated bases",
    };
    progress.begin("etcd, kube-apiserver, kube-controller-manager and two kube-schedulers start");
    let stage = Stage::builder().namespace(NAMESPACE).exclusive(options).build().await?;
    progress.done("control plane, stowage-agent and stowage-extender run; manifests/base is applied");
    stage.apply_sample("bases.yaml").await?;
    progress.done(&format!("manifests/samples/bases.yaml is applied: {BASES} {what} of two versions"));
    if let Some(folder) = stage.base_logs() {
        progress
            .begin(&format!("each start of a base writes its output into a file in {}", folder.display()));
    }
    if let Err(error) = bases_ready(&stage, progress).await {
        // What a base of the user's says is what they look for.
        workdir::keep();
        eprintln!("{}", stage.story().await);
        return Err(error);
    }
    Ok(stage)
}

async fn bases_ready(stage: &Stage, progress: &Progress) -> Result<(), StageError> {
    stage.wait_bases_ready(BASES).await?;
    progress.done(&format!("{BASES} base Pods are Ready"));
    stage.wait_vnodes_ready(BASES).await?;
    progress.done(&format!("{BASES} VNodes are Ready: kube-scheduler sees each base as a Node"));
    Ok(())
}

async fn stay() -> Result<ExitCode, DemoError> {
    let progress = Progress::start();
    let stage = Box::pin(start(&progress)).await?;
    stage.apply_sample("module.yaml").await?;
    stage.apply_sample("service.yaml").await?;
    stage.wait_pods_ready("app=shop", 3).await?;
    stage.wait_modules(&[("shop:1.4.0", 3)]).await?;
    progress.done(
        "manifests/samples/module.yaml is applied: 3 module Pods are Ready, their modules run on 3 bases",
    );
    let terminal = Terminal::open(&stage)?;
    println!("{}", terminal.greeting());
    // Until a signal drops this.
    std::future::pending::<()>().await;
    drop(terminal);
    Ok(ExitCode::SUCCESS)
}

async fn walk() -> Result<ExitCode, DemoError> {
    let progress = Progress::start();
    let stage = Box::pin(start(&progress)).await?;
    let report: Report = operations::walk(&stage, &progress).await;
    if !report.all_ok() {
        eprintln!("{}", stage.story().await);
        workdir::keep();
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(if report.all_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
