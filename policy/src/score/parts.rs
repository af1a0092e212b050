//! The score in two parts, for callers that remember the first: what a base says by itself changes with the base, what it
//! is worth among the others changes with every placement anywhere.

use super::{FleetView, share, thousandths};
use crate::{
    contract::ModulePod,
    model::{Policy, Term},
    view::BaseView,
};

/// Whether a term compares a base with the fleet.
fn compares(term: Term) -> bool {
    matches!(term, Term::HostSpread | Term::ZoneSpread | Term::BaseVersion(_) | Term::BaseRevision)
}

fn sum(
    policy: &Policy,
    pod: &ModulePod,
    base: &BaseView<'_>,
    fleet: &FleetView<'_>,
    wanted: impl Fn(Term) -> bool,
) -> u128 {
    let terms = policy.scoring.iter().filter(|scored| wanted(scored.term));
    terms
        .map(|scored| u128::from(scored.weight) * thousandths(share(policy, scored.term, pod, base, fleet)))
        .sum()
}

/// The first part: weighted thousandths of the terms that look at nothing but the base, its Pods and the Pod.
pub fn own(policy: &Policy, pod: &ModulePod, base: &BaseView<'_>) -> u128 {
    sum(policy, pod, base, &FleetView::default(), |term| !compares(term))
}

/// What [`super::score`] says, with the first part already known.
pub fn among(policy: &Policy, own: u128, pod: &ModulePod, base: &BaseView<'_>, fleet: &FleetView<'_>) -> i64 {
    let weights: u128 = policy.scoring.iter().map(|scored| u128::from(scored.weight)).sum();
    if weights == 0 {
        return 0;
    }
    let all = own + sum(policy, pod, base, fleet, compares);
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
            assert_eq!(among(&policy, own(&policy, &pod, base), &pod, base, &fleet), whole);
        }
    }
}
