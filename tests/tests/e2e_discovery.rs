//! Which Pods are bases, from when on, and under which name.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use harness::{
    TestResult,
    arklet::{Fault, On, Options, Simulator},
    kubelet::is_ready,
    network,
    stage::{BaseSet, Stage, VNODES, pod_condition},
    wait,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use policy::contract::{names, node_name};
use serde_json::json;

mod vnodes;
use vnodes::*;

/// BL-012: names are plain where they are unambiguous, and with a hash where stack or namespace has a `-`, a character
/// had to be replaced, or they would be too long; never longer than a label. The annotation tells the truth.
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

/// BL-128: the annotations `stowage.dev/arklet-port` and `stowage.dev/container`: another port and another container.
/// A port that is none makes no base, and harms no other.
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
            Some(_) => Err(NotYet("there is a VNode".to_owned())),
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
        Err(NotYet(format!("{events:?}")))
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
