//! The Node that stands for a base: what it must show (pure), how that differs from what is there (pure), and the one
//! place that writes it.

mod change;
mod keeper;
mod render;
mod seen;
mod write;

pub use change::{Changes, HEARTBEAT_EVERY, changes, creation, departure};
pub use keeper::{Keeper, KeeperContext, KeeperState, Order};
pub use render::{Frame, HostFacts, Limits, ServedEndpoint, Show, Wanted, render};
pub use seen::SeenNode;

/// The field manager of everything we write to Nodes.
pub const FIELD_MANAGER: &str = "stowage-agent";
