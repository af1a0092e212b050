use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::base::restart::Cause;
use crate::base::state::{ModuleId, Reason};
use crate::vpod::ended::failed;

fn now() -> Timestamp {
    "2026-01-02T03:04:05.678Z".parse().unwrap()
}

fn pod(status: &Value, gates: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "labels": {"app": "web"}, "generation": 3},
        "spec": {"readinessGates": gates, "containers": [
            {"name": "shop", "image": "https://u:p@repo/shop.jar?sig=x"}, {"name": "cart", "image": "https://repo/cart.jar"}]},
        "status": status,
    }))
    .unwrap()
}

fn modules() -> Vec<Wanted> {
    ["shop", "cart"]
        .map(|name| Wanted {
            container: name.to_owned(),
            id: ModuleId { name: name.to_owned(), version: "1.0".to_owned() },
            url: String::new(),
            args: Vec::new(),
            hash: String::new(),
        })
        .to_vec()
}

fn place() -> Place {
    Place {
        ip: "10.244.0.7".parse().unwrap(),
        ips: vec!["10.244.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
        host_ip: Some("192.168.0.1".to_owned()),
    }
}

fn active() -> ModuleState {
    ModuleState::Active { since: "2026-01-02T03:00:00Z".parse().ok() }
}

fn waits(reason: Reason, message: &str) -> ModuleState {
    ModuleState::Waiting { reason, message: message.to_owned() }
}

fn view(shop: ModuleState, cart: ModuleState) -> PodView {
    let modules = vec![("shop".to_owned(), shop), ("cart".to_owned(), cart)];
    let mut view = PodView { modules, running: false, withdraw: false };
    view.running = view.installed();
    view
}

fn verdict(started: bool, unready: Option<&str>) -> Verdict {
    Verdict { started, unready: unready.map(str::to_owned), failing: None }
}

struct Case {
    pod: Pod,
    place: Place,
    view: PodView,
    probes: BTreeMap<String, Verdict>,
    endings: BTreeMap<String, Ending>,
    silent: Option<(&'static str, &'static str)>,
    restarts: BTreeMap<String, i32>,
}

impl Case {
    fn new(status: &Value, view: PodView) -> Self {
        let gates = json!([{"conditionType": "module.koupleless.io/ready"}]);
        Self {
            pod: pod(status, &gates),
            place: place(),
            view,
            probes: BTreeMap::new(),
            endings: BTreeMap::new(),
            silent: None,
            restarts: BTreeMap::new(),
        }
    }

    fn render(&self) -> PodStatus {
        self.render_at(now())
    }

    fn render_at(&self, now: Timestamp) -> PodStatus {
        live(&Live {
            pod: &self.pod,
            place: &self.place,
            view: &self.view,
            modules: &modules(),
            unreadable: None,
            restarts: &self.restarts,
            probes: &self.probes,
            endings: &self.endings,
            silent: self.silent,
            started: now,
            now,
        })
    }
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> (&'a str, Option<&'a str>, Option<&'a str>) {
    let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind).unwrap();
    (&found.status, found.reason.as_deref(), found.message.as_deref())
}

#[test]
fn bound_and_being_installed() {
    let case = Case::new(
        &json!({"phase": "Pending", "qosClass": "BestEffort",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        view(active(), waits(Reason::Installing, "being installed")),
    );
    insta::assert_yaml_snapshot!(case.render());
}

#[test]
fn all_active() {
    insta::assert_yaml_snapshot!(Case::new(&json!({}), view(active(), active())).render());
}

#[test]
fn failed_for_good() {
    let before = Case::new(&json!({}), view(active(), active())).render();
    let case = Case::new(&serde_json::to_value(before).unwrap(), view(active(), active()));
    insta::assert_yaml_snapshot!(failed(
        &case.pod,
        Some(&case.place),
        "ArtifactNotFound",
        "java.io.FileNotFoundException: https://repo/shop.jar",
        now()
    ));
}

#[test]
fn rendering_what_is_shown_changes_nothing() {
    let mut case = Case::new(
        &json!({"conditions": [{"type": "x.io/lb", "status": "Unknown", "reason": "Mine"}]}),
        view(active(), active()),
    );
    for view in [
        view(active(), active()),
        view(active(), waits(Reason::InstallBackOff, "x")),
        PodView { running: true, ..view(waits(Reason::Replaying, "y"), active()) },
    ] {
        case.view = view;
        let once = case.render();
        case.pod.status = Some(serde_json::from_value(serde_json::to_value(&once).unwrap()).unwrap());
        assert_eq!(case.render(), once);
    }
}

/// BL-119: what the API server adds to a status is not taken off again by another write.
#[test]
fn what_the_api_server_fills_in_is_no_change() {
    let mut case = Case::new(&json!({}), view(active(), waits(Reason::Installing, "x")));
    let mut answered = serde_json::to_value(case.render()).unwrap();
    for status in answered["containerStatuses"].as_array_mut().unwrap() {
        status["lastState"] = json!({});
    }
    answered["qosClass"] = json!("BestEffort");
    let answered: PodStatus = serde_json::from_value(answered).unwrap();
    case.pod.status = Some(answered.clone());
    assert_eq!(case.render(), answered);
    let failed_now = failed(&case.pod, Some(&case.place), "X", "x", now());
    let last =
        |status: &PodStatus| status.container_statuses.iter().flatten().next().unwrap().last_state.clone();
    assert_eq!(last(&failed_now), last(&answered));
}

/// BL-079, BL-083: Ready says which gate is missing or closed, and follows it; gates of others stay as they are.
#[test]
fn ready_needs_every_gate_and_names_the_closed_one() {
    let mut case = Case::new(&json!({}), view(active(), active()));
    case.pod.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(
        json!([{"conditionType": "module.koupleless.io/ready"}, {"conditionType": "x.io/lb"}]),
    )
    .unwrap();
    let status = case.render();
    assert_eq!(condition(&status, "ContainersReady").0, "True");
    let (ready, reason, message) = condition(&status, "Ready");
    assert_eq!((ready, reason), ("False", Some("ReadinessGatesNotReady")));
    assert!(message.unwrap().contains("\"x.io/lb\" does not exist"));

    for (value, expected) in [("False", "False"), ("True", "True")] {
        case.pod.status = Some(
            serde_json::from_value(
                json!({"conditions": [{"type": "x.io/lb", "status": value, "reason": "Theirs"}]}),
            )
            .unwrap(),
        );
        let status = case.render();
        assert_eq!(condition(&status, "Ready").0, expected);
        assert_eq!(condition(&status, "x.io/lb"), (value, Some("Theirs"), None));
    }
}

#[test]
fn a_failing_probe_closes_the_gate() {
    let mut case = Case::new(&json!({}), view(active(), active()));
    case.probes.insert("shop".to_owned(), verdict(true, Some("HTTP 503")));
    let status = case.render();
    assert_eq!(
        condition(&status, "module.koupleless.io/ready"),
        ("False", Some("ProbeFailed"), Some("shop: HTTP 503"))
    );
    assert_eq!(condition(&status, "Ready").0, "False");
    assert_eq!(condition(&status, "module.koupleless.io/installed").0, "True");
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn a_silent_base_takes_readiness_and_nothing_else() {
    let mut case = Case::new(&json!({}), view(active(), active()));
    case.silent = Some(("BaseNotAnswering", "the base does not answer"));
    let status = case.render();
    assert_eq!(
        condition(&status, "Ready"),
        ("False", Some("BaseNotAnswering"), Some("the base does not answer"))
    );
    assert_eq!(condition(&status, "module.koupleless.io/installed").0, "True");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(status.container_statuses.unwrap()[0].state.as_ref().unwrap().running.is_some());
}

/// A release in place: no deletionTimestamp tells anybody, so Ready=False comes first.
#[test]
fn what_leaves_the_traffic_is_not_ready_while_it_still_runs() {
    let mut case = Case::new(&json!({}), PodView { withdraw: true, ..view(active(), active()) });
    case.pod.status = Some(Case::new(&json!({}), view(active(), active())).render());
    let status = case.render();
    let why =
        ("False", Some("LeavingTraffic"), Some("the modules leave the traffic before they are replaced"));
    assert_eq!(condition(&status, "Ready"), why);
    assert_eq!(condition(&status, "ContainersReady").0, "False");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let containers = status.container_statuses.unwrap();
    assert!(containers.iter().all(|container| !container.ready));
    assert!(containers.iter().all(|container| container.state.as_ref().unwrap().running.is_some()));
}

/// BL-078: a base that lost its modules shows none as running, and the phase stays.
#[test]
fn a_replay_stays_running_and_counts_the_restart() {
    let mut case = Case::new(
        &json!({"phase": "Running"}),
        PodView { running: true, ..view(waits(Reason::Replaying, "being installed"), active()) },
    );
    case.restarts.insert("shop".to_owned(), 2);
    let status = case.render();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(
        condition(&status, "module.koupleless.io/installed"),
        ("False", Some("Replaying"), Some("shop: being installed"))
    );
    assert_eq!(status.container_statuses.unwrap()[0].restart_count, 2);
}

#[test]
fn a_module_whose_startup_probe_has_not_succeeded_is_not_started() {
    let mut case = Case::new(&json!({}), view(active(), active()));
    case.probes.insert("shop".to_owned(), verdict(false, Some("Startup probe failed: HTTP 503")));
    let status = case.render();
    let shop = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!((shop.started, shop.ready), (Some(false), false));
    assert!(shop.state.as_ref().unwrap().running.is_some(), "it runs, as for a kubelet");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(
        condition(&status, "module.koupleless.io/ready").2,
        Some("shop: Startup probe failed: HTTP 503")
    );
    case.probes.insert("shop".to_owned(), verdict(true, None));
    let shop = case.render().container_statuses.unwrap().remove(0);
    assert_eq!((shop.started, shop.ready), (Some(true), true));
}

#[test]
fn a_restart_shows_how_the_last_run_ended_and_keeps_it() {
    let mut case = Case::new(&json!({}), view(active(), active()));
    case.pod.status = Some(case.render());
    let ending = Ending {
        cause: Cause::LivenessProbe,
        message: "Liveness probe failed: HTTP 500".to_owned(),
        at: now(),
    };
    case.endings.insert("shop".to_owned(), ending);
    assert_eq!(case.render().container_statuses.unwrap()[0].last_state, None, "no restart yet");
    case.restarts.insert("shop".to_owned(), 1);
    case.view = PodView { running: true, ..view(waits(Reason::Replaying, "being installed"), active()) };
    let restarted = case.render();
    let last = |status: &PodStatus| {
        status.container_statuses.as_ref().unwrap()[0].last_state.clone().unwrap().terminated.unwrap()
    };
    let shown = last(&restarted);
    assert_eq!(shown.reason.as_deref(), Some("LivenessProbeFailed"));
    assert_eq!(shown.message.as_deref(), Some("Liveness probe failed: HTTP 500"));
    assert_eq!(shown.started_at, Some(whole("2026-01-02T03:00:00Z".parse().unwrap())));
    assert_eq!(shown.finished_at, Some(whole(now())));
    assert_eq!(shown.container_id.as_deref(), Some("arklet://10.244.0.7:shop:1.0"));
    // It stays when the module is back, and for an agent that knows nothing of it any more.
    case.pod.status = Some(restarted);
    case.endings.clear();
    case.restarts.clear();
    case.view = view(active(), active());
    let after = case.render();
    assert_eq!(last(&after), shown);
    assert_eq!(after.container_statuses.unwrap()[0].restart_count, 1);
}

#[test]
fn addresses_that_freeze_services_are_not_posted() {
    for ip in ["127.0.0.2", "169.254.1.1", "224.0.0.1", "0.0.0.0", "::1", "fe80::1"] {
        let mut case = Case::new(&json!({}), view(active(), active()));
        case.place = Place { ip: ip.parse().unwrap(), ips: vec![ip.parse().unwrap()], host_ip: None };
        assert_eq!(case.render().pod_ip, None, "{ip}");
        case.pod.metadata.labels = None;
        assert_eq!(case.render().pod_ip.as_deref(), Some(ip));
    }
}

/// The clock of a base is ahead, or behind: the start that it tells is in the future, or before there was a Pod, or before
/// the run ended that this one follows.
#[test]
fn a_start_that_cannot_be_is_now_and_stays_where_it_is() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let created = at("2026-01-02T02:00:00Z");
    let ended = ContainerState {
        terminated: Some(ContainerStateTerminated {
            finished_at: Some(whole(at("2026-01-02T03:00:00Z"))),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    };
    for (told, last, believed) in [
        ("2031-01-01T00:00:00Z", None, false),
        ("2026-01-02T01:59:59Z", None, false),
        ("2026-01-02T02:30:00Z", Some(&ended), false),
        ("2026-01-02T02:00:00Z", None, true),
        ("2026-01-02T02:30:00Z", None, true),
        ("2026-01-02T03:00:00Z", Some(&ended), true),
    ] {
        let mut case = Case::new(&json!({}), view(ModuleState::Active { since: Some(at(told)) }, active()));
        case.pod.metadata.creation_timestamp = Some(whole(created));
        if let Some(last) = last {
            let known = ContainerStatus {
                name: "shop".to_owned(),
                last_state: Some(last.clone()),
                ..ContainerStatus::default()
            };
            case.pod.status =
                Some(PodStatus { container_statuses: Some(vec![known]), ..PodStatus::default() });
        }
        let status = case.render();
        let state = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap();
        let started = state.running.unwrap().started_at;
        assert_eq!(started, Some(whole(if believed { at(told) } else { now() })), "{told} after {last:?}");
        case.pod.status = Some(status.clone());
        assert_eq!(case.render_at(now() + SignedDuration::from_mins(1)), status, "{told}: it stays there");
    }
}

#[test]
fn scheduling_trouble_left_behind_is_repaired() {
    let case = Case::new(
        &json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": "late"}]}),
        view(active(), active()),
    );
    assert_eq!(condition(&case.render(), "PodScheduled"), ("True", None, None));
}

#[test]
fn a_pod_without_anything_renders() {
    let status = live(&Live {
        pod: &Pod::default(),
        place: &place(),
        view: &PodView { modules: Vec::new(), running: false, withdraw: false },
        modules: &[],
        unreadable: Some(("InvalidVersion", "no version")),
        restarts: &BTreeMap::new(),
        probes: &BTreeMap::new(),
        endings: &BTreeMap::new(),
        silent: None,
        started: now(),
        now: now(),
    });
    assert_eq!(
        condition(&status, "module.koupleless.io/installed"),
        ("False", Some("InvalidVersion"), Some("no version"))
    );
    assert_eq!(condition(&status, "Ready").0, "False");
}
