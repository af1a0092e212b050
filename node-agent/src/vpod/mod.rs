//! VPods: read into modules, rendered into status, written, removed, probed.

mod conditions;
pub mod delete;
pub mod fields;
pub mod probe;
pub mod read;
pub mod render;
pub mod write;
