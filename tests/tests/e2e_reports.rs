//! Field reports that no other test shows; see docs/field-reports.md. Each test carries the numbers of its reports.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at what it did not expect"
)]

mod reported;
mod vnodes;
mod vpods;
