//! Release in place: out of the traffic, the hooks of what is replaced, the drain wait; then the old version may go.

use std::collections::BTreeMap;

use super::actor::Actor;
use super::hooks::Hooked;
use super::state::{ModuleState, PodView, Reason};
use crate::vpod::delete::{self, Drain, Facts, Next};

/// A VPod that leaves the traffic for what replaces its modules.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) drain: Drain,
    /// The last call of hooks.
    pub(super) call: u64,
    /// Runs whose hooks were called: by container, the restarts before the run.
    told: BTreeMap<String, i32>,
}

impl Release {
    fn new(drain: Drain) -> Self {
        Self { drain, call: 0, told: BTreeMap::new() }
    }
}

impl Actor {
    /// A release in place has left the traffic when no slice lists the Pod and the drain wait is over.
    pub(super) fn release(&mut self, uid: &str) {
        let now = self.now();
        let view = self.views.get(uid);
        let withdraw = view.is_some_and(|view| view.withdraw);
        let over = view.is_some_and(PodView::installed);
        let replaced = replaced(view);
        let facts = self.facts_of(uid);
        let limits = self.drain_limits();
        let Some(bound) = self.pods.get_mut(uid) else { return };
        if !withdraw {
            // Held up by a pause, or by another VPod under the same name, it stays out of the traffic, and goes on.
            if over {
                bound.release = None;
            }
            return;
        }
        if bound.outdated {
            // What it wants now is planned first: more may have to be told.
            self.wake_at(now);
            return;
        }
        if bound.ready() {
            // The write of Ready=False is on its way.
            return;
        }
        let grace = delete::grace(&bound.pod);
        let deadline = now.checked_add(grace).unwrap_or(now);
        let release = bound.release.get_or_insert_with(|| Release::new(Drain::new(now, deadline, grace)));
        // As for a kubelet, only what is replaced is told that it ends, and each run once.
        let hooks = delete::hooks(&bound.pod).into_iter().map(|(container, _)| container);
        let untold: BTreeMap<String, i32> = hooks
            .filter(|container| replaced.contains(&container.as_str()))
            .map(|container| {
                let restarts = self.memory.module(uid, &container).map_or(0, |module| module.restarts);
                (container, restarts)
            })
            .filter(|(container, restarts)| release.told.get(container) != Some(restarts))
            .collect();
        if !untold.is_empty() {
            release.drain.more_hooks(deadline, now);
        }
        match release.drain.next(Facts { hooks: !untold.is_empty(), ..facts }, limits, now) {
            Next::Uninstall => {
                fault_point!(ReleaseDrained);
                self.memory.pods.entry(uid.to_owned()).or_default().withdrawn = true;
            }
            Next::Hooks => {
                self.hook_calls = self.hook_calls.wrapping_add(1);
                release.call = self.hook_calls;
                release.told.extend(untold.clone());
                let why = Hooked::Release { call: self.hook_calls };
                self.call_hooks(uid, |container| untold.contains_key(container), grace, why);
            }
            Next::Wait(until) => self.wake_at(until),
        }
    }
}

/// Containers whose module is replaced.
fn replaced(view: Option<&PodView>) -> Vec<&str> {
    let releasing = |(_, state): &&(String, ModuleState)| {
        matches!(state, ModuleState::Waiting { reason: Reason::Releasing, .. })
    };
    let modules = view.into_iter().flat_map(|view| view.modules.iter().filter(releasing));
    modules.map(|(container, _)| container.as_str()).collect()
}
