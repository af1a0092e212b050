//! What is shipped in `manifests/`, as a stage uses it: everything applied but the Deployments, whose programs the
//! stage runs itself with the flags, the configuration and the accounts that stand there.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::StageError;
use crate::controlplane::ControlPlane;

/// The namespace of our programs.
pub(super) const NAMESPACE: &str = "stowage-system";
/// Workloads that need real container runtimes, and what refers to their Pods.
const NOT_APPLIED: [&str; 2] = ["Deployment", "PodDisruptionBudget"];

/// A kustomization of ours, rendered.
#[derive(Debug)]
pub(super) struct Shipped(Vec<Value>);

/// Where the shipped manifests lie.
pub(crate) fn folder() -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    tests.parent().map(|root| root.join("manifests")).unwrap_or(tests)
}

impl Shipped {
    /// `manifests/base`, rendered once per process.
    pub(super) async fn base(control_plane: &ControlPlane) -> Result<&'static Self, StageError> {
        static BASE: OnceCell<Shipped> = OnceCell::const_new();
        BASE.get_or_try_init(|| Self::render(control_plane, "base")).await
    }

    /// Renders a kustomization with the `kubectl` of the control plane.
    pub(super) async fn render(control_plane: &ControlPlane, path: &str) -> Result<Self, StageError> {
        let folder = folder().join(path);
        let text = control_plane.kubectl()?.run(&["kustomize", &folder.display().to_string()]).await?;
        let objects = serde_saphyr::from_multiple(&text)
            .map_err(|error| StageError::Shipped(format!("{}: {error}", folder.display())))?;
        Ok(Self(objects))
    }

    /// Applies all but workloads.
    pub(super) async fn apply(&self, control_plane: &ControlPlane) -> Result<(), StageError> {
        let applied = self.0.iter().filter(|object| !NOT_APPLIED.contains(&text(object, "/kind")));
        let documents: Vec<String> = applied.map(Value::to_string).collect();
        let arguments = ["apply", "--server-side", "--validate=strict", "-f", "-"];
        control_plane.kubectl()?.run_with_input(&arguments, &documents.join("\n---\n")).await?;
        Ok(())
    }

    fn find(&self, kind: &str, name: &str) -> Result<&Value, StageError> {
        let is = |object: &&Value| text(object, "/kind") == kind && text(object, "/metadata/name") == name;
        self.0.iter().find(is).ok_or_else(|| StageError::Shipped(format!("no {kind} {name}")))
    }

    /// The arguments of a container, with those of `ours` instead of or beside them.
    pub(super) fn arguments(
        &self,
        deployment: &str,
        container: &str,
        ours: &[String],
    ) -> Result<Vec<String>, StageError> {
        let containers = self
            .find("Deployment", deployment)?
            .pointer("/spec/template/spec/containers")
            .and_then(Value::as_array);
        let found = containers
            .into_iter()
            .flatten()
            .find(|object| text(object, "/name") == container)
            .and_then(|object| object.get("args")?.as_array())
            .ok_or_else(|| StageError::Shipped(format!("no arguments of {container} in {deployment}")))?;
        let shipped = found.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(merged(shipped, ours))
    }

    /// The configuration of the scheduler, with the port of our extender, our credentials, and no leader election.
    pub(super) fn scheduler_configuration(
        &self,
        extender_port: u16,
        kubeconfig: &str,
    ) -> Result<String, StageError> {
        let broken = |why: String| StageError::Shipped(format!("stowage-scheduler: {why}"));
        let map = self.find("ConfigMap", "stowage-scheduler")?;
        let configuration = map.pointer("/data/scheduler.yaml").and_then(Value::as_str);
        let configuration = configuration.ok_or_else(|| broken("no scheduler.yaml".to_owned()))?;
        let mut value: Value =
            serde_saphyr::from_str(configuration).map_err(|error| broken(error.to_string()))?;
        for (pointer, mine) in [
            ("/leaderElection", json!({"leaderElect": false})),
            ("/extenders/0/urlPrefix", json!(format!("http://127.0.0.1:{extender_port}/scheduler"))),
        ] {
            *value.pointer_mut(pointer).ok_or_else(|| broken(format!("no {pointer}")))? = mine;
        }
        if let Some(connection) = value.get_mut("clientConnection").and_then(Value::as_object_mut) {
            connection.insert("kubeconfig".to_owned(), json!(kubeconfig));
        }
        Ok(value.to_string())
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `--name=value` of `ours` replaces every `--name=...` of `shipped`; the rest is added at the end.
pub(super) fn merged(shipped: Vec<String>, ours: &[String]) -> Vec<String> {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let replaced: Vec<String> = ours.iter().map(|flag| name(flag)).collect();
    let kept = shipped.into_iter().filter(|flag| !replaced.contains(&name(flag)));
    kept.chain(ours.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_flags_replace_shipped_ones() {
        let shipped = ["--a=1", "--b=2", "--c"].map(str::to_owned).to_vec();
        assert_eq!(
            merged(shipped, &["--b=3".to_owned(), "--d=4".to_owned()]),
            ["--a=1", "--c", "--b=3", "--d=4"]
        );
    }

    #[test]
    fn the_scheduler_gets_our_port_and_no_leader_election() {
        let text = std::fs::read_to_string(folder().join("base/scheduler/configuration.yaml")).unwrap();
        let shipped = Shipped(serde_saphyr::from_multiple(&text).unwrap());
        let adapted = shipped.scheduler_configuration(4711, "/k").unwrap();
        let value: Value = serde_json::from_str(&adapted).unwrap();
        assert_eq!(value["extenders"][0]["urlPrefix"], "http://127.0.0.1:4711/scheduler");
        assert_eq!(value["leaderElection"], json!({"leaderElect": false}));
        assert_eq!(value["clientConnection"]["kubeconfig"], "/k");
        assert_eq!(value["percentageOfNodesToScore"], 100);
    }
}
