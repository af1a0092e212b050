//! Failures of operations, in classes: what the planner may do about them.
//!
//! A class is decided from the outer code, ark's inner code, the message and the last `Caused by:` of the
//! stack. The codes are stable: status, metrics, Events and docs share them.

use super::client::CallError;
use super::root_cause;
use super::wire::Reply;

/// What may be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// May pass by itself: retried with back-off, up to the policy's attempts.
    Transient,
    /// Cannot pass without a change of the module or its Pod.
    Permanent,
    /// The JVM is out of class memory: the base must be healed, the module is not to blame.
    Poisonous,
}

/// Why an operation failed. Closed; the texts of [`Code::as_str`] are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// arklet could not be reached; nothing was sent.
    BaseUnreachable,
    /// The connection broke or the time was up; the list of modules decides.
    AnswerLost,
    /// arklet answered something that is not its protocol.
    NotUnderstood,
    /// Another operation on this name and version is running on the base.
    Conflict,
    /// The base says it has this name and version already.
    Repeat,
    /// The artifact's server could not be reached or its name not resolved.
    ArtifactUnreachable,
    /// The artifact's server failed (5xx, 408, 429).
    ArtifactServer,
    /// The download broke off.
    ArtifactTruncated,
    /// The artifact does not exist (404, 410, no such file).
    ArtifactNotFound,
    /// The artifact's server refuses access (401, 403 and other 4xx).
    ArtifactDenied,
    /// The URL is one that a JVM cannot open.
    BadUrl,
    /// The artifact is no module: no zip, no manifest, no name, version or main class in it.
    NotAModuleJar,
    /// The jar's manifest names another module or version than the Pod.
    IdentityDiffers,
    /// A class is missing, incompatible or of the wrong version.
    ClassError,
    /// Another web module has this context path.
    ContextPathTaken,
    /// The module's main threw.
    StartFailed,
    /// Installed, but not listed as active afterwards.
    NotActive,
    /// The JVM has no heap or no threads left.
    BaseOutOfMemory,
    /// The JVM has no metaspace (or compressed class space) left.
    MetaspaceExhausted,
    /// Uninstall was answered, but the module is still listed.
    StillListed,
    /// arklet said no without a reason we know.
    Refused,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 21] = [
        Self::BaseUnreachable,
        Self::AnswerLost,
        Self::NotUnderstood,
        Self::Conflict,
        Self::Repeat,
        Self::ArtifactUnreachable,
        Self::ArtifactServer,
        Self::ArtifactTruncated,
        Self::ArtifactNotFound,
        Self::ArtifactDenied,
        Self::BadUrl,
        Self::NotAModuleJar,
        Self::IdentityDiffers,
        Self::ClassError,
        Self::ContextPathTaken,
        Self::StartFailed,
        Self::NotActive,
        Self::BaseOutOfMemory,
        Self::MetaspaceExhausted,
        Self::StillListed,
        Self::Refused,
    ];

    /// Stable text for metrics, status and docs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BaseUnreachable => "BaseUnreachable",
            Self::AnswerLost => "AnswerLost",
            Self::NotUnderstood => "NotUnderstood",
            Self::Conflict => "Conflict",
            Self::Repeat => "Repeat",
            Self::ArtifactUnreachable => "ArtifactUnreachable",
            Self::ArtifactServer => "ArtifactServer",
            Self::ArtifactTruncated => "ArtifactTruncated",
            Self::ArtifactNotFound => "ArtifactNotFound",
            Self::ArtifactDenied => "ArtifactDenied",
            Self::BadUrl => "BadUrl",
            Self::NotAModuleJar => "NotAModuleJar",
            Self::IdentityDiffers => "IdentityDiffers",
            Self::ClassError => "ClassError",
            Self::ContextPathTaken => "ContextPathTaken",
            Self::StartFailed => "StartFailed",
            Self::NotActive => "NotActive",
            Self::BaseOutOfMemory => "BaseOutOfMemory",
            Self::MetaspaceExhausted => "MetaspaceExhausted",
            Self::StillListed => "StillListed",
            Self::Refused => "Refused",
        }
    }

    /// The class of this failure.
    pub const fn class(self) -> Class {
        match self {
            Self::ArtifactNotFound
            | Self::ArtifactDenied
            | Self::BadUrl
            | Self::NotAModuleJar
            | Self::IdentityDiffers
            | Self::ClassError => Class::Permanent,
            Self::MetaspaceExhausted => Class::Poisonous,
            Self::BaseUnreachable
            | Self::AnswerLost
            | Self::NotUnderstood
            | Self::Conflict
            | Self::Repeat
            | Self::ArtifactUnreachable
            | Self::ArtifactServer
            | Self::ArtifactTruncated
            | Self::ContextPathTaken
            | Self::StartFailed
            | Self::NotActive
            | Self::BaseOutOfMemory
            | Self::StillListed
            | Self::Refused => Class::Transient,
        }
    }
}

