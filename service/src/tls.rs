//! TLS for a server: certificate, key and, for mTLS, the authority that client certificates must come from.
//!
//! [`ReloadedTls`] owns the files. It reads them as one set when they change, and keeps serving the old set when the
//! new one is wrong, with a log line and a metric; connections that are open stay open.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum_server::tls::TlsInfo;
use axum_server::tls_rustls::RustlsConfig;
use clap::Args;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoClientAuth, ServerConfig, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::file_watch::FileWatch;

/// The files of a TLS server.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsFlags {
    /// Certificate chain, PEM; with it the server speaks HTTPS only. Reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities that a client's certificate must come from, PEM; without it any client may call
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,
}

impl TlsFlags {
    /// The files, or `None` for plain HTTP.
    pub fn into_files(self) -> Option<TlsFiles> {
        let Self { tls_cert, tls_key, client_ca } = self;
        let client_certificates = ClientCertificates::Required;
        Some(TlsFiles { certificate: tls_cert?, key: tls_key?, client_ca, client_certificates })
    }
}

/// The files of a TLS server.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Certificate chain, the server's own first.
    pub certificate: PathBuf,
    /// Private key of the first certificate.
    pub key: PathBuf,
    /// Authorities of client certificates; `None`: clients need none.
    pub client_ca: Option<PathBuf>,
    /// What holds for clients where authorities are named.
    pub client_certificates: ClientCertificates,
}

/// Whether a client must show a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No handshake without one.
    #[default]
    Required,
    /// Who shows none may still say otherwise who it is; a bad one ends the handshake all the same.
    Optional,
}

/// Who a client is by its certificate, which the handshake has checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// Common name; empty where the certificate has none.
    pub common_name: String,
    /// Organizations.
    pub organizations: Vec<String>,
}

/// The client of a request by its certificate; `None` where it showed none. A certificate that cannot be read is one
/// without a name.
pub fn client(extensions: &http::Extensions) -> Option<Subject> {
    let info = extensions.get::<Arc<TlsInfo>>()?;
    Some(subject(info.peer_certificates.first()?))
}

fn subject(certificate: &[u8]) -> Subject {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else {
        return Subject::default();
    };
    let subject = certificate.subject();
    let text = |part: &x509_parser::x509::AttributeTypeAndValue<'_>| part.as_str().ok().map(str::to_owned);
    Subject {
        // Of several the last counts, as in Kubernetes.
        common_name: subject.iter_common_name().last().and_then(text).unwrap_or_default(),
        organizations: subject.iter_organization().filter_map(text).collect(),
    }
}

/// What is wrong with the files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there or may not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The PEM text is damaged.
    #[error("{} is damaged PEM: {source}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls_pki_types::pem::Error,
    },
    /// The certificate file has no certificate in it.
    #[error("{} holds no PEM certificate", .0.display())]
    NoCertificate(PathBuf),
    /// The key file has no key in it.
    #[error("{} holds no PEM private key", .0.display())]
    NoKey(PathBuf),
    /// The client authority file has no certificate in it.
    #[error("{} holds no PEM certificate of a client authority", .0.display())]
    NoClientCa(PathBuf),
    /// What is in the PEM block is no certificate.
    #[error("{} holds a certificate that cannot be read: {message}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The key is of a kind that cannot be used.
    #[error("{} holds a key that cannot be used: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// Certificate and key do not belong together.
    #[error("the key {} does not belong to the certificate {}", key.display(), certificate.display())]
    KeyMismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The certificate's time has not come by our clock. Clients with the same clock would refuse it too.
    #[error("the certificate {} is not yet valid by the clock of this node: it begins at {not_before}", path.display())]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// From when on it is.
        not_before: Timestamp,
    },
    /// The certificate's time is over.
    #[error("the certificate {} expired at {not_after}", path.display())]
    Expired {
        /// The file.
        path: PathBuf,
        /// When.
        not_after: Timestamp,
    },
    /// A client authority cannot be used.
    #[error("{} cannot be used as client authority: {message}", path.display())]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The protocol versions do not fit the crypto provider.
    #[error("cannot set up TLS: {0}")]
    Setup(#[source] rustls::Error),
}

/// A complete, checked set.
pub struct LoadedTls {
    /// For the server.
    pub config: Arc<ServerConfig>,
    /// End of the server certificate's life.
    pub not_after: Timestamp,
}

/// The contents of the files at one moment; compared to see a change.
#[derive(PartialEq, Eq, Clone)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_path_buf(), source })
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let TlsFiles { certificate, key, client_ca, client_certificates: _ } = files;
        Ok(Self {
            certificate: read(certificate)?,
            key: read(key)?,
            client_ca: client_ca.as_deref().map(read).transpose()?,
        })
    }
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Damaged { path: path.to_path_buf(), source })
}

/// When a certificate becomes valid, and when it ends.
fn validity(certificate: &CertificateDer<'_>, path: &Path) -> Result<(Timestamp, Timestamp), TlsError> {
    let unreadable = |message: String| TlsError::Certificate { path: path.to_path_buf(), message };
    let (_, parsed) =
        x509_parser::parse_x509_certificate(certificate).map_err(|error| unreadable(error.to_string()))?;
    let time = |seconds| Timestamp::from_second(seconds).map_err(|error| unreadable(error.to_string()));
    let validity = parsed.validity();
    Ok((time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?))
}

/// Reads and checks the files. `now` decides whether the certificate is valid yet, or has expired.
///
/// # Errors
/// One variant for each way a set can be wrong; the text names the file.
pub fn load(files: &TlsFiles, now: Timestamp) -> Result<LoadedTls, TlsError> {
    build(files, &Contents::read(files)?, now, provider())
}

