//! What each rule looked at, for people. Never a whole module URL: it may carry credentials.

use std::{collections::BTreeMap, fmt::Display};

use crate::{
    contract::{Inventory, Known, Module},
    decide::Question,
    model::{BaseSelector, CapabilityNeed, ModulePattern, Requirements},
    rule::{metaspace, module_limit},
    version::Range,
};

/// Facts by name.
pub type Facts = BTreeMap<&'static str, String>;

/// Most things that a list names; the rest is counted.
const MOST: usize = 20;

/// The facts of the rule named `rule`.
pub(super) fn of(rule: &str, question: &Question<'_>) -> Facts {
    let mut facts = match rule {
        "annotations" => annotations(question),
        "access" => access(question),
        "artifact" => artifact(question),
        "stack" => stack(question),
        "base version" => base_version(question),
        "compatibility" => compatibility(question),
        "leaving" => leaving(question),
        "same module" => same_module(question),
        "context path" => context_path(question),
        "module limit" => module_limit(question),
        "metaspace" => metaspace(question),
        "recent failure" => recent_failure(question),
        _ => Facts::new(),
    };
    let reads =
        matches!(rule, "compatibility" | "same module" | "context path" | "module limit" | "recent failure");
    if reads && let Some(state) = inventory(question) {
        facts.insert("inventory", state);
    }
    facts
}

