//! `stowage-policy`: checks and explains policy files, with no cluster.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    policy::cli::run(policy::cli::Args::parse())
}
