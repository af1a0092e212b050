//! More schedulers beside the default one, with a `KubeSchedulerConfiguration` each.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{ControlPlane, ControlPlaneError, accepts, binaries::Component, commands::scheduler_serving};
use crate::{logs, network, process::Process, wait};

/// A second kube-scheduler, killed on drop.
#[derive(Debug)]
pub struct Scheduler {
    name: String,
    args: Vec<String>,
    port: u16,
    log: PathBuf,
    process: Option<Process>,
}

/// What a scheduler configuration says about an extender.
#[derive(Debug, Clone)]
pub struct Extender {
    /// For example `http://127.0.0.1:8888/scheduler`; the verbs are appended.
    pub url_prefix: String,
    /// Whether requests carry node names only.
    pub node_cache_capable: bool,
    /// `bindVerb`, if it is to bind.
    pub bind: bool,
    /// `preemptVerb`, if it is asked before preemption (which is on only then).
    pub preempt: bool,
    /// `httpTimeout`.
    pub timeout: Duration,
    /// `weight`.
    pub weight: u32,
}

impl Extender {
    /// Filter and prioritize, node names only.
    pub fn new(url_prefix: &str) -> Self {
        Self {
            url_prefix: url_prefix.to_owned(),
            node_cache_capable: true,
            bind: false,
            preempt: false,
            timeout: Duration::from_secs(5),
            weight: 5,
        }
    }
}

/// A `KubeSchedulerConfiguration` with one profile of this name, 100 % sampling, no preemption unless the extender is
/// asked about it, and no extender if none is given. JSON, which is YAML.
pub fn configuration(scheduler_name: &str, extender: Option<&Extender>) -> String {
    let preempts = extender.is_some_and(|extender| extender.preempt);
    let mut profile = json!({"schedulerName": scheduler_name});
    if !preempts && let Some(profile) = profile.as_object_mut() {
        profile.insert(
            "plugins".to_owned(),
            json!({"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}),
        );
    }
    let extenders: Vec<Value> = extender
        .map(|extender| {
            let mut entry = json!({
                "urlPrefix": extender.url_prefix,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "weight": extender.weight,
                "nodeCacheCapable": extender.node_cache_capable,
                "httpTimeout": format!("{}ms", extender.timeout.as_millis()),
            });
            for (wanted, key, verb) in
                [(extender.bind, "bindVerb", "bind"), (extender.preempt, "preemptVerb", "preempt")]
            {
                if wanted && let Some(entry) = entry.as_object_mut() {
                    entry.insert(key.to_owned(), json!(verb));
                }
            }
            entry
        })
        .into_iter()
        .collect();
    json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "percentageOfNodesToScore": 100,
        "profiles": [profile],
        "extenders": extenders,
    })
    .to_string()
}

impl ControlPlane {
    /// Starts another kube-scheduler with a `KubeSchedulerConfiguration` (YAML, see [`configuration`]) and waits until
    /// it serves. The harness fills in `clientConnection.kubeconfig` where it is absent, with the scheduler's usual
    /// rights, and turns leader election off where nothing is said about it. On a shared control plane the
    /// `schedulerName` must be the test's own. `name` is for logs and messages.
    pub async fn start_scheduler(
        &self,
        name: &str,
        configuration: &str,
    ) -> Result<Scheduler, ControlPlaneError> {
        self.start_scheduler_with(name, configuration, &[]).await
    }

    /// The same with further flags, such as `--v=4`.
    pub async fn start_scheduler_with(
        &self,
        name: &str,
        configuration: &str,
        flags: &[&str],
    ) -> Result<Scheduler, ControlPlaneError> {
        let no_mapping = |why: String| ControlPlaneError::SchedulerConfiguration(why);
        let kubeconfig = self.workdir().path().join("scheduler.kubeconfig");
        let mut value: Value =
            serde_saphyr::from_str(configuration).map_err(|error| no_mapping(error.to_string()))?;
        let fields = value.as_object_mut().ok_or_else(|| no_mapping("not a mapping".to_owned()))?;
        fields.entry("leaderElection").or_insert_with(|| json!({"leaderElect": false}));
        if let Some(connection) =
            fields.entry("clientConnection").or_insert_with(|| json!({})).as_object_mut()
        {
            connection.entry("kubeconfig").or_insert_with(|| json!(kubeconfig));
        }
        let file = self.workdir().write(&format!("scheduler-{name}.yaml"), &value.to_string())?;
        let port = network::free_port()?;
        let mut args = vec![format!("--config={}", file.display())];
        args.extend(scheduler_serving(port, &kubeconfig));
        args.extend(flags.iter().map(|&flag| flag.to_owned()));
        let log = self.workdir().path().join(format!("scheduler-{name}.log"));
        let mut scheduler = Scheduler { name: name.to_owned(), args, port, log, process: None };
        scheduler.restart(self).await?;
        Ok(scheduler)
    }
}

impl Scheduler {
    /// Kills it, if it runs, and starts it again with the same configuration file.
    pub async fn restart(&mut self, control_plane: &ControlPlane) -> Result<(), ControlPlaneError> {
        self.process = None;
        let mut command = control_plane.command(Component::Scheduler)?;
        command.args(&self.args);
        let process = Process::spawn(&self.name, command, &self.log)?;
        let port = self.port;
        let up = wait::until(&format!("ready scheduler {}", self.name), super::READY, async || {
            if process.exit_status().is_some() { Ok(false) } else { accepts(port).map(|()| true) }
        })
        .await?;
        if !up {
            return Err(ControlPlaneError::Ended {
                name: format!("scheduler {}", self.name),
                log: logs::tail(&self.log, 40),
                log_file: self.log.clone(),
            });
        }
        self.process = Some(process);
        Ok(())
    }

    /// Kills it.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// SIGSTOP.
    pub fn pause(&self) -> Result<(), ControlPlaneError> {
        Ok(self.running()?.pause()?)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<(), ControlPlaneError> {
        Ok(self.running()?.resume()?)
    }

    /// Its process id.
    pub fn process_id(&self) -> Result<u32, ControlPlaneError> {
        Ok(self.running()?.id())
    }

    /// How it ended by itself (a panic, say), if it did.
    pub fn exit_status(&self) -> Option<std::process::ExitStatus> {
        self.process.as_ref().and_then(Process::exit_status)
    }

    /// The end of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        logs::tail(&self.log, lines)
    }

    fn running(&self) -> Result<&Process, ControlPlaneError> {
        self.process.as_ref().ok_or(ControlPlaneError::NotRunning("kube-scheduler"))
    }
}
