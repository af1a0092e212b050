//! One slot for each VNode: the actor of its base and the keeper of its Node, and what to do next about them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::bases::inventory;
use super::hold::{SETTLE_BASE, silence};
use super::losses::Verdict;
use super::{Fleet, Input, Started};
use crate::base::{Health, Hold, Message, Publish, Report};
use crate::discovery::{BaseSpec, Leaving};
use crate::vnode::{Keeper, KeeperContext, KeeperState, Order, SeenNode, Show};

/// How soon an actor that ended unasked is started again, and how soon left-over VPods are looked at again.
const AGAIN: Duration = Duration::from_secs(5);

/// Whoever waits for a report to stand on the Node.
pub(super) type Written = oneshot::Sender<Result<(), String>>;

/// The actor of a base, as the fleet sees it.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) uid: String,
    pub(super) held: Hold,
    mailbox: mpsc::UnboundedSender<Message>,
    dismissed: bool,
    /// Its base is gone, but its Node does not show yet that nothing new may come: its VPods stay until it does.
    pub(super) marking: bool,
}

impl Actor {
    /// Into its mailbox. One that ended is noticed by its end, not here.
    pub(super) fn tell(&self, message: Message) {
        let _ = self.mailbox.send(message);
    }
}

/// The keeper of a VNode, as the fleet sees it.
#[derive(Debug)]
pub(super) struct KeeperHandle {
    orders: mpsc::UnboundedSender<Order>,
    pub(super) state: Arc<KeeperState>,
    /// UID of the Node that was there at its start.
    of: Option<String>,
    leaving: bool,
    removing: bool,
}

impl KeeperHandle {
    pub(super) fn saw(&self, seen: SeenNode) {
        let _ = self.orders.send(Order::Seen(seen));
    }

    pub(super) fn lost(&self, uid: &str) {
        let _ = self.orders.send(Order::Deleted(uid.to_owned()));
    }

    /// Orders that nothing new may come; says whether that must be waited for. The watch tells when it stands there.
    fn leave(&mut self, seen: Option<&SeenNode>) -> bool {
        let waits = seen.is_some_and(|seen| !seen.is_leaving());
        if waits {
            self.leaving = true;
            let _ = self.orders.send(Order::Leave);
        }
        waits
    }
}

/// One VNode during a term.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) actor: Option<Actor>,
    pub(super) keeper: Option<KeeperHandle>,
    pub(super) report: Option<Arc<Report>>,
    /// The brake let the silence of its base pass.
    pub(super) counted: bool,
    /// The base answered this agent once since its actor was started.
    answered: bool,
    /// UID of the Node that was removed; the watch may show it a little longer.
    removed: Option<String>,
    cleaning: bool,
    due: Option<Instant>,
    parked: Vec<Written>,
}

impl Slot {
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Whether the Node with this UID was removed.
    pub(super) fn has_removed(&self, uid: &str) -> bool {
        self.removed.as_deref() == Some(uid)
    }
}

impl Fleet {
    /// Brings one VNode a step nearer to what it must be.
    pub(super) fn reconcile(&mut self, node: &str, now: Instant) {
        let seen = self.seen.get(node).filter(|seen| seen.is_ours(&self.context.cluster)).cloned();
        let slot = self.slots.entry(node.to_owned()).or_default();
        if slot.due.is_some_and(|due| due > now) {
            return;
        }
        slot.due = None;
        let seen = seen.filter(|seen| !slot.has_removed(seen.uid()));
        let vacant = slot.actor.is_none();
        if vacant && self.has_sidecar(node) {
            self.reconcile_sidecar(node, seen.as_ref(), now);
        } else {
            self.reconcile_ours(node, seen.as_ref(), now);
        }
        if self.slots.get(node).is_some_and(|slot| {
            slot.actor.is_none() && slot.keeper.is_none() && !slot.cleaning && slot.due.is_none()
        }) && !self.seen.contains_key(node)
        {
            self.slots.remove(node);
        }
    }

