use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::*;

fn subject(operation: Operation) -> Subject {
    let text = |text: &str| text.to_owned();
    Subject {
        operation,
        actor: Some(Actor {
            uid: text("u1"),
            namespace: text("shop"),
            name: text("shop-1"),
            owner: Some(text("ReplicaSet/shop")),
        }),
        base: Base {
            cluster: text("default"),
            namespace: text("bases"),
            pod: text("base-0"),
            uid: text("b1"),
            node: text("vnode"),
        },
        module: text("shop"),
        version: text("1.0.0"),
        digest: None,
    }
}

fn opened(path: &std::path::Path, registry: &mut Registry) -> (AuditLog, Writer) {
    AuditLog::open(&AuditFlags { audit_log: Some(path.to_owned()) }, registry)
        .expect("opened")
        .expect("a log")
}

fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file");
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn metrics(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("encoded");
    text
}

#[tokio::test]
async fn operations_leave_their_lines_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.log");
    std::fs::write(&path, "{\"log\":\"older\"}\n").expect("written");
    let mut registry = Registry::default();
    let (log, writer) = opened(&path, &mut registry);

    let mut install = log.begin(subject(Operation::Install));
    install.sent();
    install.ended("ok");
    drop(install);
    // Never sent: no line.
    log.begin(subject(Operation::Switch)).ended("unsent");
    // The base never answered.
    let mut uninstall = log.begin(subject(Operation::Uninstall));
    uninstall.sent();
    drop(uninstall);
    let (code, text) = (policy::Reason::Access.code(), policy::Reason::Access.text());
    log.record(Record::refused(Timestamp::UNIX_EPOCH, subject(Operation::Install), code, text));
    drop(log);
    writer.run(CancellationToken::new()).await.expect("ended");

    let lines = lines(&path);
    let told: Vec<_> =
        lines.iter().skip(1).map(|line| (line["operation"].clone(), line["result"].clone())).collect();
    let expected = [
        ("install", "sent"),
        ("install", "ok"),
        ("uninstall", "sent"),
        ("uninstall", "unknown"),
        ("install", "refused"),
    ];
    assert_eq!(told, expected.map(|(operation, result)| (operation.into(), result.into())));
    assert_eq!(lines[0]["log"], "older", "what was there stays");
    assert!(lines[2]["millis"].is_u64() && lines[1].get("millis").is_none());
    let refused = serde_json::json!({
        "log": "audit", "time": "1970-01-01T00:00:00Z", "operation": "install",
        "actor": {"uid": "u1", "namespace": "shop", "name": "shop-1", "owner": "ReplicaSet/shop"},
        "base": {"cluster": "default", "namespace": "bases", "pod": "base-0", "uid": "b1", "node": "vnode"},
        "module": "shop", "version": "1.0.0", "result": "refused", "reason": "Access",
        "message": "the policy does not let this namespace use the base",
    });
    assert_eq!(lines[5], refused);
    assert!(metrics(&registry).contains("stowage_agent_audit_records_total 5"));
}

#[tokio::test]
async fn a_file_that_cannot_be_written_stops_nobody_and_is_counted() {
    let mut registry = Registry::default();
    // Every write fails: there is no space.
    let (log, writer) = opened(std::path::Path::new("/dev/full"), &mut registry);
    log.begin(subject(Operation::Install)).sent();
    drop(log);
    writer.run(CancellationToken::new()).await.expect("ended");
    let text = metrics(&registry);
    assert!(text.contains("stowage_agent_audit_write_errors_total 1"), "{text}");
    assert!(
        text.contains("stowage_agent_audit_lost_total 2") && text.contains("audit_records_total 0"),
        "{text}"
    );
    let nowhere = AuditFlags { audit_log: Some("/nonexistent/audit.log".into()) };
    let error = AuditLog::open(&nowhere, &mut registry).expect_err("no folder");
    assert!(error.to_string().contains("--audit-log: cannot open /nonexistent/audit.log"));
}

#[tokio::test]
async fn what_does_not_fit_is_lost_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut registry = Registry::default();
    let (log, writer) = opened(&folder.path().join("audit.log"), &mut registry);
    for _ in 0..WAITING + 3 {
        log.record(Record::new(Timestamp::UNIX_EPOCH, subject(Operation::Adopt), "ok"));
    }
    assert!(metrics(&registry).contains("stowage_agent_audit_lost_total 3"));
    drop((log, writer));
}

#[tokio::test]
async fn a_hangup_opens_the_file_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, moved) = (folder.path().join("audit.log"), folder.path().join("audit.log.1"));
    let mut registry = Registry::default();
    let (log, writer) = opened(&path, &mut registry);
    std::fs::rename(&path, &moved).expect("moved");
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(writer.run(shutdown.clone()));
    let record = || Record::new(Timestamp::UNIX_EPOCH, subject(Operation::Adopt), "ok");
    log.record(record());
    until(|| std::fs::metadata(&moved).is_ok_and(|file| file.len() > 0)).await;
    rustix_hangup();
    until(|| path.exists()).await;
    log.record(record());
    drop(log);
    running.await.expect("no panic").expect("ended");
    assert_eq!((lines(&moved).len(), lines(&path).len()), (1, 1));
}

async fn until(met: impl Fn() -> bool) {
    let limit = tokio::time::timeout(std::time::Duration::from_secs(30), async {
        while !met() {
            tokio::task::yield_now().await;
        }
    });
    limit.await.expect("in time");
}

/// A signal to this very process; the writer has a handler for it by now.
fn rustix_hangup() {
    let status = std::process::Command::new("kill").args(["-HUP", &std::process::id().to_string()]).status();
    assert!(status.expect("kill").success());
}

#[test]
fn texts_are_bounded_and_digests_are_whole() {
    let mut long = subject(Operation::Install);
    long.module = "é".repeat(1000);
    assert_eq!(Record::new(Timestamp::UNIX_EPOCH, long, "ok").subject.module.chars().count(), 256);
    let hex = "ab".repeat(32);
    assert_eq!(
        digest_of(&format!("repo/shop@sha256:{hex}")).as_deref(),
        Some(format!("sha256:{hex}").as_str())
    );
    for none in ["https://me:secret@repo/shop.jar", "repo/shop@sha256:abc", "repo/shop@sha256:"] {
        assert_eq!(digest_of(none), None, "{none}");
    }
}
