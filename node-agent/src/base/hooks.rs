//! `preStop` hooks, called before a module is taken off, as a kubelet calls them before it ends a container: when its Pod
//! is deleted, when a new version replaces it in place, and when its probes give it up.

use std::time::Duration;

use super::actor::Actor;
use super::bound::Hook;
use super::told::Told;
use crate::vpod::{delete, probe};

/// What the hooks were called for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hooked {
    /// The VPod is being deleted.
    Deletion,
    /// A new version comes in place; tells this call from the ones before it.
    Release { call: u64 },
    /// The probes of this run of a container gave it up.
    Probe { container: String, run: u64 },
}

impl Actor {
    /// Calls the hooks of some containers one after the other, each for `limit` at most, and tells when all are over.
    /// Whoever only observes calls none: it goes on as if they were over.
    pub(super) fn call_hooks(&mut self, uid: &str, of: impl Fn(&str) -> bool, limit: Duration, why: Hooked) {
        let Some(bound) = self.pods.get(uid) else { return };
        if self.context.observe {
            self.tell.send(Told::HooksDone { uid: uid.to_owned(), why });
            return;
        }
        let ip = self.spec.ip;
        let containers = bound.pod.spec.iter().flat_map(|spec| &spec.containers);
        let calls: Vec<_> = containers
            .filter(|container| of(&container.name))
            .filter_map(|container| {
                let action = container.lifecycle.as_ref()?.pre_stop.as_ref()?.http_get.as_ref()?;
                Some((container.name.clone(), probe::get(container, action)?))
            })
            .collect();
        let (tell, term) = (self.tell.clone(), self.context.term.clone());
        let uid = uid.to_owned();
        self.tasks.spawn(async move {
            for (container, get) in calls {
                if !term.holds() {
                    return;
                }
                // As for a kubelet, a hook that fails does not stop the removal.
                if let Err(error) = probe::once(ip, &probe::Target::Http(get), limit).await {
                    tracing::warn!(pod_uid = %uid, container, error, "preStop hook failed");
                }
            }
            fault_point!(HooksDone);
            tell.send(Told::HooksDone { uid, why });
        });
    }

    pub(super) fn hooks_done(&mut self, uid: &str, why: &Hooked) {
        let Some(bound) = self.pods.get_mut(uid) else { return };
        match why {
            Hooked::Deletion => bound.drain.iter_mut().for_each(delete::Drain::hooks_done),
            Hooked::Release { call } => {
                if let Some(release) = bound.release.as_mut().filter(|release| release.call == *call) {
                    release.drain.hooks_done();
                }
            }
            Hooked::Probe { container, run } => {
                let probing = bound.probes.get_mut(container).filter(|probing| probing.run == *run);
                if let Some(probing) = probing {
                    probing.hook = Some(Hook::Over);
                }
            }
        }
    }
}
