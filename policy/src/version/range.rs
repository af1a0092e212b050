//! Ranges of versions: Maven's brackets, comparators, `1.*`, or one exact version.

use std::{cmp::Ordering, fmt, str::FromStr};

use thiserror::Error;

use super::{Version, VersionError, order};

/// Longest range that is read, in bytes.
const LONGEST: usize = 256;

/// A set of versions.
///
/// Read from `[1.0,2.0)`, `(,1.0],[1.2,)`, `>=1.5 <2`, `1.*`, `*` or `1.4.0`; printed in a form that reads back as an
/// equal range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// At least one holds for a version inside.
    alternatives: Vec<Alternative>,
}

/// Everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Alternative {
    lower: Option<Bound>,
    upper: Option<Bound>,
    /// `1.2.*`: the first numeric parts.
    prefixes: Vec<Vec<u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    version: Version,
    inclusive: bool,
}

/// Why a text is no range. Positions count bytes from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// There is no text.
    #[error("a range must not be empty")]
    Empty,
    /// More bytes than a range may have.
    #[error("a range has at most {LONGEST} bytes, this one has {0}")]
    TooLong(usize),
    /// A bracket is missing, or something stands between two of them.
    #[error("expected {expected} at position {at}")]
    Expected {
        /// What should stand there.
        expected: &'static str,
        /// Where.
        at: usize,
    },
    /// A version in it is none.
    #[error("version at position {at}: {source}")]
    Version {
        /// Where the version starts.
        at: usize,
        /// What is wrong with it.
        source: VersionError,
    },
    /// No version can be inside.
    #[error("no version is in this range (position {0})")]
    Nothing(usize),
}

impl Range {
    /// Reads a range of at most 256 bytes.
    pub fn parse(text: &str) -> Result<Self, RangeError> {
        let start = text.len() - text.trim_start().len();
        let body = text.trim();
        if body.is_empty() {
            return Err(RangeError::Empty);
        }
        if body.len() > LONGEST {
            return Err(RangeError::TooLong(body.len()));
        }
        let alternatives = if body.starts_with(['[', '(']) {
            brackets(body, start)?
        } else {
            vec![comparators(body, start)?]
        };
        Ok(Self { alternatives })
    }

    /// Whether `version` is inside.
    pub fn contains(&self, version: &Version) -> bool {
        self.alternatives.iter().any(|alternative| alternative.contains(version))
    }

    /// Whether no version at all is inside: `1.* >=2`. Not every such range is found out, but none that has versions is
    /// taken for one.
    pub fn is_never(&self) -> bool {
        self.alternatives.iter().all(Alternative::is_never)
    }

    /// Whether surely no version is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.alternatives
            .iter()
            .all(|mine| other.alternatives.iter().all(|theirs| mine.clone().narrowed(theirs).is_never()))
    }

    /// Whether surely every version inside is inside of `other` too.
    pub fn is_within(&self, other: &Self) -> bool {
        let mut alternatives = self.alternatives.iter();
        alternatives.all(|mine| other.alternatives.iter().any(|theirs| mine.is_within(theirs)))
    }

    /// The upper bounds whose previews are inside although the bound is not: `<3` admits `3.0-SNAPSHOT`.
    pub fn previews_admitted(&self) -> impl Iterator<Item = &Version> {
        self.alternatives
            .iter()
            .filter_map(|alternative| alternative.upper.as_ref())
            .filter(|bound| !bound.inclusive && !bound.version.is_preview())
            .map(|bound| &bound.version)
    }
}

impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl Alternative {
    /// Each bound of `other` is one of these or weaker.
    fn is_within(&self, other: &Self) -> bool {
        let lower = other.lower.as_ref().is_none_or(|theirs| {
            self.lower.as_ref().is_some_and(|mine| {
                mine.version > theirs.version
                    || mine.version == theirs.version && (theirs.inclusive || !mine.inclusive)
            })
        });
        let upper = other.upper.as_ref().is_none_or(|theirs| {
            self.upper.as_ref().is_some_and(|mine| {
                mine.version < theirs.version
                    || mine.version == theirs.version && (theirs.inclusive || !mine.inclusive)
            })
        });
        lower && upper && other.prefixes.iter().all(|prefix| self.prefixes.contains(prefix))
    }

    fn contains(&self, version: &Version) -> bool {
        self.lower.as_ref().is_none_or(|b| *version > b.version || b.inclusive && *version == b.version)
            && self
                .upper
                .as_ref()
                .is_none_or(|b| *version < b.version || b.inclusive && *version == b.version)
            && self.prefixes.iter().all(|prefix| starts_with(version, prefix))
    }

    /// Narrows the set to versions above `bound`.
    fn above(&mut self, bound: Bound) {
        let tighter = self.lower.as_ref().is_none_or(|old| {
            bound.version > old.version || bound.version == old.version && !bound.inclusive
        });
        if tighter {
            self.lower = Some(bound);
        }
    }

    /// Narrows the set to versions below `bound`.
    fn below(&mut self, bound: Bound) {
        let tighter = self.upper.as_ref().is_none_or(|old| {
            bound.version < old.version || bound.version == old.version && !bound.inclusive
        });
        if tighter {
            self.upper = Some(bound);
        }
    }

    fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Some(l), Some(u)) => {
                l.version > u.version || l.version == u.version && !(l.inclusive && u.inclusive)
            }
            _ => false,
        }
    }

    /// What is in both.
    fn narrowed(mut self, other: &Self) -> Self {
        if let Some(bound) = &other.lower {
            self.above(bound.clone());
        }
        if let Some(bound) = &other.upper {
            self.below(bound.clone());
        }
        self.prefixes.extend(other.prefixes.iter().cloned());
        self
    }

    fn is_never(&self) -> bool {
        let beside = |prefix: &Vec<u64>| {
            let lower = self.lower.as_ref().and_then(|bound| differs(&bound.version, prefix));
            let upper = self.upper.as_ref().and_then(|bound| differs(&bound.version, prefix));
            let twofold = self.prefixes.iter().any(|other| prefix.iter().zip(other).any(|(a, b)| a != b));
            twofold || lower == Some(Ordering::Greater) || upper == Some(Ordering::Less)
        };
        self.is_empty() || self.prefixes.iter().any(beside)
    }

    fn exact(&self) -> Option<&Version> {
        match (&self.lower, &self.upper) {
            (Some(l), Some(u)) if l == u => Some(&l.version),
            _ => None,
        }
    }
}

fn starts_with(version: &Version, prefix: &[u64]) -> bool {
    prefix.iter().enumerate().all(|(at, number)| order::part(&version.tokens, at) == Some(*number))
}

/// Where the numbers of `version` first leave `prefix`, and to which side; `None` where they do not, or are too big.
fn differs(version: &Version, prefix: &[u64]) -> Option<Ordering> {
    let mut places = prefix.iter().enumerate();
    places.find_map(|(at, number)| match order::part(&version.tokens, at) {
        Some(part) if part == *number => None,
        part => Some(part.map(|part| part.cmp(number))),
    })?
}

/// `[a,b)`, `[a]`, `(,b]`, several joined by commas.
fn brackets(body: &str, start: usize) -> Result<Vec<Alternative>, RangeError> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let rest = body.get(at..).unwrap_or_default();
        let lower_inclusive = match rest.chars().next() {
            Some('[') => true,
            Some('(') => false,
            _ => return Err(RangeError::Expected { expected: "`[` or `(`", at: start + at }),
        };
        let Some(close) = rest.find([']', ')']) else {
            return Err(RangeError::Expected { expected: "`]` or `)`", at: start + body.len() });
        };
        let (before, behind) = rest.split_at(close);
        let upper_inclusive = behind.starts_with(']');
        let inner = before.get(1..).unwrap_or_default();
        let alternative = interval(inner, start + at + 1, lower_inclusive, upper_inclusive)?;
        if alternative.is_empty() {
            return Err(RangeError::Nothing(start + at));
        }
        found.push(alternative);
        at += close + 1;
        let behind = body.get(at..).unwrap_or_default();
        let trimmed = behind.trim_start();
        at += behind.len() - trimmed.len();
        if trimmed.is_empty() {
            return Ok(found);
        }
        let Some(next) = trimmed.strip_prefix(',') else {
            return Err(RangeError::Expected { expected: "`,`", at: start + at });
        };
        at += 1 + next.len() - next.trim_start().len();
    }
}

