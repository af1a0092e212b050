//! The annotations by which a module Pod says what it needs. Each is read whole or not at all.

use std::sync::Arc;

use super::module::Module;
use crate::{
    model::{CapabilityNeed, Glob, ModulePattern, Quantity, Requirements},
    version::Range,
};

/// Most entries of one annotation.
const MOST: usize = 64;
/// Marks a module among the capabilities of `requires`.
const MODULE: &str = "module:";

/// `jdk >=17, spring-boot >=2.7 <3, module:ledger [1.5,2)`.
pub(super) fn requires(text: &str) -> Option<Requirements> {
    let mut found = Requirements::default();
    for entry in entries(text)? {
        let (name, versions) = named_range(entry)?;
        match name.strip_prefix(MODULE) {
            Some("") => return None,
            Some(module) => found.modules.push(ModulePattern { name: Glob::new(module), versions }),
            None => found.provides.push(CapabilityNeed { name: name.into(), versions }),
        }
    }
    Some(found)
}

/// `legacy-*, ledger <2`: modules.
pub(super) fn conflicts(text: &str) -> Option<Vec<ModulePattern>> {
    let pattern = |entry| {
        let (name, versions) = named_range(entry)?;
        Some(ModulePattern { name: Glob::new(name.strip_prefix(MODULE).unwrap_or(name)), versions })
    };
    entries(text)?.into_iter().map(pattern).collect()
}

/// A quantity of bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    Quantity::parse(text).ok().map(Quantity::units)
}

/// `/shop` where there is one module, else `shop=/shop, cart=/cart`. Writes the paths into the modules.
pub(super) fn context_paths(text: &str, modules: &mut [Module]) -> Option<()> {
    let pairs = entries(text)?;
    if let ([path], [module]) = (pairs.as_slice(), &mut *modules)
        && !path.contains('=')
    {
        module.context_path = Some(normalized(path)?);
        return Some(());
    }
    for pair in pairs {
        let (name, path) = pair.split_once('=')?;
        let module = modules.iter_mut().find(|module| *module.name == *name.trim())?;
        module.context_path = Some(normalized(path)?);
    }
    Some(())
}

/// One leading slash, none behind: `shop`, `/shop` and `/shop/` are the same path.
fn normalized(path: &str) -> Option<Arc<str>> {
    let inner = path.trim().trim_matches('/');
    let odd = inner.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '='));
    (!odd).then(|| format!("/{inner}").into())
}

/// Splits at commas that stand in no bracket.
fn entries(text: &str) -> Option<Vec<&str>> {
    let mut open = false;
    let pieces = text.split(|c| {
        match c {
            '[' | '(' => open = true,
            ']' | ')' => open = false,
            _ => {}
        }
        c == ',' && !open
    });
    let found: Vec<&str> = pieces.map(str::trim).take(MOST + 1).collect();
    (found.len() <= MOST && found.iter().all(|entry| !entry.is_empty())).then_some(found)
}

fn named_range(entry: &str) -> Option<(&str, Option<Range>)> {
    let end = entry.find(|c: char| c.is_whitespace() || "[(<>=".contains(c)).unwrap_or(entry.len());
    let (name, range) = entry.split_at(end);
    let versions = if range.trim().is_empty() { None } else { Some(Range::parse(range).ok()?) };
    (!name.is_empty()).then_some((name, versions))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(found: &[ModulePattern]) -> Vec<String> {
        found
            .iter()
            .map(|p| {
                format!("{} {}", p.name, p.versions.as_ref().map(ToString::to_string).unwrap_or_default())
            })
            .collect()
    }

    #[test]
    fn what_a_pod_requires() {
        let found = requires("jdk >=17, spring-boot[2.7,3), hsf, module:ledger >=1.5 <2").unwrap();
        let capabilities: Vec<_> = found
            .provides
            .iter()
            .map(|need| (need.name.as_str(), need.versions.as_ref().map(ToString::to_string)))
            .collect();
        assert_eq!(
            capabilities,
            [("jdk", Some("[17,)".into())), ("spring-boot", Some("[2.7,3)".into())), ("hsf", None)]
        );
        assert_eq!(names(&found.modules), ["ledger [1.5,2)"]);
        assert_eq!(names(&conflicts("legacy-*, ledger <2").unwrap()), ["legacy-* ", "ledger (,2)"]);
    }

    #[test]
    fn what_cannot_be_read() {
        for text in ["", "jdk >=", "jdk,,x", ">=17", "module: >=1", "jdk [1", &"a,".repeat(100)] {
            assert!(requires(text).is_none(), "{text}");
        }
        assert!(bytes("much").is_none());
        assert_eq!(bytes("64Mi"), Some(64 << 20));
    }

    #[test]
    fn paths_are_normalized() {
        assert_eq!(normalized("shop").as_deref(), Some("/shop"));
        assert_eq!(normalized("/shop/").as_deref(), Some("/shop"));
        assert_eq!(normalized("/").as_deref(), Some("/"));
        assert_eq!(normalized("a b"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[a-z\\[\\](),<>=*:. 0-9]{0,40}", any in "\\PC{0,60}") {
            for text in [text, any] {
                let _ = (requires(&text), conflicts(&text), bytes(&text), normalized(&text));
            }
        }
    }
}
