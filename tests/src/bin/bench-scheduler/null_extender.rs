//! An extender that answers everything at once: HTTP and JSON as kube-scheduler wants them, and no thought. One that is
//! silent about scores is the least that there can be.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::{net::TcpListener, task::JoinHandle};

/// Answers until it is dropped.
pub(crate) struct NullExtender {
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl NullExtender {
    /// Listens on a free port of loopback.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port")?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/scheduler/filter", post(async |body: Bytes| answer(filter(&body))))
            .route("/scheduler/prioritize", post(async |body: Bytes| answer(prioritize(&body))))
            .route("/silent/filter", post(async |body: Bytes| answer(filter(&body))))
            .route("/silent/prioritize", post(async || answer(Ok(b"[]".to_vec()))));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the null extender ended: {error}");
            }
        });
        Ok(Self { address, server })
    }

    /// For `urlPrefix`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/scheduler", self.address)
    }

    /// For `urlPrefix`, where it shall name no node's score.
    pub(crate) fn silent_url(&self) -> String {
        format!("http://{}/silent", self.address)
    }
}

impl Drop for NullExtender {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[derive(Deserialize)]
struct Question<'a> {
    #[serde(borrow, rename = "NodeNames")]
    names: &'a RawValue,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Priority<'a> {
    host: &'a str,
    score: i64,
}

/// The names as they came.
fn filter(body: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let question: Question<'_> = serde_json::from_slice(body)?;
    let names = question.names.get();
    Ok(format!(r#"{{"Nodes":null,"NodeNames":{names},"FailedNodes":{{}},"Error":""}}"#).into_bytes())
}

/// Zero for each.
fn prioritize(body: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let question: Question<'_> = serde_json::from_slice(body)?;
    let names: Vec<&str> = serde_json::from_str(question.names.get())?;
    let priorities: Vec<_> = names.into_iter().map(|host| Priority { host, score: 0 }).collect();
    serde_json::to_vec(&priorities)
}

fn answer(body: Result<Vec<u8>, serde_json::Error>) -> Response {
    match body {
        Ok(body) => (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_come_back() {
        let body = br#"{"Pod":{"metadata":{}},"Nodes":null,"NodeNames":["a","b"]}"#;
        assert_eq!(
            filter(body).unwrap(),
            br#"{"Nodes":null,"NodeNames":["a","b"],"FailedNodes":{},"Error":""}"#
        );
        assert_eq!(prioritize(body).unwrap(), br#"[{"Host":"a","Score":0},{"Host":"b","Score":0}]"#);
        assert!(filter(b"{}").is_err());
    }
}
