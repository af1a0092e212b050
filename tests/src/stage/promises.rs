//! What must be true of the bases, whatever the API says.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{PATIENCE, Stage, StageError};
use crate::wait;

/// Base Pod to the activated modules on it, as `name:version`.
pub type Held = BTreeMap<String, BTreeSet<String>>;

impl Stage {
    /// What every living base holds.
    pub async fn held(&self) -> Held {
        let mut held = Held::new();
        for base in self.all_bases() {
            // A base that is down holds nothing and is not listed.
            if let Some(modules) = base.modules().await {
                held.insert(base.pod().to_owned(), modules);
            }
        }
        held
    }

    /// Waits until the living bases hold what `accept` wants.
    pub async fn wait_held<T>(
        &self,
        what: &str,
        limit: Duration,
        mut accept: impl FnMut(&Held) -> Option<T>,
    ) -> Result<T, StageError> {
        let probe = async || {
            let held = self.held().await;
            accept(&held).ok_or_else(|| describe(&held))
        };
        Ok(wait::until(what, limit, probe).await?)
    }

    /// Waits until each module is on exactly so many bases, and no other module on any.
    pub async fn wait_modules(&self, wanted: &[(&str, usize)]) -> Result<(), StageError> {
        let wanted: BTreeMap<String, usize> = wanted
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect();
        let what = format!("bases that hold {wanted:?}");
        self.wait_held(&what, PATIENCE, |held| (counted(held) == wanted).then_some(())).await
    }

    /// Waits until the bases hold exactly these modules (`name:version`); bases that are not named hold none.
    pub async fn wait_bases_hold(&self, wanted: &[(&str, &[&str])]) -> Result<(), StageError> {
        let wanted = wanted_by_base(wanted);
        let what = format!("bases that hold {}", describe(&wanted));
        self.wait_held(&what, PATIENCE, |held| holds(held, &wanted).then_some(())).await
    }

    /// The same, now.
    pub async fn assert_bases_hold(&self, wanted: &[(&str, &[&str])]) -> Result<(), StageError> {
        let (wanted, held) = (wanted_by_base(wanted), self.held().await);
        if holds(&held, &wanted) {
            return Ok(());
        }
        let (wanted, held) = (describe(&wanted), describe(&held));
        Err(StageError::Broken(format!("the bases should hold\n{wanted}\nand hold\n{held}")))
    }

    /// No base was ever asked to install what it had installed already, and no two calls got into each other's way:
    /// arklet answered no install with `REPEAT_BIZ` or a conflict.
    pub fn assert_no_double_install(&self) -> Result<(), StageError> {
        let mut doubled = Vec::new();
        for base in self.all_bases() {
            let Ok(journal) = base.journal() else { continue };
            for entry in journal.operations().iter().filter(|entry| entry.command.ends_with("nstallBiz")) {
                let answer = entry.answer.as_ref();
                let said = answer.map(|answer| (answer.inner.as_deref(), answer.message.as_deref()));
                let twice = said.is_some_and(|(inner, message)| {
                    inner == Some("REPEAT_BIZ") || message.is_some_and(|message| message.contains("conflict"))
                });
                if twice {
                    let (name, version) = (entry.module().unwrap_or("-"), entry.version().unwrap_or("-"));
                    doubled.push(format!(
                        "{} at {}: {} {name}:{version}",
                        base.pod(),
                        entry.at,
                        entry.command
                    ));
                }
            }
        }
        if doubled.is_empty() {
            return Ok(());
        }
        Err(StageError::Broken(format!("operations that were sent twice:\n{}", doubled.join("\n"))))
    }

    /// How often `installBiz` of a module reached any base so far.
    pub fn installs(&self, module: &str) -> Result<usize, StageError> {
        self.all_bases().iter().map(|base| Ok(base.journal()?.installs(module))).sum()
    }

    /// How often `uninstallBiz` of a module reached any base so far.
    pub fn uninstalls(&self, module: &str) -> Result<usize, StageError> {
        self.all_bases().iter().map(|base| Ok(base.journal()?.uninstalls(module))).sum()
    }
}

fn wanted_by_base(wanted: &[(&str, &[&str])]) -> Held {
    let modules = |modules: &[&str]| modules.iter().map(|&module| module.to_owned()).collect();
    wanted.iter().map(|(base, of)| ((*base).to_owned(), modules(of))).collect()
}

fn holds(held: &Held, wanted: &Held) -> bool {
    let none = BTreeSet::new();
    wanted.keys().all(|base| held.contains_key(base))
        && held.iter().all(|(base, modules)| modules == wanted.get(base).unwrap_or(&none))
}

fn counted(held: &Held) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for module in held.values().flatten() {
        *counts.entry(module.clone()).or_default() += 1;
    }
    counts
}

fn describe(held: &Held) -> String {
    if held.is_empty() {
        return "no base".to_owned();
    }
    let line = |(base, modules): (&String, &BTreeSet<String>)| {
        format!("{base}: [{}]", modules.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
    };
    held.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_bases_must_be_empty_and_named_ones_alive() {
        let held = wanted_by_base(&[("a", &["shop:1"]), ("b", &[])]);
        assert!(holds(&held, &wanted_by_base(&[("a", &["shop:1"])])));
        assert!(!holds(&held, &wanted_by_base(&[("b", &[])])));
        assert!(!holds(&held, &wanted_by_base(&[("a", &["shop:1"]), ("c", &[])])));
        assert_eq!(counted(&held), BTreeMap::from([("shop:1".to_owned(), 1)]));
        assert_eq!(describe(&held), "a: [shop:1]\nb: []");
    }
}
