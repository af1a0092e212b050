//! One question: connect, or send a GET and look at its status.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, USER_AGENT};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::spec::{Get, Target};

/// Asks once. The error says why it was no success, short and free of credentials.
pub async fn once(ip: IpAddr, target: &Target, limit: Duration) -> Result<(), String> {
    let asked = async {
        match target {
            Target::Tcp(port) => connect(ip, *port).await.map(drop),
            Target::Http(get) => {
                let stream = connect(ip, get.port).await?;
                if get.tls {
                    http(secured(ip, stream).await?, ip, get).await
                } else {
                    http(stream, ip, get).await
                }
            }
        }
    };
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
}

async fn connect(ip: IpAddr, port: u16) -> Result<TcpStream, String> {
    TcpStream::connect(SocketAddr::new(ip, port))
        .await
        .map_err(|error| format!("port {port}: {}", error.kind()))
}

async fn secured(
    ip: IpAddr,
    stream: TcpStream,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin, String> {
    let config = CONFIG.clone().ok_or_else(|| "TLS cannot be set up".to_owned())?;
    // An address is no server name: none is sent, as a kubelet sends none.
    let name = ServerName::IpAddress(ip.into());
    TlsConnector::from(config).connect(name, stream).await.map_err(|_| "no TLS".to_owned())
}

async fn http<S>(stream: S, ip: IpAddr, get: &Get) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|_| "no HTTP".to_owned())?;
    let mut request =
        http::Request::get(&get.path).header(USER_AGENT, "kube-probe/stowage").header(CONNECTION, "close");
    if !get.headers.iter().any(|(name, _)| name == HOST) {
        request = request.header(HOST, SocketAddr::new(ip, get.port).to_string());
    }
    for (name, value) in &get.headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|_| "the path is no URL".to_owned())?;
    let answered = sender.send_request(request);
    tokio::pin!(answered);
    tokio::pin!(connection);
    let response = tokio::select! {
        response = &mut answered => response,
        _ = &mut connection => answered.await,
    };
    let status = response.map_err(|_| "the connection broke".to_owned())?.status();
    if (200..400).contains(&status.as_u16()) { Ok(()) } else { Err(format!("HTTP {}", status.as_u16())) }
}

/// `None` where the provider has no usable protocol, which does not happen with the one in use.
static CONFIG: LazyLock<Option<Arc<ClientConfig>>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    Some(Arc::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()))
});

/// As a kubelet: a probe asks whether a module answers, not who it is. Nothing secret is sent.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Reads one request and answers it. Gives back the request's head.
    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, status: &str) -> String {
        let mut request = vec![0; 1024];
        let read = stream.read(&mut request).await.unwrap();
        let text = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        String::from_utf8(request[..read].to_vec()).unwrap()
    }

    fn target(port: u16, tls: bool) -> Target {
        Target::Http(Get { tls, port, path: "/health".to_owned(), headers: Vec::new() })
    }

    /// A server with a certificate that nobody would trust: signed by itself, for another name.
    fn acceptor() -> TlsAcceptor {
        let made = rcgen::generate_simple_self_signed(vec!["elsewhere.example".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    #[tokio::test]
    async fn an_https_probe_speaks_tls_and_does_not_look_at_the_certificate() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let mut heads = Vec::new();
            for status in ["200", "503"] {
                let (stream, _) = listener.accept().await.unwrap();
                heads.push(answer(acceptor().accept(stream).await.unwrap(), status).await);
            }
            heads
        });
        let target = target(address.port(), true);
        assert_eq!(once(address.ip(), &target, LIMIT).await, Ok(()));
        assert_eq!(once(address.ip(), &target, LIMIT).await, Err("HTTP 503".to_owned()));
        let heads = server.await.unwrap();
        assert!(heads[0].starts_with("GET /health HTTP/1.1\r\n"), "{heads:?}");
    }

    #[tokio::test]
    async fn an_https_probe_of_a_plain_server_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            stream
        });
        let asked = once(address.ip(), &target(address.port(), true), LIMIT).await;
        assert_eq!(asked, Err("no TLS".to_owned()));
        drop(server.await.unwrap());
    }

    #[tokio::test]
    async fn a_refused_connection_and_a_silent_server_are_told_in_words() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limit = Duration::from_millis(50);
        assert_eq!(once(address.ip(), &Target::Tcp(address.port()), LIMIT).await, Ok(()));
        let asked = once(address.ip(), &target(address.port(), false), limit).await;
        assert_eq!(asked, Err("no answer in time".to_owned()));
        drop(listener);
        let asked = once(address.ip(), &Target::Tcp(address.port()), LIMIT).await;
        assert_eq!(asked, Err(format!("port {}: connection refused", address.port())));
    }
}
