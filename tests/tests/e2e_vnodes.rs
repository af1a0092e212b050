//! The Node that stands for a base: what it shows, how it follows, and which Pods get none.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use harness::{
    Failure, TestResult,
    arklet::{Fault, On, Options, Simulator},
    kubelet::is_ready,
    network,
    stage::{BaseSet, POLICY, Stage, VNODES, pod_condition},
    wait,
};
use k8s_openapi::api::core::v1::{Node, NodeAddress, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use policy::contract::{names, node_name};
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

async fn ready_vnode(
    stage: &Stage,
    name: &str,
    what: &str,
    accept: impl Fn(&Node) -> bool,
) -> Result<Node, Failure> {
    let good = |node: Option<&Node>| node.is_some_and(|node| readiness(node).0 == "True" && accept(node));
    let node = wait::object(&stage.nodes(), name, what, SOON, good).await?;
    Ok(node.expect("it is there"))
}

fn amounts(of: &Option<BTreeMap<String, Quantity>>) -> BTreeMap<&str, &str> {
    of.iter().flatten().map(|(name, amount)| (name.as_str(), amount.0.as_str())).collect()
}

fn resources(node: &Node) -> (BTreeMap<&str, &str>, BTreeMap<&str, &str>) {
    let status = node.status.as_ref().expect("a status");
    (amounts(&status.capacity), amounts(&status.allocatable))
}

/// Part 3 of the contract: labels of both families, annotations, taint, `providerID`, addresses, capacity, conditions and
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

    let spec = node.spec.as_ref().expect("a spec");
    let provider = format!("stowage://default/{}/{}", stage.default_ns(), uid(&pod));
    assert_eq!(spec.provider_id.as_deref(), Some(provider.as_str()));
    assert_ne!(spec.unschedulable, Some(true));
    assert_eq!(spec.pod_cidr, None);

    let status = node.status.as_ref().expect("a status");
    let address = |type_: &str, address: &str| NodeAddress { type_: type_.into(), address: address.into() };
    let ip = stage.base("base-0")?.ip().to_string();
    assert_eq!(
        status.addresses.as_deref(),
        Some(&[address("InternalIP", &ip), address("Hostname", &name)][..])
    );
    // 2 CPUs and 2 GiB less what is reserved; no limit of storage: the real node's.
    let amounts = BTreeMap::from([
        ("cpu", "1500m"),
        ("ephemeral-storage", "1099511627776"),
        ("memory", "1073741824"),
        ("pods", "3"),
    ]);
    assert_eq!(resources(&node), (amounts.clone(), amounts));
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
/// turns NotReady.
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

/// Names: plain where they are unambiguous, and with a hash where stack or namespace has a `-`, a character had to be
/// replaced, or they would be too long; never longer than a label. The annotation tells the truth.
#[tokio::test]
async fn names_fit_and_do_not_collide() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let scope = stage.default_ns().to_owned();
    let dashed = format!("{scope}-b");
    let _dashed = stage.cluster()?.namespace_in_scope(&dashed, &scope, &[]).await?;
    // 63 characters are reached with a Pod of this length.
    let fits = 63 - "virtual-node-java--".len() - scope.len();
    let long = |length: usize| format!("{}-0", "x".repeat(length - 2));
    let sets = [
        (BaseSet::stateful("plain", "1", 1), scope.as_str(), "java", "plain-0".to_owned(), false),
        (BaseSet::stateful(&"x".repeat(fits - 2), "1", 1), &scope, "java", long(fits), false),
        (BaseSet::stateful(&"x".repeat(fits - 1), "1", 1), &scope, "java", long(fits + 1), true),
        (
            BaseSet::stateful("stack", "1", 1).label(names::STACK, "java-x"),
            &scope,
            "java-x",
            "stack-0".to_owned(),
            true,
        ),
        (
            BaseSet::stateful("upper", "1", 1).label(names::STACK, "Node_JS"),
            &scope,
            "Node_JS",
            "upper-0".to_owned(),
            true,
        ),
        (BaseSet::stateful("plain", "1", 1), &dashed, "java", "plain-0".to_owned(), true),
    ];
    for (set, namespace, ..) in &sets {
        stage.cluster()?.kubectl()?.in_namespace(namespace).apply(&set.yaml()).await?;
    }
    stage.wait_vnodes_ready(sets.len() + 1).await?;
    for (_, namespace, stack, pod, hashed) in &sets {
        let name = node_name(stack, namespace, pod, "default");
        let node = stage.nodes().get(&name).await?;
        assert!(name.len() <= 63, "{name}");
        assert_eq!(node.labels()[names::HOSTNAME], name);
        assert_eq!(node.annotations()[names::BASE], format!("{namespace}/{pod}"));
        assert_eq!(node.labels()[names::STACK], *stack);
        let plain = format!("virtual-node-{stack}-{namespace}-{pod}");
        assert_eq!(name != plain, *hashed, "{name}");
        if *hashed {
            let end = name.rsplit('-').next().unwrap_or_default();
            assert!(end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        }
    }
    Ok(())
}

/// The annotations `stowage.dev/arklet-port` and `stowage.dev/container`: another port and another container. A port
/// that is none makes no base, and harms no other.
#[tokio::test]
async fn port_and_container_are_as_annotated() -> TestResult {
    const PORT: u16 = 1300;
    let two = |pod: &mut serde_json::Value| {
        let limits = json!({"limits": {"cpu": "3", "memory": "3Gi"}});
        pod["containers"] = json!([
            {"name": "base", "image": "example/sidecar", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
            {"name": "jvm", "image": "example/java-base", "resources": limits},
        ]);
    };
    let stage = Stage::builder()
        .base_set(BaseSet::stateful("ported", "2.1.0", 1).annotation(names::ARKLET_PORT, "1300"))
        .base_set(BaseSet::stateful("two", "2.1.0", 1).annotation(names::CONTAINER, "jvm").pod_spec(two))
        .base_set(BaseSet::stateful("wrong", "2.1.0", 1).annotation(names::ARKLET_PORT, "http"))
        .simulators(|pod, mut address: SocketAddr| {
            if pod.annotations().get(names::ARKLET_PORT).is_some_and(|port| port == "1300") {
                address.set_port(PORT);
            }
            Options::at(address)
        })
        .without_waiting()
        .build()
        .await?;
    stage.wait_bases_ready(3).await?;
    stage.wait_vnodes_ready(2).await?;
    let node = stage.nodes().get(&stage.vnode_of("two-0")).await?;
    assert_eq!(resources(&node).0["cpu"], "3");
    let ported = stage.vnode_of("ported-0");
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    let pinned = harness::stage::ModuleSet::deployment("shop", "1.0.0", &url)
        .pod_field("nodeSelector", json!({(names::HOSTNAME): ported}));
    stage.apply(&pinned.yaml()).await?;
    stage.wait_pods_ready("app=shop", 1).await?;
    assert_eq!(stage.base("ported-0")?.journal()?.installs("shop"), 1);

    assert_eq!(stage.nodes().get_opt(&stage.vnode_of("wrong-0")).await?.map(|node| node.name_any()), None);
    let log = stage.agent(0)?.log_tail(2000);
    assert!(log.contains("wrong-0") && log.contains(names::ARKLET_PORT), "the wrong port is not spoken of");
    stage
        .base_kubectl()?
        .run(&["annotate", "pod", "wrong-0", "--overwrite", &format!("{}=1238", names::ARKLET_PORT)])
        .await?;
    stage.wait_vnodes_ready(3).await?;
    Ok(())
}

/// arklet answers before the application is up: a base counts when its container has been ready once. Later flaps of its
/// readiness are shown and decide nothing.
#[tokio::test]
async fn a_base_counts_when_it_was_ready_once() -> TestResult {
    let stage = Stage::builder().build().await?;
    stage.kubelet.set_ready_at_start(false);
    stage.apply_bases(&BaseSet::stateful("base", "2.1.0", 1)).await?;
    let running = |pod: Option<&Pod>| {
        pod.and_then(|pod| pod.status.as_ref())
            .is_some_and(|status| status.phase.as_deref() == Some("Running") && status.pod_ip.is_some())
    };
    wait::object(&stage.base_pods(), "base-0", "running base", SOON, running).await?;
    let name = stage.vnode_of("base-0");
    wait_metric(stage.agent(0)?, "stowage_agent_bases", &[], 1.0).await?;
    wait::throughout("absence of a VNode", Duration::from_secs(3), async || {
        match stage.nodes().get_opt(&name).await? {
            None => Ok(()),
            Some(_) => Err(Failure::from("there is a VNode")),
        }
    })
    .await?;
    assert_eq!(stage.base("base-0")?.journal()?.count("queryAllBiz"), 0, "it is not asked either");

    let namespace = stage.default_ns().to_owned();
    stage.kubelet.set_ready(&namespace, "base-0", true).await?;
    ready_vnode(&stage, &name, "VNode", |_| true).await?;
    run_shop(&stage, 1).await?;
    let calm = Lookout::pods_ready(&stage, "app=shop").await;
    stage.kubelet.set_ready(&namespace, "base-0", false).await?;
    let told = ready_vnode(&stage, &name, "VNode that tells of its base", |node| {
        condition(node, "Ready")
            .and_then(|ready| ready.message.as_deref())
            .is_some_and(|text| text.contains("not Ready"))
    });
    told.await?;
    calm.assert_quiet();
    Ok(())
}

/// A base at an address that no Service may have gets its modules, but its address is never written to a `VPod`: one such
/// address would freeze every Service that selects the Pod.
#[tokio::test]
async fn a_loopback_address_is_not_passed_on() -> TestResult {
    let stage = Stage::builder().build().await?;
    network::ensure()?;
    let ip = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77));
    let base = Simulator::start(Options::at(SocketAddr::new(ip, 1238))).await?;
    let host: Node = serde_json::from_value(json!({"metadata": {"name": "no-kubelet"}}))?;
    stage.nodes().create(&PostParams::default(), &host).await?;
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "local", "labels": {(names::STACK): "java", (names::VERSION): "2.1.0"}},
        "spec": {"nodeName": "no-kubelet", "tolerations": [{"operator": "Exists"}],
                 "containers": [{"name": "base", "image": "x"}]},
    }))?;
    pod = stage.base_pods().create(&PostParams::default(), &pod).await?;
    let status = json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "10.244.0.200",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "base", "image": "x", "imageID": "", "ready": true, "restartCount": 0,
                               "state": {"running": {"startedAt": jiff::Timestamp::now().to_string()}}}],
    }});
    stage.base_pods().patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&status)).await?;
    stage.wait_vnodes_ready(1).await?;
    let url = stage.artifacts.module("shop", "1.0.0").url()?;
    // Where the modules' namespace puts its Pods is no matter of this base.
    stage
        .apply(
            &harness::stage::ModuleSet::deployment("shop", "1.0.0", &url)
                .pod_field("nodeName", json!(stage.vnode_of("local")))
                .yaml(),
        )
        .await?;
    base.journal().until(SOON, |journal| journal.installs("shop") == 1).await?;
    stage
        .wait_pods("app=shop", "an installed VPod", SOON, |pods| {
            let [pod] = pods else { return Err(format!("{} Pods", pods.len())) };
            let installed =
                pod_condition(pod, names::INSTALLED_CONDITION).is_some_and(|it| it.status == "True");
            let status = pod.status.clone().unwrap_or_default();
            if !installed {
                return Err(wait::yaml(&status));
            }
            assert_eq!(status.pod_ip, None);
            assert!(status.pod_ips.unwrap_or_default().is_empty());
            Ok(())
        })
        .await?;
    Ok(())
}

