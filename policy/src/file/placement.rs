//! `kind: PlacementPolicy`.

use super::{
    reader::{Field, Fields, Report},
    tree::Position,
};
use crate::model::{
    AccessEntry, ArtifactEntry, BaseSelector, CapabilityNeed, CompatibilityEntry, Glob, LimitEntry,
    LimitValues, Limits, ModulePattern, Policy, Prefer, Requirements, ReservedValues, ScoreTerm, Term,
};

/// What several documents say together, and where they say it.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// Where each entry of the policy's limits stands.
    pub(super) limits_at: Vec<(Position, String)>,
    /// Where each entry about access stands.
    pub(super) access_at: Vec<(Position, String)>,
    /// Where each allowed source of artifacts stands.
    pub(super) artifacts_at: Vec<(Position, String)>,
    /// Where each entry about compatibility stands.
    pub(super) compatibility_at: Vec<(Position, String)>,
    pub(super) any: bool,
    defaults: bool,
    filter: bool,
    scoring: Option<Vec<ScoreTerm>>,
}

impl Placement {
    pub(super) fn read(&mut self, document: &Field<'_>, report: &mut Report, policy: &mut Policy) {
        self.any = true;
        let names = [
            "apiVersion",
            "kind",
            "limits",
            "defaults",
            "access",
            "artifacts",
            "compatibility",
            "scoring",
            "filter",
        ];
        let Some(fields) = document.object(&names, report) else { return };
        for field in elements(&fields, "limits", report) {
            self.limits_at.push((field.position(), field.path.clone()));
            policy.limits.extend(limit(&field, report));
        }
        if let Some(field) = once(&fields, "defaults", &mut self.defaults, report) {
            defaults(&field, report, &mut policy.defaults);
        }
        if fields.get("access").is_some() {
            let access = policy.access.get_or_insert_default();
            for field in elements(&fields, "access", report) {
                self.access_at.push((field.position(), field.path.clone()));
                access.extend(entry(&field, report));
            }
        }
        if let Some(allow) = fields.get("artifacts").and_then(|field| field.object(&["allow"], report))
            && let Some(field) = allow.required("allow", report)
        {
            let artifacts = policy.artifacts.get_or_insert_default();
            for field in field.list(report).unwrap_or_default() {
                self.artifacts_at.push((field.position(), field.path.clone()));
                artifacts.extend(artifact(&field, report));
            }
        }
        for field in elements(&fields, "compatibility", report) {
            self.compatibility_at.push((field.position(), field.path.clone()));
            policy.compatibility.extend(compatibility(&field, report));
        }
        let mut scored = self.scoring.is_some();
        if let Some(field) = once(&fields, "scoring", &mut scored, report) {
            self.scoring = Some(scoring(&field, report));
        }
        if let Some(field) = once(&fields, "filter", &mut self.filter, report)
            && let Some(filter) = field.object(&["decisive"], report)
        {
            filter.set("decisive", &mut policy.decisive, Field::boolean, report);
        }
    }

    /// What can only be said when all documents are read.
    pub(super) fn finish(&mut self, policy: &mut Policy) {
        if let Some(terms) = self.scoring.take() {
            policy.scoring = terms;
        }
    }
}

fn elements<'a>(fields: &Fields<'a>, name: &str, report: &mut Report) -> Vec<Field<'a>> {
    fields.get(name).and_then(|field| field.list(report)).unwrap_or_default()
}

/// A field that may stand in one document only.
fn once<'a>(fields: &Fields<'a>, name: &str, seen: &mut bool, report: &mut Report) -> Option<Field<'a>> {
    let field = fields.get(name)?;
    if std::mem::replace(seen, true) {
        report.problem(&field, format!("`{name}` may stand in one document only"));
        return None;
    }
    Some(field)
}

fn selector(field: &Field<'_>, report: &mut Report) -> Option<BaseSelector> {
    let fields = field.object(&["stack", "version", "labels"], report)?;
    Some(BaseSelector {
        stack: fields.get("stack").and_then(|field| field.text(report).map(str::to_owned)),
        version: fields.get("version").and_then(|field| field.range(report)),
        labels: fields.get("labels").and_then(|field| field.texts(report)).unwrap_or_default(),
    })
}

