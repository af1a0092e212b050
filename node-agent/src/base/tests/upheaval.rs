//! While everything around it changes, the planner keeps its promises at every step, and when the changes end it comes
//! to rest where it should: what the base holds and what was last listed are two things here, Pods come, change, go and
//! vanish, people install by hand, the base falls silent or restarts, the agent restarts, the brake comes and goes.

mod rest;
mod world;

use proptest::prelude::*;

use world::World;

const NAMES: [&str; 3] = ["a", "b", "c"];
const VERSIONS: [&str; 3] = ["1", "2", "3"];

/// How an operation ends on a base that answers.
#[derive(Debug, Clone, Copy)]
enum Mood {
    Works,
    LosesAnswer,
    Refuses,
    /// The artifact is not there: for good.
    Denies,
    Breaks,
    StartsSlowly,
}

fn mood() -> impl Strategy<Value = Mood> {
    prop_oneof![
        6 => Just(Mood::Works),
        1 => Just(Mood::LosesAnswer),
        1 => Just(Mood::Refuses),
        1 => Just(Mood::Denies),
        1 => Just(Mood::Breaks),
        1 => Just(Mood::StartsSlowly),
    ]
}

#[derive(Debug, Clone)]
enum Happening {
    PodComes(Vec<(usize, usize)>),
    PodChanges(usize, usize),
    PodIsDeleted(usize),
    PodDrained(usize),
    /// Without a word, as when etcd is restored.
    PodVanishes(usize),
    Reply(usize, Mood),
    Query,
    InstallByHand(usize, usize),
    UninstallByHand(usize),
    Started,
    Silent,
    Answers,
    BaseRestarts,
    AgentRestarts,
    Hold(bool),
    TimePasses(i64),
}

fn happening() -> impl Strategy<Value = Happening> {
    let modules = proptest::collection::btree_map(0..3_usize, 0..3_usize, 1..3)
        .prop_map(|modules| modules.into_iter().collect());
    let any = any::<usize>;
    prop_oneof![
        4 => modules.prop_map(Happening::PodComes),
        1 => (any(), 0..3_usize).prop_map(|(pod, version)| Happening::PodChanges(pod, version)),
        2 => any().prop_map(Happening::PodIsDeleted),
        2 => any().prop_map(Happening::PodDrained),
        1 => any().prop_map(Happening::PodVanishes),
        10 => (any(), mood()).prop_map(|(which, mood)| Happening::Reply(which, mood)),
        4 => Just(Happening::Query),
        1 => (0..3_usize, 0..3_usize).prop_map(|(name, version)| Happening::InstallByHand(name, version)),
        1 => any().prop_map(Happening::UninstallByHand),
        2 => Just(Happening::Started),
        1 => Just(Happening::Silent),
        2 => Just(Happening::Answers),
        1 => Just(Happening::BaseRestarts),
        1 => Just(Happening::AgentRestarts),
        1 => proptest::bool::ANY.prop_map(Happening::Hold),
        3 => (1..40_i64).prop_map(Happening::TimePasses),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn it_keeps_its_promises_through_everything_and_comes_to_rest(
        replace: bool,
        multi_version: bool,
        happenings in proptest::collection::vec(happening(), 0..80),
    ) {
        let mut world = World::new(replace, multi_version);
        for happening in happenings {
            world.happens(happening)?;
            world.turn()?;
        }
        world.calms_down()?;
        world.settled()?;
    }
}
