//! Status of the VPods of a base: rendered each turn, written only where something changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::OwnedSemaphorePermit;

use super::actor::Actor;
use super::bound::Futile;
use super::context::EventKind;
use super::message::Hold;
use super::state::{ModuleState, Reason, Removal, Want};
use super::told::Told;
use crate::vpod::ended;
use crate::vpod::render::{self, Live, Place};
use crate::vpod::write::{self, Written};

/// The last status of a VPod holds its deletion up so often, and is not tried again once it was refused so often.
const LAST_WORDS: u32 = 5;

impl Actor {
    fn place(&self) -> Place {
        Place { ip: self.spec.ip, ips: self.spec.ips.clone(), host_ip: self.spec.host_ip.clone() }
    }

    /// Why nothing on this base counts as ready, as reason and message.
    fn silence(&self) -> Option<(&'static str, &'static str)> {
        if !self.spec.started {
            return Some(("BaseStarting", "the base has not been ready since its start"));
        }
        self.checks.silence_counts().then_some(("BaseNotAnswering", "the base does not answer"))
    }

    /// Renders every VPod and writes what differs.
    pub(super) fn statuses(&mut self) {
        let planned = self.informed && self.memory.synced && !self.gone;
        // Right after its own start the agent knows nothing; what the status says may well be true.
        let known = self.checks.known() || !self.spec.started;
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        for uid in uids {
            let Some(bound) = self.pods.get(&uid) else { continue };
            let foreign = bound.failed.as_ref().is_some_and(|(reason, _)| *reason == "NotAModule");
            let running = self.memory.pods.get(&uid).is_some_and(|memory| memory.running);
            let skip = bound.desired.terminal
                || bound.desired.removal == Removal::Uninstalling
                || self.gone
                || (!foreign && !planned)
                || (running && !known && bound.failed.is_none());
            if skip {
                continue;
            }
            if let Some(status) = self.render(&uid) {
                self.write(&uid, status);
            }
            self.tell_waiting(&uid);
        }
        // Whoever has nothing to write any more lets the next one go.
        for bound in self.pods.values_mut() {
            bound.writing.permit = None;
        }
    }

    fn render(&self, uid: &str) -> Option<PodStatus> {
        let bound = self.pods.get(uid)?;
        let now = self.now();
        let place = self.place();
        if let Some((reason, message)) = &bound.failed {
            let place = (*reason != "NotAModule").then_some(&place);
            return Some(ended::failed(&bound.pod, place, reason, message, now));
        }
        let view = self.views.get(uid)?;
        let unreadable = match &bound.desired.want {
            Want::Unreadable { reason, message } => Some((reason.as_str(), message.as_str())),
            Want::Reading => Some((Reason::Reading.as_str(), "what its versions refer to is being read")),
            Want::Modules(_) | Want::NotAModule { .. } => None,
        };
        let modules = || self.memory.pods.get(uid).into_iter().flat_map(|memory| &memory.modules);
        let restarts: BTreeMap<_, _> =
            modules().map(|(container, module)| (container.clone(), module.restarts)).collect();
        let endings: BTreeMap<_, _> = modules()
            .filter_map(|(container, module)| Some((container.clone(), module.ending.clone()?)))
            .collect();
        let probes: BTreeMap<_, _> = bound
            .probes
            .iter()
            .map(|(container, probing)| (container.clone(), probing.verdict.clone()))
            .collect();
        let silence = self.silence();
        let status = render::live(&Live {
            pod: &bound.pod,
            place: &place,
            view,
            modules: bound.desired.modules(),
            unreadable,
            restarts: &restarts,
            probes: &probes,
            endings: &endings,
            silent: silence,
            started: bound.started,
            now,
        });
        (!stays_ready(self.hold, silence.is_some(), bound.ready())).then_some(status)
    }

    /// Tells how a VPod ended whose modules are off the base while finalizers keep its object, which nobody else would:
    /// it showed Running and Ready else, for as long as they do. Gives back whether that must be waited for. A write
    /// that fails again and again holds no deletion up; it is tried until it is taken, or refused for what it says.
    pub(super) fn last_status(&mut self, uid: &str) -> bool {
        let now = self.now();
        let why = if self.gone { "the base is gone" } else { "the Pod was deleted" };
        let Some(bound) = self.pods.get_mut(uid) else { return false };
        let refused = bound.refusals >= LAST_WORDS;
        if !bound.has_finalizers() || refused || bound.desired.terminal || self.context.observe {
            return false;
        }
        if !std::mem::replace(&mut bound.ending, true) {
            // What failed before was no last status.
            bound.writing.failures = 0;
        }
        let waits = bound.writing.failures < LAST_WORDS;
        let status = match &bound.failed {
            Some((reason, message)) => ended::failed(&bound.pod, None, reason, message, now),
            None => ended::taken_off(&bound.pod, why, now),
        };
        self.write(uid, status);
        waits
    }