fn limit(field: &Field<'_>, report: &mut Report) -> Option<LimitEntry> {
    let names = ["bases", "podsPerBase", "modulesPerBase", "versionsPerModule", "reserved"];
    let fields = field.object(&names, report)?;
    Some(LimitEntry {
        bases: fields.get("bases").and_then(|field| selector(&field, report)).unwrap_or_default(),
        values: values(&fields, report),
    })
}

fn values(fields: &Fields<'_>, report: &mut Report) -> LimitValues {
    let mut integer =
        |name: &str, least| fields.get(name).and_then(|field| field.integer(least..=u32::MAX, report));
    LimitValues {
        pods_per_base: integer("podsPerBase", 0),
        modules_per_base: integer("modulesPerBase", 0),
        versions_per_module: integer("versionsPerModule", 1),
        reserved: fields.get("reserved").and_then(|field| reserved(&field, report)).unwrap_or_default(),
    }
}

fn reserved(field: &Field<'_>, report: &mut Report) -> Option<ReservedValues> {
    let fields = field.object(&["cpu", "memory", "ephemeral-storage"], report)?;
    let mut quantity = |name| fields.get(name).and_then(|field| field.quantity(report));
    Some(ReservedValues {
        cpu: quantity("cpu"),
        memory: quantity("memory"),
        ephemeral_storage: quantity("ephemeral-storage"),
    })
}

fn defaults(field: &Field<'_>, report: &mut Report, limits: &mut Limits) {
    let names = ["podsPerBase", "modulesPerBase", "versionsPerModule", "reserved"];
    let Some(fields) = field.object(&names, report) else { return };
    let values = values(&fields, report);
    limits.pods_per_base = values.pods_per_base.unwrap_or(limits.pods_per_base);
    limits.modules_per_base = values.modules_per_base.or(limits.modules_per_base);
    limits.versions_per_module = values.versions_per_module.unwrap_or(limits.versions_per_module);
    limits.reserved = values.reserved.or(limits.reserved);
}

fn entry(field: &Field<'_>, report: &mut Report) -> Option<AccessEntry> {
    let fields = field.object(&["bases", "namespaces"], report)?;
    let bases = fields.required("bases", report).and_then(|field| selector(&field, report));
    let namespaces = fields.required("namespaces", report).and_then(|field| field.list(report));
    let namespaces = namespaces?.iter().filter_map(|field| field.glob(report)).collect();
    Some(AccessEntry { bases: bases?, namespaces })
}

fn artifact(field: &Field<'_>, report: &mut Report) -> Option<ArtifactEntry> {
    let fields = field.object(&["scheme", "host"], report)?;
    let scheme = |text: &str| {
        let named = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        named.then(|| text.to_ascii_lowercase())
    };
    let scheme = fields
        .required("scheme", report)
        .and_then(|f| f.parsed("a URL scheme such as https", scheme, report));
    let host = fields.get("host").map(|f| f.parsed("a host name or glob, and perhaps `:port`", host, report));
    let (host, port) = match host {
        None => (None, None),
        Some(read) => read.map(|(glob, port)| (Some(glob), port))?,
    };
    Some(ArtifactEntry { scheme: scheme?, host, port })
}

/// `repo.example.com`, `*.example.com:8443`, `[::1]:80`.
fn host(text: &str) -> Option<(Glob, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port.parse().ok()?)),
        _ => (text, None),
    };
    let brackets = host.starts_with('[') && host.ends_with(']');
    let odd = |c: char| c.is_whitespace() || matches!(c, '/' | '@' | '?' | '#') || c == ':' && !brackets;
    (!host.is_empty() && !host.contains(odd)).then(|| (Glob::new(&host.to_ascii_lowercase()), port))
}

