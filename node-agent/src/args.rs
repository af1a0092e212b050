//! The flags of `stowage-agent`, checked as they are parsed: a wrong one ends the start with the flag and the value
//! named.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use policy::model::Quantity;
use service::admin::AdminFlags;
use service::logs::LogFlags;
use service::policy_file::PolicyFlags;
use service::tasks::ShutdownFlags;
use service::watching::WatchFlags;

use crate::audit::AuditFlags;
use crate::discovery::Selector;
use crate::kubelet::KubeletFlags;
use crate::preflight::PreflightFlags;
use crate::retire::RetireFlags;
use crate::sidecar::PodName;

/// The command line: without a command the agent runs.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "stowage-agent",
    version,
    about = "Shows every base as a Node and runs the Pods bound to it as modules; without a command it runs as the agent",
    long_about = None,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Cli {
    /// Something else than running.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// To run.
    #[command(flatten)]
    pub run: Args,
}

/// What the program does besides running as the agent.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Look at a cluster before installation and say what it needs
    Preflight(PreflightFlags),
    /// Remove all VNodes, their Leases and VPods of one base cluster
    Retire(RetireFlags),
}

/// How the base cluster is reached.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct BaseFlags {
    /// Kubeconfig of the cluster with the base Pods; without it the one of the module cluster
    #[arg(long, value_name = "FILE")]
    pub base_kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig of the base cluster; without it the current one
    #[arg(long, value_name = "NAME")]
    pub base_context: Option<String>,
}

/// How the module cluster is reached.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct ModuleFlags {
    /// Kubeconfig of the cluster with VNodes and VPods; without it the service account of our own Pod
    #[arg(long, value_name = "FILE")]
    pub module_kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig of the module cluster; without it the current one
    #[arg(long, value_name = "NAME", requires = "module_kubeconfig")]
    pub module_context: Option<String>,
}

/// Shows every base as a Node and runs the Pods bound to it as modules, through arklet.
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// The base cluster.
    #[command(flatten)]
    pub bases: BaseFlags,
    /// The module cluster.
    #[command(flatten)]
    pub modules: ModuleFlags,
    /// Label selector of base Pods; an empty one would make every Pod a base and is refused
    #[arg(long, value_name = "SELECTOR", required_unless_present = "base_pod", value_parser = Selector::parse)]
    pub base_selector: Option<Selector>,
    /// Namespaces in which bases are looked for; without it all
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = label_name)]
    pub base_namespaces: Vec<String>,
    /// Look after this one base, as a container of its Pod, which must carry the label `stowage.dev/sidecar=true`; bases
    /// and modules share a cluster then
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        value_parser = PodName::parse,
        conflicts_with_all = ["base_selector", "base_namespaces", "base_kubeconfig", "base_context", "lease_name"]
    )]
    pub base_pod: Option<PodName>,
    /// UID of that Pod: an agent that outlives its Pod leaves the next one of this name alone
    #[arg(long, value_name = "UID", requires = "base_pod", conflicts_with = "base_selector")]
    pub base_uid: Option<String>,
    /// Names the base cluster; agents of different base clusters share a module cluster by it
    #[arg(long, value_name = "ID", default_value = "default", value_parser = label_name)]
    pub base_cluster_id: String,
    /// The policy file.
    #[command(flatten)]
    pub policy: PolicyFlags,
    /// Namespace of the Lease that one of the agents holds; with --base-pod the Pod's
    #[arg(long, value_name = "NAME", default_value = "stowage-system", env = "POD_NAMESPACE", value_parser = label_name)]
    pub lease_namespace: String,
    /// Name of that Lease; with --base-pod the VNode's
    #[arg(long, value_name = "NAME", default_value = "stowage-agent", value_parser = label_name)]
    pub lease_name: String,
    /// Who holds the Leases; must differ between agents that run at the same time. Default: host name and a random part
    #[arg(long, value_name = "TEXT", value_parser = identity)]
    pub identity: Option<String>,
    /// Capacity of a VNode whose base names neither limits nor requests and whose real node is unknown
    #[arg(long, value_name = "LIST", default_value = "cpu=1,memory=1Gi", value_parser = capacity)]
    pub default_capacity: Capacity,
    /// Copy the real node's `topology.kubernetes.io` labels to the VNode (silent VNodes in a zone keep the node
    /// controller from evicting Pods of real nodes there)
    #[arg(long)]
    pub copy_topology: bool,
    /// Value of the virtual-node taint; `True` for VPods written for Koupleless 2.x
    #[arg(long, value_name = "TEXT", default_value = "true", value_parser = ["true", "True"])]
    pub taint_value: String,
    /// Watch, query and log what would be done, but write nothing to an API server and change nothing on a base
    #[arg(long)]
    pub observe: bool,
    /// The watches.
    #[command(flatten)]
    pub watches: WatchFlags,
    /// The audit log.
    #[command(flatten)]
    pub audit: AuditFlags,
    /// The kubelet endpoint.
    #[command(flatten)]
    pub kubelet: KubeletFlags,
    /// The admin server.
    #[command(flatten)]
    pub admin: AdminFlags,
    /// Logs.
    #[command(flatten)]
    pub logs: LogFlags,
    /// The end.
    #[command(flatten)]
    pub shutdown: ShutdownFlags,
}

