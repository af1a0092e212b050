//! `controlplane build` builds the control plane ahead of the tests and prints its path; `controlplane exec PROGRAM
//! ARGS...` runs one of its programs (kubectl, say).

use std::{os::unix::process::CommandExt, process::ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use harness::controlplane::{Binaries, Component, binaries};

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

fn main() -> anyhow::Result<ExitCode> {
    let found = binaries::locate()?;
    match Args::parse().command {
        Command::Build => match found {
            Binaries::AllInOne(path) | Binaries::Folder { folder: path, .. } => println!("{}", path.display()),
        },
        Command::Exec { program, args } => {
            let error = found.command(program.into())?.args(args).exec();
            return Err(error).context("the program could not be run");
        }
    }
    Ok(ExitCode::SUCCESS)
}
