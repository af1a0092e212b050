//! The seven operations, each checked on the bases themselves.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use policy::contract::names;
use serde::Serialize;

use super::{BASES, progress::Progress};
use crate::{
    kubelet,
    stage::{PATIENCE, Stage, StageError, describe_pod},
};

/// What has become of one operation.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    ok: bool,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcomes {
    online: Outcome,
    offline: Outcome,
    release: Outcome,
    rollback: Outcome,
    replay: Outcome,
    peer_scaling: Outcome,
    linked_release: Outcome,
}

/// The last line of the walk.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    bases: usize,
    vnodes_ready: usize,
    operations: Outcomes,
}

impl Report {
    /// Whether everything worked.
    pub(super) fn all_ok(&self) -> bool {
        let Outcomes { online, offline, release, rollback, replay, peer_scaling, linked_release } =
            &self.operations;
        let all = [online, offline, release, rollback, replay, peer_scaling, linked_release];
        self.bases == self.vnodes_ready && all.iter().all(|outcome| outcome.ok)
    }
}

/// Walks through all of them; a failed one does not keep the next from being tried.
pub(super) async fn walk(stage: &Stage, progress: &Progress) -> Report {
    let online = timed(progress, "online: apply a Deployment of 3", online(stage)).await;
    let offline = timed(progress, "offline: delete it", offline(stage)).await;
    let release = match prepared(stage).await {
        Ok(()) => timed(progress, "release: 1.4.0 -> 1.5.0, rolling", release(stage)).await,
        Err(error) => timed(progress, "release", async { Err(error) }).await,
    };
    let rollback = timed(progress, "rollback: rollout undo", rollback(stage)).await;
    let replay = timed(progress, "replay: a base restarts", replay(stage)).await;
    removed(stage, progress).await;
    let peer_scaling =
        timed(progress, "peer scaling: a DaemonSet follows 4 -> 5 -> 4 bases", peers(stage)).await;
    removed(stage, progress).await;
    let linked_release = timed(progress, "linked release: one Deployment per base line", linked(stage)).await;
    let vnodes_ready = stage.wait_vnodes_ready(BASES).await.map_or(0, |nodes| nodes.len());
    let operations = Outcomes { online, offline, release, rollback, replay, peer_scaling, linked_release };
    Report { bases: BASES, vnodes_ready, operations }
}

async fn timed(
    progress: &Progress,
    what: &str,
    operation: impl Future<Output = Result<(), StageError>>,
) -> Outcome {
    let start = Instant::now();
    let error = operation.await.err().map(|error| error.to_string());
    let took = start.elapsed();
    progress.ended(what, took, error.as_deref());
    // Tenths are what a reader can use.
    let seconds = (took.as_secs_f64() * 10.0).round() / 10.0;
    Outcome { ok: error.is_none(), seconds, error }
}

/// Between two operations: no module Pod, no module.
async fn removed(stage: &Stage, progress: &Progress) {
    let remove = async {
        let modules = [
            "deployment/shop",
            "daemonset/audit",
            "deployment/pricing-on-2-1-0",
            "deployment/pricing-on-2-2-0",
        ];
        stage.kubectl()?.run(&[&["delete", "--ignore-not-found"], &modules[..]].concat()).await?;
        stage.wait_no_pods("stowage.dev/module-pod=true").await?;
        stage.wait_modules(&[]).await
    };
    if let Err(error) = remove.await {
        progress.ended("cleaning up", Duration::ZERO, Some(&error.to_string()));
    }
}

async fn online(stage: &Stage) -> Result<(), StageError> {
    let before = stage.installs("shop").unwrap_or(0);
    stage.apply_sample("module.yaml").await?;
    let pods = stage.wait_pods_ready("app=shop", 3).await?;
    let nodes: BTreeSet<_> = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref()).collect();
    if nodes.len() != 3 {
        return Err(StageError::Broken(format!("three Pods are on {nodes:?}")));
    }
    stage.wait_modules(&[("shop:1.4.0", 3)]).await?;
    installed(stage, "shop", before, 3)
}

/// Each module was sent once and no more.
fn installed(stage: &Stage, module: &str, before: usize, count: usize) -> Result<(), StageError> {
    // A base of the user's keeps no journal.
    if !stage.is_simulated() {
        return Ok(());
    }
    stage.assert_no_double_install()?;
    let sent = stage.installs(module)? - before;
    if sent == count {
        return Ok(());
    }
    Err(StageError::Broken(format!("{sent} instead of {count} installBiz of {module} reached the bases")))
}

async fn offline(stage: &Stage) -> Result<(), StageError> {
    stage.kubectl()?.run(&["delete", "deployment", "shop"]).await?;
    stage.wait_no_pods("app=shop").await?;
    stage.wait_modules(&[]).await
}

async fn prepared(stage: &Stage) -> Result<(), StageError> {
    stage.apply_sample("module.yaml").await?;
    stage.wait_pods_ready("app=shop", 3).await?;
    stage.wait_modules(&[("shop:1.4.0", 3)]).await
}

