//! Calls arklet: one connection per call, the reply read to its end, everything bounded.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;

use super::wire::{Biz, Install, Jvm, Named, Reply};

/// A reply is never larger: a stack of Java is tens of KB, a long list of modules some hundreds.
const REPLY_LIMIT: usize = 8 << 20;

/// Where a base answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the base.
    pub ip: IpAddr,
    /// Port of arklet.
    pub port: u16,
}

impl Endpoint {
    fn address(self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

/// How long calls may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of `queryAllBiz` and `health`.
    pub query: Duration,
    /// Of `installBiz` and `switchBiz`.
    pub operation: Duration,
    /// Of `uninstallBiz`.
    pub uninstall: Duration,
}

/// Why there is no reply to judge. Texts carry no URL and no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection: the request was certainly not carried out.
    #[error("cannot connect to arklet: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection broke; the request may have been carried out.
    #[error("arklet's connection broke: {0}")]
    Broken(#[source] hyper::Error),
    /// No (whole) reply in time; the request may still be carried out.
    #[error("arklet did not answer in {}", humantime::format_duration(*.0))]
    Timeout(Duration),
    /// The reply is larger than the limit or its transfer failed.
    #[error("arklet's reply cannot be read: {0}")]
    Body(String),
    /// The reply is no JSON envelope.
    #[error("arklet's reply (HTTP {status}) is not understood: {source}")]
    Parse {
        /// HTTP status of the reply.
        status: u16,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The right to act ended while the connection was made; nothing was sent.
    #[error("this agent may not act any more; nothing was sent")]
    Withheld,
    /// The request is no JSON; nothing was sent.
    #[error("the request cannot be written as JSON: {0}")]
    Encode(#[source] serde_json::Error),
    /// `queryAllBiz` was answered, but not with a list of modules.
    #[error("arklet's list of modules is not understood (code {code:?}): {message}")]
    NoList {
        /// Outer code.
        code: String,
        /// Message, cut.
        message: String,
    },
}

impl CallError {
    /// Whether the request certainly never reached arklet.
    pub fn unsent(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Withheld | Self::Encode(_))
    }
}

/// Whether the caller may still act; asked when the connection stands, right before the request goes out.
pub type Guard<'a> = &'a (dyn Fn() -> bool + Send + Sync);

/// Whoever only asks may always do so.
const READS: Guard<'static> = &|| true;

/// Calls arklet of any base. Keeps no connection and no state.
#[derive(Debug, Clone, Default)]
pub struct Client;

impl Client {
    /// A client.
    pub fn new() -> Self {
        Self
    }

    /// Lists the modules on the base, the base application itself excluded.
    pub async fn query_all(&self, base: Endpoint, limits: Limits) -> Result<Vec<Biz>, CallError> {
        let reply = call(base, "queryAllBiz", &Empty {}, limits.query, READS).await?;
        reply.modules().ok_or_else(|| CallError::NoList {
            code: reply.code.chars().take(40).collect(),
            message: super::root_cause::shortened(&reply.message),
        })
    }

    /// Reads the figures of the JVM. Calls of one base must not overlap (arklet mixes up their answers).
    pub async fn jvm(&self, base: Endpoint, limits: Limits) -> Result<Option<Jvm>, CallError> {
        let ask = Health { r#type: "system", metrics: ["jvm"] };
        Ok(Jvm::read(&call(base, "health", &ask, limits.query, READS).await?))
    }

    /// Installs a module and waits until its main has returned or failed.
    pub async fn install(
        &self,
        base: Endpoint,
        ask: &Install,
        limits: Limits,
        may: Guard<'_>,
    ) -> Result<Reply, CallError> {
        call(base, "installBiz", ask, limits.operation, may).await
    }

    /// Uninstalls exactly this version.
    pub async fn uninstall(
        &self,
        base: Endpoint,
        name: &str,
        version: &str,
        limits: Limits,
        may: Guard<'_>,
    ) -> Result<Reply, CallError> {
        call(base, "uninstallBiz", &Named::of(name, version), limits.uninstall, may).await
    }

    /// Makes a deactivated version the active one.
    pub async fn switch(
        &self,
        base: Endpoint,
        name: &str,
        version: &str,
        limits: Limits,
        may: Guard<'_>,
    ) -> Result<Reply, CallError> {
        call(base, "switchBiz", &Named::of(name, version), limits.operation, may).await
    }
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct Health {
    r#type: &'static str,
    metrics: [&'static str; 1],
}

async fn call(
    base: Endpoint,
    command: &str,
    body: &impl Serialize,
    limit: Duration,
    may: Guard<'_>,
) -> Result<Reply, CallError> {
    let body = serde_json::to_vec(body).map_err(CallError::Encode)?;
    tokio::time::timeout(limit, exchange(base, command, body, may))
        .await
        .map_err(|_| CallError::Timeout(limit))?
}

async fn exchange(base: Endpoint, command: &str, body: Vec<u8>, may: Guard<'_>) -> Result<Reply, CallError> {
    let address = base.address();
    let stream = TcpStream::connect(address).await.map_err(CallError::Connect)?;
    // Small requests in one segment; without this the last bytes may wait for an acknowledgement.
    stream.set_nodelay(true).map_err(CallError::Connect)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(CallError::Broken)?;
    let request = http::Request::post(format!("/{command}"))
        .header(HOST, address.to_string())
        .header(CONTENT_TYPE, "application/json")
        .header(http::header::CONNECTION, "close")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| CallError::Body(error.to_string()))?;
    // A process that was stopped meanwhile goes on here, long after its right to act has passed to another.
    if !may() {
        return Err(CallError::Withheld);
    }
    let answered = async {
        let response = sender.send_request(request).await.map_err(CallError::Broken)?;
        let status = response.status().as_u16();
        let bytes = Limited::new(response.into_body(), REPLY_LIMIT)
            .collect()
            .await
            .map_err(|error| CallError::Body(error.to_string()))?
            .to_bytes();
        serde_json::from_slice(&bytes).map_err(|source| CallError::Parse { status, source })
    };
    tokio::pin!(answered);
    tokio::pin!(connection);
    // The connection is driven here and dies with the call: a call that is dropped closes it.
    tokio::select! {
        reply = &mut answered => reply,
        ended = &mut connection => match ended {
            Ok(()) => answered.await,
            Err(error) => match answered.await {
                Ok(reply) => Ok(reply),
                Err(CallError::Broken(_)) => Err(CallError::Broken(error)),
                Err(other) => Err(other),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LIMITS: Limits = Limits {
        query: Duration::from_secs(5),
        operation: Duration::from_secs(5),
        uninstall: Duration::from_secs(5),
    };

    /// Answers one connection with these bytes, then closes it; gives back what was asked.
    async fn serve(answer: &'static [u8]) -> io::Result<(Endpoint, tokio::task::JoinHandle<String>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                let mut chunk = [0; 1024];
                let read = stream.read(&mut chunk).await.unwrap();
                request.extend_from_slice(&chunk[..read]);
                if read == 0 {
                    break;
                }
            }
            stream.write_all(answer).await.unwrap();
            String::from_utf8(request).unwrap()
        });
        Ok((Endpoint { ip: address.ip(), port: address.port() }, asked))
    }

    #[tokio::test]
    async fn reads_a_reply_without_headers_to_its_end() {
        let (base, asked) = serve(
            b"HTTP/1.1 200 OK\r\n\r\n{\"code\":\"SUCCESS\",\"data\":[{\"bizName\":\"shop\",\"bizVersion\":\"1\",\"bizState\":\"activated\"}]}",
        )
        .await
        .unwrap();
        let list = Client::new().query_all(base, LIMITS).await.unwrap();
        assert_eq!(list.len(), 1);
        let asked = asked.await.unwrap();
        assert!(asked.starts_with("POST /queryAllBiz HTTP/1.1\r\n"), "{asked}");
        assert!(asked.ends_with("{}"), "{asked}");
    }

    #[tokio::test]
    async fn asks_for_nothing_but_the_jvm() {
        let (base, asked) =
            serve(b"HTTP/1.1 200 OK\r\n\r\n{\"code\":\"SUCCESS\",\"data\":{\"healthData\":{}}}")
                .await
                .unwrap();
        assert_eq!(Client::new().jvm(base, LIMITS).await.unwrap(), None);
        assert!(asked.await.unwrap().ends_with(r#"{"type":"system","metrics":["jvm"]}"#));
    }

    #[tokio::test]
    async fn half_a_reply_is_an_error_and_no_empty_base() {
        let (base, _asked) = serve(b"HTTP/1.1 200 OK\r\n\r\n{\"code\":\"SUCCESS\",\"data\":[").await.unwrap();
        assert!(matches!(
            Client::new().query_all(base, LIMITS).await,
            Err(CallError::Parse { status: 200, .. })
        ));
    }

    #[tokio::test]
    async fn a_reply_in_plain_text_names_its_status() {
        let (base, _asked) =
            serve(b"HTTP/1.1 500 Oops\r\n\r\nPOST http request only supported by arklet").await.unwrap();
        assert!(matches!(
            Client::new().query_all(base, LIMITS).await,
            Err(CallError::Parse { status: 500, .. })
        ));
    }

    #[tokio::test]
    async fn a_closed_connection_is_doubtful_and_a_refused_one_is_not() {
        let (base, _asked) = serve(b"").await.unwrap();
        let error = Client::new().uninstall(base, "shop", "1", LIMITS, READS).await.unwrap_err();
        assert!(!error.unsent(), "{error}");
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let base = Endpoint { ip: closed.ip(), port: closed.port() };
        let error = Client::new().uninstall(base, "shop", "1", LIMITS, READS).await.unwrap_err();
        assert!(error.unsent(), "{error}");
    }

    #[tokio::test]
    async fn nothing_is_sent_once_the_right_to_act_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let base = Endpoint { ip: address.ip(), port: address.port() };
        let error = Client::new().uninstall(base, "shop", "1", LIMITS, &|| false).await.unwrap_err();
        assert!(matches!(error, CallError::Withheld) && error.unsent(), "{error}");
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut sent = Vec::new();
        stream.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, b"", "not a byte");
    }

    #[tokio::test]
    async fn silence_ends_at_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let base = Endpoint { ip: address.ip(), port: address.port() };
        let limits = Limits { query: Duration::from_millis(30), ..LIMITS };
        assert!(matches!(Client::new().query_all(base, limits).await, Err(CallError::Timeout(_))));
        let limits = Limits { uninstall: Duration::from_millis(30), ..LIMITS };
        let hung = Client::new().uninstall(base, "shop", "1", limits, READS).await;
        assert!(matches!(hung, Err(CallError::Timeout(limit)) if limit == limits.uninstall));
    }
}
