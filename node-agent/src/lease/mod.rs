//! Leases: the one that makes an agent act, and one for each VNode that keeps it alive.

pub mod election;
pub mod leader;
pub mod node;
mod note;
mod term;

pub use leader::{Leader, LeaderHandle};
pub use note::LeaseNote;
pub use term::Term;
