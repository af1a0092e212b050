//! What the journal tells of the VPods of a base. Calls write their own lines while they run; all else is found once per
//! turn, as the difference to what was told last.

use std::collections::BTreeMap;

use super::actor::Actor;
use super::message::Health;
use super::state::{ModuleId, ModuleState, Removal};
use crate::arklet::StateRecord;
use crate::journal::{Pen, VPod};

/// Events about a call, whose lines tell more.
const TOLD_BY_CALLS: [&str; 6] =
    ["Installing", "Installed", "InstallFailed", "Uninstalling", "Uninstalled", "UninstallFailed"];

/// What was told last, by UID of the VPod. Empty while there is no journal.
#[derive(Debug, Default)]
pub(super) struct Story(BTreeMap<String, Chapter>);

/// All that is worth a line when it changes.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, none excludes another")]
struct Chapter {
    /// By container, in the order of the Pod.
    states: Vec<(String, String)>,
    /// What the probes of a container say; `None`: it is ready.
    probes: BTreeMap<String, Option<String>>,
    /// What the base tells of a container's module.
    records: BTreeMap<String, (ModuleId, Vec<StateRecord>)>,
    ready: bool,
    draining: bool,
    uninstalling: bool,
    /// Another version takes the place in the same VPod.
    releasing: bool,
    /// While it leaves: whether somebody may still send requests.
    in_traffic: bool,
    silent: Option<String>,
    leaving: bool,
    held: bool,
}

/// A line; without a container it is about the whole VPod.
type Told = (Option<String>, String);

impl Chapter {
    /// What must be told after `before`.
    fn news(&self, before: &Self) -> Vec<Told> {
        let mut news: Vec<Told> = Vec::new();
        let mut tell = |changed: bool, text: &str| {
            if changed {
                news.push((None, text.to_owned()));
            }
        };
        if self.silent != before.silent {
            match &self.silent {
                Some(why) => tell(true, &format!("the base is silent: {why}")),
                None => tell(true, "the base answers again"),
            }
        }
        tell(self.leaving && !before.leaving, "the base is leaving");
        tell(self.held && !before.held, "held: a pause or the brake lets nothing be changed here");
        tell(!self.held && before.held, "no longer held");
        tell(self.draining && !before.draining, "deletion was asked for: the VPod leaves the traffic first");
        tell(
            self.releasing && !before.releasing,
            "another version is wanted: the VPod leaves the traffic first",
        );
        let leaves = self.draining || self.releasing;
        tell(
            leaves && !self.in_traffic && (before.in_traffic || !(before.draining || before.releasing)),
            "no EndpointSlice says that it is ready",
        );
        tell(self.uninstalling && !before.uninstalling, "drained: the modules are uninstalled");
        tell(self.ready && !before.ready, "the Pod is Ready");
        tell(!self.ready && before.ready, "the Pod is not Ready");
        for (container, (id, records)) in &self.records {
            let known = before.records.get(container).filter(|(known, _)| known == id);
            let known = known.map(|(_, records)| records.as_slice()).unwrap_or_default();
            for record in records.iter().filter(|record| !known.contains(record)) {
                let at = record.at.map(|at| format!(" at {at:.3}")).unwrap_or_default();
                let word = record.state.word();
                let text = format!("state record of the base: {id} became {word}{at} {}", record.reason);
                news.push((Some(container.clone()), text.trim_end().to_owned()));
            }
        }
        for (container, state) in &self.states {
            let known = before.states.iter().find(|(name, _)| name == container).map(|(_, state)| state);
            if known != Some(state) {
                news.push((Some(container.clone()), state.clone()));
            }
        }
        for (container, verdict) in &self.probes {
            if before.probes.get(container) != Some(verdict) {
                let why = verdict.as_ref().map(|why| format!("probe: not ready: {why}"));
                news.push((Some(container.clone()), why.unwrap_or_else(|| "probe: ready".to_owned())));
            }
        }
        news
    }
}

impl Actor {
    /// Tells what has changed since the last turn.
    pub(super) fn tell_story(&mut self) {
        if !self.context.journal.is_on() {
            return;
        }
        let mut told = std::mem::take(&mut self.story.0);
        told.retain(|uid, _| self.pods.contains_key(uid));
        for uid in self.pods.keys() {
            let chapter = self.chapter(uid);
            let before = told.entry(uid.clone()).or_default();
            if chapter != *before {
                for (container, text) in chapter.news(before) {
                    self.note(uid, container.as_deref(), &text);
                }
                *before = chapter;
            }
        }
        self.story.0 = told;
    }

    fn chapter(&self, uid: &str) -> Chapter {
        let Some(bound) = self.pods.get(uid) else { return Chapter::default() };
        let view = self.views.get(uid);
        let states = view.into_iter().flat_map(|view| &view.modules);
        let modules = bound.desired.modules().iter();
        let listed = modules.filter_map(|module| Some((module, self.observed.find(&module.id)?)));
        let removal = bound.desired.removal;
        let releasing = bound.release.is_some();
        let leaves = removal != Removal::None || releasing;
        Chapter {
            states: states.map(|(container, state)| (container.clone(), shown(state))).collect(),
            probes: bound
                .probes
                .iter()
                .map(|(container, probing)| (container.clone(), probing.verdict.unready.clone()))
                .collect(),
            records: listed
                .filter(|(_, biz)| !biz.records.is_empty())
                .map(|(module, biz)| (module.container.clone(), (module.id.clone(), biz.records.clone())))
                .collect(),
            ready: bound.ready(),
            draining: removal != Removal::None,
            uninstalling: removal == Removal::Uninstalling,
            releasing,
            in_traffic: leaves && self.context.endpoints.ready(&bound.desired.namespace, uid),
            silent: match self.checks.health(self.spec.started) {
                Health::Silent { reason, .. } => Some(reason),
                Health::Starting | Health::Answering => None,
            },
            leaving: self.observed.leaving,
            held: self.stopped() || bound.desired.paused,
        }
    }

