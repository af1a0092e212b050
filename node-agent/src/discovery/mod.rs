//! Where bases come from: one file per source.

mod pod;
mod selector;
mod spec;

pub use pod::{DEFAULT_PORT, NotABase, controller, from_pod, has_pre_stop};
pub use selector::{Selector, SelectorError};
pub use spec::{BaseSpec, Controller, GateCondition, Leaving, ModulesGate};
