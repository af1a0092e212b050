//! Java exceptions as arklet prints them: one line for a message, a stack trace for a reply, a tree for an
//! operation record.

use std::fmt;

use serde_json::{Map, Value, json};

/// What stands under every command: arklet's dispatcher, netty, the thread.
const ENCLOSING: &[&str] = &[
    "com.alipay.sofa.koupleless.arklet.core.command.CommandServiceImpl.process(CommandServiceImpl.java:180)",
    "com.alipay.sofa.koupleless.arklet.core.api.tunnel.http.netty.NettyHttpServer$NettyHttpHandler.channelRead0(NettyHttpServer.java:169)",
    "io.netty.channel.SimpleChannelInboundHandler.channelRead(SimpleChannelInboundHandler.java:99)",
    "io.netty.channel.AbstractChannelHandlerContext.invokeChannelRead(AbstractChannelHandlerContext.java:444)",
    "io.netty.channel.AbstractChannelHandlerContext.fireChannelRead(AbstractChannelHandlerContext.java:412)",
    "io.netty.handler.codec.http.HttpServerExpectContinueHandler.channelRead(HttpServerExpectContinueHandler.java:95)",
    "io.netty.handler.codec.MessageToMessageDecoder.channelRead(MessageToMessageDecoder.java:103)",
    "io.netty.handler.codec.ByteToMessageDecoder.channelRead(ByteToMessageDecoder.java:318)",
    "io.netty.channel.DefaultChannelPipeline$HeadContext.channelRead(DefaultChannelPipeline.java:1410)",
    "io.netty.channel.nio.AbstractNioByteChannel$NioByteUnsafe.read(AbstractNioByteChannel.java:166)",
    "io.netty.channel.nio.NioEventLoop.run(NioEventLoop.java:562)",
    "io.netty.util.concurrent.SingleThreadEventExecutor$4.run(SingleThreadEventExecutor.java:997)",
    "io.netty.util.concurrent.FastThreadLocalRunnable.run(FastThreadLocalRunnable.java:30)",
    "java.base/java.lang.Thread.run(Thread.java:840)",
];

/// What stands under an exception that came out of SOFAArk while it installed or stopped a module.
const ARK: &[&str] = &[
    "com.alipay.sofa.ark.container.model.BizModel.doStart(BizModel.java:353)",
    "com.alipay.sofa.ark.container.model.BizModel.start(BizModel.java:323)",
    "com.alipay.sofa.ark.api.ArkClient.doInstallBiz(ArkClient.java:195)",
    "com.alipay.sofa.ark.api.ArkClient.installBiz(ArkClient.java:169)",
    "com.alipay.sofa.ark.api.ArkClient.installOperation(ArkClient.java:370)",
    "com.alipay.sofa.koupleless.arklet.core.ops.UnifiedOperationServiceImpl.install(UnifiedOperationServiceImpl.java:75)",
];

/// The wrapper that arklet puts around whatever a handler threw.
const WRAPPER: &str = "com.alipay.sofa.koupleless.arklet.core.common.exception.ArkletRuntimeException";
/// What a request with a missing or contradictory field is answered with.
const VALIDATION: &str = "com.alipay.sofa.koupleless.arklet.core.common.exception.CommandValidationException";
/// What the reflective call of a module's `main` turns every exception into.
const REFLECTION: &str = "java.lang.reflect.InvocationTargetException";

/// An exception: class, message, cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throwable {
    class: String,
    message: Option<String>,
    cause: Option<Box<Throwable>>,
}

impl Throwable {
    /// An exception without a cause.
    pub fn new(class: &str, message: &str) -> Self {
        Self { class: class.to_owned(), message: Some(message.to_owned()), cause: None }
    }

    /// An exception whose `getMessage()` is null.
    pub fn bare(class: &str) -> Self {
        Self { class: class.to_owned(), message: None, cause: None }
    }

    /// Reads `class: message`, or a class alone.
    pub fn parse(text: &str) -> Self {
        match text.split_once(": ") {
            Some((class, message)) => Self::new(class.trim(), message.trim()),
            None => Self::bare(text.trim()),
        }
    }

    /// The same exception with a cause.
    #[must_use]
    pub fn caused_by(self, cause: Self) -> Self {
        Self { cause: Some(Box::new(cause)), ..self }
    }

    /// A request that arklet does not accept.
    pub(super) fn validation(message: &str) -> Self {
        Self::new(VALIDATION, message)
    }

