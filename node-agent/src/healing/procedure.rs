//! What is done next for an overloaded base. Pure.
//!
//! A decision that others depend on is a new [`Healing`], which must stand on the Node before its effects are asked for.
//! Effects may be asked for any number of times: evictions name the UID of their Pod.

use std::time::Duration;

use jiff::Timestamp;

use super::state::{Evicted, Healing, Step};

/// What the policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// `overload.evictionDeadline`.
    pub deadline: Duration,
    /// `overload.withoutPlace: proceed`.
    pub without_place: bool,
}

/// What becomes of a VPod that leaves its base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Following {
    /// Its controller makes a replacement elsewhere.
    Moves {
        /// UID of the controller.
        controller: String,
        /// VPods of it that are Ready on other bases.
        elsewhere: usize,
    },
    /// It is there because the base is: a `DaemonSet`, or a Deployment that follows its bases.
    FollowsBase,
    /// Nobody makes a replacement.
    Bare,
    /// It tolerates the taint: it stays to the end.
    Stays,
}

/// A VPod on the base that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its UID.
    pub uid: String,
    /// What becomes of it.
    pub following: Following,
    /// It is being deleted.
    pub leaving: bool,
    /// Another base would take it now, together with all others that go.
    pub place: bool,
}

/// What hinders a healing, or holds it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hindrance {
    /// The base says `stowage.dev/overload: ignore`.
    OptedOut,
    /// No controller makes a new base Pod.
    NoController,
    /// The modules have nowhere to go.
    NoPlace,
    /// As many bases as the policy allows are healing, or their successors are not complete yet.
    Budget,
    /// The replacement of the last VPod is not Ready yet.
    Replacement,
    /// VPods are on their way out.
    Draining,
}

impl Hindrance {
    /// Stable code for diagnostics and docs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OptedOut => "OptedOut",
            Self::NoController => "NoController",
            Self::NoPlace => "NoPlace",
            Self::Budget => "Budget",
            Self::Replacement => "Replacement",
            Self::Draining => "Draining",
        }
    }

    /// For people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::OptedOut => "the base opts out by stowage.dev/overload: ignore",
            Self::NoController => "the base Pod has no controller that would replace it",
            Self::NoPlace => "its modules have nowhere to go",
            Self::Budget => "as many bases as the policy allows are healing",
            Self::Replacement => "waits until the replacement of the last evicted Pod is Ready elsewhere",
            Self::Draining => "waits until the last Pods are gone",
        }
    }
}

/// What is known of the base and its surroundings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// `stowage.dev/overload: ignore`.
    pub opted_out: bool,
    /// A controller makes a new base Pod.
    pub replaceable: bool,
    /// One more base may heal.
    pub budget: bool,
    /// VPods on the base that have not ended.
    pub tenants: Vec<Tenant>,
    /// How the controller of the VPod evicted last does.
    pub last: Option<Replicas>,
}

/// Replicas of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// VPods of it that are Ready on other bases.
    pub elsewhere: usize,
    /// Replicas that it wants, where that is known.
    pub wanted: Option<usize>,
}

/// What is done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// This must stand on the Node first.
    Write(Healing),
    /// Ask for the eviction of these VPods, again until they go.
    Evict(Vec<String>),
    /// Ask for the eviction of the base Pod, again until it goes.
    Replace,
    /// Nothing but waiting.
    Wait,
}

/// What is done next, and what is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// What is done.
    pub next: Next,
    /// What holds it up.
    pub hindrance: Option<Hindrance>,
}

fn wait(hindrance: Hindrance) -> Outlook {
    Outlook { next: Next::Wait, hindrance: Some(hindrance) }
}

fn go(next: Next) -> Outlook {
    Outlook { next, hindrance: None }
}

/// Decides. `healing` is what stands on the Node.
pub fn judge(healing: &Healing, facts: &Facts, wish: &Wish, now: Timestamp) -> Outlook {
    match healing.step {
        Step::Waiting => begin(healing, facts, wish, now),
        Step::Evicting => evict(healing, facts, wish, now),
        Step::Forcing => force(healing, facts),
        Step::Replacing => go(Next::Replace),
    }
}

fn begin(healing: &Healing, facts: &Facts, wish: &Wish, now: Timestamp) -> Outlook {
    if facts.opted_out {
        return wait(Hindrance::OptedOut);
    }
    if !facts.replaceable {
        return wait(Hindrance::NoController);
    }
    if !facts.budget {
        return wait(Hindrance::Budget);
    }
    if !wish.without_place && !facts.tenants.iter().all(has_somewhere) {
        return wait(Hindrance::NoPlace);
    }
    let step = if wish.deadline.is_zero() { Step::Forcing } else { Step::Evicting };
    go(Next::Write(Healing { step, begun: Some(now), ..healing.clone() }))
}

