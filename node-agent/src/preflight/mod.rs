//! `stowage-agent preflight`: looks at a cluster before Stowage is installed, and says what it needs.
//!
//! It reads only (a question about rights is the one object it creates, and the API server keeps none of those). What was
//! found is judged by a pure function; every finding has a stable code that docs/operations.md explains.

mod judge;
mod look;
mod rights;

use std::fmt;

use clap::{Args, ValueEnum};
use kube::Client;
use serde::Serialize;

pub use judge::{Facts, judge};
pub use look::LookError;

use crate::args::{BaseFlags, ModuleFlags, label_name};
use crate::discovery::Selector;

/// Looks at a cluster before installation and says what it needs; ends with 1 when something must be done first.
#[derive(Debug, Clone, Args)]
pub struct PreflightFlags {
    /// The module cluster.
    #[command(flatten)]
    pub modules: ModuleFlags,
    /// The base cluster.
    #[command(flatten)]
    pub bases: BaseFlags,
    /// Label selector of the Pods that are to become bases; without it bases are not looked at
    #[arg(long, value_name = "SELECTOR", value_parser = Selector::parse)]
    pub base_selector: Option<Selector>,
    /// Namespace of the Lease that the agents hold, as they are started with
    #[arg(long, value_name = "NAME", default_value = "stowage-system", env = "POD_NAMESPACE", value_parser = label_name)]
    pub lease_namespace: String,
    /// How findings are shown
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// How findings are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One paragraph for each.
    Text,
    /// One JSON object.
    Json,
}

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, but somebody should decide whether it is meant so.
    Warning,
    /// Must be done first.
    Problem,
}

/// What was looked at. Every code is a section of docs/operations.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
pub enum Code {
    /// The controller manager hands out ranges of Pod addresses to Nodes.
    PodCidrAllocation,
    /// A cloud controller manages Nodes.
    CloudController,
    /// An autoscaler manages Nodes.
    ClusterAutoscaler,
    /// `DaemonSets` that tolerate every taint.
    TolerateAllDaemonSets,
    /// Bases whose container has no `preStop` hook.
    NoPreStop,
    /// No Pod matches the selector of bases.
    NoBases,
    /// APIs that the manifests need.
    ApiVersions,
    /// What the account in use may not do.
    Rights,
}

impl Code {
    /// Stable text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodCidrAllocation => "PodCIDRAllocation",
            Self::CloudController => "CloudController",
            Self::ClusterAutoscaler => "ClusterAutoscaler",
            Self::TolerateAllDaemonSets => "TolerateAllDaemonSets",
            Self::NoPreStop => "NoPreStop",
            Self::NoBases => "NoBases",
            Self::ApiVersions => "APIVersions",
            Self::Rights => "Rights",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub code: Code,
    /// How much it weighs.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it; empty where nothing is to be done.
    pub advice: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok     ",
            Level::Warning => "WARNING",
            Level::Problem => "PROBLEM",
        };
        write!(f, "{level} {}: {}", self.code.as_str(), self.found)?;
        if self.advice.is_empty() { Ok(()) } else { write!(f, "\n        {}", self.advice) }
    }
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Whether something must be done first.
    pub fn has_problem(&self) -> bool {
        self.0.iter().any(|finding| finding.level == Level::Problem)
    }

    /// As asked for.
    pub fn show(&self, output: Output) -> String {
        match output {
            Output::Text => {
                let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
                lines.join("\n") + "\n"
            }
            Output::Json => {
                let one = |finding: &Finding| {
                    serde_json::json!({
                        "code": finding.code.as_str(),
                        "level": finding.level,
                        "found": finding.found,
                        "advice": finding.advice,
                    })
                };
                let findings: Vec<_> = self.0.iter().map(one).collect();
                format!("{:#}\n", serde_json::json!({"ok": !self.has_problem(), "findings": findings}))
            }
        }
    }
}

/// Looks at both clusters.
///
/// # Errors
/// When an API server cannot be asked at all; a right that is missing is a finding.
pub async fn preflight(
    modules: &Client,
    bases: &Client,
    flags: &PreflightFlags,
) -> Result<Findings, LookError> {
    let facts = look::look(modules, bases, flags.base_selector.as_ref(), &flags.lease_namespace).await?;
    Ok(Findings(judge(&facts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_section_on_the_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
        let page = std::fs::read_to_string(page).expect("docs/operations.md");
        for code in Code::value_variants() {
            let heading = format!("### {}", code.as_str());
            assert!(page.lines().any(|line| line == heading), "{heading}");
        }
    }

    #[test]
    fn findings_are_shown_for_people_and_for_programs() {
        let finding =
            |level, advice| Finding { code: Code::NoPreStop, level, found: "1 of 2".to_owned(), advice };
        let findings = Findings(vec![finding(Level::Problem, "add it"), finding(Level::Ok, "")]);
        assert!(findings.has_problem());
        let text = "PROBLEM NoPreStop: 1 of 2\n        add it\nok      NoPreStop: 1 of 2\n";
        assert_eq!(findings.show(Output::Text), text);
        let json: serde_json::Value = serde_json::from_str(&findings.show(Output::Json)).expect("JSON");
        assert_eq!(json["ok"], false);
        assert_eq!(json["findings"][0]["level"], "problem");
        assert_eq!(json["findings"][1]["code"], "NoPreStop");
    }
}
