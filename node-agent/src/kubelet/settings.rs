//! The flags of the endpoint, and whether they fit together.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use service::serve::ServeError;
use service::tls::{ClientCertificates, TlsError, TlsFiles};

use crate::vnode::ServedEndpoint;

/// Whose address VNodes carry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum NodeAddressKind {
    /// The base's.
    #[default]
    Base,
    /// The acting agent's, so that the API server reaches its kubelet endpoint.
    Agent,
}

/// The endpoint.
#[derive(Debug, Clone, Default, Args)]
pub struct KubeletFlags {
    /// Whose address VNodes carry: `agent` lets the API server reach the kubelet endpoint of the agent that acts, for
    /// kubectl logs
    #[arg(long, value_name = "WHOSE", value_enum, default_value_t)]
    pub node_address: NodeAddressKind,
    /// Address of this agent, for --node-address=agent and to listen on
    #[arg(long, value_name = "IP", env = "POD_IP")]
    pub agent_ip: Option<IpAddr>,
    /// Port of the kubelet endpoint
    #[arg(long, value_name = "PORT", default_value = "10250", value_parser = clap::value_parser!(u16).range(1..))]
    pub kubelet_port: u16,
    /// Serving certificate of the kubelet endpoint, PEM; with it the endpoint is served. Reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "kubelet_tls_key")]
    pub kubelet_tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "kubelet_tls_cert")]
    pub kubelet_tls_key: Option<PathBuf>,
    /// Authorities of callers' client certificates, PEM: the common name is the user, organizations are groups
    #[arg(long, value_name = "FILE", requires = "kubelet_tls_cert")]
    pub client_ca_file: Option<PathBuf>,
    /// Let the API server review callers' bearer tokens
    #[arg(long, requires = "kubelet_tls_cert")]
    pub authentication_token_webhook: bool,
}

/// Why the endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// VNodes would lead the API server to nothing.
    #[error("--node-address=agent needs --kubelet-tls-cert: the endpoint must be served")]
    NotServed,
    /// Nobody knows where it is.
    #[error("the kubelet endpoint needs --agent-ip (or POD_IP): the address that the API server reaches")]
    NoAddress,
    /// Everybody would be refused.
    #[error(
        "the kubelet endpoint needs --client-ca-file or --authentication-token-webhook: nobody is served without a name"
    )]
    NoAuthentication,
    /// Its certificate is wrong.
    #[error("kubelet endpoint: {0}")]
    Tls(#[from] TlsError),
    /// It cannot listen.
    #[error("kubelet endpoint: {0}")]
    Serve(#[from] ServeError),
}

/// A checked endpoint.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its files.
    pub tls: TlsFiles,
    /// Whether tokens are reviewed.
    pub tokens: bool,
    /// What VNodes say of it.
    pub shown: ServedEndpoint,
}

impl KubeletFlags {
    /// What is to be served, if anything.
    ///
    /// # Errors
    /// Flags that do not fit together.
    pub fn into_settings(self) -> Result<Option<Settings>, KubeletError> {
        let Self {
            node_address,
            agent_ip,
            kubelet_port,
            kubelet_tls_cert,
            kubelet_tls_key,
            client_ca_file,
            authentication_token_webhook,
        } = self;
        let for_all = node_address == NodeAddressKind::Agent;
        let (Some(certificate), Some(key)) = (kubelet_tls_cert, kubelet_tls_key) else {
            return if for_all { Err(KubeletError::NotServed) } else { Ok(None) };
        };
        let ip = agent_ip.ok_or(KubeletError::NoAddress)?;
        if client_ca_file.is_none() && !authentication_token_webhook {
            return Err(KubeletError::NoAuthentication);
        }
        Ok(Some(Settings {
            address: SocketAddr::new(ip, kubelet_port),
            tls: TlsFiles {
                certificate,
                key,
                client_ca: client_ca_file,
                client_certificates: ClientCertificates::Optional,
            },
            tokens: authentication_token_webhook,
            shown: ServedEndpoint { ip, port: kubelet_port, for_all },
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        kubelet: KubeletFlags,
    }

    fn settings(flags: &[&str]) -> Result<Option<Settings>, String> {
        let all = ["agent"].iter().chain(flags);
        let cli = Cli::try_parse_from(all).map_err(|error| error.to_string())?;
        cli.kubelet.into_settings().map_err(|error| error.to_string())
    }

    const TLS: [&str; 3] = ["--kubelet-tls-cert=c", "--kubelet-tls-key=k", "--agent-ip=10.0.0.1"];

    #[test]
    fn nothing_is_served_unless_it_is_asked_for() {
        assert!(settings(&[]).expect("flags").is_none());
        assert!(settings(&["--agent-ip=10.0.0.1", "--kubelet-port=10251"]).expect("flags").is_none());
    }

    #[test]
    fn half_an_endpoint_is_refused() {
        let refused = |flags: &[&str]| settings(flags).expect_err("refused");
        assert!(refused(&["--node-address=agent"]).contains("--kubelet-tls-cert"));
        assert!(refused(&["--kubelet-tls-cert=c"]).contains("--kubelet-tls-key"));
        assert!(refused(&["--client-ca-file=ca"]).contains("--kubelet-tls-cert"));
        assert!(refused(&TLS).contains("nobody is served without a name"));
        assert!(refused(&["--kubelet-port=0"]).contains("kubelet-port"));
        let without = ["--kubelet-tls-cert=c", "--kubelet-tls-key=k", "--authentication-token-webhook"];
        assert!(refused(&without).contains("--agent-ip"));
    }

    #[test]
    fn a_whole_one_listens_on_the_agents_address_only() {
        let flags = [&TLS[..], &["--client-ca-file=ca", "--node-address=agent"]].concat();
        let settings = settings(&flags).expect("flags").expect("served");
        assert_eq!(settings.address.to_string(), "10.0.0.1:10250");
        assert!(settings.shown.for_all && !settings.tokens && settings.tls.client_ca.is_some());
    }
}
