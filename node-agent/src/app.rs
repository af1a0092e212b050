//! The wiring: from flags to running tasks.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use policy::Policy;
use prometheus_client::registry::Registry;
use service::admin::{Admin, AdminFlags};
use service::kubernetes::{Connection, KubernetesError, client, config};
use service::logs::LogsError;
use service::policy_file::PolicyFileError;
use service::readiness::Readiness;
use service::serve::{ServeError, bind, serve};
use service::server_clock::ServerClock;
use service::tasks::{ShutdownFlags, Tasks, TasksError};
use service::watching::WatchFlags;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::args::{Args, BaseFlags, Capacity, Command, ModuleFlags, default_identity};
use crate::audit::{AuditError, AuditFlags, AuditLog};
use crate::base::{ActorContext, Downloads, EventSink};
use crate::discovery::Selector;
use crate::event::recorder;
use crate::fleet::{Fleet, FleetContext, FleetHandle, Input, Started, WatchBoard, mailboxes};
use crate::journal::Journal;
use crate::kubelet::{Endpoint, KubeletError, Settings};
use crate::lease::{Leader, LeaderHandle, Term};
use crate::metrics::Metrics;
use crate::policies::policies;
use crate::preflight::{LookError, preflight};
use crate::retire::{RetireError, retire};
use crate::sidecar::{OwnBase, PodName, SidecarError};
use crate::vnode::{Frame, ServedEndpoint};
use crate::watches::Watches;
use crate::{arklet, base, failure};

/// How long requests to the admin server may go on after the end was asked for.
const ADMIN_DRAIN: Duration = Duration::from_secs(1);

