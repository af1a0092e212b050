//! How a container ends: its `preStop` hook, SIGTERM, and SIGKILL when the grace period is over, as by the kubelet.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::{
    api::core::v1::{LifecycleHandler, Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::ResourceExt;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{runtime::Running, status::base_container};
use crate::fetch;

/// What a container gets at least after its hook, however long that took.
const MINIMUM: Duration = Duration::from_secs(2);

/// Ends the container within the Pod's grace period and returns its exit code.
pub(super) async fn terminate(pod: &Pod, ip: IpAddr, running: &dyn Running) -> i32 {
    let grace = pod
        .metadata
        .deletion_grace_period_seconds
        .or(pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds))
        .map_or(Duration::from_secs(30), |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    let deadline = Instant::now() + grace;
    let hook = base_container(pod).and_then(|container| container.lifecycle.as_ref()?.pre_stop.as_ref());
    if let Some(hook) = hook {
        // A hook that fails or takes too long does not hold up the end.
        timeout_at(deadline, pre_stop(hook, pod, ip)).await.ok();
    }
    running.terminate();
    let last = deadline.max(Instant::now() + MINIMUM.min(grace));
    if let Ok(code) = timeout_at(last, running.ended()).await {
        return code;
    }
    running.kill();
    timeout(Duration::from_secs(10), running.ended()).await.unwrap_or(137)
}

async fn pre_stop(hook: &LifecycleHandler, pod: &Pod, ip: IpAddr) {
    if let Some(pause) = &hook.sleep {
        sleep(Duration::from_secs(u64::try_from(pause.seconds).unwrap_or(0))).await;
    }
    if let Some(get) = &hook.http_get {
        let host = get.host.clone().unwrap_or_else(|| ip.to_string());
        let port = port(&get.port, pod).unwrap_or(80);
        let path = get.path.as_deref().unwrap_or("/");
        let url = format!("http://{host}:{port}/{}", path.trim_start_matches('/'));
        if let Err(error) = fetch::get(&url, Duration::from_mins(1)).await {
            tracing::warn!(pod = pod.name_any(), %error, "preStop failed");
        }
    }
    if let Some([program, args @ ..]) = hook.exec.as_ref().and_then(|exec| exec.command.as_deref()) {
        let mut command = tokio::process::Command::new(program);
        command.args(args).stdin(std::process::Stdio::null()).kill_on_drop(true);
        if let Err(error) = command.status().await {
            tracing::warn!(pod = pod.name_any(), %error, "preStop failed");
        }
    }
}

fn port(port: &IntOrString, pod: &Pod) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => {
            let ports = base_container(pod)?.ports.as_ref()?;
            let named = ports.iter().find(|port| port.name.as_ref() == Some(name))?;
            u16::try_from(named.container_port).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Mutex};

    use futures::future::BoxFuture;
    use serde_json::{Value, json};

    use super::*;
    use crate::kubelet::Exit;

    /// Ends at SIGTERM or not, and notes when each signal came (seconds since the start).
    struct Witness {
        started: Instant,
        stubborn: bool,
        exit: Exit,
        seen: Mutex<Vec<(&'static str, u64)>>,
    }

    impl Witness {
        fn new(stubborn: bool) -> Self {
            Self { started: Instant::now(), stubborn, exit: Exit::new(), seen: Mutex::new(Vec::new()) }
        }

        fn note(&self, signal: &'static str) {
            self.seen.lock().unwrap().push((signal, self.started.elapsed().as_secs()));
        }
    }

    impl Running for Witness {
        fn terminate(&self) {
            self.note("TERM");
            if !self.stubborn {
                self.exit.end(143);
            }
        }

        fn kill(&self) {
            self.note("KILL");
            self.exit.end(137);
        }

        fn ended(&self) -> BoxFuture<'static, i32> {
            self.exit.ended()
        }
    }

    fn pod(grace: i64, lifecycle: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "base", "deletionGracePeriodSeconds": grace},
            "spec": {"containers": [{"name": "base", "lifecycle": lifecycle}]},
        }))
        .unwrap()
    }

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test(start_paused = true)]
    async fn pre_stop_then_term() {
        let witness = Witness::new(false);
        let code = terminate(&pod(30, &json!({"preStop": {"sleep": {"seconds": 10}}})), IP, &witness).await;
        assert_eq!((code, &*witness.seen.lock().unwrap()), (143, &vec![("TERM", 10)]));
    }

    #[tokio::test(start_paused = true)]
    async fn kill_when_the_grace_period_is_over() {
        let witness = Witness::new(true);
        let code = terminate(&pod(30, &json!({"preStop": {"sleep": {"seconds": 10}}})), IP, &witness).await;
        assert_eq!((code, &*witness.seen.lock().unwrap()), (137, &vec![("TERM", 10), ("KILL", 30)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_longer_than_the_grace_period_leaves_two_seconds() {
        let witness = Witness::new(true);
        terminate(&pod(5, &json!({"preStop": {"sleep": {"seconds": 60}}})), IP, &witness).await;
        assert_eq!(*witness.seen.lock().unwrap(), vec![("TERM", 5), ("KILL", 7)]);
    }

    #[test]
    fn ports_have_names() {
        let base: Pod = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"containers": [{"name": "base", "ports": [{"name": "web", "containerPort": 8080}]}]},
        }))
        .unwrap();
        assert_eq!(port(&IntOrString::String("web".to_owned()), &base), Some(8080));
        assert_eq!(port(&IntOrString::Int(9), &base), Some(9));
        assert_eq!(port(&IntOrString::String("none".to_owned()), &base), None);
    }
}
