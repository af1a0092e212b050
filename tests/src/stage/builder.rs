//! Sets a stage up.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use policy::contract::names;
use serde_json::json;

use super::{
    BaseSet, Daemon, PATIENCE, Stage, StageError,
    base::{Bases, SetUp},
    pool::{self, Leased},
    shipped::{self, Shipped},
};
use crate::{
    arklet,
    artifact::ArtifactServer,
    controlplane::{ControlPlane, Options},
    failure,
    kubelet::Kubelet,
    network,
    program::{Launch, Program},
    wait,
    workdir::Workdir,
};

/// The policy of a stage that names none: the shipped one with short times.
pub const POLICY: &str = "\
apiVersion: policy.stowage.dev/v1alpha1
kind: PlacementPolicy
defaults: {podsPerBase: 1, versionsPerModule: 1}
scoring:
- {term: spread, weight: 1}
---
apiVersion: policy.stowage.dev/v1alpha1
kind: OperationsPolicy
health: {interval: 1s, timeout: 5s, failuresBeforeNotReady: 3}
install: {timeout: 2m, attempts: 5, backoff: {initial: 1s, max: 10s}, parallelPerBase: 2, downloadsAtOnce: 20}
drain: {wait: 1s, forceAfter: 10s}
brake: {maxShareOfBases: 50%, maxShareOfModules: 20%, minModules: 10}
";

/// Where jars are served: an address of no base.
const ARTIFACTS: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 10);

/// The shipped service accounts.
const AGENT: &str = "stowage-agent";
const SCHEDULER: &str = "stowage-scheduler";

/// What a stage is to be.
#[must_use = "nothing is started before `build`"]
pub struct Builder {
    base_sets: Vec<BaseSet>,
    bases: u32,
    base_version: String,
    policy: String,
    agents: usize,
    agent_program: String,
    agent_flags: Vec<String>,
    extender_flags: Vec<String>,
    exclusive: Option<Options>,
    two_clusters: bool,
    all_rights: bool,
    namespace: Option<String>,
    waits: bool,
    set_up: SetUp,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            base_sets: Vec::new(),
            bases: 0,
            base_version: "2.1.0".to_owned(),
            policy: POLICY.to_owned(),
            agents: 1,
            agent_program: AGENT.to_owned(),
            agent_flags: Vec::new(),
            extender_flags: Vec::new(),
            exclusive: None,
            two_clusters: false,
            all_rights: false,
            namespace: None,
            waits: true,
            set_up: Box::new(|_, address| arklet::Options::at(address)),
        }
    }
}

impl Builder {
    /// Base Pods `base-0`, `base-1`, ... (a `StatefulSet` named `base`).
    pub fn bases(mut self, count: u32) -> Self {
        self.bases = count;
        self
    }