/// Why the agent did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// No selector of bases.
    #[error("--base-selector is missing")]
    NoSelector,
    /// This agent is no base's sidecar.
    #[error(transparent)]
    Sidecar(#[from] SidecarError),
    /// A cluster could not be looked at.
    #[error(transparent)]
    Look(#[from] LookError),
    /// Not everything was removed.
    #[error(transparent)]
    Retire(#[from] RetireError),
    /// Standard output is closed.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] std::io::Error),
    /// Logs could not be set up.
    #[error(transparent)]
    Logs(#[from] LogsError),
    /// The base cluster cannot be reached.
    #[error("base cluster: {0}")]
    BaseCluster(#[source] KubernetesError),
    /// The module cluster cannot be reached.
    #[error("module cluster: {0}")]
    ModuleCluster(#[source] KubernetesError),
    /// The policy file is wrong.
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The kubelet endpoint cannot be served.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// The admin server cannot listen.
    #[error("admin server: {0}")]
    Admin(#[source] ServeError),
    /// A task ended.
    #[error(transparent)]
    Tasks(#[from] TasksError),
}

/// Runs the agent until a signal.
///
/// # Errors
/// When it cannot start, or a task that must run ended.
pub async fn run(args: Args) -> Result<(), AppError> {
    let Args {
        bases,
        modules,
        base_selector,
        base_namespaces,
        base_pod,
        base_uid,
        base_cluster_id,
        policy: policy_flags,
        lease_namespace,
        lease_name,
        identity,
        default_capacity: Capacity(default_capacity),
        copy_topology,
        taint_value,
        observe,
        watches: WatchFlags { relist_interval },
        audit: audit_flags,
        kubelet,
        admin: AdminFlags { admin_address },
        logs,
        shutdown: ShutdownFlags { shutdown_limit },
    } = args;
    let (kubelet, log_level) = (kubelet.into_settings()?, service::logs::init(&logs)?);
    let identity = identity.unwrap_or_else(default_identity);
    let (Cluster { client: module_client, clock, url }, base_cluster) = clients(modules, bases).await?;
    let (mut tasks, readiness) = (Tasks::new(), Readiness::new());
    let served = match base_pod {
        Some(pod) => {
            Served::one(&mut tasks, &base_cluster.client, &pod, base_uid.as_deref(), &base_cluster_id).await?
        }
        None => Some(Served::All(base_selector.ok_or(AppError::NoSelector)?, base_namespaces)),
    };
    let Some(served) = served else { return Ok(()) };
    let (lease_namespace, lease_name) = served.lease(lease_namespace, lease_name);
    // A port in use is found before anything else begins.
    let listener = bind(admin_address).map_err(AppError::Admin)?;

    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::new(&mut registry));
    tracing::info!(identity, cluster = base_cluster_id, %served, observe, "starting");
    let events = events(&mut tasks, &module_client, (&identity, &base_cluster_id), observe, &metrics);

    let lease = lease_reference(&lease_namespace, &lease_name);
    let policies = policies(&mut tasks, policy_flags, &mut registry, &events, lease, served.own().is_some())?;
    let leases = (!observe).then(|| Api::namespaced(module_client.clone(), &lease_namespace));
    let held = (lease_name.as_str(), served.own().map(OwnBase::owner));
    let leader = leader(&mut tasks, leases, held, (&identity, &base_cluster_id), &metrics);

    let audit = audit_log(&mut tasks, &audit_flags, &mut registry, observe)?;
    let (journal, shown) = journal(&mut tasks, kubelet, &module_client, &leader, &mut registry)?;
    let (board, (fleet, fleet_mailboxes)) = (WatchBoard::default(), mailboxes());
    let watches = Watches {
        readiness: readiness.clone(),
        board: board.clone(),
        metrics: Arc::clone(&metrics),
        fleet: fleet.clone(),
        relist: relist_interval,
    };
    let clients = (&module_client, &base_cluster.client);
    let base_watches = served.watch(&mut tasks, &watches, clients, &base_cluster_id);
    let actors = Actors {
        client: module_client.clone(),
        pod_calls: Arc::new(Semaphore::new(base::POD_CALLS)),
        arklet: arklet::Client::new(),
        policy: policies.policy,
        paused: watches.paused(&mut tasks, &module_client),
        publish: fleet.publish.clone(),
        endpoints: Arc::new(watches.endpoints(&mut tasks, &module_client)),
        events: Arc::clone(&events),
        metrics: Arc::clone(&metrics),
        audit,
        journal: journal.clone(),
        downloads: policies.downloads,
        failures: Arc::new(failure::Memory::new()),
        observe,
        clock,
    };
    let context = FleetContext {
        cluster: base_cluster_id,
        own: served.own().cloned(),
        shutdown: tasks.shutdown(),
        identity,
        frame: Arc::new(Frame { taint_value, copy_topology, default_capacity, kubelet: shown }),
        observe,
        base_watches,
        base_client: base_cluster.client,
        base_clock: base_cluster.clock,
        one_cluster: base_cluster.url == url,
        module_client,
        lease: (lease_namespace, lease_name),
        rules: policies.rules,
        paused: actors.paused.clone(),
        leader,
        start_actor: Arc::new(move |spec, term| actors.start(spec, term)),
        events,
        journal,
        metrics,
    };
    tasks.critical("fleet", Fleet::new(context).run(fleet_mailboxes, tasks.shutdown()));

    administer(&mut tasks, listener, Admin::new(readiness, registry, log_level), board, fleet);
    Ok(tasks.run(shutdown_limit).await?)
}

fn administer(tasks: &mut Tasks, listener: TcpListener, admin: Admin, board: WatchBoard, fleet: FleetHandle) {
    let diagnosed = admin
        .diag("watches", move || std::future::ready(board.diag()))
        .diag("fleet", move || ask(fleet.clone()));
    let served = serve(listener, None, diagnosed.router(), tasks.shutdown(), ADMIN_DRAIN);
    tasks.companion("admin server", served);
}

/// Does what the command says, and gives back whether it is content.
///
/// # Errors
/// When a cluster cannot be reached or asked, or something was not removed.
pub async fn command(command: Command) -> Result<bool, AppError> {
    match command {
        Command::Preflight(flags) => {
            let (modules, bases) = clients(flags.modules.clone(), flags.bases.clone()).await?;
            let findings = preflight(&modules.client, &bases.client, &flags).await?;
            std::io::stdout().lock().write_all(findings.show(flags.output).as_bytes())?;
            Ok(!findings.has_problem())
        }
        Command::Retire(flags) => {
            let (modules, _) = clients(flags.modules.clone(), BaseFlags::default()).await?;
            // What is said is of no use to nobody: a closed pipe does not stop it half-way.
            retire(modules.client, &flags, &mut |line| drop(writeln!(std::io::stdout(), "{line}"))).await?;
            Ok(true)
        }
    }
}

/// The way to a cluster, and its time.
struct Cluster {
    url: http::Uri,
    client: kube::Client,
    clock: ServerClock,
}

impl Cluster {
    async fn reached_by(connection: &Connection) -> Result<Self, KubernetesError> {
        let config = config(connection).await?;
        let (url, clock) = (config.cluster_url.clone(), ServerClock::default());
        Ok(Self { url, client: clock.listening(client(config)?), clock })
    }
}

/// The ways to the module cluster and to the base cluster, which is the same unless flags say otherwise.
async fn clients(modules: ModuleFlags, bases: BaseFlags) -> Result<(Cluster, Cluster), AppError> {
    let user_agent = concat!("stowage-agent/", env!("CARGO_PKG_VERSION")).to_owned();
    let ModuleFlags { module_kubeconfig, module_context } = modules;
    let modules = Connection { kubeconfig: module_kubeconfig, context: module_context, user_agent };
    let BaseFlags { base_kubeconfig, base_context } = bases;
    let bases = match (base_kubeconfig, base_context) {
        (None, context) => {
            Connection { context: context.or_else(|| modules.context.clone()), ..modules.clone() }
        }
        (kubeconfig, context) => Connection { kubeconfig, context, user_agent: modules.user_agent.clone() },
    };
    let modules = Cluster::reached_by(&modules).await.map_err(AppError::ModuleCluster)?;
    let bases = Cluster::reached_by(&bases).await.map_err(AppError::BaseCluster)?;
    Ok((modules, bases))
}

async fn ask(fleet: FleetHandle) -> serde_json::Value {
    let (answer, answered) = oneshot::channel();
    if fleet.inbox.send(Input::Diag(answer)).await.is_err() {
        return serde_json::Value::Null;
    }
    answered.await.unwrap_or_default()
}

fn events(
    tasks: &mut Tasks,
    client: &kube::Client,
    (identity, cluster): (&str, &str),
    observe: bool,
    metrics: &Arc<Metrics>,
) -> Arc<dyn EventSink> {
    let (events, task) = recorder(
        client.clone(),
        identity.to_owned(),
        cluster.to_owned(),
        observe,
        Arc::clone(metrics),
        tasks.shutdown(),
    );
    tasks.companion("events", task);
    Arc::new(events)
}

/// Who only observes does nothing that is to be told.
fn audit_log(
    tasks: &mut Tasks,
    flags: &AuditFlags,
    registry: &mut Registry,
    observe: bool,
) -> Result<AuditLog, AuditError> {
    Ok(match AuditLog::open(flags, registry)? {
        Some((log, writer)) if !observe => {
            tasks.critical("audit log", writer.run(tasks.shutdown()));
            log
        }
        _ => AuditLog::default(),
    })
}

/// Which bases this agent looks after.
enum Served {
    /// The one in whose Pod it runs.
    One(OwnBase),
    /// All that the selector matches, in these namespaces or in all.
    All(Selector, Vec<String>),
}

impl Served {
    /// The base in whose Pod this agent runs; `None` when a signal ended the search.
    async fn one(
        tasks: &mut Tasks,
        client: &kube::Client,
        pod: &PodName,
        uid: Option<&str>,
        cluster: &str,
    ) -> Result<Option<Self>, AppError> {
        let found = tasks.unless_signalled(OwnBase::look_up(client, pod, uid, cluster)).await?;
        Ok(found.transpose()?.map(Self::One))
    }

    fn own(&self) -> Option<&OwnBase> {
        match self {
            Self::One(own) => Some(own),
            Self::All(..) => None,
        }
    }

    /// Namespace and name of the Lease of the agent that acts. Agents of two Pods that had the name of one base one after
    /// the other exclude each other.
    fn lease(&self, namespace: String, name: String) -> (String, String) {
        self.own().map_or((namespace, name), |own| (own.namespace.clone(), own.node.clone()))
    }

    /// Starts the watches of bases, their VNodes and VPods, and says how many there are of base Pods.
    fn watch(
        &self,
        tasks: &mut Tasks,
        watches: &Watches,
        (modules, bases): (&kube::Client, &kube::Client),
        cluster: &str,
    ) -> usize {
        match self {
            Self::One(own) => {
                watches.own(tasks, modules, cluster, own);
                let farewell = farewell(own.clone(), bases.clone(), watches.fleet.clone(), tasks.shutdown());
                tasks.farewell(farewell);
                1
            }
            Self::All(selector, namespaces) => {
                watches.all(tasks, modules, cluster);
                watches.base_pods(tasks, bases, selector, namespaces)
            }
        }
    }
}

impl std::fmt::Display for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::One(own) => write!(f, "the base {}/{}", own.namespace, own.pod),
            Self::All(selector, _) => write!(f, "bases {selector}"),
        }
    }
}

/// When a base ends for good, its agent removes what stands for it before it ends too. A fleet that stopped ends the
/// wait with the process.
async fn farewell(own: OwnBase, client: kube::Client, fleet: FleetHandle, shutdown: CancellationToken) {
    if own.is_ending(&client).await && fleet.inbox.send(Input::BaseEnded).await.is_ok() {
        shutdown.cancelled().await;
    }
}

/// Without Leases it leads always, and only observes.
fn leader(
    tasks: &mut Tasks,
    leases: Option<Api<Lease>>,
    (name, owner): (&str, Option<OwnerReference>),
    (identity, cluster): (&str, &str),
    metrics: &Arc<Metrics>,
) -> LeaderHandle {
    let Some(api) = leases else { return observer(tasks) };
    let (leader, handle) =
        Leader::new(api, name.to_owned(), identity.to_owned(), cluster.to_owned(), Arc::clone(metrics));
    tasks.critical("leader", leader.owned_by(owner).run(tasks.shutdown()));
    handle
}

/// Kept only where the kubelet endpoint shows it.
fn journal(
    tasks: &mut Tasks,
    kubelet: Option<Settings>,
    client: &kube::Client,
    leader: &LeaderHandle,
    registry: &mut Registry,
) -> Result<(Journal, Option<ServedEndpoint>), KubeletError> {
    let Some(settings) = kubelet else { return Ok((Journal::default(), None)) };
    let shown = settings.shown;
    let journal = Journal::new(registry);
    let endpoint = Endpoint::open(settings, registry)?;
    endpoint.start(tasks, client, journal.clone(), leader.term.clone(), registry);
    Ok((journal, Some(shown)))
}

/// `--observe` has no Lease: its term lasts as long as the process.
fn observer(tasks: &mut Tasks) -> LeaderHandle {
    let (handle, terms, releases) = LeaderHandle::without_lease();
    let shutdown = tasks.shutdown();
    tasks.critical("observer", async move {
        shutdown.cancelled().await;
        drop(releases);
        if let Some(term) = terms.send_replace(None) {
            term.token().cancel();
        }
        Ok::<(), std::convert::Infallible>(())
    });
    handle
}

/// What every actor is given. One per process.
struct Actors {
    client: kube::Client,
    pod_calls: Arc<Semaphore>,
    arklet: arklet::Client,
    policy: watch::Receiver<Arc<Policy>>,
    paused: watch::Receiver<Arc<std::collections::BTreeSet<String>>>,
    publish: tokio::sync::mpsc::UnboundedSender<base::Publish>,
    endpoints: Arc<dyn base::EndpointLookup>,
    events: Arc<dyn EventSink>,
    metrics: Arc<Metrics>,
    audit: AuditLog,
    journal: Journal,
    downloads: Arc<Downloads>,
    failures: Arc<failure::Memory>,
    observe: bool,
    clock: ServerClock,
}

impl Actors {
    fn start(&self, spec: Arc<crate::discovery::BaseSpec>, term: Term) -> Started {
        let context = ActorContext {
            spec,
            client: self.client.clone(),
            pod_calls: Arc::clone(&self.pod_calls),
            arklet: self.arklet.clone(),
            policy: self.policy.clone(),
            paused: self.paused.clone(),
            publish: self.publish.clone(),
            endpoints: Arc::clone(&self.endpoints),
            events: Arc::clone(&self.events),
            meter: self.metrics.clone(),
            audit: self.audit.clone(),
            journal: self.journal.clone(),
            downloads: Arc::clone(&self.downloads),
            failures: Arc::clone(&self.failures),
            observe: self.observe,
            clock: self.clock.clone(),
            term,
        };
        let mailbox = base::spawn(context);
        let closed = mailbox.clone();
        Started { mailbox, done: Box::pin(async move { closed.closed().await }) }
    }
}

fn lease_reference(namespace: &str, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}
