//! One actor per base: it owns all that is known of the base, and nothing else writes it.

mod message;

pub use message::{Health, Message, Publish, Report};
