//! The main section of a jar's manifest, both ways: written with lines of at most 72 bytes, read with them joined.

use std::borrow::Cow;
use std::io::{Cursor, Read};

use thiserror::Error;
use zip::ZipArchive;

/// Where it stands in a jar.
pub(super) const PATH: &str = "META-INF/MANIFEST.MF";
/// Longest line, without its end.
const LINE: usize = 72;
/// Largest manifest that is read.
const MAX_SIZE: u64 = 1 << 20;

/// A jar cannot be read.
#[derive(Debug, Error)]
pub enum ReadJarError {
    /// Not a zip archive, or only the beginning of one.
    #[error("not a zip archive")]
    NotZip(#[source] zip::result::ZipError),
    /// The archive has no manifest.
    #[error("no {PATH}")]
    NoManifest(#[source] zip::result::ZipError),
    /// The manifest cannot be unpacked.
    #[error("unreadable {PATH}")]
    Unreadable(#[source] std::io::Error),
}

/// The attributes of a main section, in order; keys are compared without regard to case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    attributes: Vec<(String, String)>,
}

impl Manifest {
    /// Adds an attribute, or replaces it.
    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        self.attributes.retain(|(other, _)| !other.eq_ignore_ascii_case(key));
        self.attributes.push((key.to_owned(), value.into()));
    }

    /// The value of an attribute.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(other, _)| other.eq_ignore_ascii_case(key));
        found.map(|(_, value)| value.as_str())
    }

    /// The value of an attribute as a number; none if it is absent or no number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.trim().parse().ok()
    }

    /// Reads a main section.
    pub fn parse(text: &str) -> Self {
        let mut attributes: Vec<(String, String)> = Vec::new();
        for line in text.lines() {
            if line.is_empty() {
                break;
            }
            if let Some(rest) = line.strip_prefix(' ') {
                if let Some((_, value)) = attributes.last_mut() {
                    value.push_str(rest);
                }
            } else if let Some((key, value)) = line.split_once(':') {
                attributes.push((key.to_owned(), value.strip_prefix(' ').unwrap_or(value).to_owned()));
            }
        }
        Self { attributes }
    }

    /// The text of the section.
    pub fn render(&self) -> String {
        let mut text = String::from("Manifest-Version: 1.0\r\n");
        for (key, value) in &self.attributes {
            let mut length = 0;
            // A line break in a value would start another attribute.
            let value = value.replace(['\r', '\n'], " ");
            for character in format!("{key}: {value}").chars() {
                if length + character.len_utf8() > LINE {
                    text.push_str("\r\n ");
                    length = 1;
                }
                text.push(character);
                length += character.len_utf8();
            }
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text
    }
}

/// A jar, as far as a base looks into it before it runs anything.
#[derive(Debug)]
pub struct Jar {
    /// The main section of its manifest.
    pub manifest: Manifest,
    entries: Vec<String>,
}

impl Jar {
    /// Opens a jar.
    ///
    /// # Errors
    /// [`ReadJarError`] when it is no zip archive or has no manifest.
    pub fn read(bytes: &[u8]) -> Result<Self, ReadJarError> {
        let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(ReadJarError::NotZip)?;
        let entries = archive.file_names().filter_map(Result::ok).map(Cow::into_owned).collect();
        let mut text = Vec::new();
        let entry = archive.by_name(PATH).map_err(ReadJarError::NoManifest)?;
        entry.take(MAX_SIZE).read_to_end(&mut text).map_err(ReadJarError::Unreadable)?;
        Ok(Self { manifest: Manifest::parse(&String::from_utf8_lossy(&text)), entries })
    }

    /// Whether the jar holds a class, by its name with dots.
    pub fn has_class(&self, class: &str) -> bool {
        let path = format!("{}.class", class.replace('.', "/"));
        self.entries.contains(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(values in prop::collection::vec("[ -~é€]{0,200}", 0..5)) {
            let mut manifest = Manifest::default();
            for (number, value) in values.iter().enumerate() {
                manifest.set(&format!("Key-{number}"), value.trim());
            }
            let text = manifest.render();
            prop_assert!(text.lines().all(|line| line.len() <= LINE));
            let read = Manifest::parse(&text);
            for (number, value) in values.iter().enumerate() {
                prop_assert_eq!(read.get(&format!("key-{number}")), Some(value.trim()));
            }
        }

        #[test]
        fn no_text_is_too_odd_to_read(text in ".{0,300}") {
            let _ = Manifest::parse(&text);
        }
    }

    #[test]
    fn half_a_jar_is_not_a_zip() {
        assert!(matches!(Jar::read(b"text"), Err(ReadJarError::NotZip(_))));
    }
}
