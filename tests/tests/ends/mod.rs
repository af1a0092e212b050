//! Steps that an agent takes seldom, and dies at all the same.

use harness::{
    Failure, TestResult,
    artifact::Trouble,
    stage::{ModuleSet, POLICY, Stage},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use std::os::unix::process::ExitStatusExt;

use crate::{At, PROGRAM, Walk, vpods::*};

/// Around the switch to another version, the end of a Pod that failed for good, and the removal of Pods of a base that
/// leaves.
pub(crate) const ENDS: [&str; 6] =
    ["SwitchPlanned", "SwitchAnswered", "FailedPlanned", "FailedWritten", "ObjectDeleting", "ObjectDeleted"];

/// What else an agent may die at: each time it is started again, and what it was about comes to its end once.
#[tokio::test]
async fn an_agent_killed_at_rarer_steps_goes_on() -> TestResult {
    let policy = POLICY.replace("podsPerBase: 1", "podsPerBase: 5");
    let mut stage = Stage::builder().bases(2).policy(&policy).agent_program(PROGRAM).build().await?;
    let node = stage.vnode_of("base-0");
    for (number, point) in ENDS.into_iter().enumerate() {
        let module = format!("end{number}");
        let base = stage.base("base-0")?;
        let url = jar(&stage, &module, "2.0.0")?;
        let set = ModuleSet::deployment(&module, "2.0.0", &url);
        let on_base = set.clone().pod_field("nodeName", json!(node));
        match point {
            "SwitchPlanned" | "SwitchAnswered" => {
                // A version that nobody made active: it came second.
                let first = jar(&stage, &module, "1.0.0")?;
                install_by_hand(&base, &module, "1.0.0", &first).await?;
                install_by_hand(&base, &module, "2.0.0", &url).await?;
                uninstall_by_hand(&base, &module, "1.0.0").await?;
            }
            "FailedPlanned" | "FailedWritten" => {
                stage.artifacts.always(Some(&format!("{module}-2.0.0.jar")), Trouble::Status(404));
            }
            _ => {
                stage.apply(&set.yaml()).await?;
                stage.wait_pods_ready(&format!("app={module}"), 1).await?;
            }
        }
        let mut walk = Walk { stage: &mut stage, module: module.clone(), slow: Vec::new() };
        walk.arm(0, Some(At(point, 1)))?;
        walk.stage.agent(0)?.wait_ready().await?;
        let leaves = point.starts_with("Object");
        let pods = walk.stage.api::<Pod>();
        let left = if leaves {
            let selector = ListParams::default().labels(&format!("app={module}"));
            let pod = pods.list(&selector).await?.items.remove(0);
            let base = base_of(walk.stage, &pod);
            walk.stage.base_pods().delete(base.pod(), &DeleteParams::default()).await?;
            Some(pod)
        } else {
            walk.stage.apply(&on_base.pod_yaml(&module)).await?;
            None
        };
        let status = walk.stage.agent(0)?.wait_end(SOON).await?;
        assert_eq!(status.signal(), Some(6), "{point}: {status}");
        walk.arm(0, None)?;
        let count = |command: &str| -> Result<usize, Failure> {
            let deed = format!("{command} {module}:2.0.0");
            Ok(deeds(&base)?.iter().filter(|done| **done == deed).count())
        };
        match left {
            Some(left) => {
                wait::gone(&stage.api::<Pod>(), &left.name_any(), SOON).await?;
                stage.wait_pods_ready(&format!("app={module}"), 1).await?;
                stage.wait_vnodes_ready(2).await?;
            }
            None if point.starts_with("Switch") => {
                pod_ready(&stage, &module).await?;
                assert_eq!((count("switchBiz")?, count("installBiz")?), (1, 1), "{point}");
            }
            None => {
                assert_eq!(pod_failed(&stage, &module).await?.0, "ArtifactNotFound");
                // Until it is written nobody knows that it has failed.
                let tries = if point == "FailedPlanned" { 2 } else { 1 };
                assert_eq!(count("installBiz")?, tries, "{point}");
            }
        }
        stage.assert_no_double_install()?;
    }
    Ok(())
}
