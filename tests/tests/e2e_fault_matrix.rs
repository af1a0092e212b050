//! Every fault of a simulated base, for each kind of request: what the agent makes of it stands in docs/faults.md, and is
//! compared here. With `STOWAGE_UPDATE_DOCS=1` the table is written anew instead.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod vpods;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use harness::{
    Failure, TestResult,
    arklet::{Fault, On, Throwable},
    kubelet::is_ready,
    stage::{Base, BaseSet, ModuleSet, Stage, VNODES},
    wait,
};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use policy::contract::names;
use serde_json::json;
use vpods::*;

/// Short times: three tries are over soon, and a call without an answer is.
const POLICY: &str = "\
apiVersion: policy.stowage.dev/v1alpha1
kind: OperationsPolicy
health: {interval: 1s, timeout: 2s, failuresBeforeNotReady: 3}
install: {timeout: 3s, attempts: 3, backoff: {initial: 500ms, max: 1s}, downloadsAtOnce: 0}
drain: {wait: 0s, forceAfter: 30m}
brake: {maxShareOfBases: 90%}
";
/// As in the policy.
const ATTEMPTS: usize = 3;
/// All cases go on at once on a machine that does other things as well.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long the table is read before it is written anew.
const SETTLED: Duration = Duration::from_secs(40);

const COMMANDS: [(&str, &str); 4] = [
    ("installBiz", "install"),
    ("uninstallBiz", "uninstall"),
    ("queryAllBiz", "query"),
    ("health", "health"),
];

/// One fault of one kind of request, on a base of its own.
struct Case {
    command: &'static str,
    /// `None`: its port is closed.
    fault: Option<Fault>,
    base: Arc<Base>,
    module: String,
}

/// What goes wrong, in words.
fn told(fault: Option<&Fault>) -> String {
    let words = match fault {
        None => "the port is closed",
        Some(Fault::Latency(_)) => "the answer comes a second late",
        Some(Fault::Hang) => "never carried out, never answered",
        Some(Fault::Reset) => "the connection is reset, nothing is carried out",
        Some(Fault::LoseAnswer) => "carried out, the connection closes without an answer",
        Some(Fault::WithholdAnswer) => "carried out, never answered",
        Some(Fault::Truncate) => "carried out, half an answer",
        Some(Fault::Oversize(_)) => "carried out, an answer of 9 MB",
        Some(Fault::Text(_)) => "carried out, a page instead of JSON",
        Some(Fault::WrongTypes) => "carried out, JSON of other types",
        Some(Fault::Status(_)) => "carried out, 503 from a proxy in between",
        Some(Fault::Conflict) => "refused: another operation on the module is running",
        Some(Fault::MainThrows(_)) => "the module's main throws",
        Some(Fault::MetaspaceFull) => "no metaspace is left",
        Some(Fault::Slow(_)) => "takes longer than `install.timeout`",
        Some(Fault::Vanish) => "answered with success, and the module is gone",
        Some(Fault::Identity(..)) => "the jar is another module",
        Some(Fault::KeepBroken) => "the module's main throws, and the base keeps it as broken",
        Some(Fault::Pretend) => "answered with success, and the module is still there",
        Some(Fault::StopThrows(_)) => "the module throws while it stops",
    };
    words.to_owned()
}

impl Case {
    fn set(&self) -> TestResult {
        let faults = self.base.faults()?;
        let on = || On::command(self.command);
        match &self.fault {
            None => faults.refuse(true),
            Some(fault) => {
                if *fault == Fault::KeepBroken {
                    let thrown = Throwable::new("java.lang.IllegalStateException", "no database");
                    faults.always(on(), Fault::MainThrows(thrown));
                }
                faults.always(on(), fault.clone());
            }
        }
        Ok(())
    }

    fn begins_installed(&self) -> bool {
        self.command != "installBiz"
    }
}

/// What is seen of a case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    state: String,
    codes: String,
    installs: String,
    uninstalls: String,
}

impl Seen {
    /// Nothing more will happen to it by itself.
    fn calm(&self) -> bool {
        !self.state.starts_with("Pending, tried") && !self.state.starts_with("Terminating")
    }
}

/// What the API server holds, read once for all cases.
struct World {
    pods: BTreeMap<String, Pod>,
    nodes: BTreeMap<String, Node>,
    events: Vec<Event>,
}