/// A Node of another maker that has the name of a `VNode` stays as it is, and an Event says why there is no `VNode`.
#[tokio::test]
async fn a_node_of_others_under_our_name_stays() -> TestResult {
    let mut stage = Stage::builder().bases(1).agents(0).build().await?;
    let name = stage.vnode_of("base-0");
    let node: Node =
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"made": "by-hand"}}}))?;
    stage.nodes().create(&PostParams::default(), &node).await?;
    stage.start_agent(&[]).await?;
    wait::until("an Event about the taken name", SOON, async || {
        let events = stage.events_of_node(&name).await?;
        if events.iter().any(|event| event.starts_with("NodeNameTaken:")) {
            return Ok(());
        }
        Err(Failure::from(format!("{events:?}")))
    })
    .await?;
    let node = stage.nodes().get(&name).await?;
    assert!(!node.labels().contains_key(names::MANAGED_BY) && node.annotations().get(names::BASE).is_none());
    assert!(stage.nodes().list(&ListParams::default().labels(VNODES)).await?.items.is_empty());

    stage.nodes().delete(&name, &DeleteParams::default()).await?;
    stage.wait_vnodes_ready(1).await?;
    Ok(())
}

/// A base whose arklet does not answer yet is no `VNode`; it is one as soon as arklet answers.
#[tokio::test]
async fn a_base_counts_when_arklet_answers() -> TestResult {
    let stage = Stage::builder().build().await?;
    stage.apply_bases(&BaseSet::stateful("base", "2.1.0", 1)).await?;
    stage.wait_bases_ready(1).await?;
    let base = stage.base("base-0")?;
    stage.wait_vnodes_ready(1).await?;
    // The next base Pod of this name gets a new simulator, so the fault is set on a second base before it is ready.
    stage.kubelet.set_ready_at_start(false);
    stage.apply_bases(&BaseSet::stateful("late", "2.1.0", 1)).await?;
    wait::until("the second base", SOON, async || stage.base("late-0").map(drop)).await?;
    let late = stage.base("late-0")?;
    late.faults()?.always(On::any(), Fault::Text("<html>starting</html>".to_owned()));
    stage.kubelet.set_ready(stage.default_ns(), "late-0", true).await?;
    late.journal()?.until(SOON, |journal| journal.count("queryAllBiz") >= 3).await?;
    let node = stage.nodes().get_opt(&stage.vnode_of("late-0")).await?;
    assert!(
        node.is_none_or(|node| readiness(&node).0 != "True"),
        "a base that does not answer is shown as Ready"
    );
    late.faults()?.clear();
    stage.wait_vnodes_ready(2).await?;
    assert!(base.simulator()?.is_up());
    let pods: Api<Pod> = stage.base_pods();
    assert!(is_ready(&pods.get("late-0").await?));
    Ok(())
}
