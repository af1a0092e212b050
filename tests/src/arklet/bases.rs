//! Simulated bases inside the Pods of the harness's kubelet: tests find each by the Pod's name.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use tokio::task::JoinHandle;

use super::options::{AfterExit, Options};
use super::{Lives, Simulator};
use crate::kubelet::{Exit, Running, Runtime, RuntimeError, Start};

/// Where an agent expects arklet.
const ARKLET_PORT: u16 = 1238;

/// Gives the set-up of the base in a Pod; its address is filled in from the Pod.
type SetUp = dyn Fn(&Pod) -> Options + Send + Sync;

/// One Pod that has had a base.
#[derive(Debug, Clone)]
pub struct SimulatedBase {
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub pod: String,
    /// UID of the Pod.
    pub uid: String,
    /// The base. It outlives the container, and is down while the container is.
    pub simulator: Arc<Simulator>,
}

/// The runtime that puts a simulated base into each base Pod. Clones share the bases.
#[derive(Clone)]
pub struct SimulatedBases {
    bases: Arc<Mutex<Vec<SimulatedBase>>>,
    set_up: Arc<SetUp>,
}

impl Default for SimulatedBases {
    fn default() -> Self {
        Self::with(|_| Options::default())
    }
}

impl fmt::Debug for SimulatedBases {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SimulatedBases").field("bases", &self.bases).finish_non_exhaustive()
    }
}

impl SimulatedBases {
    /// Bases whose set-up depends on the Pod. A port other than 0 is kept; the IP is always the Pod's.
    pub fn with(set_up: impl Fn(&Pod) -> Options + Send + Sync + 'static) -> Self {
        Self { bases: Arc::default(), set_up: Arc::new(set_up) }
    }

    fn bases(&self) -> MutexGuard<'_, Vec<SimulatedBase>> {
        self.bases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The base in a Pod; the newest Pod of that name.
    pub fn find(&self, namespace: &str, pod: &str) -> Option<Arc<Simulator>> {
        let bases = self.bases();
        let found = bases.iter().rev().find(|base| base.namespace == namespace && base.pod == pod);
        found.map(|base| Arc::clone(&base.simulator))
    }

    /// Every base so far, oldest first, those of deleted Pods among them.
    pub fn all(&self) -> Vec<SimulatedBase> {
        self.bases().clone()
    }

    /// Times that a module was to be installed, on all bases together.
    pub fn installs(&self, module: &str) -> usize {
        self.bases().iter().map(|base| base.simulator.journal().installs(module)).sum()
    }

    /// Times that a module was to be uninstalled, on all bases together.
    pub fn uninstalls(&self, module: &str) -> usize {
        self.bases().iter().map(|base| base.simulator.journal().uninstalls(module)).sum()
    }

    async fn run(&self, start: Start) -> Result<Container, RuntimeError> {
        let uid = start.pod.metadata.uid.clone().unwrap_or_default();
        let known = self.bases().iter().find(|base| base.uid == uid).map(|base| Arc::clone(&base.simulator));
        let simulator = if let Some(simulator) = known {
            simulator.boot().await?;
            simulator
        } else {
            let mut options = (self.set_up)(&start.pod);
            let port = if options.addr.port() == 0 { ARKLET_PORT } else { options.addr.port() };
            options.addr = SocketAddr::new(start.ip, port);
            // The kubelet decides when a container starts again.
            options.after_exit = AfterExit::StayDown;
            let simulator = Arc::new(Simulator::start(options).await?);
            self.bases().push(SimulatedBase {
                namespace: start.pod.metadata.namespace.clone().unwrap_or_default(),
                pod: start.pod.metadata.name.clone().unwrap_or_default(),
                uid,
                simulator: Arc::clone(&simulator),
            });
            simulator
        };
        Ok(Container::watching(simulator))
    }
}

