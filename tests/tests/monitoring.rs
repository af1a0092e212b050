//! Dashboard and alerts ask for metrics that exist: each stands in a table of docs/agent.md or docs/extender.md.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at what it did not expect"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

/// A kind of the Prometheus operator.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrometheusRule {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "metadata")]
    _metadata: ObjectMeta,
    spec: RuleGroups,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleGroups {
    groups: Vec<RuleGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleGroup {
    #[serde(rename = "name")]
    _name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(default, rename = "for")]
    _lasting: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names in the first column of the tables whose head begins with `| metric |`.
fn table(page: &str) -> BTreeSet<String> {
    let page = read(page);
    let mut lines = page.lines();
    let mut found = BTreeSet::new();
    while lines.by_ref().any(|line| line.starts_with("| metric |")) {
        for line in lines.by_ref().take_while(|line| line.starts_with('|')) {
            let names = line.split('|').nth(1).unwrap_or_default();
            found.extend(names.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

fn known() -> BTreeSet<String> {
    let mut known = table("docs/extender.md");
    for name in table("docs/agent.md") {
        known.insert(if name.starts_with("policy_") { name } else { format!("stowage_agent_{name}") });
    }
    assert!(known.len() > 40, "{known:?}");
    known
}

/// Metrics of ours in a query.
fn metrics(query: &str) -> BTreeSet<String> {
    query
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| ["stowage_", "policy_", "tls_"].iter().any(|prefix| word.starts_with(prefix)))
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned())
        .collect()
}

/// Labels that a text shows and its query does not keep: nobody would see anything there.
fn lost_labels(text: &str, query: &str) -> Vec<String> {
    let groups = query.split("by (").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let kept: BTreeSet<&str> = groups.flat_map(|group| group.split(", ")).collect();
    let shown = text.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim()));
    let labels = shown.filter(|word| *word != "$value");
    let labels = labels.map(|word| word.strip_prefix("$labels.").unwrap_or(word));
    labels.filter(|label| !kept.contains(label)).map(str::to_owned).collect()
}

/// All texts of that key, at any depth.
fn texts<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => texts(value, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, found)),
        _ => {}
    }
}

fn unknown(document: &Value) -> Vec<String> {
    let known = known();
    let mut queries = Vec::new();
    texts(document, "expr", &mut queries);
    assert!(queries.len() > 10, "{queries:?}");
    let unknown = queries.iter().flat_map(|query| {
        let asked = metrics(query);
        assert!(!asked.is_empty(), "{query} asks for nothing of ours");
        asked.difference(&known).map(|name| format!("{name} in {query}")).collect::<Vec<_>>()
    });
    unknown.collect()
}

#[test]
fn alerts_ask_for_metrics_that_exist() {
    let alerts: Value = serde_saphyr::from_str(&read("manifests/monitoring/alerts.yaml")).unwrap();
    assert_eq!(unknown(&alerts), Vec::<String>::new());
    let alerts: PrometheusRule = serde_json::from_value(alerts).unwrap();
    let rules: Vec<_> = alerts.spec.groups.iter().flat_map(|group| &group.rules).collect();
    let names: BTreeSet<_> = rules.iter().map(|rule| &rule.alert).collect();
    assert_eq!(names.len(), rules.len(), "{names:?}");
    for Rule { alert, expr, labels, annotations, _lasting: _ } in rules {
        assert!(["warning", "critical"].contains(&&*labels["severity"]), "{alert}");
        assert!(annotations["summary"].ends_with(['.', ')']), "{alert}");
        assert_eq!(expr.matches('(').count(), expr.matches(')').count(), "{alert}: {expr}");
        assert_eq!(lost_labels(&annotations["summary"], expr), Vec::<String>::new(), "{alert}: {expr}");
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(&read("manifests/monitoring/dashboard.json")).unwrap();
    assert_eq!(unknown(&dashboard), Vec::<String>::new());
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    for target in panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten() {
        let (legend, query) = (target["legendFormat"].as_str().unwrap(), target["expr"].as_str().unwrap());
        assert_eq!(lost_labels(legend, query), Vec::<String>::new(), "{query}");
    }
    // Grafana lays panels over each other without a word.
    let place = |panel: &Value, part: &str| panel["gridPos"][part].as_u64().unwrap();
    for (at, panel) in panels.iter().enumerate() {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|part| place(panel, part));
        assert!(x + w <= 24, "{panel}");
        for other in panels.iter().skip(at + 1) {
            let [ox, oy, ow, oh] = ["x", "y", "w", "h"].map(|part| place(other, part));
            assert!(x + w <= ox || ox + ow <= x || y + h <= oy || oy + oh <= y, "{panel} and {other}");
        }
    }
}

#[test]
fn a_metric_or_label_that_does_not_exist_is_found() {
    let asked =
        metrics("sum by (le) (rate(stowage_agent_install_seconds_bucket{a=\"b\"}[5m])) > stowage_gone_total");
    let asked: Vec<_> = asked.difference(&known()).cloned().collect();
    assert_eq!(asked, ["stowage_gone_total"]);
    let query = "sum by (le, verb) (rate(x[5m]))";
    assert_eq!(lost_labels("{{ $value }} of {{ $labels.verb }}, {{kind}}", query), ["kind"]);
}