/// Whether nothing is lost when it goes.
fn has_somewhere(tenant: &Tenant) -> bool {
    tenant.leaving
        || match &tenant.following {
            Following::Moves { .. } => tenant.place,
            Following::FollowsBase | Following::Stays => true,
            Following::Bare => false,
        }
}

fn goes(tenant: &Tenant) -> bool {
    tenant.following != Following::Stays
}

fn evict(healing: &Healing, facts: &Facts, wish: &Wish, now: Timestamp) -> Outlook {
    let going: Vec<&Tenant> = facts.tenants.iter().filter(|tenant| goes(tenant)).collect();
    if going.is_empty() {
        if let Some(hindrance) = unreplaced(healing, facts) {
            // Past the deadline the last one is not waited for either.
            if !is_over(healing, wish, now) {
                return wait(hindrance);
            }
        }
        return go(Next::Write(Healing { step: Step::Replacing, ..healing.clone() }));
    }
    let homeless = !wish.without_place && !going.iter().all(|tenant| has_somewhere(tenant));
    if is_over(healing, wish, now) && !homeless {
        return go(Next::Write(Healing { step: Step::Forcing, ..healing.clone() }));
    }
    let followers =
        going.iter().filter(|tenant| tenant.following == Following::FollowsBase && !tenant.leaving);
    let mut now_going: Vec<String> = followers.map(|tenant| tenant.uid.clone()).collect();
    // What was written down is carried out, whether or not an earlier agent came to it.
    let last = healing.evicted.as_ref();
    let asked = last.and_then(|last| going.iter().find(|tenant| tenant.uid == last.uid && !tenant.leaving));
    if let Some(asked) = asked {
        now_going.push(asked.uid.clone());
        return go(Next::Evict(now_going));
    }
    if let Some(hindrance) = unreplaced(healing, facts) {
        return Outlook { next: evict_or_wait(now_going), hindrance: Some(hindrance) };
    }
    let mut movers = going.iter().filter(|tenant| {
        !tenant.leaving && matches!(tenant.following, Following::Moves { .. } | Following::Bare)
    });
    let Some(first) = movers.clone().next() else {
        return Outlook { next: evict_or_wait(now_going), hindrance: Some(Hindrance::Draining) };
    };
    let next = movers.find(|tenant| has_somewhere(tenant)).or(wish.without_place.then_some(first));
    match next {
        Some(tenant) => go(Next::Write(Healing { evicted: Some(evicted(tenant)), ..healing.clone() })),
        None => Outlook { next: evict_or_wait(now_going), hindrance: Some(Hindrance::NoPlace) },
    }
}

fn evict_or_wait(uids: Vec<String>) -> Next {
    if uids.is_empty() { Next::Wait } else { Next::Evict(uids) }
}

fn evicted(tenant: &Tenant) -> Evicted {
    let (controller, elsewhere) = match &tenant.following {
        Following::Moves { controller, elsewhere } => (Some(controller.clone()), *elsewhere),
        _ => (None, 0),
    };
    // Where it has no place, its replacement comes only when the base has been replaced.
    let awaited = tenant.place && controller.is_some();
    Evicted { uid: tenant.uid.clone(), controller, elsewhere, awaited }
}

/// Whether the VPod evicted last is still there, or its replacement is not Ready elsewhere yet.
fn unreplaced(healing: &Healing, facts: &Facts) -> Option<Hindrance> {
    let last = healing.evicted.as_ref()?;
    let controller = last.controller.as_ref().filter(|_| last.awaited);
    let replaced = controller.is_none()
        || facts.last.is_none_or(|now| {
            now.elsewhere > last.elsewhere || now.wanted.is_some_and(|wanted| now.elsewhere >= wanted)
        });
    (!replaced).then_some(Hindrance::Replacement)
}

fn is_over(healing: &Healing, wish: &Wish, now: Timestamp) -> bool {
    let until = healing.begun.and_then(|begun| begun.checked_add(wish.deadline).ok());
    until.is_some_and(|until| until <= now)
}

fn force(healing: &Healing, facts: &Facts) -> Outlook {
    if facts.tenants.iter().any(goes) {
        return wait(Hindrance::Draining);
    }
    go(Next::Write(Healing { step: Step::Replacing, ..healing.clone() }))
}

#[cfg(test)]
mod tests;
