//! Where bases come from: one file per source.

mod spec;

pub use spec::{BaseSpec, Leaving};
