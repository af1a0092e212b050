//! What stays unclear after a call: a base that restarts in the middle, a port that moves, a version that is installed
//! and not active. And versions of one module side by side.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use harness::{
    Failure,
    arklet::{BizState, Options, SecondVersion},
    stage::BaseSet,
};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A Pod of a version of the shop that is bound to `base-0`, past the scheduler.
async fn bound(stage: &Stage, name: &str, version: &str) -> TestResult {
    let node = json!(stage.vnode_of("base-0"));
    let set =
        ModuleSet::deployment("shop", version, &jar(stage, "shop", version)?).pod_field("nodeName", node);
    stage.apply(&set.pod_yaml(name)).await?;
    Ok(())
}

/// One base that says that it can hold versions side by side, and a policy that lets it hold two.
async fn multi_version(second: SecondVersion) -> Result<Stage, Failure> {
    let policy = policy(&[("podsPerBase: 1, versionsPerModule: 1", "podsPerBase: 5, versionsPerModule: 2")]);
    let bases = BaseSet::stateful("base", "2.1.0", 1).annotation(names::PROVIDES, "multi-version=true");
    let set_up = move |_: &Pod, address| Options { second_version: second, ..Options::at(address) };
    Ok(Stage::builder().policy(&policy).base_set(bases).simulators(set_up).build().await?)
}

/// The container of the base restarts while it installs. The module is installed once more by the new JVM, and only there.
#[tokio::test]
async fn a_base_restarted_during_an_install_gets_its_module() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    base.faults()?.next(1, On::install(), Fault::Slow(Duration::from_secs(30)));
    bound(&stage, "shop", "1.0.0").await?;
    base.journal()?.until(SOON, |journal| journal.installs("shop") == 1).await?;
    stage.kubelet.restart_container(stage.default_ns(), "base-0").await?;
    let pod = pod_ready(&stage, "shop").await?;
    assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0", "installBiz shop:1.0.0"]);
    assert_eq!(restarts(&pod), [0], "it was never active before");
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0"])]).await?;
    Ok(())
}

/// Listens on another port of the base and passes everything on to arklet; counts the connections.
async fn moved_to(from: SocketAddr, port: u16) -> Result<Arc<AtomicUsize>, Failure> {
    let listener = TcpListener::bind((from.ip(), port)).await?;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut far = TcpStream::connect(from).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    Ok(count)
}

/// arklet's port is another one from now on: it is asked there, what is installed stays, and is uninstalled there.
#[tokio::test]
async fn a_moved_port_of_arklet_costs_no_install() -> TestResult {
    const PORT: u16 = 1300;
    let stage = Stage::builder().bases(1).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    bound(&stage, "shop", "1.0.0").await?;
    pod_ready(&stage, "shop").await?;
    let asked = moved_to(base.address(), PORT).await?;
    let annotation = format!("{}={PORT}", names::ARKLET_PORT);
    stage.base_kubectl()?.run(&["annotate", "pod", "base-0", &annotation]).await?;
    wait::until("queries at the new port", SOON, async || match asked.load(Ordering::SeqCst) {
        0..3 => Err("few"),
        _ => Ok(()),
    })
    .await?;
    stage.wait_vnodes_ready(1).await?;
    pod_ready(&stage, "shop").await?;
    assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0"]);
    stage.api::<Pod>().delete("shop", &DeleteParams::default()).await?;
    wait::gone(&stage.api::<Pod>(), "shop", SOON).await?;
    assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0", "uninstallBiz shop:1.0.0"]);
    Ok(())
}

/// Where base and policy allow two versions side by side, two Pods run them on one base, and each goes alone; a third
/// version has to wait.
#[tokio::test]
async fn two_versions_run_side_by_side_where_both_allow_it() -> TestResult {
    let stage = multi_version(SecondVersion::BothActive).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    for (name, version) in [("one", "1.0.0"), ("two", "2.0.0")] {
        bound(&stage, name, version).await?;
        pod_ready(&stage, name).await?;
    }
    stage.assert_bases_hold(&[("base-0", &["shop:1.0.0", "shop:2.0.0"])]).await?;
    bound(&stage, "three", "3.0.0").await?;
    let waits = pod_is(&stage, "three", "Pod that waits", |pod| !waiting(pod).is_empty()).await?;
    let reason = waiting(&waits)[0].reason.clone().unwrap_or_default();
    assert!(["WaitingForOldVersion", "PolicyRejected"].contains(&reason.as_str()), "{reason}");
    let base = stage.base("base-0")?;
    queried(&base, 3).await?;
    assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0", "installBiz shop:2.0.0"]);

    stage.api::<Pod>().delete("one", &DeleteParams::default()).await?;
    pod_ready(&stage, "three").await?;
    pod_ready(&stage, "two").await?;
    stage.assert_bases_hold(&[("base-0", &["shop:2.0.0", "shop:3.0.0"])]).await?;
    assert_eq!(deeds(&base)?[2..], ["uninstallBiz shop:1.0.0", "installBiz shop:3.0.0"]);
    Ok(())
}

/// The base says that it can hold two versions and keeps the second one deactivated: success of the install is no success.
/// The Pod waits while the other version has a living Pod, without a second install, and is switched to once when that
/// has gone.
#[tokio::test]
async fn a_version_deactivated_after_its_install_is_switched_to_when_the_other_goes() -> TestResult {
    let stage = multi_version(SecondVersion::Deactivated).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    bound(&stage, "one", "1.0.0").await?;
    pod_ready(&stage, "one").await?;
    bound(&stage, "two", "2.0.0").await?;
    let waits = pod_waits(&stage, "two", "WaitingForOldVersion").await?;
    assert_eq!(phase(&waits), "Pending");
    assert_eq!(base.simulator()?.state("shop", "2.0.0"), Some(BizState::Deactivated));
    queried(&base, 3).await?;
    let installs = ["installBiz shop:1.0.0", "installBiz shop:2.0.0"];
    assert_eq!(deeds(&base)?, installs);
    assert!(is_ready(&stage.api::<Pod>().get("one").await?), "the other one is not touched");

    stage.api::<Pod>().delete("one", &DeleteParams::default()).await?;
    pod_ready(&stage, "two").await?;
    assert_eq!(deeds(&base)?[2..], ["uninstallBiz shop:1.0.0", "switchBiz shop:2.0.0"]);
    stage.assert_bases_hold(&[("base-0", &["shop:2.0.0"])]).await?;
    Ok(())
}

/// The base says that it can hold two versions and deactivates the old one when the new one comes: the old Pod says so, and
/// the two do not take the name from each other by turns.
#[tokio::test]
async fn a_version_that_takes_over_is_not_switched_back() -> TestResult {
    let stage = multi_version(SecondVersion::TakesOver).await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let base = stage.base("base-0")?;
    for (name, version) in [("one", "1.0.0"), ("two", "2.0.0")] {
        bound(&stage, name, version).await?;
        pod_ready(&stage, name).await?;
    }
    pod_is(&stage, "one", "Pod that is not Ready any more", |pod| !is_ready(pod)).await?;
    queried(&base, 3).await?;
    assert_eq!(deeds(&base)?, ["installBiz shop:1.0.0", "installBiz shop:2.0.0"]);
    assert!(is_ready(&stage.api::<Pod>().get("two").await?));
    stage.api::<Pod>().delete("two", &DeleteParams::default()).await?;
    pod_ready(&stage, "one").await?;
    assert_eq!(deeds(&base)?[2..], ["uninstallBiz shop:2.0.0", "switchBiz shop:1.0.0"]);
    Ok(())
}
