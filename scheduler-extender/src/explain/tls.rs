//! How an extender that speaks HTTPS only is asked: its authority is checked, and a client certificate shown.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// The files, for an address that begins with `https://`.
#[derive(Debug, Clone, Default, Args)]
pub struct ClientTlsFlags {
    /// Authorities that the extender's certificate must come from, PEM; needed for an https:// address
    #[arg(long, value_name = "FILE")]
    pub server_ca: Option<PathBuf>,
    /// Name that the extender's certificate must bear; without it the host of the address
    #[arg(long, value_name = "NAME", requires = "server_ca", value_parser = name)]
    pub server_name: Option<ServerName<'static>>,
    /// Our certificate chain, PEM, for an extender with --client-ca
    #[arg(long, value_name = "FILE", requires_all = ["client_key", "server_ca"])]
    pub client_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<PathBuf>,
}

/// What is wrong with the files.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// Nothing says whom to trust.
    #[error(
        "an https:// address needs --server-ca: the authorities that the extender's certificate must come from"
    )]
    NoAuthority,
    /// Files for TLS, and an address without it.
    #[error("--server-ca and --client-cert are for an https:// address; the server named is http://")]
    NotHttps,
    /// A file is not there, damaged, or holds something else.
    #[error("cannot read {} as PEM {what}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong.
        source: pem::Error,
    },
    /// A file without a certificate.
    #[error("{} holds no PEM certificate", .0.display())]
    Empty(PathBuf),
    /// What is in the files cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The protocol versions do not fit the crypto provider.
    #[error("cannot set up TLS: {0}")]
    Setup(#[source] rustls::Error),
}

fn name(text: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(text.to_owned()).map_err(|error| error.to_string())
}

impl ClientTlsFlags {
    /// Checks that nothing is set, for a connection without TLS.
    ///
    /// # Errors
    /// When a file is named.
    pub fn unneeded(&self) -> Result<(), ClientTlsError> {
        match (&self.server_ca, &self.client_cert) {
            (None, None) => Ok(()),
            _ => Err(ClientTlsError::NotHttps),
        }
    }

    /// What a connection needs.
    ///
    /// # Errors
    /// What is missing or wrong, with the file.
    pub fn config(&self) -> Result<ClientConfig, ClientTlsError> {
        let authority = self.server_ca.as_ref().ok_or(ClientTlsError::NoAuthority)?;
        let unusable = |path: &Path| {
            let path = path.to_path_buf();
            |source| ClientTlsError::Unusable { path, source }
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).map_err(unusable(authority))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(ClientTlsError::Setup)?
            .with_root_certificates(roots);
        let (Some(certificate), Some(key)) = (&self.client_cert, &self.client_key) else {
            return Ok(builder.with_no_client_auth());
        };
        let private = PrivateKeyDer::from_pem_file(key).map_err(read(key, "private key"))?;
        builder.with_client_auth_cert(certificates(certificate)?, private).map_err(unusable(certificate))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientTlsError> {
    let damaged = |source| read(path, "certificates")(source);
    let all = CertificateDer::pem_file_iter(path).map_err(damaged)?.collect::<Result<Vec<_>, _>>();
    let all = all.map_err(damaged)?;
    if all.is_empty() { Err(ClientTlsError::Empty(path.to_path_buf())) } else { Ok(all) }
}

fn read(path: &Path, what: &'static str) -> impl FnOnce(pem::Error) -> ClientTlsError {
    let path = path.to_path_buf();
    move |source| ClientTlsError::Read { path, what, source }
}
