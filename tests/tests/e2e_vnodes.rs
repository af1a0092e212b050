//! The Node that stands for a base: what it shows, and how it follows.

#![allow(clippy::expect_used, reason = "a test stops at what it did not expect")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use harness::{
    Failure, TestResult,
    arklet::Options,
    controlplane::Options as ClusterOptions,
    stage::{BaseSet, POLICY, Stage},
    wait,
};
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use policy::contract::names;
use serde_json::json;

mod vnodes;
use vnodes::*;

const MIB: u64 = 1 << 20;

/// A policy with limits of its own for these bases.
const LIMITS: &str = "\
limits:
- bases: {labels: {size: large}}
  podsPerBase: 3
  reserved: {cpu: 500m, memory: 1Gi}
scoring:
";

/// Labels of both families, annotations, taint, `providerID`, addresses, capacity, conditions and
/// version of a `VNode`, and its Lease.
#[tokio::test]
async fn a_vnode_shows_its_base() -> TestResult {
    let set = BaseSet::stateful("base", "2.1.0", 1)
        .label("size", "large")
        .label("app.kubernetes.io/name", "orders")
        .annotation(names::PROVIDES, "spring-boot=2.7.15, sofa-rpc=5.10.1");
    let policy = policy(&[("scoring:\n", LIMITS)]);
    let mut stage = Stage::builder().base_set(set).policy(&policy).agents(0).build().await?;
    let host = stage.kubelet.node_name("node-a");
    let zone = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-1"}}});
    stage.nodes().patch(&host, &PatchParams::default(), &Patch::Merge(zone)).await?;
    stage.start_agent(&[]).await?;

    let name = stage.vnode_of("base-0");
    assert_eq!(name, format!("virtual-node-java-{}-base-0", stage.default_ns()));
    let taint = format!("{}=true:NoExecute", names::VIRTUAL_NODE_TAINT);
    // The node controller takes its own first taint off.
    let node =
        ready_vnode(&stage, &name, "VNode with its own taint only", |node| taints(node) == [taint.as_str()]);
    let node = node.await?;
    let pod = stage.base_pods().get("base-0").await?;

    let mut labels = pod.labels().clone();
    labels.retain(|key, _| key != "controller-revision-hash" && !key.contains("kubernetes.io/"));
    for (key, value) in [
        (names::MANAGED_BY, "stowage"),
        (names::BASE_CLUSTER, "default"),
        (names::STACK, "java"),
        (names::VERSION, "2.1.0"),
        (names::KOUPLELESS_VERSION, "2.1.0"),
        (names::VERSION_MAJOR, "2"),
        (names::VERSION_MINOR, "1"),
        (names::HOSTNAME, &name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("type", "virtual-kubelet"),
        ("node.kubernetes.io/exclude-from-external-load-balancers", "true"),
        (names::HOST, &host),
        (names::ZONE, "zone-1"),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    assert_eq!(node.labels(), &labels);
    assert_eq!(labels.get("size").map(String::as_str), Some("large"));

    let annotations = node.annotations();
    assert_eq!(annotations[names::BASE], format!("{}/base-0", stage.default_ns()));
    assert_eq!(annotations[names::BASE_UID], uid(&pod));
    let hash = pod.labels()["controller-revision-hash"].trim_start_matches("base-").to_owned();
    let created = pod.creation_timestamp().expect("a time").0;
    assert_eq!(annotations[names::BASE_REVISION], format!("base/{hash}@{created}"));
    let provides = inventory(&node).provides;
    for (what, version) in [("jdk", "17.0.15"), ("spring-boot", "2.7.15"), ("sofa-rpc", "5.10.1")] {
        assert_eq!(provides.get(what).map(String::as_str), Some(version), "{provides:?}");
    }

    assert_spec(&node, &format!("stowage://default/{}/{}", stage.default_ns(), uid(&pod)));
    assert_node_status(&node, &stage.base("base-0")?.ip().to_string());

    let lease = node_leases(stage.client()).get(&name).await?;
    let owners = lease.metadata.owner_references.as_deref().unwrap_or_default();
    let [owner] = owners else { panic!("one owner is wanted: {owners:?}") };
    assert_eq!(
        (owner.kind.as_str(), owner.name.as_str(), owner.uid.clone()),
        ("Node", name.as_str(), uid(&node))
    );
    let terms = lease.spec.as_ref().expect("a spec");
    assert_eq!(terms.holder_identity.as_deref(), Some("agent-0"));
    assert_eq!(terms.lease_duration_seconds, Some(40));
    assert_eq!(lease.labels().get(names::MANAGED_BY).map(String::as_str), Some("stowage"));
    assert_eq!(lease.labels().get(names::BASE_CLUSTER).map(String::as_str), Some("default"));
    Ok(())
}

/// What stands in the spec of a `VNode` whose base stays.
fn assert_spec(node: &Node, provider: &str) {
    let spec = node.spec.as_ref().expect("a spec");
    assert_eq!(spec.provider_id.as_deref(), Some(provider));
    assert_ne!(spec.unschedulable, Some(true));
    assert_eq!(spec.pod_cidr, None);
}

/// What stands in the status of the `VNode` of a base of 2 CPUs and 2 GiB, of which some are reserved.
fn assert_node_status(node: &Node, ip: &str) {
    let status = node.status.as_ref().expect("a status");
    let address = |type_: &str, address: &str| NodeAddress { type_: type_.into(), address: address.into() };
    assert_eq!(
        status.addresses.as_deref(),
        Some(&[address("InternalIP", ip), address("Hostname", &node.name_any())][..])
    );
    // 2 CPUs and 2 GiB less what is reserved; no limit of storage: the real node's.
    let amounts = BTreeMap::from([
        ("cpu", "1500m"),
        ("ephemeral-storage", "1099511627776"),
        ("memory", "1073741824"),
        ("pods", "3"),
    ]);
    assert_eq!(resources(node), (amounts.clone(), amounts));
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .flatten()
        .map(|condition| {
            assert!(condition.message.as_ref().is_some_and(|message| !message.is_empty()), "{condition:?}");
            assert!(condition.last_heartbeat_time.is_some() && condition.last_transition_time.is_some());
            (condition.type_.as_str(), condition.status.as_str(), condition.reason.as_deref().unwrap_or("-"))
        })
        .collect();
    assert_eq!(
        conditions,
        [
            ("Ready", "True", "BaseAnswering"),
            ("MemoryPressure", "False", "NotMeasured"),
            ("DiskPressure", "False", "NotMeasured"),
            ("PIDPressure", "False", "NotMeasured"),
            ("NetworkUnavailable", "False", "BaseNetwork"),
            (names::METASPACE_PRESSURE, "False", "MetaspaceFine"),
        ]
    );
    let info = status.node_info.as_ref().expect("node info");
    assert!(info.kubelet_version.starts_with("v1.33.0-stowage-"), "{}", info.kubelet_version);
}

/// `--copy-topology`, `--taint-value` and `--default-capacity` do what they say; without a limit, a request or a figure
/// of the real node the flag's capacity counts, and less than what is reserved is nothing, never negative.
#[tokio::test]
async fn flags_and_reserves_shape_the_vnode() -> TestResult {
    let bare = BaseSet::stateful("bare", "2.1.0", 1).label("size", "large").pod_spec(|pod| {
        pod["containers"][0]["resources"] = json!({"limits": {"cpu": "250m"}});
    });
    let policy = policy(&[("scoring:\n", LIMITS)]);
    let mut stage = Stage::builder().base_set(bare).policy(&policy).agents(0).build().await?;
    let host = stage.kubelet.node_name("node-a");
    let topology = json!({"metadata": {"labels": {
        "topology.kubernetes.io/zone": "zone-1", "topology.kubernetes.io/region": "region-1",
    }}, "status": {"allocatable": {"memory": null, "ephemeral-storage": null}}});
    stage.nodes().patch(&host, &PatchParams::default(), &Patch::Merge(&topology)).await?;
    stage.nodes().patch_status(&host, &PatchParams::default(), &Patch::Merge(&topology)).await?;
    stage
        .start_agent(&["--copy-topology", "--taint-value=True", "--default-capacity=cpu=7,memory=3Gi"])
        .await?;
    let node = ready_vnode(&stage, &stage.vnode_of("bare-0"), "VNode", |_| true).await?;
    for (key, value) in
        [("topology.kubernetes.io/zone", "zone-1"), ("topology.kubernetes.io/region", "region-1")]
    {
        assert_eq!(node.labels().get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(
        taints(&node).contains(&format!("{}=True:NoExecute", names::VIRTUAL_NODE_TAINT)),
        "{:?}",
        taints(&node)
    );
    let (capacity, allocatable) = resources(&node);
    assert_eq!(capacity.get("cpu"), Some(&"0"), "250m less 500m");
    assert_eq!(capacity.get("memory"), Some(&"2147483648"), "3 Gi less 1 Gi");
    assert_eq!(capacity, allocatable);
    Ok(())
}

/// Labels of the base are kept in sync, in both families; labels, annotations, taints and a cordon of others stay.
#[tokio::test]
async fn labels_follow_and_those_of_others_stay() -> TestResult {
    let set = BaseSet::stateful("base", "2.1.0", 1).label("team", "shop").label("odd", "yes");
    let stage = Stage::builder().base_set(set).build().await?;
    let name = stage.vnode_of("base-0");
    let kubectl = stage.kubectl()?;
    kubectl.run(&["label", "node", &name, "rack=7"]).await?;
    kubectl.run(&["annotate", "node", &name, "example.com/note=kept"]).await?;
    kubectl.run(&["taint", "node", &name, "example.com/maintenance=soon:PreferNoSchedule"]).await?;
    kubectl.run(&["cordon", &name]).await?;

    let version = format!("{}=2.2.7-SNAPSHOT", names::VERSION);
    let base = stage.base_kubectl()?;
    base.run(&["label", "pod", "base-0", "--overwrite", "team=pay", "odd-", &version, "new=here"]).await?;
    let node = ready_vnode(&stage, &name, "VNode with the new labels", |node| {
        node.labels().get("team").is_some_and(|team| team == "pay")
    });
    let node = node.await?;
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    assert_eq!((label("odd"), label("new")), (None, Some("here")));
    assert_eq!(label(names::VERSION), Some("2.2.7-SNAPSHOT"));
    assert_eq!(label(names::KOUPLELESS_VERSION), Some("2.2.7-SNAPSHOT"));
    assert_eq!((label(names::VERSION_MAJOR), label(names::VERSION_MINOR)), (Some("2"), Some("2")));
    assert_eq!(label("rack"), Some("7"));
    assert_eq!(node.annotations().get("example.com/note").map(String::as_str), Some("kept"));
    assert!(
        taints(&node).iter().any(|taint| taint.starts_with("example.com/maintenance")),
        "{:?}",
        taints(&node)
    );
    assert_eq!(node.spec.as_ref().and_then(|spec| spec.unschedulable), Some(true));

    // What is ours and was changed by others comes back.
    kubectl.run(&["label", "node", &name, "--overwrite", "team=mine", &format!("{}-", names::STACK)]).await?;
    kubectl.run(&["taint", "node", &name, &format!("{}-", names::VIRTUAL_NODE_TAINT)]).await?;
    let node = ready_vnode(&stage, &name, "VNode put right", |node| {
        let ours = format!("{}=true:NoExecute", names::VIRTUAL_NODE_TAINT);
        node.labels().get("team").is_some_and(|team| team == "pay")
            && node.labels().get(names::STACK).is_some_and(|stack| stack == "java")
            && taints(node).contains(&ours)
    });
    let node = node.await?;
    assert!(
        taints(&node).iter().any(|taint| taint.starts_with("example.com/maintenance")),
        "{:?}",
        taints(&node)
    );
    Ok(())
}

/// BL-004: each `VNode` shows the address, version and figures of its own base, and only the one whose base is silent
/// turns `NotReady`.
#[tokio::test]
async fn each_vnode_shows_its_own_base() -> TestResult {
    let stage = Stage::builder()
        .base_set(BaseSet::stateful("a", "2.1.0", 1))
        .base_set(BaseSet::stateful("b", "2.2.0", 1))
        .base_set(BaseSet::stateful("c", "3.0.0", 1).pod_spec(|pod| {
            pod["containers"][0]["resources"] = json!({"limits": {"cpu": "4", "memory": "4Gi"}});
        }))
        .simulators(|pod, address| {
            let max = match pod.name_any().as_str() {
                "a-0" => 128 * MIB,
                "b-0" => 256 * MIB,
                _ => 512 * MIB,
            };
            Options { max_metaspace: Some(max), ..Options::at(address) }
        })
        .build()
        .await?;
    for (pod, version, cpu, max) in
        [("a-0", "2.1.0", "2", 128), ("b-0", "2.2.0", "2", 256), ("c-0", "3.0.0", "4", 512)]
    {
        let known = |node: &Node| inventory(node).metaspace.is_some();
        let node = ready_vnode(&stage, &stage.vnode_of(pod), "VNode with figures", known).await?;
        let addresses = node.status.as_ref().and_then(|status| status.addresses.clone()).unwrap_or_default();
        assert_eq!(addresses[0].address, stage.base(pod)?.ip().to_string(), "{pod}");
        assert_eq!(node.labels()[names::VERSION], version, "{pod}");
        assert_eq!(resources(&node).0["cpu"], cpu, "{pod}");
        assert_eq!(inventory(&node).metaspace.and_then(|figures| figures.max), Some(max * MIB), "{pod}");
    }
    stage.base("b-0")?.faults()?.refuse(true);
    let is_silent = |node: Option<&Node>| node.is_some_and(|node| readiness(node) == ("False", "BaseSilent"));
    wait::object(&stage.nodes(), &stage.vnode_of("b-0"), "NotReady VNode", SOON, is_silent).await?;
    for pod in ["a-0", "c-0"] {
        assert_eq!(readiness(&stage.nodes().get(&stage.vnode_of(pod)).await?).0, "True", "{pod}");
    }
    Ok(())
}

/// BL-045: figures follow the base and the policy: another metaspace after a restart, -1 for no limit, more in use than
/// the maximum. None is ever negative, nor the -1 itself.
#[tokio::test]
async fn figures_follow_base_and_policy() -> TestResult {
    let max = Arc::new(AtomicU64::new(256 * MIB));
    let of_base_0 = Arc::clone(&max);
    let mut stage = Stage::builder()
        .bases(3)
        .agents(0)
        .simulators(move |pod, address| {
            let max_metaspace = match pod.name_any().as_str() {
                "base-0" => Some(of_base_0.load(Ordering::Relaxed)),
                "base-1" => None,
                _ => Some(256 * MIB),
            };
            Options { max_metaspace, ..Options::at(address) }
        })
        .build()
        .await?;
    // Figures alone are written once a minute, so that these are there from the beginning.
    stage.base("base-2")?.faults()?.report_metaspace([300 * MIB]);
    stage.start_agent(&[]).await?;
    let figures = |node: &Node| inventory(node).metaspace;
    let wait_max = async |pod: &str, wanted: Option<u64>| -> Result<Node, Failure> {
        let shows = |node: &Node| figures(node).is_some_and(|figures| figures.max == wanted);
        ready_vnode(&stage, &stage.vnode_of(pod), &format!("VNode with metaspace {wanted:?}"), shows).await
    };
    wait_max("base-0", Some(256 * MIB)).await?;
    let unlimited = wait_max("base-1", None).await?;
    let pressure = condition(&unlimited, names::METASPACE_PRESSURE).expect("the condition");
    assert_eq!((pressure.status.as_str(), pressure.reason.as_deref()), ("False", Some("MetaspaceUnknown")));
    assert!(
        !unlimited.annotations()[names::INVENTORY].contains('-'),
        "{}",
        unlimited.annotations()[names::INVENTORY]
    );

    // More in use than there may be, and then nothing that makes sense.
    let is_full = |node: &Node| {
        condition(node, names::METASPACE_PRESSURE).is_some_and(|pressure| pressure.status == "True")
    };
    let full = ready_vnode(&stage, &stage.vnode_of("base-2"), "VNode under pressure", is_full).await?;
    assert!(figures(&full).is_some_and(|figures| figures.used >= 256 * MIB), "{:?}", figures(&full));
    let base = stage.base("base-2")?;
    base.faults()?.report_metaspace([u64::MAX]);
    let asked = base.journal()?.count("health");
    base.journal()?.until(SOON, |journal| journal.count("health") > asked + 1).await?;
    assert_eq!(readiness(&stage.nodes().get(&stage.vnode_of("base-2")).await?).0, "True");

    max.store(512 * MIB, Ordering::Relaxed);
    stage.base_pods().delete("base-0", &DeleteParams::default()).await?;
    wait_max("base-0", Some(512 * MIB)).await?;

    change_policy(&stage, &POLICY.replace("podsPerBase: 1", "podsPerBase: 4")).await?;
    for pod in ["base-0", "base-1", "base-2"] {
        let four = |node: &Node| resources(node).0["pods"] == "4" && resources(node).1["pods"] == "4";
        let node = ready_vnode(&stage, &stage.vnode_of(pod), "VNode for four Pods", four).await?;
        let (capacity, allocatable) = resources(&node);
        for amount in capacity.values().chain(allocatable.values()) {
            assert!(!amount.starts_with('-'), "{capacity:?} {allocatable:?}");
        }
    }
    Ok(())
}

/// What goes wrong around a `VNode` without breaking it is an Event on it: a Pod CIDR that the cluster handed out, which
/// real nodes will miss, and a base without `preStop`, which loses requests when it is replaced.
#[tokio::test]
async fn what_is_not_right_with_a_vnode_is_told() -> TestResult {
    let options = ClusterOptions {
        allocate_node_cidrs: Some("10.100.0.0/16".to_owned()),
        ..ClusterOptions::named("cidrs")
    };
    let set = BaseSet::stateful("base", "2.1.0", 1).without_pre_stop();
    let stage = Stage::builder().exclusive(options).base_set(set).build().await?;
    let name = stage.vnode_of("base-0");
    wait::until("Events about the VNode", SOON, async || {
        let events = stage.events_of_node(&name).await?;
        let told = |reason: &str| events.iter().any(|event| event.starts_with(reason));
        if told("PodCIDRAllocated:") && told("NoPreStop:") {
            Ok(())
        } else {
            Err(NotYet(format!("{events:?}")))
        }
    })
    .await?;
    wait_metric(stage.agent(0)?, "stowage_agent_pod_cidrs", &[], 1.0).await?;
    run_shop(&stage, 1).await?;
    Ok(())
}
