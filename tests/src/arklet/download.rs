//! How a base gets a module jar: `new URL(text).openStream()` of a JVM, with its exceptions and its blind spots.

use std::io;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Empty};
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use url::Url;

use super::throwable::Throwable;

/// Redirects that a JVM follows.
const MAX_REDIRECTS: usize = 20;
/// Space for one jar.
const MAX_JAR: usize = 256 << 20;

fn malformed(message: &str) -> Throwable {
    Throwable::new("java.net.MalformedURLException", message)
}

fn not_found(what: &str) -> Throwable {
    Throwable::new("java.io.FileNotFoundException", what)
}

/// Fetches what an address names.
pub(super) async fn fetch(text: &str) -> Result<Bytes, Throwable> {
    let scheme = text.split(':').next().filter(|scheme| scheme.len() < text.len() && !scheme.contains('/'));
    match scheme {
        None => Err(malformed(&format!("no protocol: {text}"))),
        Some("file") => read_file(text).await,
        Some("http") => fetch_http(text).await,
        // The simulated JVM trusts no certificate.
        Some("https") => Err(Throwable::new(
            "javax.net.ssl.SSLHandshakeException",
            "PKIX path building failed: unable to find valid certification path to requested target",
        )),
        Some(other) => Err(malformed(&format!("unknown protocol: {other}"))),
    }
}

async fn read_file(text: &str) -> Result<Bytes, Throwable> {
    let url = Url::parse(text).map_err(|error| malformed(&error.to_string()))?;
    if let Some(host) = url.host_str() {
        return Err(Throwable::new("java.net.UnknownHostException", host));
    }
    let path = url.to_file_path().map_err(|()| malformed(text))?;
    let content = tokio::fs::read(&path).await;
    content.map(Bytes::from).map_err(|error| {
        let reason = match error.kind() {
            io::ErrorKind::PermissionDenied => "Permission denied",
            _ => "No such file or directory",
        };
        not_found(&format!("{} ({reason})", path.display()))
    })
}

async fn fetch_http(text: &str) -> Result<Bytes, Throwable> {
    let mut url = Url::parse(text).map_err(|error| malformed(&error.to_string()))?;
    let mut shown = text.to_owned();
    for _ in 0..MAX_REDIRECTS {
        let response = get(&url).await?;
        let status = response.status();
        if matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER) {
            let target = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let next = target.and_then(|target| url.join(target).ok());
            // Only within one protocol; otherwise the redirect's own body is the answer.
            if let Some(next) = next.filter(|next| next.scheme() == "http") {
                shown = next.to_string();
                url = next;
                continue;
            }
        }
        return match status.as_u16() {
            404 | 410 => Err(not_found(&shown)),
            code @ 400.. => Err(Throwable::new(
                "java.io.IOException",
                &format!("Server returned HTTP response code: {code} for URL: {shown}"),
            )),
            _ => read_to_end(response.into_body()).await,
        };
    }
    Err(Throwable::new("java.net.ProtocolException", "Server redirected too many times (20)"))
}

async fn get(url: &Url) -> Result<hyper::Response<hyper::body::Incoming>, Throwable> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or(80);
    let stream =
        TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|error| {
            match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    Throwable::new("java.net.ConnectException", "Connection refused")
                }
                io::ErrorKind::TimedOut => {
                    Throwable::new("java.net.ConnectException", "Connection timed out")
                }
                _ if error.raw_os_error().is_none() => Throwable::new("java.net.UnknownHostException", host),
                _ => Throwable::new("java.net.NoRouteToHostException", "No route to host"),
            }
        })?;
    let ended = |_| Throwable::new("java.net.SocketException", "Unexpected end of file from server");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(ended)?;
    // Ends with the exchange: the sender below is its only user.
    tokio::spawn(connection);
    let target = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let uri = target.parse::<Uri>().map_err(|error| malformed(&error.to_string()))?;
    let request = Request::get(uri)
        .header(header::HOST, format!("{host}:{port}"))
        .header(header::USER_AGENT, "Java/17.0.15")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| malformed(&error.to_string()))?;
    sender.send_request(request).await.map_err(ended)
}

async fn read_to_end(mut body: hyper::body::Incoming) -> Result<Bytes, Throwable> {
    let mut content = BytesMut::new();
    // A body that breaks off counts as whole: a JVM copies what came and does not compare lengths.
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            content.extend_from_slice(data);
        }
        if content.len() > MAX_JAR {
            return Err(Throwable::new("java.io.IOException", "No space left on device"));
        }
    }
    Ok(content.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_that_a_jvm_cannot_open() {
        let table = [
            ("oss://bucket/x.jar", "java.net.MalformedURLException: unknown protocol: oss"),
            ("/no/scheme/x.jar", "java.net.MalformedURLException: no protocol: /no/scheme/x.jar"),
            (
                "file:///no/such.jar",
                "java.io.FileNotFoundException: /no/such.jar (No such file or directory)",
            ),
            ("file://host/x.jar", "java.net.UnknownHostException: host"),
            ("http://127.0.0.1:1/x.jar", "java.net.ConnectException: Connection refused"),
        ];
        for (text, wanted) in table {
            assert_eq!(fetch(text).await.unwrap_err().to_string(), wanted);
        }
    }
}
