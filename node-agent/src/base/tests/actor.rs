//! What an actor does by itself, without a base and without an API server: its tasks never run here.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::advance;

use super::super::actor::Actor;
use super::super::bound::{Bound, Hook, Probing};
use super::super::context::{ActorContext, Event, EventSink, Meter};
use super::super::hooks::Hooked;
use super::super::message::Hold;
use super::super::report::tests::{client, context};
use super::super::state::PodView;
use super::super::told::{Tell, Told};
use super::*;
use crate::vpod::probe::{Failing, Kind, Probes, Verdict};
use crate::vpod::write::Written;

/// What is told to the outside.
#[derive(Default)]
struct Book {
    events: Mutex<Vec<&'static str>>,
    forced: Mutex<u32>,
}

impl EventSink for Book {
    fn emit(&self, event: Event) {
        self.events.lock().unwrap().push(event.reason);
    }
}

impl Meter for Book {
    fn forced(&self) {
        *self.forced.lock().unwrap() += 1;
    }
}

struct Stage {
    actor: Actor,
    told: mpsc::UnboundedReceiver<Box<Told>>,
    book: Arc<Book>,
}

impl Stage {
    /// An actor with the VPod `p`.
    fn new(observe: bool, pod: Value) -> Self {
        let book = Arc::new(Book::default());
        let context = ActorContext {
            pod_calls: Arc::new(Semaphore::new(8)),
            ..context(client(), mpsc::unbounded_channel().0)
        };
        let mut actor =
            Actor::new(ActorContext { events: book.clone(), meter: book.clone(), observe, ..context });
        let (tell, told) = Tell::channel();
        actor.tell = tell;
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let bound = Bound::new(Arc::new(pod), actor.now());
        actor.pods.insert("p".to_owned(), bound);
        Self { actor, told, book }
    }

    fn bound(&mut self) -> &mut Bound {
        self.actor.pods.get_mut("p").unwrap()
    }

    /// This was planned for the containers: `None` is active.
    fn shows(&mut self, states: &[(&str, Option<Reason>)]) {
        let state = |reason: Option<Reason>| match reason {
            Some(reason) => ModuleState::Waiting { reason, message: String::new() },
            None => ModuleState::Active { since: None },
        };
        let withdraw = states.iter().any(|(_, reason)| *reason == Some(Reason::Releasing));
        let modules = states.iter().map(|(name, reason)| ((*name).to_owned(), state(*reason))).collect();
        self.actor.views.insert("p".to_owned(), PodView { modules, running: true, withdraw });
        self.bound().outdated = false;
        self.actor.removals();
    }
}

/// `shop` and `cart`, both with a `preStop` hook and a liveness probe.
fn pod(meta: &Value) -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": format!("https://repo/{name}-1.jar"),
            "env": [{"name": "MODULE_VERSION", "value": "1"}],
            "lifecycle": {"preStop": {"httpGet": {"path": "/bye", "port": 8080}}},
            "livenessProbe": {"tcpSocket": {"port": 8080}}})
    };
    let mut metadata = json!({"namespace": "shop", "name": "p", "uid": "p", "resourceVersion": "1"});
    metadata.as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
    let tolerations = json!([{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}]);
    let containers = [container("shop"), container("cart")];
    json!({"metadata": metadata, "spec": {"tolerations": tolerations, "containers": containers}})
}

/// One whose modules run.
fn serving(observe: bool) -> Stage {
    let mut stage = Stage::new(observe, pod(&json!({})));
    for container in ["shop", "cart"] {
        stage.actor.memory.module_mut("p", container).active = true;
    }
    stage
}

/// The liveness probe of `shop` says this, and the brake let it pass.
fn gives_up(stage: &mut Stage, failing: bool) {
    let failing = failing.then(|| Failing { kind: Kind::Liveness, why: "HTTP 500".to_owned() });
    let verdict = Verdict { started: true, unready: None, failing };
    let hook = stage.bound().probes.get("shop").and_then(|probing| probing.hook);
    let task = stage.actor.tasks.spawn(std::future::pending());
    let probes = Probes::of(&stage.bound().pod.spec.as_ref().unwrap().containers[0]);
    let probing = Probing { probes, run: 7, verdict, passed: true, hook, task };
    stage.bound().probes.insert("shop".to_owned(), probing);
    stage.actor.observed.answering = true;
    stage.actor.unhealthy();
}

