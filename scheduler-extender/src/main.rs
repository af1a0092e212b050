//! `stowage-extender`: the HTTP extender for kube-scheduler.

use clap::Parser;
use scheduler_extender::{args::Args, run::run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("another TLS provider is installed");
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(args))
}