/// A failed operation, ready to be shown: the root cause first, at most 512 bytes, without credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Why.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl Failure {
    /// A failure with this text, which is shortened and cleaned here.
    pub fn new(code: Code, text: &str) -> Self {
        Self { code, message: root_cause::shortened(text) }
    }

    /// What may be done about it.
    pub fn class(&self) -> Class {
        self.code.class()
    }

    /// Judges a call without a reply.
    pub fn of_call(error: &CallError) -> Self {
        let code = match error {
            CallError::Connect(_) | CallError::Withheld => Code::BaseUnreachable,
            CallError::Broken(_) | CallError::Timeout(_) | CallError::Body(_) => Code::AnswerLost,
            CallError::Parse { .. } | CallError::Encode(_) | CallError::NoList { .. } => Code::NotUnderstood,
        };
        Self::new(code, &error.to_string())
    }

    /// Judges the reply of `installBiz`, `uninstallBiz` or `switchBiz`; `None` when it says success.
    pub fn of_reply(reply: &Reply) -> Option<Self> {
        if reply.succeeded() {
            return None;
        }
        let message = if reply.inner_message().is_empty() { &reply.message } else { reply.inner_message() };
        let cause = root_cause::find(message, &reply.error_stack_trace);
        let code = if exhausted(reply) {
            Code::MetaspaceExhausted
        } else if reply.code.eq_ignore_ascii_case("CMD_NOT_FOUND") {
            Code::NotUnderstood
        } else if reply.inner_code().eq_ignore_ascii_case("REPEAT_BIZ") {
            Code::Repeat
        } else if reply.message.contains("exist unfinished command") {
            Code::Conflict
        } else {
            of_cause(&cause, &reply.message, &reply.error_stack_trace)
        };
        let text = if cause.is_empty() {
            format!(
                "arklet answered {} without a reason",
                if reply.code.is_empty() { "nothing" } else { &reply.code }
            )
        } else {
            cause
        };
        Some(Self::new(code, &text))
    }
}

/// Whether class memory is used up: the error may stand only in the stack.
fn exhausted(reply: &Reply) -> bool {
    const SIGNS: [&str; 2] = ["OutOfMemoryError: Metaspace", "OutOfMemoryError: Compressed class space"];
    let bare = reply.message.trim().trim_start_matches("Internal Error:").trim();
    bare == "Metaspace"
        || bare == "Compressed class space"
        || SIGNS.iter().any(|sign| reply.message.contains(sign) || reply.error_stack_trace.contains(sign))
}

/// Signs of a failure in the root cause, in the order in which they are looked for.
const SIGNS: &[(&str, Code)] = &[
    ("MalformedURLException", Code::BadUrl),
    ("URISyntaxException", Code::BadUrl),
    ("no protocol:", Code::BadUrl),
    ("unknown protocol:", Code::BadUrl),
    ("bizUrl should not be blank", Code::BadUrl),
    ("Biz Name must not be empty", Code::NotAModuleJar),
    ("Biz Version must not be empty", Code::NotAModuleJar),
    ("Biz Main Class must not be empty", Code::NotAModuleJar),
    ("refresh biz info from jar failed", Code::NotAModuleJar),
    ("END header not found", Code::ArtifactTruncated),
    ("Premature EOF", Code::ArtifactTruncated),
    ("ZipException", Code::NotAModuleJar),
    ("is not unique", Code::ContextPathTaken),
    ("ClassNotFoundException", Code::ClassError),
    ("NoClassDefFoundError", Code::ClassError),
    ("NoSuchMethodError", Code::ClassError),
    ("NoSuchFieldError", Code::ClassError),
    ("UnsupportedClassVersionError", Code::ClassError),
    ("IncompatibleClassChangeError", Code::ClassError),
    ("AbstractMethodError", Code::ClassError),
    ("ClassCastException", Code::ClassError),
    ("LinkageError", Code::ClassError),
    ("VerifyError", Code::ClassError),
    ("can not load class", Code::ClassError),
    ("is not assignable to", Code::ClassError),
    ("Master biz environment is null", Code::ClassError),
    ("ArkLoaderException", Code::ClassError),
    ("OutOfMemoryError", Code::BaseOutOfMemory),
];

