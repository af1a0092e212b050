//! The stage of an end-to-end test: a control plane for itself, our programs with the shipped flags, configuration and
//! rights, base Pods with simulators in them, and module jars.
//!
//! ```no_run
//! # async fn example() -> harness::TestResult {
//! use harness::stage::{ModuleSet, Stage};
//! let stage = Stage::builder().bases(4).build().await?; // VNodes are Ready
//! let url = stage.artifacts.module("shop", "1.0.0").url()?;
//! stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(3).yaml()).await?;
//! stage.wait_pods_ready("app=shop", 3).await?;
//! stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
//! stage.assert_no_double_install()?;
//! # Ok(()) }
//! ```
//!
//! Who owns what: the test owns the stage; the stage its programs, the kubelet and the jars; the [pool](LIMIT) the
//! control planes. A stage that is dropped by a failing test (a panic, or a [`Failure`](crate::Failure) that it returns)
//! prints what it saw. Everything in a test binary runs on
//! at most three control planes (`STOWAGE_CONTROLPLANES`); a test that breaks its own calls [`Builder::exclusive`].

mod base;
mod builder;
mod daemon;
mod error;
mod follow;
mod manifest;
mod objects;
mod pool;
mod promises;
mod report;
pub(crate) mod shipped;

use std::{path::Path, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, core::NamespaceResourceScope};

pub use self::{
    base::Base,
    builder::{Builder, POLICY},
    daemon::Daemon,
    error::StageError,
    manifest::{BaseSet, ModuleSet},
    objects::{describe_pod, pod_condition},
    pool::LIMIT,
    promises::Held,
};
use self::{base::Bases, builder::Launcher, pool::Leased};
use crate::{
    artifact::{ArtifactServer, ModuleBuilder},
    controlplane::{Backup, ControlPlane, Scheduler},
    failure,
    kubectl::Kubectl,
    kubelet::Kubelet,
    namespace::Namespace,
    workdir::Workdir,
};

/// How long the stage's own waits last at most: long, because machines are busy, and a failed test may be slow.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The label selector of `VNode`s.
pub const VNODES: &str = "app.kubernetes.io/managed-by=stowage";
/// The label selector of base Pods.
pub const BASES: &str = "basement.koupleless.io/stack,stowage.dev/module-pod!=true";

/// See the [module](self). The fields are in the order in which they must end.
pub struct Stage {
    agents: Vec<Daemon>,
    /// The extender.
    pub extender: Daemon,
    extender_port: u16,
    /// The second scheduler, with the shipped configuration.
    pub scheduler: Scheduler,
    /// The kubelet of the plain Node `node-a`, which runs the base Pods.
    pub kubelet: Kubelet,
    /// Module jars.
    pub artifacts: ArtifactServer,
    bases: Bases,
    launcher: Launcher,
    policy_file: PathBuf,
    client: Client,
    base_client: Client,
    _namespaces: Vec<Namespace>,
    namespace: String,
    module_cluster: Leased,
    /// Where it is another one.
    base_cluster: Option<Leased>,
    _workdir: Workdir,
}

impl Stage {
    /// Begins one.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The namespace of bases and modules, new for each stage.
    pub fn default_ns(&self) -> &str {
        &self.namespace
    }

    /// The control plane of `VNode`s and `VPod`s. Who stops one of its components, or changes what other tests rely on,
    /// must have it [exclusively](Builder::exclusive) or [mark it](Self::mark_dirty).
    pub fn cluster(&self) -> Result<&ControlPlane, StageError> {
        self.module_cluster.get()
    }

    /// The control plane of base Pods: the same, unless [two clusters](Builder::two_clusters) were asked for.
    pub fn base_cluster(&self) -> Result<&ControlPlane, StageError> {
        self.base_cluster.as_ref().unwrap_or(&self.module_cluster).get()
    }

    /// No other test gets this control plane.
    pub fn mark_dirty(&self) {
        self.module_cluster.mark_dirty();
    }

    /// Brings the module cluster, which must be [exclusive](Builder::exclusive), back to an older state; the stage's
    /// scheduler is started anew, as the others are.
    pub async fn restore(&mut self, backup: &Backup) -> Result<(), StageError> {
        let cluster = self.module_cluster.get()?;
        cluster.restore(backup).await?;
        self.scheduler.restart(cluster).await?;
        Ok(())
    }

    /// With all rights, in the module cluster.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// With all rights, in the base cluster.
    pub fn base_client(&self) -> Client {
        self.base_client.clone()
    }

