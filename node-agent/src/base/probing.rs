//! The probes of active modules: which run, and what their verdicts may do.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::actor::Actor;
use super::bound::{Bound, Hook, Probing};
use super::context::EventKind;
use super::hooks::Hooked;
use super::state::{ModuleId, ModuleState, PodView, Removal};
use crate::vpod::delete;
use crate::vpod::probe::{self, Before, Health, Heard, News, Probes, Subject};

impl Actor {
    /// Runs the probes of what is active, and only those.
    pub(super) fn probes(&mut self) {
        let now = self.now();
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        for uid in uids {
            let Some(bound) = self.pods.get_mut(&uid) else { continue };
            let wanted = match self.views.get(&uid) {
                Some(view) if !self.gone => probed(bound, view),
                _ => Vec::new(),
            };
            bound.probes.retain(|container, probing| {
                wanted.iter().any(|(name, probes)| name == container && *probes == probing.probes)
            });
            for (container, probes) in wanted {
                if bound.probes.contains_key(&container) {
                    continue;
                }
                let restarts = self.memory.module(&uid, &container).map_or(0, |module| module.restarts);
                let (before, age) = shown(&bound.pod, &container, restarts, now);
                self.probe_runs = self.probe_runs.wrapping_add(1);
                let run = self.probe_runs;
                let verdict = Health::new(&probes, before, age).verdict();
                let subject = Subject { uid: uid.clone(), container: container.clone(), run };
                let probing =
                    probe::run(self.spec.ip, probes.clone(), before, age, subject, self.probed.clone());
                let task = self.tasks.spawn(probing);
                bound
                    .probes
                    .insert(container, Probing { probes, run, verdict, passed: false, hook: None, task });
            }
        }
    }

    pub(super) fn heard(&mut self, heard: Heard) {
        let Heard { subject: Subject { uid, container, run }, news } = heard;
        let probing = self.pods.get_mut(&uid).and_then(|bound| bound.probes.get_mut(&container));
        let Some(probing) = probing.filter(|probing| probing.run == run) else { return };
        match news {
            News::Verdict(verdict) => probing.verdict = verdict,
            News::Failed(failing) => {
                let note = format!("container {container}: {failing}");
                self.emit(&uid, EventKind::Warning, "Unhealthy", "Probing", note);
            }
        }
    }

    /// Hands to the planner what probes give up, once its `preStop` hook has run. A base that does not answer says nothing
    /// of its modules, and what must not be changed is not given up: the probes go on, and may find it well again.
    pub(super) fn unhealthy(&mut self) {
        let may =
            self.observed.answering && !self.checks.missing() && !self.stopped() && !self.observed.leaving;
        let mut hooks = Vec::new();
        for (uid, bound) in &mut self.pods {
            let may = may
                && !bound.desired.terminal
                && bound.desired.removal == Removal::None
                && !bound.desired.paused;
            for (container, probing) in &mut bound.probes {
                probing.passed &= probing.verdict.failing.is_some();
                if probing.verdict.failing.is_none() && probing.hook == Some(Hook::Over) {
                    // Well again: should it fail once more, it is told once more.
                    probing.hook = None;
                }
                let failing = probing.verdict.failing.clone().filter(|_| may && probing.passed);
                if let Some(failing) = failing.as_ref().filter(|_| probing.hook.is_none())
                    && let Some(limit) = delete::hook_of_probe(&bound.pod, container, failing.kind)
                {
                    probing.hook = Some(Hook::Running);
                    let why = Hooked::Probe { container: container.clone(), run: probing.run };
                    hooks.push((uid.clone(), container.clone(), limit, why));
                }
                let failing = failing.filter(|_| probing.hook != Some(Hook::Running));
                self.memory.module_mut(uid, container).unhealthy = failing;
            }
        }
        for (uid, container, limit, why) in hooks {
            self.call_hooks(&uid, |name| name == container, limit, why);
        }
    }

