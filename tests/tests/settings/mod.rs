//! What kube-scheduler makes of its flags, by its own word.

use std::process::Output;

use harness::{
    Failure, TestResult,
    controlplane::binaries::{self, Component},
    workdir::Workdir,
};
use serde_json::json;

fn kube_scheduler(args: &[String]) -> Result<Output, Failure> {
    Ok(binaries::locate()?.command(Component::Scheduler)?.args(args).output()?)
}

/// `qps` and `burst` of a configuration file hold whatever the flags say; without a file the flags do. kube-scheduler
/// writes the settings that are in force into a file, which is all it does then.
#[test]
fn beside_a_file_the_flags_for_rates_are_ignored() -> TestResult {
    let workdir = Workdir::new("rates")?;
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    });
    let kubeconfig = workdir.write("kubeconfig", &kubeconfig.to_string())?.display().to_string();
    let file = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 200, "burst": 400},
    });
    let file = workdir.write("configuration", &file.to_string())?;
    let written = workdir.path().join("written");
    for (source, rates) in [
        (format!("--config={}", file.display()), ["burst: 400", "qps: 200"]),
        (format!("--kubeconfig={kubeconfig}"), ["burst: 9", "qps: 7"]),
    ] {
        let mut args = vec![source, format!("--write-config-to={}", written.display())];
        args.extend(["--kube-api-qps=7", "--kube-api-burst=9", "--secure-port=0"].map(str::to_owned));
        let output = kube_scheduler(&args)?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let settings = std::fs::read_to_string(&written)?;
        assert!(rates.iter().all(|rate| settings.lines().any(|line| line.trim() == *rate)), "{settings}");
    }
    Ok(())
}

#[test]
fn asynchronous_calls_are_off_by_default() -> TestResult {
    let help = kube_scheduler(&["--help".to_owned()])?;
    let help = String::from_utf8(help.stdout)?;
    let gate = help.lines().find(|line| line.contains("SchedulerAsyncAPICalls="));
    assert!(gate.is_some_and(|line| line.contains("default=false")), "{gate:?}");
    Ok(())
}
