//! Versions in Maven's order, and ranges of them.

mod order;
mod parse;
mod range;
#[cfg(test)]
mod tests;

use std::{cmp::Ordering, fmt, hash, str::FromStr};

pub use parse::VersionError;
pub use range::{Range, RangeError};

/// A version as Maven orders it: any number of parts, qualifiers, SNAPSHOT, no case.
///
/// Equality and order follow Maven (`1.0` = `1` = `1-ga`); [`Version::as_str`] keeps the text as written, which is
/// what a base calls the module.
#[derive(Clone, Debug)]
pub struct Version {
    text: Box<str>,
    tokens: Box<[order::Token]>,
}

impl Version {
    /// Reads a version of 1 to 128 bytes without white space or control characters.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        parse::version(text)
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The numeric part at `index` (0 = first); 0 where the version has fewer parts, `None` where it starts with no
    /// number or the number does not fit in 64 bits.
    pub fn part(&self, index: usize) -> Option<u64> {
        if !self.text.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        order::part(&self.tokens, index)
    }

    /// Whether the version is a preview of a release: alpha, beta, milestone, rc or SNAPSHOT.
    pub fn is_preview(&self) -> bool {
        self.tokens.iter().any(order::Token::is_preview)
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        order::compare(&self.tokens, &other.tokens)
    }
}

impl hash::Hash for Version {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.tokens.hash(state);
    }
}
