//! The styles of docs/rollouts.md, by its own manifests and commands, under load.

use std::{collections::BTreeMap, time::Duration};

use harness::{
    Failure, TestResult,
    artifact::ModuleBuilder,
    kubelet::is_ready,
    load::Load,
    stage::{BaseSet, ModuleSet, Stage},
    wait,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use policy::contract::names;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::vpods::*;

/// A jar of a sample that serves its name as path.
fn serving(module: ModuleBuilder<'_>) -> ModuleBuilder<'_> {
    module.serves(8080).with(|jar| {
        let path = format!("/{}", jar.identity().0);
        jar.context_path(&path).starts_in(Duration::from_millis(200))
    })
}

fn service(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}})
    .to_string()
}

/// A rollout that may surge uses a spare base, and all replicas serve meanwhile. Where no base is to spare, one that may
/// only surge waits, and goes on by the patch of the page; one that may do both never waits.
#[tokio::test]
async fn a_release_surges_where_there_is_room_and_replaces_where_there_is_none() -> TestResult {
    let spare = BaseSet::deployment("spare", "2.1.0", 1);
    let stage = Stage::builder().bases(3).base_set(spare).pods_per_base(2).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let both = stage.sample_with("surge.yaml", serving)?;
    let only = both.replace("maxUnavailable: 1", "maxUnavailable: 0");
    assert_ne!(both, only);
    let release = |text: &str, version: &str| -> Result<String, Failure> {
        let file = format!("modules/basket-{version}-ark-biz.jar");
        serving(stage.artifacts.module("basket", version).named(&file)).url()?;
        Ok(text.replace("1.0.0", version))
    };
    let kubectl = stage.kubectl()?;
    let rolled_out = async || -> TestResult {
        kubectl.run(&["rollout", "status", "deployment/basket", "--timeout=90s"]).await?;
        Ok(())
    };
    stage.apply(&service("basket")).await?;
    stage.apply(&only).await?;
    stage.wait_pods_ready("app=basket", 3).await?;
    let load = Load::on(stage.client(), stage.default_ns(), "basket", "/basket").await?;

    stage.apply(&release(&only, "1.1.0")?).await?;
    let fewest = async || {
        let pods = stage.pods("app=basket").await.map_err(|error| error.to_string())?;
        let ready = pods.iter().filter(|pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none());
        let (ready, new) =
            (ready.count(), pods.iter().filter(|pod| is_of(pod, "1.1.0") && is_ready(pod)).count());
        if ready < 3 {
            Ok(Err(ready))
        } else if new == 3 {
            Ok(Ok(()))
        } else {
            Err(format!("{new} of 3"))
        }
    };
    let full = wait::until("three replicas of the new version", SOON, fewest).await?;
    assert_eq!(full, Ok(()), "all replicas serve while one surges");
    rolled_out().await?;
    stage.wait_modules(&[("basket:1.1.0", 3)]).await?;

    // No base to spare: cordoned, the fourth takes nothing.
    let held = stage.held().await;
    let free = held.iter().find(|(_, modules)| modules.is_empty()).expect("a spare base").0.clone();
    kubectl.run(&["cordon", &stage.vnode_of(&free)]).await?;
    stage.apply(&release(&both, "1.2.0")?).await?;
    rolled_out().await?;
    stage.wait_modules(&[("basket:1.2.0", 3)]).await?;
    stage.apply(&release(&only, "1.3.0")?).await?;
    wait::until("the surge Pod's reason", SOON, async || {
        let texts = stage.wait_unschedulable("app=basket", 1).await.map_err(|error| error.to_string())?;
        let told = texts[0].contains("version of module basket is still on the base");
        if told { Ok(()) } else { Err(texts[0].clone()) }
    })
    .await?;
    stage.wait_modules(&[("basket:1.2.0", 3)]).await?;
    let patch = r#"{"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": 1}}}}"#;
    kubectl.run(&["patch", "deployment", "basket", "--patch", patch]).await?;
    rolled_out().await?;
    stage.wait_modules(&[("basket:1.3.0", 3)]).await?;
    let report = load.stop().await;
    assert_eq!(report.lost(), 0, "{report}");
    stage.assert_no_double_install()?;
    Ok(())
}

fn is_of(pod: &Pod, version: &str) -> bool {
    let spec = pod.spec.as_ref().expect("a spec");
    spec.containers[0].image.as_deref().is_some_and(|image| image.contains(version))
}

