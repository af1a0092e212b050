//! The way to a cluster: a kubeconfig file, or the account of the Pod we run in.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::watching::SILENCE;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than any watch is silent, and than an API server that is busy lets a list wait. Requests that must be quicker
/// carry their own limit.
const READ_TIMEOUT: Duration = SILENCE.saturating_add(Duration::from_secs(30));

/// How the module cluster (the one with VNodes and VPods) is reached.
#[derive(Debug, Clone, Default, Args)]
pub struct ModuleClusterFlags {
    /// Kubeconfig of the module cluster; without it the service account of our own Pod is used
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in that kubeconfig; without it the current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
}

/// Which cluster to reach, and as whom.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The kubeconfig file; `None`: the service account of our own Pod.
    pub kubeconfig: Option<PathBuf>,
    /// The context in it; `None`: its current one.
    pub context: Option<String>,
    /// Sent as `User-Agent`, such as `stowage-agent/0.1.0`.
    pub user_agent: String,
}

impl Connection {
    /// The connection that the flags describe.
    pub fn module_cluster(flags: ModuleClusterFlags, user_agent: impl Into<String>) -> Self {
        let ModuleClusterFlags { kubeconfig, context } = flags;
        Self { kubeconfig, context, user_agent: user_agent.into() }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// The file cannot be read or is no kubeconfig.
    #[error("cannot read the kubeconfig {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: KubeconfigError,
    },
    /// The file is fine, but what it says does not lead to a cluster.
    #[error("cannot use the kubeconfig {} (context {}): {source}", path.display(), context.as_deref().unwrap_or("current"))]
    Use {
        /// The file.
        path: PathBuf,
        /// The context asked for.
        context: Option<String>,
        /// What is wrong.
        source: KubeconfigError,
    },
    /// There is no kubeconfig, and we do not run in a Pod with a service account.
    #[error("no kubeconfig was named and this is not a Pod with a service account: {0}")]
    InCluster(#[from] InClusterError),
    /// The client could not be built (certificates, keys).
    #[error("cannot build a client for {url}: {source}")]
    Build {
        /// The API server.
        url: String,
        /// What is wrong.
        source: kube::Error,
    },
    /// The user agent is no header value.
    #[error("cannot send the user agent: {0}")]
    UserAgent(#[from] http::header::InvalidHeaderValue),
}

/// Builds a client. Sends nothing.
///
/// # Errors
/// When the kubeconfig is missing or wrong; the error names the file.
pub async fn connect(connection: &Connection) -> Result<Client, KubernetesError> {
    client(config(connection).await?)
}

/// Builds the client of a configuration. Sends nothing.
///
/// # Errors
/// When its certificates or keys are no good.
pub fn client(config: Config) -> Result<Client, KubernetesError> {
    let url = config.cluster_url.to_string();
    Client::try_from(config).map_err(|source| KubernetesError::Build { url, source })
}

/// The configuration behind [`connect`], for callers that look at it or change it first.
///
/// # Errors
/// As for [`connect`].
pub async fn config(connection: &Connection) -> Result<Config, KubernetesError> {
    let Connection { kubeconfig, context, user_agent } = connection;
    let mut config =
        match kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)
                    .map_err(|source| KubernetesError::Read { path: path.clone(), source })?;
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(file, &options).await.map_err(|source| {
                    KubernetesError::Use { path: path.clone(), context: context.clone(), source }
                })?
            }
            None => Config::incluster()?,
        };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.write_timeout = Some(WRITE_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config.headers.push((USER_AGENT, HeaderValue::from_str(user_agent)?));
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(path: PathBuf, context: Option<&str>) -> Connection {
        Connection {
            kubeconfig: Some(path),
            context: context.map(str::to_owned),
            user_agent: "test/1".to_owned(),
        }
    }

    const KUBECONFIG: &str = "apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: one, context: {cluster: c, user: u}}]
current-context: one
";

    #[tokio::test]
    async fn errors_name_the_file_and_what_is_wrong() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("kubeconfig");
        let error = config(&connection(path.clone(), None)).await.expect_err("missing").to_string();
        assert!(error.contains("kubeconfig") && error.contains("No such file"), "{error}");

        std::fs::write(&path, "clusters: [").expect("write");
        let error = config(&connection(path.clone(), None)).await.expect_err("no YAML").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");

        std::fs::write(&path, KUBECONFIG).expect("write");
        let error =
            config(&connection(path.clone(), Some("two"))).await.expect_err("no such context").to_string();
        assert!(error.contains("context two") && error.contains(&path.display().to_string()), "{error}");
    }

    #[tokio::test]
    async fn a_good_kubeconfig_has_limits_and_our_name() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, KUBECONFIG).expect("write");
        let config = config(&connection(path, None)).await.expect("config");
        assert_eq!(config.cluster_url.to_string(), "http://127.0.0.1:1/");
        assert_eq!(config.connect_timeout, Some(CONNECT_TIMEOUT));
        assert!(config.headers.iter().any(|(name, value)| name == USER_AGENT && value == "test/1"));
    }
}
