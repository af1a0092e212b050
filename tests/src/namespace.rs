//! A Kubernetes namespace per test, kept apart from other tests on the same control plane.
//!
//! Pods of different tests must not land on each other's nodes. So every Pod and `DaemonSet` of such a namespace gets
//! the node selector `harness.stowage.dev/scope: <scope>`, and every Pod the label of the same name. The kubelet's
//! nodes carry the label; VNodes get it from their base Pod, whose labels they copy. An admission policy does it, the
//! tests' manifests stay free of it.

use std::{collections::BTreeMap, thread, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace as Object, Node, Pod},
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::DynamicObject,
    discovery::ApiResource,
};
use serde_json::json;

use crate::{
    controlplane::{ControlPlane, ControlPlaneError},
    kubectl::Kubectl,
    wait,
};

/// The label of nodes, Pods and namespaces that belong together.
pub const SCOPE: &str = "harness.stowage.dev/scope";

/// A namespace of one test. Dropping it deletes it with its nodes, and its Pods at once; declare it before the programs
/// and kubelets that work in it, so that they end first.
pub struct Namespace {
    name: String,
    scope: String,
    config: Config,
}

impl ControlPlane {
    /// Makes a namespace for one test, named `<name>-<random>`, in a scope of its own.
    pub async fn namespace(&self, name: &str) -> Result<Namespace, ControlPlaneError> {
        let full = format!("{name}-{:06x}", rand::random::<u32>() & 0x00ff_ffff);
        self.namespace_in_scope(&full, &full, &[]).await
    }

    /// Makes a namespace of exactly this name in a scope that may be shared with others (also on other control
    /// planes), with further labels.
    pub async fn namespace_in_scope(
        &self,
        name: &str,
        scope: &str,
        labels: &[(&str, &str)],
    ) -> Result<Namespace, ControlPlaneError> {
        let client = self.client()?;
        install_policy(&client).await?;
        let mut all: BTreeMap<String, String> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        all.insert(SCOPE.to_owned(), scope.to_owned());
        let object = Object {
            metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(all), ..ObjectMeta::default() },
            ..Object::default()
        };
        Api::<Object>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .map_err(ControlPlaneError::api("create a namespace"))?;
        let namespace = Namespace { name: name.to_owned(), scope: scope.to_owned(), config: self.config() };
        if self.has_service_accounts() {
            self.default_service_account(name).await?;
        }
        policy_works(&client, name).await?;
        Ok(namespace)
    }
}

impl Namespace {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value of the label [`SCOPE`].
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// kubectl in this namespace.
    pub fn kubectl(&self, control_plane: &ControlPlane) -> Result<Kubectl, ControlPlaneError> {
        Ok(control_plane.kubectl()?.in_namespace(&self.name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let (name, scope, config) = (self.name.clone(), self.scope.clone(), self.config.clone());
        // On a thread of its own: drop may run inside a runtime, which must not be blocked on itself.
        let cleaning = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            let limit = Duration::from_secs(5);
            runtime.block_on(async { tokio::time::timeout(limit, clean(&name, &scope, config)).await.ok() })
        });
        // Best effort: the control plane may be gone already, or be paused.
        cleaning.join().ok();
    }
}

async fn clean(name: &str, scope: &str, config: Config) -> Result<(), kube::Error> {
    let client = Client::try_from(config)?;
    let now = DeleteParams::default().grace_period(0);
    let everything = ListParams::default();
    // First the namespace, so that no controller makes new Pods.
    Api::<Object>::all(client.clone()).delete(name, &DeleteParams::background()).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let of_scope = ListParams::default().labels(&format!("{SCOPE}={scope}"));
    for node in nodes.list(&of_scope).await? {
        let node = node.name_any();
        nodes.delete(&node, &now).await.ok();
        leases.delete(&node, &now).await.ok();
    }
    Api::<Pod>::namespaced(client, name).delete_collection(&now, &everything).await?;
    Ok(())
}

/// Pods and `DaemonSet` templates of scoped namespaces get the node selector, Pods the label.
fn policy() -> [(serde_json::Value, &'static str); 2] {
    let pointer = SCOPE.replace('/', "~1");
    let scope = format!("namespaceObject.metadata.labels['{SCOPE}']");
    let add = |parent: &str, pointer_to: &str| {
        format!(
            "has({parent}) ? [JSONPatch{{op: 'add', path: '{pointer_to}/{pointer}', value: {scope}}}] : \
             [JSONPatch{{op: 'add', path: '{pointer_to}', value: {{'{SCOPE}': {scope}}}}}]"
        )
    };
    let patch =
        |expression: String| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    let is = |resource: &str, expression: String| {
        format!("request.resource.resource == '{resource}' ? ({expression}) : []")
    };
    let name = "harness-scope";
    let spec = json!({
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "namespaceSelector": {"matchExpressions": [{"key": SCOPE, "operator": "Exists"}]},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
                {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                 "resources": ["daemonsets"]},
            ],
        },
        "mutations": [
            patch(is("pods", add("object.spec.nodeSelector", "/spec/nodeSelector"))),
            patch(is("pods", add("object.metadata.labels", "/metadata/labels"))),
            patch(is("daemonsets", add("object.spec.template.spec.nodeSelector", "/spec/template/spec/nodeSelector"))),
        ],
    });
    let api_version = "admissionregistration.k8s.io/v1";
    [
        (
            json!({"apiVersion": api_version, "kind": "MutatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}),
            "mutatingadmissionpolicies",
        ),
        (
            json!({"apiVersion": api_version, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": name},
                   "spec": {"policyName": name}}),
            "mutatingadmissionpolicybindings",
        ),
    ]
}

async fn install_policy(client: &Client) -> Result<(), ControlPlaneError> {
    for (object, plural) in policy() {
        let text =
            |key: &str| object.get(key).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        let resource = ApiResource {
            group: "admissionregistration.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: text("apiVersion"),
            kind: text("kind"),
            plural: plural.to_owned(),
        };
        Api::<DynamicObject>::all_with(client.clone(), &resource)
            .patch("harness-scope", &PatchParams::apply("harness").force(), &Patch::Apply(&object))
            .await
            .map_err(ControlPlaneError::api("take the admission policy of the harness"))?;
    }
    Ok(())
}

/// The API server takes a moment to see a new policy.
async fn policy_works(client: &Client, namespace: &str) -> Result<(), ControlPlaneError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod: Pod = Pod {
        metadata: ObjectMeta { name: Some("probe".to_owned()), ..ObjectMeta::default() },
        spec: serde_json::from_value(json!({"containers": [{"name": "probe", "image": "probe"}]})).ok(),
        ..Pod::default()
    };
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    wait::until("effect of the harness' admission policy", Duration::from_secs(30), async || {
        let answer = pods.create(&dry_run, &pod).await.map_err(|error| error.to_string())?;
        if answer.labels().contains_key(SCOPE) { Ok(()) } else { Err("the Pod was not changed".to_owned()) }
    })
    .await?;
    Ok(())
}
