//! One file for each rule. A rule is a pure function of a [`crate::decide::Question`].

pub mod access;
pub mod annotations;
pub mod artifact;
pub mod base_version;
pub mod compatibility;
pub mod context_path;
pub mod kind;
pub mod leaving;
pub mod metaspace;
pub mod module_limit;
pub mod recent_failure;
pub mod same_module;
pub mod stack;

use crate::{contract::Inventory, decide::Question, reason::Reason};

/// The inventory, or the reason why a rule that needs it cannot speak.
fn inventory<'a>(question: &Question<'a>) -> Result<&'a Inventory, Reason> {
    question.base.facts.inventory.get().ok_or(Reason::InventoryUnknown)
}

/// The same for a rule that needs all of it.
fn whole_inventory<'a>(question: &Question<'a>) -> Result<&'a Inventory, Reason> {
    let inventory = inventory(question)?;
    if inventory.truncated { Err(Reason::InventoryTruncated) } else { Ok(inventory) }
}
