//! Objects named in texts for people.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// `namespace/name`, or the name alone of an object without a namespace.
pub(crate) fn key(meta: &ObjectMeta) -> String {
    let name = meta.name.as_deref().unwrap_or_default();
    match meta.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The first `shown` of them, for a text that must stay short, and how many more there are.
pub(crate) fn some<'a>(names: impl IntoIterator<Item = &'a str>, shown: usize) -> String {
    let mut names = names.into_iter();
    let first = names.by_ref().take(shown).collect::<Vec<_>>().join(", ");
    match names.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut() {
        assert_eq!(some(["a", "b"], 2), "a, b");
        assert_eq!(some(["a", "b", "c", "d"], 2), "a, b and 2 more");
        assert_eq!(some([], 2), "");
    }

    #[test]
    fn objects_have_a_namespace_or_none() {
        let meta = |namespace: Option<&str>| ObjectMeta {
            namespace: namespace.map(str::to_owned),
            name: Some("x".to_owned()),
            ..ObjectMeta::default()
        };
        assert_eq!((key(&meta(Some("shop"))), key(&meta(None))), ("shop/x".to_owned(), "x".to_owned()));
    }
}
