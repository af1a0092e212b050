//! `installBiz` and `batchInstallBiz`: download, look into the jar, register, start.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::ark::{Biz, BizState};
use super::base::Base;
use super::command::Outcome;
use super::faults::Fault;
use super::input::{Batch, Handler, Install};
use super::plan::{self, Plan};
use super::serving::{Site, prefix_of};
use super::throwable::Throwable;
use super::{download, uninstall};
use crate::artifact::{Jar, ReadJarError};

/// Why a module was not installed.
enum NotInstalled {
    /// Its identity is registered already.
    Repeat(String),
    /// An exception, as ark throws it.
    Thrown(Throwable),
    /// The JVM is out of metaspace so badly that the error comes through bare.
    Exhausted,
}

/// A module that was installed.
struct Installed {
    biz: Biz,
    message: String,
}

/// Gives a request that names no module the identity in its jar, which costs a download.
pub(super) async fn with_identity(mut request: Install) -> Result<Install, Throwable> {
    if request.has_identity() {
        return Ok(request);
    }
    let unreadable = || {
        let message = format!("refresh biz info from jar failed: {}", request.url);
        let class = "com.alipay.sofa.koupleless.arklet.core.common.exception.ArkletRuntimeException";
        Throwable::new(class, &message)
    };
    let content = download::fetch(&request.url).await.map_err(|_| unreadable())?;
    let jar = Jar::read(&content).map_err(|_| unreadable())?;
    request.subject.name = jar.manifest.get("Ark-Biz-Name").map(str::to_owned);
    request.subject.version = jar.manifest.get("Ark-Biz-Version").map(str::to_owned);
    Ok(request)
}

pub(super) async fn install(base: &Arc<Base>, request: &Install, faults: &[Fault]) -> Outcome {
    let before = base.metaspace().used();
    let installed = install_one(base, request, faults).await;
    let space = elapsed_space(before, base.metaspace().used());
    match installed {
        Ok(Installed { biz, message }) => Outcome::Success(json!({
            "bizInfos": [biz.described(base.options().release)],
            "code": "SUCCESS",
            "elapsedSpace": space,
            "message": message,
        })),
        Err(NotInstalled::Repeat(identity)) => Outcome::refused(
            Handler::Install,
            json!({ "code": "REPEAT_BIZ", "elapsedSpace": space, "message": repeated(&identity) }),
        ),
        Err(NotInstalled::Thrown(thrown)) => Outcome::Thrown(thrown.wrapped()),
        Err(NotInstalled::Exhausted) => Outcome::Thrown(Throwable::metaspace()),
    }
}

/// Growth of the used metaspace; negative when a collection came in between.
fn elapsed_space(before: u64, after: u64) -> i64 {
    i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
}

fn repeated(identity: &str) -> String {
    format!("Biz: {identity} has been installed or registered.")
}

async fn install_one(
    base: &Arc<Base>,
    request: &Install,
    faults: &[Fault],
) -> Result<Installed, NotInstalled> {
    if request.uninstalls_first() && base.options().release.strategy {
        let name = request.subject.name.clone().unwrap_or_default();
        let versions = base.ark().versions(&name);
        for version in versions {
            // A real arklet goes on whatever becomes of the old ones.
            let _ = uninstall::stop(base, &name, &version, faults).await;
        }
    }
    let begun = Instant::now();
    let clock = base.clock().to_zoned(TimeZone::UTC);
    let stem =
        format!("{}-{}", request.subject.lock_key().replace(':', "-"), clock.strftime("%Y%m%d%H%M%S%3f"));
    let work_dir = format!("/tmp/sofa-ark/{stem}-unpack");
    let content = download::fetch(&request.url).await.map_err(NotInstalled::Thrown)?;
    let jar = open_jar(&content, &work_dir).map_err(NotInstalled::Thrown)?;
    let mut plan = Plan::read(&jar, request, base.options()).map_err(NotInstalled::Thrown)?;
    for fault in faults {
        match fault {
            Fault::Identity(name, version) => {
                plan.name.clone_from(name);
                plan.version.clone_from(version);
            }
            Fault::Slow(more) => plan.start += *more,
            Fault::MainThrows(thrown) => plan.failure = Some(thrown.clone().out_of_main()),
            Fault::MetaspaceFull => return Err(NotInstalled::Exhausted),
            _ => {}
        }
    }
    let biz = start(base, plan, work_dir, faults).await?;
    let message = format!(
        "Install Biz: {} success, cost: {} ms, started at: {}",
        biz.identity(),
        begun.elapsed().as_millis(),
        clock.strftime("%H:%M:%S,%3f"),
    );
    if faults.contains(&Fault::Vanish) {
        base.serving.close(&biz.identity());
        base.ark().remove(&biz.name, &biz.version);
        base.metaspace().release(biz.footprint, biz.leaks);
    }
    Ok(Installed { biz, message })
}

