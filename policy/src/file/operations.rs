//! `kind: OperationsPolicy`.

use super::reader::{Field, Fields, Report};
use crate::model::{
    BackoffPolicy, BrakePolicy, DrainPolicy, ForeignModules, GatesPolicy, HealthPolicy, InstallPolicy,
    LethalPolicy, OperationsPolicy, OverloadMode, OverloadPolicy, WithoutPlace,
};

const ANY: std::ops::RangeInclusive<u32> = 0..=u32::MAX;
const SOME: std::ops::RangeInclusive<u32> = 1..=u32::MAX;
/// As many cycles as the agent remembers: with more it would never find an overload by figures.
const CYCLES: std::ops::RangeInclusive<u32> = 3..=1_000;
/// Each of them is an entry in an annotation of the agent's Lease, which has its bounds.
const BASES_AT_ONCE: std::ops::RangeInclusive<u32> = 1..=100;

pub(super) fn read(document: &Field<'_>, report: &mut Report, policy: &mut OperationsPolicy) {
    let names = ["apiVersion", "kind", "paused", "health", "gates", "install", "drain", "overload", "brake"];
    let Some(fields) = document.object(&names, report) else { return };
    fields.set("paused", &mut policy.paused, Field::boolean, report);
    section(&fields, "health", report, |field, report| health(field, report, &mut policy.health));
    section(&fields, "gates", report, |field, report| gates(field, report, &mut policy.gates));
    section(&fields, "install", report, |field, report| install(field, report, &mut policy.install));
    section(&fields, "drain", report, |field, report| drain(field, report, &mut policy.drain));
    section(&fields, "overload", report, |field, report| overload(field, report, &mut policy.overload));
    section(&fields, "brake", report, |field, report| brake(field, report, &mut policy.brake));
}

fn section<'a>(
    fields: &Fields<'a>,
    name: &str,
    report: &mut Report,
    read: impl FnOnce(&Field<'a>, &mut Report) -> Option<()>,
) {
    if let Some(field) = fields.get(name) {
        read(&field, report);
    }
}

fn health(field: &Field<'_>, report: &mut Report, policy: &mut HealthPolicy) -> Option<()> {
    let names = ["interval", "timeout", "failuresBeforeNotReady", "evictSilentAfter"];
    let fields = field.object(&names, report)?;
    fields.set("interval", &mut policy.interval, Field::positive_duration, report);
    fields.set("timeout", &mut policy.timeout, Field::positive_duration, report);
    let two = 2..=u32::MAX;
    let failures = &mut policy.failures_before_not_ready;
    fields.set("failuresBeforeNotReady", failures, |field, report| field.integer(two, report), report);
    let silent = &mut policy.evict_silent_after;
    fields.set("evictSilentAfter", silent, |field, report| field.duration_or("never", report), report);
    Some(())
}

fn gates(field: &Field<'_>, report: &mut Report, policy: &mut GatesPolicy) -> Option<()> {
    let fields = field.object(&["modulesReadyLimit", "loadBalancerLimit"], report)?;
    let modules = &mut policy.modules_ready_limit;
    fields.set("modulesReadyLimit", modules, |field, report| field.duration_or("never", report), report);
    let balancers = &mut policy.load_balancer_limit;
    fields.set("loadBalancerLimit", balancers, |field, report| field.duration_or("grace", report), report);
    Some(())
}