fn build(
    files: &TlsFiles,
    contents: &Contents,
    now: Timestamp,
    provider: Arc<CryptoProvider>,
) -> Result<LoadedTls, TlsError> {
    let chain = certificates(&contents.certificate, &files.certificate)?;
    let first = chain.first().ok_or_else(|| TlsError::NoCertificate(files.certificate.clone()))?;
    let (not_before, not_after) = validity(first, &files.certificate)?;
    if now < not_before {
        return Err(TlsError::NotYetValid { path: files.certificate.clone(), not_before });
    }
    if not_after <= now {
        return Err(TlsError::Expired { path: files.certificate.clone(), not_after });
    }
    let pair =
        CertifiedKey::from_der(chain, private_key(files, contents)?, &provider).map_err(
            |source| match source {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    TlsError::KeyMismatch { certificate: files.certificate.clone(), key: files.key.clone() }
                }
                // Readable by one reader and not by the other, such as one of version 1.
                rustls::Error::InvalidCertificate(error) => {
                    TlsError::Certificate { path: files.certificate.clone(), message: error.to_string() }
                }
                source => TlsError::Key { path: files.key.clone(), source },
            },
        )?;
    let verifier = match (&files.client_ca, &contents.client_ca) {
        (Some(path), Some(pem)) => client_verifier(path, pem, files.client_certificates, &provider)?,
        _ => Arc::new(NoClientAuth),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(LoadedTls { config: Arc::new(config), not_after })
}

fn private_key(files: &TlsFiles, contents: &Contents) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&contents.key).map_err(|source| match source {
        rustls_pki_types::pem::Error::NoItemsFound => TlsError::NoKey(files.key.clone()),
        source => TlsError::Damaged { path: files.key.clone(), source },
    })
}

fn client_verifier(
    path: &Path,
    pem: &[u8],
    certificates_are: ClientCertificates,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let unusable = |message: String| TlsError::ClientCa { path: path.to_path_buf(), message };
    let authorities = certificates(pem, path)?;
    if authorities.is_empty() {
        return Err(TlsError::NoClientCa(path.to_path_buf()));
    }
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).map_err(|error| unusable(error.to_string()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = match certificates_are {
        ClientCertificates::Required => builder,
        ClientCertificates::Optional => builder.allow_unauthenticated(),
    };
    builder.build().map(|verifier| verifier as Arc<_>).map_err(|error| unusable(error.to_string()))
}

fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()))
}

#[derive(Clone, Default)]
struct Metrics {
    not_after: Gauge<f64, AtomicU64>,
    reloads: Counter,
    failures: Counter,
}

/// A server's TLS that follows its files.
pub struct ReloadedTls {
    files: TlsFiles,
    served: Contents,
    config: RustlsConfig,
    metrics: Metrics,
    clock: fn() -> Timestamp,
}

impl ReloadedTls {
    /// Reads the files for the first time and registers the metrics `tls_certificate_not_after_timestamp_seconds`,
    /// `tls_reloads_total` and `tls_reload_failures_total`.
    ///
    /// # Errors
    /// When the set is wrong: a server must not start without its certificate.
    pub fn start(
        files: TlsFiles,
        clock: fn() -> Timestamp,
        registry: &mut Registry,
    ) -> Result<Self, TlsError> {
        let served = Contents::read(&files)?;
        let loaded = build(&files, &served, clock(), provider())?;
        let metrics = Metrics::default();
        metrics.not_after.set(seconds(loaded.not_after));
        let Metrics { not_after, reloads, failures } = &metrics;
        let expiry = "End of the server certificate's life, Unix time";
        registry.register("tls_certificate_not_after_timestamp_seconds", expiry, not_after.clone());
        registry.register("tls_reloads", "Certificate sets taken into use after the start", reloads.clone());
        registry.register(
            "tls_reload_failures",
            "Certificate sets refused; the old set stays in use",
            failures.clone(),
        );
        Ok(Self { files, served, config: RustlsConfig::from_config(loaded.config), metrics, clock })
    }

    /// What the server uses; always the newest good set.
    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Follows the files until `shutdown`.
    ///
    /// # Errors
    /// Never; the type fits [`crate::tasks::Tasks`].
    pub async fn follow(
        mut self,
        poll: Duration,
        shutdown: CancellationToken,
    ) -> Result<(), std::convert::Infallible> {
        let TlsFiles { certificate, key, client_ca, client_certificates: _ } = &self.files;
        let paths =
            [Some(certificate), Some(key), client_ca.as_ref()].into_iter().flatten().map(PathBuf::as_path);
        let mut watch = FileWatch::new(paths, poll);
        let mut refused: Option<String> = None;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = watch.changed() => {}
            }
            match self.reload() {
                Ok(()) => refused = None,
                Err(error) => {
                    // Said once per error, not with every tick of the clock.
                    let text = error.to_string();
                    if refused.as_ref() != Some(&text) {
                        self.metrics.failures.inc();
                        tracing::error!(error = text, "new certificate refused, the old one stays in use");
                        refused = Some(text);
                    }
                }
            }
        }
    }

    fn reload(&mut self) -> Result<(), TlsError> {
        let contents = Contents::read(&self.files)?;
        if contents == self.served {
            return Ok(());
        }
        let loaded = build(&self.files, &contents, (self.clock)(), provider())?;
        self.config.reload_from_config(loaded.config);
        self.metrics.not_after.set(seconds(loaded.not_after));
        self.metrics.reloads.inc();
        self.served = contents;
        tracing::info!(not_after = %loaded.not_after, "new certificate in use");
        Ok(())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "Unix seconds fit a float exactly for the next 285 million years"
)]
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64
}

#[cfg(test)]
mod tests;
