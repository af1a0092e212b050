//! The flags.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, Subcommand};
use service::admin::AdminFlags;
use service::kubernetes::ModuleClusterFlags;
use service::logs::LogFlags;
use service::policy_file::PolicyFlags;
use service::tasks::ShutdownFlags;
use service::tls::TlsFlags;
use service::watching::WatchFlags;

use crate::explain::ExplainArgs;
use crate::policy_events::OwnPodFlags;

/// Filters and scores `VNode`s for kube-scheduler.
///
/// kube-scheduler calls POST /scheduler/filter, prioritize, preempt and bind; GET /explain says why a Pod goes where.
#[derive(Debug, Clone, Parser)]
#[command(name = "stowage-extender", version, about, long_about, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Without one the extender runs
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Address for kube-scheduler. Plain HTTP unless --tls-cert is given; keep it on loopback then
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8888")]
    pub listen: SocketAddr,
    /// Longest time for one request; must be below kube-scheduler's `httpTimeout`
    #[arg(long, value_name = "DURATION", default_value = "1500ms", value_parser = humantime::parse_duration)]
    pub request_deadline: Duration,
    /// Largest request in MiB; only whole Node objects (`nodeCacheCapable: false`) make large ones
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub body_limit: u32,
    /// How long a watch may fail until requests are answered with an error
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub stale_after: Duration,
    /// How long a placement that was just made counts until it is seen; longer than a binding takes and a watch can hang
    /// unnoticed, which is 45 s
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub reservation_lifetime: Duration,
    /// Record each placement in a Lease before `bind` binds it, so that several extenders may bind at once
    #[arg(long)]
    pub shared_placements: bool,
    #[command(flatten)]
    pub(crate) watches: WatchFlags,
    #[command(flatten)]
    pub(crate) tls: TlsFlags,
    #[command(flatten)]
    pub(crate) policy: PolicyFlags,
    #[command(flatten)]
    pub(crate) cluster: ModuleClusterFlags,
    #[command(flatten)]
    pub(crate) own_pod: OwnPodFlags,
    #[command(flatten)]
    pub(crate) admin: AdminFlags,
    #[command(flatten)]
    pub(crate) logs: LogFlags,
    #[command(flatten)]
    pub(crate) shutdown: ShutdownFlags,
}

/// What else the program does.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Asks a running extender why a Pod goes where it goes
    Explain(ExplainArgs),
}
