//! Before anything of a VPod is installed the policy is asked, by the rules that the extender uses: the
//! scheduler can be bypassed. What runs is never touched by a policy that changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use policy::contract::{BaseFacts, BaseRevision, Known, ModuleIndex, names};
use policy::version::Version;
use policy::view::BaseView;

use super::actor::Actor;
use super::bound::{Bound, Wishes};
use super::state::{ModuleId, ModuleState, Reason, Want};
use super::told::Told;
use crate::audit;
use crate::vpod::read;

/// How soon a wish for a retry is noticed.
const ASK_EVERY: SignedDuration = SignedDuration::from_secs(10);

impl Actor {
    /// Asks the policy about every VPod of which nothing was installed yet, and looks at pauses and back-offs.
    pub(super) fn objections(&mut self) {
        let now = self.now();
        let undecided: Vec<_> = self
            .pods
            .iter()
            .filter(|(uid, bound)| {
                !bound.desired.terminal
                    && !self.memory.pods.get(*uid).is_some_and(|memory| memory.accepted)
                    && matches!(bound.desired.want, Want::Modules(_))
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for bound in self.pods.values_mut() {
            bound.desired.paused = self.paused.contains(&bound.desired.namespace);
            if bound.desired.not_before.is_some_and(|at| at <= now) {
                bound.desired.not_before = None;
            }
        }
        self.needs();
        self.ask_for_retries();
        if undecided.is_empty() {
            return;
        }
        let facts = self.facts();
        let pods: Vec<_> = self.pods.values().filter_map(|bound| bound.module_pod.clone()).collect();
        let view = BaseView { facts: &facts, pods: &pods, reserved: &[] };
        for uid in undecided {
            let Some(bound) = self.pods.get_mut(&uid) else { continue };
            let Some(pod) = bound.module_pod.clone() else { continue };
            let objection = policy::admit(&self.policy, &pod, &view).err().map(|rejection| rejection.reason);
            let text = objection.as_ref().map(ToString::to_string);
            let known = std::mem::replace(&mut bound.desired.rejected, text) == bound.desired.rejected;
            if let Some(reason) = objection.filter(|_| !known) {
                self.tell_refusal(&uid, reason.code(), &reason.text());
            }
        }
    }

    /// Reads which modules each module requires: by the policy's entries, and by the annotation of its Pod.
    fn needs(&mut self) {
        for bound in self.pods.values_mut() {
            if bound.needs_by.as_ref().is_some_and(|policy| Arc::ptr_eq(policy, &self.policy)) {
                continue;
            }
            bound.needs_by = Some(Arc::clone(&self.policy));
            let own =
                bound.module_pod.as_ref().map(|pod| pod.requirements.modules.clone()).unwrap_or_default();
            let needs = bound.desired.modules().iter().map(|module| {
                let version = Version::parse(&module.id.version).ok();
                let required = self.policy.required_modules(&module.id.name, version.as_ref());
                (module.container.clone(), required.chain(&own).cloned().collect())
            });
            bound.desired.needs = needs.collect();
        }
    }

    /// Writes into the audit log that a VPod gets nothing: one line for each of its modules, or one for a Pod without.
    pub(super) fn tell_refusal(&self, uid: &str, code: &'static str, text: &str) {
        let Some(bound) = self.pods.get(uid) else { return };
        let none = ModuleId { name: String::new(), version: String::new() };
        let modules: Vec<_> = bound.desired.modules().iter().map(|module| &module.id).collect();
        for id in if modules.is_empty() { vec![&none] } else { modules } {
            let subject = self.subject(audit::Operation::Install, id, Some(uid));
            self.context.audit.record(audit::Record::refused(self.now(), subject, code, text.to_owned()));
        }
    }

    /// Who, what and where, for the audit log. What no VPod wants was put there for its owner.
    pub(super) fn subject(
        &self,
        operation: audit::Operation,
        id: &ModuleId,
        uid: Option<&str>,
    ) -> audit::Subject {
        let bound = uid.and_then(|uid| self.pods.get(uid));
        let wanted = bound.and_then(|bound| bound.desired.modules().iter().find(|module| module.id == *id));
        let actor = bound.map(|bound| audit::Actor {
            uid: bound.desired.uid.clone(),
            namespace: bound.desired.namespace.clone(),
            name: bound.desired.name.clone(),
            owner: bound
                .module_pod
                .as_ref()
                .and_then(|pod| pod.owner.as_ref())
                .map(|o| format!("{}/{}", o.kind, o.name)),
        });
        let owner = || {
            let owner = self.memory.owner(id)?;
            let (uid, namespace, name) = (owner.uid.clone(), owner.namespace.clone(), owner.name.clone());
            Some(audit::Actor { uid, namespace, name, owner: None })
        };
        audit::Subject {
            operation,
            actor: actor.or_else(owner),
            base: audit::Base::of(&self.spec),
            module: id.name.clone(),
            version: id.version.clone(),
            digest: wanted.and_then(|module| audit::digest_of(&module.url)),
        }
    }

    /// The base as the extender would see it on its Node.
    fn facts(&mut self) -> BaseFacts {
        let inventory = self.inventory_now();
        let version = |text: &str| Version::parse(text).ok();
        let provides: BTreeMap<_, _> = inventory
            .provides
            .iter()
            .filter_map(|(name, text)| Some((name.clone(), version(text)?)))
            .collect();
        let module_index = ModuleIndex::of(&inventory.modules);
        let spec = &self.spec;
        BaseFacts {
            node: spec.node.as_str().into(),
            namespace: spec.namespace.as_str().into(),
            pod: spec.pod.as_str().into(),
            uid: spec.uid.as_str().into(),
            cluster: spec.cluster.as_str().into(),
            stack: spec.stack.as_str().into(),
            version: spec.version.as_deref().and_then(version).map(Arc::new),
            labels: spec.labels.clone(),
            leaving: spec.leaving.is_some(),
            // Whoever is bound to a cordoned Node may stay there.
            cordoned: false,
            overloaded: false,
            ready: true,
            paused: false,
            host: spec.host.as_deref().map(Into::into),
            zone: None,
            allocatable_pods: u32::try_from(self.rules.pods_per_base).unwrap_or(u32::MAX),
            inventory: if self.observed.answering { Known::Inventory(inventory) } else { Known::Nothing },
            provides: Arc::new(provides),
            module_index,
            revision: spec.revision.as_ref().zip(spec.created).map(|((workload, hash), created)| {
                BaseRevision { workload: workload.as_str().into(), hash: hash.as_str().into(), created }
            }),
        }
    }

    /// Reads again what could not be read, as its back-off allows.
    pub(super) fn rereads(&mut self) {
        let now = self.now();
        let due: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, bound)| {
                !bound.desired.terminal && !bound.leaving() && read::worth_another_look(&bound.desired.want)
            })
            .map(|(uid, bound)| (uid.clone(), bound.reading.due(now), bound.reading.next))
            .collect();
        for (uid, due, next) in due {
            if due {
                self.read(&uid);
            } else if let Some(next) = next.filter(|next| *next > now) {
                self.wake_at(next);
            }
        }
    }