fn compatibility(field: &Field<'_>, report: &mut Report) -> Option<CompatibilityEntry> {
    let fields = field.object(&["module", "versions", "requires", "conflicts"], report)?;
    let name = fields.required("module", report).and_then(|field| field.glob(report));
    let versions = fields.get("versions").and_then(|field| field.range(report));
    let mut found = Requirements::default();
    let mut base = None;
    if let Some(requires) =
        fields.get("requires").and_then(|field| field.object(&["base", "provides", "modules"], report))
    {
        base = requires.get("base").and_then(|field| selector(&field, report));
        found.provides = elements(&requires, "provides", report)
            .iter()
            .filter_map(|field| capability(field, report))
            .collect();
        found.modules = elements(&requires, "modules", report)
            .iter()
            .filter_map(|field| pattern(field, report))
            .collect();
    }
    if let Some(conflicts) = fields.get("conflicts").and_then(|field| field.object(&["modules"], report)) {
        found.conflicts = elements(&conflicts, "modules", report)
            .iter()
            .filter_map(|field| pattern(field, report))
            .collect();
    }
    Some(CompatibilityEntry { module: ModulePattern { name: name?, versions }, base, requirements: found })
}

fn capability(field: &Field<'_>, report: &mut Report) -> Option<CapabilityNeed> {
    let fields = field.object(&["name", "versions"], report)?;
    let name = fields.required("name", report).and_then(|field| field.text(report).map(str::to_owned));
    let versions = fields.get("versions").and_then(|field| field.range(report));
    Some(CapabilityNeed { name: name?, versions })
}

fn pattern(field: &Field<'_>, report: &mut Report) -> Option<ModulePattern> {
    let fields = field.object(&["name", "versions"], report)?;
    let name = fields.required("name", report).and_then(|field| field.glob(report));
    let versions = fields.get("versions").and_then(|field| field.range(report));
    Some(ModulePattern { name: name?, versions })
}

/// `podsPerAgent` where it is not given.
const PODS_PER_AGENT: u32 = 500;

/// The terms, with the defaults of their options.
const TERMS: [Term; 9] = [
    Term::Spread,
    Term::Pack,
    Term::HostSpread,
    Term::MetaspaceHeadroom,
    Term::UnderThreshold(PODS_PER_AGENT),
    Term::ZoneSpread,
    Term::RecentFailures,
    Term::BaseVersion(Prefer::Newest),
    Term::BaseRevision,
];

fn scoring(field: &Field<'_>, report: &mut Report) -> Vec<ScoreTerm> {
    let mut seen: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for field in field.list(report).unwrap_or_default() {
        let Some(fields) = field.object(&["term", "weight", "podsPerAgent", "prefer"], report) else {
            continue;
        };
        let Some(named) = fields.required("term", report) else { continue };
        let Some(term) = named.one_of(&TERMS.map(|term| (term.name(), term)), report) else { continue };
        let name = term.name();
        if seen.contains(&name) {
            report.problem(&named, "this term stands here twice");
        }
        if matches!(name, "spread" | "pack")
            && seen.iter().any(|other| *other != name && matches!(*other, "spread" | "pack"))
        {
            report.problem(&named, "`spread` and `pack` contradict each other");
        }
        seen.push(name);
        if matches!(term, Term::UnderThreshold(_)) {
            report.warning(&named, "this term scores all bases alike, as they are not divided among agents");
        }
        let weight = fields.get("weight").map_or(Some(1), |field| field.integer(1..=100, report));
        let term = options(&fields, term, report);
        found.extend(term.zip(weight).map(|(term, weight)| ScoreTerm { term, weight }));
    }
    found
}

/// The fields that only one term has.
fn options(fields: &Fields<'_>, mut term: Term, report: &mut Report) -> Option<Term> {
    if let Some(field) = fields.get("podsPerAgent") {
        let given = field.integer(1..=u32::MAX, report);
        match &mut term {
            Term::UnderThreshold(pods) => *pods = given?,
            _ => report.problem(&field, "only the term underThreshold has this field"),
        }
    }
    if let Some(field) = fields.get("prefer") {
        let given = field.one_of(&[("newest", Prefer::Newest), ("oldest", Prefer::Oldest)], report);
        match &mut term {
            Term::BaseVersion(prefer) => *prefer = given?,
            _ => report.problem(&field, "only the term baseVersion has this field"),
        }
    }
    Some(term)
}
