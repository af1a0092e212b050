//! One actor per base: it owns all that is known of the base, and nothing else writes it.

mod actor;
mod bound;
mod check;
mod clock;
mod context;
mod downloads;
mod earlier;
mod hooks;
pub mod lethal;
mod message;
mod moving;
mod objection;
mod observe;
mod operation;
mod plan;
mod probing;
mod reason;
mod release;
mod removal;
mod report;
mod requirements;
pub mod restart;
mod rules;
pub mod state;
mod status;
mod step;
mod story;
mod told;
pub mod transition;
mod turn;

pub use actor::{run, spawn};
pub use context::{ActorContext, EndpointLookup, Event, EventKind, EventSink, Meter, NoMeter, POD_CALLS};
pub use downloads::{Downloads, Permit};
pub use message::{Health, Hold, Message, Publish, Report};
pub use plan::plan;

#[cfg(test)]
mod tests;