/// Signs that the download itself failed. They speak of the artifact only when the exception did not come
/// out of the module's own main.
const DOWNLOAD_SIGNS: &[(&str, Code)] = &[
    // Downloaded and unpacked: what is missing is in the archive, not on the server.
    ("META-INF/MANIFEST.MF", Code::NotAModuleJar),
    ("FileNotFoundException", Code::ArtifactNotFound),
    ("NoSuchFileException", Code::ArtifactNotFound),
    ("ConnectException", Code::ArtifactUnreachable),
    ("UnknownHostException", Code::ArtifactUnreachable),
    ("NoRouteToHostException", Code::ArtifactUnreachable),
    ("SocketTimeoutException", Code::ArtifactUnreachable),
    ("SocketException", Code::ArtifactUnreachable),
    ("SSLException", Code::ArtifactUnreachable),
    ("SSLHandshakeException", Code::ArtifactUnreachable),
];

fn of_cause(cause: &str, message: &str, stack: &str) -> Code {
    if stack.lines().next().is_some_and(|head| head.contains("OutOfMemoryError")) {
        return Code::BaseOutOfMemory;
    }
    let in_main =
        message.contains("InvocationTargetException") || stack.contains("InvocationTargetException");
    if !in_main {
        if let Some(status) = http_status(cause) {
            return match status {
                404 | 410 => Code::ArtifactNotFound,
                408 | 425 | 429 => Code::ArtifactServer,
                400..=499 => Code::ArtifactDenied,
                _ => Code::ArtifactServer,
            };
        }
        if let Some(code) = sign(DOWNLOAD_SIGNS, cause) {
            return code;
        }
    }
    sign(SIGNS, cause).unwrap_or(if in_main { Code::StartFailed } else { Code::Refused })
}

fn sign(signs: &[(&str, Code)], cause: &str) -> Option<Code> {
    signs.iter().find(|(sign, _)| cause.contains(sign)).map(|(_, code)| *code)
}