impl Runtime for SimulatedBases {
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Box<dyn Running>, RuntimeError>> {
        Box::pin(async move { Ok(Box::new(self.run(start).await?) as Box<dyn Running>) })
    }
}

/// A base as a container.
struct Container {
    simulator: Arc<Simulator>,
    exit: Arc<Exit>,
    watch: JoinHandle<()>,
}

impl Container {
    fn watching(simulator: Arc<Simulator>) -> Self {
        let exit = Arc::new(Exit::new());
        let mut lives = simulator.lives();
        let Lives { exits: before, .. } = *lives.borrow();
        let ended = Arc::clone(&exit);
        let watch = tokio::spawn(async move {
            // An error means that the simulator is gone, and then its base is too.
            let _ = lives.wait_for(|lives| lives.exits > before).await;
            ended.end(1);
        });
        Self { simulator, exit, watch }
    }

    /// Ends the base, and only then the container: its port is free by then.
    fn end(&self, code: i32) {
        let (simulator, exit) = (Arc::clone(&self.simulator), Arc::clone(&self.exit));
        tokio::spawn(async move {
            // A simulator that is stopped already has ended its base.
            let _ = simulator.crash().await;
            exit.end(code);
        });
    }
}

impl Running for Container {
    fn port(&self) -> Option<u16> {
        Some(self.simulator.addr().port()).filter(|port| *port != ARKLET_PORT)
    }

    fn terminate(&self) {
        self.end(143);
    }

    fn kill(&self) {
        self.end(137);
    }

    fn ended(&self) -> BoxFuture<'static, i32> {
        self.exit.ended()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.watch.abort();
        self.simulator.crash_soon();
        self.exit.end(137);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::artifact::ArtifactServer;
    use crate::fetch;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(10);

    fn start(ip: [u8; 4], restarts: u32) -> Start {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("team".to_owned());
        pod.metadata.name = Some("base-0".to_owned());
        pod.metadata.uid = Some("u1".to_owned());
        Start { pod, ip: IpAddr::V4(Ipv4Addr::from(ip)), restarts }
    }

    #[tokio::test]
    async fn a_module_that_kills_its_base_ends_the_container_and_the_next_start_is_empty() {
        let bases = SimulatedBases::default();
        let artifacts = ArtifactServer::start().await.unwrap();
        let lethal =
            artifacts.module("lethal", "1").with(|jar| jar.kills_base_after(Duration::ZERO)).url().unwrap();
        let container = Runtime::start(&bases, start([127, 9, 1, 1], 0)).await.unwrap();
        let base = bases.find("team", "base-0").unwrap();
        assert_eq!((base.addr().port(), container.port()), (1238, None));
        let body = format!(r#"{{"bizName":"lethal","bizVersion":"1","bizUrl":"{lethal}"}}"#);
        // The base may be gone before its answer is out.
        let _ = fetch::post_json(&format!("{}/installBiz", base.url()), body.into(), LIMIT).await;
        assert_eq!(tokio::time::timeout(LIMIT, container.ended()).await.unwrap(), 1);
        assert!(!base.is_up());

        let _again = Runtime::start(&bases, start([127, 9, 1, 1], 1)).await.unwrap();
        assert!(base.is_up() && base.modules().is_empty());
        assert_eq!((bases.installs("lethal"), bases.all().len(), base.lives().borrow().starts), (1, 1, 2));
    }

    #[tokio::test]
    async fn a_container_that_is_told_to_end_frees_its_port_first() {
        let bases = SimulatedBases::with(|_| Options::at(([127, 0, 0, 1], 2345).into()));
        let container = Runtime::start(&bases, start([127, 9, 1, 2], 0)).await.unwrap();
        assert_eq!(container.port(), Some(2345));
        container.terminate();
        assert_eq!(tokio::time::timeout(LIMIT, container.ended()).await.unwrap(), 143);
        assert!(std::net::TcpListener::bind("127.9.1.2:2345").is_ok());
    }
}
