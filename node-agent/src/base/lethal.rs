//! Which module kills the base: what was installed shortly before a death is suspected, and what was under suspicion
//! is tried by itself, so that an innocent neighbour is cleared and only the culprit is held.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::state::{Desired, Memory, ModuleId, Rules, Wanted};
use crate::arklet::{Biz, BizState};

/// A module as it is installed: name and version, and hash of URL and arguments.
pub type Key = (ModuleId, String);

/// An install that was sent to the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// When it was sent, or when what came of it was read: a death is near when it is near to the end of an install.
    pub at: Timestamp,
    /// Nobody has read yet what came of it.
    pub open: bool,
}

/// A module that may have killed the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// `metadata.uid` of the VPod it was installed for; a successor begins anew.
    pub uid: String,
    /// Deaths of the base that it is blamed for.
    pub deaths: u32,
}

/// Why an install waits because of a suspicion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caution {
    /// Held: it killed the base as often as the policy allows.
    Held,
    /// A suspect and its neighbours are not installed at the same time.
    Alone,
    /// Its next death would be the last one: it must be seen that no other install is to blame.
    Until(Timestamp),
}

impl Memory {
    /// The suspicion against a module of this VPod.
    pub fn suspect(&self, uid: &str, module: &Wanted) -> Option<&Suspect> {
        let suspect = self.lethal.get(&(module.id.clone(), module.hash.clone()))?;
        (suspect.uid == uid).then_some(suspect)
    }

    /// What keeps a module from being installed now, given the installs on their way.
    pub(super) fn caution(
        &self,
        uid: &str,
        module: &Wanted,
        flying: Flying,
        rules: &Rules,
        now: Timestamp,
    ) -> Option<Caution> {
        let Some(suspect) = self.suspect(uid, module) else {
            return flying.suspect.then_some(Caution::Alone);
        };
        if suspect.deaths >= rules.lethal_restarts {
            return Some(Caution::Held);
        }
        if flying.any {
            return Some(Caution::Alone);
        }
        if suspect.deaths.saturating_add(1) < rules.lethal_restarts {
            return None;
        }
        let own = (&module.id, &module.hash);
        let others = self.recent.iter().filter(|((id, hash), _)| (id, hash) != own);
        let quiet = others.map(|(_, tried)| later(tried.at, rules.lethal_within)).max()?;
        (quiet > now).then_some(Caution::Until(quiet))
    }

    /// The install of a module goes out now.
    pub fn sent(&mut self, id: &ModuleId, now: Timestamp) {
        if let Some(owner) = self.owner(id) {
            let key = (id.clone(), owner.hash.clone());
            self.recent.insert(key, Tried { at: now, open: true });
        }
    }

    /// An install never reached the base.
    pub(super) fn not_sent(&mut self, id: &ModuleId) {
        self.recent.retain(|(other, _), tried| other != id || !tried.open);
    }

    /// What came of an install was read from a base that lives.
    pub(super) fn survived(&mut self, id: &ModuleId, now: Timestamp) {
        for (_, tried) in self.recent.iter_mut().filter(|((other, _), tried)| other == id && tried.open) {
            *tried = Tried { at: now, open: false };
        }
    }

    /// A list was read: what is active long enough after its install is cleared.
    pub(super) fn outlived(&mut self, modules: &[Biz], within: Duration, now: Timestamp) {
        let state = |id: &ModuleId| {
            modules.iter().find(|biz| biz.name == id.name && biz.version == id.version).map(|biz| biz.state)
        };
        let Self { recent, lethal, busy, .. } = self;
        recent.retain(|key, tried| {
            if busy.contains_key(&key.0.name) {
                return true;
            }
            let state = state(&key.0);
            if tried.open && state.is_some() {
                *tried = Tried { at: now, open: false };
            }
            let over = later(tried.at, within) <= now;
            if over && state == Some(BizState::Activated) {
                lethal.remove(key);
                return false;
            }
            // What is not listed may have died with a base whose restart has not been told yet.
            !over || (state.is_none() && later(tried.at, within.saturating_mul(2)) > now)
        });
    }

    /// The base died at `died`. Blamed are the installs of which nobody has read what came of them, else the latest one.
    /// Only a death that has one possible cause brings a module to the limit.
    pub(super) fn blame(&mut self, rules: &Rules, died: Timestamp) {
        let recent = std::mem::take(&mut self.recent);
        // The base lived when the last install was sent.
        let died = recent.values().map(|tried| tried.at).max().map_or(died, |sent| sent.max(died));
        let near: BTreeMap<_, _> = recent
            .into_iter()
            .filter(|((id, _), tried)| {
                let flying = tried.open && self.busy.contains_key(&id.name);
                flying || later(tried.at, rules.lethal_within) > died
            })
            .collect();
        let clear = near.len() == 1;
        let open = near.values().any(|tried| tried.open);
        let latest = near.values().map(|tried| tried.at).max();
        for (key, tried) in near {
            let blamed = if open { tried.open } else { Some(tried.at) == latest };
            let Some(uid) = self.owner(&key.0).map(|owner| owner.uid.clone()).filter(|_| blamed) else {
                continue;
            };
            let suspect = self.lethal.entry(key).or_insert_with(|| Suspect { uid: String::new(), deaths: 0 });
            if suspect.uid != uid {
                *suspect = Suspect { uid, deaths: 0 };
            }
            let deaths = suspect.deaths.saturating_add(1);
            if clear || deaths < rules.lethal_restarts {
                suspect.deaths = deaths;
            }
        }
    }

    /// Someone asked for a retry, or the VPod is gone: what its modules are suspected of is forgotten.
    pub fn forgive(&mut self, uid: &str) {
        self.lethal.retain(|_, suspect| suspect.uid != uid);
    }
}

/// Installs on their way or planned.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Flying {
    pub(super) any: bool,
    /// One of them is a suspect's.
    pub(super) suspect: bool,
}

impl Flying {
    pub(super) fn of(memory: &Memory, desired: &BTreeMap<String, Desired>) -> Self {
        let mut flying = Self::default();
        for busy in memory.busy.values().filter(|busy| busy.kind == super::state::Operation::Install) {
            flying.any = true;
            let uid = busy.uid.as_deref().unwrap_or_default();
            let modules = desired.get(uid).map(Desired::modules).unwrap_or_default();
            flying.suspect |= modules.iter().any(|m| m.id == busy.id && memory.suspect(uid, m).is_some());
        }
        flying
    }

    pub(super) fn begins(&mut self, suspect: bool) {
        self.any = true;
        self.suspect |= suspect;
    }
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