    fn reconcile_ours(&mut self, node: &str, seen: Option<&SeenNode>, now: Instant) {
        let kept = self.slots.get(node).is_some_and(|slot| slot.keeper.is_some());
        if seen.is_some() && !kept {
            self.keep(node, seen.cloned());
        }
        if self.slots.get(node).is_some_and(|slot| slot.actor.is_some()) {
            self.reconcile_actor(node);
        } else {
            self.reconcile_vacant(node, seen, now);
        }
    }

    /// With an actor: dismiss it when its base is gone, and remove the VNode once it is drained.
    fn reconcile_actor(&mut self, node: &str) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        let Some(actor) = &mut slot.actor else { return };
        let gone =
            self.losses.verdict(&actor.uid) == Some(Verdict::Gone) || !self.bases.contains_key(&actor.uid);
        let leaving = self.bases.get(&actor.uid).and_then(|spec| spec.leaving);
        let drained = slot.report.as_ref().is_some_and(|report| report.drained);
        if (gone && !actor.dismissed) || actor.marking {
            // Replacements of the VPods that go now must not come here again. Calls to the base end at once all the
            // same: another Pod may have its address by now.
            let ours = self.seen.get(node).filter(|seen| seen.is_ours(&self.context.cluster));
            actor.marking = gone
                && !self.context.observe
                && slot.keeper.as_mut().is_some_and(|keeper| keeper.leave(ours));
            let first = !std::mem::replace(&mut actor.dismissed, true);
            self.hold(node);
            if first && let Some(actor) = self.slots.get(node).and_then(|slot| slot.actor.as_ref()) {
                actor.tell(Message::Gone);
            }
        } else if leaving.is_some() && drained {
            match &mut slot.keeper {
                Some(keeper) if !keeper.removing => {
                    keeper.removing = true;
                    let _ = keeper.orders.send(Order::Remove);
                }
                // The VNode is gone. A base that may be selected again gets a fresh actor then.
                None if leaving == Some(Leaving::Deselected) && !actor.dismissed => {
                    actor.dismissed = true;
                    actor.tell(Message::Gone);
                }
                Some(_) | None => {}
            }
        } else if leaving.is_none() && !actor.dismissed && slot.keeper.is_none() {
            // The keeper of the base before it, under the same name, has just removed its VNode.
            self.keep(node, None);
            self.show(node, Vec::new());
        }
    }

    /// Without an actor: start one for the base that belongs here, or clean up after one that is gone.
    fn reconcile_vacant(&mut self, node: &str, seen: Option<&SeenNode>, now: Instant) {
        let Some(seen) = seen else {
            let base = self
                .bases
                .values()
                .filter(|spec| spec.node == node && spec.leaving.is_none() && spec.started);
            let base = base
                .filter(|spec| !self.losses.is_missing(&spec.uid))
                .max_by_key(|spec| spec.created)
                .cloned();
            if let Some(spec) = base {
                self.start(node, &spec, None);
            }
            return;
        };
        let uid = seen.base_uid().to_owned();
        match (self.losses.verdict(&uid), self.bases.get(&uid).cloned()) {
            (Some(Verdict::Gone), _) => self.clean(node),
            // Held by the brake, or not looked up yet: its Lease is renewed, nothing else happens.
            (None, _) if self.losses.is_missing(&uid) => {}
            (_, Some(spec)) => self.start(node, &spec, Some(seen)),
            // A VNode of a base that no watch shows, come up after the term began.
            (_, None) if !self.is_watched(&uid) => {
                let (namespace, pod) = seen.base().unwrap_or_default();
                self.losses.missing(&uid, node, namespace, pod, now);
                self.brake.lost(&uid, 1, SETTLE_BASE, now);
                self.look_up_due(now);
            }
            // A Pod that matches but cannot be read as a base now.
            (_, None) => {}
        }
    }

    pub(super) fn is_watched(&self, uid: &str) -> bool {
        self.sources.iter().any(|source| source.get(uid).is_some())
    }

    fn start(&mut self, node: &str, spec: &Arc<BaseSpec>, seen: Option<&SeenNode>) {
        let Some(term) = self.term.clone() else { return };
        if self.context.own.is_none() && spec.has_sidecar() {
            return;
        }
        let uid = spec.uid.clone();
        tracing::info!(node, base = %format_args!("{}/{}", spec.namespace, spec.pod), "looking after a base");
        let Started { mailbox, done } = (self.context.start_actor)(Arc::clone(spec), term.clone());
        let held = self.hold_on(node);
        let actor = Actor { uid: uid.clone(), held, mailbox, dismissed: false, marking: false };
        let exhausted = seen.is_some_and(|seen| self.restore_heal(spec, seen));
        actor.tell(Message::Inventory(seen.and_then(inventory).map(Box::new)));
        if exhausted {
            actor.tell(Message::Exhausted);
        }
        if held.any() {
            actor.tell(Message::Hold(held));
        }
        for pod in self.pods_on.get(node).into_iter().flat_map(|pods| pods.values()) {
            actor.tell(Message::Pod(Arc::clone(pod)));
        }
        actor.tell(Message::PodsSynced);
        let (own, name) = (self.own.clone(), node.to_owned());
        term.tracker().spawn(async move {
            done.await;
            // The fleet ends with the process only.
            let _ = own.send(Input::ActorEnded { node: name, uid });
        });
        let slot = self.slots.entry(node.to_owned()).or_default();
        slot.actor = Some(actor);
        slot.report = None;
        slot.counted = false;
        slot.answered = false;
        // One that was told of the end of the base before it would tell of the end of this one.
        if slot.keeper.as_ref().is_none_or(|keeper| keeper.leaving && !keeper.removing) {
            self.keep(node, seen.cloned());
        }
    }

    /// What is left on this Node is ours to remove: its keeper is one that began with it.
    pub(super) fn keep_left(&mut self, node: &str, seen: &SeenNode) {
        let keeper = self.slots.get(node).and_then(|slot| slot.keeper.as_ref());
        if keeper.is_none_or(|keeper| !keeper.removing && keeper.of.as_deref() != Some(seen.uid())) {
            self.keep(node, Some(seen.clone()));
        }
    }

    /// Another agent looks after this VNode: a keeper that is not about to end does so now.
    pub(super) fn let_go(&mut self, node: &str) {
        if let Some(slot) = self.slots.get_mut(node) {
            slot.keeper.take_if(|keeper| !keeper.removing);
        }
    }

    pub(super) fn keep(&mut self, node: &str, seen: Option<SeenNode>) {
        let Some(term) = self.term.clone() else { return };
        let context = KeeperContext {
            nodes: Arc::clone(&self.nodes_api),
            leases: Arc::clone(&self.leases),
            identity: Arc::clone(&self.identity),
            cluster: Arc::clone(&self.cluster),
            frame: Arc::clone(&self.context.frame),
            term: term.clone(),
            observe: self.context.observe,
            metrics: Arc::clone(&self.context.metrics),
            events: Arc::clone(&self.context.events),
            owner_calls: Arc::clone(&self.owner_calls),
            node_calls: Arc::clone(&self.node_calls),
            lease_calls: Arc::clone(&self.lease_calls),
            removed: self.removed.clone(),
        };
        let (orders, orders_end) = mpsc::unbounded_channel();
        let state = Arc::new(KeeperState::default());
        let of = seen.as_ref().map(|seen| seen.uid().to_owned());
        let keeper = Keeper::new(context, node.to_owned(), seen, Arc::clone(&state));
        term.tracker().spawn(keeper.run(orders_end));
        let slot = self.slots.entry(node.to_owned()).or_default();
        slot.keeper = Some(KeeperHandle { orders, state, of, leaving: false, removing: false });
        slot.removed = None;
    }

    /// Whether nothing may be removed on this VNode now; then it is looked at again soon.
    pub(super) fn is_put_off(&mut self, node: &str) -> bool {
        let held = self.is_held(node);
        if held && let Some(slot) = self.slots.get_mut(node) {
            slot.due = Some(Instant::now() + AGAIN / 5);
        }
        held
    }

    /// Deletes what is left on a VNode whose base is gone, then the VNode.
    pub(super) fn clean(&mut self, node: &str) {
        let left: Vec<_> =
            self.pods_on.get(node).into_iter().flat_map(|pods| pods.values()).cloned().collect();
        if self.is_put_off(node) {
            return;
        }
        let Some(slot) = self.slots.get_mut(node) else { return };
        let Some(keeper) = slot.keeper.as_mut().filter(|keeper| !keeper.removing) else { return };
        if slot.cleaning {
            return;
        }
        // Replacements of the VPods that go now must not come here again.
        let ours = self.seen.get(node).filter(|seen| seen.is_ours(&self.context.cluster));
        if !left.is_empty() && !self.context.observe && keeper.leave(ours) {
            return;
        }
        if left.is_empty() {
            keeper.removing = true;
            let _ = keeper.orders.send(Order::Remove);
            return;
        }
        slot.cleaning = true;
        self.delete_left(node, left);
    }

    pub(super) fn on_cleaned(&mut self, node: &str) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        slot.cleaning = false;
        // What could not be deleted is tried again; what was is seen by the watch meanwhile.
        slot.due = Some(Instant::now() + if self.context.observe { AGAIN * 60 } else { AGAIN / 5 });
        self.dirty.insert(node.to_owned());
    }

    /// The keeper is done. By now the watch may show another Node of this name.
    pub(super) fn on_removed(&mut self, node: &str, uid: Option<String>) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        slot.keeper = None;
        slot.removed = uid;
        let seen = self.seen.get(node).filter(|seen| slot.has_removed(seen.uid()));
        if slot.actor.is_none()
            && let Some(uid) = seen.map(|seen| seen.base_uid().to_owned())
        {
            self.forget(&uid);
        }
        self.dirty.insert(node.to_owned());
    }

    pub(super) fn on_actor_ended(&mut self, node: &str, uid: &str) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        let Some(actor) = slot.actor.take_if(|actor| actor.uid == uid) else { return };
        let before = slot.report.take().map(|report| report.unhealthy.clone()).unwrap_or_default();
        slot.parked.clear();
        self.weigh_unhealthy(node, &before);
        let Some(slot) = self.slots.get_mut(node) else { return };
        if actor.dismissed {
            if slot.keeper.is_none() || self.seen.get(node).is_none_or(|seen| seen.base_uid() != uid) {
                self.forget(uid);
            }
            // A keeper without a Node has nothing to remove.
            if !self.seen.contains_key(node)
                && let Some(keeper) = self.slots.get_mut(node).and_then(|slot| slot.keeper.as_mut())
                && !keeper.removing
            {
                keeper.removing = true;
                let _ = keeper.orders.send(Order::Remove);
            }
        } else {
            tracing::error!(node, "an actor ended unasked and is started again");
            slot.due = Some(Instant::now() + AGAIN);
        }
        self.dirty.insert(node.to_owned());
    }

    /// Forgets bases that no watch shows and that nothing is left of: no Node, nobody who looks after it, and no
    /// question that the brake or a look-up has yet to answer.
    pub(super) fn forget_gone(&mut self) {
        if !self.is_synced() {
            return;
        }
        let known = self.bases.iter().map(|(uid, spec)| (uid.as_str(), spec.node.as_str()));
        let gone: BTreeSet<String> = known
            .chain(self.losses.nodes())
            .filter(|(uid, node)| !self.is_watched(uid) && !self.is_left(uid, node))
            .map(|(uid, _)| uid.to_owned())
            .collect();
        for uid in gone {
            self.forget(&uid);
        }
    }

    fn is_left(&self, uid: &str, node: &str) -> bool {
        let stands = self.seen.get(node).is_some_and(|seen| seen.base_uid() == uid);
        let kept = self.slots.get(node).is_some_and(|slot| match &slot.actor {
            Some(actor) => actor.uid == uid,
            None => slot.keeper.is_some(),
        });
        // Without a term nobody answers; the next one asks anew about the Nodes that stand then.
        let asked =
            self.begun && self.losses.is_missing(uid) && self.losses.verdict(uid) != Some(Verdict::Gone);
        stands || kept || asked
    }

    /// All about a base is done. One that is only deselected is looked at anew when its label comes back.
    fn forget(&mut self, uid: &str) {
        if !self.is_watched(uid) {
            self.bases.remove(uid);
        }
        self.losses.clear(uid);
        self.brake.done(uid);
        self.brake.done(&silence(uid));
    }

    pub(super) fn on_publish(&mut self, publish: Publish) {
        let Publish { node, report, written } = publish;
        let Some(slot) = self.slots.get_mut(&node) else { return };
        if slot.actor.is_none() {
            return;
        }
        let drained = report.drained;
        slot.answered |= report.health == Health::Answering;
        let before = slot.report.replace(report).map(|report| report.unhealthy.clone()).unwrap_or_default();
        self.weigh(&node);
        self.weigh_unhealthy(&node, &before);
        self.show(&node, written.into_iter().collect());
        if drained {
            self.dirty.insert(node);
        }
    }

    /// Brings the silence of a base before the brake, once. One that is leaving or missing anyway is no accident, and
    /// one that never answered, whose VNode therefore was never made, is no loss.
    pub(super) fn weigh(&mut self, node: &str) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        let (Some(actor), Some(report)) = (&slot.actor, &slot.report) else { return };
        let stands = self.seen.get(node).is_some_and(|seen| seen.base_uid() == actor.uid);
        let never = !slot.answered && !stands;
        let key = silence(&actor.uid);
        if !matches!(report.health, Health::Silent { .. }) {
            slot.counted = false;
            self.brake.back(&key);
        } else if never || self.bases.get(&actor.uid).is_none_or(|spec| spec.leaving.is_some()) {
            self.count_silence(node);
        } else if !slot.counted && !self.losses.is_missing(&actor.uid) {
            self.brake.lost(&key, 1, self.rules.settle_silence(), Instant::now());
        }
    }

    /// The silence of a base may be acted on: by its VNode, and by its actor.
    pub(super) fn count_silence(&mut self, node: &str) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        let silent =
            slot.report.as_ref().is_some_and(|report| matches!(report.health, Health::Silent { .. }));
        if let Some(actor) = &slot.actor
            && silent
            && !std::mem::replace(&mut slot.counted, true)
        {
            actor.tell(Message::SilenceCounts);
            self.show(node, Vec::new());
        }
    }

    /// Tells the keeper what the VNode must show now.
    pub(super) fn show(&mut self, node: &str, written: Vec<Written>) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        slot.parked.extend(written);
        let (Some(actor), Some(report), Some(keeper)) = (&slot.actor, &slot.report, &slot.keeper) else {
            return;
        };
        let Some(spec) = self.bases.get(&actor.uid) else { return };
        // Parked until the real node is known: a VNode made without it would be written twice.
        let Some(host) = self.hosts.facts(spec.host.as_deref()) else { return };
        let show = Show {
            spec: Arc::clone(spec),
            host,
            limits: self.rules.limits(spec),
            report: Arc::clone(report),
            silence_held: !slot.counted,
            healing: self.heals.shown(&actor.uid),
        };
        let _ = keeper.orders.send(Order::Show(Box::new(show), std::mem::take(&mut slot.parked)));
    }
}
