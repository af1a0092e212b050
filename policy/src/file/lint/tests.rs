use crate::file::load;

/// Warnings of a policy with `access` for all, as `path: message`.
fn warnings(body: &str) -> Vec<String> {
    let access = if body.contains("access:") { "" } else { "access: [{bases: {}, namespaces: ['*']}]\n" };
    let text = format!("apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n{access}{body}");
    let loaded = load(&text).unwrap_or_else(|problems| panic!("{problems:?}"));
    loaded.warnings.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
}

#[track_caller]
fn warned(body: &str, expected: &[&str]) {
    assert_eq!(warnings(body), expected, "{body}");
}

#[test]
fn entries_of_access() {
    warned(
        "access: [{bases: {}, namespaces: [shop, 'shop-*', pay]}, {bases: {stack: java}, namespaces: ['pay-*']}]",
        &[],
    );
    warned("access: []", &[": `access` names no namespace, so no base takes a module"]);
    warned(
        "access: [{bases: {}, namespaces: [Shop, 'a_*', '-x']}, {bases: {}, namespaces: []}]",
        &[
            "access[0]: `Shop` can never match: no namespace can have such a name",
            "access[0]: `a_*` can never match: no namespace can have such a name",
            "access[0]: `-x` can never match: no namespace can have such a name",
            "access[1]: this entry can never match: it names no namespace",
        ],
    );
    warned(
        "access: [{bases: {labels: {team: shop}}, namespaces: [shop]}, {bases: {}, namespaces: ['*']}]",
        &["access[0]: this entry can never matter: access[1] admits the same"],
    );
    warned(
        "access: [{bases: {}, namespaces: [a]}, {bases: {}, namespaces: [a]}]",
        &["access[1]: this entry can never matter: access[0] admits the same"],
    );
}

#[test]
fn sources_of_artifacts() {
    warned("artifacts: {allow: [{scheme: https, host: a}, {scheme: http, host: a}, {scheme: file}]}", &[]);
    warned(
        "artifacts: {allow: []}",
        &[": `artifacts.allow` names nothing, so no module may come from anywhere"],
    );
    warned(
        "artifacts: {allow: [{scheme: file, host: repo}]}",
        &["artifacts.allow[0]: this entry can never match: a `file` URL has no host"],
    );
    warned(
        "artifacts: {allow: [{scheme: https, host: '*.example.com:8443'}, {scheme: https}]}",
        &["artifacts.allow[0]: this entry can never matter: artifacts.allow[1] allows the same"],
    );
    // It may be the name of a link-local address, which no `*` reaches.
    warned("artifacts: {allow: [{scheme: https, host: 169.254.1.1}, {scheme: https}]}", &[]);
}

#[test]
fn limits() {
    warned("limits: [{podsPerBase: 4, modulesPerBase: 4}]", &[]);
    warned(
        "limits: [{podsPerBase: 8, modulesPerBase: 4}]",
        &[
            "limits[0]: `podsPerBase` can never be reached: each of 8 Pods has a module, but only 4 modules fit",
        ],
    );
}

#[test]
fn ranges_without_versions() {
    warned(
        "limits: [{bases: {version: '1.* >=2'}, podsPerBase: 3}]",
        &["limits[0].bases.version: no version is in this range, so nothing ever matches"],
    );
}

#[test]
fn entries_of_compatibility_by_themselves() {
    warned(
        "compatibility: [{module: a, requires: {modules: [{name: b}]}, conflicts: {modules: [{name: 'c-*'}]}}]",
        &[],
    );
    warned(
        "compatibility: [{module: a, requires: {modules: [{name: a}]}}]",
        &["compatibility[0]: `a` always holds: the module itself is meant"],
    );
    warned(
        "compatibility: [{module: a, conflicts: {modules: [{name: a}]}}]",
        &["compatibility[0]: `a` can never match: a module does not conflict with its own name"],
    );
    warned(
        "compatibility: [{module: a, requires: {modules: [{name: b, versions: '1.*'}]}, conflicts: {modules: [{name: 'b*'}]}}]",
        &["compatibility[0]: requires `b` and conflicts with it, so these modules fit nowhere"],
    );
    // Other versions than the required ones are no contradiction.
    warned(
        "compatibility: [{module: a, requires: {modules: [{name: b, versions: '[1]'}]}, conflicts: {modules: [{name: b, versions: '[2]'}]}}]",
        &[],
    );
    warned(
        "compatibility: [{module: a, requires: {provides: [{name: jdk, versions: '[8]'}, {name: jdk, versions: '[17,)'}]}}]",
        &["compatibility[0]: two ranges of `jdk` have no version in common"],
    );
}

