//! A Pod that looks for a base, with what the policy says of it whatever the base: for callers that ask about thousands.

use crate::{
    contract::{Module, ModulePod},
    model::{CompatibilityEntry, Patterns, Policy, Requirements},
    reason::Reason,
};

/// A module Pod and what concerns it in a policy. Made once, asked of many bases.
#[derive(Clone, Debug)]
pub struct Applicant<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) pod: &'a ModulePod,
    /// The entries that speak of a module of the Pod: module by module, in the policy's order.
    pub(crate) concerns: Vec<Concern<'a>>,
    /// Those of them that ask anything of a base, or whose versions decide about a module of unknown version.
    pub(crate) needs: Vec<Concern<'a>>,
    /// What the Pod itself does not bear.
    pub(crate) unbearable: Patterns<'a>,
    /// For each module of the Pod, in its order.
    pub(crate) feuds: Vec<Feud<'a>>,
}

/// An entry that speaks of a module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Concern<'a> {
    pub(crate) module: &'a Module,
    /// `None` where the entry's versions decide about a module of unknown version.
    entry: Option<&'a CompatibilityEntry>,
}

/// Who a module cannot be on a base with, by the policy.
#[derive(Clone, Debug)]
pub(crate) struct Feud<'a> {
    pub(crate) module: &'a Module,
    /// What the module does not bear.
    pub(crate) unbearable: Patterns<'a>,
    /// What does not bear the module. A version that is not known may be the one.
    pub(crate) averse: Patterns<'a>,
}

impl<'a> Applicant<'a> {
    /// Reads the policy for a Pod.
    pub fn new(policy: &'a Policy, pod: &'a ModulePod) -> Self {
        let concerns: Vec<_> =
            pod.modules.iter().flat_map(|module| Concern::of(module, &policy.compatibility)).collect();
        let feuds = pod.modules.iter().map(|module| Feud::of(module, &concerns, policy)).collect();
        let needs = concerns.iter().filter(|concern| concern.entry.is_none_or(needs)).copied().collect();
        Self { policy, pod, concerns, needs, unbearable: pod.requirements.conflicts.iter().collect(), feuds }
    }
}

fn needs(entry: &CompatibilityEntry) -> bool {
    let Requirements { provides, modules, conflicts: _ } = &entry.requirements;
    entry.base.is_some() || !provides.is_empty() || !modules.is_empty()
}

impl<'a> Concern<'a> {
    fn of(module: &'a Module, entries: &'a [CompatibilityEntry]) -> impl Iterator<Item = Self> {
        entries.iter().filter_map(move |entry| {
            match entry.module.matches(&module.name, module.comparable.as_ref()) {
                Some(false) => None,
                Some(true) => Some(Self { module, entry: Some(entry) }),
                None => Some(Self { module, entry: None }),
            }
        })
    }

    /// The entry.
    ///
    /// # Errors
    /// `module version unknown`: nobody can say whether the entry means the module.
    pub(crate) fn entry(self) -> Result<&'a CompatibilityEntry, Reason> {
        self.entry.ok_or_else(|| Reason::ModuleVersionUnknown { module: self.module.name.clone() })
    }
}

impl<'a> Feud<'a> {
    fn of(module: &'a Module, concerns: &[Concern<'a>], policy: &'a Policy) -> Self {
        let mine = concerns.iter().filter(|concern| std::ptr::eq(concern.module, module));
        let unbearable =
            mine.filter_map(|concern| concern.entry).flat_map(|entry| &entry.requirements.conflicts);
        let meant = |entry: &&CompatibilityEntry| {
            let conflicts = &entry.requirements.conflicts;
            conflicts.iter().any(|p| p.matches(&module.name, module.comparable.as_ref()) != Some(false))
        };
        let averse = policy.compatibility.iter().filter(meant).map(|entry| &entry.module);
        Self { module, unbearable: unbearable.collect(), averse: averse.collect() }
    }
}
