//! What the extender knows of the cluster: every Node, and every module Pod that is not finished.
//!
//! Two watches trim objects on arrival and hand them to one owner task, which keeps the [`State`] and publishes it as
//! an immutable [`Snapshot`] after each batch. A request loads one snapshot and sees one consistent view; to read the
//! cache it waits neither for a lock nor for the API server.

mod health;
mod mark;
mod node_set;
mod nodes;
mod owner;
mod shards;
mod state;
mod watch;

pub use health::Health;
pub use mark::{ByMark, Mark, Places};
pub use node_set::NodeSet;
pub use nodes::{NodeEntry, NodeKind, Nodes};
pub use owner::{Cache, CacheView};
pub use shards::Shards;
pub use state::State;
pub use watch::{Change, NodeUpdate, PodUpdate, Source, nodes, pods};

/// What a request sees: the state at one moment. Cloning a state is cheap, see [`Nodes`] and [`Shards`].
pub type Snapshot = State;