impl World {
    async fn read(stage: &Stage) -> Result<Self, String> {
        let all = ListParams::default();
        let (pods, nodes, events) = (stage.api::<Pod>(), stage.nodes(), stage.api::<Event>());
        let vnodes = all.clone().labels(VNODES);
        let (pods, nodes, events) =
            futures::try_join!(pods.list(&all), nodes.list(&vnodes), events.list(&all))
                .map_err(|error| error.to_string())?;
        Ok(Self {
            pods: pods.into_iter().map(|pod| (pod.name_any(), pod)).collect(),
            nodes: nodes.into_iter().map(|node| (node.name_any(), node)).collect(),
            events: events.items,
        })
    }

    /// Codes of failures in the Events about a Pod: `shop:1.0.0: no database (StartFailed)`.
    fn codes(&self, pod: &str) -> BTreeSet<String> {
        let about = self.events.iter().filter(|event| event.involved_object.name.as_deref() == Some(pod));
        let failures =
            about.filter(|event| event.reason.as_deref().is_some_and(|reason| reason.ends_with("Failed")));
        let code = |event: &Event| {
            let (_, code) = event.message.as_deref()?.strip_suffix(')')?.rsplit_once('(')?;
            Some(code.to_owned())
        };
        failures.filter_map(code).collect()
    }

    fn state(&self, stage: &Stage, case: &Case, calls: usize) -> String {
        let pod = match self.pods.get(&case.module) {
            None => "gone".to_owned(),
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => "Terminating".to_owned(),
            Some(pod) => match phase(pod) {
                "Failed" => {
                    let installed = harness::stage::pod_condition(pod, names::INSTALLED_CONDITION);
                    let reason = installed.and_then(|installed| installed.reason.clone());
                    format!("Failed, `{}`", reason.unwrap_or_default())
                }
                "Pending" if calls > 1 => "Pending, tried again".to_owned(),
                "Pending" => {
                    let waiting = waiting(pod);
                    let reason = waiting.first().and_then(|waiting| waiting.reason.as_deref());
                    format!("Pending, `{}`", reason.unwrap_or_default())
                }
                phase if is_ready(pod) => format!("{phase}, Ready"),
                phase => format!("{phase}, not Ready"),
            },
        };
        let node = self.nodes.get(&stage.vnode_of(case.base.pod()));
        let ready = node.is_some_and(|node| {
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
        if ready { pod } else { format!("{pod}; VNode not Ready") }
    }

    fn seen(&self, stage: &Stage, case: &Case) -> Result<Seen, String> {
        let journal = case.base.journal().map_err(|error| error.to_string())?;
        let mut calls = [0, 0];
        for entry in journal.operations() {
            match entry.command.as_str() {
                "installBiz" => calls[0] += 1,
                "uninstallBiz" => calls[1] += 1,
                _ => {}
            }
        }
        let what = self.state(stage, case, calls[0]);
        let codes: Vec<String> = self.codes(&case.module).iter().map(|code| format!("`{code}`")).collect();
        let codes = if codes.is_empty() { "-".to_owned() } else { codes.join(", ") };
        let seen = Seen { state: what, codes, installs: String::new(), uninstalls: String::new() };
        let count = |calls: usize, bounded: bool| match calls {
            0 => "-".to_owned(),
            calls if calls > 1 && !bounded => "repeated".to_owned(),
            calls => calls.to_string(),
        };
        // Uninstalls are not counted against a limit: how often one was repeated says how long the fault was there.
        let [installs, uninstalls] = calls;
        let installs = count(installs, seen.calm());
        Ok(Seen { installs, uninstalls: count(uninstalls, uninstalls <= ATTEMPTS && seen.calm()), ..seen })
    }
}

/// During the fault and after it, by base.
type Table = BTreeMap<String, (Seen, Seen)>;

fn page() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/faults.md")
}

fn key(case: &Case) -> String {
    let request = COMMANDS.iter().find(|(command, _)| *command == case.command).expect("one of ours").1;
    format!("{request} | {}", told(case.fault.as_ref()))
}

fn row(key: &str, (during, after): &(Seen, Seen)) -> String {
    let mut row = format!("| {key}");
    for seen in [during, after] {
        write!(row, " | {} | {} / {}", seen.state, seen.installs, seen.uninstalls).expect("a String");
    }
    format!("{row} | {} |\n", after.codes)
}

/// The rows of the page, by request and fault.
fn documented() -> Table {
    let text = std::fs::read_to_string(page()).expect("docs/faults.md");
    let mut table = Table::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let row: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [request, fault, state, calls, then, calls_then, codes] = row.as_slice() else { continue };
        if *request == "request" {
            continue;
        }
        let seen = |state: &str, calls: &str| {
            let (installs, uninstalls) = calls.split_once(" / ").unwrap_or_default();
            Seen {
                state: state.to_owned(),
                codes: (*codes).to_owned(),
                installs: installs.to_owned(),
                uninstalls: uninstalls.to_owned(),
            }
        };
        table.insert(format!("{request} | {fault}"), (seen(state, calls), seen(then, calls_then)));
    }
    table
}

