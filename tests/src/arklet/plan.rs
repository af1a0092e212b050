//! What a module will do, read from the manifest of its jar.
//!
//! | attribute | meaning |
//! |---|---|
//! | `Ark-Biz-Name`, `Ark-Biz-Version`, `Start-Class` or `Main-Class` | as for a real base |
//! | `web-context-path`, `priority` | as for a real base; `/` and 100 if absent |
//! | `Sim-Start-Millis` | how long main runs |
//! | `Sim-Fail` | main throws this: `class: message` |
//! | `Sim-Metaspace-Bytes`, `Sim-Classes`, `Sim-Leak: true` | what it loads, and whether that stays after it is gone |
//! | `Sim-Http-Port`, `Sim-Http-Status`, `Sim-Ready-Millis` | it serves HTTP under its context path while active |
//! | `Sim-Exit-After` | milliseconds after its start it takes the base down |
//! | `Sim-Stop-Millis`, `Sim-Stop-Fail` | how long it takes to stop, and what is thrown then |
//! | `Conformance-Main`, `Conformance-Classes` | the modules of the conformance suite |

use std::time::Duration;

use super::input::Install;
use super::metaspace::Footprint;
use super::options::Options;
use super::throwable::Throwable;
use crate::artifact::{Jar, Manifest};

/// Priority of a module whose jar does not say.
const DEFAULT_PRIORITY: i64 = 100;
/// What one class of the conformance suite's big module takes.
const CLASS_BYTES: u64 = 3600;
/// How long a sleeping module of the conformance suite sleeps unless told.
const DEFAULT_SLEEP: u64 = 8000;

/// What a module serves over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Http {
    pub port: u16,
    pub status: u16,
    pub ready_after: Duration,
}

/// What a module will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub name: String,
    pub version: String,
    pub main_class: String,
    pub context_path: String,
    pub priority: i64,
    pub start: Duration,
    /// What comes out of the start instead of an active module.
    pub failure: Option<Throwable>,
    pub footprint: Footprint,
    pub leaks: bool,
    pub http: Option<Http>,
    pub exit_after: Option<Duration>,
    pub stop_millis: u64,
    pub stop_failure: Option<String>,
}

/// The priority that a jar asks for.
pub(super) fn priority(manifest: &Manifest) -> i64 {
    manifest.get("priority").and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_PRIORITY)
}

fn required(manifest: &Manifest, keys: &[&str], what: &str) -> Result<String, Throwable> {
    let found = keys.iter().find_map(|key| manifest.get(key)).filter(|value| !value.trim().is_empty());
    found.map(str::to_owned).ok_or_else(|| {
        Throwable::new("java.lang.IllegalArgumentException", &format!("Biz {what} must not be empty!"))
    })
}

fn argument<'a>(request: &'a Install, prefix: &str) -> Option<&'a str> {
    request.args.iter().flatten().filter_map(|argument| argument.strip_prefix(prefix)).next_back()
}

fn class_missing(class: &str) -> Throwable {
    let message = format!(
        "Post find class {class} occurs an error via biz ClassLoaderHook: com.alipay.sofa.ark.support.common.DelegateToMasterBizClassLoaderHook@5d8b7196."
    );
    Throwable::new("com.alipay.sofa.ark.exception.ArkLoaderException", &message)
        .caused_by(Throwable::new("java.lang.ClassNotFoundException", class))
}

impl Plan {
    /// Reads the plan of a module that is to be installed.
    pub(super) fn read(jar: &Jar, request: &Install, options: &Options) -> Result<Self, Throwable> {
        let manifest = &jar.manifest;
        let name = required(manifest, &["Ark-Biz-Name"], "Name")?;
        let version = required(manifest, &["Ark-Biz-Version"], "Version")?;
        let own_class = required(manifest, &["Start-Class", "Main-Class"], "Main Class")?;
        let main_class = request
            .envs
            .as_ref()
            .and_then(|envs| envs.get("sofa.ark.biz.main.class").cloned())
            .unwrap_or(own_class);

        let main = manifest.get("Conformance-Main");
        let start = match main {
            Some("sleeps") => argument(request, "--sleep-millis=")
                .and_then(|text| text.parse().ok())
                .unwrap_or(DEFAULT_SLEEP),
            _ => manifest.number("Sim-Start-Millis").unwrap_or(0),
        };
        let thrown = match main {
            Some("throws") => {
                let text =
                    argument(request, "--fail-with=").unwrap_or("conformance module failed on purpose");
                Some(Throwable::new("java.lang.IllegalStateException", text))
            }
            _ => manifest.get("Sim-Fail").map(Throwable::parse),
        };
        let failure = if jar.has_class(&main_class) {
            thrown.map(Throwable::out_of_main)
        } else {
            Some(class_missing(&main_class))
        };

        let millis = |key| manifest.number(key).map(Duration::from_millis);
        let port = manifest.number("Sim-Http-Port").and_then(|port| u16::try_from(port).ok());
        let status = manifest.number("Sim-Http-Status").and_then(|status| u16::try_from(status).ok());
        Ok(Self {
            name,
            version,
            main_class,
            context_path: manifest.get("web-context-path").unwrap_or("/").to_owned(),
            priority: priority(manifest),
            start: Duration::from_millis(start),
            failure,
            footprint: footprint(manifest, options),
            leaks: manifest.get("Sim-Leak") == Some("true") || main == Some("leaks"),
            http: port.or(options.module_port).map(|port| Http {
                port,
                status: status.unwrap_or(200),
                ready_after: millis("Sim-Ready-Millis").unwrap_or_default(),
            }),
            exit_after: millis("Sim-Exit-After"),
            stop_millis: manifest.number("Sim-Stop-Millis").unwrap_or(0),
            stop_failure: manifest.get("Sim-Stop-Fail").map(str::to_owned),
        })
    }
}

fn footprint(manifest: &Manifest, options: &Options) -> Footprint {
    let default = options.module_footprint;
    match manifest.number("Conformance-Classes") {
        Some(classes) => Footprint {
            bytes: default.bytes.saturating_add(classes.saturating_mul(CLASS_BYTES)),
            classes: default.classes.saturating_add(classes),
        },
        None => Footprint {
            bytes: manifest.number("Sim-Metaspace-Bytes").unwrap_or(default.bytes),
            classes: manifest.number("Sim-Classes").unwrap_or(default.classes),
        },
    }
}
