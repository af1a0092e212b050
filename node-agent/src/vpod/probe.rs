//! Readiness probes of modules, and the one HTTP GET that probes and preStop hooks share. Always against the
//! base's own address: a Pod cannot make the agent call anything else.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, USER_AGENT};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// 200 to 399 is success.
    Http(Get),
    /// A connection is success. HTTPS probes are reduced to this: a certificate says nothing of a module.
    Tcp(u16),
}

/// An HTTP GET.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    port: u16,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// A probe as it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What is asked.
    pub target: Target,
    initial_delay: Duration,
    period: Duration,
    timeout: Duration,
    successes: u32,
    failures: u32,
}

/// A probe's verdict changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// UID of the VPod.
    pub uid: String,
    /// Name of the container.
    pub container: String,
    /// `None` is ready; else why not, short and free of credentials.
    pub unready: Option<String>,
}

/// The readiness probe of a container; `None` when it has none that a module can have.
pub fn check(container: &Container) -> Option<Check> {
    let probe = container.readiness_probe.as_ref()?;
    let target = if let Some(get) = &probe.http_get {
        if get.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")) {
            Target::Tcp(port(container, &get.port)?)
        } else {
            Target::Http(self::get(container, get)?)
        }
    } else {
        Target::Tcp(port(container, &probe.tcp_socket.as_ref()?.port)?)
    };
    Some(times(probe, target))
}

fn times(probe: &Probe, target: Target) -> Check {
    let seconds = |value: Option<i32>, least: u64, default: u64| {
        Duration::from_secs(value.map_or(default, |value| u64::try_from(value).unwrap_or(default)).max(least))
    };
    let count = |value: Option<i32>, default: u32| {
        value.map_or(default, |value| u32::try_from(value).unwrap_or(default)).max(1)
    };
    Check {
        target,
        initial_delay: seconds(probe.initial_delay_seconds, 0, 0),
        period: seconds(probe.period_seconds, 1, 10),
        timeout: seconds(probe.timeout_seconds, 1, 1),
        successes: count(probe.success_threshold, 1),
        failures: count(probe.failure_threshold, 3),
    }
}

/// An HTTP GET of this container, where it makes sense.
pub fn get(container: &Container, action: &HTTPGetAction) -> Option<Get> {
    let path = action.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let headers = action.http_headers.iter().flatten();
    Some(Get {
        port: port(container, &action.port)?,
        path,
        headers: headers
            .filter_map(|header| {
                let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
                Some((name, HeaderValue::from_str(&header.value).ok()?))
            })
            .collect(),
    })
}

fn port(container: &Container, port: &IntOrString) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok().filter(|port| *port > 0),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|known| known.name.as_ref() == Some(name));
            named
                .and_then(|known| u16::try_from(known.container_port).ok())
                .or_else(|| name.parse().ok())
                .filter(|port| *port > 0)
        }
    }
}

/// Runs a probe until the receiver is gone or the task is dropped; sends only changes. A module starts unready.
pub async fn run(
    ip: IpAddr,
    check: Check,
    uid: String,
    container: String,
    out: mpsc::UnboundedSender<Verdict>,
) {
    let mut ready = false;
    let mut shown: Option<Option<String>> = None;
    let (mut good, mut bad) = (0_u32, 0_u32);
    tokio::time::sleep(check.initial_delay).await;
    let mut ticks = tokio::time::interval(check.period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let outcome = once(ip, &check.target, check.timeout).await;
        (good, bad) = if outcome.is_ok() { (good.saturating_add(1), 0) } else { (0, bad.saturating_add(1)) };
        if good >= check.successes {
            ready = true;
        } else if bad >= check.failures {
            ready = false;
        }
        let unready = match (ready, outcome) {
            (true, _) => None,
            // While it fails the first words stay, so that a text that changes does not write the Pod each time.
            (false, Err(why)) => match &shown {
                Some(Some(known)) => Some(known.clone()),
                _ => Some(why),
            },
            (false, Ok(())) => shown.clone().flatten().or_else(|| Some("not ready yet".to_owned())),
        };
        if shown.as_ref() != Some(&unready) {
            shown = Some(unready.clone());
            let verdict = Verdict { uid: uid.clone(), container: container.clone(), unready };
            if out.send(verdict).is_err() {
                return;
            }
        }
    }
}

