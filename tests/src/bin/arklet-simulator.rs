//! A simulated base on its own: the HTTP operations API of arklet, without a JVM.

use std::net::{IpAddr, SocketAddr};

use clap::{Parser, ValueEnum};
use harness::arklet::{Options, Release, SecondVersion, Simulator};

/// What the arklet of the base can do, by its release.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ArkletRelease {
    #[value(name = "1.0.1")]
    V1_0_1,
    #[value(name = "1.2.3")]
    V1_2_3,
    #[value(name = "1.3.1")]
    V1_3_1,
    #[value(name = "1.3.3")]
    V1_3_3,
    #[value(name = "1.4.2")]
    V1_4_2,
}

/// Simulates a Koupleless base: answers arklet's HTTP operations API, downloads module jars, runs none of their code.
///
/// As `STOWAGE_BASE_COMMAND` of the harness it needs no flags: the kubelet gives address and port by the environment.
#[derive(Debug, Parser)]
#[command(version)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
struct Flags {
    /// Address to listen on
    #[arg(long, env = "BASE_IP", default_value = "127.0.0.1")]
    addr: IpAddr,
    /// Port to listen on; 0 takes any free one
    #[arg(long, env = "BASE_PORT", default_value_t = 1238)]
    port: u16,
    /// Take the next free port if this one is in use
    #[arg(long)]
    port_drift: bool,
    /// HTTP workers; a real base has two per core
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Release of arklet to behave like
    #[arg(long, value_enum, default_value = "1.4.2")]
    release: ArkletRelease,
    /// Activate every version of a module
    #[arg(long, conflicts_with = "activate_new")]
    multi_active: bool,
    /// Let the newest version of a module take over
    #[arg(long)]
    activate_new: bool,
    /// Keep modules that failed to start
    #[arg(long)]
    keep_broken: bool,
    /// Keep modules that failed to stop
    #[arg(long)]
    keep_broken_on_stop: bool,
    /// Maximum metaspace in bytes; none is reported as -1
    #[arg(long)]
    max_metaspace: Option<u64>,
    /// Port on which modules serve HTTP whose jar names none
    #[arg(long)]
    module_port: Option<u16>,
    /// Prefix of the URL to announce the base at, every 12 s
    #[arg(long)]
    heartbeat: Option<String>,
    /// Name of the base among its modules
    #[arg(long, default_value = "base")]
    master_name: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Flags {
        addr,
        port,
        port_drift,
        workers,
        release,
        multi_active,
        activate_new,
        keep_broken,
        keep_broken_on_stop,
        max_metaspace,
        module_port,
        heartbeat,
        master_name,
    } = Flags::parse();
    let options = Options {
        addr: SocketAddr::new(addr, port),
        port_drift,
        workers,
        release: match release {
            ArkletRelease::V1_0_1 => Release::V1_0_1,
            ArkletRelease::V1_2_3 => Release::V1_2_3,
            ArkletRelease::V1_3_1 => Release::V1_3_1,
            ArkletRelease::V1_3_3 => Release::V1_3_3,
            ArkletRelease::V1_4_2 => Release::V1_4_2,
        },
        second_version: match (multi_active, activate_new) {
            (true, _) => SecondVersion::BothActive,
            (_, true) => SecondVersion::TakesOver,
            _ => SecondVersion::Deactivated,
        },
        keep_broken,
        keep_broken_on_stop,
        max_metaspace,
        module_port,
        heartbeat,
        master_name,
        ..Options::default()
    };
    let simulator = Simulator::start(options).await?;
    // The line that a script waits for; another one comes after each restart.
    println!("listening on {}", simulator.url());
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut hung_up = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    loop {
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => return Ok(interrupted?),
            _ = terminated.recv() => return Ok(()),
            // As when the container restarts: what was installed is gone.
            _ = hung_up.recv() => {
                simulator.restart().await?;
                println!("listening on {}", simulator.url());
            }
        }
    }
}
