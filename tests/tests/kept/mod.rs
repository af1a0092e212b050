//! VPods whose objects stay after their modules have gone, because of somebody else's finalizer.

use harness::{
    TestResult,
    stage::{ModuleSet, Stage, describe_pod},
    wait,
};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::vpods::*;

/// A Pod that a finalizer keeps is told as ended when its module is off the base: it is in no Service any more, and does not
/// seem to run. An agent that restarts leaves it so, and it goes with its finalizer.
#[tokio::test]
async fn a_pod_kept_by_a_finalizer_is_shown_as_ended() -> TestResult {
    let mut stage = Stage::builder().bases(1).build().await?;
    let pods = stage.api::<Pod>();
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    let keep = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    pods.patch("shop", &PatchParams::default(), &keep(json!(["example.com/keep"]))).await?;
    let ran = pod_ready(&stage, "shop").await?;
    let started = |pod: &Pod| {
        let shown = containers(pod).first().and_then(|container| container.state.clone()).expect("a state");
        let running = shown.running.and_then(|running| running.started_at);
        running.or_else(|| shown.terminated.and_then(|terminated| terminated.started_at)).expect("a start")
    };
    pods.delete("shop", &DeleteParams::default()).await?;
    let ended = pod_is(&stage, "shop", "Pod that has ended", |pod| phase(pod) == "Failed").await?;
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    let end = containers(&ended)[0].state.as_ref().and_then(|shown| shown.terminated.clone());
    let end = end.unwrap_or_else(|| panic!("{}", describe_pod(&ended)));
    assert_eq!((end.exit_code, end.reason.as_deref()), (143, Some("Uninstalled")));
    assert!(end.finished_at >= end.started_at, "{end:?}");
    assert_eq!((started(&ended), restarts(&ended)), (started(&ran), vec![0]));
    assert_eq!(["Ready", "ContainersReady"].map(|kind| status_of(&ended, kind)), ["False"; 2]);

    stage.agents()[0].restart()?;
    stage.agent(0)?.wait_ready().await?;
    queried(&*stage.base("base-0")?, 3).await?;
    let still = pods.get("shop").await?;
    assert_eq!(still.status, ended.status, "never revived, nor told anew");
    pods.patch("shop", &PatchParams::default(), &keep(Value::Null)).await?;
    wait::gone(&pods, "shop", SOON).await?;
    if stage.is_simulated() {
        assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (1, 1));
    }
    Ok(())
}

/// A Job that replaces only what has ended (`podReplacementPolicy: Failed`) gets its replacement: its Pods carry a
/// finalizer of the Job controller, which waits for a phase.
#[tokio::test]
async fn a_job_replaces_a_deleted_pod_once_it_has_ended() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    let pod: Value = serde_json::from_str(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop"))?;
    let mut template = json!({"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]});
    template["spec"]["restartPolicy"] = json!("Never");
    let spec = json!({"podReplacementPolicy": "Failed", "backoffLimit": 3, "template": template});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "shop"}, "spec": spec});
    stage.apply(&job.to_string()).await?;
    let first = stage.wait_pods_ready("job-name=shop", 1).await?.remove(0);
    let finalizers = first.metadata.finalizers.clone().unwrap_or_default();
    assert!(finalizers.iter().any(|finalizer| finalizer.contains("job-tracking")), "{finalizers:?}");
    stage.api::<Pod>().delete(&first.name_any(), &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), &first.name_any(), SOON).await?;
    let second = wait::until("a replacement that is Ready", SOON, async || {
        let pods = stage.api::<Pod>().list(&ListParams::default().labels("job-name=shop")).await;
        let pods = pods.map_err(|error| error.to_string())?;
        let ready =
            pods.items.into_iter().find(|pod| uid(pod) != uid(&first) && harness::kubelet::is_ready(pod));
        ready.ok_or_else(|| "none".to_owned())
    });
    second.await?;
    let job = stage.api::<Job>().get("shop").await?.status.unwrap_or_default();
    assert_eq!(
        (job.failed, job.succeeded.unwrap_or(0)),
        (Some(1), 0),
        "a module that is taken off has not succeeded"
    );
    if stage.is_simulated() {
        assert_eq!((stage.installs("shop")?, stage.uninstalls("shop")?), (2, 1));
    }
    stage.assert_no_double_install()?;
    Ok(())
}
