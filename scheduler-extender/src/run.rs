//! Wiring: from flags to running tasks, in one place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use service::admin::{Admin, AdminFlags};
use service::kubernetes::{self, Connection};
use service::logs;
use service::policy_file::PolicyFile;
use service::readiness::Readiness;
use service::serve;
use service::tasks::{ShutdownFlags, Tasks};
use service::tls::ReloadedTls;
use service::watching::WatchFlags;
use service::{file_watch, policy_file};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::cache::{self, Cache};
use crate::http::{Extender, Limits, router};
use crate::metrics::Metrics;
use crate::shared::SharedPlacements;
use crate::{nudge, policy_events};

/// Sent to API servers.
pub const USER_AGENT: &str = concat!("stowage-extender/", env!("CARGO_PKG_VERSION"));

/// Kept back of the shutdown limit for what comes after the last request.
const AFTER_DRAIN: Duration = Duration::from_secs(2);

/// Runs until a signal.
///
/// # Errors
/// When something needed at the start is missing or wrong, or a task ends unasked.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        command: _,
        listen,
        request_deadline,
        body_limit,
        stale_after,
        reservation_lifetime,
        shared_placements,
        watches: WatchFlags { relist_interval: relist },
        tls,
        policy,
        cluster,
        own_pod,
        admin: AdminFlags { admin_address },
        logs,
        shutdown: ShutdownFlags { shutdown_limit },
    } = args;
    let log_level = logs::init(&logs)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %listen, %admin_address, "stowage-extender starts");

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let readiness = Readiness::new();
    let mut tasks = Tasks::new();
    let shutdown = tasks.shutdown();

    let policy =
        PolicyFile::open(policy, policy::Policy::default, read_policy, Timestamp::now, &mut registry)?;
    let (current, policy_status, for_events) = (policy.current(), policy.status(), policy.status());
    let tls =
        tls.into_files().map(|files| ReloadedTls::start(files, Timestamp::now, &mut registry)).transpose()?;
    let tls_config = tls.as_ref().map(ReloadedTls::config);
    let (listener, admin_listener) = (serve::bind(listen)?, serve::bind(admin_address)?);
    let client = kubernetes::connect(&Connection::module_cluster(cluster, USER_AGENT))
        .await
        .context("the module cluster")?;

    let (cache, changes, view) = Cache::new(readiness.register("cache"), metrics.clone());
    let fresh = view.clone();
    readiness.register_probe("watches", move || {
        let (snapshot, now) = (fresh.snapshot(), Instant::now());
        ![snapshot.nodes_health, snapshot.pods_health].iter().any(|health| health.is_stale(now, stale_after))
    });
    let (diag_view, stopping) = (view.clone(), shutdown.clone());
    readiness.register_probe("running", move || !stopping.is_cancelled());

    let body = body_limit as usize * 1024 * 1024;
    let limits = Limits { deadline: request_deadline, body, stale_after, reservation: reservation_lifetime };
    let shared = shared_placements.then(|| SharedPlacements::new(client.clone(), &own_pod.pod_namespace));
    let extender = Extender::new(view, current, metrics, limits).with_client(client.clone());
    let extender = Arc::new(extender.sharing(shared));
    let admin = Admin::new(readiness, registry, log_level)
        .diag("cache", move || {
            let view = diag_view.clone();
            async move { diag_cache(&view) }
        })
        .diag("policy", move || {
            let status = diag_policy(&policy_status.borrow());
            async move { status }
        });

    tasks.companion("policy Events", policy_events::run(client.clone(), own_pod, for_events));
    tasks.companion("reservations", Arc::clone(&extender).settle_as_seen());
    tasks.companion("nudges", nudge::run(Arc::clone(&extender), client.clone()));
    tasks.companion("node watch", cache::nodes(client.clone(), relist, changes.clone()));
    tasks.companion("pod watch", cache::pods(client, relist, changes));
    tasks.companion("cache", cache.run());
    tasks.companion("policy file", policy.follow(file_watch::POLL, shutdown.clone()));
    if let Some(tls) = tls {
        tasks.companion("certificates", tls.follow(file_watch::POLL, shutdown.clone()));
    }
    let drain = shutdown_limit.saturating_sub(AFTER_DRAIN);
    let admin_server = serve::serve(admin_listener, None, admin.router(), CancellationToken::new(), drain);
    tasks.companion("admin server", admin_server);
    tasks.critical("server", serve::serve(listener, tls_config, router(extender), shutdown, drain));
    tasks.run(shutdown_limit).await?;
    Ok(())
}

fn read_policy(text: &str) -> policy_file::Parsed<policy::Policy> {
    match policy::file::load(text) {
        Ok(loaded) => Ok((loaded.policy, policy_file::lines(&loaded.warnings))),
        Err(problems) => Err(policy_file::lines(&problems)),
    }
}

fn diag_cache(view: &cache::CacheView) -> serde_json::Value {
    let snapshot = view.snapshot();
    serde_json::json!({
        "synced": snapshot.synced(),
        "nodes": snapshot.nodes.len(),
        "modulePods": snapshot.pods.len(),
    })
}

fn diag_policy(status: &policy_file::Status) -> serde_json::Value {
    serde_json::json!({
        "generation": status.generation,
        "hash": status.hash,
        "since": status.since.to_string(),
        "warnings": status.warnings,
        "refused": status.refused.as_ref().map(|refused| &refused.problems),
    })
}