fn http_status(cause: &str) -> Option<u16> {
    let (_, after) = cause.split_once("HTTP response code: ")?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn internal(message: &str, stack: &str) -> Failure {
        let json = serde_json::json!({
            "code": "CMD_PROCESS_INTERNAL_ERROR", "message": message, "errorStackTrace": stack,
        });
        Failure::of_reply(&serde_json::from_value(json).unwrap()).unwrap()
    }

    #[test]
    fn messages_of_real_bases_get_their_class() {
        let main =
            "x.ArkletRuntimeException: java.lang.reflect.InvocationTargetException\n\tat a\nCaused by: ";
        for (message, stack, code, class) in [
            (
                "Internal Error: java.net.MalformedURLException: unknown protocol: oss",
                "",
                Code::BadUrl,
                Class::Permanent,
            ),
            (
                "Internal Error: java.io.FileNotFoundException: http://repo/x.jar",
                "",
                Code::ArtifactNotFound,
                Class::Permanent,
            ),
            (
                "Internal Error: java.io.FileNotFoundException: /tmp/x-unpack/META-INF/MANIFEST.MF (No such file or directory)",
                "",
                Code::NotAModuleJar,
                Class::Permanent,
            ),
            (
                "Internal Error: java.io.IOException: Server returned HTTP response code: 401 for URL: http://u:p@repo/x.jar",
                "",
                Code::ArtifactDenied,
                Class::Permanent,
            ),
            (
                "Internal Error: java.io.IOException: Server returned HTTP response code: 503 for URL: http://repo/x.jar",
                "",
                Code::ArtifactServer,
                Class::Transient,
            ),
            (
                "Internal Error: java.io.IOException: Server returned HTTP response code: 429 for URL: http://repo/x.jar",
                "",
                Code::ArtifactServer,
                Class::Transient,
            ),
            (
                "Internal Error: java.net.ConnectException: Connection refused",
                "",
                Code::ArtifactUnreachable,
                Class::Transient,
            ),
            (
                "Internal Error: java.util.zip.ZipException: zip END header not found",
                "",
                Code::ArtifactTruncated,
                Class::Transient,
            ),
            (
                "Internal Error: java.lang.IllegalArgumentException: Biz Name must not be empty!",
                "",
                Code::NotAModuleJar,
                Class::Permanent,
            ),
            (
                "Internal Error: java.lang.reflect.InvocationTargetException",
                &format!("{main}java.lang.IllegalStateException: no datasource"),
                Code::StartFailed,
                Class::Transient,
            ),
            (
                "Internal Error: java.lang.reflect.InvocationTargetException",
                &format!("{main}java.net.ConnectException: Connection refused"),
                Code::StartFailed,
                Class::Transient,
            ),
            (
                "Internal Error: java.lang.reflect.InvocationTargetException",
                &format!("{main}java.lang.NoClassDefFoundError: a/B"),
                Code::ClassError,
                Class::Permanent,
            ),
            (
                "Internal Error: Metaspace",
                "java.lang.OutOfMemoryError: Metaspace",
                Code::MetaspaceExhausted,
                Class::Poisonous,
            ),
            (
                "Internal Error: java.lang.reflect.InvocationTargetException",
                &format!("{main}java.lang.OutOfMemoryError: Compressed class space"),
                Code::MetaspaceExhausted,
                Class::Poisonous,
            ),
            (
                "Internal Error: Java heap space",
                "java.lang.OutOfMemoryError: Java heap space",
                Code::BaseOutOfMemory,
                Class::Transient,
            ),
        ] {
            let failure = internal(message, stack);
            assert_eq!((failure.code, failure.class()), (code, class), "{message} {stack}");
            assert!(!failure.message.contains("u:p@"), "{}", failure.message);
            assert!(!failure.message.is_empty());
        }
    }

    #[test]
    fn inner_codes_and_conflicts_are_told_apart() {
        let of =
            |json: &str| Failure::of_reply(&serde_json::from_str(json).unwrap()).map(|failure| failure.code);
        assert_eq!(
            of(
                r#"{"code":"FAILED","data":{"code":"REPEAT_BIZ","message":"Biz: a:1 has been installed or registered."},"message":"install biz not success!"}"#
            ),
            Some(Code::Repeat)
        );
        assert_eq!(
            of(
                r#"{"code":"FAILED","message":"FAILED:a:1 installBiz conflict, exist unfinished command(installBiz) for this biz"}"#
            ),
            Some(Code::Conflict)
        );
        assert_eq!(of(r#"{"code":"FAILED","message":"Jar not found"}"#), Some(Code::Refused));
        assert_eq!(of(r#"{"code":"CMD_NOT_FOUND","message":"x"}"#), Some(Code::NotUnderstood));
        assert_eq!(of("{}"), Some(Code::Refused));
        assert_eq!(of(r#"{"code":"SUCCESS","data":{"code":"SUCCESS"}}"#), None);
    }

    #[test]
    fn the_page_of_errors_tells_the_class_of_each_code() {
        let page = include_str!("../../../docs/errors.md");
        let classes = [Class::Transient, Class::Permanent, Class::Poisonous];
        let names = ["transient", "permanent", "poisonous"];
        let mut told = Vec::new();
        for line in page.lines() {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [code, class, ..] = cells[..] else { continue };
            if let Some(class) = names.iter().position(|name| *name == class) {
                told.push((code.trim_matches('`').to_owned(), classes[class]));
            }
        }
        let codes = Code::ALL.map(|code| (code.as_str().to_owned(), code.class()));
        assert_eq!(told, codes);
    }

    /// BL-048: a huge stack in any script leaves its root cause, short and whole.
    #[test]
    fn a_stack_of_hundreds_of_kilobytes_becomes_one_line() {
        let stack = format!(
            "x: y\n{}Caused by: java.lang.IllegalStateException: 数据源 missing\n",
            "\tat a.b(C.java:1)\n".repeat(12_000)
        );
        let failure = internal("Internal Error: java.lang.reflect.InvocationTargetException", &stack);
        assert_eq!(failure.message, "java.lang.IllegalStateException: 数据源 missing");
    }
}
