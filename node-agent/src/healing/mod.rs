//! Self-healing: when a base is overloaded (pure), and the steps by which it is replaced (pure). The fleet looks, asks and
//! carries out.
//!
//! What has been decided stands on the Node before anything follows from it, so that an agent that takes over goes on where
//! the last one stopped.

mod detect;
mod procedure;
mod state;
mod successor;

pub use detect::{Cause, Detector, Limits, Load, Sample};
pub use procedure::{Facts, Following, Hindrance, Next, Outlook, Replicas, Tenant, Wish, judge};
pub use state::{Evicted, Healing, Step};
pub use successor::{Awaited, Notes, Sibling, Verdict};
