//! Bases that were evicted and whose successors are not complete yet: until they are, their place in the budget is taken.
//! Pure. Their VNodes are gone, so this stands on the Lease of the agent.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// A controller makes a new Pod at once. If it has made none for so long, it was scaled down.
const NONE_COMES: SignedDuration = SignedDuration::from_mins(10);
/// Most bytes of the annotation.
const LONGEST: usize = 64 * 1024;

/// A base that goes, or has gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Awaited {
    /// UID of the base Pod.
    pub base: String,
    /// UID of its controller.
    pub controller: String,
    /// Creation of the youngest Pod of that controller before the base went: the successor is younger.
    pub newest: Timestamp,
    /// When the base was first found gone; only in memory.
    #[serde(skip)]
    gone: Option<Timestamp>,
}

/// A Pod that the selector of bases matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sibling {
    /// UID of its controller.
    pub controller: String,
    /// Its creation.
    pub created: Timestamp,
    /// Its VNode is Ready, and so are all modules meant for it.
    pub complete: bool,
}

/// What becomes of a base that is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not there yet, or not complete.
    Awaited,
    /// The successor, made then, is complete.
    Complete(Timestamp),
    /// There will be none: the controller has made none.
    Abandoned,
}

impl Awaited {
    /// A base that is about to be evicted.
    pub fn new(base: &str, controller: &str, newest: Timestamp) -> Self {
        Self { base: base.to_owned(), controller: controller.to_owned(), newest, gone: None }
    }

    /// A Pod made then is another base's successor.
    fn is_not(&mut self, created: Option<&Timestamp>) {
        if let Some(created) = created {
            self.newest = self.newest.max(*created);
        }
    }

    /// Looks for the successor. `there`: the base Pod itself still is.
    pub fn look(&mut self, there: bool, siblings: &[Sibling], now: Timestamp) -> Verdict {
        if there {
            self.gone = None;
            return Verdict::Awaited;
        }
        let gone = *self.gone.get_or_insert(now);
        let younger = || {
            siblings
                .iter()
                .filter(|sibling| sibling.controller == self.controller && sibling.created > self.newest)
        };
        // The oldest of them: the younger ones may stand for other bases.
        let complete = younger().filter(|sibling| sibling.complete).map(|sibling| sibling.created).min();
        if let Some(created) = complete {
            Verdict::Complete(created)
        } else if younger().next().is_none() && now.duration_since(gone) >= NONE_COMES {
            Verdict::Abandoned
        } else {
            Verdict::Awaited
        }
    }
}

/// All of them, as they stand on the Lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notes(pub Vec<Awaited>);

impl Notes {
    /// Reads the annotation; what cannot be read is nothing.
    pub fn parse(text: Option<&str>) -> Self {
        let text = text.filter(|text| text.len() <= LONGEST);
        Self(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
    }

    /// Writes the annotation; `None` where there is nothing to say.
    pub fn to_annotation(&self) -> Option<String> {
        if self.0.is_empty() { None } else { serde_json::to_string(&self.0).ok() }
    }

    /// Looks for the successors of all, each of which stands for one base. Gives back what is settled.
    pub fn look(
        &mut self,
        there: impl Fn(&str) -> bool,
        siblings: &[Sibling],
        now: Timestamp,
    ) -> Vec<(String, Verdict)> {
        let mut used: BTreeMap<String, Timestamp> = BTreeMap::new();
        let mut settled = Vec::new();
        self.0.retain_mut(|awaited| {
            awaited.is_not(used.get(&awaited.controller));
            let verdict = awaited.look(there(&awaited.base), siblings, now);
            if let Verdict::Complete(created) = verdict {
                used.insert(awaited.controller.clone(), created);
            }
            let stays = verdict == Verdict::Awaited;
            if !stays {
                settled.push((awaited.base.clone(), verdict));
            }
            stays
        });
        for awaited in &mut self.0 {
            awaited.is_not(used.get(&awaited.controller));
        }
        settled
    }

    /// Whether this base is awaited.
    pub fn has(&self, base: &str) -> bool {
        self.0.iter().any(|awaited| awaited.base == base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("time")
    }

    fn sibling(controller: &str, created: i64, complete: bool) -> Sibling {
        Sibling { controller: controller.to_owned(), created: at(created), complete }
    }

    #[test]
    fn the_successor_is_the_younger_one_of_the_same_controller() {
        let mut awaited = Awaited::new("u", "r", at(0));
        let old = [sibling("r", -100, true), sibling("r", 0, true), sibling("other", 50, true)];
        assert_eq!(
            awaited.look(true, &[sibling("r", 10, true)], at(10)),
            Verdict::Awaited,
            "it is still there"
        );
        assert_eq!(awaited.look(false, &old, at(20)), Verdict::Awaited);
        let mut coming = old.to_vec();
        coming.push(sibling("r", 21, false));
        assert_eq!(awaited.look(false, &coming, at(4_000)), Verdict::Awaited, "however long it takes");
        coming.push(sibling("r", 30, true));
        assert_eq!(awaited.look(false, &coming, at(4_001)), Verdict::Complete(at(30)));
    }

    #[test]
    fn one_successor_stands_for_one_base() {
        let mut notes = Notes(vec![Awaited::new("u", "r", at(0)), Awaited::new("v", "r", at(0))]);
        let one = [sibling("r", 10, true)];
        let settled = notes.look(|_| false, &one, at(20));
        assert_eq!(settled, [("u".to_owned(), Verdict::Complete(at(10)))]);
        assert!(notes.look(|_| false, &one, at(30)).is_empty() && notes.has("v"));
        let both = [sibling("r", 10, true), sibling("r", 15, true)];
        assert_eq!(notes.look(|_| false, &both, at(40)), [("v".to_owned(), Verdict::Complete(at(15)))]);
        assert_eq!(notes, Notes::default());
    }

    #[test]
    fn one_that_never_comes_is_given_up() {
        let mut awaited = Awaited::new("u", "r", at(0));
        assert_eq!(awaited.look(true, &[], at(900)), Verdict::Awaited, "its budget keeps it for long");
        assert_eq!(awaited.look(false, &[], at(1_000)), Verdict::Awaited);
        assert_eq!(awaited.look(false, &[], at(1_599)), Verdict::Awaited);
        assert_eq!(awaited.look(false, &[], at(1_600)), Verdict::Abandoned);
    }

    #[test]
    fn notes_are_read_as_they_were_written() {
        let notes = Notes(vec![Awaited::new("u", "r", at(0)), Awaited::new("v", "r", at(5))]);
        let text = notes.to_annotation().expect("notes");
        assert_eq!(Notes::parse(Some(&text)), notes);
        assert!(notes.has("v") && !notes.has("w"));
        assert_eq!(Notes::default().to_annotation(), None);
        // As many as the policy allows at once.
        let uid = "6f0c2f0e-6c36-4d4c-9d5d-0a2e6c0b7a11";
        let many = Notes((0..100).map(|number| Awaited::new(uid, uid, at(number))).collect());
        assert_eq!(Notes::parse(many.to_annotation().as_deref()), many);
        for wrong in ["", "{}", "[{}]"] {
            assert_eq!(Notes::parse(Some(wrong)), Notes::default(), "{wrong}");
        }
    }
}
