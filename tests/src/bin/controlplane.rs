//! `controlplane build` builds the control plane ahead of the tests and prints its path, `controlplane run` runs one
//! until it is interrupted, and `controlplane exec PROGRAM ARGS...` runs one of its programs (kubectl, say).

use std::os::unix::process::CommandExt;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use harness::controlplane::{Binaries, Component, ControlPlane, Options, binaries};

#[derive(Parser)]
#[command(name = "controlplane", about = "The control plane that the end-to-end tests use")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build it, unless it is built already
    Build,
    /// Start one, print the path of its kubeconfig, and keep it until interrupted
    Run,
    /// Run one of its programs in the place of this one
    Exec {
        /// Which
        program: Program,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Program {
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    Kubectl,
}

impl From<Program> for Component {
    fn from(program: Program) -> Self {
        match program {
            Program::Etcd => Self::Etcd,
            Program::KubeApiserver => Self::ApiServer,
            Program::KubeControllerManager => Self::ControllerManager,
            Program::KubeScheduler => Self::Scheduler,
            Program::Kubectl => Self::Kubectl,
        }
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let found = binaries::locate()?;
    match args.command {
        Command::Build => match found {
            Binaries::AllInOne(path) | Binaries::Folder { folder: path, .. } => {
                println!("{}", path.display());
            }
        },
        Command::Run => run()?,
        Command::Exec { program, args } => {
            let error = found.command(program.into())?.args(args).exec();
            return Err(error).context("the program could not be run");
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn run() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::named("run")).await?;
    println!("{}", control_plane.kubeconfig_path().display());
    tokio::signal::ctrl_c().await.context("no signals")
}
