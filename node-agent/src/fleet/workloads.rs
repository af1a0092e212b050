//! Controllers whose Pods concern bases: `DaemonSets`, and Deployments that follow the number of bases. Trimmed on
//! arrival.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use policy::contract::names;

use crate::fitting::Template;

/// A controller, as far as the fleet needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its version in the API server.
    pub version: Option<String>,
    /// Its template; `None` where that makes no module Pods, or nothing here depends on it.
    pub template: Option<Template>,
    /// What its annotation `stowage.dev/scale` says.
    pub scale: Option<String>,
    /// The replicas that it asks for.
    pub replicas: i32,
    /// Somebody deletes it.
    pub deleting: bool,
}

impl Workload {
    /// Takes what is needed of a `DaemonSet`.
    pub fn of_daemon_set(set: DaemonSet) -> Self {
        let mut workload = Self::new(set.metadata);
        workload.template =
            set.spec.and_then(|spec| Template::read(&workload.namespace, &spec.template, false));
        workload
    }

    /// Takes what is needed of a Deployment: of one that does not follow its bases, almost nothing.
    pub fn of_deployment(deployment: Deployment) -> Self {
        let mut workload = Self::new(deployment.metadata);
        let Some(spec) = deployment.spec else { return workload };
        workload.replicas = spec.replicas.unwrap_or(1);
        if workload.scale.is_some() {
            workload.template = Template::read(&workload.namespace, &spec.template, true);
        }
        workload
    }

    fn new(meta: ObjectMeta) -> Self {
        Self {
            uid: meta.uid.unwrap_or_default(),
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            version: meta.resource_version,
            template: None,
            scale: meta.annotations.and_then(|mut annotations| annotations.remove(names::SCALE)),
            replicas: 0,
            deleting: meta.deletion_timestamp.is_some(),
        }
    }
}
