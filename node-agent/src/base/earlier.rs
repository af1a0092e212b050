//! What an earlier process of the agent wrote into the status of a VPod.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use policy::contract::names;

use super::actor::Actor;
use super::restart::{Cause, CrashLoop, Ending};
use super::state::{ModuleId, ModuleMemory};
use crate::vpod::read::Pinned;

impl Actor {
    /// What an earlier process wrote into the status is taken over.
    pub(super) fn remember(&mut self, uid: &str) {
        let Some(bound) = self.pods.get(uid) else { return };
        let Some(status) = bound.pod.status.as_ref() else { return };
        let memory = self.memory.pods.entry(uid.to_owned()).or_default();
        memory.running = status.phase.as_deref() == Some("Running");
        memory.accepted = memory.running;
        for container in status.container_statuses.iter().flatten() {
            let module = memory.modules.entry(container.name.clone()).or_default();
            module.restarts = container.restart_count;
            module.take_over(container.last_state.as_ref().and_then(|state| state.terminated.as_ref()));
            let running = container.state.as_ref().is_some_and(|state| state.running.is_some());
            if let Some(id) = container.container_id.as_deref().and_then(module_of).filter(|_| running) {
                module.running = Some(id);
                module.active = true;
                module.was_active = true;
            }
        }
    }

    /// Versions of the modules that were installed for this VPod: what its environment says now does not change them.
    pub(super) fn pinned(&self, uid: &str) -> Pinned {
        let pod = self.pods.get(uid).map(|bound| &*bound.pod);
        pinned(pod, self.memory.owned_by(uid))
    }
}

impl ModuleMemory {
    /// Why its last run ended, where a probe ended it, and how long the next one waits for that.
    fn take_over(&mut self, last: Option<&ContainerStateTerminated>) {
        let Some(last) = last else { return };
        let Some(cause) = last.reason.as_deref().and_then(Cause::of_probe) else { return };
        let Some(at) = last.finished_at.as_ref().map(|time| time.0) else { return };
        let began = last.started_at.as_ref().map(|time| time.0);
        self.crashes = Some(CrashLoop::taken_over(self.restarts, began, at));
        let message = last.message.clone().unwrap_or_default();
        self.ending = Some(Ending { cause, message, at });
    }
}

/// A container keeps the id of what was last active in it, also while nothing is: between the end of the old version and
/// the install of the new one nobody owns anything.
fn pinned<'a>(pod: Option<&Pod>, owned: impl Iterator<Item = &'a ModuleId>) -> Pinned {
    let shown =
        pod.into_iter().flat_map(statuses).filter_map(|status| module_of(status.container_id.as_deref()?));
    shown.chain(owned.cloned()).map(|id| (id.name, id.version)).collect()
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten())
}

/// The module in `arklet://ip:name:version`.
fn module_of(container_id: &str) -> Option<ModuleId> {
    let rest = container_id.strip_prefix(names::CONTAINER_ID_SCHEME)?;
    let (head, version) = rest.rsplit_once(':')?;
    let (_, name) = head.rsplit_once(':')?;
    Some(ModuleId { name: name.to_owned(), version: version.to_owned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::state::Want;
    use crate::vpod::read::read;

    /// Environment of version 1.0, label of version 2.0.
    fn released(container_id: Option<&str>) -> Pod {
        let status = json!({"name": "shop", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "containerID": container_id});
        serde_json::from_value(json!({
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "u",
                "labels": {"module.koupleless.io/shop": "2.0"}},
            "spec": {"tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
                "containers": [{"name": "shop", "image": "https://repo/shop-2.0.jar",
                    "env": [{"name": "MODULE_VERSION", "value": "1.0"}]}]},
            "status": {"containerStatuses": [status]},
        }))
        .unwrap()
    }

    fn version(pod: &Pod, owned: &[ModuleId]) -> Option<String> {
        match read(pod, &pinned(Some(pod), owned.iter()), &Vec::new()) {
            Want::Modules(modules) => modules.first().map(|module| module.id.version.clone()),
            _ => None,
        }
    }

    #[test]
    fn a_release_in_place_takes_its_version_from_the_label_at_every_step() {
        let old = ModuleId { name: "shop".to_owned(), version: "1.0".to_owned() };
        let shown = released(Some("arklet://10.244.0.7:shop:1.0"));
        assert_eq!(version(&shown, std::slice::from_ref(&old)).as_deref(), Some("2.0"), "the old one runs");
        assert_eq!(version(&shown, &[]).as_deref(), Some("2.0"), "it was taken off, and the agent restarted");
        assert_eq!(version(&released(None), &[old]).as_deref(), Some("2.0"), "only the Node knows");
        assert_eq!(version(&released(None), &[]), None, "at the first install both must agree");
    }

    #[test]
    fn a_back_off_of_probes_is_read_back_and_nothing_else() {
        let taken_over = |reason: &str| {
            let last = json!({"exitCode": 1, "reason": reason, "message": "Liveness probe failed: HTTP 500",
                "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"});
            let mut module = ModuleMemory { restarts: 4, ..ModuleMemory::default() };
            module.take_over(Some(&serde_json::from_value(last).unwrap()));
            module
        };
        let module = taken_over("LivenessProbeFailed");
        let ended: jiff::Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(module.crash_loop(ended).map(|crashes| crashes.wait.as_secs()), Some(40));
        assert_eq!(module.ending.unwrap().message, "Liveness probe failed: HTTP 500");
        for other in ["BaseRestarted", "Vanished", "Replaced", "Error"] {
            assert_eq!(taken_over(other).crashes, None, "{other}");
        }
    }

    #[test]
    fn ids_of_containers_are_read_back() {
        let read = |text: &str| module_of(text).map(|id| id.to_string());
        assert_eq!(read("arklet://10.0.0.1:shop:1.0+b").as_deref(), Some("shop:1.0+b"));
        assert_eq!(read("arklet://[fd00::7]:shop:1.0").as_deref(), Some("shop:1.0"));
        assert_eq!(read("containerd://abc"), None);
    }
}