/// Whether a case is as wanted; codes may still come while a fault lasts.
fn meets(seen: &Seen, wanted: &Seen) -> bool {
    (&seen.state, &seen.installs, &seen.uninstalls) == (&wanted.state, &wanted.installs, &wanted.uninstalls)
}

/// Waits until all cases are as wanted, and gives what was seen. Without a wish: what is seen most often.
async fn settle(
    stage: &Stage,
    cases: &[Case],
    wanted: Option<&BTreeMap<String, Seen>>,
) -> Result<BTreeMap<String, Seen>, Failure> {
    let clock = &cases[0].base;
    let look = async || {
        // Once a second, as the agent counts it.
        queried(clock, 1).await.map_err(|error| error.to_string())?;
        let world = World::read(stage).await?;
        let seen = cases.iter().map(|case| Ok((key(case), world.seen(stage, case)?)));
        seen.collect::<Result<BTreeMap<_, _>, String>>()
    };
    let Some(wanted) = wanted else {
        let mut counts: BTreeMap<String, BTreeMap<Seen, usize>> = BTreeMap::new();
        let mut rounds = 0;
        wait::throughout("cases that settle", SETTLED, async || {
            rounds += 1;
            for (key, seen) in look().await? {
                let count = counts.entry(key).or_default().entry(seen).or_default();
                // What it comes to counts, not how it comes there.
                *count += rounds;
            }
            Ok::<_, String>(())
        })
        .await?;
        let most =
            |seen: BTreeMap<Seen, usize>| seen.into_iter().max_by_key(|(_, count)| *count).expect("seen").0;
        return Ok(counts.into_iter().map(|(key, seen)| (key, most(seen))).collect());
    };
    let missing = |seen: &BTreeMap<String, Seen>| {
        let differs =
            |(key, wanted): &(&String, &Seen)| !seen.get(*key).is_some_and(|seen| meets(seen, wanted));
        let wrong = wanted.iter().filter(differs);
        wrong
            .map(|(key, wanted)| format!("{key}\n  wanted {wanted:?}\n  seen   {:?}", seen.get(key)))
            .collect::<Vec<_>>()
    };
    // A row that changes for ever is right when it was right once; one that rests must be so in the end.
    let mut met = BTreeSet::new();
    let seen = wait::until("cases as docs/faults.md tells them", PATIENCE, async || {
        let seen = look().await?;
        for (key, wanted) in wanted {
            let now = seen.get(key).is_some_and(|seen| meets(seen, wanted));
            if now {
                met.insert(key.clone());
            } else if wanted.calm() {
                met.remove(key);
            }
        }
        if met.len() == wanted.len() { Ok(seen) } else { Err(missing(&seen).join("\n")) }
    })
    .await?;
    for _ in 0..3 {
        let later = look().await?;
        for (key, wanted) in wanted.iter().filter(|(_, wanted)| wanted.calm()) {
            assert!(meets(&later[key], wanted), "{key}: {:?}, then {:?}", seen[key], later[key]);
        }
    }
    // Rows that never rest are told as they were when they were right.
    let mut seen = look().await?;
    for (key, wanted) in wanted.iter().filter(|(_, wanted)| !wanted.calm()) {
        if let Some(seen) = seen.get_mut(key) {
            *seen = Seen { codes: seen.codes.clone(), ..wanted.clone() };
        }
    }
    Ok(seen)
}

fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for (command, _) in COMMANDS {
        let faults = Fault::examples().into_iter().filter(|fault| fault.concerns(command)).map(Some);
        // A closed port is closed for every request.
        let closed = (command != "health").then_some(None);
        for fault in faults.chain(closed) {
            let number = cases.len();
            let base = stage.base(&format!("base-{number}"))?;
            cases.push(Case { command, fault, base, module: format!("m{number}") });
        }
    }
    Ok(cases)
}

