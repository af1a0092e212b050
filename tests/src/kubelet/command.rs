use std::{
    io,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use futures::future::BoxFuture;
use kube::ResourceExt;

use super::runtime::{Running, Runtime, RuntimeError, Start};
use crate::{network, process::Process, workdir::Workdir};

/// Runs a shell command as base: a real JVM with arklet, say.
///
/// The command finds `BASE_PORT` (where arklet is to listen; each base has its own, and the kubelet writes it to the
/// Pod), `BASE_IP`, `BASE_POD` and `BASE_NAMESPACE` in its environment. It gets SIGTERM and SIGKILL as a container
/// does.
#[derive(Debug)]
pub struct ShellCommand {
    command: String,
    workdir: Workdir,
    starts: AtomicU32,
}

impl ShellCommand {
    /// The environment variable that names the command to run instead of simulated bases.
    pub const VARIABLE: &str = "STOWAGE_BASE_COMMAND";

    /// For `sh -c`.
    pub fn new(command: &str) -> io::Result<Self> {
        Ok(Self { command: command.to_owned(), workdir: Workdir::new("bases")?, starts: AtomicU32::new(0) })
    }

    /// Where the output of each start lies, one file each.
    pub fn logs(&self) -> &Path {
        self.workdir.path()
    }

    /// The command that `STOWAGE_BASE_COMMAND` names, if it is set.
    pub fn from_environment() -> io::Result<Option<Self>> {
        match std::env::var(Self::VARIABLE) {
            Ok(command) if !command.trim().is_empty() => Self::new(&command).map(Some),
            _ => Ok(None),
        }
    }
}

impl Runtime for ShellCommand {
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Box<dyn Running>, RuntimeError>> {
        Box::pin(async move {
            let port = network::free_port()?;
            let (pod, namespace) = (start.pod.name_any(), start.pod.namespace().unwrap_or_default());
            let number = self.starts.fetch_add(1, Ordering::Relaxed);
            let log = self.workdir.path().join(format!("{pod}-{number}.log"));
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &self.command])
                .env("BASE_PORT", port.to_string())
                .env("BASE_IP", start.ip.to_string())
                .env("BASE_POD", &pod)
                .env("BASE_NAMESPACE", namespace);
            let process = Process::spawn(&format!("base {pod}"), shell, &log)?;
            Ok(Box::new(Shell { process, port }) as Box<dyn Running>)
        })
    }
}

struct Shell {
    process: Process,
    port: u16,
}

impl Running for Shell {
    fn port(&self) -> Option<u16> {
        Some(self.port)
    }

    fn terminate(&self) {
        // It has ended already, which `ended` tells.
        self.process.terminate().ok();
    }

    fn kill(&self) {
        self.process.kill();
    }

    fn ended(&self) -> BoxFuture<'static, i32> {
        use std::os::unix::process::ExitStatusExt;
        let ended = self.process.ended();
        Box::pin(async move {
            let status = ended.await;
            status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};

    use super::*;

    #[tokio::test]
    async fn a_command_knows_who_it_is_and_is_told_to_end() {
        let directory = tempfile::tempdir().unwrap();
        let told = directory.path().join("told");
        let script = format!(
            "trap 'exit 7' TERM; echo $BASE_NAMESPACE/$BASE_POD $BASE_IP $BASE_PORT >{}; \
             while :; do sleep 0.05; done",
            told.display()
        );
        let runtime = ShellCommand::new(&script).unwrap();
        let metadata = ObjectMeta {
            name: Some("base".to_owned()),
            namespace: Some("shop".to_owned()),
            ..ObjectMeta::default()
        };
        let pod = Pod { metadata, ..Pod::default() };
        let start = Start { pod, ip: Ipv4Addr::new(10, 244, 1, 1).into(), restarts: 0 };
        let running = runtime.start(start).await.unwrap();
        let expected = format!("shop/base 10.244.1.1 {}\n", running.port().unwrap());
        crate::wait::until("the command's words", std::time::Duration::from_secs(30), async || {
            let text = std::fs::read_to_string(&told).unwrap_or_default();
            if text == expected { Ok(()) } else { Err(text) }
        })
        .await
        .unwrap();
        running.terminate();
        assert_eq!(running.ended().await, 7);
    }
}
