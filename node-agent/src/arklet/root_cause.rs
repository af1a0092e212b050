//! The one line of a Java failure that a person can act on, short and free of credentials.

/// Longest text shown, in bytes.
const LIMIT: usize = 512;

/// Takes userinfo and query out of every URL in a text. Whatever looks like `scheme://` begins a URL; it ends
/// at white space, a quote or a bracket.
pub fn without_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, from) = rest.split_at(at.saturating_add(3));
        out.push_str(before);
        let end = from
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`'))
            .unwrap_or(from.len());
        let (url, after) = from.split_at(end);
        // An `@` behind the first slash belongs to the path, as java.net.URL reads it too.
        let authority_end = url.find(['/', '?', '#']).unwrap_or(url.len());
        let (authority, path) = url.split_at(authority_end);
        out.push_str(authority.rsplit('@').next().unwrap_or_default());
        out.push_str(path.split(['?', '#']).next().unwrap_or_default());
        rest = after;
    }
    out.push_str(rest);
    out
}

/// At most [`LIMIT`] bytes of the text's first line with words, without credentials and control characters.
pub(crate) fn shortened(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    // Cut before the work, so that a text of megabytes costs nothing; the rest of a URL cut in two is
    // dropped with it, because its query could be longer than the cut.
    let line: String = line.chars().filter(|c| !c.is_control()).take(4 * LIMIT).collect();
    let mut out = without_credentials(&line);
    if out.len() > LIMIT {
        let cut = out.floor_char_boundary(LIMIT.saturating_sub('…'.len_utf8()));
        out.truncate(cut);
        out.push('…');
    }
    out
}

/// Finds the root cause: the last `Caused by:` of the stack, else the head of the stack, else the message.
pub(super) fn find(message: &str, stack: &str) -> String {
    let caused = stack.lines().rev().find_map(|line| line.trim().strip_prefix("Caused by:"));
    let message = message.trim();
    let message = message.strip_prefix("Internal Error:").unwrap_or(message).trim();
    let head = stack.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let text = caused.map(str::trim).filter(|line| !line.is_empty()).unwrap_or(if message.is_empty() {
        head
    } else {
        message
    });
    shortened(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_userinfo_query_and_fragment() {
        for (text, expected) in [
            (
                "for URL: https://bob:s3cr@t@repo.example.com/a.jar?sig=x&k=y#f now",
                "for URL: https://repo.example.com/a.jar now",
            ),
            ("http://repo/a.jar", "http://repo/a.jar"),
            ("http://u@h", "http://h"),
            ("'oss://key:secret@b/x?y'", "'oss://b/x'"),
            ("http://a?b http://c:d@e?f", "http://a http://e"),
            ("nothing", "nothing"),
            ("http://h/p@v/x", "http://h/p@v/x"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
    }

    #[test]
    fn the_last_cause_wins_over_the_message() {
        let stack = "x.ArkletRuntimeException: java.lang.reflect.InvocationTargetException\n\tat a.b(C.java:1)\nCaused by: java.lang.reflect.InvocationTargetException\n\tat q\nCaused by: java.lang.IllegalStateException: no datasource\n\t... 3 more";
        assert_eq!(
            find("Internal Error: java.lang.reflect.InvocationTargetException", stack),
            "java.lang.IllegalStateException: no datasource"
        );
        assert_eq!(
            find(
                "Internal Error: bizUrl should not be blank",
                "x.CommandValidationException: bizUrl should not be blank\n\tat y"
            ),
            "bizUrl should not be blank"
        );
        assert_eq!(
            find("", "java.lang.OutOfMemoryError: Metaspace\n\tat z"),
            "java.lang.OutOfMemoryError: Metaspace"
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = shortened(&"模块".repeat(4000));
        assert!(text.len() <= LIMIT, "{}", text.len());
        assert!(text.ends_with('…'));
    }

    proptest::proptest! {
        #[test]
        fn a_secret_never_gets_through(user in "[a-z]{1,8}", secret in "[A-Z]{6,12}", path in "[a-z/.]{0,20}", tail in "[a-z ]{0,10}") {
            let text = format!("failed: https://{user}:{secret}@repo/{path}?token={secret} {tail}");
            let shown = shortened(&text);
            proptest::prop_assert!(!shown.contains(&secret), "{shown}");
        }

        #[test]
        fn any_text_is_bounded(text in "(?s).{0,3000}") {
            proptest::prop_assert!(shortened(&text).len() <= LIMIT);
        }
    }
}
