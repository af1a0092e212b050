//! The order itself: a version is a row of tokens, compared place by place, a missing place being [`Token::End`].
//!
//! Maven pads the shorter version with "null" tokens and trims nulls at the end and before hyphens. After that
//! trimming a zero that is still there is always followed by something greater, so it may stand above `End`, and so
//! may a `ga` in the middle. This makes the comparison lexicographic over one totally ordered alphabet, and so a total
//! order, which Maven's own nested lists are not.

use std::cmp::Ordering;

/// One place of a version. The order of the variants is the order of versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Token {
    /// A qualifier that comes before the release: alpha, beta, milestone, rc, snapshot.
    Preview(u8),
    /// Nothing here.
    End,
    /// `ga`, `final` or `release` with something behind it.
    Release,
    /// `sp`.
    ServicePack,
    /// Any other qualifier, in alphabetical order.
    Other(Box<str>),
    /// A number after a hyphen or after letters.
    Dash(Number),
    /// A number after a dot.
    Dot(Number),
}

/// A number of any length.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Number {
    /// Fits in 64 bits.
    Small(u64),
    /// Does not: count of digits, then the digits, leading zeros stripped.
    Big(usize, Box<str>),
}

impl Number {
    pub(super) fn of(digits: &str) -> Self {
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Self::Small(0);
        }
        digits.parse().map_or_else(|_| Self::Big(digits.len(), digits.into()), Self::Small)
    }
}

const PREVIEWS: [&str; 5] = ["alpha", "beta", "milestone", "rc", "snapshot"];

impl Token {
    /// The token of a lower-case qualifier; `before_digit` turns on the short forms a, b and m.
    pub(super) fn qualifier(word: &str, before_digit: bool) -> Self {
        let word = match word {
            "a" if before_digit => "alpha",
            "b" if before_digit => "beta",
            "m" if before_digit => "milestone",
            "cr" => "rc",
            other => other,
        };
        match word {
            "" | "ga" | "final" | "release" => Self::Release,
            "sp" => Self::ServicePack,
            _ => (0u8..)
                .zip(PREVIEWS)
                .find_map(|(rank, name)| (name == word).then_some(Self::Preview(rank)))
                .unwrap_or_else(|| Self::Other(word.into())),
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        matches!(self, Self::Dash(Number::Small(0)) | Self::Dot(Number::Small(0)))
    }

    pub(super) fn is_null(&self) -> bool {
        self.is_zero() || matches!(self, Self::Release)
    }

    /// Every token but a number after a dot has a hyphen before it, written or not.
    pub(super) fn follows_hyphen(&self) -> bool {
        !matches!(self, Self::Dot(_))
    }

    pub(super) fn is_preview(&self) -> bool {
        matches!(self, Self::Preview(_))
    }
}

pub(super) fn compare(left: &[Token], right: &[Token]) -> Ordering {
    let longest = left.len().max(right.len());
    (0..longest)
        .map(|at| left.get(at).unwrap_or(&Token::End).cmp(right.get(at).unwrap_or(&Token::End)))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// The number at place `index` of the dotted head, 0 behind its end; `None` where it is too big.
pub(super) fn part(tokens: &[Token], index: usize) -> Option<u64> {
    let head = tokens.iter().take_while(|token| matches!(token, Token::Dot(_)));
    match head.skip(index).map(Some).next().flatten() {
        None => Some(0),
        Some(Token::Dot(Number::Small(number))) => Some(*number),
        Some(_) => None,
    }
}