/// A workload that releases in place: a `ReplicaSet`, whose Pods are patched one after the other. Each leaves the traffic,
/// is drained, loses the old module and gets the new one; it stays the same Pod on the same base.
#[tokio::test]
async fn a_release_in_place_loses_no_request() -> TestResult {
    let stage = Stage::builder().bases(3).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let url = |version: &str| -> Result<String, Failure> {
        Ok(serving(stage.artifacts.module("shop", version)).url()?)
    };
    let (first, second) = (url("1.0.0")?, url("2.0.0")?);
    let label = format!("{}shop", names::MODULE_LABEL_PREFIX);
    // Answered on one base; on the others nobody listens, which stops nothing.
    let mut tasks = JoinSet::new();
    let (port, mut asked) = hook(stage.base("base-0")?.ip(), &mut tasks).await?;
    let stop = json!({"preStop": {"httpGet": {"port": port, "path": "/drain"}}});
    let set = ModuleSet::deployment("shop", "1.0.0", &first).label(&label, "1.0.0").replicas(3);
    let set = set.field("lifecycle", stop);
    let mut set: Value = serde_json::from_str(&set.yaml())?;
    set["kind"] = json!("ReplicaSet");
    set["spec"].as_object_mut().expect("a spec").remove("strategy");
    stage.apply(&service("shop")).await?;
    stage.apply(&set.to_string()).await?;
    let pods = stage.wait_pods_ready("app=shop", 3).await?;
    let load = Load::on(stage.client(), stage.default_ns(), "shop", "/shop").await?;

    let change = json!({"metadata": {"labels": {(label.as_str()): "2.0.0"}},
        "spec": {"containers": [{"name": "shop", "image": second}]}});
    for before in &pods {
        let name = before.name_any();
        let leaves = pod_is(&stage, &name, "Pod that leaves the traffic", |pod| {
            !is_ready(pod) && waits_for(pod, "Releasing")
        });
        let patch = async {
            let patch = Patch::Strategic(&change);
            stage.api::<Pod>().patch(&name, &PatchParams::default(), &patch).await?;
            Ok::<_, Failure>(())
        };
        let (left, ()) = tokio::try_join!(leaves, patch)?;
        assert_eq!(phase(&left), "Running");
        let base = base_of(&stage, before);
        let after = pod_is(&stage, &name, "Pod of the new version", |pod| {
            let id = containers(pod).first().and_then(|container| container.container_id.as_deref());
            is_ready(pod) && id.is_some_and(|id| id.ends_with(":shop:2.0.0"))
        })
        .await?;
        assert_eq!((uid(&after), node_of(&after), restarts(&after)), (uid(before), node_of(before), vec![1]));
        let story = ["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0", "installBiz shop:2.0.0"];
        assert_eq!(deeds(&base)?, story);
        load.lossless()?;
    }
    stage.wait_modules(&[("shop:2.0.0", 3)]).await?;
    let hooked = tokio::time::timeout(SOON, asked.wait_for(Option::is_some)).await??.expect("it was called");
    assert!(hooked < uninstalled_at(&stage, "base-0")?, "the hook comes before the uninstall");

    // The template changes no Pod that lives; the next one is of the new version from its beginning.
    set["spec"]["template"]["metadata"]["labels"][&label] = json!("2.0.0");
    set["spec"]["template"]["spec"]["containers"][0]["image"] = json!(second);
    set["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = json!("2.0.0");
    stage.apply(&set.to_string()).await?;
    stage.api::<Pod>().delete(&pods[0].name_any(), &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), &pods[0].name_any(), SOON).await?;
    let now = stage.wait_pods_ready("app=shop", 3).await?;
    assert_eq!(now.iter().filter(|pod| pods.iter().any(|old| old.uid() == pod.uid())).count(), 2);
    stage.wait_modules(&[("shop:2.0.0", 3)]).await?;
    let report = load.stop().await;
    assert_eq!(report.lost(), 0, "{report}");
    assert!(report.served_by("shop:1.0.0") > 0 && report.served_by("shop:2.0.0") > 0, "{report}");
    stage.assert_no_double_install()?;
    Ok(())
}

/// Linked release: the bases roll from one line to the next and back, each base gets the module of its line and no other,
/// and the Service answers all the time.
#[tokio::test]
async fn a_linked_release_moves_bases_and_modules_together() -> TestResult {
    let stage = Stage::builder().build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    stage.apply(&stage.sample_with("linked-rollout.yaml", serving)?).await?;
    stage.wait_bases_ready(3).await?;
    stage.wait_modules(&[("pricing:3.1.0", 3)]).await?;
    let load = Load::on(stage.client(), stage.default_ns(), "pricing", "/pricing").await?;
    let kubectl = stage.kubectl()?;
    let rolled_out = async |module: &str| -> TestResult {
        kubectl.run(&["rollout", "status", "deployment/store-base", "--timeout=150s"]).await?;
        stage.wait_bases_ready(3).await?;
        stage.wait_modules(&[(module, 3)]).await?;
        load.lossless()?;
        Ok(())
    };
    let patch = json!({"spec": {"template": {"metadata": {"labels": {(names::VERSION): "2.2.0"}},
        "spec": {"containers": [{"name": "base", "image": "example/java-base:2.2.0"}]}}}});
    kubectl.run(&["patch", "deployment", "store-base", "--patch", &patch.to_string()]).await?;
    rolled_out("pricing:3.2.0").await?;
    kubectl.run(&["rollout", "undo", "deployment/store-base"]).await?;
    rolled_out("pricing:3.1.0").await?;
    let report = load.stop().await;
    println!("linked release: {report}");
    assert_eq!(report.lost(), 0, "{report}");
    assert!(report.served_by("pricing:3.1.0") > 0 && report.served_by("pricing:3.2.0") > 0, "{report}");
    let mut installs = BTreeMap::<String, usize>::new();
    for base in stage.all_bases() {
        let installed: Vec<_> =
            deeds(&base)?.into_iter().filter(|deed| deed.starts_with("installBiz")).collect();
        assert_eq!(installed.len(), 1, "{}: {installed:?}", base.pod());
        *installs.entry(installed[0].clone()).or_default() += 1;
    }
    let expected = [("installBiz pricing:3.1.0", 6), ("installBiz pricing:3.2.0", 3)];
    assert_eq!(installs, expected.map(|(deed, count)| (deed.to_owned(), count)).into());
    stage.assert_no_double_install()?;
    Ok(())
}
