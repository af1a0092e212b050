//! The commands: from a path and a body to what the envelope of the reply will hold.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::base::{Base, Decay};
use super::faults::Fault;
use super::input::{self, Body, Handler, HealthQuery, Operation};
use super::operations::Ending;
use super::options::BaseField;
use super::throwable::Throwable;
use super::{health, install, uninstall};

/// What a command came to.
#[derive(Debug)]
pub(super) enum Outcome {
    Success(Value),
    Failed {
        message: String,
        data: Option<Value>,
    },
    Thrown(Throwable),
    Unknown,
    /// No reply, as from a JVM that hangs.
    Silence,
}

impl Outcome {
    /// An operation that ark refused: the reason stands inside `data`.
    pub(super) fn refused(handler: Handler, data: Value) -> Self {
        Self::Failed { message: handler.refusal().to_owned(), data: Some(data) }
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), data: None }
    }

    /// The envelope; none for silence.
    pub(super) fn envelope(&self, base: &Base) -> Option<Value> {
        let mut envelope = Map::new();
        let mut named = true;
        let code = match self {
            Self::Success(data) => {
                envelope.insert("data".to_owned(), data.clone());
                "SUCCESS"
            }
            Self::Failed { message, data } => {
                if let Some(data) = data {
                    envelope.insert("data".to_owned(), data.clone());
                }
                envelope.insert("message".to_owned(), json!(message));
                "FAILED"
            }
            Self::Thrown(thrown) => {
                named = false;
                envelope.insert("errorStackTrace".to_owned(), json!(thrown.stack_trace()));
                envelope.insert("message".to_owned(), json!(format!("Internal Error: {}", thrown.message())));
                "CMD_PROCESS_INTERNAL_ERROR"
            }
            Self::Unknown => {
                named = false;
                envelope.insert("message".to_owned(), json!("please follow the doc"));
                "CMD_NOT_FOUND"
            }
            Self::Silence => return None,
        };
        envelope.insert("code".to_owned(), json!(code));
        let field = match base.options().release.base {
            BaseField::Identity => Some("baseIdentity"),
            BaseField::Id => Some("baseID"),
            BaseField::Absent => None,
        };
        if let Some(field) = field.filter(|_| named) {
            envelope.insert(field.to_owned(), json!(base.identity()));
        }
        Some(Value::Object(envelope))
    }
}

/// Carries a command out.
pub(super) async fn process(base: &Arc<Base>, command: &str, body: &Body, faults: &[Fault]) -> Outcome {
    let read = match command {
        "help" => return help(base),
        "queryAllBiz" => {
            let release = base.options().release;
            let listed = base.ark().modules().iter().map(|biz| biz.listed(release)).collect();
            return Outcome::Success(listed);
        }
        "health" => return health::report(base, &HealthQuery::read(body)),
        "queryBizOps" => return query_operation(base, body),
        "installBiz" => input::read_install(body).map(Operation::Install),
        "uninstallBiz" => input::read_exact(Handler::Uninstall, body).map(Operation::Uninstall),
        "switchBiz" => input::read_exact(Handler::Switch, body).map(Operation::Switch),
        "batchInstallBiz" if base.options().release.batch => input::read_batch(body).map(Operation::Batch),
        _ => return Outcome::Unknown,
    };
    let operation = match read {
        Ok(Operation::Install(request)) => match install::with_identity(request).await {
            Ok(request) => Operation::Install(request),
            Err(thrown) => return Outcome::Thrown(thrown),
        },
        Ok(operation) => operation,
        Err(thrown) => return Outcome::Thrown(thrown),
    };
    if operation.subject().is_background() {
        submit(base, operation, faults.to_vec())
    } else {
        run_now(base, &operation, faults).await
    }
}

fn help(base: &Base) -> Outcome {
    let commands = [
        ("health", "get all health info"),
        ("batchInstallBiz", "install one ark biz"),
        ("queryAllBiz", "query all ark biz(including master biz)"),
        ("help", "list all supported commands"),
        ("uninstallBiz", "uninstall one ark biz"),
        ("switchBiz", "switch one ark biz"),
        ("installBiz", "install one ark biz"),
        ("queryBizOps", "query ark biz ops"),
    ];
    let known = commands.iter().filter(|(id, _)| *id != "batchInstallBiz" || base.options().release.batch);
    Outcome::Success(known.map(|(id, desc)| json!({ "desc": desc, "id": id })).collect())
}

