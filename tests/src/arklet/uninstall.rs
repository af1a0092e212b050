//! `uninstallBiz` and `switchBiz`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::ark::{StopRefusal, SwitchRefusal};
use super::base::Base;
use super::command::Outcome;
use super::faults::Fault;
use super::input::{Handler, Subject};
use super::throwable::Throwable;

/// Why a module is still there, or was never there.
pub(super) enum NotStopped {
    Unknown,
    Thrown(Throwable),
}

pub(super) async fn uninstall(base: &Arc<Base>, subject: &Subject, faults: &[Fault]) -> Outcome {
    let name = subject.name.as_deref().unwrap_or_default();
    let version = subject.version.as_deref().unwrap_or_default();
    if name == base.options().master_name {
        let data = json!({ "code": "FAILED", "message": "Master biz must not be uninstalled." });
        return Outcome::refused(Handler::Uninstall, data);
    }
    let stopped =
        if faults.contains(&Fault::Pretend) { Ok(()) } else { stop(base, name, version, faults).await };
    match stopped {
        Ok(()) => Outcome::Success(json!({
            "code": "SUCCESS",
            "message": format!("Uninstall biz: {name}:{version} success."),
        })),
        Err(NotStopped::Unknown) => Outcome::refused(
            Handler::Uninstall,
            json!({ "code": "NOT_FOUND_BIZ", "message": format!("Uninstall biz: {name}:{version} not found.") }),
        ),
        Err(NotStopped::Thrown(thrown)) => Outcome::Thrown(thrown.wrapped()),
    }
}

/// Stops a module and removes it.
pub(super) async fn stop(
    base: &Arc<Base>,
    name: &str,
    version: &str,
    faults: &[Fault],
) -> Result<(), NotStopped> {
    let stopping = base.ark().stopping(name, version, base.now());
    let biz = stopping.map_err(|refusal| match refusal {
        StopRefusal::Unknown => NotStopped::Unknown,
        StopRefusal::Starting => NotStopped::Thrown(Throwable::new(
            "java.lang.IllegalArgumentException",
            "BizState must be ACTIVATED, DEACTIVATED or BROKEN.",
        )),
    })?;
    base.serving.close(&biz.identity());
    tokio::time::sleep(Duration::from_millis(biz.stop_millis)).await;
    let thrown = faults.iter().find_map(|fault| match fault {
        Fault::StopThrows(thrown) => Some(thrown.clone()),
        _ => None,
    });
    let thrown = thrown.or_else(|| biz.stop_failure.as_deref().map(Throwable::parse));
    match thrown {
        Some(thrown) if base.options().keep_broken_on_stop => {
            base.ark().broke(name, version, base.now(), "Uninstall Failed", thrown.stack_trace());
            Err(NotStopped::Thrown(thrown))
        }
        thrown => {
            base.ark().remove(name, version);
            // What failed to stop still has its threads, and they hold its classes.
            base.metaspace().release(biz.footprint, biz.leaks || thrown.is_some());
            thrown.map_or(Ok(()), |thrown| Err(NotStopped::Thrown(thrown)))
        }
    }
}

pub(super) fn switch(base: &Arc<Base>, subject: &Subject) -> Outcome {
    let name = subject.name.as_deref().unwrap_or_default();
    let version = subject.version.as_deref().unwrap_or_default();
    let options = base.options();
    let is_master = name == options.master_name && version == options.master_version;
    let switched = if is_master { Ok(()) } else { base.ark().switch(name, version, base.now()) };
    match switched {
        Ok(()) => Outcome::Success(json!({
            "code": "SUCCESS",
            "message": format!("Switch biz: {name}:{version} is activated."),
        })),
        Err(SwitchRefusal::Unknown) => Outcome::refused(
            Handler::Switch,
            json!({ "code": "NOT_FOUND_BIZ", "message": format!("Switch biz: {name}:{version} not found.") }),
        ),
        Err(SwitchRefusal::State(state)) => Outcome::refused(
            Handler::Switch,
            json!({
                "code": "ILLEGAL_STATE_BIZ",
                "message": format!("Switch Biz: {name}:{version}'s state must not be {}.", state.word()),
            }),
        ),
    }
}