fn install(field: &Field<'_>, report: &mut Report, policy: &mut InstallPolicy) -> Option<()> {
    let names = [
        "timeout",
        "attempts",
        "backoff",
        "templateBackoff",
        "parallelPerBase",
        "downloadsAtOnce",
        "foreign",
        "lethal",
    ];
    let fields = field.object(&names, report)?;
    fields.set("timeout", &mut policy.timeout, Field::positive_duration, report);
    fields.set("attempts", &mut policy.attempts, |field, report| field.integer(SOME, report), report);
    section(&fields, "backoff", report, |field, report| backoff(field, report, &mut policy.backoff));
    section(&fields, "templateBackoff", report, |field, report| {
        backoff(field, report, &mut policy.template_backoff)
    });
    let parallel = &mut policy.parallel_per_base;
    fields.set("parallelPerBase", parallel, |field, report| field.integer(SOME, report), report);
    let downloads = &mut policy.downloads_at_once;
    fields.set("downloadsAtOnce", downloads, |field, report| field.integer(ANY, report), report);
    let words = [("wait", ForeignModules::Wait), ("replace", ForeignModules::Replace)];
    fields.set("foreign", &mut policy.foreign, |field, report| field.one_of(&words, report), report);
    section(&fields, "lethal", report, |field, report| lethal(field, report, &mut policy.lethal));
    Some(())
}

fn backoff(field: &Field<'_>, report: &mut Report, policy: &mut BackoffPolicy) -> Option<()> {
    let fields = field.object(&["initial", "max"], report)?;
    fields.set("initial", &mut policy.initial, Field::positive_duration, report);
    fields.set("max", &mut policy.max, Field::positive_duration, report);
    if policy.initial > policy.max {
        report.problem(field, "`initial` is longer than `max`");
    }
    Some(())
}

fn lethal(field: &Field<'_>, report: &mut Report, policy: &mut LethalPolicy) -> Option<()> {
    let fields = field.object(&["restarts", "within"], report)?;
    fields.set("restarts", &mut policy.restarts, |field, report| field.integer(SOME, report), report);
    fields.set("within", &mut policy.within, Field::positive_duration, report);
    Some(())
}

fn drain(field: &Field<'_>, report: &mut Report, policy: &mut DrainPolicy) -> Option<()> {
    let fields = field.object(&["wait", "forceAfter"], report)?;
    fields.set("wait", &mut policy.wait, Field::duration, report);
    fields.set("forceAfter", &mut policy.force_after, Field::duration, report);
    Some(())
}

fn overload(field: &Field<'_>, report: &mut Report, policy: &mut OverloadPolicy) -> Option<()> {
    let names =
        ["mode", "metaspaceHighPercent", "cycles", "evictionDeadline", "maxBasesAtOnce", "withoutPlace"];
    let fields = field.object(&names, report)?;
    let modes = [
        ("active", OverloadMode::Active),
        ("dryRun", OverloadMode::DryRun),
        ("disabled", OverloadMode::Disabled),
    ];
    fields.set("mode", &mut policy.mode, |field, report| field.one_of(&modes, report), report);
    let high = &mut policy.metaspace_high_percent;
    fields.set("metaspaceHighPercent", high, |field, report| field.integer(1..=100, report), report);
    fields.set("cycles", &mut policy.cycles, |field, report| field.integer(CYCLES, report), report);
    fields.set("evictionDeadline", &mut policy.eviction_deadline, Field::duration, report);
    let bases = &mut policy.max_bases_at_once;
    fields.set("maxBasesAtOnce", bases, |field, report| field.integer(BASES_AT_ONCE, report), report);
    let words = [("wait", WithoutPlace::Wait), ("proceed", WithoutPlace::Proceed)];
    fields.set(
        "withoutPlace",
        &mut policy.without_place,
        |field, report| field.one_of(&words, report),
        report,
    );
    Some(())
}

fn brake(field: &Field<'_>, report: &mut Report, policy: &mut BrakePolicy) -> Option<()> {
    let fields = field.object(&["maxShareOfBases", "maxShareOfModules", "minModules"], report)?;
    fields.set("maxShareOfBases", &mut policy.max_share_of_bases, Field::percent, report);
    fields.set("maxShareOfModules", &mut policy.max_share_of_modules, Field::percent, report);
    fields.set("minModules", &mut policy.min_modules, |field, report| field.integer(SOME, report), report);
    Some(())
}