    /// Their version, 2.1.0 unless set.
    pub fn base_version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.base_version);
        self
    }

    /// More bases.
    pub fn base_set(mut self, set: BaseSet) -> Self {
        self.base_sets.push(set);
        self
    }

    /// How simulators are set up, by their Pod and the address that they must listen on.
    pub fn simulators(
        mut self,
        set_up: impl Fn(&Pod, SocketAddr) -> arklet::Options + Send + Sync + 'static,
    ) -> Self {
        self.set_up = Box::new(set_up);
        self
    }

    /// The policy file instead of [`POLICY`].
    pub fn policy(mut self, yaml: &str) -> Self {
        yaml.clone_into(&mut self.policy);
        self
    }

    /// [`POLICY`] with another `podsPerBase`.
    pub fn pods_per_base(self, pods: u32) -> Self {
        let policy = POLICY.replace("podsPerBase: 1", &format!("podsPerBase: {pods}"));
        self.policy(&policy)
    }

    /// How many agents run; one unless set. The first to start becomes the active one.
    pub fn agents(mut self, count: usize) -> Self {
        self.agents = count;
        self
    }

    /// Another program than `stowage-agent` as agents: one of its test builds.
    pub fn agent_program(mut self, program: &str) -> Self {
        program.clone_into(&mut self.agent_program);
        self
    }

    /// A flag of all agents (`--name=value`), instead of the usual one of this name.
    pub fn agent_flag(mut self, flag: &str) -> Self {
        self.agent_flags.push(flag.to_owned());
        self
    }

    /// The same for the extender.
    pub fn extender_flag(mut self, flag: &str) -> Self {
        self.extender_flags.push(flag.to_owned());
        self
    }

    /// A control plane that no other test has used or will use: its components may be stopped.
    pub fn exclusive(mut self, options: Options) -> Self {
        self.exclusive = Some(options);
        self
    }

    /// Base Pods in one API server, `VNode`s and `VPod`s in another; the agent has a service account in each, with no
    /// rights in the other.
    pub fn two_clusters(mut self) -> Self {
        self.two_clusters = true;
        self
    }

    /// Our programs run with all rights, instead of exactly those of the shipped service accounts.
    pub fn all_rights(mut self) -> Self {
        self.all_rights = true;
        self
    }

    /// The namespace, instead of a new name. Only for an [exclusive](Self::exclusive) control plane.
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// Returns as soon as everything is started, without waiting for bases and `VNode`s to be Ready.
    pub fn without_waiting(mut self) -> Self {
        self.waits = false;
        self
    }

    /// Sets it up.
    pub async fn build(self) -> Result<Stage, StageError> {
        // Boxed, because tests would carry all of it in their own futures.
        Box::pin(self.set_up()).await
    }

    async fn set_up(self) -> Result<Stage, StageError> {
        let Self {
            mut base_sets,
            bases: count,
            base_version,
            policy,
            agents,
            agent_program,
            agent_flags,
            extender_flags,
            exclusive,
            two_clusters,
            all_rights,
            namespace,
            waits,
            set_up,
        } = self;
        failure::test_begins();
        if count > 0 {
            base_sets.insert(0, BaseSet::stateful("base", &base_version, count));
        }
        let (module_cluster, base_cluster) = clusters(exclusive, two_clusters).await?;
        // Without `-`, so that names of VNodes have no suffix.
        let namespace =
            namespace.unwrap_or_else(|| format!("stage{:06x}", rand::random::<u32>() & 0x00ff_ffff));
        let cluster = module_cluster.get()?;
        let bases_at = base_cluster.as_ref().unwrap_or(&module_cluster).get()?;
        let labels = [(names::MODULES, "enabled")];
        let mut namespaces = vec![cluster.namespace_in_scope(&namespace, &namespace, &labels).await?];
        admission_works(cluster, &namespace).await?;
        if base_cluster.is_some() {
            namespaces.push(bases_at.namespace_in_scope(&namespace, &namespace, &[]).await?);
        }

        let artifacts = ArtifactServer::start_at(SocketAddr::from((ARTIFACTS, 0))).await?;
        let bases = Bases::new(set_up)?;
        let kubelet = Kubelet::start(bases_at.client()?, &namespace, bases.clone()).await?;
        kubelet.add_node("node-a").await?;

        let workdir = Workdir::new("stage")?;
        let policy_file = workdir.path().join("policy").join("policy.yaml");
        replace(&policy_file, &policy)?;
        let shipped = Shipped::base(cluster).await?;
        let mut flags = vec![
            format!("--policy-file={}", policy_file.display()),
            format!("--module-kubeconfig={}", account(cluster, AGENT, all_rights).await?.display()),
        ];
        if base_cluster.is_some() {
            flags
                .push(format!("--base-kubeconfig={}", account(bases_at, AGENT, all_rights).await?.display()));
        }
        let agent_flags = shipped::merged(flags, &agent_flags);
        let launcher = Launcher { shipped, agent_program, agent_flags };

        let port = network::free_port()?;
        let kubeconfig = account(cluster, SCHEDULER, all_rights).await?;
        let (launch, admin) = launcher.extender(port, &policy_file, &kubeconfig, &extender_flags)?;
        let extender = Daemon::start(launch, admin).await?;
        let configuration = shipped.scheduler_configuration(port, &kubeconfig.display().to_string())?;
        let scheduler = cluster.start_scheduler("stowage", &configuration).await?;
        let mut stage = Stage {
            agents: Vec::new(),
            extender,
            extender_port: port,
            scheduler,
            kubelet,
            artifacts,
            bases,
            launcher,
            policy_file,
            client: cluster.client()?,
            base_client: bases_at.client()?,
            _namespaces: namespaces,
            namespace,
            module_cluster,
            base_cluster,
            _workdir: workdir,
        };
        for set in &base_sets {
            stage.apply_bases(set).await?;
        }
        for number in 0..agents {
            stage.start_agent(&[]).await?;
            if number == 0 && agents > 1 {
                leads(stage.agent(0)?).await?;
            }
        }
        let count: u32 = base_sets.iter().map(BaseSet::count).sum();
        if waits && let Err(error) = ready(&stage, count as usize).await {
            let story = super::report::collect(&stage).await;
            return Err(StageError::Broken(format!("{error}\n{story}")));
        }
        Ok(stage)
    }
}

/// The module cluster, and the base cluster where it is another one.
async fn clusters(
    exclusive: Option<Options>,
    two_clusters: bool,
) -> Result<(Leased, Option<Leased>), StageError> {
    let places = Arc::new(pool::places(if two_clusters { 2 } else { 1 }).await?);
    let module_cluster = match exclusive {
        Some(options) => {
            let fresh = Leased::fresh(options, Arc::clone(&places)).await?;
            prepare(fresh.get()?).await?;
            fresh
        }
        None => Leased::pooled(Arc::clone(&places), prepare).await?,
    };
    if !two_clusters {
        return Ok((module_cluster, None));
    }
    let fresh = Leased::fresh(Options::named("base-cluster"), places).await?;
    let shipped = Shipped::render(fresh.get()?, "overlays/two-clusters/base-cluster").await?;
    shipped.apply(fresh.get()?).await?;
    Ok((module_cluster, Some(fresh)))
}

