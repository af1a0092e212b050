//! What requires a module is installed after it. Pure.
//!
//! A first install waits until each required module is active on the base, or stands in the same VPod. What has run here
//! before comes back in the same order, but waits only for what comes back too: a policy that changed, or a neighbour that
//! was deleted, does not keep it away. Modules that wait for each other in a circle would wait for ever: then the one that
//! is served first goes first, and says so.

use std::collections::{BTreeMap, BTreeSet};

use policy::model::ModulePattern;
use policy::version::Version;

use super::state::{Desired, Memory, ModuleId, Observed, Removal, Rules, Wanted};
use crate::arklet::BizState;

/// A container of a VPod: UID and name.
type Place = (String, String);

/// What holds modules back on one base.
#[derive(Debug, Default)]
pub(super) struct Requirements {
    /// What a container waits for, in words.
    waits: BTreeMap<Place, String>,
    /// Who goes first though it requires what is not there, in words.
    first: Option<(Place, String)>,
}

/// What the requirements of all modules are judged by.
pub(super) struct Base<'a> {
    pub(super) desired: &'a BTreeMap<String, Desired>,
    pub(super) observed: &'a Observed,
    pub(super) memory: &'a Memory,
    pub(super) rules: &'a Rules,
    /// Which VPod each wanted module belongs to.
    pub(super) claims: &'a BTreeMap<ModuleId, String>,
}

/// A module that is wanted and not active yet.
struct Node<'a> {
    pod: &'a Desired,
    module: &'a Wanted,
    /// Its version, ready to be compared.
    version: Option<Version>,
    /// Needs that are not fulfilled, each with the nodes that would.
    needs: Vec<(&'a ModulePattern, Vec<usize>)>,
    /// Nodes of the same VPod that come before it.
    before: Vec<usize>,
}

impl Requirements {
    /// Judges every module, `order` being how VPods are served.
    pub(super) fn of(base: &Base<'_>, order: &[&Desired]) -> Self {
        if order.iter().all(|pod| pod.needs.values().all(Vec::is_empty)) {
            return Self::default();
        }
        let nodes = nodes(base, order);
        let open = circles(&nodes);
        let first = open.iter().copied().find(|node| in_circle(&nodes, &open, *node));
        let mut found = Self::default();
        for (index, node) in nodes.iter().enumerate() {
            let Some((need, _)) = node.needs.first() else { continue };
            let place = (node.pod.uid.clone(), node.module.container.clone());
            if first == Some(index) {
                let message = format!(
                    "{} requires {need}, which waits for it in a circle; it goes first",
                    node.module.id
                );
                found.first = Some((place, message));
            } else {
                found
                    .waits
                    .insert(place, format!("requires module {need}, which is not active on this base"));
            }
        }
        found
    }

    /// What this container waits for.
    pub(super) fn wait(&self, uid: &str, container: &str) -> Option<&str> {
        self.waits.get(&(uid.to_owned(), container.to_owned())).map(String::as_str)
    }

    /// The VPod that goes first in a circle, and why.
    pub(super) fn first(&self) -> Option<(&str, &str)> {
        self.first.as_ref().map(|((uid, _), message)| (uid.as_str(), message.as_str()))
    }
}

fn nodes<'a>(base: &Base<'a>, order: &[&'a Desired]) -> Vec<Node<'a>> {
    let mut nodes: Vec<Node<'a>> = Vec::new();
    for pod in order.iter().copied().filter(|pod| pod.removal == Removal::None && !pod.terminal) {
        let mut before = Vec::new();
        for module in pod.modules() {
            let claimed = base.claims.get(&module.id) == Some(&pod.uid);
            let active = base.observed.find(&module.id).is_some_and(|biz| biz.state == BizState::Activated);
            if !claimed || active {
                continue;
            }
            let version = Version::parse(&module.id.version).ok();
            let place = nodes.len();
            nodes.push(Node { pod, module, version, needs: Vec::new(), before: before.clone() });
            before.push(place);
        }
    }
    let there = there(base);
    let coming: Vec<bool> = nodes.iter().map(|node| !held(base, node)).collect();
    let mut needs: Vec<Vec<(&ModulePattern, Vec<usize>)>> = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let wanted = node.pod.needs.get(&node.module.container).map(Vec::as_slice).unwrap_or_default();
        let open = wanted
            .iter()
            .filter(|need| !together(node.pod, need) && !there.iter().any(|is| is.fulfils(need)));
        let open = open.map(|need| {
            let fulfils =
                |other: &Node<'_>| need.matches(&other.module.id.name, other.version.as_ref()) == Some(true);
            let others = nodes.iter().enumerate().zip(&coming);
            let others = others.filter(|((_, other), coming)| **coming && fulfils(other));
            (need, others.map(|((index, _), _)| index).collect::<Vec<_>>())
        });
        let known = base.memory.module(&node.pod.uid, &node.module.container);
        let back = known.is_some_and(|memory| memory.running.as_ref() == Some(&node.module.id));
        needs.push(open.filter(|(_, others)| !back || !others.is_empty()).collect());
    }
    for (node, needs) in nodes.iter_mut().zip(needs) {
        node.needs = needs;
    }
    nodes
}

