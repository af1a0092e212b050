//! Makes module jars.

use std::io::{self, Cursor, Write};
use std::time::Duration;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::class_file;
use super::manifest::{self, Manifest};

/// Main class of the jars made here.
const MAIN_CLASS: &str = "dev.stowage.sample.Main";
/// Entry by which SOFAArk knows a module jar.
const MARK: &str = "com/alipay/sofa/ark/biz/mark";

/// A module jar to be made. What it does on a simulated base stands in attributes that a real base ignores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleJar {
    manifest: Manifest,
    has_manifest: bool,
    padding: usize,
}

impl ModuleJar {
    /// A module that starts at once and stays.
    pub fn new(name: &str, version: &str) -> Self {
        let mut manifest = Manifest::default();
        manifest.set("Ark-Biz-Name", name);
        manifest.set("Ark-Biz-Version", version);
        manifest.set("Main-Class", MAIN_CLASS);
        manifest.set("priority", "100");
        manifest.set("web-context-path", name);
        Self { manifest, has_manifest: true, padding: 0 }
    }

    /// Sets any attribute of the manifest.
    #[must_use]
    pub fn attribute(mut self, key: &str, value: &str) -> Self {
        self.manifest.set(key, value);
        self
    }

    fn millis(self, key: &str, time: Duration) -> Self {
        self.attribute(key, &time.as_millis().to_string())
    }

    /// Its main runs this long.
    #[must_use]
    pub fn starts_in(self, time: Duration) -> Self {
        self.millis("Sim-Start-Millis", time)
    }

    /// Its main throws: `class: message`.
    #[must_use]
    pub fn fails(self, throwable: &str) -> Self {
        self.attribute("Sim-Fail", throwable)
    }

    /// What it loads, in bytes of metaspace.
    #[must_use]
    pub fn metaspace(self, bytes: u64) -> Self {
        self.attribute("Sim-Metaspace-Bytes", &bytes.to_string())
    }

    /// Its classes stay in the metaspace after it is gone.
    #[must_use]
    pub fn leaks(self) -> Self {
        self.attribute("Sim-Leak", "true")
    }

    /// It serves HTTP on this port of its base, under its context path.
    #[must_use]
    pub fn serves(self, port: u16) -> Self {
        self.attribute("Sim-Http-Port", &port.to_string())
    }

    /// The status of what it serves.
    #[must_use]
    pub fn answers(self, status: u16) -> Self {
        self.attribute("Sim-Http-Status", &status.to_string())
    }

    /// It answers 503 for this long after its start.
    #[must_use]
    pub fn ready_after(self, time: Duration) -> Self {
        self.millis("Sim-Ready-Millis", time)
    }

    /// Its web context path.
    #[must_use]
    pub fn context_path(self, path: &str) -> Self {
        self.attribute("web-context-path", path)
    }

    /// It takes the base down, this long after its start.
    #[must_use]
    pub fn kills_base_after(self, time: Duration) -> Self {
        self.millis("Sim-Exit-After", time)
    }

    /// It takes this long to stop.
    #[must_use]
    pub fn stops_in(self, time: Duration) -> Self {
        self.millis("Sim-Stop-Millis", time)
    }

    /// It throws when it is stopped: `class: message`.
    #[must_use]
    pub fn fails_to_stop(self, throwable: &str) -> Self {
        self.attribute("Sim-Stop-Fail", throwable)
    }

    /// The jar has no manifest.
    #[must_use]
    pub fn without_manifest(self) -> Self {
        Self { has_manifest: false, ..self }
    }

    /// The jar is about this many bytes larger.
    #[must_use]
    pub fn padding(self, bytes: usize) -> Self {
        Self { padding: bytes, ..self }
    }

    /// Name and version in the manifest.
    pub fn identity(&self) -> (&str, &str) {
        let value = |key| self.manifest.get(key).unwrap_or_default();
        (value("Ark-Biz-Name"), value("Ark-Biz-Version"))
    }

    /// The jar.
    ///
    /// # Errors
    /// When it cannot be packed, which for a jar in memory means that it is too large.
    pub fn pack(&self) -> io::Result<Vec<u8>> {
        let mut jar = ZipWriter::new(Cursor::new(Vec::new()));
        let packed = SimpleFileOptions::default();
        let stored = packed.compression_method(zip::CompressionMethod::Stored);
        if self.has_manifest {
            jar.start_file(manifest::PATH, packed)?;
            jar.write_all(self.manifest.render().as_bytes())?;
        }
        jar.start_file(MARK, packed)?;
        let main_class = self.manifest.get("Main-Class").unwrap_or(MAIN_CLASS);
        jar.start_file(format!("{}.class", main_class.replace('.', "/")), packed)?;
        jar.write_all(&class_file::with_empty_main(main_class))?;
        if self.padding > 0 {
            jar.start_file("padding", stored)?;
            jar.write_all(&vec![0; self.padding])?;
        }
        Ok(jar.finish()?.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::{Jar, ReadJarError};
    use super::*;

    #[test]
    fn a_jar_says_what_it_was_told() {
        let module = ModuleJar::new("shop", "1.0.0").starts_in(Duration::from_secs(2)).serves(8080).leaks();
        let jar = Jar::read(&module.pack().unwrap()).unwrap();
        assert_eq!(jar.manifest.get("Ark-Biz-Name"), Some("shop"));
        assert_eq!(jar.manifest.number("Sim-Start-Millis"), Some(2000));
        assert_eq!(jar.manifest.number("Sim-Http-Port"), Some(8080));
        assert_eq!(jar.manifest.get("Sim-Leak"), Some("true"));
        assert!(jar.has_class(MAIN_CLASS) && !jar.has_class("com.acme.Other"));
    }

    #[test]
    fn a_jar_without_a_manifest_is_told_apart_from_no_jar() {
        let bare = ModuleJar::new("shop", "1.0.0").without_manifest().pack().unwrap();
        assert!(matches!(Jar::read(&bare), Err(ReadJarError::NoManifest(_))));
        assert!(matches!(Jar::read(&bare[..bare.len() / 2]), Err(ReadJarError::NotZip(_))));
    }
}
