//! A control plane on which the manifests are applied, for the test binaries that look at them.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::controlplane::ControlPlane;
use harness::kubectl::Kubectl;
use harness::wait;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Long enough for a controller on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_path_buf()
}

pub(crate) fn manifests(path: &str) -> String {
    repository().join("manifests").join(path).display().to_string()
}

/// A control plane on which `manifests/base` is applied.
pub(crate) async fn cluster() -> &'static ControlPlane {
    static APPLIED: OnceCell<()> = OnceCell::const_new();
    let plane = ControlPlane::shared().await.unwrap();
    APPLIED
        .get_or_init(|| async {
            let rendered = render(plane, "base").await;
            strictly(plane, &[], &rendered).await;
            let agent = agent(plane).await;
            let nodes: Api<Node> = Api::all(agent);
            // Policies take effect a moment after they are stored.
            wait::until("policy that confines the agent", SOON, async || {
                match create(&nodes, foreign_node()).await {
                    Err(refusal) if refusal.contains("account of the Stowage agent") => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await
            .unwrap();
        })
        .await;
    plane
}

pub(crate) async fn render(plane: &ControlPlane, folder: &str) -> String {
    plane.kubectl().unwrap().run(&["kustomize", &manifests(folder)]).await.unwrap()
}

pub(crate) async fn strictly(plane: &ControlPlane, more: &[&str], yaml: &str) {
    let args = [&["apply", "--server-side", "--validate=strict", "-f", "-"], more].concat();
    plane.kubectl().unwrap().run_with_input(&args, yaml).await.unwrap();
}

pub(crate) async fn agent(plane: &ControlPlane) -> Client {
    account(plane, "stowage-agent").await
}

pub(crate) async fn account(plane: &ControlPlane, name: &str) -> Client {
    client_of(plane.kubeconfig_for_service_account("stowage-system", name).await.unwrap()).await
}

pub(crate) async fn client_of(path: PathBuf) -> Client {
    let file = kube::config::Kubeconfig::read_from(path).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    Client::try_from(kube::Config::from_custom_kubeconfig(file, &options).await.unwrap()).unwrap()
}

pub(crate) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn foreign_node() -> Node {
    object(json!({"metadata": {"name": "worker"}}))
}

/// A dry run, so that a policy that does not act yet leaves nothing behind.
async fn create<T>(api: &Api<T>, object: T) -> Result<(), String>
where
    T: Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug + kube::Resource,
{
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&dry, &object).await.map(drop).map_err(|error| error.to_string())
}

/// Makes a namespace that the admission policies watch, or not.
pub(crate) async fn namespace(plane: &ControlPlane, name: &str, label: &str) -> Kubectl {
    let kubectl = plane.kubectl().unwrap();
    kubectl.run(&["create", "namespace", name]).await.unwrap();
    if !label.is_empty() {
        kubectl.run(&["label", "namespace", name, label]).await.unwrap();
    }
    plane.default_service_account(name).await.unwrap();
    kubectl.in_namespace(name)
}