fn how_many() -> u32 {
    let faults = Fault::examples();
    let of = |command: &str| faults.iter().filter(|fault| fault.concerns(command)).count();
    let all: usize = COMMANDS.iter().map(|(command, _)| of(command)).sum();
    u32::try_from(all + 3).expect("few")
}

/// In one control plane at once, each case on a base of its own.
#[tokio::test]
async fn every_fault_comes_to_what_the_page_tells() -> TestResult {
    // What becomes of a base without metaspace is the subject of other tests.
    let bases = BaseSet::stateful("base", "2.1.0", how_many()).annotation(names::OVERLOAD, "ignore");
    let stage = Stage::builder().policy(POLICY).base_set(bases).build().await?;
    if !stage.is_simulated() {
        return Ok(());
    }
    let cases = cases(&stage)?;
    let mut pods = String::new();
    for case in &cases {
        let url = jar(&stage, &case.module, "1.0.0")?;
        let set = ModuleSet::deployment(&case.module, "1.0.0", &url)
            .grace(2)
            .pod_field("nodeName", json!(stage.vnode_of(case.base.pod())));
        if case.begins_installed() {
            writeln!(pods, "---\n{}", set.pod_yaml(&case.module))?;
        }
    }
    stage.apply(&pods).await?;
    for case in cases.iter().filter(|case| case.begins_installed()) {
        pod_ready(&stage, &case.module).await?;
    }
    pods.clear();
    let mut figures = BTreeMap::new();
    for case in &cases {
        figures.insert(case.module.clone(), case.base.journal()?.count("health"));
        case.set()?;
        if case.command == "uninstallBiz" {
            // At once: what the agent finds out by its checks before that is another case.
            stage.api::<Pod>().delete(&case.module, &DeleteParams::default()).await?;
        }
        if !case.begins_installed() {
            let url = jar(&stage, &case.module, "1.0.0")?;
            let set = ModuleSet::deployment(&case.module, "1.0.0", &url)
                .pod_field("nodeName", json!(stage.vnode_of(case.base.pod())));
            writeln!(pods, "---\n{}", set.pod_yaml(&case.module))?;
        }
    }
    stage.apply(&pods).await?;

    let update = std::env::var_os("STOWAGE_UPDATE_DOCS").is_some();
    let page_says = documented();
    let wish = |pick: fn(&(Seen, Seen)) -> Seen| -> Option<BTreeMap<String, Seen>> {
        (!update).then(|| page_says.iter().map(|(key, row)| (key.clone(), pick(row))).collect())
    };
    if !update {
        let keys: BTreeSet<_> = cases.iter().map(key).collect();
        assert_eq!(
            page_says.keys().cloned().collect::<BTreeSet<_>>(),
            keys,
            "run with STOWAGE_UPDATE_DOCS=1"
        );
    }
    let during = settle(&stage, &cases, wish(|row| row.0.clone()).as_ref()).await?;
    for case in cases.iter().filter(|case| case.command == "health") {
        let (journal, before) = (case.base.journal()?, figures[&case.module]);
        journal.until(SOON, |journal| journal.count("health") > before).await?;
    }
    for case in &cases {
        case.base.faults()?.clear();
    }
    let after = settle(&stage, &cases, wish(|row| row.1.clone()).as_ref()).await?;
    stage_lives(&stage)?;

    let mut table = "| request | what goes wrong | while it lasts | installs / uninstalls | when it is over | installs / uninstalls | codes |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    for case in &cases {
        let key = key(case);
        table.push_str(&row(&key, &(during[&key].clone(), after[&key].clone())));
    }
    let text = std::fs::read_to_string(page())?;
    let (start, end) = ("<!-- table -->\n", "<!-- /table -->");
    let (head, rest) = text.split_once(start).expect("start of the table");
    let (block, tail) = rest.split_once(end).expect("end of the table");
    if update {
        std::fs::write(page(), format!("{head}{start}{table}{end}{tail}"))?;
    } else {
        assert_eq!(block, table, "run the test with STOWAGE_UPDATE_DOCS=1 and review the change");
    }
    Ok(())
}

fn stage_lives(stage: &Stage) -> TestResult {
    assert_eq!(stage.agent(0)?.exit_status(), None, "the agent lives");
    Ok(())
}
