//! Which fields of a Pod a module can honour. What cannot be honoured and means something is refused before
//! an install; what is merely without effect is named in one Warning Event. What the API server adds by
//! itself never warns.

use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, Probe, Volume};

/// Fields that keep a VPod from being installed, and why.
pub const REFUSED: &[(&str, &str)] = &[
    ("spec.initContainers", "a module cannot run other containers first"),
    ("spec.ephemeralContainers", "a module has no container to enter"),
];

/// Fields that are without effect.
pub const IGNORED: &[&str] = &[
    "spec.hostNetwork",
    "spec.hostPID",
    "spec.hostIPC",
    "spec.securityContext",
    "spec.volumes",
    "spec.restartPolicy",
    "spec.containers[].command",
    "spec.containers[].env",
    "spec.containers[].envFrom",
    "spec.containers[].volumeMounts",
    "spec.containers[].securityContext",
    "spec.containers[].lifecycle.postStart",
    "spec.containers[].lifecycle.preStop.exec",
    "spec.containers[].lifecycle.preStop.httpGet.host",
    "spec.containers[].startupProbe.exec",
    "spec.containers[].startupProbe.grpc",
    "spec.containers[].startupProbe.httpGet.host",
    "spec.containers[].startupProbe.tcpSocket.host",
    "spec.containers[].livenessProbe.exec",
    "spec.containers[].livenessProbe.grpc",
    "spec.containers[].livenessProbe.httpGet.host",
    "spec.containers[].livenessProbe.tcpSocket.host",
    "spec.containers[].readinessProbe.exec",
    "spec.containers[].readinessProbe.grpc",
    "spec.containers[].readinessProbe.httpGet.host",
    "spec.containers[].readinessProbe.tcpSocket.host",
];

/// Fields that are honoured, and how.
pub const HONOURED: &[(&str, &str)] = &[
    ("spec.containers[].name", "name of the module unless MODULE_NAME names it"),
    ("spec.containers[].image", "URL of the jar"),
    ("spec.containers[].args", "arguments of the module's main"),
    ("spec.containers[].env[MODULE_VERSION]", "version; BIZ_VERSION is read too"),
    ("spec.containers[].env[MODULE_NAME]", "name"),
    ("spec.containers[].startupProbe", "httpGet and tcpSocket; holds the other probes back"),
    ("spec.containers[].livenessProbe", "httpGet and tcpSocket; a failure installs the module again"),
    ("spec.containers[].readinessProbe", "httpGet and tcpSocket"),
    (
        "spec.containers[].startupProbe.terminationGracePeriodSeconds",
        "bounds the hook when it fails for good",
    ),
    (
        "spec.containers[].livenessProbe.terminationGracePeriodSeconds",
        "bounds the hook when it fails for good",
    ),
    ("spec.containers[].lifecycle.preStop.httpGet", "called before every uninstall of what ran"),
    ("spec.containers[].resources", "counted by kube-scheduler; no limit inside the JVM"),
    ("spec.readinessGates", "all must be True for Ready"),
    ("spec.terminationGracePeriodSeconds", "bounds hook, drain and uninstall"),
];

/// The first field for which this Pod is refused, with the reason.
pub fn refused(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let present = |field: &str| match field {
        "spec.initContainers" => spec.init_containers.as_ref().is_some_and(|list| !list.is_empty()),
        "spec.ephemeralContainers" => spec.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()),
        _ => false,
    };
    REFUSED.iter().find(|(field, _)| present(field)).map(|(field, why)| format!("{field}: {why}"))
}

/// Fields of this Pod that are without effect, in the order of [`IGNORED`].
pub fn ignored(pod: &Pod) -> Vec<&'static str> {
    let Some(spec) = pod.spec.as_ref() else { return Vec::new() };
    IGNORED
        .iter()
        .copied()
        .filter(|field| match *field {
            "spec.hostNetwork" => spec.host_network == Some(true),
            "spec.hostPID" => spec.host_pid == Some(true),
            "spec.hostIPC" => spec.host_ipc == Some(true),
            "spec.securityContext" => spec
                .security_context
                .as_ref()
                .is_some_and(|context| *context != PodSecurityContext::default()),
            "spec.volumes" => spec.volumes.iter().flatten().any(|volume| !added_by_the_api_server(volume)),
            "spec.restartPolicy" => spec.restart_policy.as_deref().is_some_and(|policy| policy != "Always"),
            field => spec.containers.iter().any(|container| uses(container, field)),
        })
        .collect()
}

fn added_by_the_api_server(volume: &Volume) -> bool {
    volume.name.starts_with("kube-api-access-") && volume.projected.is_some()
}

