//! What a failed test prints.

use std::{fmt::Write, fs, thread, time::Duration};

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{Stage, objects};
use crate::logs;

/// Lines of an agent's log.
const AGENT_LINES: usize = 80;
const OTHER_LINES: usize = 25;
/// The control plane may be what is broken.
const LIMIT: Duration = Duration::from_secs(10);

/// What needs no API server.
fn of_ours(stage: &Stage) -> String {
    let mut text = String::from("---- bases\n");
    for base in stage.all_bases() {
        writeln!(text, "{}", base.story()).ok();
    }
    for file in
        stage.bases.logs().into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten()
    {
        let path = file.path();
        if path.is_file() {
            writeln!(text, "---- {}\n{}", path.display(), logs::tail(&path, OTHER_LINES)).ok();
        }
    }
    for (number, agent) in stage.agents.iter().enumerate() {
        let end = agent.exit_status().map_or_else(|| "runs".to_owned(), |status| format!("ended, {status}"));
        writeln!(text, "---- agent {number} ({end}), {}", agent.log_file().display()).ok();
        writeln!(text, "{}", logs::tail(agent.log_file(), AGENT_LINES)).ok();
    }
    writeln!(text, "---- extender, {}", stage.extender.log_file().display()).ok();
    writeln!(text, "{}", stage.extender.log_tail(OTHER_LINES)).ok();
    writeln!(text, "---- scheduler\n{}", stage.scheduler.log_tail(OTHER_LINES)).ok();
    text
}

async fn cluster(client: Client, namespace: &str) -> Result<String, kube::Error> {
    let all = ListParams::default();
    let mut text = String::from("---- Nodes\n");
    for node in Api::<Node>::all(client.clone()).list(&all).await? {
        writeln!(text, "{}", objects::describe_node(&node)).ok();
    }
    text.push_str("---- Pods\n");
    for pod in Api::<Pod>::namespaced(client.clone(), namespace).list(&all).await? {
        writeln!(text, "{}", objects::describe_pod(&pod)).ok();
    }
    text.push_str("---- Events\n");
    let mut events = Api::<Event>::namespaced(client.clone(), namespace).list(&all).await?.items;
    events.extend(Api::<Event>::namespaced(client, "default").list(&all).await?);
    events.sort_by_key(|event| event.metadata.creation_timestamp.as_ref().map(|time| time.0));
    for event in events {
        let object = &event.involved_object;
        writeln!(
            text,
            "{} {} {}/{} {}: {}",
            event.creation_timestamp().map(|time| time.0.to_string()).unwrap_or_default(),
            event.type_.as_deref().unwrap_or_default(),
            object.kind.as_deref().unwrap_or_default(),
            object.name.as_deref().unwrap_or_default(),
            event.reason.as_deref().unwrap_or_default(),
            event.message.as_deref().unwrap_or_default()
        )
        .ok();
    }
    Ok(text)
}

/// Everything there is to say.
pub(super) async fn collect(stage: &Stage) -> String {
    let asked = tokio::time::timeout(LIMIT, cluster(stage.client(), &stage.namespace)).await;
    let said = match asked {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => format!("the API server says nothing: {error}\n"),
        Err(_) => "the API server does not answer\n".to_owned(),
    };
    said + &of_ours(stage)
}

/// Prints it, from a drop: on a thread of its own, because the test's runtime must not be blocked on itself.
pub(super) fn print(stage: &Stage) {
    let ours = of_ours(stage);
    let (config, namespace) = match stage.cluster() {
        Ok(cluster) => (cluster.config(), stage.namespace.clone()),
        Err(_) => return eprintln!("{ours}"),
    };
    let asking = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async {
            let client = Client::try_from(config).ok()?;
            tokio::time::timeout(LIMIT, cluster(client, &namespace)).await.ok()?.ok()
        })
    });
    let said = asking.join().ok().flatten().unwrap_or_else(|| "the API server does not answer\n".to_owned());
    eprintln!("{said}{ours}");
}
