//! The shape of the policy file for editors. The types exist for their schema only; the reader is what decides.

#![expect(dead_code, reason = "read by the schema generator, never built")]

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};

/// JSON Schema of `kind: PlacementPolicy`.
pub fn placement_schema() -> Schema {
    generator().into_root_schema_for::<PlacementPolicy>()
}

/// JSON Schema of `kind: OperationsPolicy`.
pub fn operations_schema() -> Schema {
    generator().into_root_schema_for::<OperationsPolicy>()
}

fn generator() -> SchemaGenerator {
    SchemaSettings::draft07().into_generator()
}

macro_rules! text {
    ($name:ident, $doc:literal, $schema:tt) => {
        #[doc = $doc]
        struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let mut schema = json_schema!($schema);
                schema.insert("description".into(), $doc.into());
                schema
            }
        }
    };
}

text!(Duration, "A duration such as 10s, 5m or 1h30m.", { "type": ["string", "integer"], "pattern": "^(0|([0-9]+(ms|s|m|h))+)$", "maximum": 0, "minimum": 0 });
text!(DurationOrNever, "A duration, or `never`.", { "type": ["string", "integer"], "pattern": "^(never|0|([0-9]+(ms|s|m|h))+)$", "maximum": 0, "minimum": 0 });
text!(DurationOrGrace, "A duration, or `grace`: what the grace period leaves.", { "type": ["string", "integer"], "pattern": "^(grace|0|([0-9]+(ms|s|m|h))+)$", "maximum": 0, "minimum": 0 });
text!(Percent, "A percentage such as 50%.", { "type": "string", "pattern": "^[0-9]{1,3}%$" });
text!(Range, "A range of versions: `[1.0,2.0)`, `>=1.5 <2`, `1.*` or `1.4.0`.", { "type": ["string", "number"], "minLength": 1, "maxLength": 256 });
text!(Quantity, "A Kubernetes quantity such as 500m, 2 or 1Gi.", { "type": ["string", "number"], "minimum": 0 });
text!(Glob, "A name in which `*` stands for any characters.", { "type": "string", "minLength": 1 });
text!(ApiVersion, "Version of the format.", { "const": "policy.stowage.dev/v1alpha1" });
text!(PlacementKind, "Kind of the document.", { "const": "PlacementPolicy" });
text!(OperationsKind, "Kind of the document.", { "const": "OperationsPolicy" });

/// Where module Pods may go.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct PlacementPolicy {
    api_version: ApiVersion,
    kind: PlacementKind,
    /// Every entry whose selector matches applies; the strictest number wins.
    limits: Option<Vec<Limit>>,
    /// Where no entry names the limit. May stand in one document only.
    defaults: Option<Defaults>,
    /// Absent: every namespace may use every base. Once present, a base that no entry matches takes no module.
    access: Option<Vec<Access>>,
    /// Absent: any scheme but `file`, any host but link-local ones.
    artifacts: Option<Artifacts>,
    /// Every entry that matches must hold.
    compatibility: Option<Vec<Compatibility>>,
    /// Absent: `spread` alone. Empty: every score is 0. May stand in one document only.
    scoring: Option<Vec<Score>>,
    /// May stand in one document only.
    filter: Option<Filter>,
}

/// Which bases are meant: all parts given must hold.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct BaseSelector {
    /// Technology of the base.
    stack: Option<String>,
    /// Versions of the base.
    version: Option<Range>,
    /// Labels of the base.
    labels: Option<BTreeMap<String, String>>,
}

/// Limits of some bases.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Limit {
    /// Absent: every base.
    bases: Option<BaseSelector>,
    /// VPods on a base; becomes `capacity.pods`.
    pods_per_base: Option<u32>,
    /// Modules on a base, foreign ones included.
    modules_per_base: Option<u32>,
    /// Versions of one name side by side; above 1 only where the base provides multi-version.
    #[schemars(range(min = 1))]
    versions_per_module: Option<u32>,
    /// What the base itself needs; the largest wins.
    reserved: Option<Reserved>,
}

/// Limits where no entry names one.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Defaults {
    /// VPods on a base. Default 1.
    pods_per_base: Option<u32>,
    /// Modules on a base. Default: no limit.
    modules_per_base: Option<u32>,
    /// Versions of one name side by side. Default 1.
    #[schemars(range(min = 1))]
    versions_per_module: Option<u32>,
    /// What the base itself needs. Default: nothing.
    reserved: Option<Reserved>,
}

/// Resources that the base itself needs.
#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case", deny_unknown_fields)]
struct Reserved {
    /// CPU.
    cpu: Option<Quantity>,
    /// Memory.
    memory: Option<Quantity>,
    /// Disk.
    ephemeral_storage: Option<Quantity>,
}

/// Namespaces that may use some bases.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Access {
    /// The bases.
    bases: BaseSelector,
    /// Names or globs.
    namespaces: Vec<Glob>,
}

/// Where modules may come from.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Artifacts {
    /// Only what an entry names.
    allow: Vec<Artifact>,
}

/// One allowed kind of source.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Artifact {
    /// Scheme of the URL; `file` only if it is named here.
    scheme: String,
    /// Name or glob, and perhaps `:port`. Absent: any but link-local hosts.
    host: Option<Glob>,
}

/// What some modules need and do not bear.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Compatibility {
    /// Modules that the entry speaks of.
    module: Glob,
    /// Their versions. Absent: all.
    versions: Option<Range>,
    /// What must be there.
    requires: Option<Requires>,
    /// What must not be there.
    conflicts: Option<Conflicts>,
}

/// What must be there.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Requires {
    /// What the base must be.
    base: Option<BaseSelector>,
    /// Capabilities in the inventory.
    provides: Option<Vec<Capability>>,
    /// Activated modules, or modules in the same VPod.
    modules: Option<Vec<Module>>,
}

