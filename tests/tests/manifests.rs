//! Every YAML that we ship says what it means: it parses into the type of its kind and loses no key on the way back.
//!
//! The API server has the last word (`e2e_manifests.rs`); this test finds a typo in a second, without one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at what it did not expect"
)]

mod schedulers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::admissionregistration::v1alpha1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use schedulers::SchedulerConfiguration;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_path_buf()
}

fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a folder entry").path();
        if path.is_dir() {
            found.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn documents(text: &str) -> Result<Vec<Value>, String> {
    serde_saphyr::from_multiple::<Value>(text).map_err(|error| error.to_string())
}

/// Keys of `input` that are not in `output`, as paths.
fn lost(path: &str, input: &Value, output: &Value, found: &mut Vec<String>) {
    match (input, output) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let path = format!("{path}.{key}");
                match after.get(key) {
                    Some(kept) => lost(&path, value, kept, found),
                    // kustomize's own word in a patch.
                    None if key == "$patch" || value.is_null() => {}
                    None => found.push(path),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            for (index, (value, kept)) in before.iter().zip(after).enumerate() {
                lost(&format!("{path}[{index}]"), value, kept, found);
            }
            if before.len() != after.len() {
                found.push(format!("{path}: {} entries became {}", before.len(), after.len()));
            }
        }
        (before, after) if before == after => {}
        (before, after) => found.push(format!("{path}: {before} became {after}")),
    }
}

fn round_trip<T: DeserializeOwned + Serialize>(document: &Value) -> Result<(), String> {
    let typed: T = serde_json::from_value(document.clone()).map_err(|error| error.to_string())?;
    let back = serde_json::to_value(&typed).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    lost("", document, &back, &mut found);
    if found.is_empty() { Ok(()) } else { Err(format!("unknown or changed: {}", found.join(", "))) }
}

fn check(document: &Value) -> Result<(), String> {
    let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("v1", "ConfigMap") => round_trip::<ConfigMap>(document).and_then(|()| check_data(document)),
        ("v1", "Namespace") => round_trip::<Namespace>(document),
        ("v1", "Pod") => round_trip::<Pod>(document),
        ("v1", "Secret") => round_trip::<Secret>(document),
        ("v1", "Service") => round_trip::<Service>(document),
        ("v1", "ServiceAccount") => round_trip::<ServiceAccount>(document),
        ("apps/v1", "DaemonSet") => round_trip::<DaemonSet>(document),
        ("apps/v1", "Deployment") => round_trip::<Deployment>(document),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            round_trip::<ValidatingAdmissionPolicy>(document)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            round_trip::<ValidatingAdmissionPolicyBinding>(document)
        }
        // The types at hand know this kind as v1alpha1 only; its fields are the same.
        ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy") => {
            round_trip::<MutatingAdmissionPolicy>(&with_version(
                document,
                "admissionregistration.k8s.io/v1alpha1",
            ))
        }
        ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding") => {
            round_trip::<MutatingAdmissionPolicyBinding>(&with_version(
                document,
                "admissionregistration.k8s.io/v1alpha1",
            ))
        }
        ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema") => round_trip::<FlowSchema>(document),
        ("networking.k8s.io/v1", "NetworkPolicy") => round_trip::<NetworkPolicy>(document),
        ("policy/v1", "PodDisruptionBudget") => round_trip::<PodDisruptionBudget>(document),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => round_trip::<ClusterRole>(document),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => round_trip::<ClusterRoleBinding>(document),
        ("rbac.authorization.k8s.io/v1", "Role") => round_trip::<Role>(document),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => round_trip::<RoleBinding>(document),
        ("scheduling.k8s.io/v1", "PriorityClass") => round_trip::<PriorityClass>(document),
        // Read whole by monitoring.rs.
        ("monitoring.coreos.com/v1", "PrometheusRule") => Ok(()),
        ("kustomize.config.k8s.io/v1beta1" | "kustomize.config.k8s.io/v1alpha1", _) => {
            serde_json::from_value::<Kustomization>(document.clone())
                .map(drop)
                .map_err(|error| error.to_string())
        }
        ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration") => {
            serde_json::from_value::<SchedulerConfiguration>(document.clone())
                .map(drop)
                .map_err(|error| error.to_string())
        }
        (version, kind) => Err(format!("no type is known for {version} {kind}")),
    }
}

fn with_version(document: &Value, version: &str) -> Value {
    let mut document = document.clone();
    if let Some(field) = document.get_mut("apiVersion") {
        *field = Value::from(version);
    }
    document
}

