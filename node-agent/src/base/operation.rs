//! One operation on a base from beginning to end: the truth before it, the call, the truth after it.
//! Runs as a task of its own; the actor hears of it once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::context::Meter;
use super::downloads::Downloads;
use super::state::{ModuleId, Operation};
use super::transition::{Ended, Outcome};
use crate::arklet::{
    Biz, BizState, CallError, Class, Client, Code, Endpoint, Failure, Install, Limits, Reply,
};
use crate::audit;
use crate::journal::Pen;
use crate::lease::Term;

/// What an operation needs.
pub(super) struct Call {
    pub(super) arklet: Client,
    pub(super) base: Endpoint,
    pub(super) limits: Limits,
    pub(super) meter: Arc<dyn Meter>,
    pub(super) audit: audit::Pending,
    /// For `kubectl logs`.
    pub(super) pen: Pen,
    /// The time in which this agent may act.
    pub(super) term: Term,
    pub(super) kind: Operation,
    pub(super) id: ModuleId,
    pub(super) uid: Option<String>,
    pub(super) container: Option<String>,
    /// Other versions of the name that the planner went by.
    pub(super) others: Vec<String>,
}

/// A list of modules and when it was asked for.
pub(super) type Listed = (Instant, Vec<Biz>);

/// How an operation ended, and the truth after it where it could be read.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) ended: Ended,
    pub(super) list: Option<Listed>,
}

impl Call {
    /// Installs: the owner stands on the Node, a slot is free, and the truth is as expected.
    pub(super) async fn install(
        mut self,
        ask: Install,
        downloads: Arc<Downloads>,
        written: oneshot::Receiver<Result<(), String>>,
        sent: impl FnOnce() + Send,
    ) -> Report {
        if let Err(error) = written.await.unwrap_or_else(|_| Err("nobody writes the Node".to_owned())) {
            tracing::warn!(module = %self.id, %error, "owner not written, install not sent");
            self.pen.note(&format!("install not sent, its owner is not written to the Node: {error}"));
            // Whoever cannot write the Node tries again on its own; asking it in a tight loop helps nobody.
            tokio::time::sleep(Duration::from_secs(1)).await;
            return self.ended(Outcome::Unsent, None);
        }
        fault_point!(OwnerWritten);
        // Only now: whoever waits for the API server must not keep installs on other bases waiting.
        let _permit = downloads.acquire().await;
        let list = match self.query().await {
            Ok(list) => list,
            Err(failure) => return self.ended(Outcome::Failed(failure), None),
        };
        if !self.as_expected(&list.1) {
            self.pen.note("install not sent: the base lists other modules than it did before");
            return self.ended(Outcome::Unsent, Some(list));
        }
        fault_point!(InstallChecked);
        self.audit.sent();
        sent();
        let asked = format!("installBiz {} from {} with {} arguments", self.id, ask.biz_url, ask.args.len());
        self.pen.note(&asked);
        let began = Instant::now();
        let reply = self.arklet.install(self.base, &ask, self.limits, &self.may()).await;
        fault_point!(InstallAnswered);
        self.note_reply("installBiz", &reply, began);
        let outcome = self.judged(&reply);
        if outcome == Outcome::Unsent {
            return self.ended(outcome, None);
        }
        let took = began.elapsed();
        let list = self.query().await.ok();
        fault_point!(InstallConfirmed);
        // Whatever was answered, the list decides.
        let absent = list
            .as_ref()
            .is_some_and(|(_, list)| self.find(list).is_none_or(|biz| biz.state == BizState::Broken));
        let outcome = match outcome {
            Outcome::Done if absent => Outcome::Failed(Failure::new(
                Code::NotActive,
                "arklet said success, but the module is not active",
            )),
            other => other,
        };
        let code = match &outcome {
            Outcome::Failed(failure) => failure.code.as_str(),
            Outcome::Other(_) => Code::IdentityDiffers.as_str(),
            Outcome::Done | Outcome::Unsent => "ok",
        };
        self.meter.install(code, took.as_secs_f64());
        self.ended(outcome, list)
    }

    /// Makes a deactivated version the active one.
    pub(super) async fn switch(mut self) -> Report {
        self.audit.sent();
        let (name, version) = (&self.id.name, &self.id.version);
        self.pen.note(&format!("switchBiz {}", self.id));
        let began = Instant::now();
        let reply = self.arklet.switch(self.base, name, version, self.limits, &self.may()).await;
        fault_point!(SwitchAnswered);
        self.note_reply("switchBiz", &reply, began);
        let outcome = self.judged(&reply);
        let list = self.query().await.ok();
        self.ended(outcome, list)
    }

