//! Control planes that are used again: starting one takes seconds and 650 MB, cleaning one takes a moment.
//!
//! A test has its control plane for itself. At most [`LIMIT`] are alive in one test binary; a test that finds none
//! free waits. One that a failed test leaves behind, or that a test has marked, is thrown away.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{StageError, shipped};
use crate::{
    controlplane::{ControlPlane, Options},
    failure, wait,
};

/// Environment variable: how many control planes may be alive in one test binary.
pub const LIMIT: &str = "STOWAGE_CONTROLPLANES";
const USUAL_LIMIT: usize = 3;

/// Clean ones that nobody uses.
static IDLE: Mutex<Vec<ControlPlane>> = Mutex::new(Vec::new());

/// The right to have one or more control planes alive.
pub(super) async fn places(count: u32) -> Result<OwnedSemaphorePermit, StageError> {
    static PLACES: std::sync::OnceLock<Arc<Semaphore>> = std::sync::OnceLock::new();
    let places = PLACES.get_or_init(|| {
        let limit = std::env::var(LIMIT).ok().and_then(|limit| limit.parse().ok()).unwrap_or(USUAL_LIMIT);
        // Two clusters are taken at once.
        Arc::new(Semaphore::new(limit.max(2)))
    });
    let permit = Arc::clone(places).acquire_many_owned(count).await;
    permit.map_err(|error| StageError::Broken(format!("the pool of control planes is closed: {error}")))
}

/// A control plane in use by one stage.
pub(super) struct Leased {
    control_plane: Option<ControlPlane>,
    reusable: bool,
    dirty: AtomicBool,
    // After `control_plane`: another may only start when this one is gone or given back.
    _places: Option<Arc<OwnedSemaphorePermit>>,
}

impl Leased {
    /// One from the pool, clean, or a new one; `prepare` is called for a new one only.
    pub(super) async fn pooled(
        places: Arc<OwnedSemaphorePermit>,
        prepare: impl AsyncFnOnce(&ControlPlane) -> Result<(), StageError>,
    ) -> Result<Self, StageError> {
        loop {
            let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(control_plane) = idle else { break };
            match clean(&control_plane).await {
                Ok(()) => return Ok(Self::hold(control_plane, true, places)),
                Err(error) => {
                    tracing::warn!("a control plane could not be cleaned and is thrown away: {error}");
                }
            }
        }
        let mut fresh = Self::fresh(Options::named("stage"), places).await?;
        prepare(fresh.get()?).await?;
        fresh.reusable = true;
        Ok(fresh)
    }

    /// A new one that nobody uses again.
    pub(super) async fn fresh(
        options: Options,
        places: Arc<OwnedSemaphorePermit>,
    ) -> Result<Self, StageError> {
        // What an idle one takes is free for this one.
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        drop(idle);
        Ok(Self::hold(ControlPlane::start(options).await?, false, places))
    }

    fn hold(control_plane: ControlPlane, reusable: bool, places: Arc<OwnedSemaphorePermit>) -> Self {
        let dirty = AtomicBool::new(false);
        Self { control_plane: Some(control_plane), reusable, dirty, _places: Some(places) }
    }

    pub(super) fn get(&self) -> Result<&ControlPlane, StageError> {
        // It is only taken out by drop.
        self.control_plane.as_ref().ok_or_else(|| StageError::Broken("the control plane is gone".to_owned()))
    }

    pub(super) fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(control_plane) = self.control_plane.take()
            && self.reusable
            && !self.dirty.load(Ordering::Relaxed)
            && !failure::test_fails()
        {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(control_plane);
        }
    }
}

/// Takes away all that a stage may have left: its namespaces, every Node, Pod and Lease.
async fn clean(control_plane: &ControlPlane) -> Result<(), StageError> {
    let client = control_plane.client()?;
    wait::until("clean control plane", Duration::from_secs(30), async || match sweep(&client).await {
        Ok(0) => Ok(()),
        Ok(left) => Err(format!("{left} Pods and Nodes are left")),
        Err(error) => Err(error.to_string()),
    })
    .await?;
    Ok(())
}

/// Namespaces first, so that no controller makes new Pods; returns how many Pods and Nodes were still there.
async fn sweep(client: &Client) -> Result<usize, kube::Error> {
    let now = DeleteParams::default().grace_period(0);
    let all = ListParams::default();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for namespace in namespaces.list(&all).await? {
        let name = namespace.name_any();
        let stays = name == "default" || name.starts_with("kube-") || name == shipped::NAMESPACE;
        if !stays && namespace.metadata.deletion_timestamp.is_none() {
            namespaces.delete(&name, &DeleteParams::background()).await?;
        }
    }
    let pods = Api::<Pod>::all(client.clone()).list(&all).await?.items;
    for pod in &pods {
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        // Someone else may have been faster.
        api.delete(&pod.name_any(), &now).await.ok();
    }
    let nodes = Api::<Node>::all(client.clone());
    let there = nodes.list(&all).await?.items.len();
    if there > 0 {
        nodes.delete_collection(&now, &all).await?;
    }
    for namespace in ["kube-node-lease", shipped::NAMESPACE] {
        Api::<Lease>::namespaced(client.clone(), namespace).delete_collection(&now, &all).await?;
    }
    Ok(pods.len() + there)
}
