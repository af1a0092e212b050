//! Bases and modules on a real control plane, until Ctrl-C; `--once` walks the seven operations and ends.

use std::process::ExitCode;

use clap::Parser;
use harness::{
    demo::{self, Args},
    network,
};

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    network::enter()?;
    let runtime = tokio::runtime::Runtime::new()?;
    Ok(runtime.block_on(demo::run(args))?)
}