/// Files inside of a `ConfigMap` are documents too.
fn check_data(config_map: &Value) -> Result<(), String> {
    let data = config_map.get("data").and_then(Value::as_object).into_iter().flatten();
    for (key, text) in data.filter(|(key, _)| Path::new(key).extension().is_some_and(|end| end == "yaml")) {
        check_text(text.as_str().unwrap_or_default()).map_err(|error| format!("{key}: {error}"))?;
    }
    Ok(())
}

/// A whole file, or one block of a page.
fn check_text(text: &str) -> Result<(), String> {
    let documents = documents(text)?;
    if documents.iter().any(|d| d.get("apiVersion").is_some_and(|v| v == "policy.stowage.dev/v1alpha1")) {
        return load_policy(text);
    }
    documents.iter().try_for_each(|document| {
        check(document).map_err(|error| {
            let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("no name");
            format!("{name}: {error}")
        })
    })
}

fn load_policy(text: &str) -> Result<(), String> {
    policy::file::load(text).map(drop).map_err(|problems| format!("{problems:?}"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    components: Vec<String>,
    #[serde(default)]
    patches: Vec<Patch>,
    #[serde(default, rename = "images")]
    _images: Vec<BTreeMap<String, String>>,
    #[serde(default, rename = "configMapGenerator")]
    _config_map_generator: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    path: Option<String>,
    #[serde(rename = "patch")]
    inline: Option<String>,
    #[serde(rename = "target")]
    _target: Option<Value>,
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn faults(files: impl IntoIterator<Item = PathBuf>, of: impl Fn(&str) -> Result<(), String>) -> Vec<String> {
    files
        .into_iter()
        .filter_map(|path| of(&read(&path)).err().map(|error| format!("{}: {error}", path.display())))
        .collect()
}

#[test]
fn every_manifest_parses_into_its_type() {
    let files = files_below(&repository().join("manifests"), "yaml");
    assert!(files.len() > 20, "only {} manifests were found", files.len());
    assert_eq!(faults(files, check_text), Vec::<String>::new());
}

#[test]
fn every_policy_sample_loads() {
    let files = files_below(&repository().join("policy/samples"), "yaml");
    assert!(!files.is_empty(), "no policy samples were found");
    assert_eq!(faults(files, load_policy), Vec::<String>::new());
}

/// The blocks of a page that are fenced as `yaml`.
fn blocks(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in page.lines() {
        match (&mut open, line.trim()) {
            (None, "```yaml") => open = Some(String::new()),
            (Some(_), "```") => found.extend(open.take()),
            (Some(block), _) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}

#[test]
fn every_yaml_block_of_the_docs_parses() {
    let mut pages = files_below(&repository().join("docs"), "md");
    pages.push(repository().join("README.md"));
    let check_page = |page: &str| {
        blocks(page).iter().try_for_each(|block| {
            // A block without a kind shows a part of something: it must be YAML.
            if documents(block)?.iter().all(|d| d.get("kind").is_some()) { check_text(block) } else { Ok(()) }
        })
    };
    assert_eq!(faults(pages, check_page), Vec::<String>::new());
}

#[test]
fn every_file_is_part_of_a_kustomization() {
    let manifests = repository().join("manifests");
    let samples = manifests.join("samples");
    let all: BTreeSet<PathBuf> =
        files_below(&manifests, "yaml").into_iter().filter(|path| !path.starts_with(&samples)).collect();
    let mut named = BTreeSet::new();
    for path in all.iter().filter(|path| path.ends_with("kustomization.yaml")) {
        let kustomization: Kustomization =
            serde_saphyr::from_str(&read(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        named.insert(path.clone());
        let folder = path.parent().expect("a file has a folder");
        let paths = kustomization.patches.iter().filter_map(|patch| patch.path.as_ref());
        for name in kustomization.resources.iter().chain(&kustomization.components).chain(paths) {
            let target = folder.join(name);
            assert!(target.exists(), "{} names {name}, which is not there", path.display());
            named.insert(target);
        }
        for patch in kustomization.patches.iter().filter_map(|patch| patch.inline.as_ref()) {
            documents(patch).unwrap_or_else(|error| panic!("{}: a patch: {error}", path.display()));
        }
    }
    let orphans: Vec<_> = all.difference(&named).collect();
    assert!(orphans.is_empty(), "in no kustomization: {orphans:?}");
}

fn objects(path: &str) -> Vec<Value> {
    documents(&read(&repository().join("manifests").join(path)))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents in `key` of the `ConfigMap` that is the whole of the file `path`.
fn inner(path: &str, key: &str) -> String {
    let objects = objects(path);
    let data = objects.iter().find_map(|object| object.get("data").and_then(|data| data.get(key)));
    data.and_then(Value::as_str).unwrap_or_else(|| panic!("{path} has no {key}")).to_owned()
}

/// kubelet ends a base when its `preStop` is over; the modules must have left the traffic by then.
#[test]
fn sample_bases_outlive_the_drain_wait() {
    let policy = documents(&inner("base/policy.yaml", "policy.yaml")).expect("the shipped policy is YAML");
    let wait = policy
        .iter()
        .find_map(|d| d.pointer("/drain/wait")?.as_str()?.strip_suffix('s')?.parse::<i64>().ok());
    let wait = wait.expect("the shipped policy names drain.wait in seconds");
    let stack = "/spec/template/metadata/labels/basement.koupleless.io~1stack";
    let bases: Vec<Deployment> =
        ["samples/bases.yaml", "samples/linked-rollout.yaml", "samples/base-sidecar.yaml"]
            .into_iter()
            .flat_map(objects)
            .filter(|object| object.pointer(stack).is_some())
            .map(|object| serde_json::from_value(object).expect("a Deployment"))
            .collect();
    assert!(bases.len() >= 3, "the samples have bases of two versions, and one that rolls");
    for base in bases {
        let pod = base.spec.and_then(|spec| spec.template.spec).expect("a template");
        let container = pod.containers.first().expect("a container");
        let stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        let sleep =
            stop.and_then(|stop| stop.sleep.as_ref()).map(|sleep| sleep.seconds).expect("preStop sleeps");
        assert!(sleep >= wait, "preStop sleeps {sleep} s, the drain waits {wait} s");
        assert!(pod.termination_grace_period_seconds.is_some_and(|grace| grace > sleep));
    }
}

/// BL-042: what a module's controller must say about rollouts and tolerations, so that a release on full bases moves.
#[test]
fn sample_modules_can_be_released_on_full_bases() {
    for path in files_below(&repository().join("manifests/samples"), "yaml") {
        for object in documents(&read(&path)).expect("YAML") {
            let labels = object.pointer("/spec/template/metadata/labels");
            if labels.and_then(|labels| labels.get("stowage.dev/module-pod")).is_none() {
                continue;
            }
            let daemon_set = object.get("kind").is_some_and(|kind| kind == "DaemonSet");
            let strategy = if daemon_set { "/spec/updateStrategy" } else { "/spec/strategy" };
            let of = |limit| object.pointer(&format!("{strategy}/rollingUpdate/{limit}"));
            // One that may surge must be able to do without.
            let moves = of("maxSurge") == Some(&Value::from(0))
                || of("maxUnavailable").and_then(Value::as_u64).is_some_and(|pods| pods > 0);
            assert!(moves, "{}", path.display());
            let tolerations = object.pointer("/spec/template/spec/tolerations").and_then(Value::as_array);
            let tolerates = tolerations
                .into_iter()
                .flatten()
                .any(|t| t.get("key").is_some_and(|key| key == "schedule.koupleless.io/virtual-node"));
            assert!(tolerates || !daemon_set, "{}: a DaemonSet needs the toleration", path.display());
        }
    }
}

#[test]
fn a_lost_key_is_found() {
    let deployment = |text: &str| check_text(text).unwrap_err();
    let error = deployment(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  replica: 3\n  template: {}\n  selector: {}\n",
    );
    assert!(error.contains(".spec.replica"), "{error}");
    let error = deployment(
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{prot: TCP, port: 1}]}\n",
    );
    assert!(error.contains(".spec.ports[0].prot"), "{error}");
    assert!(check_text("apiVersion: v1\nkind: Gadget\n").unwrap_err().contains("no type is known"));
}

/// BL-127: our own Pods are placed by the scheduler of the cluster, which asks no extender, and nothing of ours must be up for
/// a Pod to be created: a cluster that starts cold, or lost our last Pod, comes up by itself.
#[test]
fn our_own_pods_wait_for_nothing_of_ours() {
    let mut seen = 0;
    for path in files_below(&repository().join("manifests"), "yaml") {
        let text = std::fs::read_to_string(&path).unwrap();
        for document in documents(&text).unwrap_or_default() {
            let kind = document["kind"].as_str().unwrap_or_default();
            assert!(!kind.ends_with("WebhookConfiguration"), "{}: {kind}", path.display());
            let ours = document["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("stowage-"));
            if kind == "Deployment" && ours {
                let scheduler = &document["spec"]["template"]["spec"]["schedulerName"];
                assert!(scheduler.is_null(), "{}: {scheduler}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen >= 2, "agent and scheduler: {seen}");
}
