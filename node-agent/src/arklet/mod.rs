//! arklet: the HTTP operations API inside a base, as a client needs it.
//!
//! Replies are HTTP 200 for nearly every failure, come without headers and end when the server closes the
//! connection; a body that is no JSON object is never answered. So every call is one connection, carries an
//! object, has a time limit and reads to the end within a size limit.

mod client;
mod error;
mod root_cause;
mod wire;

pub use client::{CallError, Client, Endpoint, Guard, Limits};
pub use error::{Class, Code, Failure};
pub(crate) use root_cause::shortened;
pub use root_cause::without_credentials;
pub use wire::{Biz, BizState, Install, Jvm, Reply, StateRecord};