    /// Uninstalls. What is not there is uninstalled; whatever was answered, the list decides.
    pub(super) async fn uninstall(mut self) -> Report {
        self.audit.sent();
        let (name, version) = (&self.id.name, &self.id.version);
        self.pen.note(&format!("uninstallBiz {}", self.id));
        let began = Instant::now();
        let reply = self.arklet.uninstall(self.base, name, version, self.limits, &self.may()).await;
        fault_point!(UninstallAnswered);
        self.note_reply("uninstallBiz", &reply, began);
        let outcome = match reply {
            Ok(reply) if reply.inner_code().eq_ignore_ascii_case("NOT_FOUND_BIZ") => Outcome::Done,
            reply => self.judged(&reply),
        };
        let list = self.query().await.ok();
        fault_point!(UninstallConfirmed);
        let still = list.as_ref().is_some_and(|(_, list)| self.find(list).is_some());
        let outcome = match outcome {
            Outcome::Done if still => Outcome::Failed(Failure::new(
                Code::StillListed,
                "uninstall was answered with success, but the base still lists the module",
            )),
            Outcome::Failed(_) if list.is_some() && !still => Outcome::Done,
            other => other,
        };
        self.meter.uninstall(match &outcome {
            Outcome::Failed(failure) => failure.code.as_str(),
            _ => "ok",
        });
        self.ended(outcome, list)
    }

    /// Right before something is changed: whether this agent still leads.
    fn may(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let term = self.term.clone();
        move || term.holds()
    }

    async fn query(&self) -> Result<Listed, Failure> {
        let asked = Instant::now();
        let list = self.arklet.query_all(self.base, self.limits).await;
        list.map(|list| (asked, list)).map_err(|error| Failure::of_call(&error))
    }

    fn find<'a>(&self, list: &'a [Biz]) -> Option<&'a Biz> {
        list.iter().find(|biz| biz.name == self.id.name && biz.version == self.id.version)
    }

    fn as_expected(&self, list: &[Biz]) -> bool {
        let mut others: Vec<_> = list
            .iter()
            .filter(|biz| biz.name == self.id.name && biz.version != self.id.version)
            .map(|biz| biz.version.clone())
            .collect();
        others.sort_unstable();
        self.find(list).is_none() && others == self.others
    }

    fn judged(&self, reply: &Result<Reply, CallError>) -> Outcome {
        let reply = match reply {
            Ok(reply) => reply,
            Err(CallError::Withheld) => return Outcome::Unsent,
            Err(error) => return Outcome::Failed(Failure::of_call(error)),
        };
        if let Some(mut failure) = Failure::of_reply(reply) {
            // The base says that it has something already, but names something else: the jar's identity.
            if failure.code == Code::Repeat
                && failure.message.starts_with("Biz: ")
                && !failure.message.starts_with(&format!("Biz: {} ", self.id))
            {
                failure.code = Code::IdentityDiffers;
            }
            return Outcome::Failed(failure);
        }
        match reply.installed() {
            Some(biz) if biz.name != self.id.name || biz.version != self.id.version => {
                Outcome::Other(ModuleId { name: biz.name, version: biz.version })
            }
            _ => Outcome::Done,
        }
    }

    fn note_reply(&self, command: &str, reply: &Result<Reply, CallError>, began: Instant) {
        if !self.pen.is_on() {
            return;
        }
        let took = began.elapsed();
        match reply {
            Ok(reply) => {
                for line in answer_lines(command, reply, took) {
                    self.pen.note(&line);
                }
            }
            Err(CallError::Withheld) => {
                self.pen.note(&format!("{command} not sent: this agent may not act any more"));
            }
            Err(error) => self.pen.note(&format!("no answer to {command} after {took:.1?}: {error}")),
        }
    }

    fn note_end(&self, outcome: &Outcome, list: Option<&Listed>) {
        let now = match list.map(|(_, list)| self.find(list)) {
            Some(Some(biz)) => format!("the base lists {} as {}", self.id, biz.state.word()),
            Some(None) => format!("the base does not list {}", self.id),
            None => "the base could not be asked for its modules".to_owned(),
        };
        match outcome {
            Outcome::Unsent => {}
            Outcome::Done => self.pen.note(&format!("done; {now}")),
            Outcome::Other(actual) => self.pen.note(&format!(
                "failed ({}): the jar says that it is {actual}; {now}",
                Code::IdentityDiffers.as_str()
            )),
            Outcome::Failed(failure) => {
                self.pen.note(&format!("failed ({}): {failure}", failure.code.as_str()));
                self.pen.note(&now);
            }
        }
    }

    fn ended(mut self, outcome: Outcome, list: Option<Listed>) -> Report {
        let active = list
            .as_ref()
            .and_then(|(_, list)| self.find(list))
            .is_some_and(|biz| biz.state == BizState::Activated);
        match &outcome {
            Outcome::Failed(failure) if failure.class() == Class::Poisonous => {
                tracing::warn!(module = %self.id, "class memory of the base is used up");
            }
            _ => {}
        }
        self.audit.ended(shown(&outcome));
        self.note_end(&outcome, list.as_ref());
        tracing::info!(
            operation = ?self.kind,
            module = %self.id,
            pod_uid = self.uid.as_deref().unwrap_or_default(),
            base = %self.base.ip,
            outcome = shown(&outcome),
            active,
            "operation ended"
        );
        Report {
            ended: Ended { kind: self.kind, id: self.id, uid: self.uid, container: self.container, outcome },
            list,
        }
    }
}

