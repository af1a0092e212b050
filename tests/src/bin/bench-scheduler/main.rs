//! How many Pods per second kube-scheduler binds with our extender, with one that answers everything at once, and with
//! none, and how much processor time it takes. See `docs/performance.md`.
//!
//! One real control plane, VNodes as plain Nodes. Each round runs every mode once, so that what else the machine does
//! falls on all of them; the order turns from round to round. The Pods exist before the scheduler starts, and time
//! runs from the first binding that a watch shows to the last.

mod burst;
mod null_extender;
mod objects;
mod report;

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use harness::controlplane::{ControlPlane, Options};

use burst::{Bench, Sample};
use null_extender::NullExtender;

#[derive(Parser, Clone)]
#[command(
    name = "bench-scheduler",
    about = "Pods per second of kube-scheduler with and without the extender"
)]
struct Args {
    /// VNodes
    #[arg(long, default_value_t = 1000)]
    vnodes: usize,
    /// Pods of one burst
    #[arg(long, default_value_t = 500)]
    pods: usize,
    /// Modules that the Pods belong to in turn; two Pods of one module never share a base
    #[arg(long, default_value_t = 20)]
    modules: usize,
    /// `podsPerBase` of the policy, and Pods that each VNode says it can take
    #[arg(long, default_value_t = 110)]
    slots: usize,
    /// How often each mode is run
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Run these modes only; ratios need all
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Mode::None, Mode::Null, Mode::Silent, Mode::Normal, Mode::Decisive])]
    modes: Vec<Mode>,
}

/// What kube-scheduler asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Mode {
    /// No extender
    None,
    /// One that answers everything at once
    Null,
    /// The same, but without a word about scores
    Silent,
    /// Ours
    Normal,
    /// Ours with `filter: {decisive: true}`
    Decisive,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Null => "null",
            Self::Silent => "silent",
            Self::Normal => "normal",
            Self::Decisive => "decisive",
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.pods >= 2 && args.modules >= 1 && args.rounds >= 1, "there is nothing to measure");
    let places = args.vnodes * args.slots.min(args.modules);
    ensure!(args.pods <= places, "{} Pods do not fit on {places} places", args.pods);
    let control_plane =
        ControlPlane::start(Options::api_only("bench-scheduler")).await.context("no control plane")?;
    let null = NullExtender::start().await?;
    let bench = Bench::prepare(&control_plane, &null, args.clone()).await?;
    let mut samples: Vec<(Mode, Vec<Sample>)> = args.modes.iter().map(|mode| (*mode, Vec::new())).collect();
    for round in 0..args.rounds {
        let turn = round % samples.len().max(1);
        samples.rotate_left(turn);
        for (mode, of_mode) in &mut samples {
            let name = mode.name();
            let sample = bench.run(*mode).await.with_context(|| format!("round {round}, {name}"))?;
            eprintln!("round {round} {name}: {:.0} pods/s", sample.pods_per_s);
            of_mode.push(sample);
        }
        samples.rotate_right(turn);
    }
    report::print(&args, &samples)
}
