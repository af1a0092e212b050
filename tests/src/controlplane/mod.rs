//! A real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler as child processes.
//!
//! [`ControlPlane::shared`] is started once per test binary and is right for most tests: each works in a
//! [`Namespace`](crate::namespace::Namespace) of its own. Tests that stop components, need special flags or two
//! clusters start their own with [`ControlPlane::start`].

mod backup;
pub mod binaries;
mod certificates;
mod commands;
mod error;
mod kubeconfig;
mod options;
mod scheduler;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, Client, Config, api::PostParams, config::Kubeconfig};
use tokio::sync::OnceCell;

pub use self::{
    backup::Backup,
    binaries::{Binaries, Component},
    error::ControlPlaneError,
    options::Options,
    scheduler::{Extender, Scheduler, configuration},
};
use self::{
    certificates::{Authority, Identity},
    commands::Layout,
    kubeconfig::Credentials,
};
use crate::{kubectl::Kubectl, logs, network, process::Process, wait, workdir::Workdir};

/// How long a component may take to be ready on a busy machine.
const READY: Duration = Duration::from_mins(2);

/// A running control plane. Its processes are killed on drop, and when the test binary ends in whatever way.
pub struct ControlPlane {
    name: String,
    // Before `workdir`: processes end before their files go.
    running: Mutex<BTreeMap<Component, Part>>,
    authority: Authority,
    layout: Layout,
    binaries: &'static Binaries,
    admin: Config,
    workdir: Workdir,
}

#[derive(Debug)]
struct Part {
    args: Vec<String>,
    process: Option<Process>,
}