    /// Asks about every VPod that is held back, now and then: whoever wants a retry does not wait for the back-off.
    fn ask_for_retries(&mut self) {
        let now = self.now();
        self.watch_lethal();
        let held = |bound: &Bound| {
            (bound.desired.not_before.is_some() || bound.lethal.is_some())
                && !bound.desired.terminal
                && !bound.leaving()
        };
        let mut due = Vec::new();
        for (uid, bound) in self.pods.iter_mut().filter(|(_, bound)| held(bound)) {
            let next = bound.asked.and_then(|at| at.checked_add(ASK_EVERY).ok());
            if next.is_none_or(|next| next <= now) {
                bound.asked = Some(now);
                due.push(uid.clone());
            }
        }
        let next = self.pods.values().filter(|bound| held(bound)).filter_map(|bound| bound.asked).min();
        if let Some(next) = next.and_then(|at| at.checked_add(ASK_EVERY).ok()) {
            self.wake_at(next);
        }
        for uid in due {
            let own =
                self.pods.get(&uid).and_then(|bound| bound.annotation(names::RETRY)).map(ToOwned::to_owned);
            if own.is_some() {
                self.retried(&uid, own.as_deref());
            }
            self.ask_controller(&uid);
        }
    }

    /// For a VPod that is held as lethal a wish for a retry counts that was not there when it was first looked at.
    fn watch_lethal(&mut self) {
        for (uid, bound) in &mut self.pods {
            let lethal =
                |state: &ModuleState| matches!(state, ModuleState::Waiting { reason: Reason::Lethal, .. });
            let view = self.views.get(uid);
            if !view.is_some_and(|view| view.modules.iter().any(|(_, state)| lethal(state))) {
                bound.lethal = None;
                continue;
            }
            let own = bound.annotation(names::RETRY).map(ToOwned::to_owned);
            if bound.lethal.get_or_insert_with(|| Wishes::begin(own.clone())).own(own.as_deref()) {
                bound.lethal = None;
                self.memory.forgive(uid);
            }
        }
    }

