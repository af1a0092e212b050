//! Modules that probes give up, before a brake of their own: between the agent and many modules a broken network of ours
//! looks like many modules that hang. This brake holds nothing but what probes would have done.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::Fleet;
use crate::base::Message;

/// How long a module that is given up waits for others: probes with short periods fail together within moments.
const SETTLE: Duration = Duration::from_secs(2);

/// A module that its probes give up: UID of the VPod, and container.
pub(super) type GivenUp = (String, String);

/// The brake's key.
fn key(node: &str, (uid, container): &GivenUp) -> String {
    format!("{node}/{uid}/{container}")
}

impl Fleet {
    /// Brings before the brake what is given up on a VNode now and was not `before`, and takes back what is not any more.
    pub(super) fn weigh_unhealthy(&mut self, node: &str, before: &BTreeSet<GivenUp>) {
        let report = self.slots.get(node).and_then(|slot| slot.report.as_ref());
        let now = report.map(|report| report.unhealthy.clone()).unwrap_or_default();
        // One that was installed again by this is well for the moment, but belongs to the same accident.
        for gone in before.difference(&now) {
            self.probe_brake.done(&key(node, gone));
        }
        for new in now.difference(before) {
            self.probe_brake.lost(&key(node, new), 1, SETTLE, Instant::now());
        }
    }

    /// The brake lets these go: their actors may install them again.
    pub(super) fn pass_unhealthy(&self, keys: Vec<String>) {
        for key in keys {
            let mut parts = key.splitn(3, '/');
            let (Some(node), Some(uid), Some(container)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            if let Some(actor) = self.slots.get(node).and_then(|slot| slot.actor.as_ref()) {
                actor.tell(Message::Reinstall { uid: uid.to_owned(), container: container.to_owned() });
            }
        }
    }
}
