//! Serving a router over HTTP or HTTPS until the shutdown, in-flight requests included.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use tokio_util::sync::CancellationToken;

/// Why a server could not be started or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Accepting failed for good.
    #[error("cannot serve: {0}")]
    Serve(#[from] std::io::Error),
}

/// Binds the address now, so that a wrong one is a start-up error. Must be called inside the runtime.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).map_err(|source| ServeError::Bind { address, source })
}

/// Serves until `shutdown`; then accepts nothing new and gives requests in flight `drain` to finish.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    tls: Option<RustlsConfig>,
    router: Router,
    shutdown: CancellationToken,
    drain: Duration,
) -> Result<(), ServeError> {
    let handle = Handle::new();
    let stop = handle.clone();
    let watch_shutdown = async move {
        shutdown.cancelled().await;
        stop.graceful_shutdown(Some(drain));
        // The server below ends by itself; this arm must not end before it.
        std::future::pending::<()>().await;
    };
    let server = axum_server::from_tcp(listener)?.handle(handle);
    let service = router.into_make_service();
    let serving = async move {
        match tls {
            Some(config) => server.acceptor(RustlsAcceptor::new(config)).serve(service).await,
            None => server.serve(service).await,
        }
    };
    tokio::select! {
        result = serving => Ok(result?),
        () = watch_shutdown => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_shutdown_lets_the_request_in_flight_finish() {
        let (entered, leave) = (std::sync::Arc::new(Notify::new()), std::sync::Arc::new(Notify::new()));
        let (in_handler, may_leave) = (entered.clone(), leave.clone());
        let router = Router::new().route(
            "/slow",
            get(move || async move {
                in_handler.notify_one();
                may_leave.notified().await;
                "done"
            }),
        );
        let listener = bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let address = listener.local_addr().expect("address");
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(listener, None, router, shutdown.clone(), Duration::from_secs(20)));

        let mut client = TcpStream::connect(address).await.expect("connect");
        client.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("write");
        entered.notified().await;
        shutdown.cancel();
        leave.notify_one();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("read");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
        server.await.expect("no panic").expect("served");
        assert!(TcpStream::connect(address).await.is_err(), "nothing new is accepted");
    }

    #[test]
    fn an_address_in_use_is_named() {
        let first = bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let address = first.local_addr().expect("address");
        let error = bind(address).expect_err("in use").to_string();
        assert!(error.contains(&address.to_string()), "{error}");
    }
}
