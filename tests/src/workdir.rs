//! Scratch directories that stay when a test failed, so that its logs can be read, and go otherwise.
//!
//! All directories of a test binary lie in one. It is removed when the binary ends, unless a test failed or
//! `STOWAGE_KEEP_LOGS` is set; its path is then printed.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::leash;

/// Set to keep the directory even when all tests passed.
pub const KEEP: &str = "STOWAGE_KEEP_LOGS";

/// A directory of one cluster or program: logs, configuration, and `data`, which goes on drop.
#[derive(Debug)]
pub struct Workdir {
    path: PathBuf,
}

impl Workdir {
    /// Makes a new directory, named after what it is for.
    pub fn new(name: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root()?.join(format!("{name}-{number}"));
        std::fs::create_dir_all(path.join("data"))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For what is big and tells nothing afterwards (etcd's files).
    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Writes a file readable by its owner only, and returns its path.
    pub fn write(&self, name: &str, content: &str) -> io::Result<PathBuf> {
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.path.join(name);
        let mut file =
            std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(content.as_bytes())?;
        Ok(path)
    }
}

impl Drop for Workdir {
    fn drop(&mut self) {
        // What cannot be removed now is removed with the root.
        std::fs::remove_dir_all(self.data()).ok();
    }
}

static ROOT: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The directory of this test binary, made at the first call.
fn root() -> io::Result<&'static Path> {
    let root = ROOT.get_or_init(|| make_root().map_err(|error| error.to_string()));
    root.as_deref().map_err(|error| io::Error::other(error.clone()))
}

fn make_root() -> io::Result<PathBuf> {
    let root = tempfile::Builder::new().prefix("stowage-").tempdir()?.keep();
    if std::env::var_os(KEEP).is_some() {
        say(&format!("logs are kept in {}", root.display()));
        return Ok(root);
    }
    leash::remove_at_end(&root)?;
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        keep();
        next(panic);
    }));
    Ok(root)
}

/// Keeps the directory, because a test has failed.
pub(crate) fn keep() {
    static KEPT: OnceLock<()> = OnceLock::new();
    if let Some(Ok(root)) = ROOT.get()
        && std::env::var_os(KEEP).is_none()
    {
        KEPT.get_or_init(|| match leash::keep(root) {
            Ok(()) => say(&format!("a test failed: logs are kept in {}", root.display())),
            Err(error) => say(&format!("logs in {} could not be kept: {error}", root.display())),
        });
    }
}

/// To the standard error itself: what the test runner captures would only be seen of the test that failed.
pub(crate) fn say(line: &str) {
    writeln!(io::stderr(), "{line}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_on_drop_and_the_rest_stays() {
        let directory = Workdir::new("example").unwrap();
        let file = directory.write("secret", "content").unwrap();
        let data = directory.data();
        assert!(data.is_dir());
        drop(directory);
        assert!(!data.exists());
        assert_eq!(std::fs::read_to_string(file).unwrap(), "content");
    }
}
