//! `stowage-agent retire`: takes everything that an agent of one base cluster made out of the module cluster.
//!
//! The order keeps others from undoing it: VNodes are closed first, so that no controller puts new Pods there; then VPods
//! go, then Nodes, then Leases, the agent's own last. Only objects with the given base-cluster id are touched.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use policy::contract::names;
use serde_json::json;

use crate::args::{ModuleFlags, label_name};
use crate::lease::node::NAMESPACE;
use crate::named::key;
use crate::vnode::SeenNode;

/// An agent that acts renews its Lease more often than this.
const RENEWALS: Duration = Duration::from_secs(12);

/// Removes all VNodes, their Leases and VPods of one base cluster; nothing on the bases, nothing in the base cluster.
#[derive(Debug, Clone, Args)]
pub struct RetireFlags {
    /// The module cluster.
    #[command(flatten)]
    pub modules: ModuleFlags,
    /// Whose objects are removed: those of this base cluster
    #[arg(long, value_name = "ID", default_value = names::DEFAULT_CLUSTER, value_parser = label_name)]
    pub base_cluster_id: String,
    /// Namespace of the agents' Lease
    #[arg(long, value_name = "NAME", default_value = "stowage-system", env = "POD_NAMESPACE", value_parser = label_name)]
    pub lease_namespace: String,
    /// Name of that Lease
    #[arg(long, value_name = "NAME", default_value = "stowage-agent", value_parser = label_name)]
    pub lease_name: String,
    /// Really do it; without it what would be done is only said
    #[arg(long)]
    pub yes: bool,
}

/// Why it ended before everything was removed.
#[derive(Debug, thiserror::Error)]
pub enum RetireError {
    /// The API server cannot be asked.
    #[error("cannot list {what}: {source}")]
    List {
        /// Of what.
        what: &'static str,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Something was not removed.
    #[error("cannot {action} {what}: {source}")]
    Change {
        /// What was being done.
        action: &'static str,
        /// To which object.
        what: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// An agent would make everything anew.
    #[error(
        "an agent ({holder}) still acts: stop it first (kubectl scale deployment stowage-agent --replicas=0)"
    )]
    Active {
        /// Who holds the Lease.
        holder: String,
    },
    /// The flag that confirms it is missing.
    #[error("nothing was removed: say --yes to do it")]
    Unconfirmed,
}

/// What is to be removed.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    nodes: Vec<SeenNode>,
    pods: Vec<Pod>,
    leases: Vec<Lease>,
}

fn plan(nodes: Vec<Node>, pods: Vec<Pod>, leases: Vec<Lease>, cluster: &str) -> Plan {
    let nodes: Vec<SeenNode> =
        nodes.into_iter().map(SeenNode::new).filter(|seen| seen.is_ours(cluster)).collect();
    let names: BTreeSet<&str> = nodes.iter().map(SeenNode::name).collect();
    let on_ours = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        node.is_some_and(|node| names.contains(node))
    };
    let pods = pods.into_iter().filter(on_ours).collect();
    let leases = leases.into_iter().filter(|lease| is_ours(lease, cluster)).collect();
    Plan { nodes, pods, leases }
}

fn is_ours(lease: &Lease, cluster: &str) -> bool {
    let label = |key: &str| lease.labels().get(key).map(String::as_str);
    label(names::MANAGED_BY) == Some(names::MANAGER) && label(names::BASE_CLUSTER) == Some(cluster)
}

/// One line for each thing done or to be done.
type Say<'a> = &'a mut (dyn FnMut(String) + Send);

/// Does it, or says what would be done.
///
/// # Errors
/// When an agent still acts, the flag `--yes` is missing, or the API server refuses something. What was removed until
/// then stays removed; the command can be given again.
pub async fn retire(client: Client, flags: &RetireFlags, say: Say<'_>) -> Result<(), RetireError> {
    let cluster = flags.base_cluster_id.as_str();
    let own = Api::<Lease>::namespaced(client.clone(), &flags.lease_namespace);
    let plan = look(&client, cluster).await?;
    let verb = if flags.yes { "removing" } else { "would remove" };
    say(format!(
        "{verb} {} VNodes, {} VPods and {} Leases of the base cluster {cluster}",
        plan.nodes.len(),
        plan.pods.len(),
        plan.leases.len()
    ));
    for pod in &plan.pods {
        say(format!("{verb} Pod {}", key(&pod.metadata)));
    }
    for seen in &plan.nodes {
        say(format!("{verb} Node {}", seen.name()));
    }
    if !plan.pods.is_empty() {
        say("modules stay on their bases until those restart; delete the workloads while an agent runs to have them \
             uninstalled"
            .to_owned());
    }
    if !flags.yes {
        return Err(RetireError::Unconfirmed);
    }
    refuse_while_active(&own, &flags.lease_name).await?;
    close(&client, &plan.nodes).await?;
    // What was bound while the VNodes were still open is among them now.
    let plan = look(&client, cluster).await?;
    for pod in &plan.pods {
        let api =
            Api::<Pod>::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default());
        delete(&api, pod, "Pod", Some(0)).await?;
    }
    let nodes = Api::<Node>::all(client.clone());
    for seen in &plan.nodes {
        delete(&nodes, &*seen.node, "Node", None).await?;
        say(format!("removed Node {}", seen.name()));
    }
    let heartbeats = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    for lease in &look(&client, cluster).await?.leases {
        delete(&heartbeats, lease, "Lease", None).await?;
    }
    if let Some(lease) = get(&own, &flags.lease_name).await?.filter(|lease| is_ours(lease, cluster)) {
        delete(&own, &lease, "Lease", None).await?;
        say(format!("removed Lease {}", key(&lease.metadata)));
    }
    say("all is removed".to_owned());
    Ok(())
}

