//! What is so when everything has come to rest.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::*;
use super::world::World;

impl World {
    /// At rest every VPod has its modules or waits for something that is really so, and nothing is left over.
    pub(super) fn settled(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.flying.is_empty(), "something is still on its way");
        let plan = self.rig.plan();
        prop_assert_eq!(plan.actions.iter().map(shown).collect::<Vec<_>>(), Vec::<String>::new());
        let desired = &self.rig.desired;
        prop_assert!(desired.values().all(|pod| pod.removal == Removal::None), "a Pod does not go");
        for (uid, view) in &plan.views {
            let modules = desired[uid].modules();
            for (place, (module, (_, state))) in modules.iter().zip(&view.modules).enumerate() {
                let others: Vec<_> = self
                    .truth
                    .iter()
                    .filter(|biz| biz.name == module.id.name && biz.version != module.id.version)
                    .map(|biz| self.rig.memory.owner(&id(&biz.name, &biz.version)))
                    .collect();
                let why = match state {
                    ModuleState::Active { .. } => {
                        let listed = self.held(&module.id).map(|biz| biz.state);
                        prop_assert_eq!(listed, Some(BizState::Activated), "{}", module.id);
                        let owner = self.rig.memory.owner(&module.id).map(|owner| owner.uid.as_str());
                        prop_assert_eq!(owner, Some(uid.as_str()), "{}", module.id);
                        continue;
                    }
                    ModuleState::Waiting { reason, .. } => *reason,
                };
                let earlier = || {
                    let mut states = view.modules.iter().take(place);
                    states.any(|(_, state)| matches!(state, ModuleState::Waiting { .. }))
                };
                let justified = match why {
                    Reason::SameModule => desired.iter().any(|(other, pod)| {
                        other != uid
                            && !pod.terminal
                            && pod.modules().iter().any(|wanted| wanted.id == module.id)
                    }),
                    // The other version stays as long as its VPod does; and so does this one where its VPod was changed
                    // to a version that is taken.
                    Reason::WaitingForOldVersion => {
                        let this = self.rig.memory.owner(&module.id).filter(|owner| owner.uid != *uid);
                        others.iter().flatten().copied().chain(this).any(|owner| {
                            let pod = desired.get(&owner.uid);
                            pod.is_some_and(|pod| {
                                pod.modules().iter().any(|wanted| wanted.id.name == module.id.name)
                            })
                        })
                    }
                    Reason::ForeignModule => {
                        others.iter().any(Option::is_none) && !self.rig.rules.replace_foreign
                    }
                    Reason::WaitingForModule | Reason::Replaying => earlier(),
                    Reason::Deactivated => {
                        self.held(&module.id).is_some_and(|biz| biz.state == BizState::Deactivated)
                    }
                    _ => false,
                };
                prop_assert!(justified, "{}/{} is stuck: {:?} {:?}", uid, module.id, state, self.truth);
            }
        }
        for biz in &self.truth {
            let module = id(&biz.name, &biz.version);
            if let Some(owner) = self.rig.memory.owner(&module) {
                let pod = desired.get(&owner.uid).filter(|pod| !pod.terminal);
                let wanted = pod.is_some_and(|pod| pod.modules().iter().any(|wanted| wanted.id == module));
                // What runs is not given up for a version that belongs to another VPod.
                let kept = plan.views.get(&owner.uid).is_some_and(|view| {
                    view.modules.iter().any(|(container, state)| {
                        let same = matches!(state, ModuleState::Waiting { reason: Reason::SameModule, .. });
                        *container == biz.name && same
                    })
                });
                prop_assert!(wanted || kept, "{} of nobody is left", module);
            }
        }
        self.nobody_waits_in_a_circle(&plan)
    }

    /// Whoever waits for an older version waits, in the end, for a VPod that wants what it has, or for what is not ours.
    fn nobody_waits_in_a_circle(&self, plan: &Plan) -> Result<(), TestCaseError> {
        let mut waiting = BTreeMap::new();
        for (uid, view) in &plan.views {
            for (module, (_, state)) in self.rig.desired[uid].modules().iter().zip(&view.modules) {
                if matches!(state, ModuleState::Waiting { reason: Reason::WaitingForOldVersion, .. }) {
                    waiting.insert((uid.clone(), module.id.name.clone()), &module.id);
                }
            }
        }
        loop {
            let stays = |biz: &Biz, uid: &String| {
                let owner = self.rig.memory.owner(&id(&biz.name, &biz.version));
                owner.is_none_or(|owner| {
                    owner.uid != *uid && !waiting.contains_key(&(owner.uid.clone(), biz.name.clone()))
                })
            };
            let blocked = |((uid, name), _): &(&(String, String), &&ModuleId)| {
                self.truth.iter().any(|biz| biz.name == *name && stays(biz, uid))
            };
            let found = waiting.iter().find(blocked).map(|(key, _)| key.clone());
            let Some(found) = found else { break };
            waiting.remove(&found);
        }
        prop_assert!(waiting.is_empty(), "they wait for each other: {:?} {:?}", waiting, self.truth);
        Ok(())
    }
}
