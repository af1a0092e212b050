//! The task that asks what is due for one run of a module.

use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::ask::once;
use super::health::{Before, Failing, Health, Verdict};
use super::spec::{Check, Probes};

/// Whose probes they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// UID of the VPod.
    pub uid: String,
    /// Name of the container.
    pub container: String,
    /// Tells this run of the module from the ones before it.
    pub run: u64,
}

/// What became known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Something else holds now.
    Verdict(Verdict),
    /// A probe failed that had not failed before, or had succeeded since.
    Failed(Failing),
}

/// News of one run of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// Whose.
    pub subject: Subject,
    /// What.
    pub news: News,
}

/// Runs the probes of a module that has been active for `age`, until nothing is left to ask, the receiver is gone or
/// the task is dropped; sends only changes against `before`.
pub async fn run(
    ip: IpAddr,
    probes: Probes,
    before: Before,
    age: Duration,
    subject: Subject,
    out: mpsc::UnboundedSender<Box<Heard>>,
) {
    let ask = move |check: Check| async move { once(ip, &check.target, check.timeout).await };
    drive(Health::new(&probes, before, age), age, subject, out, ask).await;
}

async fn drive<A, F>(
    mut health: Health,
    age: Duration,
    subject: Subject,
    out: mpsc::UnboundedSender<Box<Heard>>,
    ask: A,
) where
    A: Fn(Check) -> F,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let began = Instant::now();
    let now = || age.saturating_add(began.elapsed());
    let mut shown = health.verdict();
    let mut asked = JoinSet::new();
    loop {
        for (kind, check) in health.due(now()) {
            let answer = ask(check);
            asked.spawn(async move { (kind, answer.await) });
        }
        let next = health.wake().map(|next| began + next.saturating_sub(age));
        let answer = tokio::select! {
            Some(answer) = asked.join_next() => Some(answer),
            () = until(next), if next.is_some() => None,
            else => return,
        };
        // What did not end by itself was aborted with this task.
        let Some(Ok((kind, outcome))) = answer else { continue };
        let mut news = Vec::new();
        news.extend(health.answered(kind, outcome, now()).map(News::Failed));
        let verdict = health.verdict();
        if verdict != shown {
            shown = verdict.clone();
            news.push(News::Verdict(verdict));
        }
        for news in news {
            if out.send(Box::new(Heard { subject: subject.clone(), news })).is_err() {
                return;
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::super::Kind;
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    fn subject() -> Subject {
        Subject { uid: "u".to_owned(), container: "shop".to_owned(), run: 7 }
    }

    fn health(fields: &serde_json::Value, age: Duration) -> Health {
        let mut container = json!({"name": "shop"});
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let probes = Probes::of(&serde_json::from_value(container).unwrap());
        Health::new(&probes, Before::default(), age)
    }

    /// Takes so long for each answer, and answers with these, then with success.
    fn answers(
        each: Duration,
        answers: &[Result<(), &str>],
    ) -> impl Fn(Check) -> std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>> {
        let left: Vec<_> = answers.iter().rev().map(|answer| answer.map_err(str::to_owned)).collect();
        let left = Arc::new(Mutex::new(left));
        move |_| {
            let answer = left.lock().unwrap().pop().unwrap_or(Ok(()));
            Box::pin(async move {
                tokio::time::sleep(each).await;
                answer
            })
        }
    }

    fn told(heard: Heard) -> String {
        assert_eq!(heard.subject, subject());
        match heard.news {
            News::Failed(failing) => failing.to_string(),
            News::Verdict(Verdict { failing: Some(failing), .. }) => format!("failing: {failing}"),
            News::Verdict(verdict) => verdict.unready.unwrap_or_else(|| "ready".to_owned()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_changes_are_told_and_the_first_failure_of_each_row() {
        let fields =
            json!({"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 2}});
        let ask = answers(AT_ONCE, &[Err("a"), Ok(()), Ok(()), Err("b"), Ok(()), Err("c"), Err("d")]);
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let began = Instant::now();
        let probing = tokio::spawn(drive(health(&fields, AT_ONCE), AT_ONCE, subject(), sender, ask));
        let mut heard = Vec::new();
        while heard.len() < 7 {
            let news = receiver.recv().await.unwrap();
            heard.push((began.elapsed().as_secs(), told(*news)));
        }
        let wanted = [
            (0, "Readiness probe failed: a"),
            (0, "a"),
            (1, "ready"),
            (3, "Readiness probe failed: b"),
            (5, "Readiness probe failed: c"),
            (6, "d"),
            (7, "ready"),
        ];
        assert_eq!(heard, wanted.map(|(at, text)| (at, text.to_owned())));
        probing.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_module_that_never_starts_fails_after_its_periods() {
        let fields = json!({"startupProbe": {"tcpSocket": {"port": 1}, "initialDelaySeconds": 5, "failureThreshold": 3}});
        let ask = answers(AT_ONCE, &[Err("a"), Err("b"), Err("c")]);
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let began = Instant::now();
        let probing = tokio::spawn(drive(health(&fields, AT_ONCE), AT_ONCE, subject(), sender, ask));
        while told(*receiver.recv().await.unwrap()) != "failing: Startup probe failed: c" {}
        assert_eq!(began.elapsed().as_secs(), 25, "5 s of delay and two periods of 10 s");
        probing.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_hangs_does_not_hold_up_another() {
        let fields = json!({"livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 30},
            "readinessProbe": {"tcpSocket": {"port": 2}, "periodSeconds": 1}});
        let ask = |check: Check| async move {
            let hangs = check.target == super::super::Target::Tcp(1);
            tokio::time::sleep(Duration::from_secs(if hangs { 20 } else { 0 })).await;
            if hangs { Err("no answer in time".to_owned()) } else { Ok(()) }
        };
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let began = Instant::now();
        let probing = tokio::spawn(drive(health(&fields, AT_ONCE), AT_ONCE, subject(), sender, ask));
        assert_eq!(told(*receiver.recv().await.unwrap()), "ready");
        assert_eq!(began.elapsed().as_secs(), 0);
        assert_eq!(told(*receiver.recv().await.unwrap()), "Liveness probe failed: no answer in time");
        assert_eq!(began.elapsed().as_secs(), 20);
        probing.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_nothing_is_left_to_ask() {
        let fields = json!({"startupProbe": {"tcpSocket": {"port": 1}}});
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let age = Duration::from_mins(1);
        drive(health(&fields, age), age, subject(), sender, answers(AT_ONCE, &[])).await;
        let verdict = Verdict { started: true, unready: None, failing: None };
        let News::Verdict(shown) = receiver.recv().await.unwrap().news else { panic!("a verdict") };
        assert_eq!(shown, verdict);
        assert_eq!(receiver.recv().await, None);
        assert_eq!(Kind::Startup.as_str(), "Startup");
    }
}
