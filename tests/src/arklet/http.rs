//! The wire, byte for byte: POST only, replies without headers that end with the connection, one per connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::base::{Base, Decay};
use super::command::{Outcome, decayed, process};
use super::faults::Fault;
use super::input::Body;
use super::journal::Answer;
use super::request::{Head, Part, Reader};

/// Bytes read at once: requests that come in one segment are seen together.
const READ: usize = 8 << 10;
const OK: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
const NOT_POST: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\nContent_Length: 42\r\n\r\nPOST http request only supported by arklet";
const TOO_LARGE: &[u8] = b"HTTP/1.1 413 Request Entity Too Large\r\ncontent-length: 0\r\n\r\n";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What goes back on a connection.
enum Reply {
    Bytes(Vec<u8>),
    /// Nothing; the connection stays open.
    Silence,
    /// Nothing; the connection closes.
    Close,
    Reset,
}

/// Serves one connection until it ends.
///
/// # Errors
/// When the peer is gone.
pub(super) async fn serve(base: Arc<Base>, mut stream: TcpStream, worker: usize) -> io::Result<()> {
    let Some(worker) = base.workers.get(worker % base.workers.len()) else { return Ok(()) };
    let mut reader = Reader::default();
    let mut input = BytesMut::new();
    loop {
        let part = loop {
            if let Some(part) = reader.next(&mut input) {
                break part;
            }
            input.reserve(READ);
            if stream.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        };
        match part {
            Part::Continue => stream.write_all(CONTINUE).await?,
            Part::TooLarge { close } => {
                stream.write_all(TOO_LARGE).await?;
                if close {
                    return stream.shutdown().await;
                }
            }
            Part::Malformed => {
                stream.write_all(NOT_POST).await?;
                return stream.shutdown().await;
            }
            Part::Request(head, content) => {
                if !head.is_post {
                    let _turn = worker.acquire().await;
                    stream.write_all(NOT_POST).await?;
                    return stream.shutdown().await;
                }
                let Some(body) = Body::read(&content) else {
                    // A real arklet's parser throws before anything could answer.
                    base.outside.journal.begin(&head.command, Value::Null);
                    continue;
                };
                // A second request that came in the same segment is read already, and will be carried out.
                let unanswered = match reader.next(&mut input) {
                    Some(Part::Request(head, content)) if head.is_post => Some((head, content)),
                    _ => None,
                };
                let reply = answer(&base, worker, &head, &body).await;
                let ended = send(&base, &mut stream, reply).await;
                drop(stream);
                if let Some((head, content)) = unanswered
                    && let Some(body) = Body::read(&content)
                {
                    answer(&base, worker, &head, &body).await;
                }
                return ended;
            }
        }
    }
}

async fn send(base: &Base, stream: &mut TcpStream, reply: Reply) -> io::Result<()> {
    match reply {
        Reply::Bytes(bytes) => {
            stream.write_all(&bytes).await?;
            stream.shutdown().await
        }
        Reply::Close => stream.shutdown().await,
        Reply::Reset => stream.set_zero_linger(),
        Reply::Silence => {
            let mut rest = [0; 512];
            tokio::select! {
                () = base.life.cancelled() => Ok(()),
                ended = async { while stream.read(&mut rest).await? > 0 {} Ok(()) } => ended,
            }
        }
    }
}

async fn answer(base: &Arc<Base>, worker: &Semaphore, head: &Head, body: &Body) -> Reply {
    let begun = Instant::now();
    let value = body.value();
    let module = value.get("bizName").and_then(Value::as_str).map(str::to_owned);
    let sequence = base.outside.journal.begin(&head.command, value);
    let faults = base.outside.faults.take(&head.command, module.as_deref());
    let (reply, answered) = reply_to(base, worker, head, body, &faults, begun).await;
    base.outside.journal.end(sequence, answered);
    reply
}

async fn reply_to(
    base: &Arc<Base>,
    worker: &Semaphore,
    head: &Head,
    body: &Body,
    faults: &[Fault],
    begun: Instant,
) -> (Reply, Answer) {
    let without = |code: &str| Answer {
        code: code.to_owned(),
        inner: None,
        message: None,
        delivered: false,
        after: begun.elapsed(),
    };
    let decay = base.decay();
    if faults.contains(&Fault::Reset) || decay == Decay::Dead {
        return (Reply::Reset, without("reset"));
    }
    if faults.contains(&Fault::Hang) {
        return (Reply::Silence, without("hang"));
    }
    tokio::time::sleep(latency(faults)).await;
    let outcome = {
        // The command runs on its worker, and whoever else has that worker waits.
        let _turn = worker.acquire().await;
        match decayed(decay, base, &head.command, body) {
            Some(outcome) => outcome,
            None => process(base, &head.command, body, faults).await,
        }
    };
    let Some(envelope) = outcome.envelope(base) else { return (Reply::Silence, without("hang")) };
    let (reply, delivered) = spoil(&envelope, faults);
    (reply, describe(&envelope, &outcome, delivered, begun.elapsed()))
}

fn latency(faults: &[Fault]) -> Duration {
    let each = faults.iter().map(|fault| match fault {
        Fault::Latency(wait) => *wait,
        _ => Duration::ZERO,
    });
    each.sum()
}

fn describe(envelope: &Value, outcome: &Outcome, delivered: bool, after: Duration) -> Answer {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let data = envelope.get("data");
    // Only an operation has a second code; a list of modules has none.
    let inner = data.filter(|_| !matches!(outcome, Outcome::Unknown)).and_then(|data| data.get("code"));
    Answer {
        code: text(envelope.get("code")).unwrap_or_default(),
        inner: text(inner),
        message: text(envelope.get("message").or_else(|| data.and_then(|data| data.get("message")))),
        delivered,
        after,
    }
}

/// The reply as the faults leave it, and whether the caller can still read it.
fn spoil(envelope: &Value, faults: &[Fault]) -> (Reply, bool) {
    let page = |body: &str| [OK, body.as_bytes()].concat();
    for fault in faults {
        let reply = match fault {
            Fault::LoseAnswer => Reply::Close,
            Fault::WithholdAnswer => Reply::Silence,
            Fault::Truncate => {
                let whole = envelope.to_string();
                let half = whole.as_bytes().iter().take(whole.len() / 2).copied().collect::<Vec<u8>>();
                Reply::Bytes([OK, &half].concat())
            }
            Fault::Text(text) => Reply::Bytes(page(text)),
            Fault::WrongTypes => Reply::Bytes(page(
                &json!({ "code": 200, "data": "none", "message": ["x"], "baseIdentity": {} }).to_string(),
            )),
            Fault::Status(status) => Reply::Bytes(
                format!(
                    "HTTP/1.1 {status} Simulated\r\nContent-Type: text/html\r\n\r\n<html>{status}</html>"
                )
                .into_bytes(),
            ),
            Fault::Oversize(more) => {
                let mut large = envelope.clone();
                if let Some(fields) = large.as_object_mut() {
                    fields.insert("padding".to_owned(), Value::String("x".repeat(*more)));
                }
                return (Reply::Bytes(page(&large.to_string())), true);
            }
            _ => continue,
        };
        return (reply, false);
    }
    (Reply::Bytes(page(&envelope.to_string())), true)
}
