//! What a request's JSON object means: types are bent the way arklet's JSON library bends them, and one field that
//! cannot be bent spoils the whole input.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::throwable::Throwable;

/// A field of a type that cannot be bent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spoiled;

/// A request body.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Body {
    /// No body, or `null`.
    Empty,
    /// An object.
    Object(Map<String, Value>),
}

impl Body {
    /// Reads a body; none for anything that arklet's parser throws on, which gets no reply.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::Empty);
        }
        // The JSON library of a real arklet also takes comments, single quotes, bare keys and trailing commas.
        let value = serde_json::from_slice(bytes)
            .ok()
            .or_else(|| json5::from_str(std::str::from_utf8(bytes).ok()?).ok())?;
        match value {
            Value::Null => Some(Self::Empty),
            Value::Object(fields) => Some(Self::Object(fields)),
            _ => None,
        }
    }

    fn fields(&self) -> Option<&Map<String, Value>> {
        match self {
            Self::Empty => None,
            Self::Object(fields) => Some(fields),
        }
    }

    /// The body as JSON, for the journal.
    pub(super) fn value(&self) -> Value {
        self.fields().map_or(Value::Null, |fields| Value::Object(fields.clone()))
    }
}

/// Text that is there and not blank.
fn filled(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.trim().is_empty())
}

fn text(fields: &Map<String, Value>, key: &str) -> Option<String> {
    match fields.get(key)? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn flag(fields: &Map<String, Value>, key: &str) -> Result<Option<bool>, Spoiled> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(Value::Number(number)) => Ok(Some(number.as_i64() == Some(1))),
        Some(Value::String(word)) => match word.to_lowercase().as_str() {
            "" | "null" => Ok(None),
            "true" | "1" => Ok(Some(true)),
            "false" | "0" => Ok(Some(false)),
            _ => Err(Spoiled),
        },
        Some(_) => Err(Spoiled),
    }
}

fn args(fields: &Map<String, Value>) -> Result<Option<Vec<String>>, Spoiled> {
    match fields.get("args") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) => Ok(Some(
            list.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect(),
        )),
        // A string is taken for base64: one character decodes to nothing, most others to something unusable.
        Some(Value::String(text)) if text.len() < 2 => Ok(None),
        Some(_) => Err(Spoiled),
    }
}

fn envs(fields: &Map<String, Value>) -> Result<Option<BTreeMap<String, String>>, Spoiled> {
    match fields.get("envs") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(pairs)) => {
            Ok(Some(pairs.keys().filter_map(|key| Some((key.clone(), text(pairs, key)?))).collect()))
        }
        Some(_) => Err(Spoiled),
    }
}

/// A command handler of a real arklet: names the class in the exceptions that it throws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handler {
    Install,
    Uninstall,
    Switch,
    Batch,
}

impl Handler {
    pub(super) fn command(self) -> &'static str {
        match self {
            Self::Install => "installBiz",
            Self::Uninstall => "uninstallBiz",
            Self::Switch => "switchBiz",
            Self::Batch => "batchInstallBiz",
        }
    }

    /// The outer message when the operation came to nothing.
    pub(super) fn refusal(self) -> &'static str {
        match self {
            Self::Install | Self::Batch => "install biz not success!",
            Self::Uninstall => "uninstall biz not success!",
            Self::Switch => "switch biz not success!",
        }
    }

    fn null_input(self) -> Throwable {
        let class = match self {
            Self::Install => "InstallBizHandler",
            Self::Uninstall => "UninstallBizHandler",
            Self::Switch => "SwitchBizHandler",
            Self::Batch => "BatchInstallBizHandler",
        };
        let message = format!(
            "Cannot invoke \"com.alipay.sofa.koupleless.arklet.core.command.builtin.handler.{class}$Input.isAsync()\" because \"input\" is null"
        );
        Throwable::new("java.lang.NullPointerException", &message)
    }
}

/// The part that every operation has: whom it concerns and whether it runs in the background.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub name: Option<String>,
    pub version: Option<String>,
    pub background: Option<bool>,
    pub request_id: Option<String>,
}

impl Subject {
    fn read(fields: &Map<String, Value>) -> Result<Self, Spoiled> {
        Ok(Self {
            name: text(fields, "bizName"),
            version: text(fields, "bizVersion"),
            background: flag(fields, "async")?,
            request_id: text(fields, "requestId"),
        })
    }

    pub(super) fn is_background(&self) -> bool {
        self.background == Some(true)
    }

    fn require_request_id(&self) -> Result<(), Throwable> {
        if self.is_background() && !filled(self.request_id.as_ref()) {
            return Err(Throwable::validation("requestId should not be blank when async is true"));
        }
        Ok(())
    }

