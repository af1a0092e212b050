//! VNodes as the agent shows them, and module Pods as the admission policy leaves them.

use anyhow::Context;
use harness::controlplane;
use k8s_openapi::api::core::v1::{Node, Pod};
use policy::contract::names;
use serde_json::{Value, json};

use crate::{Args, Mode};

pub(crate) fn node_name(index: usize) -> String {
    format!("virtual-node-java-bases-base-7d9fbc-{index:05}")
}

/// What a Node is made from; the taint is set afterwards, because admission adds one of its own.
pub(crate) fn node(index: usize, slots: usize) -> anyhow::Result<Node> {
    let now = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "",
               "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    // What a base of ours holds without us: two modules of others.
    let foreign =
        |n: usize| json!({"name": format!("foreign-{n}"), "version": "1.0.0", "state": "activated"});
    let inventory = json!({
        "v": 1, "modules": [foreign(0), foreign(1)], "provides": {"arklet": "2.2.16", "jdk": "17.0.2"},
        "metaspace": {"max": 256_000_000, "used": 100_000_000, "lowest": 90_000_000},
    });
    let resources = json!({"cpu": "2", "memory": "2Gi", "pods": slots.to_string()});
    let base = format!("base-7d9fbc-{index:05}");
    let name = node_name(index);
    let node = json!({
        "metadata": {
            "name": name,
            "labels": {
                "app": "base", names::MANAGED_BY: names::MANAGER, names::BASE_CLUSTER: names::DEFAULT_CLUSTER,
                names::STACK: names::DEFAULT_STACK, names::HOSTNAME: name, "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "type": "virtual-kubelet",
                "node.kubernetes.io/exclude-from-external-load-balancers": "true",
                names::VERSION: "2.1.0", names::KOUPLELESS_VERSION: "2.1.0", names::VERSION_MAJOR: "2",
                names::VERSION_MINOR: "1", names::HOST: format!("host-{}", index / 10),
                names::ZONE: format!("zone-{}", index % 3),
            },
            "annotations": {
                names::BASE: format!("bases/{base}"), names::BASE_UID: format!("uid-{index}"),
                names::BASE_REVISION: "base/7d9fbc@2026-01-01T00:00:00Z", names::INVENTORY: inventory.to_string(),
            },
        },
        "spec": {"providerID": format!("{}default/bases/uid-{index}", names::PROVIDER_SCHEME)},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": format!("10.244.{}.{}", index / 250 % 250, index % 250 + 1)},
                          {"type": "Hostname", "address": name}],
            "conditions": [
                condition("Ready", "True", "BaseAnswering"),
                condition("MemoryPressure", "False", "NotMeasured"),
                condition("DiskPressure", "False", "NotMeasured"),
                condition("PIDPressure", "False", "NotMeasured"),
                condition("NetworkUnavailable", "False", "BaseNetwork"),
                condition(names::METASPACE_PRESSURE, "False", "MetaspaceFine"),
            ],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.33.0-stowage-0.1.0",
                "containerRuntimeVersion": "arklet://2.2.16", "osImage": "java base",
                "bootID": "", "kernelVersion": "", "kubeProxyVersion": "",
                "machineID": format!("uid-{index}"), "systemUUID": format!("uid-{index}"),
            },
        },
    });
    serde_json::from_value(node).context("a Node")
}

/// The one taint of a VNode that fits.
pub(crate) fn taints() -> Value {
    json!({"spec": {"taints": [{
        "key": names::VIRTUAL_NODE_TAINT, "value": names::VIRTUAL_NODE_TAINT_VALUE, "effect": "NoExecute",
    }]}})
}

/// The names sort in the order of the numbers, in which a scheduler that starts takes them up.
pub(crate) fn pod(index: usize, modules: usize) -> anyhow::Result<Pod> {
    let module = format!("shop-{}", index % modules);
    let pod = json!({
        "metadata": {
            "name": format!("p{index:05}-{module}"),
            "labels": {"app": module, names::MODULE_POD: "true"},
        },
        "spec": {
            "schedulerName": names::SCHEDULER,
            "terminationGracePeriodSeconds": 60,
            "automountServiceAccountToken": false,
            "readinessGates": [{"conditionType": names::READY_GATE}],
            "tolerations": [{"key": names::VIRTUAL_NODE_TAINT, "operator": "Exists"}],
            "containers": [{
                "name": module,
                "image": format!("https://repo.example.com/modules/{module}-1.4.0-ark-biz.jar"),
                "env": [{"name": names::ENV_MODULE_VERSION, "value": "1.4.0"}],
            }],
        },
    });
    serde_json::from_value(pod).context("a Pod")
}

/// The shipped policy with as many Pods per base as the VNodes say.
pub(crate) fn policy(args: &Args, mode: Mode) -> String {
    let (slots, decisive) = (args.slots, mode == Mode::Decisive);
    format!(
        "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n\
         defaults: {{podsPerBase: {slots}, versionsPerModule: 1}}\n\
         scoring:\n- {{term: spread, weight: 1}}\n\
         filter: {{decisive: {decisive}}}\n"
    )
}

/// A scheduler whose own requests are not held back by its client.
pub(crate) fn scheduler(extender: Option<&str>) -> anyhow::Result<String> {
    let extender = extender.map(controlplane::Extender::new);
    let text = controlplane::configuration(names::SCHEDULER, extender.as_ref());
    let mut configuration: Value = serde_json::from_str(&text).context("a configuration")?;
    let fields = configuration.as_object_mut().context("a configuration is a mapping")?;
    fields.insert("clientConnection".to_owned(), json!({"qps": 5000, "burst": 10000}));
    Ok(configuration.to_string())
}

#[cfg(test)]
mod tests {
    use policy::contract::{BaseFacts, Known, PodKind, classify};

    use super::*;

    #[test]
    fn nodes_and_pods_are_ours() {
        let mut node = node(7, 110).unwrap();
        node.spec.get_or_insert_default().taints =
            serde_json::from_value(taints()["spec"]["taints"].clone()).unwrap();
        let facts = BaseFacts::from_node(&node).unwrap().expect("a VNode");
        assert_eq!(facts.allocatable_pods, 110);
        assert!(matches!(facts.inventory, Known::Inventory(_)));
        let pod = pod(21, 20).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("p00021-shop-1"));
        assert!(matches!(classify(&pod), PodKind::Module(_)));
    }

    #[test]
    fn policies_are_valid_and_differ_in_the_filter() {
        let args = Args { vnodes: 1, pods: 2, modules: 2, slots: 8, rounds: 1, modes: Vec::new() };
        for (mode, decisive) in [(Mode::Normal, false), (Mode::Decisive, true)] {
            let loaded = policy::file::load(&policy(&args, mode)).unwrap();
            assert_eq!(loaded.policy.decisive, decisive);
        }
    }
}