fn hook(stage: &mut Stage) -> Option<Hook> {
    stage.bound().probes["shop"].hook
}

fn given_up(stage: &Stage) -> bool {
    stage.actor.memory.module("p", "shop").unwrap().unhealthy.is_some()
}

#[tokio::test(start_paused = true)]
async fn an_observer_calls_no_hook() {
    let over = |stage: &mut Stage| match *stage.told.try_recv().expect("it is over at once") {
        Told::HooksDone { why, .. } => why,
        other => panic!("{other:?}"),
    };
    let mut stage = serving(true);
    stage.shows(&[("shop", Some(Reason::Releasing)), ("cart", None)]);
    assert!(matches!(over(&mut stage), Hooked::Release { .. }));
    assert!(stage.actor.tasks.is_empty(), "nobody is called");

    gives_up(&mut stage, true);
    assert_eq!(over(&mut stage), Hooked::Probe { container: "shop".to_owned(), run: 7 });
    assert_eq!(stage.actor.tasks.len(), 1, "the probe");

    let gone = json!({"deletionTimestamp": "2126-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
    let mut stage = Stage::new(true, pod(&gone));
    stage.actor.memory.module_mut("p", "shop").active = true;
    stage.actor.removals();
    assert_eq!(over(&mut stage), Hooked::Deletion);
    assert!(stage.actor.tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_held_up_goes_on_where_it_was() {
    let mut stage = serving(false);
    let releasing = [("shop", Some(Reason::Releasing)), ("cart", None)];
    stage.shows(&releasing);
    assert_eq!(stage.actor.hook_calls, 1);
    for why in [Reason::WaitingForOldVersion, Reason::Paused] {
        stage.shows(&[("shop", Some(why)), ("cart", None)]);
        stage.shows(&releasing);
        assert_eq!(stage.actor.hook_calls, 1, "{why:?}");
    }
    // Taken back, and begun anew: what is left of the first one says nothing of this one.
    stage.shows(&[("shop", None), ("cart", None)]);
    stage.shows(&releasing);
    assert_eq!(stage.actor.hook_calls, 2);
    let before = stage.bound().release.as_ref().unwrap().drain.clone();
    stage.actor.hooks_done("p", &Hooked::Release { call: 1 });
    assert_eq!(stage.bound().release.as_ref().unwrap().drain, before);
    stage.actor.hooks_done("p", &Hooked::Release { call: 2 });
    assert_ne!(stage.bound().release.as_ref().unwrap().drain, before);
}

#[tokio::test(start_paused = true)]
async fn each_module_of_a_release_is_told_once() {
    let mut stage = serving(false);
    stage.shows(&[("shop", Some(Reason::Releasing)), ("cart", None)]);
    let both = [("shop", Some(Reason::Releasing)), ("cart", Some(Reason::Releasing))];
    stage.shows(&both);
    assert_eq!(stage.actor.hook_calls, 1, "one after the other");
    stage.actor.hooks_done("p", &Hooked::Release { call: 1 });
    stage.shows(&both);
    assert_eq!(stage.actor.hook_calls, 2);
    advance(Duration::from_secs(20)).await;
    stage.actor.hooks_done("p", &Hooked::Release { call: 2 });
    stage.shows(&both);
    advance(Duration::from_secs(20)).await;
    stage.shows(&both);
    assert_eq!(stage.actor.hook_calls, 2);
    assert!(stage.actor.memory.pods["p"].withdrawn);
}

/// The change and the end of the drain come in one turn.
#[tokio::test(start_paused = true)]
async fn what_is_changed_is_not_let_go_by_an_older_plan() {
    let mut stage = serving(false);
    stage.actor.read("p");
    stage.shows(&[("shop", Some(Reason::Releasing)), ("cart", None)]);
    stage.actor.hooks_done("p", &Hooked::Release { call: 1 });
    advance(Duration::from_mins(1)).await;
    let mut changed = pod(&json!({"resourceVersion": "2"}));
    changed["spec"]["containers"][1]["image"] = json!("https://repo/cart-2.jar");
    assert!(stage.bound().take(Arc::new(serde_json::from_value(changed).unwrap())));
    stage.actor.read("p");
    assert!(stage.bound().outdated);
    stage.actor.removals();
    assert!(!stage.actor.memory.pods["p"].withdrawn);
    stage.shows(&[("shop", Some(Reason::Releasing)), ("cart", Some(Reason::Releasing))]);
    assert_eq!(stage.actor.hook_calls, 2);
    assert!(!stage.actor.memory.pods["p"].withdrawn, "the second hook is waited for");
}

#[tokio::test(start_paused = true)]
async fn the_last_status_is_tried_until_it_is_taken_or_refused() {
    let kept = || Stage::new(false, pod(&json!({"finalizers": ["x.io/keep"]})));
    let fails = |stage: &mut Stage, refused: bool| {
        for _ in 0..5 {
            let why = "no".to_owned();
            let written = if refused { Written::Refused(why) } else { Written::Failed(why) };
            stage.actor.written("p", &PodStatus::default(), written);
        }
    };
    let mut away = kept();
    assert!(away.actor.last_status("p"), "the deletion waits for it");
    assert!(away.bound().writing.running);
    fails(&mut away, false);
    assert!(!away.actor.last_status("p"), "not for ever");
    away.bound().writing.next = None;
    assert!(!away.actor.last_status("p"));
    assert!(away.bound().writing.running, "it is tried all the same");

    let mut refused = kept();
    fails(&mut refused, true);
    assert!(refused.actor.last_status("p"), "what was refused before is no last status");
    fails(&mut refused, true);
    refused.bound().writing.next = None;
    assert!(!refused.actor.last_status("p"));
    assert!(!refused.bound().writing.running);
}

#[tokio::test(start_paused = true)]
async fn what_is_well_after_its_hook_is_left_alone() {
    let done = |stage: &mut Stage| {
        let why = Hooked::Probe { container: "shop".to_owned(), run: 7 };
        stage.actor.hooks_done("p", &why);
        stage.actor.unhealthy();
    };
    let mut stage = serving(false);
    gives_up(&mut stage, true);
    assert_eq!((hook(&mut stage), given_up(&stage)), (Some(Hook::Running), false));
    done(&mut stage);
    assert_eq!((hook(&mut stage), given_up(&stage)), (Some(Hook::Over), true));

    stage.actor.hold = Hold { brake: false, pause: true };
    stage.actor.unhealthy();
    assert!(!given_up(&stage), "nothing is taken off in a pause");
    gives_up(&mut stage, false);
    stage.actor.hold = Hold::default();
    stage.actor.unhealthy();
    assert_eq!((hook(&mut stage), given_up(&stage)), (None, false), "it is well by now");

    gives_up(&mut stage, true);
    assert_eq!(hook(&mut stage), Some(Hook::Running), "it is told anew");
    gives_up(&mut stage, false);
    gives_up(&mut stage, true);
    stage.bound().probes.get_mut("shop").unwrap().passed = false;
    done(&mut stage);
    assert!(!given_up(&stage), "a new fault is for the brake to let pass");
}

#[tokio::test(start_paused = true)]
async fn a_forced_removal_is_asked_for_and_counted_once() {
    let gone = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
        "finalizers": ["x.io/keep"]});
    let mut stage = Stage::new(false, pod(&gone));
    stage.actor.removals();
    assert!(stage.actor.uninstalling("p"));
    for _ in 0..3 {
        advance(Duration::from_mins(2)).await;
        stage.actor.removals();
    }
    assert_eq!(*stage.book.forced.lock().unwrap(), 1);
    assert!(!stage.bound().deleting.running, "only the finalizers keep it");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_told_once_it_is_granted() {
    let mut stage = serving(false);
    stage.actor.deleted("p", Err("a budget is in the way".to_owned()));
    stage.actor.deleted("p", Ok(false));
    assert!(stage.book.events.lock().unwrap().is_empty());
    stage.actor.deleted("p", Ok(true));
    assert_eq!(*stage.book.events.lock().unwrap(), ["EvictedFromSilentBase"]);
}
