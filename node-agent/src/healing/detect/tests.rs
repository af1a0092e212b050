use std::fmt::Write;
use std::path::Path;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { high_percent: 90, cycles: 3 };
const MIB: u64 = 1 << 20;

/// The verdicts along a recorded curve, one line for each change: the line of the curve and the verdict.
///
/// Lines of a curve: `use <bytes> of <bytes> unloaded <classes>`, `install`, `uninstall`, `oom`, `restart`, `# ...`.
fn verdicts(curve: &str) -> String {
    let (mut detector, mut told, mut before) = (Detector::default(), String::new(), Load::Unknown);
    for (number, line) in curve.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["use", used, "of", max, "unloaded", unloaded] => detector.sample(Sample {
                used: used.parse().expect("bytes"),
                max: max.parse().ok(),
                unloaded: unloaded.parse().ok(),
            }),
            ["install"] => detector.installed(),
            ["uninstall"] => detector.uninstalled(),
            ["oom"] => detector.exhausted(),
            ["restart"] => detector.restarted(),
            ["#", ..] | [] => {}
            _ => panic!("line {}: {line}", number + 1),
        }
        let now = detector.load(LIMITS);
        if now != before {
            writeln!(told, "{}: {now:?}", number + 1).expect("a String takes everything");
            before = now;
        }
    }
    told
}

/// BL-093: beside each `<name>.curve` stands `<name>.expected`; `STOWAGE_UPDATE_GOLDEN=1` writes it anew.
#[test]
fn recorded_curves_have_their_verdicts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/healing/curves");
    let update = std::env::var_os("STOWAGE_UPDATE_GOLDEN").is_some();
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("curves") {
        let curve = entry.expect("entry").path();
        if curve.extension().is_none_or(|extension| extension != "curve") {
            continue;
        }
        seen += 1;
        let told = verdicts(&std::fs::read_to_string(&curve).expect("curve"));
        let expected = curve.with_extension("expected");
        if update {
            std::fs::write(&expected, &told).expect("written");
        }
        assert_eq!(told, std::fs::read_to_string(&expected).expect("expected"), "{}", curve.display());
    }
    assert!(seen >= 9, "{seen} curves");
}

/// A JVM that collects when it must, as one with a maximum of metaspace does.
struct Jvm {
    max: u64,
    live: u64,
    garbage: u64,
    unloaded: i64,
    collects_at: u64,
}

impl Jvm {
    fn sample(&self) -> Sample {
        Sample { used: self.live + self.garbage, max: Some(self.max), unloaded: Some(self.unloaded) }
    }

    /// Whether there is room for it.
    fn load(&mut self, bytes: u64) -> bool {
        if self.live + self.garbage + bytes > self.max / 100 * self.collects_at {
            self.collect();
        }
        self.live += bytes;
        self.live + self.garbage <= self.max
    }

    fn release(&mut self, bytes: u64, leaked: u64) {
        self.live -= bytes - leaked;
        self.garbage += bytes - leaked;
    }

    fn collect(&mut self) {
        self.unloaded += i64::try_from(self.garbage / 4_096).expect("small");
        self.garbage = 0;
    }
}

proptest! {
    /// A healthy JVM is left alone, however high it climbs between collections, whenever it is looked at, and
    /// whenever else it collects.
    #[test]
    fn a_healthy_jvm_is_never_overloaded(
        base in 10_u64..70,
        module in 1_u64..16,
        collects_at in 90_u64..98,
        steps in proptest::collection::vec((0_u8..8, 1_usize..3), 1..400),
    ) {
        let mut jvm = Jvm { max: 100 * MIB, live: base * MIB, garbage: 0, unloaded: 0, collects_at };
        let mut detector = Detector::default();
        let mut inside = 0;
        for (step, count) in steps {
            match step {
                0..3 if inside == 0 => for _ in 0..count.min(1) {
                    prop_assert!(jvm.load(module * MIB));
                    detector.installed();
                    inside += 1;
                },
                3..6 => while inside > 0 {
                    jvm.release(module * MIB, 0);
                    detector.uninstalled();
                    inside -= 1;
                },
                6 if count == 2 => jvm.collect(),
                _ => detector.sample(jvm.sample()),
            }
            prop_assert!(!matches!(detector.load(LIMITS), Load::Overloaded(_)), "{detector:?}");
        }
    }

    /// One that keeps a part of every module is found at the latest when it is full.
    #[test]
    fn a_leak_is_found(module in 2_u64..10, leaked_percent in 30_u64..=100, base in 20_u64..60) {
        let mut jvm = Jvm { max: 100 * MIB, live: base * MIB, garbage: 0, unloaded: 0, collects_at: 97 };
        let mut detector = Detector::default();
        let mut found = None;
        for cycle in 0..2_000 {
            if !jvm.load(module * MIB) {
                detector.exhausted();
            }
            detector.installed();
            detector.sample(jvm.sample());
            jvm.release(module * MIB, module * MIB * leaked_percent / 100);
            detector.uninstalled();
            detector.sample(jvm.sample());
            if let Load::Overloaded(cause) = detector.load(LIMITS) {
                prop_assert!(jvm.live > 85 * MIB, "too soon, after {cycle} cycles");
                found = Some(cause);
                break;
            }
        }
        prop_assert!(found.is_some());
    }

    /// Without operations figures prove nothing, whatever they are.
    #[test]
    fn an_idle_base_is_never_overloaded(figures in proptest::collection::vec((0_u64..=100, 0_i64..1_000), 0..200)) {
        let mut detector = Detector::default();
        for (used, unloaded) in figures {
            detector.sample(Sample { used, max: Some(100), unloaded: Some(unloaded) });
            prop_assert!(!matches!(detector.load(LIMITS), Load::Overloaded(_)));
        }
    }
}

#[test]
fn fewer_cycles_than_the_policy_asks_for_prove_nothing() {
    let mut detector = Detector::default();
    for cycle in 0..5_i64 {
        detector.installed();
        detector.uninstalled();
        for unloaded in [2 * cycle, 2 * cycle + 1] {
            detector.sample(Sample { used: 95, max: Some(100), unloaded: Some(unloaded) });
        }
        for cycles in 3..=6 {
            let enough = i64::from(cycles) <= cycle + 1;
            let load = detector.load(Limits { high_percent: 90, cycles });
            assert_eq!(load != Load::Unknown, enough, "{cycles} wanted, {} seen", cycle + 1);
        }
    }
    assert_eq!(detector.load(Limits { high_percent: 96, cycles: 3 }), Load::Fine, "another limit");
}
