//! The harness itself, on a real control plane.

use std::{collections::BTreeMap, error::Error, time::Duration};

use harness::{
    controlplane::{Component, ControlPlane, Options, configuration},
    kubelet::{Exit, Kubelet, Running, Runtime, RuntimeError, Start, is_ready},
    wait,
};

type TestResult = Result<(), Box<dyn Error>>;

#[tokio::test]
async fn starts() -> TestResult {
    let started = std::time::Instant::now();
    let cluster = ControlPlane::shared().await?;
    eprintln!("control plane {:?}", started.elapsed());
    let namespace = cluster.namespace("example").await?;
    eprintln!("namespace {:?}", started.elapsed());
    let out = namespace.kubectl(cluster)?.run(&["get", "sa"]).await?;
    eprintln!("{out} {:?}", started.elapsed());
    Ok(())
}