impl ControlPlane {
    /// The control plane that all tests of this binary share, started by the first that asks.
    pub async fn shared() -> Result<&'static Self, ControlPlaneError> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(Options::named("shared"))).await
    }

    /// Starts a control plane of one's own and waits until it serves (about 5 s) and has the service account
    /// `default`. The first start ever builds the binaries.
    pub async fn start(options: Options) -> Result<Self, ControlPlaneError> {
        let binaries = tokio::task::spawn_blocking(|| -> Result<_, ControlPlaneError> {
            let binaries = binaries::locate()?;
            if network::in_namespace() {
                network::ensure()?;
            }
            Ok(binaries)
        })
        .await
        .map_err(|error| std::io::Error::other(error.to_string()))??;
        let workdir = Workdir::new(&options.name)?;
        let layout = Layout {
            workdir: workdir.path().to_owned(),
            etcd_data: workdir.data(),
            etcd_client: network::free_port()?,
            etcd_peer: network::free_port()?,
            apiserver: network::free_port()?,
            controller_manager: network::free_port()?,
            scheduler: network::free_port()?,
        };
        let authority = Authority::new()?;
        write_identities(&workdir, &layout, &authority)?;
        let admin = Kubeconfig::read_from(workdir.path().join("admin.kubeconfig"))?;
        let admin =
            Config::from_custom_kubeconfig(admin, &kube::config::KubeConfigOptions::default()).await?;
        let mut parts = BTreeMap::from([
            (Component::Etcd, layout.etcd()),
            (Component::ApiServer, layout.apiserver(&options)),
        ]);
        if options.controller_manager {
            parts.insert(Component::ControllerManager, layout.controller_manager(&options));
        }
        if options.scheduler {
            parts.insert(Component::Scheduler, layout.scheduler(&options));
        }
        for component in parts.keys() {
            binaries.command(*component)?;
        }
        let running = parts.into_iter().map(|(component, args)| (component, Part { args, process: None }));
        let control_plane = Self {
            name: options.name,
            running: Mutex::new(running.collect()),
            authority,
            layout,
            binaries,
            admin,
            workdir,
        };
        control_plane.start_all().await?;
        Ok(control_plane)
    }

    async fn start_all(&self) -> Result<(), ControlPlaneError> {
        // The API server waits for etcd by itself.
        self.spawn(Component::Etcd)?;
        self.spawn(Component::ApiServer)?;
        self.ready(Component::ApiServer).await?;
        for component in [Component::ControllerManager, Component::Scheduler] {
            if self.parts().contains_key(&component) {
                self.spawn(component)?;
            }
        }
        if self.has_service_accounts() {
            self.default_service_account("default").await?;
        }
        Ok(())
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<Component, Part>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, component: Component) -> Result<(), ControlPlaneError> {
        let mut parts = self.parts();
        let part = parts.get_mut(&component).ok_or(ControlPlaneError::NotRunning(component.program()))?;
        let mut command = self.binaries.command(component)?;
        command.args(&part.args);
        let log = self.log_file(component);
        part.process = Some(Process::spawn(component.program(), command, &log)?);
        Ok(())
    }

    /// The log of a component.
    pub fn log_file(&self, component: Component) -> PathBuf {
        self.workdir.path().join(format!("{}.log", component.program()))
    }

    /// Waits until a component serves: the API server answers `/readyz`, the others accept connections.
    pub async fn ready(&self, component: Component) -> Result<(), ControlPlaneError> {
        let name = component.program();
        let log_file = self.log_file(component);
        let probe = async || {
            let ended = self
                .parts()
                .get(&component)
                .and_then(|part| part.process.as_ref())
                .is_none_or(|process| process.exit_status().is_some());
            if ended {
                return Ok(false);
            }
            match component {
                Component::ApiServer => {
                    let client = self.client().map_err(|error| error.to_string())?;
                    let request =
                        http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
                    client.request_text(request).await.map_err(|error| error.to_string())?;
                }
                Component::Etcd => accepts(self.layout.etcd_client)?,
                Component::ControllerManager => accepts(self.layout.controller_manager)?,
                Component::Scheduler => accepts(self.layout.scheduler)?,
                Component::Kubectl => {}
            }
            Ok::<bool, String>(true)
        };
        match wait::until(&format!("ready {name}"), READY, probe).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ControlPlaneError::Ended {
                name: format!("{name} of {}", self.name),
                log: logs::tail(&log_file, 40),
                log_file,
            }),
            Err(timed_out) => Err(ControlPlaneError::NotReady {
                name: format!("{name} of {}", self.name),
                timed_out: Box::new(timed_out),
                log: logs::tail(&log_file, 40),
                log_file,
            }),
        }
    }

    /// Kills a component (SIGKILL): connections break, as when a machine dies.
    pub fn stop(&self, component: Component) -> Result<(), ControlPlaneError> {
        let mut parts = self.parts();
        let part = parts.get_mut(&component).ok_or(ControlPlaneError::NotRunning(component.program()))?;
        part.process = None;
        Ok(())
    }

    /// Starts a stopped component (or kills a running one and starts it again) with the same ports and data, and
    /// waits until it serves.
    pub async fn restart(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.stop(component)?;
        self.spawn(component)?;
        self.ready(component).await
    }

    /// Stops a component in its tracks (SIGSTOP): connections stay and nobody answers, as when a network hangs.
    pub fn pause(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.with_process(component, Process::pause)
    }

    /// Lets a paused component go on.
    pub fn resume(&self, component: Component) -> Result<(), ControlPlaneError> {
        self.with_process(component, Process::resume)
    }

    /// The process id of a running component.
    pub fn process_id(&self, component: Component) -> Result<u32, ControlPlaneError> {
        self.with_process(component, |process| Ok(process.id()))
    }

    fn with_process<T>(
        &self,
        component: Component,
        action: impl FnOnce(&Process) -> Result<T, crate::process::ProcessError>,
    ) -> Result<T, ControlPlaneError> {
        let parts = self.parts();
        let process = parts.get(&component).and_then(|part| part.process.as_ref());
        Ok(action(process.ok_or(ControlPlaneError::NotRunning(component.program()))?)?)
    }

    /// A client with all rights. Made anew at each call, because its connections belong to the caller's runtime.
    pub fn client(&self) -> Result<Client, ControlPlaneError> {
        Client::try_from(self.admin.clone()).map_err(|error| ControlPlaneError::Client(Box::new(error)))
    }

    /// What [`client`](Self::client) is made from, to change time-outs, say.
    pub fn config(&self) -> Config {
        self.admin.clone()
    }

    /// The URL of the API server.
    pub fn server(&self) -> String {
        self.layout.server()
    }

    /// A kubeconfig with all rights.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.workdir.path().join("admin.kubeconfig")
    }

    /// The authority that signs the API server's client certificates, its own one for kubelets among them.
    pub fn client_ca_path(&self) -> PathBuf {
        self.workdir.path().join("ca.crt")
    }

    /// A kubeconfig for a user, and one group if given: exactly the rights that RBAC gives them.
    pub fn kubeconfig_for_user(&self, user: &str, group: Option<&str>) -> Result<PathBuf, ControlPlaneError> {
        let identity = self.authority.client(user, group)?;
        self.write_kubeconfig(user, &Credentials::Certificate(&identity), "default")
    }

    /// A kubeconfig for a service account that exists, with a token of one hour.
    pub async fn kubeconfig_for_service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<PathBuf, ControlPlaneError> {
        self.kubeconfig_with_token(namespace, name, None).await
    }

    /// The same with a token that belongs to a Pod of that account, as kubelet asks for it: it ends with the Pod.
    pub async fn kubeconfig_for_pod(
        &self,
        namespace: &str,
        account: &str,
        (pod, uid): (&str, &str),
    ) -> Result<PathBuf, ControlPlaneError> {
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_owned()),
            uid: Some(uid.to_owned()),
        };
        self.kubeconfig_with_token(namespace, account, Some(bound)).await
    }

    async fn kubeconfig_with_token(
        &self,
        namespace: &str,
        name: &str,
        bound: Option<BoundObjectReference>,
    ) -> Result<PathBuf, ControlPlaneError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        let user = match &bound {
            Some(bound) => format!("{namespace}-{name}-{}", bound.uid.as_deref().unwrap_or_default()),
            None => format!("{namespace}-{name}"),
        };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(3600),
                bound_object_ref: bound,
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .map_err(ControlPlaneError::api("give out a service account token"))?;
        let token = answer.status.map(|status| status.token).unwrap_or_default();
        self.write_kubeconfig(&user, &Credentials::Token(&token), namespace)
    }

    fn write_kubeconfig(
        &self,
        user: &str,
        credentials: &Credentials<'_>,
        namespace: &str,
    ) -> Result<PathBuf, ControlPlaneError> {
        let file = format!("user-{}.kubeconfig", user.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let text = kubeconfig::render(&self.server(), &self.authority.pem(), credentials, namespace);
        Ok(self.workdir.write(&file, &text)?)
    }

    /// kubectl with all rights.
    pub fn kubectl(&self) -> Result<Kubectl, ControlPlaneError> {
        self.kubectl_as(&self.kubeconfig_path())
    }

    /// kubectl with the rights of a kubeconfig.
    pub fn kubectl_as(&self, kubeconfig: &Path) -> Result<Kubectl, ControlPlaneError> {
        // Checked here, so that a missing binary is told before anything is tried.
        self.binaries.command(Component::Kubectl)?;
        Ok(Kubectl::new(self.binaries, kubeconfig, self.workdir.path()))
    }

    /// `kubectl apply` of one or more YAML documents, in the namespace `default` where they name none.
    pub async fn apply_yaml(&self, yaml: &str) -> Result<String, ControlPlaneError> {
        Ok(self.kubectl()?.apply(yaml).await.map_err(|error| std::io::Error::other(error.to_string()))?)
    }

    /// Waits until a namespace has its service account `default`, without which no Pod can be created in it.
    pub async fn default_service_account(&self, namespace: &str) -> Result<(), ControlPlaneError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        wait::until("service account default", READY, async || match accounts.get_opt("default").await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("none".to_owned()),
            Err(error) => Err(error.to_string()),
        })
        .await?;
        Ok(())
    }

    pub(crate) fn has_service_accounts(&self) -> bool {
        self.parts().contains_key(&Component::ControllerManager)
    }

    pub(crate) fn command(&self, component: Component) -> Result<Command, ControlPlaneError> {
        Ok(self.binaries.command(component)?)
    }

    pub(crate) fn workdir(&self) -> &Workdir {
        &self.workdir
    }
}

