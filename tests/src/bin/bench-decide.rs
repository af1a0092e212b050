//! `bench-decide CASE`: one case of the decision, some times over, for a tool that counts instructions (see
//! `policy/bench/decide.sh`). Measured is what `measured_case` does; all else is preparation.

use std::{fmt::Write, hint::black_box, sync::Arc};

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};
use k8s_openapi::api::core::v1::{Node, Pod};
use policy::{
    Applicant, BaseView, FleetView, Policy,
    contract::{BaseFacts, ModulePod, PodKind, classify},
    file, score,
};
use serde_json::json;

/// How often the case is run; `decide.sh` divides by it.
const RUNS: usize = 1000;
/// Rules that speak of the module.
const RULES: usize = 50;

#[derive(Parser)]
#[command(name = "bench-decide", about = "Runs one case of the decision 1000 times")]
struct Args {
    /// Which
    case: Case,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// A base that is admitted under 50 rules
    Accept,
    /// A base that the last rule refuses
    Refuse,
    /// A base without a rule that speaks of the module
    Plain,
    /// The score of a base by five terms
    Score,
    /// What 50 rules say of a Pod on any base, and the limits of one
    Prepare,
}

fn main() -> anyhow::Result<()> {
    let Args { case } = Args::parse();
    let policy = policy(if case == Case::Plain { 0 } else { RULES })?;
    let facts = base()?;
    let new = pod("shop", "new", if case == Case::Refuse { "2.0.0" } else { "1.0.0" })?;
    let bound =
        (0..6).map(|n| pod(&format!("m{n}"), &format!("u{n}"), "1.0.0")).collect::<Result<Vec<_>, _>>()?;
    let view = BaseView { pods: &bound, ..BaseView::empty(&facts) };
    let fleet = FleetView::of(&policy, &new, [view]);
    let (applicant, limits) = (Applicant::new(&policy, &new), policy.limits_for(&facts.like()));
    let admitted = applicant.decide(&view, &limits).is_ok();
    ensure!(admitted == (case != Case::Refuse), "the case is not what it should be");
    let decided = || i64::from(black_box(&applicant).decide(black_box(&view), black_box(&limits)).is_ok());
    let scored = || score(black_box(&policy), black_box(&new), black_box(&view), &fleet);
    let prepared = || {
        let (policy, facts) = (black_box(&policy), black_box(&facts));
        black_box((Applicant::new(policy, black_box(&new)), policy.limits_for(&facts.like())));
        1
    };
    let sum = match case {
        Case::Accept | Case::Refuse | Case::Plain => measured_case(decided),
        Case::Score => measured_case(scored),
        Case::Prepare => measured_case(prepared),
    };
    ensure!(sum > 0 || case == Case::Refuse, "nothing was measured");
    Ok(())
}

#[inline(never)]
fn measured_case(run: impl Fn() -> i64) -> i64 {
    black_box((0..RUNS).map(|_| run()).sum())
}

fn policy(rules: usize) -> anyhow::Result<Policy> {
    let mut text = "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\n\
        limits: [{bases: {labels: {size: large}}, podsPerBase: 8, modulesPerBase: 64, versionsPerModule: 2}]\n\
        access: [{bases: {}, namespaces: ['shop-*', shop]}]\n\
        artifacts: {allow: [{scheme: https, host: '*.example.com'}]}\n\
        scoring: [{term: spread}, {term: metaspaceHeadroom}, {term: hostSpread}, {term: baseVersion}, {term: baseRevision}]\n\
        compatibility:\n- {module: shop, versions: '2.*', conflicts: {modules: [{name: m5}]}}\n"
        .to_owned();
    for rule in 0..rules {
        writeln!(
            text,
            "- {{module: 'sh*', versions: '[1,9)', requires: {{base: {{version: '>=2.1 <4-alpha', labels: {{size: \
             large}}}}, provides: [{{name: jdk, versions: '>=11'}}], modules: [{{name: m1}}]}}, conflicts: {{modules: \
             [{{name: 'legacy-{rule}-*'}}]}}}}"
        )?;
    }
    match file::load(&text) {
        Ok(loaded) => Ok(loaded.policy),
        Err(problems) => bail!("{problems:?}"),
    }
}

fn base() -> anyhow::Result<BaseFacts> {
    let modules: Vec<_> = (0..12)
        .map(|n| {
            let owner = (n < 6).then(|| format!("shop/m{n}/u{n}"));
            json!({"name": format!("m{n}"), "version": "1.0.0", "state": "activated", "owner": owner})
        })
        .collect();
    let inventory = json!({
        "v": 1, "modules": modules, "provides": {"jdk": "17"}, "multiVersion": true,
        "metaspace": {"max": 1000, "used": 500, "lowest": 400},
    });
    let node: Node = serde_json::from_value(json!({
        "metadata": {
            "name": "n1",
            "labels": {"app.kubernetes.io/managed-by": "stowage", "basement.koupleless.io/version": "2.1.0", "size": "large",
                       "stowage.dev/host": "h1"},
            "annotations": {"stowage.dev/base": "shop/b", "stowage.dev/inventory": inventory.to_string(),
                            "stowage.dev/base-revision": "w/h@2026-01-01T00:00:00Z"},
        },
        "status": {"allocatable": {"pods": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }))?;
    BaseFacts::from_node(&node)?.context("a Node of ours")
}

fn pod(name: &str, uid: &str, version: &str) -> anyhow::Result<Arc<ModulePod>> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": name, "uid": uid, "annotations": {"stowage.dev/metaspace": "10"}},
        "spec": {
            "tolerations": [{"key": "schedule.koupleless.io/virtual-node"}],
            "containers": [{"name": name, "image": "https://repo.example.com/m.jar",
                            "env": [{"name": "MODULE_VERSION", "value": version}]}],
        },
    }))?;
    match classify(&pod) {
        PodKind::Module(pod) => Ok(Arc::new(*pod)),
        other => bail!("{other:?}"),
    }
}
