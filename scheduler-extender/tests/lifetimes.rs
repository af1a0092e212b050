//! Placements just made and not yet seen: how long each is remembered.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

mod rig;

use std::time::{Duration, Instant};

use policy::contract::{PodKind, classify};
use rig::{bound, module_pod, state};
use scheduler_extender::cache::{Change, Mark, NodeSet, Source, State};
use scheduler_extender::reservations::{Reservations, TooMany};

fn module(name: &str) -> Box<policy::contract::ModulePod> {
    let pod = serde_json::from_value(module_pod(name, "shop", "1")).expect("a Pod");
    match classify(&pod) {
        PodKind::Module(pod) => pod,
        other => panic!("{other:?}"),
    }
}

/// Cases 11, 23, 28, 33, BL-034: what never comes true ends: by time, with its Pod, when filtered anew, when bound
/// elsewhere.
#[test]
fn reservations_end() {
    let (mut none, mut pending) = (state(&[], &[]), state(&[], &[module_pod("a", "shop", "1")]));
    let (start, lifetime) = (Instant::now(), Duration::from_mins(1));
    let soon = start + Duration::from_secs(1);
    for state in [&mut none, &mut pending] {
        for round in [30, 60, 90] {
            state.apply(Change::Opened(Source::Pods, start + Duration::from_secs(round)));
        }
    }
    let mut reservations = Reservations::new(lifetime);
    // Seen or not: our watch may lag behind kube-scheduler's.
    for known in [&pending, &none] {
        reservations.reserve(&module("a"), "v0", known, start);
        reservations.settle(known, start + Duration::from_millis(59_999));
        assert_eq!(reservations.on("v0").len(), 1);
        reservations.settle(known, start + lifetime);
        assert!(reservations.is_empty() && reservations.on("v0").is_empty(), "by time");
    }

    reservations.bind(&module("a"), "v0", &pending, start);
    reservations.release("uid-a");
    reservations.settle(&pending, start + lifetime);
    assert_eq!(reservations.len(), 1, "API servers take a minute");
    assert_eq!(reservations.claim(&module("a"), among(&[0, 1]), &pending, start), Ok(()));
    assert_eq!(maybe_on(&reservations), [1, 1], "once on each");
    reservations.settle(&pending, start + 2 * lifetime);
    assert!(reservations.is_empty(), "by time, though later");

    reservations.reserve(&module("a"), "v0", &pending, start);
    reservations.settle(&none, soon);
    assert!(reservations.is_empty(), "with its Pod, which was there");
    reservations.reserve(&module("a"), "v0", &none, start);
    reservations.settle(&pending, soon);
    assert_eq!(reservations.len(), 1);
    reservations.settle(&none, soon);
    assert!(reservations.is_empty(), "with its Pod, which came and went");

    reservations.reserve(&module("a"), "v0", &none, start);
    reservations.reserve(&module("a"), "v1", &none, start);
    assert!(reservations.on("v0").is_empty() && reservations.on("v1").len() == 1, "filtered anew");
    reservations.settle(&state(&[], &[bound(module_pod("a", "shop", "1"), "v2")]), start);
    assert!(reservations.is_empty(), "bound elsewhere");
}

/// While the watch of Pods fails or is caught up, a Pod that is not seen may have come true: nothing ends by age.
#[test]
fn nothing_ends_by_age_while_pods_are_in_doubt() {
    let mut cache = state(&[], &[]);
    let none = cache.clone();
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut reservations = Reservations::new(Duration::from_secs(15));
    reservations.reserve(&module("a"), "v0", &none, start);
    reservations.reserve(&module("b"), "v1", &none, start);
    cache.apply(Change::Failed(Source::Pods, at(1)));
    reservations.settle(&cache, at(29));
    cache.apply(Change::ListStarts(Source::Pods, at(29)));
    cache.apply(rig::pod(&module_pod("b", "shop", "1")));
    reservations.settle(&cache, at(60));
    assert_eq!(reservations.len(), 2, "the list is not complete");
    cache.apply(rig::pod(&bound(module_pod("a", "shop", "1"), "v0")));
    cache.apply(Change::ListEnds(Source::Pods, at(61)));
    cache.apply(Change::Opened(Source::Pods, at(61)));
    reservations.settle(&cache, at(61));
    assert_eq!((reservations.on("v0").len(), reservations.on("v1").len()), (0, 1), "seen at last");
    reservations.settle(&cache, at(75));
    assert_eq!(reservations.len(), 1, "it may be bound only now");
    reservations.settle(&cache, at(76));
    assert!(reservations.is_empty());
}

