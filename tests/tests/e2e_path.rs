//! The whole path: `kubectl apply` of a module Deployment ends with modules running on bases.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;

use harness::{
    TestResult,
    stage::{Stage, pod_condition},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// BL-077: the sample: three replicas on four bases.
#[tokio::test]
async fn the_sample_deployment_runs_on_three_bases() -> TestResult {
    let stage = Stage::builder().bases(4).build().await?;
    let before = Timestamp::now();
    stage.apply_sample("module.yaml").await?;
    let pods = stage.wait_pods_ready("app=shop", 3).await?;
    stage.wait_modules(&[("shop:1.4.0", 3)]).await?;

    let nodes: BTreeSet<String> = pods.iter().map(node_of).collect();
    assert_eq!(nodes.len(), 3, "three VPods share VNodes: {nodes:?}");
    for pod in &pods {
        let base = stage
            .all_bases()
            .into_iter()
            .find(|base| stage.vnode_of(base.pod()) == node_of(pod))
            .expect("a base stands behind the VNode");
        assert_status(pod, &base.ip().to_string(), before);
        let holds = base.modules().await.expect("the base is up");
        assert_eq!(holds, BTreeSet::from(["shop:1.4.0".to_owned()]), "{}", base.pod());
        if stage.is_simulated() {
            assert_eq!(base.journal()?.installs("shop"), 1, "{}", base.pod());
        }
        let base_pod = stage.base_pods().get(base.pod()).await?;
        let (ours, its) = (pod.status.as_ref(), base_pod.status.as_ref());
        assert_eq!(
            ours.and_then(|status| status.host_ip.as_ref()),
            its.and_then(|status| status.host_ip.as_ref())
        );
        let story = stage.events_of(&pod.name_any()).await?;
        assert!(story.iter().any(|event| event.starts_with("Installed:")), "{story:?}");
    }
    if stage.is_simulated() {
        assert_eq!(stage.installs("shop")?, 3);
        stage.assert_no_double_install()?;
    }
    Ok(())
}

fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("it is bound")
}

/// What a running VPod must say of itself.
fn assert_status(pod: &Pod, ip: &str, before: Timestamp) {
    let status = pod.status.as_ref().expect("a status");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some(ip));
    let ips: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    assert_eq!(ips, [ip]);
    for condition in
        ["PodScheduled", "Initialized", "module.koupleless.io/installed", "module.koupleless.io/ready"]
            .into_iter()
            .chain(["ContainersReady", "Ready"])
    {
        let found = pod_condition(pod, condition).unwrap_or_else(|| panic!("no condition {condition}"));
        assert_eq!(found.status, "True", "{condition}");
    }
    let [container] = status.container_statuses.as_deref().expect("container statuses") else {
        panic!("one container status is wanted: {:?}", status.container_statuses)
    };
    assert_eq!(container.name, "shop");
    assert_eq!(container.container_id.as_deref(), Some(format!("arklet://{ip}:shop:1.4.0").as_str()));
    assert!(container.image.ends_with("/modules/shop-1.4.0-ark-biz.jar"), "{}", container.image);
    assert_eq!((container.ready, container.started, container.restart_count), (true, Some(true), 0));
    let running = container.state.as_ref().and_then(|state| state.running.as_ref()).expect("it runs");
    let started = running.started_at.as_ref().expect("a start time").0;
    let seen = status.start_time.as_ref().expect("a start time of the Pod").0;
    let now = Timestamp::now();
    // Kubernetes' times have no fractions of seconds.
    let earliest = before.as_second();
    for (what, time) in [("startTime", seen), ("startedAt", started)] {
        assert!((earliest..=now.as_second()).contains(&time.as_second()), "{what} {time}: {before} to {now}");
    }
}
