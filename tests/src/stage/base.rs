//! What runs inside the base Pods of a stage: simulators, or a command of the user's.

use std::{
    collections::BTreeSet,
    fmt::Write,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;
use tokio::runtime::Handle;

use super::StageError;
use crate::{
    arklet::{AfterExit, BizState, Faults, Journal, Options, Simulator},
    fetch,
    kubelet::{Exit, Running, Runtime, RuntimeError, ShellCommand, Start},
};

/// Where arklet listens unless the Pod says otherwise.
const ARKLET: u16 = 1238;

/// Makes the set-up of a simulator from its Pod and its address.
pub(super) type SetUp = Box<dyn Fn(&Pod, SocketAddr) -> Options + Send + Sync>;

/// What runs in base Pods; the kubelet starts and ends it.
#[derive(Clone)]
pub(super) struct Bases(Arc<Shared>);

struct Shared {
    set_up: SetUp,
    command: Option<ShellCommand>,
    known: Mutex<Vec<Arc<Base>>>,
}

/// The inside of one base Pod, over all restarts of its container.
pub struct Base {
    pod: String,
    uid: String,
    address: SocketAddr,
    simulator: Option<Simulator>,
}

impl Bases {
    /// Simulators, or the command that `STOWAGE_BASE_COMMAND` names.
    pub(super) fn new(set_up: SetUp) -> Result<Self, StageError> {
        let command = ShellCommand::from_environment()?;
        Ok(Self(Arc::new(Shared { set_up, command, known: Mutex::default() })))
    }

    /// Whether no command is named.
    pub(super) fn is_simulated(&self) -> bool {
        self.0.command.is_none()
    }

    /// Where the output of commands lies, one file for each start.
    pub(super) fn logs(&self) -> Option<&Path> {
        self.0.command.as_ref().map(ShellCommand::logs)
    }

    fn known(&self) -> MutexGuard<'_, Vec<Arc<Base>>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that were ever started, oldest first.
    pub(super) fn all(&self) -> Vec<Arc<Base>> {
        self.known().clone()
    }

    /// The youngest of a Pod's name.
    pub(super) fn find(&self, pod: &str) -> Result<Arc<Base>, StageError> {
        let known = self.known();
        known.iter().rev().find(|base| base.pod == pod).cloned().ok_or_else(|| StageError::NoSuchBase {
            name: pod.to_owned(),
            known: known.iter().map(|base| base.pod.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    fn remember(&self, base: Base) -> Arc<Base> {
        let base = Arc::new(base);
        let mut known = self.known();
        known.retain(|other| other.uid != base.uid);
        known.push(Arc::clone(&base));
        base
    }

    async fn simulate(&self, start: Start) -> Result<Box<dyn Running>, RuntimeError> {
        let (pod, uid) = (start.pod.name_any(), start.pod.uid().unwrap_or_default());
        let before = self.known().iter().find(|base| base.uid == uid).cloned();
        let base = if let Some(base) = before {
            base
        } else {
            let address = SocketAddr::new(start.ip, ARKLET);
            // A base that ends by itself is started again by the kubelet, as a container is.
            let options = (self.0.set_up)(&start.pod, address);
            let simulator = Simulator::start(Options { after_exit: AfterExit::StayDown, ..options }).await?;
            self.remember(Base { pod, uid, address, simulator: Some(simulator) })
        };
        let Some(simulator) = &base.simulator else { return Err("it was a command before".into()) };
        simulator.boot().await?;
        let life = Arc::new(Life { exit: Exit::new(), ended: AtomicBool::new(false) });
        let (mut lives, watched) = (simulator.lives(), Arc::clone(&life));
        let exits = lives.borrow_and_update().exits;
        tokio::spawn(async move {
            // An error means that the simulator is gone, and the container with it.
            if lives.wait_for(|lives| lives.exits > exits).await.is_ok() {
                watched.ended.store(true, Ordering::SeqCst);
                watched.exit.end(1);
            }
        });
        Ok(Box::new(Container { base, life, runtime: Handle::current() }))
    }
}

impl Runtime for Bases {
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Box<dyn Running>, RuntimeError>> {
        Box::pin(async move {
            let Some(command) = &self.0.command else { return self.simulate(start).await };
            let (pod, uid) = (start.pod.name_any(), start.pod.uid().unwrap_or_default());
            let ip = start.ip;
            let running = command.start(start).await?;
            let address = SocketAddr::new(ip, running.port().unwrap_or(ARKLET));
            self.remember(Base { pod, uid, address, simulator: None });
            Ok(running)
        })
    }
}

impl Base {
    /// The base Pod's name.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// The base Pod's UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The base Pod's address.
    pub fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// Where its arklet listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The simulator.
    pub fn simulator(&self) -> Result<&Simulator, StageError> {
        self.simulator.as_ref().ok_or_else(|| StageError::NotSimulated(self.pod.clone()))
    }

    /// What the base was asked, over all its lives.
    pub fn journal(&self) -> Result<&Journal, StageError> {
        Ok(self.simulator()?.journal())
    }

    /// What goes wrong.
    pub fn faults(&self) -> Result<&Faults, StageError> {
        Ok(self.simulator()?.faults())
    }

    /// Activated modules on it, as `name:version`; `None` when it is down. A command is asked by `queryAllBiz`.
    pub async fn modules(&self) -> Option<BTreeSet<String>> {
        if let Some(simulator) = &self.simulator {
            let modules = simulator.modules().into_iter();
            let active = modules.filter(|module| module.state == BizState::Activated);
            let names = active.map(|module| format!("{}:{}", module.name, module.version)).collect();
            return simulator.is_up().then_some(names);
        }
        let url = format!("http://{}/queryAllBiz", self.address);
        let (_, body) = fetch::post_json(&url, "{}".into(), Duration::from_secs(5)).await.ok()?;
        let reply: Value = serde_json::from_str(&body).ok()?;
        let active = reply.get("data")?.as_array()?.iter().filter(|biz| {
            biz.get("bizState")
                .and_then(Value::as_str)
                .is_some_and(|state| state.eq_ignore_ascii_case("activated"))
        });
        active
            .map(|biz| {
                Some(format!("{}:{}", biz.get("bizName")?.as_str()?, biz.get("bizVersion")?.as_str()?))
            })
            .collect()
    }

    /// For failure reports: what it holds, the operations it was asked, and what they came to.
    pub(super) fn story(&self) -> String {
        let Some(simulator) = &self.simulator else { return format!("{} at {}", self.pod, self.address) };
        let state = if simulator.is_up() { "up" } else { "down" };
        let modules: Vec<String> = simulator
            .modules()
            .iter()
            .map(|module| format!("{}:{} {:?}", module.name, module.version, module.state))
            .collect();
        let queries = simulator.journal().count("queryAllBiz");
        let mut story = format!("{} ({state}, {queries} queries) holds [{}]", self.pod, modules.join(", "));
        for entry in simulator.journal().operations() {
            let (name, version) = (entry.module().unwrap_or("-"), entry.version().unwrap_or("-"));
            let answer = entry.answer.as_ref().map_or("not answered".to_owned(), |answer| {
                let (inner, message) = (answer.inner.as_deref(), answer.message.as_deref());
                format!("{} {} {}", answer.code, inner.unwrap_or_default(), message.unwrap_or_default())
            });
            // A String takes everything.
            write!(story, "\n    {} {} {name}:{version} -> {answer}", entry.at, entry.command).ok();
        }
        story
    }
}

/// One life of a simulated container.
struct Life {
    exit: Exit,
    ended: AtomicBool,
}

/// What the kubelet holds of it.
struct Container {
    base: Arc<Base>,
    life: Arc<Life>,
    runtime: Handle,
}

impl Container {
    fn end(&self, code: i32) {
        if self.life.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let (base, life) = (Arc::clone(&self.base), Arc::clone(&self.life));
        self.runtime.spawn(async move {
            if let Some(simulator) = &base.simulator {
                // An error means that it is down for good already.
                simulator.crash().await.ok();
            }
            life.exit.end(code);
        });
    }
}

impl Running for Container {
    fn terminate(&self) {
        self.end(143);
    }

    fn kill(&self) {
        self.end(137);
    }

    fn ended(&self) -> BoxFuture<'static, i32> {
        self.life.exit.ended()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end(137);
    }
}