    /// Begins the journal of a VPod, with a word about what is missing in it.
    pub(super) fn open_journal(&self, uid: &str) {
        let Some(bound) = self.pods.get(uid).filter(|_| self.context.journal.is_on()) else { return };
        let desired = &bound.desired;
        let vpod = VPod {
            uid: uid.to_owned(),
            namespace: desired.namespace.clone(),
            name: desired.name.clone(),
            node: self.spec.node.clone(),
        };
        let containers = bound.pod.spec.iter().flat_map(|spec| &spec.containers);
        let new = self.context.journal.open(&vpod, containers.map(|container| container.name.clone()));
        let taken_over = self.memory.pods.get(uid).is_some_and(|memory| memory.running);
        if new && taken_over {
            self.note(
                uid,
                None,
                "this agent takes the running VPod over; what an earlier agent did is not in its journal",
            );
        } else if new {
            self.note(
                uid,
                None,
                &format!("bound to {}, the base {}/{}", vpod.node, self.spec.namespace, self.spec.pod),
            );
        }
    }

    /// Writes a line into the journal of a VPod.
    pub(super) fn note(&self, uid: &str, container: Option<&str>, text: &str) {
        self.context.journal.note(uid, container, self.run_of(uid, container), self.now(), text);
    }

    /// Writes an Event into the journal, unless the call that it is about does so.
    pub(super) fn note_event(&self, uid: &str, reason: &str, note: &str) {
        if !TOLD_BY_CALLS.contains(&reason) {
            self.note(uid, None, &format!("{reason}: {note}"));
        }
    }

    /// For the lines of a call about this module.
    pub(super) fn pen(&self, id: &ModuleId, uid: Option<&str>, container: Option<&str>) -> Pen {
        let Some(bound) = uid.and_then(|uid| self.pods.get(uid)) else { return Pen::default() };
        let uid = bound.desired.uid.as_str();
        let modules = bound.desired.modules();
        // The old version of a release in place stands in no container any more, but its name does.
        let named = || {
            modules.iter().find(|module| module.id.name == id.name).map(|module| module.container.as_str())
        };
        let container = container.or_else(named);
        Pen {
            journal: self.context.journal.clone(),
            uid: Some(uid.to_owned()),
            container: container.map(ToOwned::to_owned),
            run: self.run_of(uid, container),
        }
    }

    fn run_of(&self, uid: &str, container: Option<&str>) -> i32 {
        let module = container.and_then(|container| self.memory.module(uid, container));
        module.map_or(0, |module| module.restarts)
    }
}

fn shown(state: &ModuleState) -> String {
    match state {
        ModuleState::Active { since: Some(since) } => format!("active since {since:.3} by the base's clock"),
        ModuleState::Active { since: None } => "active".to_owned(),
        ModuleState::Waiting { reason, message } => format!("waits ({}): {message}", reason.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arklet::BizState;

    fn texts(after: &Chapter, before: &Chapter) -> Vec<String> {
        let line = |(container, text): Told| format!("{}: {text}", container.as_deref().unwrap_or("-"));
        after.news(before).into_iter().map(line).collect()
    }

    #[test]
    fn only_what_changed_is_told() {
        let first = Chapter {
            states: vec![("shop".to_owned(), "waits (Installing): x".to_owned())],
            probes: [("shop".to_owned(), Some("HTTP 503".to_owned()))].into(),
            ..Chapter::default()
        };
        assert_eq!(
            texts(&first, &Chapter::default()),
            ["shop: waits (Installing): x", "shop: probe: not ready: HTTP 503"]
        );
        assert_eq!(texts(&first, &first), Vec::<String>::new());
        let second = Chapter {
            states: vec![("shop".to_owned(), "active".to_owned())],
            probes: [("shop".to_owned(), None)].into(),
            ready: true,
            ..Chapter::default()
        };
        assert_eq!(texts(&second, &first), ["-: the Pod is Ready", "shop: active", "shop: probe: ready"]);
    }

    #[test]
    fn a_drain_is_told_step_by_step() {
        let ready = Chapter { ready: true, ..Chapter::default() };
        let asked = Chapter { draining: true, in_traffic: true, ..ready.clone() };
        assert_eq!(texts(&asked, &ready), ["-: deletion was asked for: the VPod leaves the traffic first"]);
        let left = Chapter { in_traffic: false, ..asked.clone() };
        assert_eq!(texts(&left, &asked), ["-: no EndpointSlice says that it is ready"]);
        let over = Chapter { uninstalling: true, ..left.clone() };
        assert_eq!(texts(&over, &left), ["-: drained: the modules are uninstalled"]);
        // One that no Service knows leaves at once.
        assert_eq!(texts(&left, &ready).len(), 2);
    }

    #[test]
    fn a_state_record_is_told_once_and_anew_for_another_module() {
        let id = |version: &str| ModuleId { name: "shop".to_owned(), version: version.to_owned() };
        let record = |state| StateRecord { at: None, state, reason: "Started".to_owned() };
        let with = |id: ModuleId, records: Vec<StateRecord>| Chapter {
            records: [("shop".to_owned(), (id, records))].into(),
            ..Chapter::default()
        };
        let first = with(id("1"), vec![record(BizState::Resolved)]);
        let second = with(id("1"), vec![record(BizState::Resolved), record(BizState::Activated)]);
        assert_eq!(
            texts(&second, &first),
            ["shop: state record of the base: shop:1 became activated Started"]
        );
        assert_eq!(texts(&with(id("2"), vec![record(BizState::Activated)]), &second).len(), 1);
    }
}
