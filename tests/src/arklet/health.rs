//! `health`: figures of the JVM, and lists of modules and plugins.

use serde_json::{Map, Value, json};

use super::base::Base;
use super::command::Outcome;
use super::input::HealthQuery;
use super::throwable::Throwable;

pub(super) fn report(base: &Base, query: &HealthQuery) -> Outcome {
    let kind = query.kind.as_deref();
    if let Some(other) = kind.filter(|kind| !["system", "biz", "plugin"].contains(kind)) {
        return Outcome::Thrown(Throwable::validation(&format!("type: {other} can not be found")));
    }
    let wants = |part| kind.is_none_or(|kind| kind == part);
    let mut data = Map::new();
    let filled = (|| -> Result<(), String> {
        if wants("system") {
            fill_system(base, &query.metrics, &mut data)?;
        }
        if wants("biz") {
            fill_modules(base, query, &mut data)?;
        }
        if wants("plugin") {
            fill_plugins(base, query, &mut data)?;
        }
        Ok(())
    })();
    if let Err(message) = filled {
        return Outcome::failed(message);
    }
    if kind.is_none() {
        data.insert("masterBizInfo".to_owned(), master(base));
    }
    Outcome::Success(json!({ "healthData": data }))
}

fn fill_system(base: &Base, metrics: &[String], data: &mut Map<String, Value>) -> Result<(), String> {
    let all = ["jvm".to_owned(), "cpu".to_owned()];
    for metric in if metrics.is_empty() { &all } else { metrics } {
        let figures = match metric.as_str() {
            "jvm" => jvm(base),
            "cpu" => cpu(),
            _ => return Err("indicator not registered".to_owned()),
        };
        data.insert(metric.clone(), figures);
    }
    Ok(())
}

/// The base as it appears among its modules.
fn master(base: &Base) -> Value {
    let options = base.options();
    let state = if options.release.upper_case { "ACTIVATED" } else { "activated" };
    json!({
        "bizName": options.master_name,
        "bizState": state,
        "bizVersion": options.master_version,
        "webContextPath": "/",
    })
}

fn fill_modules(base: &Base, query: &HealthQuery, data: &mut Map<String, Value>) -> Result<(), String> {
    let release = base.options().release;
    let mut all: Vec<Value> = base.ark().modules().iter().map(|biz| biz.summary(release)).collect();
    all.push(master(base));
    let is = |item: &Value, key: &str, wanted: &str| item.get(key).and_then(Value::as_str) == Some(wanted);
    match (&query.name, &query.version) {
        (None, None) => {}
        (None, Some(_)) => return Err("Biz name must not be empty.".to_owned()),
        (Some(name), None) => {
            all.retain(|item| is(item, "bizName", name));
            if all.is_empty() {
                return Err(format!("can not find biz: {name}"));
            }
        }
        (Some(name), Some(version)) => {
            let found =
                all.into_iter().find(|item| is(item, "bizName", name) && is(item, "bizVersion", version));
            data.insert("bizInfo".to_owned(), found.ok_or("can not find biz")?);
            return Ok(());
        }
    }
    data.insert("bizListInfo".to_owned(), Value::Array(all));
    Ok(())
}

fn fill_plugins(base: &Base, query: &HealthQuery, data: &mut Map<String, Value>) -> Result<(), String> {
    let describe = |(name, version): &(String, String)| {
        json!({
            "artifactId": name,
            "groupId": "com.alipay.sofa",
            "pluginActivator": format!("com.alipay.sofa.{name}.Activator"),
            "pluginName": name,
            "pluginUrl": format!("file:/app/{name}-{version}.jar!/"),
            "pluginVersion": version,
        })
    };
    let plugins = &base.options().plugins;
    match &query.name {
        None => {
            data.insert("pluginListInfo".to_owned(), plugins.iter().map(describe).collect());
        }
        Some(wanted) => {
            let found = plugins.iter().find(|(name, _)| name == wanted);
            data.insert("pluginInfo".to_owned(), found.map(describe).ok_or("can not find plugin")?);
        }
    }
    Ok(())
}

fn jvm(base: &Base) -> Value {
    let options = base.options();
    let uptime = base.started.elapsed();
    let mut figures = json!({
        "committed heap memory(M)": 380.0,
        "committed non heap memory(M)": 30.8125,
        "free memory(M)": 359.144_531_25,
        "init heap memory(M)": 378.0,
        "init non heap memory(M)": 7.3125,
        "java home": "/usr/lib/jvm/java-17",
        "java version": options.java_version,
        "max heap memory(M)": 512.0,
        "max memory(M)": 512.0,
        "max non heap memory(M)": -9.536_743_164_062_5e-7,
        "run time(s)": f64::from(u32::try_from(uptime.as_millis()).unwrap_or(u32::MAX)) / 1000.0,
        "total memory(M)": 380.0,
        "used heap memory(M)": 20.104_492_187_5,
        "used non heap memory(M)": 27.508_834_838_867_188,
    });
    let metaspace = base.metaspace();
    let (loaded, unloaded) = metaspace.classes();
    let reported = base.outside.faults.reported_metaspace();
    let Some(fields) = figures.as_object_mut() else { return figures };
    let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    put("loaded class count", json!(loaded));
    put("total class count", json!(loaded + unloaded));
    put("unload class count", json!(unloaded));
    if options.release.metaspace {
        let used = reported.unwrap_or_else(|| metaspace.used());
        let committed = reported.unwrap_or_else(|| metaspace.committed());
        put("java committed metaspace", json!(committed.max(used)));
        put("java max metaspace", metaspace.max().map_or(json!(-1), |max| json!(max)));
        put("java used metaspace", json!(used));
    }
    figures
}

fn cpu() -> Value {
    json!({
        "count": 2,
        "free (%)": 85.339_987_523_393_63,
        "system used (%)": 3.992_514_036_182_158,
        "total used (%)": 32060.0,
        "type": "Simulated",
        "user used (%)": 8.889_582_033_686_837,
    })
}
