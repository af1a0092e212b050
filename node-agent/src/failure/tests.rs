use super::*;

const BACKOFF: Backoff = Backoff { initial: Duration::from_mins(1), max: Duration::from_mins(10) };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn template() -> TemplateKey {
    TemplateKey { owner_uid: "rs".into(), hash: "h1".into() }
}

fn pod(n: i64) -> FailedPod {
    FailedPod { at: at(n), namespace: "shop".into(), name: format!("p{n}"), uid: format!("u{n}") }
}

fn artifact() -> Artifact {
    Artifact { name: "shop".into(), version: "1".into(), hash: "x".into() }
}

#[test]
fn one_replica_with_a_missing_jar_costs_few_installs_in_an_hour() {
    let memory = Memory::new();
    let mut installs = 0;
    for second in 0..3600 {
        // The replacement Pod lands on the next base within the second.
        if memory.admit(&template(), &[artifact()], BACKOFF, at(second)).is_ok() {
            installs += 1;
            memory.failed(&template(), &format!("base-{}", second % 50), pod(second));
        }
    }
    assert!((4..=15).contains(&installs), "{installs}");
}

/// The Failed VPods that are kept are all that a new process knows.
fn restarted(kept: &[FailedPod]) -> Memory {
    let memory = Memory::new();
    for pod in kept {
        memory.failed(&template(), &format!("base-{}", pod.uid), pod.clone());
    }
    memory
}

fn pod_of(number: usize, second: i64) -> FailedPod {
    FailedPod {
        at: at(second),
        namespace: "shop".into(),
        name: format!("p{number}"),
        uid: format!("u{number}"),
    }
}

/// So many replicas for an hour, each replaced the second after it failed, with an agent that is started anew in the
/// middle. Gives back when installs were tried.
fn an_hour_of(replicas: usize, bases: usize) -> Vec<(i64, usize)> {
    let mut memory = Memory::new();
    let (mut tried, mut kept, mut pods) = (Vec::new(), Vec::<FailedPod>::new(), 0);
    for second in 0..3600 {
        if second == 1800 {
            memory = restarted(&kept);
        }
        // All that may go now go together, before the first of them has failed.
        let mut going = Vec::new();
        for _ in 0..replicas {
            if memory.admit(&template(), &[artifact()], BACKOFF, at(second)).is_ok() {
                pods += 1;
                going.push(pods);
            }
        }
        for number in going {
            let base = number % bases;
            tried.push((second, base));
            let failed = pod_of(number, second);
            kept.push(failed.clone());
            let too_many = memory.failed(&template(), &format!("base-{base}"), failed);
            kept.retain(|pod| !too_many.contains(pod));
        }
        assert!(kept.len() <= KEPT || second == 0, "{} Failed VPods", kept.len());
    }
    assert_eq!(kept.len(), KEPT);
    tried
}

#[test]
fn an_hour_with_a_restart_costs_one_replica_at_most_fifteen_installs() {
    let tried = an_hour_of(1, 50);
    assert!((8..=15).contains(&tried.len()), "{tried:?}");
    let after = tried.iter().filter(|(second, _)| *second >= 1800).count();
    assert!((1..=6).contains(&after), "{tried:?}");
}

#[test]
fn an_hour_of_fifty_replicas_costs_each_base_a_handful() {
    let tried = an_hour_of(50, 50);
    for base in 0..50 {
        let here = tried.iter().filter(|(_, other)| *other == base).count();
        assert!((1..=5).contains(&here), "base-{base}: {here}");
    }
}

#[test]
fn one_base_alone_does_not_let_the_loop_run() {
    let memory = Memory::new();
    for n in 0..3 {
        assert!(memory.admit(&template(), &[], BACKOFF, at(n)).is_ok());
        memory.failed(&template(), "base", pod(n));
    }
    assert_eq!(memory.admit(&template(), &[], BACKOFF, at(3)), Err(at(62)));
}

#[test]
fn of_many_that_wait_for_the_same_moment_one_goes() {
    let memory = Memory::new();
    for n in 0..3 {
        memory.failed(&template(), &format!("b{n}"), pod(n));
    }
    assert_eq!(memory.not_before(&template(), &[], BACKOFF, at(3)), Some(at(62)));
    assert!(memory.admit(&template(), &[], BACKOFF, at(62)).is_ok());
    assert_eq!(memory.admit(&template(), &[], BACKOFF, at(62)), Err(at(122)));
}

#[test]
fn what_was_active_once_is_tried_again_soon() {
    let memory = Memory::new();
    memory.active(Some(&template()), &[artifact()]);
    for n in 0..9 {
        memory.failed(&template(), &format!("b{n}"), pod(n));
    }
    assert!(memory.admit(&template(), &[artifact()], BACKOFF, at(69)).is_ok());
    let other = Artifact { version: "2".into(), ..artifact() };
    assert!(memory.not_before(&template(), &[other], BACKOFF, at(100)).is_some());
}

#[test]
fn a_new_value_of_retry_resets_once() {
    let memory = Memory::new();
    for n in 0..4 {
        memory.failed(&template(), &format!("b{n}"), pod(n));
    }
    assert_eq!(memory.slowed(), 1);
    assert!(memory.retry(&template(), "now"));
    assert!(memory.admit(&template(), &[], BACKOFF, at(5)).is_ok());
    assert!(!memory.retry(&template(), "now"));
}

#[test]
fn the_newest_three_failed_pods_are_kept() {
    let memory = Memory::new();
    let mut dropped = Vec::new();
    for n in [5, 1, 4, 2, 3] {
        dropped.extend(memory.failed(&template(), "b", pod(n)).into_iter().map(|pod| pod.uid));
    }
    assert_eq!(dropped, ["u1", "u2"]);
    // Seen again after a restart of the watch: counted once.
    assert!(memory.failed(&template(), "b", pod(5)).is_empty());
}

#[test]
fn success_of_the_template_clears_its_failures() {
    let memory = Memory::new();
    for n in 0..4 {
        memory.failed(&template(), &format!("b{n}"), pod(n));
    }
    memory.active(Some(&template()), &[artifact()]);
    assert_eq!(memory.not_before(&template(), &[], BACKOFF, at(5)), None);
}