fn accepts(port: u16) -> Result<(), String> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(drop).map_err(|error| error.to_string())
}

/// All keys, certificates and kubeconfigs that the components read.
fn write_identities(
    workdir: &Workdir,
    layout: &Layout,
    authority: &Authority,
) -> Result<(), ControlPlaneError> {
    let pair = |name: &str, identity: &Identity| -> Result<(), ControlPlaneError> {
        workdir.write(&format!("{name}.crt"), &identity.certificate)?;
        workdir.write(&format!("{name}.key"), &identity.key)?;
        Ok(())
    };
    workdir.write("ca.crt", &authority.pem())?;
    pair("apiserver", &authority.server()?)?;
    pair("kubelet-client", &authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?)?;
    let tokens = rcgen::KeyPair::generate()?;
    workdir.write("service-accounts.key", &tokens.serialize_pem())?;
    workdir.write("service-accounts.pub", &tokens.public_key_pem())?;
    for (name, user, group) in [
        ("admin", "admin", Some("system:masters")),
        ("controller-manager", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
    ] {
        let identity = authority.client(user, group)?;
        let credentials = Credentials::Certificate(&identity);
        let text = kubeconfig::render(&layout.server(), &authority.pem(), &credentials, "default");
        workdir.write(&format!("{name}.kubeconfig"), &text)?;
    }
    Ok(())
}
