//! Scratch directories that stay when a test failed, so that its logs can be read, and go otherwise.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, Once, PoisonError},
    thread,
};

use crate::leash;

/// Set to keep every directory, also of tests that passed.
pub const KEEP: &str = "STOWAGE_KEEP_LOGS";

/// Directories that belong to the whole test binary; see [`Workdir::shared`].
static SHARED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A directory with logs and data. Removed on drop, unless the thread panics or `STOWAGE_KEEP_LOGS` is set; its path
/// is then printed.
#[derive(Debug)]
pub struct Workdir {
    path: PathBuf,
    shared: bool,
}

impl Workdir {
    /// Makes a new directory under the system's temporary directory.
    pub fn new(name: &str) -> io::Result<Self> {
        let path = tempfile::Builder::new().prefix(&format!("stowage-{name}-")).tempdir()?.keep();
        Ok(Self { path, shared: false })
    }

    /// The same for something that lives until the test binary ends: removed then, unless any test panicked.
    pub fn shared(name: &str) -> io::Result<Self> {
        static HOOK: Once = Once::new();
        let mut directory = Self::new(name)?;
        directory.shared = true;
        if std::env::var_os(KEEP).is_some() {
            eprintln!("logs are kept in {}", directory.path.display());
            return Ok(directory);
        }
        leash::remove_at_end(&directory.path)?;
        SHARED.lock().unwrap_or_else(PoisonError::into_inner).push(directory.path.clone());
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                for path in SHARED.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                    match leash::keep(&path) {
                        Ok(()) => eprintln!("logs are kept in {}", path.display()),
                        Err(error) => eprintln!("logs in {} could not be kept: {error}", path.display()),
                    }
                }
                next(panic);
            }));
        });
        Ok(directory)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        if self.shared {
            return;
        }
        if thread::panicking() || std::env::var_os(KEEP).is_some() {
            eprintln!("logs are kept in {}", self.path.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("{} could not be removed: {error}", self.path.display());
        }
    }
}
