use proptest::prelude::*;

use super::*;

fn version(text: &str) -> Version {
    Version::parse(text).unwrap()
}

fn range(text: &str) -> Range {
    Range::parse(text).unwrap()
}

#[track_caller]
fn ascending(versions: &[&str]) {
    for (at, low) in versions.iter().enumerate() {
        for high in &versions[at + 1..] {
            assert!(version(low) < version(high), "{low} < {high}");
            assert!(version(high) > version(low), "{high} > {low}");
        }
    }
}

#[track_caller]
fn equal(left: &str, right: &str) {
    assert_eq!(version(left), version(right));
    assert_eq!(version(right).cmp(&version(left)), Ordering::Equal);
}

#[test]
fn a_range_within_another() {
    let within = |a: &str, b: &str| Range::parse(a).unwrap().is_within(&Range::parse(b).unwrap());
    for (a, b) in [
        ("[1,2)", ">=1"),
        ("[1,2)", "[1,2]"),
        (">1", ">=1"),
        ("[1.5]", "[1,2)"),
        ("[1,2),[3,4)", ">=1 <4"),
        ("1.* >=1.5", "1.*"),
        ("[1,2)", "[1,2)"),
    ] {
        assert!(within(a, b), "{a} is within {b}");
    }
    let not =
        [(">=1", "[1,2)"), (">=1", ">1"), ("[1,2]", "[1,2)"), ("[1,2)", "1.*"), ("[1,2),[3,4)", "[1,2)")];
    for (a, b) in not {
        assert!(!within(a, b), "{a} is not surely within {b}");
    }
}

/// This and the next ones: the vectors that Maven publishes for its order of versions (3.9).
#[test]
fn published_qualifiers() {
    ascending(&[
        "1-alpha2snapshot",
        "1-alpha2",
        "1-alpha-123",
        "1-beta-2",
        "1-beta123",
        "1-m2",
        "1-m11",
        "1-rc",
        "1-cr2",
        "1-rc123",
        "1-SNAPSHOT",
        "1",
        "1-sp",
        "1-sp2",
        "1-sp123",
        "1-abc",
        "1-def",
        "1-pom-1",
        "1-1-snapshot",
        "1-1",
        "1-2",
        "1-123",
    ]);
}

#[test]
fn published_numbers() {
    ascending(&[
        "2.0", "2.0.a", "2-1", "2.0.2", "2.0.123", "2.1.0", "2.1-a", "2.1b", "2.1-c", "2.1-1", "2.1.0.1",
        "2.2", "2.123", "11.a2", "11.a11", "11.b2", "11.b11", "11.m2", "11.m11", "11", "11.a", "11b", "11c",
        "11m",
    ]);
}

#[test]
fn published_equals() {
    for (left, right) in [
        ("1", "1.0"),
        ("1", "1.0.0"),
        ("1.0", "1.0.0"),
        ("1", "1-0"),
        ("1", "1.0-0"),
        ("1.0", "1.0-0"),
        ("1a", "1-a"),
        ("1a", "1.a"),
        ("1a", "1.0-a"),
        ("1a", "1.0.0-a"),
        ("1.0a", "1-a"),
        ("1.0.0a", "1.0.0.a"),
        ("1x", "1-x"),
        ("1x", "1.0.0-x"),
        ("1ga", "1"),
        ("1release", "1"),
        ("1final", "1"),
        ("1cr", "1rc"),
        ("1a1", "1-alpha-1"),
        ("1b2", "1-beta-2"),
        ("1m3", "1-milestone-3"),
        ("1X", "1x"),
        ("1GA", "1"),
        ("1FinaL", "1"),
        ("1cR", "1Rc"),
        ("1m3", "1MileStone3"),
        ("0001", "1"),
        ("1.00", "1"),
        ("1-ABCXYZ", "1-abcxyz"),
    ] {
        equal(left, right);
    }
    for x in ["abc", "alpha", "a", "beta", "b", "def", "milestone", "m", "rc"] {
        ascending(&[&format!("1.0.0.{x}1"), &format!("1.0.0-{x}2")]);
        equal(&format!("2-{x}"), &format!("2.0.{x}"));
        equal(&format!("2-{x}"), &format!("2.0.0.{x}"));
    }
}