/// Resource name to amount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity(pub BTreeMap<String, Quantity>);

fn capacity(text: &str) -> Result<Capacity, String> {
    let mut amounts = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) =
            part.split_once('=').ok_or_else(|| format!("{part:?} is not `resource=quantity`"))?;
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") {
            return Err(format!("{name:?} is not one of cpu, memory, ephemeral-storage"));
        }
        let amount = Quantity::parse(value).map_err(|error| format!("{name}={value}: {error}"))?;
        if amounts.insert(name.to_owned(), amount).is_some() {
            return Err(format!("{name} is given twice"));
        }
    }
    Ok(Capacity(amounts))
}

/// A name that may stand in a label.
pub(crate) fn label_name(text: &str) -> Result<String, String> {
    let fits = (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if fits {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 63 lower-case letters, digits and `-`, and begin and end with none of the latter"
            .to_owned())
    }
}

fn identity(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 128 || text.chars().any(char::is_control) {
        return Err("must be 1 to 128 printable characters".to_owned());
    }
    Ok(text.to_owned())
}

/// The identity used when no flag names one: unique for each process.
pub fn default_identity() -> String {
    let host = std::env::var("HOSTNAME")
        .or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"))
        .unwrap_or_else(|_| "agent".to_owned());
    let host: String = host.trim().chars().take(63).collect();
    format!("{host}_{:08x}", rand::random::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &[&str]) -> Result<Args, String> {
        let all = ["stowage-agent"].iter().chain(flags);
        Cli::try_parse_from(all).map(|cli| cli.run).map_err(|error| error.to_string())
    }

    /// BL-142: without a selector, or with one that would make every Pod a base, the agent does not start.
    #[test]
    fn a_selector_is_needed_and_an_empty_one_is_refused() {
        assert!(parse(&[]).expect_err("missing").contains("--base-selector"));
        for empty in ["", " ", ",", "x in ()"] {
            let error = parse(&["--base-selector", empty]).expect_err(empty);
            assert!(error.contains("--base-selector"), "{error}");
        }
        let args = parse(&["--base-selector", "app=base"]).expect("good");
        assert_eq!(args.base_selector.as_ref().map(Selector::as_str), Some("app=base"));
        assert_eq!(args.base_cluster_id, "default");
        assert_eq!(args.taint_value, "true");
    }

    /// BL-128: a wrong value ends the start with the flag and the value named.
    #[test]
    fn values_are_named_when_wrong() {
        let with = |more: &[&str]| parse(&[&["--base-selector", "a=b"], more].concat());
        let error = with(&["--default-capacity", "cpu=fast"]).expect_err("quantity");
        assert!(error.contains("fast") && error.contains("--default-capacity"), "{error}");
        let error = with(&["--default-capacity", "gpu=1"]).expect_err("resource");
        assert!(error.contains("gpu"), "{error}");
        assert!(with(&["--taint-value", "yes"]).is_err());
        assert!(with(&["--base-cluster-id", "A_b"]).is_err());
        assert!(with(&["--base-namespaces", "shop,"]).is_err());
        let args = with(&["--base-namespaces", "shop,pay", "--default-capacity", "cpu=500m,memory=2Gi"])
            .expect("good");
        assert_eq!(args.base_namespaces, ["shop", "pay"]);
        assert_eq!(args.default_capacity.0.len(), 2);
    }

    #[test]
    fn an_agent_looks_after_a_fleet_or_after_one_base() {
        let args = parse(&["--base-pod", "shop/base-0", "--base-uid", "u"]).expect("good");
        assert_eq!(args.base_pod.map(|pod| pod.to_string()).as_deref(), Some("shop/base-0"));
        let error = parse(&["--base-pod", "base-0"]).expect_err("no namespace");
        assert!(error.contains("--base-pod") && error.contains("<namespace>/<name>"), "{error}");
        for other in ["--base-selector=a=b", "--base-namespaces=a", "--base-kubeconfig=k", "--lease-name=l"] {
            let error = parse(&["--base-pod", "shop/base-0", other]).expect_err(other);
            assert!(error.contains("cannot be used with"), "{error}");
        }
        assert!(parse(&["--base-selector", "a=b", "--base-uid", "u"]).is_err());
    }

    #[test]
    fn commands_need_none_of_the_agents_flags() {
        let command =
            |words: &[&str]| Cli::try_parse_from([&["stowage-agent"], words].concat()).map(|cli| cli.command);
        assert!(matches!(command(&["retire", "--yes"]), Ok(Some(Command::Retire(flags))) if flags.yes));
        assert!(matches!(command(&["preflight", "-o", "json"]), Ok(Some(Command::Preflight(_)))));
        assert!(matches!(command(&["--base-selector", "a=b"]), Ok(None)));
        assert!(command(&["--base-selector", "a=b", "retire"]).is_err(), "one or the other");
        assert!(command(&["preflight", "--base-selector", ""]).is_err());
    }

    #[test]
    fn identities_differ() {
        assert_ne!(default_identity(), default_identity());
    }
}