/// `a, b, c and 4 more`; `none` where there is nothing.
fn list(things: impl IntoIterator<Item = impl Display>) -> String {
    let mut things = things.into_iter();
    let mut text = String::new();
    for thing in things.by_ref().take(MOST) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&thing.to_string());
    }
    match things.count() {
        0 if text.is_empty() => "none".to_owned(),
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

fn ranged(name: impl Display, versions: Option<&Range>) -> String {
    versions.map_or_else(|| name.to_string(), |range| format!("{name} {range}"))
}

fn versioned(name: &str, version: Option<&str>) -> String {
    format!("{name}:{}", version.unwrap_or("?"))
}

fn module(module: &Module) -> String {
    versioned(&module.name, module.known_version())
}

/// Only where it is not plainly there.
fn inventory(question: &Question<'_>) -> Option<String> {
    match &question.base.facts.inventory {
        Known::Nothing => Some("not written".to_owned()),
        Known::Unreadable(error) => Some(format!("unreadable: {error}")),
        Known::Inventory(Inventory { truncated: true, .. }) => Some("cut".to_owned()),
        Known::Inventory(_) => None,
    }
}

fn annotations(question: &Question<'_>) -> Facts {
    Facts::from([("malformed", list(&question.pod.malformed))])
}

fn access(question: &Question<'_>) -> Facts {
    let base = question.base.facts.like();
    let mut facts = Facts::from([("namespace", question.pod.namespace.to_string())]);
    let admitted = match &question.policy.access {
        None => "every namespace".to_owned(),
        Some(entries) => {
            let matching = entries.iter().filter(|entry| entry.bases.matches(&base));
            list(matching.flat_map(|entry| &entry.namespaces))
        }
    };
    facts.insert("admitted", admitted);
    facts
}

fn artifact(question: &Question<'_>) -> Facts {
    let source = |module: &Module| match &module.source {
        None => format!("{}: no URL", module.container),
        Some(source) => {
            let port = source.port.map(|port| format!(":{port}")).unwrap_or_default();
            format!("{}: {}://{}{port}", module.container, source.scheme, source.host)
        }
    };
    let allowed = match &question.policy.artifacts {
        None => "any but file and link-local".to_owned(),
        Some(entries) => list(entries.iter().map(|entry| {
            let host = entry.host.as_ref().map_or("*", |host| host.as_str());
            let port = entry.port.map(|port| format!(":{port}")).unwrap_or_default();
            format!("{}://{host}{port}", entry.scheme)
        })),
    };
    Facts::from([("sources", list(question.pod.modules.iter().map(source))), ("allowed", allowed)])
}

/// What the policy's entries about the Pod's modules ask of the base itself.
fn wanted<T>(question: &Question<'_>, part: impl Fn(&BaseSelector) -> Option<T>) -> Vec<T> {
    let entries = question.applicant.needs.iter().filter_map(|concern| concern.entry().ok());
    entries.filter_map(|entry| part(entry.base.as_ref()?)).collect()
}

fn stack(question: &Question<'_>) -> Facts {
    let mut asked = wanted(question, |base| base.stack.clone());
    asked.extend(question.pod.stack.as_deref().map(str::to_owned));
    if asked.is_empty() {
        asked.push(crate::contract::names::DEFAULT_STACK.to_owned());
    }
    asked.sort_unstable();
    asked.dedup();
    Facts::from([("base", question.base.facts.stack.to_string()), ("wanted", list(asked))])
}

fn base_version(question: &Question<'_>) -> Facts {
    let mut asked = wanted(question, |base| base.version.as_ref().map(Range::to_string));
    asked.extend(question.pod.base_version.as_ref().map(Range::to_string));
    let asked = if asked.is_empty() { "any".to_owned() } else { asked.join(" and ") };
    let version = question.base.facts.version.as_ref().map_or("unknown".to_owned(), ToString::to_string);
    Facts::from([("base", version), ("wanted", asked)])
}

fn compatibility(question: &Question<'_>) -> Facts {
    let mut facts = Facts::new();
    let mut needs: Vec<&Requirements> = vec![&question.pod.requirements];
    let mut unknown = Vec::new();
    let mut labels = Vec::new();
    for concern in &question.applicant.concerns {
        match concern.entry() {
            Ok(entry) => {
                needs.push(&entry.requirements);
                let base = entry.base.iter();
                labels
                    .extend(base.flat_map(|base| &base.labels).map(|(key, value)| format!("{key}={value}")));
            }
            Err(_) => unknown.push(&concern.module.name),
        }
    }
    if !unknown.is_empty() {
        facts.insert("versionUnknown", list(unknown));
    }
    if !labels.is_empty() {
        facts.insert("wantedLabels", list(labels));
    }
    capabilities(question, &needs, &mut facts);
    modules(question, &needs, &mut facts);
    facts
}

fn capabilities(question: &Question<'_>, needs: &[&Requirements], facts: &mut Facts) {
    let wanted: Vec<&CapabilityNeed> = needs.iter().flat_map(|needs| &needs.provides).collect();
    if wanted.is_empty() {
        return;
    }
    facts.insert(
        "wantedCapabilities",
        list(wanted.iter().map(|need| ranged(&need.name, need.versions.as_ref()))),
    );
    let provided = question.base.facts.inventory.get().map(|inventory| &inventory.provides);
    let provided =
        provided.into_iter().flatten().filter(|(name, _)| wanted.iter().any(|need| need.name == **name));
    facts.insert("provided", list(provided.map(|(name, version)| format!("{name} {version}"))));
}

fn modules(question: &Question<'_>, needs: &[&Requirements], facts: &mut Facts) {
    let pattern = |pattern: &ModulePattern| ranged(&pattern.name, pattern.versions.as_ref());
    let wanted: Vec<String> = needs.iter().flat_map(|needs| &needs.modules).map(pattern).collect();
    let unwanted: Vec<String> = needs.iter().flat_map(|needs| &needs.conflicts).map(pattern).collect();
    if wanted.is_empty() && unwanted.is_empty() && question.policy.compatibility.is_empty() {
        return;
    }
    if !wanted.is_empty() {
        facts.insert("wantedModules", list(wanted));
    }
    if !unwanted.is_empty() {
        facts.insert("conflicts", list(unwanted));
    }
    let staying = question.base.staying(question.pod).map(|other| versioned(other.name, other.version));
    facts.insert("onBase", list(staying));
}

fn leaving(question: &Question<'_>) -> Facts {
    let base = question.base.facts;
    let facts = [("leaving", base.leaving), ("overloaded", base.overloaded), ("ready", base.ready)];
    let cordon = [("cordoned", true), ("toleratesCordon", question.pod.tolerates_cordon)];
    let cordon = cordon.into_iter().filter(|_| base.cordoned);
    facts.into_iter().chain(cordon).map(|(name, fact)| (name, fact.to_string())).collect()
}

fn same_module(question: &Question<'_>) -> Facts {
    let mine = |name: &str| question.pod.modules.iter().any(|module| *module.name == *name);
    let others = question.base.staying(question.pod).filter(|other| mine(other.name));
    let side_by_side = question.base.facts.inventory.get().is_some_and(|inventory| inventory.multi_version);
    let allowed = if side_by_side { question.limits.versions_per_module } else { 1 };
    Facts::from([
        ("modules", list(question.pod.modules.iter().map(module))),
        ("onBase", list(others.map(|other| versioned(other.name, other.version)))),
        ("versionsAllowed", allowed.to_string()),
    ])
}

fn context_path(question: &Question<'_>) -> Facts {
    let declared = |modules: &[Module]| -> Vec<String> {
        let paths = modules.iter().filter_map(|module| Some((module, module.context_path.as_deref()?)));
        paths.map(|(module, path)| format!("{}={path}", module.name)).collect()
    };
    let mine = declared(&question.pod.modules);
    if mine.is_empty() {
        return Facts::from([("declared", list(mine))]);
    }
    let others = question.base.others(question.pod).filter(|other| !other.deleting);
    let mut taken: Vec<String> = others.flat_map(|other| declared(&other.modules)).collect();
    let reported = question.base.entries().filter(|(entry, _)| question.base.stays(entry));
    taken.extend(
        reported.filter_map(|(entry, _)| Some(format!("{}={}", entry.name, entry.context_path.as_deref()?))),
    );
    taken.sort_unstable();
    taken.dedup();
    let own = question.base.facts.inventory.get().and_then(|inventory| inventory.context_path.as_deref());
    Facts::from([
        ("declared", list(mine)),
        ("taken", list(taken)),
        ("ofBase", own.unwrap_or("none").to_owned()),
    ])
}

fn module_limit(question: &Question<'_>) -> Facts {
    let limit = question.limits.modules_per_base;
    let limit = limit.map_or("none".to_owned(), |limit| limit.to_string());
    Facts::from([("wouldHold", module_limit::total(question).to_string()), ("limit", limit)])
}

fn metaspace(question: &Question<'_>) -> Facts {
    let number = |number: Option<u64>| number.map_or("unknown".to_owned(), |number| number.to_string());
    let figures = question.base.facts.metaspace();
    let need = question.pod.metaspace.map_or("none".to_owned(), |need| need.to_string());
    Facts::from([
        ("need", need),
        ("left", number(metaspace::left(&question.base, question.pod))),
        ("max", number(figures.and_then(|figures| figures.max))),
        ("lowest", number(figures.map(|figures| figures.lowest))),
    ])
}

fn recent_failure(question: &Question<'_>) -> Facts {
    let failures = question.base.facts.inventory.get().map(|inventory| inventory.failures.as_slice());
    let failures = failures.unwrap_or_default().iter();
    Facts::from([
        ("modules", list(question.pod.modules.iter().map(module))),
        ("failedOnBase", list(failures.map(|failure| versioned(&failure.module, Some(&failure.version))))),
    ])
}
