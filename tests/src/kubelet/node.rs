//! The plain Nodes that base Pods run on: posted once, kept alive by their Leases.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::KubeletError;

/// Posts the Node with a status, as ready as it gets.
pub(super) async fn post(
    client: &Client,
    name: &str,
    ip: IpAddr,
    labels: &BTreeMap<String, String>,
) -> Result<(), KubeletError> {
    let error = |source| KubeletError::Node { node: name.to_owned(), source: Box::new(source) };
    let now = Timestamp::now().round(jiff::Unit::Second).unwrap_or_default();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "",
               "lastHeartbeatTime": now.to_string(), "lastTransitionTime": now.to_string()})
    };
    let resources = json!({"cpu": "256", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "10000"});
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": ip.to_string()},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                condition("Ready", "True", "KubeletReady"),
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            ],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.37.2",
                "bootID": "", "containerRuntimeVersion": "harness://1", "kernelVersion": "", "kubeProxyVersion": "",
                "machineID": "", "osImage": "", "systemUUID": "",
            },
        },
    }))
    .map_err(|source| KubeletError::Object { source })?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await.map_err(error)?;
    renew(client, name).await?;
    // Admission adds the taint not-ready, and the node controller takes up to 2 s to remove it.
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    nodes.patch(name, &PatchParams::default(), &untainted).await.map_err(error)?;
    Ok(())
}

/// Renews the Lease, which tells the node controller that the Node lives.
pub(super) async fn renew(client: &Client, name: &str) -> Result<(), KubeletError> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micros(Timestamp::now())},
    });
    Api::<Lease>::namespaced(client.clone(), "kube-node-lease")
        .patch(name, &PatchParams::apply("harness").force(), &Patch::Apply(&lease))
        .await
        .map(drop)
        .map_err(|source| KubeletError::Node { node: name.to_owned(), source: Box::new(source) })
}

/// The API's `MicroTime` has exactly six digits.
fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_times_have_six_digits() {
        assert_eq!(micros(Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00.000000Z");
    }
}