/// The credentials of one of the shipped service accounts, or all rights.
async fn account(cluster: &ControlPlane, name: &str, all_rights: bool) -> Result<PathBuf, StageError> {
    if all_rights {
        return Ok(cluster.kubeconfig_path());
    }
    Ok(cluster.kubeconfig_for_service_account(shipped::NAMESPACE, name).await?)
}

async fn ready(stage: &Stage, bases: usize) -> Result<(), StageError> {
    stage.wait_bases_ready(bases).await?;
    stage.extender.wait_ready().await?;
    if !stage.agents.is_empty() {
        stage.wait_vnodes_ready(bases).await?;
    }
    Ok(())
}

/// Waits until an agent leads: of two that start at once either may.
async fn leads(agent: &Daemon) -> Result<(), StageError> {
    wait::until("the term of the first agent", PATIENCE, async || {
        let leads = agent.metric("stowage_agent_leader", &[]).await.map_err(|error| error.to_string())?;
        if leads > 0.0 { Ok(()) } else { Err("it does not lead yet".to_owned()) }
    })
    .await?;
    Ok(())
}

/// What a new control plane gets before its first test.
async fn prepare(cluster: &ControlPlane) -> Result<(), StageError> {
    Shipped::base(cluster).await?.apply(cluster).await
}

/// The API server takes a moment to see new admission policies.
async fn admission_works(cluster: &ControlPlane, namespace: &str) -> Result<(), StageError> {
    let pods: Api<Pod> = Api::namespaced(cluster.client()?, namespace);
    let pod = json!({
        "metadata": {"name": "probe", "labels": {(names::MODULE_POD): "true"}},
        "spec": {"containers": [{"name": "probe", "image": "probe"}]},
    });
    let pod: Pod = serde_json::from_value(pod).map_err(std::io::Error::other)?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    wait::until("effect of the shipped admission policies", PATIENCE, async || {
        let answer = pods.create(&dry_run, &pod).await.map_err(|error| error.to_string())?;
        let tolerations = answer.spec.and_then(|spec| spec.tolerations).unwrap_or_default();
        let completed =
            tolerations.iter().any(|toleration| toleration.key.as_deref() == Some(names::VIRTUAL_NODE_TAINT));
        if completed { Ok(()) } else { Err("the Pod was not completed".to_owned()) }
    })
    .await?;
    Ok(())
}

/// Writes a file at once: readers see the old content or the new.
pub(super) fn replace(file: &Path, content: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let new = file.with_extension("new");
    std::fs::write(&new, content)?;
    std::fs::rename(new, file)
}

/// Makes command lines out of the shipped ones.
pub(super) struct Launcher {
    shipped: &'static Shipped,
    agent_program: String,
    agent_flags: Vec<String>,
}

impl Launcher {
    /// Starts an agent and waits until it lives.
    pub(super) async fn agent(&self, number: usize, flags: &[&str]) -> Result<Daemon, StageError> {
        let admin = network::free_port()?;
        let ours = [
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--identity=agent-{number}"),
            "--log-format=human".to_owned(),
        ];
        let ours = shipped::merged(self.agent_flags.clone(), &ours);
        let ours = shipped::merged(ours, &flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>());
        let arguments = self.shipped.arguments("stowage-agent", "agent", &ours)?;
        let launch = Program::new(&self.agent_program).args(arguments).env("NO_COLOR", "1");
        Daemon::start(launch, admin).await
    }

    /// The same with these flags alone.
    pub(super) async fn agent_with(&self, flags: Vec<String>) -> Result<Daemon, StageError> {
        let admin = network::free_port()?;
        let ours = [format!("--admin-address=127.0.0.1:{admin}"), "--log-format=human".to_owned()];
        let launch = Program::new(&self.agent_program).args(shipped::merged(flags, &ours));
        Daemon::start(launch.env("NO_COLOR", "1"), admin).await
    }

    fn extender(
        &self,
        port: u16,
        policy: &Path,
        account: &Path,
        flags: &[String],
    ) -> Result<(Launch, u16), StageError> {
        let admin = network::free_port()?;
        let ours = vec![
            format!("--listen=127.0.0.1:{port}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--policy-file={}", policy.display()),
            format!("--kubeconfig={}", account.display()),
            "--log-format=human".to_owned(),
        ];
        let ours = shipped::merged(ours, flags);
        let arguments = self.shipped.arguments("stowage-scheduler", "extender", &ours)?;
        Ok((Program::new("stowage-extender").args(arguments).env("NO_COLOR", "1"), admin))
    }
}
