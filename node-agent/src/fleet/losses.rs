//! Bases that are missing from their watch: whether they are gone or only deselected, and whether the brake lets us
//! act on it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// How often a base that is still there but not selected is looked up, to learn when it is gone.
const AGAIN: Duration = Duration::from_secs(10);

/// What became of a base that its watch does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The Pod is gone, or another one has its name.
    Gone,
    /// The Pod is there but does not match the selector any more.
    Deselected,
}

/// One missing base.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Loss {
    pub(super) node: String,
    pub(super) namespace: String,
    pub(super) pod: String,
    verdict: Option<Verdict>,
    passed: bool,
    /// Its name belongs to another Pod that has an agent of its own.
    replaced: bool,
    look_up_at: Instant,
}

/// All missing bases, by UID of the base Pod. Owned by the fleet.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<String, Loss>);

impl Losses {
    /// A base is missing; it will be looked up.
    pub(super) fn missing(&mut self, uid: &str, node: &str, namespace: &str, pod: &str, now: Instant) {
        self.0.entry(uid.to_owned()).or_insert_with(|| Loss {
            node: node.to_owned(),
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            verdict: None,
            passed: false,
            replaced: false,
            look_up_at: now,
        });
    }

    /// A base is gone, and somebody ordered it.
    pub(super) fn ordered(&mut self, uid: &str, node: &str, now: Instant) {
        let loss = Loss {
            node: node.to_owned(),
            namespace: String::new(),
            pod: String::new(),
            verdict: Some(Verdict::Gone),
            passed: true,
            replaced: false,
            look_up_at: now,
        };
        self.0.insert(uid.to_owned(), loss);
    }

    /// The look-up answered.
    pub(super) fn judged(&mut self, uid: &str, verdict: Verdict, now: Instant) {
        if let Some(loss) = self.0.get_mut(uid) {
            loss.verdict = Some(verdict);
            loss.look_up_at = now + AGAIN;
        }
    }

    /// The look-up says whether another Pod has the name, and an agent of its own that cleans up.
    pub(super) fn replaced(&mut self, uid: &str, replaced: bool) {
        if let Some(loss) = self.0.get_mut(uid) {
            loss.replaced = replaced;
        }
    }

    pub(super) fn is_replaced(&self, uid: &str) -> bool {
        self.0.get(uid).is_some_and(|loss| loss.replaced)
    }

    /// The look-up found it, and nothing is to be done about it. Should it go later, that is another loss for the brake.
    pub(super) fn there(&mut self, uid: &str, now: Instant) {
        self.judged(uid, Verdict::Deselected, now);
        if let Some(loss) = self.0.get_mut(uid) {
            loss.passed = false;
        }
    }

    /// The brake lets this one pass.
    pub(super) fn pass(&mut self, uid: &str) {
        if let Some(loss) = self.0.get_mut(uid) {
            loss.passed = true;
        }
    }

    /// The base is back, or all about it is done.
    pub(super) fn clear(&mut self, uid: &str) -> Option<Loss> {
        self.0.remove(uid)
    }

    /// A new term judges anew; what was ordered stays so.
    pub(super) fn forget_verdicts(&mut self) {
        self.0.retain(|_, loss| loss.passed && loss.verdict == Some(Verdict::Gone));
    }

    /// What may be acted on.
    pub(super) fn verdict(&self, uid: &str) -> Option<Verdict> {
        self.0.get(uid).filter(|loss| loss.passed).and_then(|loss| loss.verdict)
    }

    /// Whether the brake let it pass.
    pub(super) fn has_passed(&self, uid: &str) -> bool {
        self.0.get(uid).is_some_and(|loss| loss.passed)
    }

    /// Whether the base is missing at all.
    pub(super) fn is_missing(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// All of them: UID of the base, and its VNode.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(uid, loss)| (uid.as_str(), loss.node.as_str()))
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Loss> {
        self.0.get(uid)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those to look up now: UID, namespace and name. Asked again only later.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(String, String, String)> {
        let due = self.0.iter_mut().filter(|(_, loss)| {
            let open = loss.verdict != Some(Verdict::Gone) || loss.replaced;
            loss.look_up_at <= now && open && !loss.pod.is_empty()
        });
        due.map(|(uid, loss)| {
            loss.look_up_at = now + AGAIN;
            (uid.clone(), loss.namespace.clone(), loss.pod.clone())
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_follows_before_both_look_up_and_brake_have_spoken() {
        let now = Instant::now();
        let mut losses = Losses::default();
        losses.missing("u", "n", "ns", "p", now);
        assert_eq!(losses.due(now), [("u".to_owned(), "ns".to_owned(), "p".to_owned())]);
        assert!(losses.due(now).is_empty(), "asked once");
        losses.pass("u");
        assert_eq!(losses.verdict("u"), None);
        losses.judged("u", Verdict::Deselected, now);
        assert_eq!(losses.verdict("u"), Some(Verdict::Deselected));
        assert_eq!(losses.due(now + AGAIN).len(), 1, "a deselected base is looked up until it is gone");
        losses.judged("u", Verdict::Gone, now);
        assert!(losses.due(now + AGAIN + AGAIN).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_found_passes_the_brake_anew_when_it_goes() {
        let now = Instant::now();
        let mut losses = Losses::default();
        losses.missing("u", "n", "ns", "p", now);
        losses.pass("u");
        losses.there("u", now);
        losses.judged("u", Verdict::Gone, now);
        assert_eq!(losses.verdict("u"), None);
        losses.pass("u");
        assert_eq!(losses.verdict("u"), Some(Verdict::Gone));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_term_keeps_only_what_was_ordered() {
        let now = Instant::now();
        let mut losses = Losses::default();
        losses.missing("u", "n", "ns", "p", now);
        losses.judged("u", Verdict::Gone, now);
        losses.ordered("v", "n", now);
        losses.forget_verdicts();
        assert!(!losses.is_missing("u") && losses.verdict("v") == Some(Verdict::Gone));
        assert!(losses.clear("v").is_some() && losses.len() == 0);
    }
}
