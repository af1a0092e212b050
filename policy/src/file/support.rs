//! What this version does not do yet. A field here is refused when it says something else than its default:
//! nothing is accepted without effect.

/// Paths of fields, indices left out. A path covers everything under it.
const NOT_YET: &[&str] = &["overload"];

/// Whether the field at `path` has its effect in this version.
pub(super) fn is_supported(path: &str) -> bool {
    !NOT_YET
        .iter()
        .any(|field| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_covers_what_is_under_it() {
        assert!(!is_supported("overload.mode") && !is_supported("overload"));
        assert!(is_supported("overloaded") && is_supported("health.interval") && is_supported("gates"));
    }
}
