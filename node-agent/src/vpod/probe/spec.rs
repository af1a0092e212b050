//! What a Pod says of its probes.

use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Which probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Until it succeeds the others do not begin; when it fails for good the module is installed again.
    Startup,
    /// When it fails for good the module is installed again.
    Liveness,
    /// Whether the module takes traffic.
    Readiness,
}

impl Kind {
    /// As in `Liveness probe failed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// 200 to 399 is success.
    Http(Get),
    /// A connection is success.
    Tcp(u16),
}

/// An HTTP GET.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    /// Over TLS; the certificate is not looked at.
    pub(super) tls: bool,
    pub(super) port: u16,
    pub(super) path: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

/// One probe as it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What is asked.
    pub target: Target,
    /// Of one question.
    pub timeout: Duration,
    /// Since the module became active.
    pub(super) initial_delay: Duration,
    pub(super) period: Duration,
    pub(super) successes: u32,
    pub(super) failures: u32,
}

/// The probes of a container that a module can have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// `startupProbe`.
    pub startup: Option<Check>,
    /// `livenessProbe`.
    pub liveness: Option<Check>,
    /// `readinessProbe`.
    pub readiness: Option<Check>,
}

impl Probes {
    /// Reads them; what a module cannot have is left out.
    pub fn of(container: &Container) -> Self {
        let read = |probe: &Option<Probe>| probe.as_ref().and_then(|probe| check(container, probe));
        Self {
            startup: read(&container.startup_probe),
            liveness: read(&container.liveness_probe),
            readiness: read(&container.readiness_probe),
        }
    }

    /// Whether there is nothing to ask.
    pub fn is_empty(&self) -> bool {
        self.startup.is_none() && self.liveness.is_none() && self.readiness.is_none()
    }
}

fn check(container: &Container, probe: &Probe) -> Option<Check> {
    let target = if let Some(action) = &probe.http_get {
        Target::Http(get(container, action)?)
    } else {
        Target::Tcp(port(container, &probe.tcp_socket.as_ref()?.port)?)
    };
    let seconds = |value: Option<i32>, least: u64, default: u64| {
        Duration::from_secs(value.map_or(default, |value| u64::try_from(value).unwrap_or(default)).max(least))
    };
    let count = |value: Option<i32>, default: u32| {
        value.map_or(default, |value| u32::try_from(value).unwrap_or(default)).max(1)
    };
    Some(Check {
        target,
        initial_delay: seconds(probe.initial_delay_seconds, 0, 0),
        period: seconds(probe.period_seconds, 1, 10),
        timeout: seconds(probe.timeout_seconds, 1, 1),
        successes: count(probe.success_threshold, 1),
        failures: count(probe.failure_threshold, 3),
    })
}

/// An HTTP GET of this container, where it makes sense.
pub fn get(container: &Container, action: &HTTPGetAction) -> Option<Get> {
    let path = action.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let headers = action.http_headers.iter().flatten();
    Some(Get {
        tls: action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn probes(fields: &serde_json::Value) -> Probes {
        let mut container = json!({"name": "shop", "ports": [{"name": "web", "containerPort": 8080}]});
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        Probes::of(&serde_json::from_value(container).unwrap())
    }

    #[test]
    fn ports_are_found_by_name_and_paths_begin_with_a_slash() {
        let web = json!({"httpGet": {"port": "web", "path": "health"}, "periodSeconds": 0});
        let check = probes(&json!({"readinessProbe": web})).readiness.unwrap();
        assert_eq!(check.period, Duration::from_secs(1));
        match check.target {
            Target::Http(get) => {
                assert_eq!((get.tls, get.port, get.path.as_str()), (false, 8080, "/health"));
            }
            Target::Tcp(_) => panic!("an HTTP probe"),
        }
    }

    #[test]
    fn each_kind_is_read_and_has_the_defaults_of_kubernetes() {
        let tcp = json!({"tcpSocket": {"port": 1}});
        let all = probes(&json!({"startupProbe": tcp, "livenessProbe": tcp, "readinessProbe": tcp}));
        let seconds = Duration::from_secs;
        let wanted = Check {
            target: Target::Tcp(1),
            timeout: seconds(1),
            initial_delay: seconds(0),
            period: seconds(10),
            successes: 1,
            failures: 3,
        };
        assert_eq!(
            all,
            Probes { startup: Some(wanted.clone()), liveness: Some(wanted.clone()), readiness: Some(wanted) }
        );
        assert!(!all.is_empty());
    }

    #[test]
    fn what_a_module_cannot_have_is_no_probe() {
        for probe in [
            json!({"exec": {"command": ["x"]}}),
            json!({"grpc": {"port": 1}}),
            json!({"tcpSocket": {"port": "none"}}),
            json!({"tcpSocket": {"port": 70000}}),
        ] {
            assert!(probes(&json!({"livenessProbe": probe})).is_empty(), "{probe}");
        }
        let https = probes(&json!({"startupProbe": {"httpGet": {"port": 8443, "scheme": "HTTPS"}}}));
        assert!(matches!(https.startup.unwrap().target, Target::Http(Get { tls: true, port: 8443, .. })));
    }
}
