//! Events: taken without waiting, counted together while they repeat, written at a bounded rate.

mod recorder;
mod series;

pub use recorder::{Recorder, recorder};