    fn write(&mut self, uid: &str, status: PodStatus) {
        let now = self.now();
        let observe = self.context.observe;
        let Some(bound) = self.pods.get_mut(uid) else { return };
        if !write::differs(&bound.pod, &status) || bound.is_futile(&status) || observe {
            return;
        }
        if !bound.writing.due(now) {
            if let Some(next) = bound.writing.next.filter(|next| *next > now) {
                self.wake_at(next);
            }
            return;
        }
        let (calls, tell, uid) = (Arc::clone(&self.context.pod_calls), self.tell.clone(), uid.to_owned());
        let permit = bound.writing.permit.take().or_else(|| Arc::clone(&calls).try_acquire_owned().ok());
        let Some(permit) = permit else {
            // Rendered anew when its turn comes: in a burst one write does for all that happens until then.
            bound.writing.queued = true;
            self.tasks.spawn(async move {
                if let Ok(permit) = calls.acquire_owned().await {
                    tell.send(Told::MayWrite { uid, permit });
                }
            });
            return;
        };
        bound.writing.running = true;
        let (client, term) = (self.context.client.clone(), self.context.term.clone());
        let pod = bound.pod.clone();
        self.tasks.spawn(async move {
            fault_point!(StatusWriting);
            let written = write::status(&client, &term, &pod, &status).await;
            drop(permit);
            fault_point!(StatusWritten);
            tell.send(Told::Written { uid, sent: Box::new(status), written });
        });
    }

    pub(super) fn may_write(&mut self, uid: &str, permit: OwnedSemaphorePermit) {
        if let Some(bound) = self.pods.get_mut(uid) {
            bound.writing.queued = false;
            bound.writing.permit = Some(permit);
        }
    }

    pub(super) fn written(&mut self, uid: &str, sent: &PodStatus, written: Written) {
        let now = self.now();
        self.context.meter.status_write(written.code());
        let refused = matches!(written, Written::Refused(_));
        let Some(bound) = self.pods.get_mut(uid) else { return };
        match written {
            Written::Done(pod) => {
                bound.writing.succeeded();
                // The server took it and shows something else: writing it again would change nothing. The watch may
                // have told of this write already.
                let shown = pod.status.clone().filter(|shown| shown != sent);
                bound.futile = shown.map(|shown| Box::new(Futile { sent: sent.clone(), shown }));
                let failed = sent.phase.as_deref() == Some("Failed");
                bound.take(Arc::new(*pod));
                bound.desired.terminal |= failed;
                if failed {
                    fault_point!(FailedWritten);
                    self.memory.departed.insert(uid.to_owned());
                    self.note_failed(uid);
                    self.tell_failed(uid);
                }
            }
            Written::Conflict(pod) => {
                bound.writing.succeeded();
                if bound.take(Arc::new(*pod)) {
                    self.read(uid);
                }
            }
            // The watch will say so.
            Written::Gone => bound.writing.failed(now),
            Written::Refused(error) | Written::Failed(error) => {
                bound.refusals = bound.refusals.saturating_add(u32::from(refused && bound.ending));
                tracing::warn!(
                    pod = %bound.desired.name, namespace = %bound.desired.namespace, %error,
                    "status of VPod not written"
                );
                bound.writing.failed(now);
            }
        }
    }

    fn tell_failed(&self, uid: &str) {
        let Some((reason, message)) = self.pods.get(uid).and_then(|bound| bound.failed.clone()) else {
            return;
        };
        if reason == "NotAModule" {
            self.tell_refusal(uid, reason, &message);
            self.emit(uid, EventKind::Warning, "NotAModule", "Reading", message);
        } else {
            let note = format!("failed for good ({reason}): {message}");
            self.emit(uid, EventKind::Warning, "Failed", "Installing", note);
        }
    }

