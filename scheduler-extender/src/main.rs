//! `stowage-extender`: the HTTP extender for kube-scheduler.

use clap::Parser;
use scheduler_extender::args::{Args, Command};
use scheduler_extender::{explain, run::run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let mut args = Args::parse();
    if let Some(Command::Explain(asked)) = args.command.take() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        return Ok(runtime.block_on(explain::run(asked, &mut std::io::stdout()))?);
    }
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("another TLS provider is installed");
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(args))
}
