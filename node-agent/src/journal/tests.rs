use super::*;

const SMALL: Limits = Limits { vpod: 1_000, all: 4_000 };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("time")
}

fn vpod(name: &str, uid: &str) -> VPod {
    let text = |text: &str| text.to_owned();
    VPod { uid: text(uid), namespace: text("shop"), name: text(name), node: text("virtual-node-a") }
}

fn opened(limits: Limits, names: &[&str]) -> Journal {
    let journal = Journal::limited(limits);
    for name in names {
        let containers = ["shop", "cart"].map(str::to_owned).into_iter();
        assert!(journal.open(&vpod(name, &format!("uid-{name}")), containers));
    }
    journal
}

fn texts(reading: &Reading) -> Vec<&str> {
    reading.lines.iter().map(|line| &*line.text).collect()
}

fn current(journal: &Journal, uid: &str, container: &str) -> Vec<String> {
    let reading = journal.read(uid, container, Run::Current, 0).expect("a ring");
    texts(&reading).into_iter().map(str::to_owned).collect()
}

#[test]
fn each_container_has_its_lines_and_those_of_the_vpod() {
    let journal = opened(SMALL, &["a"]);
    journal.note("uid-a", Some("shop"), 0, at(1), "shop is installed");
    journal.note("uid-a", Some("cart"), 0, at(2), "cart is installed");
    journal.note("uid-a", None, 0, at(3), "the base is silent");
    journal.note("uid-a", Some("other"), 0, at(4), "no such container");
    journal.note("uid-b", None, 0, at(5), "no such VPod");
    assert_eq!(current(&journal, "uid-a", "shop"), ["shop is installed", "the base is silent"]);
    assert_eq!(current(&journal, "uid-a", "cart"), ["cart is installed", "the base is silent"]);
    assert_eq!(journal.read("uid-b", "shop", Run::Current, 0), None);
    let found = journal.find("shop", "a").expect("it is there");
    assert_eq!((found.vpod.node.as_str(), found.containers.len()), ("virtual-node-a", 2));
    assert_eq!(journal.find("other", "a"), None);
    assert!(!journal.open(&vpod("a", "uid-a"), std::iter::empty()), "it goes on");
    assert_eq!(current(&journal, "uid-a", "shop").len(), 2);
}

#[test]
fn runs_are_told_apart() {
    let journal = opened(SMALL, &["a"]);
    journal.note("uid-a", None, 0, at(0), "bound");
    journal.note("uid-a", Some("shop"), 0, at(1), "first");
    assert_eq!(journal.read("uid-a", "shop", Run::Previous, 0), None, "there was none before");
    journal.note("uid-a", Some("shop"), 1, at(2), "second");
    journal.note("uid-a", Some("cart"), 0, at(3), "another container");
    journal.note("uid-a", Some("shop"), 1, at(4), "more");
    assert_eq!(current(&journal, "uid-a", "shop"), ["second", "more"]);
    let before = journal.read("uid-a", "shop", Run::Previous, 0).expect("a run");
    assert_eq!(texts(&before), ["bound", "first"]);
    journal.note("uid-a", Some("shop"), 2, at(5), "third");
    let before = journal.read("uid-a", "shop", Run::Previous, 0).expect("a run");
    assert_eq!(texts(&before), ["second", "more"]);
    assert_eq!(current(&journal, "uid-a", "cart"), ["bound", "another container"]);
}

#[test]
fn a_vpod_that_talks_much_keeps_its_newest_lines() {
    let journal = opened(SMALL, &["a"]);
    for number in 0..10_000 {
        journal.note("uid-a", Some("shop"), 0, at(number), &format!("line {number} {}", "x".repeat(5_000)));
    }
    let reading = journal.read("uid-a", "shop", Run::Current, 0).expect("a ring");
    assert!(reading.lines.iter().map(|line| line.text.len()).sum::<usize>() <= SMALL.vpod);
    assert!(reading.gap && reading.next == 10_000);
    assert!(reading.lines.last().is_some_and(|line| line.text.starts_with("line 9999 ")));
    assert!(reading.lines.iter().all(|line| line.text.len() <= 512), "lines are cut");
}

#[test]
fn all_together_are_bounded_and_the_quiet_keep_theirs() {
    let names: Vec<String> = (0..20).map(|number| format!("p{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let journal = opened(SMALL, &names);
    journal.note("uid-p0", Some("shop"), 0, at(0), "quiet");
    for number in 0..2_000 {
        let talker = format!("uid-p{}", 1 + number % 19);
        journal.note(&talker, Some("shop"), 0, at(number), "much is said here again and again");
        let bytes = journal.shared.as_ref().expect("on").store().bytes();
        assert!(bytes <= SMALL.all, "{bytes} bytes");
    }
    assert_eq!(current(&journal, "uid-p0", "shop"), ["quiet"]);
    for name in &names {
        journal.close(&format!("uid-{name}"));
    }
    assert_eq!(journal.shared.as_ref().expect("on").store().bytes(), 0, "what is gone costs nothing");
}

#[test]
fn no_line_carries_credentials_or_more_than_one_line() {
    let journal = opened(SMALL, &["a"]);
    journal.note("uid-a", None, 0, at(0), "from https://me:secret@repo/a.jar?token=secret\nsecond\u{7}");
    assert_eq!(current(&journal, "uid-a", "shop"), ["from https://repo/a.jar"]);
}

#[tokio::test]
async fn followers_read_the_last_line_of_a_vpod_that_is_gone() {
    let journal = opened(SMALL, &["a"]);
    let mut changes = journal.changes("uid-a").expect("it is there");
    let first = journal.read("uid-a", "shop", Run::Current, 0).expect("a ring");
    journal.note("uid-a", None, 0, at(1), "uninstalled");
    journal.close("uid-a");
    journal.note("uid-a", None, 0, at(2), "too late");
    changes.changed().await.expect("something is new");
    let last = journal.read("uid-a", "shop", Run::Current, first.next).expect("kept for its reader");
    assert_eq!((texts(&last), last.closed), (vec!["uninstalled"], true));
    assert_eq!(journal.find("shop", "a"), None, "for nobody else");
    drop(changes);
    journal.close("any other");
    assert_eq!(journal.read("uid-a", "shop", Run::Current, 0), None);
}

#[test]
fn a_successor_of_the_same_name_begins_anew() {
    let journal = opened(SMALL, &["a"]);
    journal.note("uid-a", None, 0, at(1), "old");
    assert!(journal.open(&vpod("a", "uid-2"), ["shop".to_owned()].into_iter()));
    assert_eq!(journal.find("shop", "a").map(|found| found.vpod.uid), Some("uid-2".to_owned()));
    journal.close("uid-a");
    assert!(journal.find("shop", "a").is_some(), "the end of the old one takes nothing from the new");
    assert_eq!(current(&journal, "uid-2", "shop"), Vec::<String>::new());
}

#[test]
fn one_that_is_off_keeps_nothing() {
    let journal = Journal::default();
    assert!(!journal.open(&vpod("a", "u"), std::iter::empty()));
    journal.note("u", None, 0, at(1), "text");
    assert!(journal.find("shop", "a").is_none() && journal.changes("u").is_none() && !journal.is_on());
}