    /// Names the fields without effect once.
    pub(super) fn tell_fields(&mut self, uid: &str) {
        let Some(bound) = self.pods.get_mut(uid) else { return };
        let ignored = crate::vpod::fields::ignored(&bound.pod);
        if bound.told_fields || ignored.is_empty() || bound.module_pod.is_none() || bound.desired.terminal {
            return;
        }
        bound.told_fields = true;
        // A VPod that runs already was told by an earlier process.
        if self.memory.pods.get(uid).is_some_and(|memory| memory.running) {
            return;
        }
        let note = format!("without effect for modules: {}", ignored.join(", "));
        self.emit(uid, EventKind::Warning, "FieldsIgnored", "Reading", note);
    }

    /// Reasons that need a person get one Event each.
    fn tell_waiting(&mut self, uid: &str) {
        const TOLD: [Reason; 6] = [
            Reason::PolicyRejected,
            Reason::BaseFull,
            Reason::ForeignModule,
            Reason::Lethal,
            Reason::InstallTimeout,
            Reason::Deactivated,
        ];
        let Some(bound) = self.pods.get(uid) else { return };
        let waiting = match &bound.desired.want {
            Want::Unreadable { reason, message } => Some((*reason, message.clone())),
            _ => self.views.get(uid).and_then(|view| {
                view.modules.iter().find_map(|(container, state)| match state {
                    ModuleState::Waiting { reason, message } if TOLD.contains(reason) => {
                        Some((*reason, format!("{container}: {message}")))
                    }
                    _ => None,
                })
            }),
        };
        let reason = waiting.as_ref().map(|(reason, _)| reason.as_str());
        if bound.told_waiting == reason {
            return;
        }
        if let Some((reason, message)) = waiting {
            if reason == Reason::BaseFull {
                self.tell_refusal(uid, reason.as_str(), &message);
            }
            self.emit(uid, EventKind::Warning, reason.as_str(), "Installing", message);
        }
        if let Some(bound) = self.pods.get_mut(uid) {
            bound.told_waiting = reason;
        }
    }
}

/// Under the brake nothing is set not ready for what may be a fault of ours. A pause stops no status.
fn stays_ready(hold: Hold, silent: bool, ready: bool) -> bool {
    hold.brake && silent && ready
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;
    use crate::base::report::tests::context;
    use crate::base::{ActorContext, Message, spawn};

    fn foreign(name: &str) -> Arc<Pod> {
        let pod = json!({"metadata": {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "1"},
            "spec": {"containers": [{"name": "main"}]}});
        Arc::new(serde_json::from_value(pod).expect("a Pod"))
    }

    /// A burst of VPods opens no burst of connections. Each waits for its turn, and who is gone by then takes
    /// nobody's.
    #[tokio::test(start_paused = true)]
    async fn a_status_waits_for_its_turn() {
        let (book, mut patches) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            book.send(request.uri().path().to_owned()).expect("the test lives");
            // The answer never comes: the turn lasts as long as a call may take.
            std::future::pending::<Result<http::Response<kube::client::Body>, Infallible>>()
        });
        let (publish, _published) = mpsc::unbounded_channel();
        let calls = Arc::new(Semaphore::new(0));
        let context = context(kube::Client::new(service, "default"), publish);
        let mailbox = spawn(ActorContext { pod_calls: Arc::clone(&calls), ..context });
        let tell = |message| mailbox.send(message).expect("it lives");
        tell(Message::Inventory(None));
        tell(Message::Pod(foreign("a")));
        tell(Message::Pod(foreign("b")));
        tell(Message::PodsSynced);
        tokio::time::sleep(std::time::Duration::from_mins(1)).await;
        assert!(patches.try_recv().is_err(), "it is nobody's turn");

        tell(Message::PodGone { uid: "a".to_owned() });
        calls.add_permits(1);
        let path = patches.recv().await.expect("one turn");
        assert_eq!(path, "/api/v1/namespaces/shop/pods/b/status");
        assert_eq!(calls.available_permits(), 0);
        assert_eq!(patches.recv().await.expect("the next turn"), path, "no answer is no success");
    }

    #[test]
    fn only_the_brake_keeps_vpods_of_a_silent_base_ready() {
        let brake = Hold { brake: true, pause: false };
        let pause = Hold { brake: false, pause: true };
        assert!(stays_ready(brake, true, true));
        assert!(stays_ready(Hold { pause: true, ..brake }, true, true));
        assert!(!stays_ready(brake, false, true), "an answer is never held back");
        assert!(!stays_ready(brake, true, false));
        assert!(!stays_ready(pause, true, true), "status goes on in a pause");
    }
}