#[test]
fn published_comparisons() {
    for pair in [
        ["1", "2"],
        ["1.5", "2"],
        ["1", "2.5"],
        ["1.0", "1.1"],
        ["1.0.0", "1.1"],
        ["1.0.1", "1.1"],
        ["1.1", "1.2.0"],
        ["1.0-alpha-1", "1.0"],
        ["1.0-alpha-1", "1.0-alpha-2"],
        ["1.0-alpha-1", "1.0-beta-1"],
        ["1.0-beta-1", "1.0-SNAPSHOT"],
        ["1.0-SNAPSHOT", "1.0"],
        ["1.0-alpha-1-SNAPSHOT", "1.0-alpha-1"],
        ["1.0", "1.0-1"],
        ["1.0-1", "1.0-2"],
        ["1.0.0", "1.0-1"],
        ["2.0-1", "2.0.1"],
        ["2.0.1-klm", "2.0.1-lmn"],
        ["2.0.1", "2.0.1-xyz"],
        ["2.0.1", "2.0.1-123"],
        ["2.0.1-xyz", "2.0.1-123"],
        ["J", "7"],
        ["c", "7"],
        ["6.1.0rc3", "6.1.0"],
        ["6.1.0rc3", "6.1H.5-beta"],
        ["6.1.0", "6.1H.5-beta"],
        ["20190126.230843", "1234567890.12345"],
        ["1234567890.12345", "123456789012345.1H.5-beta"],
        ["123456789012345.1H.5-beta", "12345678901234567890.1H.5-beta"],
        ["1-0.alpha", "1-0.beta"],
        ["1-0.beta", "1"],
        ["1.0.final-redhat", "1.0-sp1-redhat"],
        ["1.0.final-redhat", "1.0-sp-1-redhat"],
        ["1.0.final-redhat", "1.0-sp.1-redhat"],
        ["2.2.9.RELEASE", "2.2.10"],
        ["99999999999999999999999", "100000000000000000000000"],
    ] {
        ascending(&pair);
    }
}

#[test]
fn parts_and_previews() {
    let v = version("2.7.15-SNAPSHOT");
    assert_eq!((v.part(0), v.part(1), v.part(2), v.part(3)), (Some(2), Some(7), Some(15), Some(0)));
    assert!(v.is_preview() && !version("2.7").is_preview());
    assert_eq!((version("2").part(1), version("beta").part(0)), (Some(0), None));
    assert_eq!(version("99999999999999999999999.1").part(0), None);
    assert_eq!(version("1.0.0").as_str(), "1.0.0", "the text stays as written");
}

#[test]
fn versions_that_are_none() {
    assert_eq!(Version::parse("").unwrap_err(), VersionError::Empty);
    assert_eq!(Version::parse("1 2").unwrap_err(), VersionError::Character(1));
    assert_eq!(Version::parse("1.0\u{0}").unwrap_err(), VersionError::Character(3));
    assert_eq!(Version::parse(&"1".repeat(129)).unwrap_err(), VersionError::TooLong(129));
}

#[test]
fn membership() {
    for (text, inside, outside) in [
        ("[1.0,2.0)", &["1", "1.9.9", "2.0-SNAPSHOT"][..], &["0.9", "2", "2.0.1"][..]),
        ("(1.0,2.0]", &["1.0.1", "2"], &["1", "2.0.1"]),
        ("[1.0]", &["1", "1.0.0"], &["1.0.1", "1-SNAPSHOT"]),
        ("(,1.0],[1.2,)", &["0.1", "1", "1.2", "9"], &["1.1"]),
        ("(,)", &["0", "9-SNAPSHOT"], &[]),
        ("*", &["0", "9"], &[]),
        (">=1.5 <2", &["1.5", "1.10", "2-SNAPSHOT"], &["1.4", "2"]),
        (">= 1.5, < 2", &["1.5"], &["2"]),
        (">=1.5<2", &["1.5"], &["2"]),
        (">1", &["1.0.1"], &["1.0"]),
        ("<=3", &["3.0"], &["3.0.1"]),
        ("1.*", &["1", "1.9", "1-SNAPSHOT", "1.5-rc1"], &["0.9", "2", "10"]),
        ("1.0.*", &["1", "1.0.7"], &["1.1"]),
        ("1.* >=1.5", &["1.5", "1.99"], &["1.4", "2.0"]),
        ("1.4.0", &["1.4", "1.4.0"], &["1.4.1"]),
        ("=1.4", &["1.4.0"], &["1.5"]),
        (" [17,) ", &["17", "21.0.2"], &["11.0.2", "8"]),
    ] {
        for v in inside {
            assert!(range(text).contains(&version(v)), "{v} in {text}");
        }
        for v in outside {
            assert!(!range(text).contains(&version(v)), "{v} not in {text}");
        }
    }
}

#[test]
fn ranges_that_are_none() {
    let wrong = |text: &str| Range::parse(text).unwrap_err().to_string();
    assert_eq!(wrong(" "), "a range must not be empty");
    assert_eq!(wrong("[1,2"), "expected `]` or `)` at position 4");
    assert_eq!(wrong("[1,2) x"), "expected `,` at position 6");
    assert_eq!(wrong("[1,2),"), "expected `[` or `(` at position 6");
    assert_eq!(wrong("(1)"), "expected `,` at position 2");
    assert_eq!(wrong("[]"), "expected a version at position 1");
    assert_eq!(wrong("[1,2,3]"), "expected a version at position 4");
    assert_eq!(wrong("[2,1]"), "no version is in this range (position 0)");
    assert_eq!(wrong(">2 <2"), "no version is in this range (position 0)");
    assert_eq!(wrong(">="), "expected a version at position 2");
    assert_eq!(wrong("a.*"), "expected numbers before `.*` at position 0");
    assert_eq!(wrong(">=1 =>2"), "expected a version at position 5");
    assert_eq!(wrong(&"1".repeat(257)), "a range has at most 256 bytes, this one has 257");
}