/// What must not be there.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Conflicts {
    /// Checked in both directions.
    modules: Option<Vec<Module>>,
}

/// A capability.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Capability {
    /// Its name, such as `jdk`.
    name: String,
    /// Absent: any.
    versions: Option<Range>,
}

/// Modules by name and version.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Module {
    /// Name or glob.
    name: Glob,
    /// Absent: any.
    versions: Option<Range>,
}

/// One weighted term.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Score {
    /// What is scored. `spread` together with `pack` is an error.
    term: Term,
    /// How much it counts. Default 1.
    #[schemars(range(min = 1, max = 100))]
    weight: Option<u32>,
    /// `underThreshold` only, and without effect, as that term scores all bases alike. Default 500.
    #[schemars(range(min = 1))]
    pods_per_agent: Option<u32>,
    /// `baseVersion` only. Default `newest`.
    prefer: Option<Prefer>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum Term {
    Spread,
    Pack,
    HostSpread,
    MetaspaceHeadroom,
    UnderThreshold,
    ZoneSpread,
    RecentFailures,
    BaseVersion,
    BaseRevision,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum Prefer {
    Newest,
    Oldest,
}

/// How the filter answers.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Filter {
    /// The filter answers with the best node only. Default false.
    decisive: Option<bool>,
}

/// How the agent works. At most one in a file.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct OperationsPolicy {
    api_version: ApiVersion,
    kind: OperationsKind,
    /// No install, uninstall, eviction, healing; Leases, status and queries go on. Default false.
    paused: Option<bool>,
    /// Queries of bases.
    health: Option<Health>,
    /// Readiness gates.
    gates: Option<Gates>,
    /// Installs.
    install: Option<Install>,
    /// Uninstalls.
    drain: Option<Drain>,
    /// Self-healing.
    overload: Option<Overload>,
    /// What stops mass deletion.
    brake: Option<Brake>,
}

/// Queries of bases.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Health {
    /// Shortest time between two queries of one base. Default 10s.
    interval: Option<Duration>,
    /// Of one query. Default 5s.
    timeout: Option<Duration>,
    /// Missed checks in a row. Default 3.
    #[schemars(range(min = 2))]
    failures_before_not_ready: Option<u32>,
    /// VPods of a base silent this long are evicted. Default `never`.
    evict_silent_after: Option<DurationOrNever>,
}

/// Readiness gates.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Gates {
    /// Then `stowage.dev/modules-ready` turns True anyway. Default 10m.
    modules_ready_limit: Option<DurationOrNever>,
    /// Longest wait for foreign gates to turn False on deletion. Default `grace`.
    load_balancer_limit: Option<DurationOrGrace>,
}

/// Installs.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Install {
    /// Of one `installBiz`, and for a module found `resolved`. Default 5m.
    timeout: Option<Duration>,
    /// Transient tries for each VPod, then Failed. Default 5.
    #[schemars(range(min = 1))]
    attempts: Option<u32>,
    /// Between tries. Default 2s to 5m.
    backoff: Option<Backoff>,
    /// For each template after failing on 3 bases. Default 1m to 10m.
    template_backoff: Option<Backoff>,
    /// Modules of different VPods at once on one base. Default 2.
    #[schemars(range(min = 1))]
    parallel_per_base: Option<u32>,
    /// Installs in flight over the fleet; 0: no limit. Default 20.
    downloads_at_once: Option<u32>,
    /// Another version that is foreign: wait, or uninstall it. Default `wait`.
    foreign: Option<Foreign>,
    /// When a module is held because its base restarts after its installs. Default 3 within 1m.
    lethal: Option<Lethal>,
}

/// A back-off that doubles, with jitter.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Backoff {
    /// First wait.
    initial: Option<Duration>,
    /// Longest wait.
    max: Option<Duration>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum Foreign {
    Wait,
    Replace,
}

/// When a module counts as lethal.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Lethal {
    /// Restarts of the base. Default 3.
    #[schemars(range(min = 1))]
    restarts: Option<u32>,
    /// This soon after an install. Default 1m.
    within: Option<Duration>,
}

/// Uninstalls.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Drain {
    /// After no EndpointSlice says `ready: true`. Default 10s.
    wait: Option<Duration>,
    /// Past the grace period of a VPod on an unreachable base. Default 60s.
    force_after: Option<Duration>,
}

/// Self-healing.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Overload {
    /// `dryRun`: Events and metrics only. Default `active`.
    mode: Option<OverloadMode>,
    /// Threshold of the lowest use. Default 90.
    #[schemars(range(min = 1, max = 100))]
    metaspace_high_percent: Option<u32>,
    /// Cycles that must stay above it. Default 3.
    #[schemars(range(min = 3, max = 1000))]
    cycles: Option<u32>,
    /// Then `NoExecute`; 0: at once. Default 10m.
    eviction_deadline: Option<Duration>,
    /// Bases healing at once. Default 1.
    #[schemars(range(min = 1, max = 100))]
    max_bases_at_once: Option<u32>,
    /// When the modules have nowhere to go. Default `wait`.
    without_place: Option<WithoutPlace>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum OverloadMode {
    Active,
    DryRun,
    Disabled,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
enum WithoutPlace {
    Wait,
    Proceed,
}

/// What stops mass deletion.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
struct Brake {
    /// Of at least 4 known bases. Default 50%.
    max_share_of_bases: Option<Percent>,
    /// Of at least `minModules` modules of ours. Default 20%.
    max_share_of_modules: Option<Percent>,
    /// See `maxShareOfModules`. Default 10.
    #[schemars(range(min = 1))]
    min_modules: Option<u32>,
}
