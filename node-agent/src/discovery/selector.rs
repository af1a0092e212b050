//! The label selector of base Pods, checked before it is sent: the API server takes an empty one for "everything".

use std::fmt;

/// A label selector that names at least one requirement. Holds the text as given, for the API server to judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(String);

/// Why a selector is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Nothing is required, so every Pod would match.
    #[error("the selector is empty: it would make every Pod a base")]
    Empty,
    /// One requirement cannot be read.
    #[error(
        "cannot read the requirement {0:?}: expected key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
    )]
    Requirement(String),
    /// `in ()` or `notin ()`.
    #[error("the requirement {0:?} names no value")]
    NoValues(String),
    /// Only exclusions: nearly every Pod would match.
    #[error("the selector only excludes: at least one requirement must say what a base has")]
    OnlyExcludes,
}

impl Selector {
    /// Reads and checks a selector.
    ///
    /// # Errors
    /// When it is empty, only excludes, or a requirement cannot be read.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut includes = false;
        let mut any = false;
        for requirement in split(text) {
            let requirement = requirement.trim();
            if requirement.is_empty() {
                return Err(if any {
                    SelectorError::Requirement(text.to_owned())
                } else {
                    SelectorError::Empty
                });
            }
            any = true;
            includes |= is_positive(requirement)?;
        }
        match (any, includes) {
            (false, _) => Err(SelectorError::Empty),
            (true, false) => Err(SelectorError::OnlyExcludes),
            (true, true) => Ok(Self(text.trim().to_owned())),
        }
    }

    /// The text, as the API server reads it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth <= 0
    })
}

fn is_positive(requirement: &str) -> Result<bool, SelectorError> {
    let bad = || SelectorError::Requirement(requirement.to_owned());
    if let Some(key) = requirement.strip_prefix('!') {
        return if is_key(key.trim()) { Ok(false) } else { Err(bad()) };
    }
    if let Some((left, values)) = requirement.split_once('(') {
        let values = values.trim().strip_suffix(')').ok_or_else(bad)?;
        let mut words = left.split_whitespace();
        let (Some(key), Some(operator), None) = (words.next(), words.next(), words.next()) else {
            return Err(bad());
        };
        if !is_key(key) || !matches!(operator, "in" | "notin") {
            return Err(bad());
        }
        if values.split(',').all(|value| value.trim().is_empty()) {
            return Err(SelectorError::NoValues(requirement.to_owned()));
        }
        return Ok(operator == "in");
    }
    for (operator, positive) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = requirement.split_once(operator) {
            let fits = is_key(key.trim()) && value.trim().bytes().all(is_name_byte);
            return if fits { Ok(positive) } else { Err(bad()) };
        }
    }
    if is_key(requirement) { Ok(true) } else { Err(bad()) }
}

fn is_key(text: &str) -> bool {
    let name = text.split_once('/').map_or(text, |(_, name)| name);
    !name.is_empty() && text.len() <= 317 && text.bytes().all(|b| is_name_byte(b) || b == b'/')
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_names_something_is_taken() {
        for text in [
            "app=base",
            "a == b",
            "app in (x, y),tier",
            "stowage.dev/base=true,!canary",
            "a=,b",
            "x notin (a),y",
        ] {
            assert_eq!(Selector::parse(text).expect(text).as_str(), text);
        }
    }

    /// BL-142: empty terms and sets, however they are written.
    #[test]
    fn what_would_match_everything_is_refused() {
        for (text, error) in [
            ("", SelectorError::Empty),
            ("  ", SelectorError::Empty),
            (",", SelectorError::Empty),
            ("x in ()", SelectorError::NoValues("x in ()".to_owned())),
            ("x in ( , )", SelectorError::NoValues("x in ( , )".to_owned())),
            ("!x", SelectorError::OnlyExcludes),
            ("a!=b,c notin (d)", SelectorError::OnlyExcludes),
            ("a b", SelectorError::Requirement("a b".to_owned())),
            ("a in (b", SelectorError::Requirement("a in (b".to_owned())),
            ("a=b,", SelectorError::Requirement("a=b,".to_owned())),
        ] {
            assert_eq!(Selector::parse(text), Err(error), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_judged_without_panic(text in "[ab=!, ()innot/\\PC]{0,40}") {
            let _ = Selector::parse(&text);
        }
    }
}
