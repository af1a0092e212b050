//! The rights that the agent needs, as its roles give them.

use crate::lease::node::NAMESPACE as NODE_LEASES;

/// Which of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Modules,
    Bases,
}

/// Where a right is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In every namespace, or of a resource that has none.
    Everywhere,
    /// In this namespace.
    Named(&'static str),
    /// In the namespace of the agents' own Lease.
    Own,
}

impl Place {
    /// The namespace, where it is one.
    pub(super) fn namespace(self, own: &str) -> Option<&str> {
        match self {
            Self::Everywhere => None,
            Self::Named(namespace) => Some(namespace),
            Self::Own => Some(own),
        }
    }
}

/// Verbs on one resource.
#[derive(Debug)]
pub(super) struct Right {
    pub(super) side: Side,
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    pub(super) subresource: &'static str,
    pub(super) place: Place,
    pub(super) verbs: &'static [&'static str],
}

const fn right(
    side: Side,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    place: Place,
    verbs: &'static [&'static str],
) -> Right {
    Right { side, group, resource, subresource, place, verbs }
}

const READ: &[&str] = &["get", "list", "watch"];
const FOLLOW: &[&str] = &["list", "watch"];
const LEASES: &str = "coordination.k8s.io";

/// All of them; docs/rbac.md says what each is for.
pub(super) const NEEDED: &[Right] = &[
    right(
        Side::Modules,
        "",
        "nodes",
        "",
        Place::Everywhere,
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    right(Side::Modules, "", "nodes", "status", Place::Everywhere, &["patch"]),
    right(
        Side::Modules,
        LEASES,
        "leases",
        "",
        Place::Named(NODE_LEASES),
        &["get", "create", "update", "patch", "delete"],
    ),
    right(Side::Modules, LEASES, "leases", "", Place::Own, &["create"]),
    right(Side::Modules, "", "pods", "", Place::Everywhere, &["get", "list", "watch", "delete"]),
    right(Side::Modules, "", "pods", "status", Place::Everywhere, &["patch"]),
    right(Side::Modules, "", "pods", "eviction", Place::Everywhere, &["create"]),
    right(Side::Modules, "events.k8s.io", "events", "", Place::Everywhere, &["create", "patch"]),
    right(Side::Modules, "", "namespaces", "", Place::Everywhere, READ),
    right(Side::Modules, "", "configmaps", "", Place::Everywhere, &["get"]),
    right(Side::Modules, "apps", "daemonsets", "", Place::Everywhere, READ),
    right(Side::Modules, "apps", "deployments", "", Place::Everywhere, READ),
    right(Side::Modules, "apps", "deployments", "scale", Place::Everywhere, &["patch"]),
    right(Side::Modules, "apps", "replicasets", "", Place::Everywhere, &["get"]),
    right(Side::Modules, "apps", "statefulsets", "", Place::Everywhere, &["get"]),
    right(Side::Modules, "autoscaling", "horizontalpodautoscalers", "", Place::Everywhere, &["list"]),
    right(Side::Modules, "discovery.k8s.io", "endpointslices", "", Place::Everywhere, FOLLOW),
    right(Side::Bases, "", "pods", "", Place::Everywhere, READ),
    right(Side::Bases, "", "pods", "status", Place::Everywhere, &["patch"]),
    right(Side::Bases, "", "pods", "eviction", Place::Everywhere, &["create"]),
];

impl Right {
    /// `verb resource (where)`.
    pub(super) fn text(&self, verb: &str, own: &str) -> String {
        let Self { side, group, resource, subresource, place, verbs: _ } = self;
        let mut text = format!("{verb} {resource}");
        for (mark, part) in [('/', subresource), ('.', group)] {
            if !part.is_empty() {
                text.push(mark);
                text.push_str(part);
            }
        }
        match (side, place.namespace(own)) {
            (Side::Modules, None) => text,
            (Side::Modules, Some(namespace)) => format!("{text} in {namespace}"),
            (Side::Bases, _) => format!("{text} of the base cluster"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A row of docs/rbac.md: resource as the page writes it, namespace where it is one, verb.
    type Row = (Side, String, Option<String>, String);

    const OWN: &str = "stowage-system";

    /// What the page says, but for what works without the right, and for the one Lease that is known by its name only once
    /// the agent runs.
    fn page() -> BTreeSet<Row> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rbac.md");
        let page = std::fs::read_to_string(page).expect("docs/rbac.md");
        let section = |heading: &str| {
            let (_, rest) = page.split_once(heading).expect("the section");
            rest.split_once("\n## ").map_or(rest, |(section, _)| section).to_owned()
        };
        let sides = [
            (Side::Modules, section("## The agent, in the module cluster")),
            (Side::Bases, section("## The agent, in the base cluster")),
        ];
        let mut rows = BTreeSet::new();
        for (side, text) in sides {
            for line in text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| resource"))
            {
                let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
                let [resources, place, verbs, why, ..] = cells[..] else { panic!("{line}") };
                if why.contains("Optional:")
                    || place.contains("only where")
                    || resources.ends_with("/stowage-agent")
                {
                    continue;
                }
                let namespace = ["kube-node-lease", OWN].contains(&place).then(|| place.to_owned());
                for resource in resources.split(", ") {
                    for verb in verbs.split(", ") {
                        rows.insert((side, resource.to_owned(), namespace.clone(), verb.to_owned()));
                    }
                }
            }
        }
        rows
    }

    /// The page is checked against the roles elsewhere; this list is checked against the page, both ways.
    #[test]
    fn the_rights_are_those_on_the_page() {
        let mut needed = BTreeSet::new();
        for right in NEEDED {
            let mut name = right.resource.to_owned();
            for (mark, part) in [('.', right.group), ('/', right.subresource)] {
                if !part.is_empty() {
                    name.push(mark);
                    name.push_str(part);
                }
            }
            let namespace = right.place.namespace(OWN).map(str::to_owned);
            for verb in right.verbs {
                needed.insert((right.side, name.clone(), namespace.clone(), (*verb).to_owned()));
            }
        }
        assert_eq!(needed, page());
    }

    #[test]
    fn a_right_names_the_namespace_that_is_meant() {
        let lease = NEEDED.iter().find(|right| right.place == Place::Own).expect("one");
        assert_eq!(lease.text("create", "ops"), "create leases.coordination.k8s.io in ops");
    }
}