    /// Objects of the stage's namespace in the module cluster.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Nodes of the module cluster.
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client())
    }

    /// Base Pods.
    pub fn base_pods(&self) -> Api<Pod> {
        Api::namespaced(self.base_client(), &self.namespace)
    }

    /// kubectl in the stage's namespace of the module cluster.
    pub fn kubectl(&self) -> Result<Kubectl, StageError> {
        Ok(self.cluster()?.kubectl()?.in_namespace(&self.namespace))
    }

    /// kubectl in the stage's namespace of the base cluster.
    pub fn base_kubectl(&self) -> Result<Kubectl, StageError> {
        Ok(self.base_cluster()?.kubectl()?.in_namespace(&self.namespace))
    }

    /// `kubectl apply` in the stage's namespace; returns what kubectl says.
    pub async fn apply(&self, yaml: &str) -> Result<String, StageError> {
        Ok(self.kubectl()?.apply(yaml).await?)
    }

    /// The same for a sample of `manifests/samples`, whose jars the stage's own server then has.
    pub async fn apply_sample(&self, file: &str) -> Result<String, StageError> {
        let yaml = self.sample(file)?;
        self.apply(&yaml).await
    }

    /// A sample of `manifests/samples`; the jars that it names are made, and it names the stage's own server.
    pub fn sample(&self, file: &str) -> Result<String, StageError> {
        self.sample_with(file, |module| module)
    }

    /// The same with changed jars.
    pub fn sample_with(
        &self,
        file: &str,
        change: impl Fn(ModuleBuilder<'_>) -> ModuleBuilder<'_>,
    ) -> Result<String, StageError> {
        const ELSEWHERE: &str = "https://repo.example.com/";
        let yaml = std::fs::read_to_string(shipped::folder().join("samples").join(file))?;
        for part in yaml.split(ELSEWHERE).skip(1) {
            let path = part.split_whitespace().next().unwrap_or_default();
            // modules/shop-1.4.0-ark-biz.jar
            let stem = path.rsplit('/').next().unwrap_or_default().trim_end_matches("-ark-biz.jar");
            let Some((name, version)) = stem.rsplit_once('-') else { continue };
            change(self.artifacts.module(name, version).named(path)).url()?;
        }
        Ok(yaml.replace(ELSEWHERE, &self.artifacts.url("")))
    }

    /// Applies bases in the base cluster.
    pub async fn apply_bases(&self, bases: &BaseSet) -> Result<(), StageError> {
        self.base_kubectl()?.apply(&bases.yaml()).await?;
        Ok(())
    }

    /// The youngest base whose Pod has, or had, this name.
    pub fn base(&self, pod: &str) -> Result<Arc<Base>, StageError> {
        self.bases.find(pod)
    }

    /// All bases that were ever started, oldest first.
    pub fn all_bases(&self) -> Vec<Arc<Base>> {
        self.bases.all()
    }

    /// Whether bases are simulators, with journals and faults, and no command of the user's.
    pub fn is_simulated(&self) -> bool {
        self.bases.is_simulated()
    }

    /// Where the output of such commands lies, one file for each start.
    pub fn base_logs(&self) -> Option<&Path> {
        self.bases.logs()
    }

    /// The agents, in the order of their start.
    pub fn agents(&mut self) -> &mut Vec<Daemon> {
        &mut self.agents
    }

    /// An agent, by the order of their start.
    pub fn agent(&self, number: usize) -> Result<&Daemon, StageError> {
        self.agents.get(number).ok_or_else(|| StageError::Broken(format!("there is no agent {number}")))
    }

    /// Starts one more agent, with these flags instead of or beside the usual ones.
    pub async fn start_agent(&mut self, flags: &[&str]) -> Result<&Daemon, StageError> {
        let number = self.agents.len();
        let agent = self.launcher.agent(number, flags).await?;
        self.agents.push(agent);
        self.agent(number)
    }

    /// Starts one more agent with these flags alone, but for its admin server and the format of its log.
    pub async fn start_agent_with(&mut self, flags: Vec<String>) -> Result<usize, StageError> {
        let agent = self.launcher.agent_with(flags).await?;
        self.agents.push(agent);
        Ok(self.agents.len() - 1)
    }

    /// Ends all agents (SIGKILL) and forgets them.
    pub fn remove_agents(&mut self) {
        self.agents.clear();
    }

    /// What a failed test prints: Nodes, Pods, Events, what the bases were asked, the ends of the logs.
    pub async fn story(&self) -> String {
        report::collect(self).await
    }

    /// Where the extender listens for kube-scheduler: without a path, and always plain HTTP.
    pub fn extender_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.extender_port)
    }

    /// The policy file that agent and extender read.
    pub fn policy_file(&self) -> &Path {
        &self.policy_file
    }

    /// Replaces the policy file at once, as an editor or a `ConfigMap` mount does.
    pub fn rewrite_policy(&self, yaml: &str) -> Result<(), StageError> {
        builder::replace(&self.policy_file, yaml)?;
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if failure::test_fails() {
            report::print(self);
        }
    }
}