async fn rolled_out(stage: &Stage, version: &str) -> Result<(), StageError> {
    let limit = format!("--timeout={}s", PATIENCE.as_secs());
    stage.kubectl()?.run(&["rollout", "status", "deployment/shop", &limit]).await?;
    let pods = stage.wait_pods_ready("app=shop", 3).await?;
    let suffix = format!(":shop:{version}");
    let of_version = |pod: &&Pod| {
        let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
        containers
            .unwrap_or_default()
            .iter()
            .all(|container| container.container_id.as_deref().is_some_and(|id| id.ends_with(&suffix)))
    };
    if let Some(other) = pods.iter().find(|pod| !of_version(pod)) {
        return Err(StageError::Broken(format!("not {version}: {}", describe_pod(other))));
    }
    stage.wait_modules(&[(format!("shop:{version}").as_str(), 3)]).await
}

async fn release(stage: &Stage) -> Result<(), StageError> {
    let before = stage.installs("shop").unwrap_or(0);
    let old = stage.sample("module.yaml")?;
    stage.artifacts.module("shop", "1.5.0").named("modules/shop-1.5.0-ark-biz.jar").url()?;
    stage.apply(&old.replace("1.4.0", "1.5.0")).await?;
    rolled_out(stage, "1.5.0").await?;
    installed(stage, "shop", before, 3)
}

async fn rollback(stage: &Stage) -> Result<(), StageError> {
    let before = stage.installs("shop").unwrap_or(0);
    stage.kubectl()?.run(&["rollout", "undo", "deployment/shop"]).await?;
    rolled_out(stage, "1.4.0").await?;
    installed(stage, "shop", before, 3)
}

async fn replay(stage: &Stage) -> Result<(), StageError> {
    let before = stage.installs("shop").unwrap_or(0);
    let held = stage.held().await;
    let base = held.iter().find(|(_, modules)| !modules.is_empty()).map(|(base, _)| base.clone());
    let base = base.ok_or_else(|| StageError::Broken("no base holds a module".to_owned()))?;
    let vnode = stage.vnode_of(&base);
    let on_it =
        |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(vnode.as_str());
    let before_restart: Vec<Pod> = stage.pods("app=shop").await?.into_iter().filter(on_it).collect();
    stage.kubelet.restart_container(stage.default_ns(), &base).await?;
    stage
        .wait_pods("app=shop", "the same Pods, Ready after a restart of their module", PATIENCE, |pods| {
            let there: Vec<&&Pod> = pods.iter().filter(|pod| on_it(pod)).collect();
            let again = |pod: &Pod| {
                let containers = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
                kubelet::is_ready(pod)
                    && containers.unwrap_or_default().iter().all(|container| container.restart_count == 1)
            };
            let same = there.iter().map(|pod| pod.uid()).eq(before_restart.iter().map(ResourceExt::uid));
            if same && there.iter().all(|pod| again(pod)) {
                return Ok(());
            }
            Err(pods.iter().map(|pod| describe_pod(pod)).collect::<Vec<_>>().join("\n"))
        })
        .await?;
    stage
        .wait_held("the same modules on the same bases", PATIENCE, |now| (*now == held).then_some(()))
        .await?;
    installed(stage, "shop", before, 1)
}

async fn peers(stage: &Stage) -> Result<(), StageError> {
    stage.apply_sample("peer-scaling.yaml").await?;
    for bases in [BASES, BASES + 1, BASES] {
        // The other line has two.
        let replicas = format!("--replicas={}", bases - 2);
        stage.base_kubectl()?.run(&["scale", "deployment/base-2-1-0", &replicas]).await?;
        stage.wait_bases_ready(bases).await?;
        stage.wait_pods_ready("app=audit", bases).await?;
        stage.wait_modules(&[("audit:1.0.0", bases)]).await?;
        stage.wait_vnodes_ready(bases).await?;
    }
    if stage.is_simulated() { stage.assert_no_double_install() } else { Ok(()) }
}

async fn linked(stage: &Stage) -> Result<(), StageError> {
    stage.apply_sample("linked-release.yaml").await?;
    stage.wait_pods_ready("app=pricing", BASES).await?;
    stage.wait_modules(&[("pricing:3.1.0", 2), ("pricing:3.2.0", 2)]).await?;
    let bases: Api<Pod> = stage.base_pods();
    for (base, modules) in stage.held().await {
        let pod = bases.get(&base).await?;
        let version = pod.labels().get(names::VERSION).map_or("", String::as_str);
        let wanted = if version == "2.1.0" { "pricing:3.1.0" } else { "pricing:3.2.0" };
        if modules != BTreeSet::from([wanted.to_owned()]) {
            return Err(StageError::Broken(format!(
                "{base} of version {version} holds {modules:?}, not {wanted}"
            )));
        }
    }
    Ok(())
}
