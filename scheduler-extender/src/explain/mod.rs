//! `stowage-extender explain NAMESPACE/POD`: asks a running extender.

mod tls;

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::ACCEPT;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

pub use tls::{ClientTlsError, ClientTlsFlags};

/// Longest time for the answer.
const LIMIT: Duration = Duration::from_secs(10);
/// Largest answer.
const SIZE_LIMIT: usize = 64 << 20;

/// Which Pod, and whom to ask.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The Pod
    #[arg(value_name = "NAMESPACE/POD", value_parser = pod)]
    pub pod: (String, String),
    /// The extender, where kube-scheduler finds it
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8888")]
    pub server: Uri,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show them")]
    pub tls: ClientTlsFlags,
    /// JSON, with what every rule says, instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The address is none.
    #[error("cannot make a request for {server}: {source}")]
    Address {
        /// What was given.
        server: Uri,
        /// What is wrong with it.
        source: http::Error,
    },
    /// The files for HTTPS are missing or wrong.
    #[error(transparent)]
    Tls(#[from] ClientTlsError),
    /// Nobody answers there.
    #[error("no stowage-extender answers at {server}: {source}")]
    Connect {
        /// Who was asked.
        server: Uri,
        /// What went wrong.
        source: hyper_util::client::legacy::Error,
    },
    /// The answer broke off.
    #[error("the answer cannot be read: {0}")]
    Read(Box<dyn std::error::Error + Send + Sync>),
    /// It takes too long.
    #[error("no answer within {LIMIT:?}")]
    Late,
    /// The extender says that it cannot.
    #[error("{0}")]
    Refused(String),
    /// The answer cannot be written.
    #[error("cannot write the answer: {0}")]
    Write(#[from] std::io::Error),
}

/// Names as Kubernetes has them, which need no escapes in a URL.
fn pod(text: &str) -> Result<(String, String), String> {
    let name = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c))
    };
    match text.split_once('/') {
        Some((namespace, pod)) if name(namespace) && name(pod) => Ok((namespace.to_owned(), pod.to_owned())),
        _ => Err("not NAMESPACE/POD".to_owned()),
    }
}

/// Asks, and writes the answer to `output`.
///
/// # Errors
/// When there is no answer, or the extender does not know the Pod.
pub async fn run(args: ExplainArgs, output: &mut impl Write) -> Result<(), ExplainError> {
    let ExplainArgs { pod: (namespace, pod), server, tls, json } = args;
    let base = server.to_string();
    let uri = format!("{}/explain?namespace={namespace}&pod={pod}", base.trim_end_matches('/'));
    let accept = if json { "application/json" } else { "text/plain" };
    let request = Request::get(uri).header(ACCEPT, accept).body(Empty::<Bytes>::new());
    let request = request.map_err(|source| ExplainError::Address { server: server.clone(), source })?;
    let builder = Client::builder(TokioExecutor::new());
    let answer = async {
        let asked = if server.scheme_str() == Some("https") {
            let connector = HttpsConnectorBuilder::new().with_tls_config(tls.config()?).https_only();
            let connector = match tls.server_name {
                Some(name) => connector.with_server_name_resolver(FixedServerNameResolver::new(name)),
                None => connector,
            };
            builder.build(connector.enable_http1().build()).request(request).await
        } else {
            // Nobody shall believe that an authority was checked.
            tls.unneeded()?;
            builder.build(HttpConnector::new()).request(request).await
        };
        let answer = asked.map_err(|source| ExplainError::Connect { server, source })?;
        let status = answer.status();
        let body =
            Limited::new(answer.into_body(), SIZE_LIMIT).collect().await.map_err(ExplainError::Read)?;
        Ok::<_, ExplainError>((status, body.to_bytes()))
    };
    let (status, body) = tokio::time::timeout(LIMIT, answer).await.map_err(|_| ExplainError::Late)??;
    if status != StatusCode::OK {
        return Err(ExplainError::Refused(String::from_utf8_lossy(&body).trim_end().to_owned()));
    }
    output.write_all(&body)?;
    if !body.ends_with(b"\n") {
        output.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_a_namespace_and_a_name() {
        assert_eq!(pod("shop/cart-0"), Ok(("shop".to_owned(), "cart-0".to_owned())));
        for wrong in ["", "shop", "shop/", "/cart", "a/b/c", "shop/ca rt", "shop/x&y=z"] {
            assert!(pod(wrong).is_err(), "{wrong}");
        }
    }
}
