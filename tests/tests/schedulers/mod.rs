//! The configurations of kube-scheduler that we ship, beside the extender that each of them calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Parser;
use scheduler_extender::args::Args;
use serde::Deserialize;
use serde_json::Value;

use crate::{documents, files_below, inner, objects, read, repository};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct SchedulerConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    percentage_of_nodes_to_score: u8,
    leader_election: LeaderElection,
    client_connection: Value,
    profiles: Vec<Profile>,
    extenders: Vec<Extender>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LeaderElection {
    leader_elect: bool,
    resource_namespace: String,
    resource_name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Profile {
    scheduler_name: String,
    plugins: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Extender {
    url_prefix: String,
    filter_verb: String,
    prioritize_verb: String,
    #[serde(default)]
    bind_verb: Option<String>,
    #[serde(default)]
    preempt_verb: Option<String>,
    weight: u32,
    node_cache_capable: bool,
    ignorable: bool,
    http_timeout: String,
    #[serde(default, rename = "enableHTTPS")]
    enable_https: bool,
    #[serde(default)]
    tls_config: Option<Value>,
}

fn arguments(path: &str, container: &str) -> Vec<String> {
    let objects = objects(path);
    let containers =
        objects.iter().filter_map(|o| o.pointer("/spec/template/spec/containers")?.as_array()).flatten();
    let found = containers
        .filter(|c| c.get("name").is_some_and(|name| name == container))
        .find_map(|c| c.get("args"));
    let arguments =
        found.and_then(Value::as_array).unwrap_or_else(|| panic!("{path}: no container {container}"));
    arguments.iter().filter_map(|argument| argument.as_str().map(str::to_owned)).collect()
}

/// Each configuration, the file with the extender that it calls, and the container there.
const SHIPPED: [(&str, &str, &str); 5] = [
    ("base/scheduler/configuration.yaml", "base/scheduler/deployment.yaml", "extender"),
    ("overlays/extender-mtls/configuration.yaml", "overlays/extender-mtls/extender.yaml", "extender"),
    ("overlays/extender-bind/configuration.yaml", "base/scheduler/deployment.yaml", "extender"),
    ("overlays/extender-preempt/configuration.yaml", "base/scheduler/deployment.yaml", "extender"),
    ("overlays/extender-replicas/configuration.yaml", "overlays/extender-mtls/extender.yaml", "extender"),
];

/// The findings about kube-scheduler that every configuration of ours must respect (docs/limits.md).
#[test]
fn the_scheduler_configurations_hold_what_is_known_of_kube_scheduler() {
    for (path, deployment, container) in SHIPPED {
        let configuration: SchedulerConfiguration =
            serde_saphyr::from_str(&inner(path, "scheduler.yaml")).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(configuration.percentage_of_nodes_to_score, 100, "{path}");
        let qps = configuration.client_connection.pointer("/qps").and_then(Value::as_u64);
        assert!(qps >= Some(100), "{path}: flags say nothing beside a file");
        assert!(configuration.leader_election.leader_elect, "{path}");
        assert_eq!(configuration.leader_election.resource_name, "stowage-scheduler", "{path}");
        assert_eq!(configuration.leader_election.resource_namespace, "stowage-system", "{path}");
        let [profile] = configuration.profiles.as_slice() else { panic!("{path}: one profile is wanted") };
        assert_eq!(profile.scheduler_name, "stowage-scheduler", "{path}");
        let disabled = profile.plugins.pointer("/multiPoint/disabled").and_then(Value::as_array);
        let preempts = !disabled
            .into_iter()
            .flatten()
            .any(|p| p.get("name").is_some_and(|name| name == "DefaultPreemption"));
        assert_eq!(preempts, path.contains("extender-preempt"), "{path}: preemption asks no filter");
        let [extender] = configuration.extenders.as_slice() else { panic!("{path}: one extender is wanted") };
        assert!(extender.node_cache_capable && !extender.ignorable, "{path}");
        assert_eq!(
            (extender.filter_verb.as_str(), extender.prioritize_verb.as_str()),
            ("filter", "prioritize")
        );
        let binds = ["extender-bind", "extender-replicas"].iter().any(|overlay| path.contains(overlay));
        assert_eq!(extender.bind_verb.as_deref(), binds.then_some("bind"), "{path}");
        assert_eq!(extender.preempt_verb.as_deref(), preempts.then_some("preempt"), "{path}");
        assert_eq!((extender.weight, extender.http_timeout.as_str()), (5, "2s"), "{path}");
        let url = url::Url::parse(&extender.url_prefix).expect("urlPrefix is a URL");
        assert_eq!(extender.enable_https, url.scheme() == "https", "{path}");
        assert_eq!(extender.enable_https, extender.tls_config.is_some(), "{path}");
        let listen = arguments(deployment, container)
            .iter()
            .find_map(|argument| argument.strip_prefix("--listen=")?.rsplit_once(':')?.1.parse::<u16>().ok());
        assert_eq!(listen, url.port(), "{path} and {deployment} name different ports");
    }
}

/// Each configuration below `manifests`, wherever it stands, by file.
fn every_configuration() -> BTreeMap<String, SchedulerConfiguration> {
    let manifests = repository().join("manifests");
    let mut found = BTreeMap::new();
    for path in files_below(&manifests, "yaml") {
        let name = path.strip_prefix(&manifests).expect("below it").display().to_string();
        for document in documents(&read(&path)).unwrap_or_else(|error| panic!("{name}: {error}")) {
            let data =
                document.get("data").and_then(Value::as_object).into_iter().flat_map(|data| data.values());
            for text in
                data.filter_map(Value::as_str).filter(|text| text.contains("KubeSchedulerConfiguration"))
            {
                let read = serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(found.insert(name.clone(), read).is_none(), "{name} has two");
            }
        }
    }
    found
}

/// The extender says that it did not decide in time before kube-scheduler gives up on it: by its default, by what it is
/// started with, and by what a patch may start it with.
#[test]
fn the_extender_answers_before_kube_scheduler_stops_waiting() {
    let configurations = every_configuration();
    let named: BTreeSet<_> = SHIPPED.iter().map(|(path, ..)| (*path).to_owned()).collect();
    assert_eq!(configurations.keys().cloned().collect::<BTreeSet<_>>(), named, "all are looked at");
    let deadline = |arguments: Vec<String>| {
        let words = std::iter::once("stowage-extender".to_owned()).chain(arguments);
        Args::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).request_deadline
    };
    let default = deadline(Vec::new());
    assert!(default > Duration::ZERO);
    for (path, deployment, container) in SHIPPED {
        let [extender] = configurations[path].extenders.as_slice() else { panic!("{path}: one extender") };
        let timeout = humantime::parse_duration(&extender.http_timeout).expect("httpTimeout is a duration");
        assert!(default < timeout, "{path}: the default is {default:?}, httpTimeout {timeout:?}");
        let started = deadline(arguments(deployment, container));
        assert!(started < timeout, "{deployment}: {started:?}, httpTimeout of {path} {timeout:?}");
    }
    for path in files_below(&repository().join("manifests"), "yaml") {
        assert!(
            !read(&path).contains("--request-deadline"),
            "{}: compare it with httpTimeout",
            path.display()
        );
    }
}
