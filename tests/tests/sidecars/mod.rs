//! Bases with an agent of their own, as `manifests/samples/base-sidecar.yaml` has them.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

fn manifests(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests").join(path)
}

fn documents(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(manifests(path)).expect("a manifest");
    serde_saphyr::from_multiple(&text).expect("YAML")
}

/// What must be there before a namespace can have such bases: the component, bound to the account of this namespace under
/// names of its own, and the account with its right to Leases there.
pub(crate) fn rights(namespace: &str) -> String {
    let component = ["components/sidecar/rbac.yaml", "components/sidecar/confinement.yaml"];
    let mut objects: Vec<Value> = component.into_iter().flat_map(documents).collect();
    let mut bindings = documents("components/sidecar/bindings.yaml");
    bindings.retain(|object| object["kind"] != "FlowSchema");
    for binding in &mut bindings {
        binding["metadata"]["name"] = json!(format!("stowage-sidecar-{namespace}"));
        // The logs are bound where they are turned on.
        if binding["kind"] == "ClusterRoleBinding" {
            let mut logs = binding.clone();
            logs["metadata"]["name"] = json!(format!("stowage-sidecar-logs-{namespace}"));
            logs["roleRef"]["name"] = json!("stowage-sidecar-logs");
            objects.push(logs);
        }
        objects.push(binding.clone());
    }
    let account = documents("samples/base-sidecar.yaml").into_iter();
    objects.extend(account.filter(|object| {
        ["ServiceAccount", "Role", "RoleBinding"].iter().any(|kind| object["kind"] == *kind)
    }));
    for object in &mut objects {
        let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            subject["namespace"] = json!(namespace);
        }
        let cluster = object["metadata"]["namespace"].is_string()
            || object["kind"]
                .as_str()
                .is_some_and(|kind| kind.starts_with("Cluster") || kind.starts_with("Validating"));
        if !cluster {
            object["metadata"]["namespace"] = json!(namespace);
        }
    }
    objects.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n")
}

/// The Pod of the sample's Deployment.
pub(crate) fn sample_pod() -> Value {
    let sample = documents("samples/base-sidecar.yaml");
    let deployment = sample.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
    deployment["spec"]["template"]["spec"].clone()
}

/// The flags of the sample, as kubelet passes them to the container of this Pod.
pub(crate) fn flags(namespace: &str, pod: &str, uid: &str) -> Vec<String> {
    let sample = sample_pod();
    let args = sample["initContainers"][0]["args"].as_array().expect("args");
    let expand = |arg: &str| {
        arg.replace("$(POD_NAMESPACE)", namespace).replace("$(POD_NAME)", pod).replace("$(POD_UID)", uid)
    };
    args.iter().filter_map(Value::as_str).map(expand).collect()
}
