//! How a `VNode` is named. The name is for people; the annotation [`super::names::BASE`] is the truth.

use sha2::{Digest, Sha256};

use super::names::DEFAULT_CLUSTER;

/// Longest name: a Node's name is also its hostname label.
const LONGEST: usize = 63;
/// `-` and eight hex digits.
const SUFFIX: usize = 9;

/// `virtual-node-{stack}-{namespace}-{pod}`, a valid DNS subdomain of at most 63 characters.
///
/// `-` and 8 hex digits of a SHA-256 over cluster id, stack, namespace and pod name are appended exactly when stack or
/// namespace contains `-`, a character had to be replaced, the name would be too long, or the cluster is not the
/// default one.
pub fn node_name(stack: &str, namespace: &str, pod: &str, cluster_id: &str) -> String {
    let (mut name, replaced) = sanitized(&format!("virtual-node-{stack}-{namespace}-{pod}"));
    let ambiguous = stack.contains('-') || namespace.contains('-');
    if !ambiguous && !replaced && name.len() <= LONGEST && cluster_id == DEFAULT_CLUSTER {
        return name;
    }
    name.truncate(LONGEST - SUFFIX);
    let kept = name.trim_end_matches(['-', '.']).len();
    name.truncate(kept);
    name.push('-');
    name.push_str(&suffix(&[cluster_id, stack, namespace, pod]));
    name
}

/// Makes `name` a DNS subdomain of ASCII characters; the flag says whether anything changed.
fn sanitized(name: &str) -> (String, bool) {
    let chars: Vec<char> = name.chars().collect();
    let alphanumeric = |at: usize| chars.get(at).is_some_and(char::is_ascii_alphanumeric);
    let mut replaced = false;
    let made = chars
        .iter()
        .enumerate()
        .map(|(at, c)| match c {
            'a'..='z' | '0'..='9' => *c,
            '-' if at + 1 < chars.len() => '-',
            '.' if at > 0 && alphanumeric(at - 1) && alphanumeric(at + 1) => '.',
            _ => {
                replaced = true;
                if c.is_ascii_uppercase() { c.to_ascii_lowercase() } else { '-' }
            }
        })
        .collect();
    (made, replaced)
}

/// NUL keeps the parts apart: none of them can contain it.
fn suffix(parts: &[&str]) -> String {
    let digest = Sha256::digest(parts.join("\0").as_bytes());
    let bytes = digest.first_chunk().copied().unwrap_or_default();
    format!("{:08x}", u32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_names_carry_no_suffix() {
        assert_eq!(
            node_name("java", "shop", "base-7d9f-x2", "default"),
            "virtual-node-java-shop-base-7d9f-x2"
        );
        assert_eq!(node_name("java", "shop", "base.v1", "default"), "virtual-node-java-shop-base.v1");
    }

    #[test]
    fn the_suffix_comes_exactly_when_needed() {
        let hashed = |stack, namespace, pod: &str, cluster| {
            let name = node_name(stack, namespace, pod, cluster);
            assert!(name.len() <= LONGEST, "{name}");
            name.rsplit_once('-')
                .is_some_and(|(_, end)| end.len() == 8 && end == suffix(&[cluster, stack, namespace, pod]))
        };
        assert!(hashed("java", "shop-a", "b", "default"), "namespace with a dash");
        assert!(hashed("java-x", "shop", "b", "default"), "stack with a dash");
        assert!(hashed("Java", "shop", "b", "default"), "replaced character");
        assert!(hashed("java", "shop", &"b".repeat(60), "default"), "too long");
        assert!(hashed("java", "shop", "b", "west"), "another cluster");
        assert!(!hashed("java", "shop", "a-b", "default"));
        let fits = 63 - "virtual-node-java-shop-".len();
        assert!(!hashed("java", "shop", &"b".repeat(fits), "default"), "63 characters fit");
        assert!(hashed("java", "shop", &"b".repeat(fits + 1), "default"), "64 do not");
    }

    /// BL-012: the same letters, cut elsewhere into namespace and name.
    #[test]
    fn names_that_would_collide_do_not() {
        assert_ne!(node_name("java", "a-b", "c", "default"), node_name("java", "a", "b-c", "default"));
        assert_ne!(node_name("java", "a", "b", "east"), node_name("java", "a", "b", "west"));
    }

    #[test]
    fn the_suffix_is_stable() {
        assert_eq!(node_name("java", "shop-a", "b", "default"), "virtual-node-java-shop-a-b-a588f8a6");
    }

    proptest! {
        #[test]
        fn always_a_short_dns_subdomain(stack in "\\PC{0,40}", ns in "[a-z0-9-]{1,63}", pod in "\\PC{0,253}", id in "[a-z-]{1,8}") {
            let name = node_name(&stack, &ns, &pod, &id);
            prop_assert!(name.len() <= 63);
            for label in name.split('.') {
                prop_assert!(!label.is_empty() && !label.starts_with('-') && !label.ends_with('-'), "{}", name);
                prop_assert!(label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            }
        }
    }
}
