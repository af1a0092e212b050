//! The words agent and extender share: keys, module Pods, bases, the inventory, and how a `VNode` is named.
//!
//! Nothing here decides anything; it turns API objects into values and back.

pub mod artifact;
pub mod base;
mod glance;
pub mod inventory;
pub mod module;
pub mod names;
pub mod node_name;
mod shared_facts;
mod wishes;

pub use artifact::ArtifactSource;
pub use base::{BaseError, BaseFacts, BaseRevision, Known};
pub use glance::ModuleIndex;
pub(crate) use glance::{Beginning, Glance};
pub use inventory::{Inventory, InventoryModule, Metaspace, ModuleState, Owner, RecentFailure};
pub use module::{DeclaredVersion, Incomplete, Missing, Module, ModulePod, PodKind, Reference, classify};
pub use node_name::node_name;
pub use shared_facts::SharedFacts;
