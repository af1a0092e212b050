use super::super::detect::Cause;
use super::*;

const WISH: Wish = Wish { deadline: Duration::from_mins(10), without_place: false };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("time")
}

fn mover(uid: &str, controller: &str, elsewhere: usize) -> Tenant {
    let following = Following::Moves { controller: controller.to_owned(), elsewhere };
    Tenant { uid: uid.to_owned(), following, leaving: false, place: true }
}

fn other(uid: &str, following: Following) -> Tenant {
    Tenant { uid: uid.to_owned(), following, leaving: false, place: false }
}

fn facts(tenants: Vec<Tenant>) -> Facts {
    Facts { opted_out: false, replaceable: true, budget: true, tenants, last: None }
}

fn found() -> Healing {
    Healing::found("u-1", None, Cause::NotFreed, at(0))
}

fn at_step(step: Step, evicted: Option<Evicted>) -> Healing {
    Healing { step, begun: Some(at(0)), evicted, ..found() }
}

fn last(uid: &str, elsewhere: usize) -> Evicted {
    Evicted { uid: uid.to_owned(), controller: Some("r".to_owned()), elsewhere, awaited: true }
}

fn written(outlook: &Outlook) -> &Healing {
    match &outlook.next {
        Next::Write(healing) => healing,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_begins_only_when_nothing_hinders_it() {
    let good = facts(vec![mover("p", "r", 1)]);
    let begun = judge(&found(), &good, &WISH, at(5));
    assert_eq!((written(&begun).step, written(&begun).begun), (Step::Evicting, Some(at(5))));
    let homeless = Tenant { place: false, ..mover("p", "r", 1) };
    for (facts, hindrance) in [
        (Facts { opted_out: true, ..good.clone() }, Hindrance::OptedOut),
        (Facts { replaceable: false, ..good.clone() }, Hindrance::NoController),
        (Facts { budget: false, ..good.clone() }, Hindrance::Budget),
        (facts(vec![homeless.clone()]), Hindrance::NoPlace),
        (facts(vec![other("b", Following::Bare)]), Hindrance::NoPlace),
    ] {
        assert_eq!(judge(&found(), &facts, &WISH, at(5)), wait(hindrance));
    }
    let proceed = Wish { without_place: true, ..WISH };
    let anyway = judge(&found(), &facts(vec![homeless, other("b", Following::Bare)]), &proceed, at(5));
    assert_eq!(written(&anyway).step, Step::Evicting);
    let at_once = Wish { deadline: Duration::ZERO, ..WISH };
    assert_eq!(written(&judge(&found(), &good, &at_once, at(5))).step, Step::Forcing);
    let nobody = judge(&found(), &facts(vec![]), &WISH, at(5));
    assert_eq!(written(&nobody).step, Step::Evicting);
}

#[test]
fn one_goes_after_the_other() {
    let both = facts(vec![mover("p", "r", 1), mover("q", "s", 0)]);
    let evicting = at_step(Step::Evicting, None);
    let first = judge(&evicting, &both, &WISH, at(1));
    assert_eq!(written(&first).evicted, Some(last("p", 1)));
    // It stands on the Node: the eviction is asked for, until it is on its way.
    let healing = written(&first).clone();
    assert_eq!(judge(&healing, &both, &WISH, at(2)), go(Next::Evict(vec!["p".to_owned()])));
    let mut leaving = both.clone();
    leaving.tenants[0].leaving = true;
    leaving.last = Some(Replicas { elsewhere: 1, wanted: Some(2) });
    assert_eq!(judge(&healing, &leaving, &WISH, at(3)), wait(Hindrance::Replacement));
    let mut gone = facts(vec![mover("q", "s", 0)]);
    gone.last = leaving.last;
    assert_eq!(judge(&healing, &gone, &WISH, at(4)), wait(Hindrance::Replacement));
    gone.last = Some(Replicas { elsewhere: 2, wanted: Some(2) });
    let second = judge(&healing, &gone, &WISH, at(5));
    assert_eq!(written(&second).evicted.as_ref().map(|last| last.uid.as_str()), Some("q"));
    // Scaled down meanwhile: nothing more will come.
    gone.last = Some(Replicas { elsewhere: 1, wanted: Some(1) });
    assert!(matches!(judge(&healing, &gone, &WISH, at(5)).next, Next::Write(_)));
}

#[test]
fn the_base_goes_when_the_last_replacement_is_ready() {
    let healing = at_step(Step::Evicting, Some(last("p", 1)));
    let mut nobody = facts(vec![other("s", Following::Stays)]);
    nobody.last = Some(Replicas { elsewhere: 1, wanted: None });
    assert_eq!(judge(&healing, &nobody, &WISH, at(60)), wait(Hindrance::Replacement));
    nobody.last = Some(Replicas { elsewhere: 2, wanted: None });
    assert_eq!(written(&judge(&healing, &nobody, &WISH, at(60))).step, Step::Replacing);
    nobody.last = Some(Replicas { elsewhere: 1, wanted: None });
    assert_eq!(written(&judge(&healing, &nobody, &WISH, at(600))).step, Step::Replacing, "the deadline");
    let replacing = at_step(Step::Replacing, None);
    assert_eq!(judge(&replacing, &nobody, &WISH, at(61)), go(Next::Replace));
}

#[test]
fn those_that_follow_their_base_go_together_and_nobody_waits_for_them() {
    let peers = facts(vec![
        other("d", Following::FollowsBase),
        mover("p", "r", 1),
        other("e", Following::FollowsBase),
    ]);
    let both = || vec!["d".to_owned(), "e".to_owned()];
    let healing = at_step(Step::Evicting, Some(last("p", 1)));
    let mut all = both();
    all.push("p".to_owned());
    assert_eq!(judge(&healing, &peers, &WISH, at(1)), go(Next::Evict(all)));
    let mut waiting = peers.clone();
    waiting.tenants.remove(1);
    waiting.last = Some(Replicas { elsewhere: 1, wanted: None });
    let expected = Outlook { next: Next::Evict(both()), hindrance: Some(Hindrance::Replacement) };
    assert_eq!(judge(&healing, &waiting, &WISH, at(1)), expected);
    let alone = at_step(Step::Evicting, None);
    let only = facts(vec![other("d", Following::FollowsBase)]);
    assert_eq!(judge(&alone, &only, &WISH, at(1)).next, Next::Evict(vec!["d".to_owned()]));
}

#[test]
fn past_the_deadline_what_is_left_is_forced() {
    let healing = at_step(Step::Evicting, Some(last("p", 1)));
    let held_by_its_budget = facts(vec![mover("p", "r", 1)]);
    assert_eq!(judge(&healing, &held_by_its_budget, &WISH, at(599)).next, Next::Evict(vec!["p".to_owned()]));
    let forced = judge(&healing, &held_by_its_budget, &WISH, at(600));
    assert_eq!(written(&forced).step, Step::Forcing);
    let forcing = written(&forced).clone();
    assert_eq!(judge(&forcing, &held_by_its_budget, &WISH, at(601)), wait(Hindrance::Draining));
    assert_eq!(written(&judge(&forcing, &facts(vec![]), &WISH, at(602))).step, Step::Replacing);
    // The last place went to somebody else: what has nowhere to go is not thrown out.
    let homeless = facts(vec![Tenant { place: false, ..mover("q", "s", 0) }]);
    let between = at_step(Step::Evicting, None);
    assert_eq!(judge(&between, &homeless, &WISH, at(600)), wait(Hindrance::NoPlace));
}

#[test]
fn without_a_place_nobody_waits_for_a_replacement() {
    let proceed = Wish { without_place: true, ..WISH };
    let homeless = facts(vec![Tenant { place: false, ..mover("p", "r", 1) }, other("b", Following::Bare)]);
    let first = judge(&at_step(Step::Evicting, None), &homeless, &proceed, at(1));
    let evicted = written(&first).evicted.clone().expect("one");
    assert!(evicted.uid == "p" && !evicted.awaited);
    let mut next = facts(vec![other("b", Following::Bare)]);
    next.last = Some(Replicas { elsewhere: 1, wanted: Some(2) });
    let second = judge(written(&first), &next, &proceed, at(2));
    assert_eq!(written(&second).evicted.as_ref().map(|last| last.uid.as_str()), Some("b"));
}

proptest::proptest! {
    /// Whatever is found: a base goes only when nothing is left on it that could go elsewhere, nobody is evicted who was
    /// not written down, and steps are never taken back.
    #[test]
    fn nothing_dangerous_is_done_out_of_turn(
        step in 0_usize..4,
        tenants in proptest::collection::vec((0_u8..5, proptest::bool::ANY, proptest::bool::ANY, 0_usize..3), 0..5),
        evicted in proptest::option::of((0_usize..5, 0_usize..3, proptest::bool::ANY)),
        flags in (proptest::bool::ANY, proptest::bool::ANY, proptest::bool::ANY, proptest::bool::ANY),
        replicas in proptest::option::of((0_usize..3, proptest::option::of(0_usize..3))),
        second in 0_i64..1_200,
    ) {
        let step = [Step::Waiting, Step::Evicting, Step::Forcing, Step::Replacing][step];
        let tenants: Vec<Tenant> = tenants.into_iter().enumerate().map(|(number, (kind, leaving, place, elsewhere))| {
            let following = match kind {
                0 => Following::FollowsBase,
                1 => Following::Bare,
                2 => Following::Stays,
                _ => Following::Moves { controller: format!("r{number}"), elsewhere },
            };
            Tenant { uid: format!("p{number}"), following, leaving, place }
        }).collect();
        let evicted = evicted.map(|(number, elsewhere, awaited)| Evicted {
            uid: format!("p{number}"), controller: Some("r".to_owned()), elsewhere, awaited,
        });
        let healing = Healing { step, begun: (step != Step::Waiting).then(|| at(0)), evicted, ..found() };
        let (opted_out, replaceable, budget, without_place) = flags;
        let last = replicas.map(|(elsewhere, wanted)| Replicas { elsewhere, wanted });
        let facts = Facts { opted_out, replaceable, budget, tenants, last };
        let wish = Wish { without_place, ..WISH };
        let followers: Vec<&str> = facts.tenants.iter()
            .filter(|tenant| tenant.following == Following::FollowsBase).map(|tenant| tenant.uid.as_str()).collect();
        match judge(&healing, &facts, &wish, at(second)).next {
            Next::Write(next) => {
                proptest::prop_assert!(next.step >= healing.step && next != healing);
                if step == Step::Waiting {
                    proptest::prop_assert!(!opted_out && replaceable && budget);
                }
                if next.step == Step::Replacing {
                    proptest::prop_assert!(facts.tenants.iter().all(|tenant| tenant.following == Following::Stays));
                }
            }
            Next::Evict(uids) => {
                let written = healing.evicted.as_ref().map(|last| last.uid.as_str());
                for uid in &uids {
                    proptest::prop_assert!(followers.contains(&uid.as_str()) || written == Some(uid));
                }
                proptest::prop_assert!(step == Step::Evicting);
            }
            Next::Replace => proptest::prop_assert!(step == Step::Replacing),
            Next::Wait => {}
        }
    }
}
