//! From text to tokens.

use thiserror::Error;

use super::{
    Version,
    order::{Number, Token},
};

/// Longest version that is read, in bytes.
const LONGEST: usize = 128;

/// Why a text is no version. Positions count bytes from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VersionError {
    /// There is no text.
    #[error("a version must not be empty")]
    Empty,
    /// More bytes than a version may have.
    #[error("a version has at most {LONGEST} bytes, this one has {0}")]
    TooLong(usize),
    /// White space or a control character.
    #[error("a version has no white space or control characters (position {0})")]
    Character(usize),
}

pub(super) fn version(text: &str) -> Result<Version, VersionError> {
    if text.is_empty() {
        return Err(VersionError::Empty);
    }
    if text.len() > LONGEST {
        return Err(VersionError::TooLong(text.len()));
    }
    if let Some(at) = text.find(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(VersionError::Character(at));
    }
    Ok(Version { text: text.into(), tokens: trimmed(tokens(&text.to_lowercase())).into() })
}

/// Splits at dots, hyphens, and where digits and other characters meet. An empty token is 0.
fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut dotted = true;
    loop {
        let digits = rest.starts_with(|c: char| c.is_ascii_digit());
        let end =
            rest.find(|c: char| c == '.' || c == '-' || c.is_ascii_digit() != digits).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        found.push(if digits || word.is_empty() {
            let number = Number::of(word);
            if dotted { Token::Dot(number) } else { Token::Dash(number) }
        } else {
            Token::qualifier(word, behind.starts_with(|c: char| c.is_ascii_digit()))
        });
        if behind.is_empty() {
            return found;
        }
        dotted = behind.starts_with('.');
        rest = behind.strip_prefix(['.', '-']).unwrap_or(behind);
    }
}

/// Takes away the nulls at the end, and the zeros before every hyphen.
fn trimmed(tokens: Vec<Token>) -> Vec<Token> {
    let mut kept: Vec<Token> = Vec::with_capacity(tokens.len());
    for token in tokens {
        if token.follows_hyphen() {
            while kept.last().is_some_and(Token::is_zero) {
                kept.pop();
            }
        }
        kept.push(token);
    }
    while kept.last().is_some_and(Token::is_null) {
        kept.pop();
    }
    kept
}