fn interval(inner: &str, at: usize, lower: bool, upper: bool) -> Result<Alternative, RangeError> {
    let bound = |text: &str, offset: usize, inclusive: bool| -> Result<Option<Bound>, RangeError> {
        let word = text.trim();
        if word.is_empty() {
            return Ok(None);
        }
        let at = at + offset + text.len() - text.trim_start().len();
        Ok(Some(Bound { version: version(word, at)?, inclusive }))
    };
    let Some((low, high)) = inner.split_once(',') else {
        if !(lower && upper) {
            return Err(RangeError::Expected { expected: "`,`", at: at + inner.len() });
        }
        let exact = bound(inner, 0, true)?.ok_or(RangeError::Expected { expected: "a version", at })?;
        return Ok(Alternative { lower: Some(exact.clone()), upper: Some(exact), prefixes: Vec::new() });
    };
    Ok(Alternative {
        lower: bound(low, 0, lower)?,
        upper: bound(high, low.len() + 1, upper)?,
        prefixes: Vec::new(),
    })
}

/// `>=1.5 <2`, `1.*`, `1.4.0`, separated by white space or commas; all must hold.
fn comparators(body: &str, start: usize) -> Result<Alternative, RangeError> {
    let mut found = Alternative::default();
    let mut at = 0;
    while let Some(rest) = body.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(|c: char| c.is_whitespace() || c == ',') {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        }
        let operator = [">=", "<=", ">", "<", "="].into_iter().find(|sign| rest.starts_with(sign));
        let behind = rest.get(operator.map_or(0, str::len)..).unwrap_or_default();
        let word_at = at + rest.len() - behind.trim_start().len();
        let behind = behind.trim_start();
        let end = behind
            .find(|c: char| c.is_whitespace() || c == ',' || c == '<' || c == '>')
            .unwrap_or(behind.len());
        let word = behind.get(..end).unwrap_or_default();
        if word.is_empty() {
            return Err(RangeError::Expected { expected: "a version", at: start + word_at });
        }
        constrain(&mut found, operator, word, start + word_at)?;
        at = word_at + end;
    }
    if found.is_empty() { Err(RangeError::Nothing(start)) } else { Ok(found) }
}

fn constrain(found: &mut Alternative, sign: Option<&str>, word: &str, at: usize) -> Result<(), RangeError> {
    if sign.is_none() && word == "*" {
        return Ok(());
    }
    if let (None | Some("="), Some(head)) = (sign, word.strip_suffix(".*")) {
        let prefix = head.split('.').map(str::parse).collect::<Result<Vec<u64>, _>>();
        found
            .prefixes
            .push(prefix.map_err(|_| RangeError::Expected { expected: "numbers before `.*`", at })?);
        return Ok(());
    }
    let bound = |inclusive| Ok::<_, RangeError>(Bound { version: version(word, at)?, inclusive });
    match sign {
        Some(">=") => found.above(bound(true)?),
        Some(">") => found.above(bound(false)?),
        Some("<=") => found.below(bound(true)?),
        Some("<") => found.below(bound(false)?),
        _ => {
            found.above(bound(true)?);
            found.below(bound(true)?);
        }
    }
    Ok(())
}

fn version(word: &str, at: usize) -> Result<Version, RangeError> {
    if let Some(offset) = word.find(['[', ']', '(', ')', ',', '<', '>', '=', '*']) {
        return Err(RangeError::Expected { expected: "a version", at: at + offset });
    }
    Version::parse(word).map_err(|source| RangeError::Version { at, source })
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, alternative) in self.alternatives.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            alternative.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Alternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefixes.is_empty() {
            return match self.exact() {
                Some(version) => write!(f, "[{version}]"),
                None => self.fmt_interval(f),
            };
        }
        let prefixes = self.prefixes.iter().map(|prefix| {
            prefix.iter().map(u64::to_string).chain(["*".to_owned()]).collect::<Vec<_>>().join(".")
        });
        let bounds = [(&self.lower, ">"), (&self.upper, "<")].into_iter().filter_map(|(bound, sign)| {
            bound.as_ref().map(|b| format!("{sign}{}{}", if b.inclusive { "=" } else { "" }, b.version))
        });
        f.write_str(&prefixes.chain(bounds).collect::<Vec<_>>().join(" "))
    }
}

impl Alternative {
    fn fmt_interval(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inclusive = |bound: &Option<Bound>| bound.as_ref().is_some_and(|b| b.inclusive);
        let text = |bound: &Option<Bound>| bound.as_ref().map(|b| b.version.to_string()).unwrap_or_default();
        f.write_str(if inclusive(&self.lower) { "[" } else { "(" })?;
        write!(f, "{},{}", text(&self.lower), text(&self.upper))?;
        f.write_str(if inclusive(&self.upper) { "]" } else { ")" })
    }
}