fn query_operation(base: &Base, body: &Body) -> Outcome {
    match input::read_request_id(body) {
        Err(thrown) => Outcome::Thrown(thrown),
        Ok(id) => match base.operations().show(&id) {
            Some(record) => Outcome::Success(record),
            None => Outcome::failed("Not found the corresponding ops record."),
        },
    }
}

/// Runs an operation on the caller's worker.
async fn run_now(base: &Arc<Base>, operation: &Operation, faults: &[Fault]) -> Outcome {
    let command = operation.handler().command();
    let key = operation.subject().lock_key();
    let taken = base.locks().take(&key, command);
    let forced = faults.contains(&Fault::Conflict).then_some(command);
    if let Some(holder) = taken.err().or(forced) {
        if taken.is_ok() {
            base.locks().release(&key);
        }
        return Outcome::failed(format!(
            "FAILED:{key} {command} conflict, exist unfinished command({holder}) for this biz"
        ));
    }
    let outcome = perform(base, operation, faults).await;
    base.locks().release(&key);
    outcome
}

/// Opens a record and hands an operation to the pool.
fn submit(base: &Arc<Base>, operation: Operation, faults: Vec<Fault>) -> Outcome {
    let id = operation.subject().request_id.clone().unwrap_or_default();
    let submitted = {
        let mut operations = base.operations();
        if operations.open(&id, operation.echo(), base.now()) { operations.show(&id) } else { None }
    };
    let Some(record) = submitted else {
        let message = format!("The request corresponding to the requestId({id}) has been executed.");
        return Outcome::failed(message);
    };
    let background = Arc::clone(base);
    base.tasks.spawn(async move {
        let life = background.life.clone();
        tokio::select! {
            () = life.cancelled() => {}
            () = run_in_pool(&background, &id, &operation, &faults) => {}
        }
    });
    Outcome::Success(record)
}

async fn run_in_pool(base: &Arc<Base>, id: &str, operation: &Operation, faults: &[Fault]) {
    base.operations().taken(id);
    let key = operation.subject().lock_key();
    let taken = base.locks().take(&key, operation.handler().command());
    let ending = if taken.is_err() || faults.contains(&Fault::Conflict) {
        Ending::Conflict
    } else {
        base.operations().executing(id);
        match perform(base, operation, faults).await {
            Outcome::Success(_) => Ending::Done,
            Outcome::Thrown(thrown) => Ending::Thrown(thrown),
            Outcome::Failed { .. } | Outcome::Unknown | Outcome::Silence => {
                Ending::Refused(operation.handler().refusal())
            }
        }
    };
    // A real arklet unlocks here even when it never had the lock, and so frees another operation's.
    base.locks().release(&key);
    base.operations().end(id, ending, base.now());
}

async fn perform(base: &Arc<Base>, operation: &Operation, faults: &[Fault]) -> Outcome {
    match operation {
        Operation::Install(request) => install::install(base, request, faults).await,
        Operation::Batch(batch) => install::batch(base, batch, faults).await,
        Operation::Uninstall(subject) => uninstall::uninstall(base, subject, faults).await,
        Operation::Switch(subject) => uninstall::switch(base, subject),
    }
}

/// What an exhausted JVM does instead of a command; none if it still carries it out.
pub(super) fn decayed(decay: Decay, base: &Base, command: &str, body: &Body) -> Option<Outcome> {
    if decay != Decay::Exhausted {
        return None;
    }
    match command {
        "health" => Some(Outcome::Silence),
        "installBiz" => {
            let request = input::read_install(body).ok()?;
            let (name, version) = (request.subject.name?, request.subject.version?);
            let is_known = base.ark().find(&name, &version).is_some();
            (!is_known).then(|| Outcome::Thrown(Throwable::metaspace()))
        }
        _ => None,
    }
}
