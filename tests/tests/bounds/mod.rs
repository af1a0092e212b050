//! Loops of controllers and deaths of bases that would never end by themselves, and where the agent ends them.

use super::*;

/// A minute here is an hour: `install.templateBackoff` is a sixtieth of its default.
const HOUR: Duration = Duration::from_mins(1);

/// One replica of a jar that does not exist costs at most 15 installs in an hour, fleet-wide, and fifty cost each base a
/// handful, also when the agent is started anew in the middle; of all that fails the newest three Failed Pods of each
/// template are kept.
#[tokio::test]
async fn an_hour_of_failures_costs_few_installs() -> TestResult {
    let policy = policy(&[
        ("podsPerBase: 1", "podsPerBase: 6"),
        ("install: {", "install: {templateBackoff: {initial: 1s, max: 10s}, "),
    ]);
    let mut stage = Stage::builder().bases(10).policy(&policy).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let nowhere = stage.artifacts.url("nowhere.jar");
    for (name, replicas) in [("one", 1), ("many", 50)] {
        stage.apply(&ModuleSet::deployment(name, "1.0.0", &nowhere).replicas(replicas).yaml()).await?;
    }
    wait::until("an install of each", PATIENCE, async || {
        match (stage.installs("one"), stage.installs("many")) {
            (Ok(one), Ok(many)) if one > 0 && many > 0 => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await?;
    bounded(&stage, HOUR / 2).await?;
    let agent = stage.agents().first_mut().expect("an agent");
    agent.restart()?;
    bounded(&stage, HOUR / 2).await?;

    assert!(stage.installs("one")? >= 5, "it is still tried: {}", stage.installs("one")?);
    for name in ["one", "many"] {
        let what = "three Failed Pods and no more";
        stage
            .wait_pods(&format!("app={name}"), what, SOON, |pods| {
                let failed = pods.iter().filter(|pod| phase(pod) == "Failed").count();
                if failed == 3 { Ok(()) } else { Err(format!("{failed} Failed")) }
            })
            .await?;
    }
    stage.assert_bases_hold(&[("base-0", &[])]).await?;
    Ok(())
}

/// The bounds hold at every instant.
async fn bounded(stage: &Stage, span: Duration) -> TestResult {
    let bases = stage.all_bases();
    wait::throughout("few installs", span, async || {
        let one = stage.installs("one").map_err(|error| error.to_string())?;
        if one > 15 {
            return Err(format!("{one} installs for one replica"));
        }
        for base in &bases {
            let many = base.journal().map_err(|error| error.to_string())?.installs("many");
            // Five places for them, and what comes after.
            if many > 10 {
                return Err(format!("{many} installs on {}", base.pod()));
            }
        }
        Ok(())
    })
    .await?;
    Ok(())
}

/// A module that kills its JVM: after three deaths of the base shortly after its install it is held, and its neighbour,
/// which died with the base each time, is back and stays. It is tried again when somebody asks.
#[tokio::test]
async fn a_lethal_module_is_held_and_its_neighbour_stays() -> TestResult {
    let stage = Stage::builder().bases(1).pods_per_base(2).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let cart = jar(&stage, "cart", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("cart", "1.0.0", &cart).yaml()).await?;
    let neighbour = stage.wait_pods_ready("app=cart", 1).await?;
    let lethal =
        stage.artifacts.module("shop", "1.0.0").with(|jar| jar.kills_base_after(Duration::from_millis(300)));
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &lethal.url()?).pod_yaml("shop")).await?;
    wait::object(&stage.api::<Pod>(), "shop", "held Pod", PATIENCE, |pod| {
        pod.is_some_and(|pod| waits_for(pod, "Lethal"))
    })
    .await?;
    event(&stage, "shop", "Lethal").await?;
    let after = stage.wait_pods_ready("app=cart", 1).await?;
    assert_eq!(uid(&after[0]), uid(&neighbour[0]), "the neighbour's Pod lives on");
    let base = stage.base("base-0")?;
    let lives = |base: &harness::stage::Base| -> Result<u64, harness::Failure> {
        Ok(base.simulator()?.lives().borrow().exits)
    };
    assert_eq!((stage.installs("shop")?, lives(&base)?), (3, 3));
    assert_eq!(restarts(&after[0]), [3]);
    queried(&base, 5).await?;
    assert_eq!((stage.installs("shop")?, lives(&base)?), (3, 3), "it is left alone");
    stage.assert_bases_hold(&[("base-0", &["cart:1.0.0"])]).await?;

    // Corrected under the same address, and somebody asks.
    stage.artifacts.module("shop", "1.0.0").url()?;
    stage.kubectl()?.run(&["annotate", "pod", "shop", &format!("{}=now", names::RETRY)]).await?;
    pod_ready(&stage, "shop").await?;
    stage.assert_bases_hold(&[("base-0", &["cart:1.0.0", "shop:1.0.0"])]).await?;
    Ok(())
}
