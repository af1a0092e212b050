use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::{
    BackoffPolicy, OperationsPolicy, OverloadMode, OverloadPolicy, Prefer, Reserved, ScoreTerm, Term,
    WithoutPlace,
};

const HEAD: &str = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n";
const OPERATIONS_HEAD: &str = "apiVersion: policy.stowage.dev/v1alpha1\nkind: OperationsPolicy\n";

#[track_caller]
fn loaded(text: &str) -> Loaded {
    load(text).unwrap_or_else(|problems| panic!("{}", shown(&problems).join("\n")))
}

fn shown(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn wrong(text: &str) -> Vec<String> {
    shown(&load(text).expect_err("a problem"))
}

fn placement(body: &str) -> String {
    format!("{HEAD}{body}")
}

fn operations(body: &str) -> String {
    format!("{OPERATIONS_HEAD}{body}")
}

#[test]
fn a_bare_document_holds_the_defaults() {
    assert_eq!(loaded(HEAD).policy, Policy::default());
    assert_eq!(loaded(OPERATIONS_HEAD).policy, Policy::default());
    assert_eq!(loaded(&format!("---\n{HEAD}---\n---\n{OPERATIONS_HEAD}")).policy, Policy::default());
}

#[test]
fn all_fields_of_a_placement_policy() {
    let policy = loaded(&placement(
        r#"
limits:
- bases: {stack: java, labels: {size: small}}
  podsPerBase: 1
- bases: {stack: java, version: ">=2.1", labels: {size: large}}
  podsPerBase: 8
  modulesPerBase: 24
  versionsPerModule: 1
  reserved: {cpu: 500m, memory: 1Gi, ephemeral-storage: 2Gi}
defaults: {podsPerBase: 2, modulesPerBase: 9, versionsPerModule: 3, reserved: {cpu: 1}}
access:
- bases: {labels: {team: shop}}
  namespaces: [shop, "shop-*"]
artifacts:
  allow: [{scheme: HTTPS, host: "Repo.example.com:8443"}, {scheme: oss}]
compatibility:
- module: payments
  versions: "[2.0,3.0]"
  requires:
    base: {stack: java, version: 2.10}
    provides: [{name: jdk, versions: ">=17"}, {name: hsf}]
    modules: [{name: ledger, versions: ">=1.5"}]
  conflicts:
    modules: [{name: "legacy-*"}]
scoring:
- {term: spread, weight: 3}
- {term: baseVersion, prefer: oldest}
filter: {decisive: true}
"#,
    ))
    .policy;
    assert_eq!(policy.limits.len(), 2);
    let large = &policy.limits[1];
    assert_eq!(large.bases.version.as_ref().map(ToString::to_string).as_deref(), Some("[2.1,)"));
    assert_eq!((large.values.pods_per_base, large.values.modules_per_base), (Some(8), Some(24)));
    let reserved = large.values.reserved.or(Reserved::default());
    assert_eq!(
        (reserved.cpu.milli(), reserved.memory.units(), reserved.ephemeral_storage.units()),
        (500, 1 << 30, 2 << 30)
    );
    assert_eq!((policy.defaults.pods_per_base, policy.defaults.modules_per_base), (2, Some(9)));
    assert_eq!((policy.defaults.versions_per_module, policy.defaults.reserved.cpu.milli()), (3, 1000));
    let artifacts = policy.artifacts.unwrap();
    assert_eq!((artifacts[0].scheme.as_str(), artifacts[0].port), ("https", Some(8443)));
    assert_eq!(artifacts[0].host.as_ref().map(ToString::to_string).as_deref(), Some("repo.example.com"));
    assert_eq!((artifacts[1].host.as_ref(), artifacts[1].port), (None, None));
    let entry = &policy.compatibility[0];
    let base = entry.base.as_ref().unwrap();
    assert_eq!(
        base.version.as_ref().map(ToString::to_string).as_deref(),
        Some("[2.10]"),
        "the text, not the number"
    );
    assert_eq!((entry.requirements.provides.len(), entry.requirements.modules.len()), (2, 1));
    assert!(entry.requirements.conflicts[0].name.matches("legacy-cart"));
    assert!(policy.access.unwrap()[0].namespaces[1].matches("shop-canary"));
    let terms = [(Term::Spread, 3), (Term::BaseVersion(Prefer::Oldest), 1)];
    assert_eq!(policy.scoring, terms.map(|(term, weight)| ScoreTerm { term, weight }));
    assert!(policy.decisive);
}

#[test]
fn all_supported_fields_of_an_operations_policy() {
    let policy = loaded(&operations(
        r"
paused: true
health: {interval: 20s, timeout: 3s, failuresBeforeNotReady: 5}
install:
  timeout: 10m
  attempts: 7
  backoff: {initial: 1s, max: 1m}
  templateBackoff: {initial: 2m, max: 20m}
  parallelPerBase: 4
  downloadsAtOnce: 0
  foreign: replace
  lethal: {restarts: 2, within: 30s}
gates: {loadBalancerLimit: 2m}
drain: {wait: 15s, forceAfter: 0s}
brake: {maxShareOfBases: 30%, maxShareOfModules: 10%, minModules: 5}
",
    ))
    .policy
    .operations;
    let seconds = Duration::from_secs;
    assert!(policy.paused);
    assert_eq!((policy.health.interval, policy.health.timeout), (seconds(20), seconds(3)));
    assert_eq!(policy.health.failures_before_not_ready, 5);
    assert_eq!((policy.install.timeout, policy.install.attempts), (seconds(600), 7));
    assert_eq!(policy.install.template_backoff, BackoffPolicy { initial: seconds(120), max: seconds(1200) });
    let lethal = policy.install.lethal;
    assert_eq!((lethal.restarts, lethal.within), (2, seconds(30)));
    assert_eq!(policy.gates.load_balancer_limit, Some(seconds(120)));
    assert_eq!((policy.install.parallel_per_base, policy.install.downloads_at_once), (4, 0));
    assert_eq!((policy.drain.wait, policy.drain.force_after), (seconds(15), Duration::ZERO));
    assert_eq!(
        (policy.brake.max_share_of_bases, policy.brake.max_share_of_modules, policy.brake.min_modules),
        (30, 10, 5)
    );
}

#[test]
fn every_error_at_once_with_its_place() {
    let text = placement(
        "limits:\n- podsPerBase: -1\n  wieght: 3\n- bases: {version: \"[1\"}\n  versionsPerModule: 0\nscoring: [{term: \
         sprad}]\naccess:\n- namespaces: x\nlimits: []\nfilter:\n",
    );
    assert_eq!(
        wrong(&text),
        [
            "4:16: limits[0].podsPerBase: expected an integer of at least 0 (`-1`)",
            "5:3: limits[0].wieght: unknown field, expected one of bases, podsPerBase, modulesPerBase, \
             versionsPerModule, reserved (`wieght`)",
            "6:20: limits[1].bases.version: not a range of versions: expected `]` or `)` at position 2 (`[1`)",
            "7:22: limits[1].versionsPerModule: expected an integer of at least 1 (`0`)",
            "8:18: scoring[0].term: expected one of spread, pack, hostSpread, metaspaceHeadroom, underThreshold, \
             zoneSpread, recentFailures, baseVersion, baseRevision (`sprad`)",
            "10:3: access[0]: the field `bases` is missing",
            "10:15: access[0].namespaces: expected a list (`x`)",
            "11:1: limits: this field stands here twice (`limits`)",
            "12:1: filter: this field has no value (`filter`)",
        ]
    );
}

#[test]
fn documents_must_say_what_they_are() {
    let missing = wrong("limits: []");
    assert_eq!(missing, ["1:1: the field `apiVersion` is missing", "1:1: the field `kind` is missing"]);
    let unknown = wrong("apiVersion: v1\nkind: ConfigMap\n");
    assert!(unknown[0].contains("expected policy.stowage.dev/v1alpha1 (`v1`)"), "{unknown:?}");
    assert!(
        unknown[1].contains("expected one of PlacementPolicy, OperationsPolicy (`ConfigMap`)"),
        "{unknown:?}"
    );
    for empty in ["", "# nothing\n", "---\n---\n", "null"] {
        assert_eq!(wrong(empty), ["1:1: the file holds no document"], "{empty:?}");
    }
    assert!(wrong("- a\n")[0].contains("expected an object"));
}

#[test]
fn what_may_stand_once() {
    let twice =
        format!("{HEAD}defaults: {{podsPerBase: 1}}\nscoring: []\n---\n{HEAD}defaults: {{}}\nscoring: []\n");
    assert_eq!(
        wrong(&twice),
        [
            "8:11: defaults: `defaults` may stand in one document only",
            "9:10: scoring: `scoring` may stand in one document only",
        ]
    );
    let second = format!("{OPERATIONS_HEAD}---\n{OPERATIONS_HEAD}paused: true\n");
    assert_eq!(wrong(&second), ["4:1: a second OperationsPolicy: there may be one"]);
    let joined = format!("{HEAD}limits: [{{podsPerBase: 3}}]\n---\n{HEAD}limits: [{{podsPerBase: 2}}]\n");
    assert_eq!(loaded(&joined).policy.limits.len(), 2);
}

#[test]
fn a_policy_may_spell_its_defaults() {
    let defaults = operations(
        "health: {evictSilentAfter: never}\ngates: {modulesReadyLimit: 10m, loadBalancerLimit: grace}\ninstall: \
         {lethal: {restarts: 3, within: 1m}}\noverload: {mode: active, metaspaceHighPercent: 90, cycles: 3, \
         evictionDeadline: 10m, maxBasesAtOnce: 1, withoutPlace: wait}\n",
    );
    assert_eq!(loaded(&defaults).policy.operations, OperationsPolicy::default());
}

#[test]
fn self_healing_is_read_as_it_is_written() {
    let text = "overload: {mode: dryRun, metaspaceHighPercent: 85, cycles: 5, evictionDeadline: 0, maxBasesAtOnce: 2, \
                withoutPlace: proceed}";
    let overload = OverloadPolicy {
        mode: OverloadMode::DryRun,
        metaspace_high_percent: 85,
        cycles: 5,
        eviction_deadline: Duration::ZERO,
        max_bases_at_once: 2,
        without_place: WithoutPlace::Proceed,
    };
    assert_eq!(loaded(&operations(text)).policy.operations.overload, overload);
    for (text, message) in [
        ("overload: {mode: off}", "expected one of"),
        ("overload: {metaspaceHighPercent: 101}", "101"),
        ("overload: {metaspaceHighPercent: 0}", "0"),
        ("overload: {cycles: 2}", "an integer from 3 to 1000"),
        ("overload: {cycles: 1001}", "1001"),
        ("overload: {maxBasesAtOnce: 0}", "an integer from 1 to 100"),
        ("overload: {maxBasesAtOnce: 101}", "3:28: overload.maxBasesAtOnce"),
        ("overload: {evictionDeadline: never}", "never"),
        ("overload: {withoutPlace: yes}", "expected one of"),
        ("overload: {deadline: 1m}", "unknown field"),
    ] {
        let problems = wrong(&operations(text)).join("; ");
        assert!(problems.contains(message), "{text}: {problems}");
    }
}

#[test]
fn scoring_terms_are_checked_together() {
    let message = |body: &str| wrong(&placement(&format!("scoring: {body}"))).join("; ");
    assert!(message("[{term: spread}, {term: pack}]").contains("contradict"));
    assert!(message("[{term: spread}, {term: spread}]").contains("twice"));
    assert!(message("[{term: spread, weight: 101}]").contains("an integer from 1 to 100"));
    assert!(message("[{term: spread, prefer: newest}]").contains("only the term baseVersion"));
    assert!(message("[{term: spread, podsPerAgent: 3}]").contains("only the term underThreshold"));
    assert!(message("[{term: underThreshold, podsPerAgent: 0}]").contains("an integer of at least 1"));
    assert!(loaded(&placement("scoring: []")).policy.scoring.is_empty());
}

#[test]
fn a_term_that_cannot_tell_yet_is_taken_with_a_warning() {
    let found = loaded(&placement(
        "access: [{bases: {}, namespaces: ['*']}]\nscoring: [{term: underThreshold, podsPerAgent: 5, weight: 2}, {term: spread}]",
    ));
    let terms = [(Term::UnderThreshold(5), 2), (Term::Spread, 1)];
    assert_eq!(found.policy.scoring, terms.map(|(term, weight)| ScoreTerm { term, weight }));
    assert_eq!(
        shown(&found.warnings),
        [
            "4:18: scoring[0].term: this term scores all bases alike, as they are not divided among agents (`underThreshold`)"
        ]
    );
    let bare = loaded(&placement("scoring: [{term: underThreshold}]")).policy.scoring;
    assert_eq!(bare, [ScoreTerm { term: Term::UnderThreshold(500), weight: 1 }]);
}

#[test]
fn yaml_habits_of_old_are_refused() {
    for word in ["yes", "no", "on", "off", "True", "'true'", "1"] {
        let text = operations(&format!("paused: {word}"));
        assert!(wrong(&text)[0].contains("expected true or false"), "{word}");
    }
    for number in ["'3'", "3.0", "0x3", "+3", "1_000", "4294967296", "[]"] {
        assert!(
            wrong(&operations(&format!("install: {{attempts: {number}}}")))[0]
                .contains("expected an integer"),
            "{number}"
        );
    }
    assert!(wrong(&placement("defaults: &a {}\nlimits: [*a]"))[0].contains("anchors and aliases"));
    assert!(wrong(&placement("defaults: !!map {}"))[0].contains("tags are not supported"));
    assert!(wrong(&placement("\tdefaults: {}"))[0].contains("not YAML"));
}

#[test]
fn operations_are_checked_across_fields() {
    let backoff = wrong(&operations("install: {backoff: {initial: 10m}}"));
    assert_eq!(backoff, ["3:20: install.backoff: `initial` is longer than `max`"]);
    assert!(wrong(&operations("health: {interval: 0s}"))[0].contains("more than 0"));
    assert!(wrong(&operations("health: {failuresBeforeNotReady: 1}"))[0].contains("at least 2"));
    assert!(wrong(&operations("brake: {maxShareOfBases: 101%}"))[0].contains("0% to 100%"));
    assert!(wrong(&operations("drain: {wait: 10}"))[0].contains("a duration such as 10s"));
}

#[test]
fn warnings_name_what_is_probably_not_meant() {
    let body = "limits:\n- podsPerBase: 2\n- bases: {stack: java}\n  podsPerBase: 4\n- bases: {stack: java}\n  \
                podsPerBase: 1\ncompatibility:\n- module: a\n  versions: <3\n";
    assert_eq!(
        shown(&loaded(&placement(body)).warnings),
        [
            "1:1: without `access` every namespace may use every base",
            "5:3: limits[1]: this entry can never matter: others are always as strict",
            "10:3: compatibility[0]: this entry asks for nothing",
            "11:13: compatibility[0].versions: the range admits 3-SNAPSHOT, as in Maven (`<3`)",
        ]
    );
    let quiet =
        placement("access: [{bases: {}, namespaces: ['*']}]\nlimits: [{podsPerBase: 2}, {podsPerBase: 2}]");
    let warnings = loaded(&quiet).warnings;
    assert_eq!(warnings.len(), 1, "of two equal entries one is superfluous: {warnings:?}");
}

#[test]
fn hosts_of_artifacts() {
    let host =
        |text: &str| load(&placement(&format!("artifacts: {{allow: [{{scheme: https, host: '{text}'}}]}}")));
    for good in ["repo", "*.example.com", "repo:8443", "[::1]", "[::1]:80", "10.0.0.1"] {
        assert!(host(good).is_ok(), "{good}");
    }
    for bad in ["https://repo", "repo/x", "u@repo", "repo:port", "repo:99999", "a b", "::1"] {
        assert!(host(bad).is_err(), "{bad}");
    }
}

#[test]
fn size_and_depth_are_bounded() {
    assert!(wrong(&" ".repeat(LONGEST + 1))[0].contains("more than 1048576"));
    let deep = placement(&format!("limits: {}{}", "[".repeat(60), "]".repeat(60)));
    assert!(wrong(&deep)[0].contains("nested more than 32 deep"));
    let wide = placement(&format!("limits: [{}]", "0,".repeat(150_000)));
    assert!(wrong(&wide)[0].contains("more than 100000 values"));
}

#[test]
fn keys_are_cut_wherever_a_problem_shows_them() {
    let key = format!("{}\u{7}", "k".repeat(900));
    let quoted = serde_json::to_string(&key).unwrap();
    for text in [
        placement(&format!("limits: [{{bases: {{labels: {{{quoted}: []}}}}}}]")),
        placement(&format!("limits: [{{bases: {{{quoted}: 1}}}}]")),
        placement(&format!("{quoted}: 1")),
    ] {
        let problems = load(&text).unwrap_err();
        assert!(problems[0].path.contains("kkk"), "{problems:?}");
        let bad =
            |problem: &Problem| problem.path.len() > 120 || problem.to_string().chars().any(char::is_control);
        assert!(!problems.iter().any(bad), "{problems:?}");
    }
}

/// Fragments that a policy may be made of, for odd mixtures.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "limits",
        "podsPerBase",
        "bases",
        "scoring",
        "term",
        ": ",
        ":\n  ",
        "\n- ",
        "\n",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "spread",
        "1",
        "-1",
        "'",
        "\"",
        "&a ",
        "*a",
        "!!str ",
        "%",
        "10s",
        ">=1 <2",
        "#",
        "---\n",
        "...",
        "|\n  x",
        "? ",
        "\t",
        "é",
        "null",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn nothing_panics_and_places_are_real(body in soup(), any in "\\PC{0,100}", headed in any::<bool>()) {
        for text in [if headed { placement(&body) } else { body.clone() }, operations(&body), any] {
            let problems = match load(&text) {
                Ok(loaded) => loaded.warnings,
                Err(problems) => {
                    prop_assert!(!problems.is_empty());
                    problems
                }
            };
            for problem in problems {
                prop_assert!(problem.line >= 1 && problem.line <= text.lines().count() + 1, "{}", problem);
                prop_assert!(problem.column >= 1 && problem.text.chars().count() <= 80);
            }
        }
    }
}