#[test]
fn entries_of_compatibility_together() {
    let pair =
        |a: &str, b: &str| warnings(&format!("compatibility: [{{module: a, {a}}}, {{module: '*', {b}}}]"));
    let fine: [&str; 0] = [];
    assert_eq!(pair("requires: {base: {version: '2.*'}}", "requires: {base: {version: '>=2.1'}}"), fine);
    assert_eq!(
        pair("requires: {base: {version: '1.*'}}", "requires: {base: {version: '>=2'}}"),
        [
            "compatibility[0]: contradicts compatibility[1], so these modules fit nowhere: the ranges of base versions have no version in common"
        ]
    );
    assert_eq!(
        pair("requires: {base: {stack: java}}", "requires: {base: {stack: nodejs}}"),
        [
            "compatibility[0]: contradicts compatibility[1], so these modules fit nowhere: no base has the stacks `java` and `nodejs`"
        ]
    );
    assert_eq!(
        pair("requires: {base: {labels: {size: small}}}", "requires: {base: {labels: {size: large}}}"),
        [
            "compatibility[0]: contradicts compatibility[1], so these modules fit nowhere: no base has two values of the label `size`"
        ]
    );
    assert_eq!(
        pair("requires: {modules: [{name: b}]}", "conflicts: {modules: [{name: b}]}"),
        [
            "compatibility[0]: contradicts compatibility[1], so these modules fit nowhere: `b` is required and a conflict"
        ]
    );
    warned(
        "compatibility: [{module: a, versions: '1.*', requires: {base: {version: '[1]'}}}, {module: a, versions: '2.*', requires: {base: {version: '[2]'}}}]",
        &[],
    );
    warned(
        "compatibility: [{module: a, requires: {modules: [{name: b}]}}, {module: b, conflicts: {modules: [{name: 'a*'}]}}]",
        &["compatibility[0]: contradicts compatibility[1], by which `b` does not bear these modules"],
    );
    warned(
        "compatibility: [{module: a, requires: {modules: [{name: b}]}}, {module: a, requires: {modules: [{name: b}]}}]",
        &["compatibility[1]: this entry can never matter: it stands here twice"],
    );
}

/// Errors of a policy with these entries, as `path: message`.
fn errors(entries: &str) -> Vec<String> {
    let text =
        format!("apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ncompatibility: [{entries}]");
    let problems = load(&text).err().unwrap_or_default();
    problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
}

#[test]
fn modules_that_require_each_other_in_a_circle_are_an_error() {
    let entry = |module: &str, needs: &str| format!("{{module: {module}, requires: {{modules: [{needs}]}}}}");
    let (a, b) = (entry("a", "{name: b}"), entry("b", "{name: a}"));
    assert_eq!(
        errors(&format!("{a}, {b}")),
        [
            "compatibility[0]: a circle, so none of these modules can be the first: compatibility[0] requires `b`, compatibility[1] requires `a`"
        ]
    );
    let three =
        [entry("x", "{name: a}"), a.clone(), entry("b", "{name: c}, {name: d}"), entry("c", "{name: a}")];
    assert_eq!(
        errors(&three.join(", ")),
        [
            "compatibility[1]: a circle, so none of these modules can be the first: compatibility[1] requires `b`, compatibility[2] requires `c`, compatibility[3] requires `a`"
        ],
        "x depends on the circle and is not in it"
    );
    let versions = format!(
        "{}, {{module: b, versions: '>=1', requires: {{modules: [{{name: a}}]}}}}",
        entry("a", "{name: b, versions: '[2,3)'}")
    );
    assert_eq!(errors(&versions).len(), 1, "every required b requires a");
    let globs = format!("{}, {}", entry("'shop-*'", "{name: ledger}"), entry("ledger", "{name: shop-web}"));
    assert_eq!(errors(&globs).len(), 1);
}

#[test]
fn what_only_looks_like_a_circle_is_none() {
    let fine: [&str; 0] = [];
    let entry = |module: &str, versions: &str, need: &str| {
        format!("{{module: {module}, versions: '{versions}', requires: {{modules: [{need}]}}}}")
    };
    let some = format!("{}, {}", entry("a", ">=1", "{name: b}"), entry("b", ">=2", "{name: a}"));
    assert_eq!(errors(&some), fine, "b 1 requires nothing");
    let chain =
        format!("{}, {}", entry("a", ">=2", "{name: b}"), entry("b", ">=1", "{name: a, versions: '<2'}"));
    assert_eq!(errors(&chain), fine, "an older a is enough");
    let itself = "{module: 'shop-*', requires: {modules: [{name: shop-core}]}}, {module: shop-core, requires: {modules: [{name: 'shop-*'}]}}";
    assert_eq!(errors(itself), fine, "shop-core fulfils both needs itself");
}