    /// Looks whether someone asked for a retry on the controller of a VPod (and, for a `ReplicaSet`, on its
    /// Deployment).
    fn ask_controller(&mut self, uid: &str) {
        let Some(bound) = self.pods.get(uid) else { return };
        let owners = bound.pod.metadata.owner_references.iter().flatten();
        let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)).cloned() else {
            return;
        };
        let (client, namespace, tell) =
            (self.context.client.clone(), bound.desired.namespace.clone(), self.tell.clone());
        let uid = uid.to_owned();
        self.tasks.spawn(async move {
            let mut owner = Some(owner);
            let mut value = None;
            // ReplicaSet and Deployment: two steps at most.
            for _ in 0..2 {
                let Some(at) = owner.take() else { break };
                let Some(found) = controller(&client, &namespace, &at).await else { break };
                value = found.metadata.annotations.as_ref().and_then(|all| all.get(names::RETRY)).cloned();
                if value.is_some() {
                    break;
                }
                let owners = found.metadata.owner_references.unwrap_or_default();
                owner = owners.into_iter().find(|owner| owner.controller == Some(true));
            }
            tell.send(Told::Retry { uid, value });
        });
    }

    /// What the controller of a VPod says, `None` where it says nothing.
    pub(super) fn controller_says(&mut self, uid: &str, value: Option<&str>) {
        let wished = self
            .pods
            .get_mut(uid)
            .is_some_and(|bound| bound.lethal.as_mut().is_some_and(|wishes| wishes.controller(value)));
        if wished {
            self.memory.forgive(uid);
        }
        self.retried(uid, value);
    }

    fn retried(&mut self, uid: &str, value: Option<&str>) {
        let (now, backoff) = (self.now(), self.template_backoff());
        let Some(bound) = self.pods.get_mut(uid) else { return };
        let Some(template) = bound.template().cloned() else { return };
        if let Some(value) = value {
            self.context.failures.retry(&template, value);
        }
        // Another VPod of the template may have been the first to see the wish, or have had success.
        bound.desired.not_before =
            self.context.failures.not_before(&template, &bound.artifacts(), backoff, now);
    }
}

async fn controller(
    client: &kube::Client,
    namespace: &str,
    owner: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference,
) -> Option<DynamicObject> {
    let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    let kind = GroupVersionKind::gvk(group, version, &owner.kind);
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind));
    api.get_opt(&owner.name)
        .await
        .ok()
        .flatten()
        .filter(|found| found.metadata.uid.as_ref() == Some(&owner.uid))
}