fn uses(container: &Container, field: &str) -> bool {
    const OURS: [&str; 3] = ["MODULE_VERSION", "BIZ_VERSION", "MODULE_NAME"];
    let lifecycle = container.lifecycle.as_ref();
    match field {
        "spec.containers[].command" => container.command.as_ref().is_some_and(|list| !list.is_empty()),
        "spec.containers[].env" => {
            container.env.iter().flatten().any(|var| !OURS.contains(&var.name.as_str()))
        }
        "spec.containers[].envFrom" => container.env_from.as_ref().is_some_and(|list| !list.is_empty()),
        "spec.containers[].volumeMounts" => container
            .volume_mounts
            .iter()
            .flatten()
            .any(|mount| !mount.mount_path.starts_with("/var/run/secrets/kubernetes.io/serviceaccount")),
        "spec.containers[].securityContext" => container.security_context.is_some(),
        "spec.containers[].lifecycle.postStart" => lifecycle.is_some_and(|hooks| hooks.post_start.is_some()),
        "spec.containers[].lifecycle.preStop.exec" => lifecycle
            .and_then(|hooks| hooks.pre_stop.as_ref())
            .is_some_and(|hook| hook.exec.is_some() || hook.tcp_socket.is_some()),
        "spec.containers[].lifecycle.preStop.httpGet.host" => lifecycle
            .and_then(|hooks| hooks.pre_stop.as_ref()?.http_get.as_ref())
            .is_some_and(|get| named(get.host.as_ref())),
        field => {
            let probes = [
                ("spec.containers[].startupProbe.", &container.startup_probe),
                ("spec.containers[].livenessProbe.", &container.liveness_probe),
                ("spec.containers[].readinessProbe.", &container.readiness_probe),
            ];
            probes.into_iter().any(|(name, probe)| {
                probe.as_ref().zip(field.strip_prefix(name)).is_some_and(|(probe, field)| says(probe, field))
            })
        }
    }
}

/// Whether a probe has this field.
fn says(probe: &Probe, field: &str) -> bool {
    match field {
        "exec" => probe.exec.is_some(),
        "grpc" => probe.grpc.is_some(),
        "httpGet.host" => probe.http_get.as_ref().is_some_and(|get| named(get.host.as_ref())),
        "tcpSocket.host" => probe.tcp_socket.as_ref().is_some_and(|tcp| named(tcp.host.as_ref())),
        _ => false,
    }
}

fn named(host: Option<&String>) -> bool {
    host.is_some_and(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: serde_json::Value) -> Pod {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_the_api_server_adds_does_not_warn() {
        let pod = pod(serde_json::json!({"spec": {
            "restartPolicy": "Always", "securityContext": {}, "dnsPolicy": "ClusterFirst",
            "volumes": [{"name": "kube-api-access-x", "projected": {"sources": []}}],
            "containers": [{"name": "shop", "image": "https://h/x.jar", "imagePullPolicy": "Always",
              "env": [{"name": "MODULE_VERSION", "value": "1"}],
              "volumeMounts": [{"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}]}}));
        assert_eq!(ignored(&pod), Vec::<&str>::new());
        assert_eq!(refused(&pod), None);
    }

    /// BL-133: what a module cannot have and nobody is harmed by is one warning.
    #[test]
    fn fields_without_effect_are_named_once_and_in_order() {
        let pod = pod(serde_json::json!({"spec": {"hostNetwork": true,
            "volumes": [{"name": "data", "hostPath": {"path": "/x"}}],
            "containers": [{"name": "a", "command": ["x"]}, {"name": "b", "command": ["y"], "livenessProbe": {"exec": {"command": ["x"]}}}]}}));
        assert_eq!(
            ignored(&pod),
            [
                "spec.hostNetwork",
                "spec.volumes",
                "spec.containers[].command",
                "spec.containers[].livenessProbe.exec"
            ]
        );
    }

    #[test]
    fn a_host_to_ask_instead_of_the_base_is_without_effect() {
        let pod = pod(serde_json::json!({"spec": {"containers": [
            {"name": "a", "readinessProbe": {"httpGet": {"port": 1, "host": "elsewhere"}},
             "lifecycle": {"preStop": {"httpGet": {"port": 1, "host": "elsewhere"}}}},
            {"name": "b", "readinessProbe": {"tcpSocket": {"port": 1, "host": "elsewhere"}}},
            {"name": "c", "readinessProbe": {"httpGet": {"port": 1, "host": ""}}}]}}));
        assert_eq!(
            ignored(&pod),
            [
                "spec.containers[].lifecycle.preStop.httpGet.host",
                "spec.containers[].readinessProbe.httpGet.host",
                "spec.containers[].readinessProbe.tcpSocket.host",
            ]
        );
    }

    /// BL-133: what would change what the Pod means is refused before the install.
    #[test]
    fn each_probe_is_looked_at_for_what_a_module_cannot_have() {
        let pod = |kind: &str, probe: serde_json::Value| {
            pod(serde_json::json!({"spec": {"containers": [{"name": "a", kind: probe}]}}))
        };
        for kind in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let fine = serde_json::json!({"httpGet": {"port": 1, "scheme": "HTTPS"}, "periodSeconds": 3});
            assert_eq!(ignored(&pod(kind, fine)), Vec::<&str>::new());
            let grpc = pod(kind, serde_json::json!({"grpc": {"port": 1}}));
            assert_eq!(ignored(&grpc), [format!("spec.containers[].{kind}.grpc")]);
        }
        let grace = serde_json::json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 5});
        assert_eq!(ignored(&pod("livenessProbe", grace)), Vec::<&str>::new());
    }

    #[test]
    fn init_containers_are_refused() {
        let pod = pod(serde_json::json!({"spec": {"containers": [], "initContainers": [{"name": "x"}]}}));
        assert!(refused(&pod).unwrap().starts_with("spec.initContainers: "));
        assert_eq!(refused(&Pod::default()), None);
    }
}