async fn look(client: &Client, cluster: &str) -> Result<Plan, RetireError> {
    let ours = format!("{}={},{}={cluster}", names::MANAGED_BY, names::MANAGER, names::BASE_CLUSTER);
    let labelled = ListParams::default().labels(&ours);
    let bound = ListParams::default().fields("spec.nodeName!=");
    let nodes = list(&Api::<Node>::all(client.clone()), &labelled, "Nodes").await?;
    let pods = if nodes.is_empty() {
        Vec::new()
    } else {
        list(&Api::<Pod>::all(client.clone()), &bound, "Pods").await?
    };
    let leases = list(&Api::<Lease>::namespaced(client.clone(), NAMESPACE), &labelled, "Leases").await?;
    Ok(plan(nodes, pods, leases, cluster))
}

async fn list<K>(api: &Api<K>, parameters: &ListParams, what: &'static str) -> Result<Vec<K>, RetireError>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let listed = api.list(parameters).await;
    listed.map(|list| list.items).map_err(|source| RetireError::List { what, source: Box::new(source) })
}

async fn get(api: &Api<Lease>, name: &str) -> Result<Option<Lease>, RetireError> {
    api.get_opt(name).await.map_err(|source| RetireError::List { what: "Leases", source: Box::new(source) })
}

/// Times in a Lease are never compared with a local clock: whether it changes is what tells.
async fn refuse_while_active(api: &Api<Lease>, name: &str) -> Result<(), RetireError> {
    let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    let Some(before) = get(api, name).await? else { return Ok(()) };
    if holder(&before).is_none_or(|holder| holder.is_empty()) {
        return Ok(());
    }
    tokio::time::sleep(RENEWALS).await;
    match get(api, name).await? {
        Some(after) if after.resource_version() != before.resource_version() => {
            match holder(&after).filter(|holder| !holder.is_empty()) {
                Some(holder) => Err(RetireError::Active { holder }),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// No controller and no scheduler puts anything on them any more.
async fn close(client: &Client, nodes: &[SeenNode]) -> Result<(), RetireError> {
    let api = Api::<Node>::all(client.clone());
    for seen in nodes {
        if seen.is_leaving() {
            continue;
        }
        // The list is replaced as a whole.
        let mut taints = seen.node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        taints.push(Taint {
            key: names::LEAVING_TAINT.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
        let patch =
            json!({"metadata": {"uid": seen.uid()}, "spec": {"unschedulable": true, "taints": taints}});
        let result = api.patch(seen.name(), &PatchParams::default(), &Patch::Strategic(&patch)).await;
        match result {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => drop(other.map_err(|source| changed("close", format!("Node {}", seen.name()), source))?),
        }
    }
    Ok(())
}

async fn delete<K>(api: &Api<K>, object: &K, kind: &str, grace: Option<u32>) -> Result<(), RetireError>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let parameters = DeleteParams {
        grace_period_seconds: grace,
        preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    match api.delete(&object.name_any(), &parameters).await {
        // Gone, or another object has the name by now.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        other => other
            .map(drop)
            .map_err(|source| changed("delete", format!("{kind} {}", key(object.meta())), source)),
    }
}

fn changed(action: &'static str, what: String, source: kube::Error) -> RetireError {
    RetireError::Change { action, what, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(cluster: &str) -> serde_json::Value {
        json!({"app.kubernetes.io/managed-by": "stowage", "stowage.dev/base-cluster": cluster})
    }

    fn object<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).expect("object")
    }

    #[test]
    fn only_what_is_of_this_base_cluster_is_removed() {
        let node = |name: &str, labels: serde_json::Value| {
            object::<Node>(json!({"metadata": {"name": name, "labels": labels}}))
        };
        let pod = |name: &str, node: &str| {
            object::<Pod>(json!({"metadata": {"namespace": "shop", "name": name},
                "spec": {"nodeName": node, "containers": []}}))
        };
        let lease = |name: &str, labels: serde_json::Value| {
            object::<Lease>(json!({"metadata": {"namespace": NAMESPACE, "name": name, "labels": labels}}))
        };
        let found = plan(
            vec![
                node("a", ours("one")),
                node("b", ours("two")),
                node("worker", json!({"app.kubernetes.io/managed-by": "stowage"})),
            ],
            vec![pod("p", "a"), pod("q", "b"), pod("r", "worker"), pod("s", "a")],
            vec![lease("a", ours("one")), lease("b", ours("two")), lease("worker", json!({}))],
            "one",
        );
        let pods: Vec<_> = found.pods.iter().map(|pod| key(&pod.metadata)).collect();
        assert_eq!(pods, ["shop/p", "shop/s"]);
        assert_eq!(found.nodes.iter().map(SeenNode::name).collect::<Vec<_>>(), ["a"]);
        assert_eq!(found.leases.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a"]);
    }
}
