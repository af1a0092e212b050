//! The offline tool `stowage-policy`.
//!
//! Exit codes: 0 all is well; 1 the policy has errors (or warnings, with `--strict`), the Pod fits nowhere, or what
//! `--fail-on` names would happen; 2 the command could not be carried out.

mod explain;
mod input;
mod lint;
mod schema;
mod simulate;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;

pub use input::InputError;

/// Checks, explains and simulates Stowage policy files. Needs no cluster.
#[derive(Debug, Parser)]
#[command(
    name = "stowage-policy",
    version,
    after_help = "Exit codes: 0 all is well; 1 the policy has errors, the Pod fits nowhere, or what --fail-on names would \
                  happen; 2 the command could not be carried out."
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a policy file; all errors at once, as `file:line:column: message`.
    Lint {
        /// The policy file; `-` is standard input.
        file: PathBuf,
        /// Fail on warnings too.
        #[arg(long)]
        strict: bool,
    },
    /// Say for every base why a Pod goes or does not go there.
    Explain {
        /// The policy file; without it the defaults hold.
        #[arg(long)]
        policy: Option<PathBuf>,
        /// Name of the Pod, `namespace/name`.
        #[arg(long)]
        pod: String,
        /// Only this node.
        #[arg(long)]
        node: Option<String>,
        /// A row for every rule, not only for those that reject.
        #[arg(long)]
        all: bool,
        /// How to show it.
        #[arg(long, short, value_enum, default_value_t)]
        output: Output,
        /// Output of `kubectl get nodes,pods -A -o json`, or YAML documents; `-` is standard input.
        snapshot: PathBuf,
    },
    /// Compare two policies over a snapshot: what would change for each module, base and Pod.
    Simulate {
        /// The policy in force; without it the defaults.
        #[arg(long)]
        before: Option<PathBuf>,
        /// The policy to try.
        #[arg(long)]
        after: PathBuf,
        /// What makes the exit code 1.
        #[arg(long, value_enum, default_value_t)]
        fail_on: FailOn,
        /// How to show it.
        #[arg(long, short, value_enum, default_value_t)]
        output: Output,
        /// Output of `kubectl get nodes,pods -A -o json`, or YAML documents; `-` is standard input.
        snapshot: PathBuf,
    },
    /// Print the JSON Schema of a kind of document, for editors.
    Schema {
        /// The kind.
        kind: Kind,
    },
}

/// A kind of policy document.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// `kind: PlacementPolicy`
    Placement,
    /// `kind: OperationsPolicy`
    Operations,
}

/// How a report is shown.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// What a pipeline stops at.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum FailOn {
    /// Nothing.
    Never,
    /// A Pod that fits nowhere any more.
    Stranded,
    /// That, a Pod that would not be placed again where it is, or a base with more Pods than the new limit.
    #[default]
    Worse,
    /// Anything that differs.
    Change,
}

/// How a command ended.
enum Outcome {
    Well,
    Bad,
}

/// Carries the command out; reports go to standard output, failures to standard error.
pub fn run(args: Args) -> ExitCode {
    let mut out = io::stdout().lock();
    let outcome = match args.command {
        Command::Lint { file, strict } => lint::run(&file, strict, &mut out),
        Command::Explain { policy, pod, node, all, output, snapshot } => {
            let (policy, node) = (policy.as_deref(), node.as_deref());
            let asked = explain::Asked { policy, pod: &pod, node, all, output, snapshot: &snapshot };
            explain::run(&asked, &mut out)
        }
        Command::Simulate { before, after, fail_on, output, snapshot } => {
            let before = before.as_deref();
            let asked = simulate::Asked { before, after: &after, fail_on, output, snapshot: &snapshot };
            simulate::run(&asked, &mut out)
        }
        Command::Schema { kind } => schema::run(kind, &mut out),
    };
    match outcome.and_then(|outcome| out.flush().map(|()| outcome).map_err(InputError::Write)) {
        Ok(Outcome::Well) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::from(1),
        // Who reads us has read enough.
        Err(InputError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let mut err = io::stderr().lock();
            // Nowhere is left to report a failure of standard error.
            let _ = writeln!(err, "stowage-policy: {error}");
            if let Some(source) = std::error::Error::source(&error) {
                let _ = writeln!(err, "  {source}");
            }
            ExitCode::from(2)
        }
    }
}

fn json(report: &impl Serialize, out: &mut impl Write) -> Result<(), InputError> {
    serde_json::to_writer_pretty(&mut *out, report).map_err(|error| InputError::Write(error.into()))?;
    writeln!(out).map_err(InputError::Write)
}