fn open_jar(content: &Bytes, work_dir: &str) -> Result<Jar, Throwable> {
    Jar::read(content).map_err(|error| match error {
        ReadJarError::NotZip(_) => Throwable::new("java.util.zip.ZipException", "zip END header not found"),
        ReadJarError::NoManifest(_) | ReadJarError::Unreadable(_) => Throwable::new(
            "java.io.FileNotFoundException",
            &format!("{work_dir}/META-INF/MANIFEST.MF (No such file or directory)"),
        ),
    })
}

/// Registers a module and runs its main.
async fn start(
    base: &Arc<Base>,
    plan: Plan,
    work_dir: String,
    faults: &[Fault],
) -> Result<Biz, NotInstalled> {
    let (name, version) = (plan.name.clone(), plan.version.clone());
    let biz = Biz {
        name: plan.name,
        version: plan.version,
        main_class: plan.main_class,
        context_path: plan.context_path,
        priority: plan.priority,
        work_dir,
        state: BizState::Resolved,
        records: Vec::new(),
        footprint: plan.footprint,
        leaks: plan.leaks,
        stop_millis: plan.stop_millis,
        stop_failure: plan.stop_failure,
    };
    let identity = biz.identity();
    let prefix = prefix_of(&biz.context_path);
    if !base.ark().register(biz, base.now()) {
        return Err(NotInstalled::Repeat(identity));
    }
    let loaded = base.load(plan.footprint);
    tokio::time::sleep(plan.start).await;

    let mut failure = plan.failure;
    if loaded.is_err() {
        let wrapper = "com.google.common.util.concurrent.ExecutionError";
        let full = Throwable::new(wrapper, "java.lang.OutOfMemoryError: Metaspace");
        failure = Some(full.caused_by(Throwable::metaspace()).out_of_main());
    }
    if let (None, Some(http)) = (&failure, plan.http) {
        let ready_at = Instant::now() + http.ready_after;
        let site =
            Site { identity: identity.clone(), port: http.port, prefix, status: http.status, ready_at };
        if let Err(error) = base.serving.open(site).await {
            let reason = Throwable::new("java.lang.IllegalStateException", &error.to_string());
            failure = Some(reason.out_of_main());
        }
    }
    if let Some(thrown) = failure {
        let keep = base.options().keep_broken || faults.contains(&Fault::KeepBroken) || loaded.is_err();
        if keep {
            base.ark().broke(&name, &version, base.now(), "Install Failed", thrown.stack_trace());
        } else {
            base.ark().remove(&name, &version);
        }
        if loaded.is_ok() && !keep {
            base.metaspace().release(plan.footprint, plan.leaks);
        }
        return Err(NotInstalled::Thrown(thrown));
    }
    if let Some(wait) = plan.exit_after {
        base.exit_after(wait, name.clone(), version.clone());
    }
    let started = base.ark().started(&name, &version, base.now(), base.options().second_version);
    started.ok_or(NotInstalled::Repeat(identity))
}

pub(super) async fn batch(base: &Arc<Base>, batch: &Batch, faults: &[Fault]) -> Outcome {
    let before = base.metaspace().used();
    // Every jar is read for its priority before the first one is installed, and the first that cannot be read
    // ends it all.
    let mut by_priority: BTreeMap<i64, Vec<&Install>> = BTreeMap::new();
    for item in &batch.items {
        let content = match download::fetch(&item.url).await {
            Ok(content) => content,
            Err(thrown) => return Outcome::Thrown(thrown.wrapped()),
        };
        match open_jar(&content, "/tmp/sofa-ark") {
            Ok(jar) => by_priority.entry(plan::priority(&jar.manifest)).or_default().push(item),
            Err(thrown) => return Outcome::Thrown(thrown.wrapped()),
        }
    }
    let mut replies = Map::new();
    let mut all_well = true;
    for items in by_priority.into_values() {
        let installed = join_all(items.iter().map(|item| install_one(base, item, faults))).await;
        for (item, installed) in items.iter().zip(installed) {
            all_well &= installed.is_ok();
            replies.insert(item.url.clone(), item_reply(base, installed));
        }
    }
    let space = elapsed_space(before, base.metaspace().used());
    let (code, message) =
        if all_well { ("SUCCESS", "batch install success") } else { ("FAILED", "batch install failed") };
    let data =
        json!({ "bizUrlToResponse": replies, "code": code, "elapsedSpace": space, "message": message });
    if all_well { Outcome::Success(data) } else { Outcome::refused(Handler::Batch, data) }
}

fn item_reply(base: &Base, installed: Result<Installed, NotInstalled>) -> Value {
    let internal =
        |message: &str| json!({ "code": "FAILED", "message": format!("internal exception: {message}") });
    match installed {
        Ok(Installed { biz, message }) => json!({
            "bizInfos": [biz.described(base.options().release)],
            "code": "SUCCESS",
            "message": message,
        }),
        Err(NotInstalled::Repeat(identity)) => {
            json!({ "code": "REPEAT_BIZ", "message": repeated(&identity) })
        }
        // What main threw comes wrapped without a message of its own, so nothing of it is left here.
        Err(NotInstalled::Thrown(thrown)) => internal(thrown.message()),
        Err(NotInstalled::Exhausted) => internal("Metaspace"),
    }
}