/// A list that is due is no doubt about what was seen before: however often there is one, what is too old ends.
#[test]
fn lists_that_are_due_keep_nothing() {
    let mut cache = state(&[], &[]);
    let start = Instant::now();
    let mut reservations = Reservations::new(Duration::from_mins(1));
    cache.apply(Change::ListEnds(Source::Pods, start));
    reservations.reserve(&module("a"), "v0", &cache, start);
    for round in [20, 40, 60] {
        let at = |seconds: u64| start + Duration::from_secs(round + seconds);
        cache.apply(Change::ListStarts(Source::Pods, at(0)));
        reservations.settle(&cache, at(0));
        cache.apply(Change::ListEnds(Source::Pods, at(0)));
        reservations.settle(&cache, at(0));
        assert_eq!(reservations.len(), 1, "{round}: nothing ends while a list is read");
        cache.apply(Change::Opened(Source::Pods, at(0)));
        reservations.settle(&cache, at(5));
        assert_eq!(reservations.len(), usize::from(round < 60), "{round}");
    }
}

/// A list is as old as its beginning: until the watch that follows has delivered what happened since, nothing is too old.
/// How much that is nobody says, so after a slow list everything has its time once more.
#[test]
fn a_slow_list_makes_nothing_old() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    for (took, watched, ends) in [(10, 12, 60), (40, 45, 105), (10, 40, 100)] {
        let mut cache = state(&[], &[]);
        let mut reservations = Reservations::new(Duration::from_mins(1));
        reservations.reserve(&module("a"), "v0", &cache, start);
        cache.apply(Change::ListStarts(Source::Pods, at(0)));
        // Now it is bound, which the list lacks.
        cache.apply(Change::ListEnds(Source::Pods, at(took)));
        let still = |cache: &State, seconds: u64| {
            let mut reservations = reservations.clone();
            reservations.settle(cache, at(seconds));
            reservations.len()
        };
        assert_eq!(still(&cache, 61), 1, "{took}: the watch is not accepted yet");
        cache.apply(Change::Opened(Source::Pods, at(watched)));
        // A watch lasts for half a minute.
        for round in 1..4 {
            if watched + 30 * round < ends {
                cache.apply(Change::Opened(Source::Pods, at(watched + 30 * round)));
            }
        }
        assert_eq!([ends - 1, ends].map(|seconds| still(&cache, seconds)), [1, 0], "{took} {watched}");
        cache.apply(rig::pod(&bound(module_pod("a", "shop", "1"), "v0")));
        assert_eq!(still(&cache, watched), 0, "seen");
    }
}

/// A watch that does not end when it should was silent for who knows how long.
#[test]
fn a_watch_that_ends_late_proves_nothing_yet() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    for (late, left) in [(2, 0), (5, 1)] {
        let mut cache = state(&[], &[]);
        let mut reservations = Reservations::new(Duration::from_mins(1));
        reservations.reserve(&module("a"), "v0", &cache, start);
        cache.apply(Change::Opened(Source::Pods, start));
        cache.apply(Change::Opened(Source::Pods, at(30 + late)));
        cache.apply(Change::Opened(Source::Pods, at(60 + late)));
        reservations.settle(&cache, at(65));
        assert_eq!(reservations.len(), left, "{late}");
    }
}

/// For a Pod that was placed and not seen for longer than bindings take nobody waits.
#[test]
fn what_was_placed_long_ago_is_not_awaited() {
    let (none, start) = (State::default(), Instant::now());
    let at = |milliseconds| start + Duration::from_millis(milliseconds);
    let mut reservations = Reservations::new(Duration::from_mins(1));
    reservations.bind(&module("a"), "v0", &none, start);
    assert_eq!([1_999, 2_000].map(|ms| reservations.is_awaited("uid-a", at(ms))), [true, false]);
    reservations.reserve(&module("a"), "v1", &none, at(5_000));
    assert!(reservations.is_awaited("uid-a", at(5_001)) && !reservations.is_awaited("uid-b", start));
}

