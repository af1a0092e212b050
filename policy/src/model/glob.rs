//! Names with `*` for any number of characters.

use std::fmt;

/// A pattern in which `*` stands for any characters, none included. Everything else stands for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    /// Where the first `*` stands; most patterns have none, and every decision asks many.
    star: Option<usize>,
}

impl Glob {
    /// Every text is a pattern.
    pub fn new(pattern: &str) -> Self {
        Self { text: pattern.into(), star: pattern.find('*') }
    }

    /// Whether there is a `*`.
    pub fn has_wildcard(&self) -> bool {
        self.star.is_some()
    }

    /// What every text that matches begins with.
    pub fn head(&self) -> &str {
        self.star.and_then(|star| self.text.get(..star)).unwrap_or(&self.text)
    }

    /// Whether every text matches.
    pub fn is_everything(&self) -> bool {
        !self.text.is_empty() && self.text.bytes().all(|byte| byte == b'*')
    }

    /// The pattern as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole of `text` matches. Linear in the pattern times the text, and never allocates.
    pub fn matches(&self, text: &str) -> bool {
        let Some((head, rest)) = self.star.and_then(|star| self.text.split_at_checked(star)) else {
            return *self.text == *text;
        };
        let Some(mut text) = text.strip_prefix(head) else { return false };
        let mut pieces = rest.split('*').skip(1).peekable();
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                return text.ends_with(piece);
            }
            let Some((_, behind)) = text.split_once(piece) else { return false };
            text = behind;
        }
        true
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, expected) in [
            ("shop", "shop", true),
            ("shop", "shops", false),
            ("*", "", true),
            ("shop-*", "shop-", true),
            ("shop-*", "shop", false),
            ("*-canary", "shop-canary", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxc", false),
            ("a*a", "a", false),
            ("**", "x", true),
            ("*ab", "aab", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern} {text}");
        }
    }

    fn naive(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            [first, rest @ ..] => text.first() == Some(first) && naive(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn as_the_naive_way(pattern in "[ab*]{0,6}", text in "[ab]{0,8}") {
            let chars = |s: &str| s.chars().collect::<Vec<_>>();
            prop_assert_eq!(Glob::new(&pattern).matches(&text), naive(&chars(&pattern), &chars(&text)));
        }
    }
}
