//! One actor per base: it owns all that is known of the base, and nothing else writes it.

mod context;
mod downloads;
mod message;

pub use context::{ActorContext, EndpointLookup, Event, EventKind, EventSink, Meter, NoMeter};
pub use downloads::{Downloads, Permit};
pub use message::{Health, Message, Publish, Report};
