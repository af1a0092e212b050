//! Serving a router over HTTP or HTTPS until the shutdown, in-flight requests included.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::accept::{TcpConfigAcceptor, TcpKeepaliveConfig, TcpSocketConfig};
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

/// Longest time until the head of a request is complete, counted from the answer before it. Above the 90 s after which Go
/// closes idle connections: one that we closed first could be just about to carry a request.
const HEAD_TIMEOUT: Duration = Duration::from_mins(2);

/// A client that vanished without a word is noticed after about three times this, also while an answer waits for
/// something to tell.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Serves until `shutdown`; then accepts nothing new and gives requests in flight `drain` to finish. HTTP/1 only, which
/// kube-scheduler, kubelet and Prometheus speak: a server of both versions waits without end for the first byte.
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
    let mut server = axum_server::from_tcp(listener)?.http1_only().handle(handle);
    server.http_builder().http1().header_read_timeout(HEAD_TIMEOUT);
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let serving = async move {
        match tls {
            Some(config) => {
                let keepalive = TcpKeepaliveConfig::new().time(KEEPALIVE).interval(KEEPALIVE).retries(2);
                let tcp = TcpConfigAcceptor::new(TcpSocketConfig::new().keepalive(keepalive));
                server.acceptor(RustlsAcceptor::new(config).acceptor(tcp)).serve(service).await
            }
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

    #[tokio::test(start_paused = true)]
    async fn who_sends_no_request_is_not_waited_for_without_end() {
        let listener = bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let address = listener.local_addr().expect("address");
        let router = Router::new().route("/", get(|| async { "done" }));
        let server = tokio::spawn(serve(listener, None, router, CancellationToken::new(), Duration::ZERO));
        for start in ["", "GET", "GET / HTTP/1.1\r\nHost: x\r\nA", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let mut client = TcpStream::connect(address).await.expect("connect");
            client.write_all(start.as_bytes()).await.expect("write");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("the connection ends");
            assert_eq!(answer.ends_with("done"), start.ends_with("\r\n\r\n"), "{answer}");
        }
        server.abort();
    }

    /// BL-128: a port that another program has ends the start, with the port named.
    #[test]
    fn an_address_in_use_is_named() {
        let first = bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let address = first.local_addr().expect("address");
        let error = bind(address).expect_err("in use").to_string();
        assert!(error.contains(&address.to_string()), "{error}");
    }
}
