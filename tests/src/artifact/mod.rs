//! Module jars made on demand, and an HTTP server that hands them out, with faults.

mod class_file;
mod jar;
mod manifest;
mod server;

pub use jar::ModuleJar;
pub use manifest::{Jar, Manifest, ReadJarError};
pub use server::{ArtifactServer, ModuleBuilder, ServerError, Trouble};
