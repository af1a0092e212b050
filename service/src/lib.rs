//! What both programs share: logs, the admin server, supervised tasks, serving with TLS, the policy file,
//! the way to a cluster.
//!
//! Nothing here knows of bases, modules or verbs. Each part is a value that `main` wires together; there are no
//! globals but the log subscriber.

pub mod admin;
pub mod file_watch;
pub mod kubernetes;
pub mod logs;
pub mod policy_file;
pub mod readiness;
pub mod serve;
pub mod server_clock;
pub mod tasks;
pub mod tls;
pub mod watching;
