//! The program: allocator, crypto provider, flags, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use node_agent::app;
use node_agent::args::Cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub(crate) fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("stowage-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<bool> {
    let cli = Cli::parse();
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("another crypto provider is installed");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match cli.command {
        Some(command) => Ok(runtime.block_on(app::command(command))?),
        None => Ok(runtime.block_on(app::run(cli.run)).map(|()| true)?),
    }
}
