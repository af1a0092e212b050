//! A certificate authority, and a client that speaks HTTPS with it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A pair for `localhost`, for both sides, that lives until the end of the year.
    pub fn pair(&self, until: i32) -> Pair {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("params");
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 12, 31);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate").pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

/// Puts a set in place as a Secret volume does: a new directory, then one symlink swapped.
pub fn swap(directory: &Path, version: usize, pair: &Pair, client_ca: &str) {
    let name = format!("..{version}");
    let new = directory.join(&name);
    std::fs::create_dir(&new).expect("directory");
    for (file, text) in [("tls.crt", &*pair.certificate), ("tls.key", &*pair.key), ("ca.crt", client_ca)] {
        std::fs::write(new.join(file), text).expect("write");
        if version == 0 {
            std::os::unix::fs::symlink(Path::new("..data").join(file), directory.join(file))
                .expect("symlink");
        }
    }
    std::os::unix::fs::symlink(&name, directory.join("..tmp")).expect("symlink");
    std::fs::rename(directory.join("..tmp"), directory.join("..data")).expect("rename");
}

/// How a client calls.
#[derive(Clone)]
pub struct Caller {
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

impl Caller {
    /// One that trusts the authorities of a bundle.
    pub fn new(address: SocketAddr, server_ca: &str, pair: Option<&Pair>) -> Self {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(server_ca.as_bytes()) {
            roots.add(root.expect("PEM")).expect("root");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let config = match pair {
            None => builder.with_no_client_auth(),
            Some(Pair { certificate, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("pair")
            }
        };
        Self { address, config: Arc::new(config) }
    }

    pub fn connect(&self) -> std::io::Result<Connection> {
        let tcp = TcpStream::connect(self.address)?;
        tcp.set_read_timeout(Some(Duration::from_secs(20)))?;
        let name = ServerName::try_from("localhost").expect("name");
        let tls = ClientConnection::new(Arc::clone(&self.config), name).map_err(std::io::Error::other)?;
        Ok(Connection(StreamOwned::new(tls, tcp)))
    }
}

/// One kept-alive connection.
pub struct Connection(StreamOwned<ClientConnection, TcpStream>);

impl Connection {
    /// One filter call; the status and body of the answer. A refused handshake is an error here.
    pub fn filter(&mut self, body: &str) -> std::io::Result<(u16, String)> {
        let length = body.len();
        let head =
            format!("POST /scheduler/filter HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        // In one write, as Go does: two would wait for each other's acknowledgement.
        self.0.write_all(format!("{head}{body}").as_bytes())?;
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&received);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let wanted = head
                    .lines()
                    .find_map(|line| {
                        line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
                    })
                    .unwrap_or(0);
                if body.len() >= wanted {
                    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
                    return Ok((status, body.to_owned()));
                }
            }
            match self.0.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => received.extend_from_slice(&buffer[..read]),
            }
        }
    }
}