/// Lines of a stack that are shown from its start, and of what caused it.
const STACK: usize = 8;

/// What arklet answered, as lines.
fn answer_lines(command: &str, reply: &Reply, took: Duration) -> Vec<String> {
    let word = |text: &str| text.chars().take(40).collect::<String>();
    let inner = match reply.inner_code() {
        "" => String::new(),
        inner => format!(" ({})", word(inner)),
    };
    let message = if reply.message.is_empty() { reply.inner_message() } else { &reply.message };
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    let mut lines = vec![format!(
        "arklet answered {command} after {took:.1?}: {}{inner}{message}",
        if reply.code.is_empty() { "no code".to_owned() } else { word(&reply.code) },
    )];
    let stack = || reply.error_stack_trace.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.extend(stack().take(STACK).map(|line| format!("stack: {line}")));
    let causes = stack().skip(STACK).filter(|line| line.starts_with("Caused by:"));
    lines.extend(causes.take(STACK).map(|line| format!("stack: {line}")));
    lines
}

fn shown(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "ok",
        Outcome::Unsent => "unsent",
        Outcome::Other(_) => Code::IdentityDiffers.as_str(),
        Outcome::Failed(failure) => failure.code.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::NoMeter;

    fn call() -> Call {
        let text = |text: &str| text.to_owned();
        let (name, version) = (text("shop"), text("1"));
        let base = audit::Base {
            cluster: text("c"),
            namespace: text("bases"),
            pod: text("base-0"),
            uid: text("b"),
            node: text("vnode"),
        };
        let subject = audit::Subject {
            operation: audit::Operation::Install,
            actor: None,
            base,
            module: name.clone(),
            version: version.clone(),
            digest: None,
        };
        let limit = Duration::from_secs(5);
        Call {
            arklet: Client::new(),
            // Nobody listens there.
            base: Endpoint { ip: [127, 0, 0, 1].into(), port: 1 },
            limits: Limits { query: limit, operation: limit, uninstall: limit },
            meter: Arc::new(NoMeter),
            audit: audit::AuditLog::default().begin(subject),
            pen: Pen::default(),
            term: Term::unlimited(),
            kind: Operation::Install,
            id: ModuleId { name, version },
            uid: Some(text("p")),
            container: Some(text("shop")),
            others: Vec::new(),
        }
    }

    #[test]
    fn an_answer_is_told_with_the_start_of_its_stack_and_every_cause() {
        let frames = "\n\tat a.B.c(D.java:1)".repeat(20);
        let stack =
            format!("x.Error: outer{frames}\nCaused by: y.Error: inner{frames}\nCaused by: z.Error: root");
        let json = serde_json::json!({
            "code": "CMD_PROCESS_INTERNAL_ERROR", "message": "Internal Error: outer", "errorStackTrace": stack,
        });
        let reply: Reply = serde_json::from_value(json).expect("a reply");
        let lines = answer_lines("installBiz", &reply, Duration::from_millis(1500));
        assert_eq!(
            lines[0],
            "arklet answered installBiz after 1.5s: CMD_PROCESS_INTERNAL_ERROR: Internal Error: outer"
        );
        assert_eq!(lines.len(), 1 + STACK + 2);
        assert_eq!(
            (lines[1].as_str(), lines[2].as_str()),
            ("stack: x.Error: outer", "stack: at a.B.c(D.java:1)")
        );
        assert_eq!(lines[10], "stack: Caused by: z.Error: root");
    }

    #[tokio::test]
    async fn nobody_waits_for_the_node_with_a_slot_in_hand() {
        let downloads = Arc::new(Downloads::new(1));
        let (written, told) = oneshot::channel();
        let ask = Install {
            biz_name: "shop".to_owned(),
            biz_version: "1".to_owned(),
            biz_url: "https://repo/shop.jar".to_owned(),
            args: Vec::new(),
        };
        let install = call().install(ask, Arc::clone(&downloads), told, || panic!("nothing can be sent"));
        tokio::pin!(install);
        assert!(futures::poll!(install.as_mut()).is_pending());
        assert_eq!(downloads.used(), 0, "the Node is not written yet");
        written.send(Ok(())).expect("it waits");
        let report = install.await;
        assert!(
            matches!(&report.ended.outcome, Outcome::Failed(failure) if failure.code == Code::BaseUnreachable)
        );
        assert_eq!(downloads.used(), 0);
    }
}
