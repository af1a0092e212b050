//! The score in two parts, for callers that remember the first: what a base says by itself changes with the base, what it
//! is worth among the others changes with every placement anywhere.

use super::{
    FleetView, NEUTRAL, Share, base_revision, base_version, metaspace_headroom, recent_failures, slots,
    thousandths, topology,
};
use crate::{
    contract::ModulePod,
    model::{Limits, Policy, Term},
    view::BaseView,
};

/// What a term says that looks at nothing but the base, its limits, its Pods and the Pod; `None`: it compares.
pub(super) fn of_base(term: Term, pod: &ModulePod, base: &BaseView<'_>, limits: &Limits) -> Option<Share> {
    match term {
        Term::Spread => Some(slots::free(pod, base, limits)),
        Term::Pack => Some(slots::used(pod, base, limits)),
        Term::MetaspaceHeadroom => Some(metaspace_headroom::share(pod, base)),
        Term::RecentFailures => Some(recent_failures::share(base)),
        // Bases are not divided among agents.
        Term::UnderThreshold(_) => Some(NEUTRAL),
        Term::HostSpread | Term::ZoneSpread | Term::BaseVersion(_) | Term::BaseRevision => None,
    }
}

/// What a term says that compares the base with the fleet; `None`: it does not.
pub(super) fn in_fleet(term: Term, base: &BaseView<'_>, fleet: &FleetView<'_>) -> Option<Share> {
    match term {
        Term::HostSpread => Some(topology::emptier(base.facts.host.as_deref(), &fleet.hosts)),
        Term::ZoneSpread => Some(topology::emptier(base.facts.zone.as_deref(), &fleet.zones)),
        Term::BaseVersion(prefer) => Some(base_version::share(prefer, base, fleet)),
        Term::BaseRevision => Some(base_revision::share(base, fleet)),
        Term::Spread
        | Term::Pack
        | Term::MetaspaceHeadroom
        | Term::RecentFailures
        | Term::UnderThreshold(_) => None,
    }
}

fn sum(policy: &Policy, share: impl Fn(Term) -> Option<Share>) -> u128 {
    let terms = policy.scoring.iter();
    terms.filter_map(|scored| Some(u128::from(scored.weight) * thousandths(share(scored.term)?))).sum()
}

/// The first part: weighted thousandths of the terms that look at nothing but the base, which has these limits, its Pods
/// and the Pod.
pub fn own(policy: &Policy, pod: &ModulePod, base: &BaseView<'_>, limits: &Limits) -> u128 {
    sum(policy, |term| of_base(term, pod, base, limits))
}

/// What [`super::score`] says, with the first part already known.
pub fn among(policy: &Policy, own: u128, base: &BaseView<'_>, fleet: &FleetView<'_>) -> i64 {
    let weights: u128 = policy.scoring.iter().map(|scored| u128::from(scored.weight)).sum();
    if weights == 0 {
        return 0;
    }
    let all = own + sum(policy, |term| in_fleet(term, base, fleet));
    i64::try_from((all / weights + 500) / 1000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        contract::{BaseFacts, PodKind, classify},
        model::{Prefer, ScoreTerm},
        score::score,
    };

    #[test]
    fn the_parts_make_the_whole() {
        let node = |zone: &str, version: &str| {
            let text = format!(
                "{{metadata: {{name: n{zone}, labels: {{app.kubernetes.io/managed-by: stowage, stowage.dev/zone: {zone}, \
                 basement.koupleless.io/version: {version}}}, annotations: {{stowage.dev/base: a/b}}}}}}"
            );
            BaseFacts::from_node(&serde_saphyr::from_str(&text).unwrap()).unwrap().unwrap()
        };
        let text = "{metadata: {namespace: shop, name: p, uid: u}, spec: {tolerations: [{key: \
                    schedule.koupleless.io/virtual-node}], containers: [{name: a, env: [{name: MODULE_VERSION, \
                    value: '1'}]}]}}";
        let PodKind::Module(pod) = classify(&serde_saphyr::from_str(text).unwrap()) else {
            panic!("a module")
        };
        let facts = [node("x", "1.0.0"), node("y", "2.0.0"), node("y", "3.0.0")];
        let bases: Vec<BaseView<'_>> = facts.iter().map(BaseView::empty).collect();
        let terms = [
            (Term::Spread, 3),
            (Term::ZoneSpread, 2),
            (Term::BaseVersion(Prefer::Newest), 5),
            (Term::MetaspaceHeadroom, 1),
            (Term::BaseRevision, 1),
            (Term::RecentFailures, 1),
        ];
        let scoring = terms.map(|(term, weight)| ScoreTerm { term, weight }).to_vec();
        let policy = Policy { scoring, ..Policy::default() };
        let fleet = FleetView::of(&policy, &pod, bases.iter().copied());
        for base in &bases {
            let whole = score(&policy, &pod, base, &fleet);
            let limits = policy.limits_for(&base.facts.like());
            assert_eq!(among(&policy, own(&policy, &pod, base, &limits), base, &fleet), whole);
        }
    }
}