/// A module that is active and stays.
struct There<'a> {
    name: &'a str,
    version: Option<Version>,
}

impl There<'_> {
    fn fulfils(&self, need: &ModulePattern) -> bool {
        need.matches(self.name, self.version.as_ref()) == Some(true)
    }
}

fn there<'a>(base: &Base<'a>) -> Vec<There<'a>> {
    let active = base.observed.modules.iter().filter(|biz| biz.state == BizState::Activated);
    let stays = active.filter(|biz| {
        let id = ModuleId { name: biz.name.clone(), version: biz.version.clone() };
        base.memory.owner(&id).is_none_or(|owner| {
            let pod = base.desired.get(&owner.uid);
            pod.is_some_and(|pod| pod.living() && pod.removal == Removal::None)
        })
    });
    stays.map(|biz| There { name: &biz.name, version: Version::parse(&biz.version).ok() }).collect()
}

fn together(pod: &Desired, need: &ModulePattern) -> bool {
    pod.modules().iter().any(|module| {
        need.matches(&module.id.name, Version::parse(&module.id.version).ok().as_ref()) == Some(true)
    })
}

/// What is held because it kills the base does not come.
fn held(base: &Base<'_>, node: &Node<'_>) -> bool {
    let suspect = base.memory.suspect(&node.pod.uid, node.module);
    suspect.is_some_and(|suspect| suspect.deaths >= base.rules.lethal_restarts)
}

/// The largest set of nodes that wait, directly or not, only for each other.
fn circles(nodes: &[Node<'_>]) -> BTreeSet<usize> {
    let mut comes = vec![false; nodes.len()];
    let is = |set: &[bool], index: &usize| set.get(*index).copied().unwrap_or(false);
    let met = |set: &[bool], node: &Node<'_>| {
        node.needs.iter().all(|(_, others)| others.iter().any(|other| is(set, other)))
            && node.before.iter().all(|other| is(set, other))
    };
    // Those that come one after the other.
    loop {
        let next: Vec<bool> = nodes
            .iter()
            .zip(&comes)
            .map(|(node, comes_already)| *comes_already || met(&comes, node))
            .collect();
        if next == comes {
            break;
        }
        comes = next;
    }
    // Of the rest, those that lack nothing but each other.
    let mut may = vec![true; nodes.len()];
    loop {
        let next: Vec<bool> =
            nodes.iter().zip(&may).map(|(node, may_still)| *may_still && met(&may, node)).collect();
        if next == may {
            break;
        }
        may = next;
    }
    (0..nodes.len()).filter(|index| is(&may, index) && !is(&comes, index)).collect()
}

/// Whether a node of `open` waits for itself in the end.
fn in_circle(nodes: &[Node<'_>], open: &BTreeSet<usize>, from: usize) -> bool {
    let mut seen = BTreeSet::new();
    let mut left = vec![from];
    while let Some(node) = left.pop().and_then(|index| nodes.get(index)) {
        let needs = node.needs.iter().flat_map(|(_, others)| others);
        for other in needs.chain(&node.before).filter(|other| open.contains(other)) {
            if *other == from {
                return true;
            }
            if seen.insert(*other) {
                left.push(*other);
            }
        }
    }
    false
}
