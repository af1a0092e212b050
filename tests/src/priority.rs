//! Priority classes for tests of preemption.

use std::time::Duration;

use k8s_openapi::api::{core::v1::Pod, scheduling::v1::PriorityClass};
use kube::{Api, Client, ResourceExt, api::PostParams};
use serde_json::json;

use crate::wait::{self, TimedOut};

const SOON: Duration = Duration::from_mins(1);

/// There is no such class.
#[derive(Debug, thiserror::Error)]
pub enum PriorityError {
    /// It could not be created.
    #[error("cannot create a PriorityClass: {0}")]
    Create(#[from] kube::Error),
    /// No Pod may have it.
    #[error(transparent)]
    Unused(#[from] TimedOut),
    /// The Pod that tries it is none.
    #[error("a Pod: {0}")]
    Pod(#[from] serde_json::Error),
}

/// Creates a class and waits until Pods of a namespace may have it: admission takes a moment to see new ones.
///
/// # Errors
/// [`PriorityError`] when it cannot be created or is not seen within a minute.
pub async fn create(client: &Client, namespace: &str, class: &PriorityClass) -> Result<(), PriorityError> {
    Api::all(client.clone()).create(&PostParams::default(), class).await?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "probe"},
        "spec": {"priorityClassName": class.name_any(), "containers": [{"name": "probe", "image": "probe"}]},
    }))?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    wait::until("effect of a new PriorityClass", SOON, async || pods.create(&dry_run, &pod).await).await?;
    Ok(())
}