#[test]
fn previews_of_an_open_upper_bound() {
    let admitted = |text: &str| range(text).previews_admitted().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(admitted(">=2 <3"), ["3"]);
    assert_eq!(admitted("[2,3),[4,5)"), ["3", "5"]);
    assert!(admitted("[2,3]").is_empty() && admitted("<3-alpha").is_empty() && admitted("2.*").is_empty());
    assert!(range("<3").contains(&version("3.0-SNAPSHOT")));
}

#[test]
fn ranges_that_have_nothing_in_common() {
    for (a, b, expected) in [
        ("<2", ">=2", true),
        ("<=2", ">=2", false),
        ("[1,2)", "[2,3)", true),
        ("[1,2),[4,5)", "[2,3)", true),
        ("[1,2),[4,5)", "[2,4]", false),
        ("1.*", "2.*", true),
        ("1.*", "1.2.*", false),
        ("1.*", ">=2", true),
        ("1.*", ">=1.9", false),
        ("2.*", "<1.5", true),
        // 2-SNAPSHOT is inside of both.
        ("2.*", "<2", false),
        ("*", ">=1", false),
    ] {
        assert_eq!(range(a).is_disjoint(&range(b)), expected, "{a} {b}");
        assert_eq!(range(b).is_disjoint(&range(a)), expected, "{b} {a}");
    }
    assert!(range("1.* >=2").is_never() && range("1.* 2.*").is_never() && !range("1.* >=1.5").is_never());
}

fn any_version() -> impl Strategy<Value = String> {
    let word = prop_oneof!["[0-9]{0,3}", "(alpha|beta|rc|m|a|b|sp|ga|final|snapshot|x|redhat|H)", "0"];
    let separator = prop_oneof![Just("."), Just("-"), Just("")];
    (word.clone(), prop::collection::vec((separator, word), 0..6))
        .prop_map(|(first, rest)| rest.into_iter().fold(first, |text, (sep, word)| text + sep + &word))
        .prop_filter("not empty", |text| !text.is_empty())
}

fn any_range() -> impl Strategy<Value = String> {
    let v = any_version().boxed();
    prop_oneof![
        (v.clone(), v.clone()).prop_map(|(a, b)| format!("[{a},{b})")),
        (v.clone(), v.clone()).prop_map(|(a, b)| format!("(,{a}],({b},)")),
        (v.clone(), v.clone()).prop_map(|(a, b)| format!(">={a} <{b}")),
        v.clone().prop_map(|a| format!("[{a}]")),
        (0u64..30, 0u64..30).prop_map(|(a, b)| format!("{a}.{b}.*")),
        (0u64..30, v).prop_map(|(a, b)| format!("{a}.* >{b}")),
    ]
}

proptest! {
    #[test]
    fn the_order_is_total(a in any_version(), b in any_version(), c in any_version()) {
        let (a, b, c) = (version(&a), version(&b), version(&c));
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        if a <= b && b <= c {
            prop_assert!(a <= c, "{} <= {} <= {}", a, b, c);
        }
        if a == b {
            prop_assert_eq!(a.cmp(&c), b.cmp(&c));
        }
    }

    #[test]
    fn a_printed_range_reads_back(text in any_range(), probe in any_version()) {
        let Ok(read) = Range::parse(&text) else { return Ok(()) };
        let again = range(&read.to_string());
        prop_assert_eq!(&again, &read);
        prop_assert_eq!(again.contains(&version(&probe)), read.contains(&version(&probe)));
    }

    #[test]
    fn no_version_is_in_disjoint_ranges(a in any_range(), b in any_range(), probe in any_version()) {
        let (Ok(a), Ok(b)) = (Range::parse(&a), Range::parse(&b)) else { return Ok(()) };
        let probe = version(&probe);
        prop_assert!(!(a.is_never() && a.contains(&probe)));
        prop_assert!(!(a.is_disjoint(&b) && a.contains(&probe) && b.contains(&probe)), "{} {} {}", a, b, probe);
    }

    #[test]
    fn nothing_panics(text in "\\PC{0,80}", odd in "[\\[\\](),<>=.*0-9 ]{0,24}") {
        let _ = Version::parse(&text);
        let _ = Range::parse(&text);
        if let Ok(read) = Range::parse(&odd) {
            prop_assert_eq!(range(&read.to_string()), read);
        }
    }
}