    /// What probes give up now, for the brake over all of them. Nothing is asked for what must not be changed anyway.
    pub(super) fn given_up(&self) -> BTreeSet<(String, String)> {
        let mut found = BTreeSet::new();
        let staying = self
            .pods
            .iter()
            .filter(|(_, bound)| !bound.desired.terminal && bound.desired.removal == Removal::None);
        for (uid, bound) in staying.filter(|_| self.observed.answering && !self.observed.leaving) {
            let failing = bound.probes.iter().filter(|(_, probing)| probing.verdict.failing.is_some());
            found.extend(failing.map(|(container, _)| (uid.clone(), container.clone())));
        }
        found
    }

    /// The brake lets a module be installed again that its probes still give up.
    pub(super) fn may_reinstall(&mut self, uid: &str, container: &str) {
        let probing = self.pods.get_mut(uid).and_then(|bound| bound.probes.get_mut(container));
        if let Some(probing) = probing {
            // What is well by now is not touched: the next turn takes this back.
            probing.passed = true;
        }
    }

    /// Says why a module is about to be taken off, where its probes are the reason.
    pub(super) fn tell_given_up(&self, uid: &str, id: &ModuleId) {
        let modules = self.memory.pods.get(uid).into_iter().flat_map(|pod| &pod.modules);
        for (container, module) in modules.filter(|(_, module)| module.running.as_ref() == Some(id)) {
            if let Some(failing) = module.failing() {
                let note =
                    format!("container {container}: {failing}; {id} is uninstalled and installed again");
                self.emit(uid, EventKind::Warning, "Reinstalling", "Probing", note);
            }
        }
    }
}

/// Containers with probes whose module is active.
fn probed(bound: &Bound, view: &PodView) -> Vec<(String, Probes)> {
    let active = |container: &str| {
        let mut modules = view.modules.iter();
        modules.any(|(name, state)| name == container && matches!(state, ModuleState::Active { .. }))
    };
    let containers = bound.pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .filter(|container| active(&container.name))
        .map(|container| (container.name.clone(), Probes::of(container)))
        .filter(|(_, probes)| !probes.is_empty())
        .collect()
}

/// What the Pod shows of a container, and how long it has been active by that: a module that is shown ready stays so
/// until its probes say otherwise, since a restart of the agent must not take anything out of its Services. A status that
/// does not show the last restart yet tells of an earlier run.
fn shown(pod: &Pod, container: &str, restarts: i32, now: Timestamp) -> (Before, Duration) {
    let mut statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let status = statuses.find(|status| status.name == container && status.restart_count >= restarts);
    let running = status.and_then(|status| status.state.as_ref()?.running.as_ref());
    let (Some(status), Some(running)) = (status, running) else { return (Before::default(), Duration::ZERO) };
    let since = running.started_at.as_ref().map_or(now, |time| time.0);
    let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    (Before { started: status.started == Some(true), ready: status.ready }, age)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_pod_shows_holds_for_the_run_that_it_shows() {
        let pod = |state: serde_json::Value| -> Pod {
            let status = json!({"name": "shop", "image": "", "imageID": "", "ready": true, "started": true,
                "restartCount": 1, "state": state});
            serde_json::from_value(json!({"status": {"containerStatuses": [status]}})).unwrap()
        };
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let running = pod(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
        let known = (Before { started: true, ready: true }, Duration::from_mins(1));
        let fresh = (Before::default(), Duration::ZERO);
        assert_eq!(shown(&running, "shop", 1, now), known, "an agent that restarted");
        assert_eq!(shown(&running, "shop", 2, now), fresh, "the restart is not written yet");
        assert_eq!(shown(&running, "cart", 0, now), fresh);
        let waiting = pod(json!({"waiting": {"reason": "Replaying"}}));
        assert_eq!(shown(&waiting, "shop", 1, now), fresh);
    }
}
