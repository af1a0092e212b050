//! The rights that the agent needs, as its roles give them.

/// Which of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Modules,
    Bases,
}

/// Verbs on one resource.
#[derive(Debug)]
pub(super) struct Right {
    pub(super) side: Side,
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    pub(super) subresource: &'static str,
    /// `None`: every namespace, or none at all.
    pub(super) namespace: Option<&'static str>,
    pub(super) verbs: &'static [&'static str],
}

const fn right(
    side: Side,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    namespace: Option<&'static str>,
    verbs: &'static [&'static str],
) -> Right {
    Right { side, group, resource, subresource, namespace, verbs }
}

const READ: &[&str] = &["get", "list", "watch"];
const FOLLOW: &[&str] = &["list", "watch"];
const LEASES: &str = "coordination.k8s.io";

/// All of them; docs/rbac.md says what each is for.
pub(super) const NEEDED: &[Right] = &[
    right(Side::Modules, "", "nodes", "", None, &["get", "list", "watch", "create", "patch", "delete"]),
    right(Side::Modules, "", "nodes", "status", None, &["patch"]),
    right(
        Side::Modules,
        LEASES,
        "leases",
        "",
        Some("kube-node-lease"),
        &["get", "create", "update", "patch", "delete"],
    ),
    right(Side::Modules, LEASES, "leases", "", Some("stowage-system"), &["create"]),
    right(Side::Modules, "", "pods", "", None, &["get", "list", "watch", "delete"]),
    right(Side::Modules, "", "pods", "status", None, &["patch"]),
    right(Side::Modules, "", "pods", "eviction", None, &["create"]),
    right(Side::Modules, "events.k8s.io", "events", "", None, &["create", "patch"]),
    right(Side::Modules, "", "namespaces", "", None, READ),
    right(Side::Modules, "", "configmaps", "", None, &["get"]),
    right(Side::Modules, "apps", "daemonsets", "", None, READ),
    right(Side::Modules, "apps", "deployments", "", None, READ),
    right(Side::Modules, "apps", "deployments", "scale", None, &["patch"]),
    right(Side::Modules, "apps", "replicasets", "", None, &["get"]),
    right(Side::Modules, "autoscaling", "horizontalpodautoscalers", "", None, &["list"]),
    right(Side::Modules, "discovery.k8s.io", "endpointslices", "", None, FOLLOW),
    right(Side::Bases, "", "pods", "", None, READ),
    right(Side::Bases, "", "pods", "status", None, &["patch"]),
    right(Side::Bases, "", "pods", "eviction", None, &["create"]),
];

impl Right {
    /// `verb resource (where)`.
    pub(super) fn text(&self, verb: &str) -> String {
        let Self { side, group, resource, subresource, namespace, verbs: _ } = self;
        let mut text = format!("{verb} {resource}");
        for (mark, part) in [('/', subresource), ('.', group)] {
            if !part.is_empty() {
                text.push(mark);
                text.push_str(part);
            }
        }
        match (side, namespace) {
            (Side::Modules, None) => text,
            (Side::Modules, Some(namespace)) => format!("{text} in {namespace}"),
            (Side::Bases, _) => format!("{text} of the base cluster"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page is checked against the roles elsewhere; this list is checked against the page.
    #[test]
    fn every_right_stands_on_the_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rbac.md");
        let page = std::fs::read_to_string(page).expect("docs/rbac.md");
        let rows: Vec<Vec<&str>> = page
            .lines()
            .filter(|line| line.starts_with("| "))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        for right in NEEDED {
            let mut name = right.resource.to_owned();
            if !right.group.is_empty() {
                name = format!("{name}.{}", right.group);
            }
            if !right.subresource.is_empty() {
                name = format!("{name}/{}", right.subresource);
            }
            let granted: Vec<&str> = rows
                .iter()
                .filter(|row| row.first().is_some_and(|cell| cell.split(", ").any(|found| found == name)))
                .filter(|row| right.namespace.is_none_or(|namespace| row.get(1) == Some(&namespace)))
                .filter_map(|row| row.get(2))
                .flat_map(|verbs| verbs.split(", "))
                .collect();
            for verb in right.verbs {
                assert!(granted.contains(verb), "{}: {granted:?}", right.text(verb));
            }
        }
    }
}
