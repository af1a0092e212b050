//! docs/errors.md and the sources of the agent name the same codes.

use super::*;

/// Words in capitals that the agent's sources have as literals and that are no codes of ours: kinds, conditions, phases and
/// operators of Kubernetes, and what exceptions are recognised by.
const NO_CODES: &[&str] = &[
    "Always",
    "Bearer",
    "Brake",
    "ClusterAutoscaler",
    "ContainersReady",
    "DaemonSet",
    "DaemonSets",
    "Deployment",
    "Deployments",
    "DiskPressure",
    "DoesNotExist",
    "Equal",
    "Evicting",
    "Exists",
    "False",
    "Gate",
    "Gt",
    "Heal",
    "Hostname",
    "In",
    "Initialized",
    "InternalIP",
    "Job",
    "Killing",
    "Lease",
    "Leases",
    "Liveness",
    "Lt",
    "MemoryPressure",
    "Metaspace",
    "MetaspacePressure",
    "NetworkUnavailable",
    "NoExecute",
    "NoSchedule",
    "Node",
    "Nodes",
    "Normal",
    "NotIn",
    "PIDPressure",
    "Pending",
    "Pod",
    "PodScheduled",
    "Pods",
    "PreferNoSchedule",
    "Probing",
    "Readiness",
    "Ready",
    "Register",
    "Reload",
    "ReplicaSet",
    "Rules",
    "Running",
    "Scale",
    "Startup",
    "Succeeded",
    "True",
    "Warning",
];

/// A literal that may be a code: letters only, the first a capital.
fn is_code_like(literal: &str) -> bool {
    literal.len() > 1
        && literal.starts_with(|c: char| c.is_ascii_uppercase())
        && literal.chars().all(|c| c.is_ascii_alphanumeric())
        && literal.contains(|c: char| c.is_ascii_lowercase())
}

/// docs/errors.md tells every code of the agent, and no other.
#[test]
fn the_page_of_errors_tells_every_code() {
    let mut sources = Vec::new();
    files_below(&repository().join("node-agent/src"), "rs", &mut sources);
    let mut codes = BTreeSet::new();
    for path in sources {
        let told_elsewhere =
            path.iter().any(|part| part == "preflight" || part == "tests" || part == "fault.rs");
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if told_elsewhere || name.ends_with("tests") {
            continue;
        }
        let source = read(&path);
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let found = code.lines().flat_map(literals).filter(|literal| is_code_like(literal));
        codes.extend(found.filter(|literal| !NO_CODES.contains(literal)).map(str::to_owned));
    }
    // What arklet's exceptions are recognised by.
    codes.retain(|code| !code.ends_with("Exception") && !code.ends_with("Error") || code == "ClassError");
    let page = read(&repository().join("docs/errors.md"));
    let told: BTreeSet<_> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| is_code_like(code) && !NO_CODES.contains(code) && *code != "MaxMetaspaceSize")
        .map(str::to_owned)
        .collect();
    let untold: Vec<_> = codes.difference(&told).collect();
    let unknown: Vec<_> = told.difference(&codes).collect();
    assert!(untold.is_empty(), "docs/errors.md does not tell {untold:?}");
    assert!(unknown.is_empty(), "the agent has no {unknown:?}, which docs/errors.md tells");
}
