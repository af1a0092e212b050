//! Starts and ends the JVM of a simulated base. The only owner of its life; everyone else sends orders.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::base::{Base, Outside};
use super::options::AfterExit;
use super::{Lives, Order, SimulatorError};
use super::{heartbeat, http};

/// Ports that a drifting base tries after its own.
const DRIFT: u16 = 99;
/// Between tries to listen again where another program has the port.
const RETRY: Duration = Duration::from_millis(50);

pub(super) struct Supervisor {
    outside: Outside,
    inbox: mpsc::Receiver<Order>,
    life: CancellationToken,
    addr: SocketAddr,
    current: watch::Sender<Option<Arc<Base>>>,
    lives: watch::Sender<Lives>,
}

type Started = (Supervisor, SocketAddr, watch::Receiver<Option<Arc<Base>>>, watch::Receiver<Lives>);

impl Supervisor {
    /// Starts the first life.
    pub(super) async fn start(
        outside: Outside,
        inbox: mpsc::Receiver<Order>,
        life: CancellationToken,
    ) -> Result<Started, SimulatorError> {
        let listener = listen(outside.options.addr, outside.options.port_drift).await?;
        let wanted = outside.options.addr;
        let addr = listener.local_addr().map_err(|source| SimulatorError::Listen { addr: wanted, source })?;
        let (current, bases) = watch::channel(None);
        let (lives, counts) = watch::channel(Lives::default());
        let mut supervisor = Self { outside, inbox, life, addr, current, lives };
        supervisor.begin(listener);
        Ok((supervisor, addr, bases, counts))
    }

    fn begin(&mut self, listener: TcpListener) {
        let base = Arc::new(Base::new(self.outside.clone(), self.addr, self.life.child_token()));
        base.tasks.spawn(accept(Arc::clone(&base), listener));
        if let Some(endpoint) = self.outside.options.heartbeat.clone() {
            base.tasks.spawn(heartbeat::beat(Arc::clone(&base), endpoint));
        }
        self.current.send_replace(Some(base));
        self.lives.send_modify(|lives| lives.starts += 1);
    }

    async fn end(&mut self) {
        if let Some(base) = self.current.send_replace(None) {
            base.life.cancel();
            base.tasks.close();
            // After this nobody holds the port any more.
            base.tasks.wait().await;
        }
    }

    async fn up(&mut self) -> Result<(), SimulatorError> {
        if self.current.borrow().is_none() {
            let listener = listen(self.addr, false).await?;
            self.begin(listener);
        }
        Ok(())
    }

    pub(super) async fn run(mut self) {
        let life = self.life.clone();
        loop {
            let order = tokio::select! {
                () = life.cancelled() => break,
                order = self.inbox.recv() => order,
            };
            match order {
                None => break,
                Some(Order::Down(done)) => {
                    self.end().await;
                    // Whoever asked may have stopped waiting.
                    let _ = done.send(());
                }
                Some(Order::Up(done)) => {
                    let _ = done.send(self.up().await);
                }
                Some(Order::Exit) => self.exit().await,
            }
        }
        self.end().await;
    }

    async fn exit(&mut self) {
        // A second module may have asked for the same.
        if self.current.borrow().is_none() {
            return;
        }
        self.end().await;
        self.lives.send_modify(|lives| lives.exits += 1);
        if let AfterExit::Restart(wait) = self.outside.options.after_exit {
            tokio::select! {
                () = self.life.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            while self.up().await.is_err() && !self.life.is_cancelled() {
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn listen(addr: SocketAddr, drift: bool) -> Result<TcpListener, SimulatorError> {
    let mut tried = addr;
    loop {
        match TcpListener::bind(tried).await {
            Ok(listener) => return Ok(listener),
            Err(_) if drift && tried.port() < addr.port().saturating_add(DRIFT) => {
                tried.set_port(tried.port() + 1);
            }
            Err(source) => return Err(SimulatorError::Listen { addr, source }),
        }
    }
}

/// Gives connections to the workers, one after the other.
async fn accept(base: Arc<Base>, listener: TcpListener) {
    let mut refusing = base.outside.faults.refusing();
    let mut listener = Some(listener);
    let mut turn = 0_usize;
    loop {
        if *refusing.borrow_and_update() {
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(base.address).await.ok();
        }
        let accepted = async {
            if let Some(listener) = &listener {
                listener.accept().await.map(Some)
            } else {
                tokio::time::sleep(RETRY).await;
                Ok(None)
            }
        };
        let accepted = tokio::select! {
            () = base.life.cancelled() => return,
            // The faults live as long as the base does.
            _ = refusing.changed() => continue,
            accepted = accepted => accepted,
        };
        let Ok(Some((stream, _))) = accepted else { continue };
        let worker = turn;
        turn = turn.wrapping_add(1);
        let connection_base = Arc::clone(&base);
        base.tasks.spawn(async move {
            let life = connection_base.life.clone();
            tokio::select! {
                () = life.cancelled() => {}
                // A peer that goes away is no concern of a base.
                _ = http::serve(connection_base, stream, worker) => {}
            }
        });
    }
}