    /// Key of the lock: what the request says, `null` included.
    pub(super) fn lock_key(&self) -> String {
        let or_null = |text: &Option<String>| text.clone().unwrap_or_else(|| "null".to_owned());
        format!("{}:{}", or_null(&self.name), or_null(&self.version))
    }

    fn echo(&self) -> Map<String, Value> {
        let mut echo = Map::new();
        for (key, value) in
            [("bizName", &self.name), ("bizVersion", &self.version), ("requestId", &self.request_id)]
        {
            if let Some(value) = value {
                echo.insert(key.to_owned(), json!(value));
            }
        }
        if let Some(background) = self.background {
            echo.insert("async".to_owned(), json!(background));
        }
        echo
    }
}

/// `uninstallBiz` and `switchBiz`: name and version, both present.
pub(super) fn read_exact(handler: Handler, body: &Body) -> Result<Subject, Throwable> {
    let fields = body.fields().ok_or_else(|| handler.null_input())?;
    let subject = Subject::read(fields).map_err(|Spoiled| handler.null_input())?;
    subject.require_request_id()?;
    for (key, value) in [("bizName", &subject.name), ("bizVersion", &subject.version)] {
        if !filled(value.as_ref()) {
            return Err(Throwable::validation(&format!("{key} should not be blank")));
        }
    }
    Ok(subject)
}

/// `installBiz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Install {
    pub subject: Subject,
    pub url: String,
    pub args: Option<Vec<String>>,
    pub envs: Option<BTreeMap<String, String>>,
    strategy: Option<String>,
}

impl Install {
    fn read(fields: &Map<String, Value>) -> Result<Self, Spoiled> {
        Ok(Self {
            subject: Subject::read(fields)?,
            url: text(fields, "bizUrl").unwrap_or_default(),
            args: args(fields)?,
            envs: envs(fields)?,
            strategy: text(fields, "installStrategy"),
        })
    }

    fn validate(&self) -> Result<(), Throwable> {
        if self.url.trim().is_empty() {
            return Err(Throwable::validation("bizUrl should not be blank"));
        }
        if filled(self.subject.name.as_ref()) != filled(self.subject.version.as_ref()) {
            let message = "bizName and bizVersion should be both blank or both not blank.";
            return Err(Throwable::validation(message));
        }
        Ok(())
    }

    pub(super) fn has_identity(&self) -> bool {
        filled(self.subject.name.as_ref())
    }

    pub(super) fn uninstalls_first(&self) -> bool {
        self.strategy.as_deref() == Some("uninstallThenInstall")
    }

    fn echo(&self) -> Value {
        let mut echo = self.subject.echo();
        echo.insert("bizUrl".to_owned(), json!(self.url));
        echo.insert("installStrategy".to_owned(), json!(self.strategy.as_deref().unwrap_or("installOnly")));
        if let Some(args) = &self.args {
            echo.insert("args".to_owned(), json!(args));
        }
        if let Some(envs) = &self.envs {
            echo.insert("envs".to_owned(), json!(envs));
        }
        Value::Object(echo)
    }
}

/// Reads and validates the input of `installBiz`.
pub(super) fn read_install(body: &Body) -> Result<Install, Throwable> {
    let fields = body.fields().ok_or_else(|| Handler::Install.null_input())?;
    let install = Install::read(fields).map_err(|Spoiled| Handler::Install.null_input())?;
    install.subject.require_request_id()?;
    install.validate()?;
    Ok(install)
}

/// `batchInstallBiz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    pub subject: Subject,
    pub items: Vec<Install>,
}

/// Reads and validates the input of `batchInstallBiz`.
pub(super) fn read_batch(body: &Body) -> Result<Batch, Throwable> {
    let null_input = |Spoiled| Handler::Batch.null_input();
    let fields = body.fields().ok_or_else(|| null_input(Spoiled))?;
    let list = match fields.get("bizList") {
        None | Some(Value::Null) => return Err(Throwable::validation("bizList is null")),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(null_input(Spoiled)),
    };
    let items: Result<Vec<Install>, Spoiled> =
        list.iter().map(|item| Install::read(item.as_object().ok_or(Spoiled)?)).collect();
    let items = items.map_err(null_input)?;
    for item in &items {
        item.validate()?;
    }
    // The identity of the batch itself is never read: its lock is always that of `null:null`.
    let subject = Subject { name: None, version: None, ..Subject::read(fields).map_err(null_input)? };
    if subject.is_background() && subject.request_id.is_none() {
        return Err(Throwable::bare("java.lang.NullPointerException"));
    }
    Ok(Batch { subject, items })
}