/// Asks once.
pub async fn once(ip: IpAddr, target: &Target, limit: Duration) -> Result<(), String> {
    let asked = async {
        match target {
            Target::Tcp(port) => connect(ip, *port).await.map(drop),
            Target::Http(get) => http(ip, get).await,
        }
    };
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
}

async fn connect(ip: IpAddr, port: u16) -> Result<TcpStream, String> {
    TcpStream::connect(SocketAddr::new(ip, port))
        .await
        .map_err(|error| format!("port {port}: {}", error.kind()))
}

async fn http(ip: IpAddr, get: &Get) -> Result<(), String> {
    let stream = connect(ip, get.port).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|_| "no HTTP".to_owned())?;
    let mut request =
        http::Request::get(&get.path).header(USER_AGENT, "kube-probe/stowage").header(CONNECTION, "close");
    if !get.headers.iter().any(|(name, _)| name == HOST) {
        request = request.header(HOST, SocketAddr::new(ip, get.port).to_string());
    }
    for (name, value) in &get.headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|_| "the path is no URL".to_owned())?;
    let answered = sender.send_request(request);
    tokio::pin!(answered);
    tokio::pin!(connection);
    let response = tokio::select! {
        response = &mut answered => response,
        _ = &mut connection => answered.await,
    };
    let status = response.map_err(|_| "the connection broke".to_owned())?.status();
    if (200..400).contains(&status.as_u16()) { Ok(()) } else { Err(format!("HTTP {}", status.as_u16())) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn container(probe: &serde_json::Value) -> Container {
        serde_json::from_value(json!({"name": "shop", "ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": probe})).unwrap()
    }

    #[test]
    fn ports_are_found_by_name_and_paths_begin_with_a_slash() {
        let check =
            check(&container(&json!({"httpGet": {"port": "web", "path": "health"}, "periodSeconds": 0})))
                .unwrap();
        assert_eq!(check.period, Duration::from_secs(1));
        match check.target {
            Target::Http(get) => assert_eq!((get.port, get.path.as_str()), (8080, "/health")),
            Target::Tcp(_) => panic!("an HTTP probe"),
        }
    }

    #[test]
    fn what_a_module_cannot_have_is_no_probe() {
        assert_eq!(check(&container(&json!({"exec": {"command": ["x"]}}))), None);
        assert_eq!(check(&container(&json!({"tcpSocket": {"port": "none"}}))), None);
        assert_eq!(check(&container(&json!({"tcpSocket": {"port": 70000}}))), None);
        let https = check(&container(&json!({"httpGet": {"port": 8443, "scheme": "HTTPS"}}))).unwrap();
        assert_eq!(https.target, Target::Tcp(8443));
    }

    #[tokio::test]
    async fn verdicts_follow_thresholds_and_only_changes_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = ["503", "200", "200", "500", "200", "500", "500"];
        let server = tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 512];
                let _ = stream.read(&mut request).await.unwrap();
                stream
                    .write_all(format!("HTTP/1.1 {answer} X\r\ncontent-length: 0\r\n\r\n").as_bytes())
                    .await
                    .unwrap();
            }
        });
        let get = Get { port: address.port(), path: "/".to_owned(), headers: Vec::new() };
        let check = Check {
            target: Target::Http(get),
            initial_delay: Duration::ZERO,
            period: Duration::from_millis(1),
            timeout: Duration::from_secs(5),
            successes: 1,
            failures: 2,
        };
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let probing = tokio::spawn(run(address.ip(), check, "u".to_owned(), "shop".to_owned(), sender));
        assert_eq!(receiver.recv().await.unwrap().unready.as_deref(), Some("HTTP 503"));
        assert_eq!(receiver.recv().await.unwrap().unready, None);
        assert_eq!(receiver.recv().await.unwrap().unready.as_deref(), Some("HTTP 500"));
        server.await.unwrap();
        probing.abort();
    }
}