/// Case 6: each binding ends by its own: what comes after it, however often, makes it neither longer nor shorter.
#[test]
fn each_binding_may_yet_happen_for_itself() {
    let mut pending = state(&[], &[module_pod("a", "shop", "1")]);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut reservations = Reservations::new(Duration::from_mins(1));
    let first = reservations.bind(&module("a"), "v0", &pending, start);
    let being_bound = |reservations: &Reservations| {
        (reservations.on("v0").len(), reservations.being_bound("v0").count(), reservations.on("v1").len())
    };
    for seconds in (10..120).step_by(10) {
        for after in [0, 5] {
            pending.apply(Change::Opened(Source::Pods, at(seconds + after)));
        }
        reservations.settle(&pending, at(seconds + 5));
        reservations.reserve(&module("a"), "v0", &pending, at(seconds + 5));
        let again = reservations.bind(&module("a"), "v0", &pending, at(seconds + 5));
        assert_eq!(being_bound(&reservations), (1, 1, 0), "once, by two bindings");
        reservations.unbind("uid-a", again);
        assert_eq!(being_bound(&reservations), (1, 1, 0), "by the first");
    }
    reservations.settle(&pending, at(120));
    assert_eq!(being_bound(&reservations), (0, 0, 0), "the refused ones did not prolong the first");

    let second = reservations.bind(&module("a"), "v0", &pending, at(121));
    reservations.unbind("uid-a", first);
    assert_eq!(being_bound(&reservations), (1, 1, 0), "what was over long ago ends nothing");
    reservations.bind(&module("a"), "v1", &pending, at(122));
    reservations.unbind("uid-a", second);
    assert_eq!(being_bound(&reservations), (0, 0, 1));
    reservations.bind(&module("a"), "v0", &pending, at(123));
    reservations.bind(&module("a"), "v0", &pending, at(124));
    reservations.give_up("uid-a", "v0");
    assert_eq!(being_bound(&reservations), (0, 0, 1), "elsewhere it may be");
}

/// A watch that hung and is accepted again has not yet delivered what it missed: no placement is too old then.
#[test]
fn a_watch_that_is_accepted_again_proves_nothing_yet() {
    let mut cache = state(&[], &[]);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    cache.apply(Change::Opened(Source::Pods, start));
    let mut reservations = Reservations::new(Duration::from_mins(1));
    reservations.reserve(&module("a"), "v0", &cache, at(1));
    cache.apply(Change::Opened(Source::Pods, at(70)));
    let mut unasked = reservations.clone();
    reservations.settle(&cache, at(70));
    assert_eq!(reservations.len(), 1);
    let mut delivering = cache.clone();
    delivering.apply(rig::pod(&module_pod("other", "cart", "1")));
    unasked.settle(&delivering, at(70));
    assert_eq!(unasked.len(), 1, "nobody looked before, and another event came first");
    cache.apply(rig::pod(&bound(module_pod("a", "shop", "1"), "v0")));
    reservations.settle(&cache, at(70));
    assert!(reservations.is_empty());
}

/// The nodes `v0`, `v1` and so on have the places 0, 1 and so on.
fn among(places: &[u32]) -> NodeSet {
    places.iter().map(|place| Mark::new(*place)).collect()
}

/// How many Pods may have gone to each of the first nodes.
fn maybe_on<const N: usize>(reservations: &Reservations) -> [usize; N] {
    std::array::from_fn(|n| {
        let place = u32::try_from(n).expect("few nodes");
        reservations.maybe_on(&format!("v{n}"), Mark::new(place)).len()
    })
}

/// No claim is given up for another. Those on the same nodes share the set of them; at the limit a Pod is told to come again.
#[test]
fn claims_are_kept_and_bounded() {
    let mut reservations = Reservations::new(Duration::from_secs(15));
    let (none, start) = (State::default(), Instant::now());
    for n in 0..4_000 {
        let nodes = among(&[0, 1 + n % 40]);
        let claimed = reservations.claim(&module(&format!("p{n}")), nodes, &none, start);
        assert_eq!(claimed, Ok(()), "{n}");
    }
    assert_eq!(reservations.claim(&module("more"), among(&[0, 1]), &none, start), Err(TooMany));
    assert_eq!(reservations.claim(&module("p7"), among(&[1, 2]), &none, start), Ok(()), "filtered anew");
    assert_eq!(maybe_on(&reservations), [3_999, 101, 101, 100]);
    reservations.reserve(&module("x"), "v0", &none, start);
    assert_eq!((reservations.on("v0").len(), maybe_on(&reservations)), (1, [4_000]));
    for n in 0..4_000 {
        reservations.release(&format!("uid-p{n}"));
    }
    assert_eq!((reservations.len(), maybe_on(&reservations)), (1, [1]));
}
