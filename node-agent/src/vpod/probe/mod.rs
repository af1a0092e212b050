//! Probes of modules, run as a kubelet runs them, and the one HTTP GET that probes and preStop hooks share. Always
//! against the base's own address: a Pod cannot make the agent call anything else.

mod ask;
mod health;
mod run;
mod spec;

pub use ask::once;
pub use health::{Before, Failing, Health, Verdict};
pub use run::{Heard, News, Subject, run};
pub use spec::{Check, Get, Kind, Probes, Target, get};
