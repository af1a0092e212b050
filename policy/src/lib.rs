//! What a placement is allowed to know and how it decides. No tokio, no HTTP, no API client.

pub mod contract;
pub mod version;