/// `queryBizOps`: the requestId.
pub(super) fn read_request_id(body: &Body) -> Result<String, Throwable> {
    let fields = body.fields().ok_or_else(|| Throwable::validation("request is null"))?;
    text(fields, "requestId")
        .filter(|id| !id.trim().is_empty())
        .ok_or_else(|| Throwable::validation("requestId is blank"))
}

/// An operation, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    Install(Install),
    Uninstall(Subject),
    Switch(Subject),
    Batch(Batch),
}

impl Operation {
    pub(super) fn handler(&self) -> Handler {
        match self {
            Self::Install(_) => Handler::Install,
            Self::Uninstall(_) => Handler::Uninstall,
            Self::Switch(_) => Handler::Switch,
            Self::Batch(_) => Handler::Batch,
        }
    }

    pub(super) fn subject(&self) -> &Subject {
        match self {
            Self::Install(install) => &install.subject,
            Self::Uninstall(subject) | Self::Switch(subject) => subject,
            Self::Batch(batch) => &batch.subject,
        }
    }

    /// The request as its record shows it, under `arkBizMeta`.
    pub(super) fn echo(&self) -> Value {
        match self {
            Self::Install(install) => install.echo(),
            Self::Uninstall(subject) | Self::Switch(subject) => Value::Object(subject.echo()),
            Self::Batch(batch) => {
                let mut echo = batch.subject.echo();
                echo.insert("bizList".to_owned(), batch.items.iter().map(Install::echo).collect());
                Value::Object(echo)
            }
        }
    }
}

/// The `health` request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HealthQuery {
    pub kind: Option<String>,
    pub metrics: Vec<String>,
    pub name: Option<String>,
    pub version: Option<String>,
}

impl HealthQuery {
    pub(super) fn read(body: &Body) -> Self {
        let Some(fields) = body.fields() else { return Self::default() };
        let metrics = fields.get("metrics").and_then(Value::as_array).into_iter().flatten();
        Self {
            kind: text(fields, "type").filter(|kind| !kind.is_empty()),
            metrics: metrics.filter_map(Value::as_str).map(str::to_owned).collect(),
            name: text(fields, "bizName").filter(|name| !name.is_empty()),
            version: text(fields, "bizVersion").filter(|version| !version.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(value: &Value) -> Body {
        Body::read(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn only_objects_and_nothing_are_read() {
        assert_eq!(Body::read(b""), Some(Body::Empty));
        assert_eq!(Body::read(b"null"), Some(Body::Empty));
        for text in ["{\"a\":", "hello", "[]", "123", "\"text\"", "   ", "{} trailing"] {
            assert_eq!(Body::read(text.as_bytes()), None, "{text:?}");
        }
        for text in ["{a:1,'b':2}", "/* c */{\"a\":1,}"] {
            assert!(matches!(Body::read(text.as_bytes()), Some(Body::Object(_))), "{text:?}");
        }
    }

    #[test]
    fn types_are_bent_or_spoil_the_input() {
        let url = "http://x/y.jar";
        let good =
            body(&json!({"bizName": "a", "bizVersion": 7, "bizUrl": url, "async": "true", "requestId": "r"}));
        let install = read_install(&good).unwrap();
        assert_eq!((install.subject.lock_key().as_str(), install.subject.is_background()), ("a:7", true));
        for (key, value) in
            [("envs", json!(["x"])), ("async", json!("perhaps")), ("args", json!("--one=two"))]
        {
            let spoiled = body(&json!({"bizName": "a", "bizVersion": "1", "bizUrl": url, key: value}));
            let thrown = read_install(&spoiled).unwrap_err();
            assert!(thrown.to_string().starts_with("java.lang.NullPointerException"), "{key}: {thrown}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let table = [
            (read_install(&body(&json!({}))).unwrap_err(), "bizUrl should not be blank"),
            (
                read_install(&body(&json!({"bizName": "a", "bizUrl": "x"}))).unwrap_err(),
                "bizName and bizVersion should be both blank or both not blank.",
            ),
            (
                read_exact(Handler::Switch, &body(&json!({"bizName": "a"}))).unwrap_err(),
                "bizVersion should not be blank",
            ),
            (read_batch(&body(&json!({}))).unwrap_err(), "bizList is null"),
            (read_batch(&body(&json!({"bizList": [], "async": true}))).unwrap_err(), "null"),
            (read_request_id(&Body::Empty).unwrap_err(), "request is null"),
        ];
        for (thrown, message) in table {
            assert_eq!(thrown.message(), message);
        }
    }
}