    /// The exception as it leaves a command handler.
    pub(super) fn wrapped(self) -> Self {
        let message = self.to_string();
        Self { class: WRAPPER.to_owned(), message: Some(message), cause: Some(Box::new(self)) }
    }

    /// The exception as it leaves the reflective call of a module's `main`.
    pub(super) fn out_of_main(self) -> Self {
        Self::bare(REFLECTION).caused_by(self)
    }

    /// A full metaspace, as it is thrown.
    pub(super) fn metaspace() -> Self {
        Self::new("java.lang.OutOfMemoryError", "Metaspace")
    }

    /// `getMessage()`, with Java's word for no message.
    pub fn message(&self) -> &str {
        self.message.as_deref().unwrap_or("null")
    }

    /// The innermost cause.
    pub fn root(&self) -> &Self {
        self.cause.as_ref().map_or(self, |cause| cause.root())
    }

    /// The text of `printStackTrace()`.
    pub fn stack_trace(&self) -> String {
        let mut text = format!("{self}\n");
        for frame in ENCLOSING {
            text.push_str("\tat ");
            text.push_str(frame);
            text.push('\n');
        }
        self.print_causes(&mut text);
        text
    }

    fn print_causes(&self, text: &mut String) {
        let Some(cause) = &self.cause else { return };
        text.push_str("Caused by: ");
        text.push_str(&cause.to_string());
        text.push('\n');
        for frame in ARK {
            text.push_str("\tat ");
            text.push_str(frame);
            text.push('\n');
        }
        text.push_str("\t... 35 more\n");
        cause.print_causes(text);
    }

    /// The tree that an operation record carries under `throwable`; `path` is where it stands in the reply.
    pub(super) fn dump(&self, path: &str) -> Value {
        let mut tree = Map::new();
        tree.insert("@type".to_owned(), json!(self.class));
        if let Some(cause) = &self.cause {
            let below = format!("{path}.cause");
            tree.insert("cause".to_owned(), cause.dump(&below));
        }
        if let Some(message) = &self.message {
            tree.insert("localizedMessage".to_owned(), json!(message));
            tree.insert("message".to_owned(), json!(message));
        }
        tree.insert("stackTrace".to_owned(), ARK.iter().map(|frame| frame_value(frame)).collect());
        if self.class == REFLECTION {
            tree.insert("targetException".to_owned(), json!({ "$ref": format!("{path}.cause") }));
        }
        Value::Object(tree)
    }
}

impl fmt::Display for Throwable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.message {
            Some(message) => write!(out, "{}: {message}", self.class),
            None => out.write_str(&self.class),
        }
    }
}

/// `package.Class.method(File.java:12)` as the record shows it.
fn frame_value(frame: &str) -> Value {
    let (call, place) = frame.split_once('(').unwrap_or((frame, ""));
    let (class, method) = call.rsplit_once('.').unwrap_or((call, ""));
    let (file, line) = place.trim_end_matches(')').rsplit_once(':').unwrap_or((place, "-1"));
    json!({
        "className": class,
        "fileName": file,
        "lineNumber": line.parse::<i32>().unwrap_or(-1),
        "methodName": method,
        "nativeMethod": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_main() -> Throwable {
        Throwable::parse("java.lang.IllegalStateException: no database").out_of_main().wrapped()
    }

    #[test]
    fn only_the_last_cause_names_the_reason() {
        let thrown = failed_main();
        assert_eq!(thrown.message(), REFLECTION);
        let trace = thrown.stack_trace();
        let causes: Vec<_> = trace.lines().filter(|line| line.starts_with("Caused by: ")).collect();
        assert_eq!(
            causes,
            [
                "Caused by: java.lang.reflect.InvocationTargetException",
                "Caused by: java.lang.IllegalStateException: no database"
            ]
        );
        assert_eq!(thrown.root().to_string(), "java.lang.IllegalStateException: no database");
    }

    #[test]
    fn the_dump_nests_causes_and_refers_to_the_target() {
        let dump = failed_main().dump("$.data.throwable");
        assert_eq!(dump["cause"]["targetException"]["$ref"], "$.data.throwable.cause.cause");
        assert_eq!(dump["cause"]["cause"]["message"], "no database");
        assert!(dump["cause"].get("message").is_none());
    }

    #[test]
    fn a_class_without_a_message_reads_null() {
        let thrown = Throwable::parse("java.lang.NullPointerException");
        assert_eq!(
            (thrown.to_string().as_str(), thrown.message()),
            ("java.lang.NullPointerException", "null")
        );
    }
}
