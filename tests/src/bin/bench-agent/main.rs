//! What the agent costs and how fast it is with many bases: memory, processor and API writes when idle, the time from a
//! bound Pod to `installBiz` and from its answer to a Ready Pod, alone and in a burst, and a restart with everything
//! installed. See `docs/performance.md`.
//!
//! One real control plane with the shipped rights; the bases are simulators in this process, on the same machine. Pods
//! are bound by this program, so that no scheduler stands in the measured time.

mod fleet;
mod report;
mod samples;

use anyhow::{Context, ensure};
use clap::Parser;
use harness::network;

use fleet::Fleet;

#[derive(Parser, Clone)]
#[command(name = "bench-agent", about = "Memory, processor time and latency of the agent with many bases")]
struct Args {
    /// Bases
    #[arg(long, default_value_t = 1000)]
    bases: u32,
    /// Pods bound one after the other, each once the one before is Ready
    #[arg(long, default_value_t = 100)]
    single: usize,
    /// Pods bound as fast as the API server takes them, at most one for each base
    #[arg(long, default_value_t = 1000)]
    burst: usize,
    /// Seconds of idleness that are measured
    #[arg(long, default_value_t = 60)]
    idle: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.burst <= args.bases as usize, "a burst has at most one Pod for each base");
    network::enter()?;
    tokio::runtime::Runtime::new()?.block_on(run(&args))
}

async fn run(args: &Args) -> anyhow::Result<()> {
    let mut fleet = Fleet::set_up(args).await.context("no fleet")?;
    report::idle(args, "empty", &fleet.idle(args.idle).await.context("idle")?);
    report::latency(args, "single", &fleet.single(args.single).await.context("Pods one by one")?);
    let (latencies, rates) = fleet.burst(args.burst).await.context("a burst of Pods")?;
    report::latency(args, "burst", &latencies);
    report::rates(args, &rates);
    report::idle(args, "installed", &fleet.idle(args.idle).await.context("idle with modules")?);
    report::restart(args, &fleet.restart().await.context("a restart")?);
    Ok(())
}
