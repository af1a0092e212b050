//! Plain HTTP/1.1 requests to the programs under test.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not a URL.
    #[error("{url} is no URL: {source}")]
    Url {
        /// As given.
        url: String,
        /// Why.
        source: http::Error,
    },
    /// No connection, or it broke before the head of the answer.
    #[error("{url} was not answered: {source}")]
    Send {
        /// As given.
        url: String,
        /// Why.
        source: hyper_util::client::legacy::Error,
    },
    /// The body broke off.
    #[error("the answer of {url} broke off: {source}")]
    Body {
        /// As given.
        url: String,
        /// Why.
        source: hyper::Error,
    },
    /// No complete answer in time.
    #[error("{url} was not answered within {limit:?}")]
    TimedOut {
        /// As given.
        url: String,
        /// The limit.
        limit: Duration,
    },
}

/// GET, with the whole body as text (invalid UTF-8 replaced).
pub async fn get(url: &str, limit: Duration) -> Result<(StatusCode, String), FetchError> {
    send("GET", url, &[], Bytes::new(), limit).await
}

/// POST of a JSON body.
pub async fn post_json(url: &str, body: Bytes, limit: Duration) -> Result<(StatusCode, String), FetchError> {
    send("POST", url, &[("content-type", "application/json")], body, limit).await
}

/// Any request. Each uses a connection of its own.
pub async fn send(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: Bytes,
    limit: Duration,
) -> Result<(StatusCode, String), FetchError> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request =
        request.body(Full::new(body)).map_err(|source| FetchError::Url { url: url.to_owned(), source })?;
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = async {
        let response = client
            .request(request)
            .await
            .map_err(|source| FetchError::Send { url: url.to_owned(), source })?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|source| FetchError::Body { url: url.to_owned(), source })?
            .to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::time::timeout(limit, answer)
        .await
        .map_err(|_| FetchError::TimedOut { url: url.to_owned(), limit })?
}
