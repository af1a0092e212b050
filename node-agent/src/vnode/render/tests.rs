use std::sync::Arc;

use policy::contract::{InventoryModule, Metaspace, ModuleState};

use super::*;
use crate::discovery::{Leaving, from_pod};

/// A base as the tests of this crate use it.
pub(crate) fn base() -> BaseSpec {
    let pod = serde_json::json!({
        "metadata": {"namespace": "shop", "name": "base-7d9f-x2", "uid": "u-1", "creationTimestamp": "2026-11-01T10:00:00Z",
            "labels": {"app": "base", "basement.koupleless.io/version": "2.1.0-rc", "pod-template-hash": "7d9f",
                "topology.kubernetes.io/zone": "fake", "stowage.dev/zone": "fake"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "base-7d9f", "uid": "r", "controller": true}]},
        "spec": {"nodeName": "worker-3", "containers": [{"name": "base", "resources": {"limits": {"cpu": "2", "memory": "4Gi"}}}]},
        "status": {"phase": "Running", "podIP": "10.244.1.7", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "base", "ready": true, "restartCount": 0, "image": "", "imageID": "",
                "state": {"running": {"startedAt": "2026-11-01T10:00:05Z"}}}]}
    });
    from_pod(&serde_json::from_value(pod).expect("pod"), "default", None).expect("base")
}

pub(crate) fn report() -> Report {
    Report {
        health: Health::Answering,
        inventory: policy::contract::Inventory::default(),
        bound: 0,
        full: false,
        drained: false,
        unhealthy: std::collections::BTreeSet::new(),
        load: crate::healing::Load::Unknown,
        started_at: None,
    }
}

pub(crate) fn show() -> Show {
    Show {
        spec: Arc::new(base()),
        host: Arc::new(HostFacts {
            zone: Some("a".to_owned()),
            region: Some("north".to_owned()),
            os: Some("linux".to_owned()),
            arch: Some("arm64".to_owned()),
            allocatable: [
                ("ephemeral-storage".to_owned(), "10Gi".to_owned()),
                ("cpu".to_owned(), "64".to_owned()),
            ]
            .into(),
        }),
        limits: Limits {
            pods: 1,
            reserved: [("cpu".to_owned(), Amount::parse("500m").expect("quantity"))].into(),
            metaspace_high_percent: 90,
        },
        report: Arc::new(report()),
        silence_held: false,
        healing: None,
    }
}

pub(crate) fn frame() -> Frame {
    let amount = |text| Amount::parse(text).expect("quantity");
    Frame {
        taint_value: "true".to_owned(),
        copy_topology: false,
        default_capacity: [("cpu".to_owned(), amount("1")), ("memory".to_owned(), amount("1Gi"))].into(),
        kubelet: None,
    }
}

#[test]
fn a_vnode_as_a_whole() {
    let mut show = show();
    Arc::make_mut(&mut show.report).inventory.modules = vec![InventoryModule {
        name: "cart".into(),
        version: "1.0".into(),
        state: ModuleState::Activated,
        context_path: None,
        owner: None,
        artifact_hash: None,
    }];
    Arc::make_mut(&mut show.report).inventory.metaspace =
        Some(Metaspace { max: Some(1_000), used: 512, lowest: 401 });
    Arc::make_mut(&mut show.report).inventory.provides = [("arklet".to_owned(), "1.4.2".to_owned())].into();
    let mut wanted = render(&show, &frame());
    assert_eq!(wanted.node_info.kubelet_version, KUBELET_VERSION);
    wanted.node_info.kubelet_version = "v1.33.0-stowage-x".to_owned();
    let node = crate::vnode::creation(&show.spec.node, &wanted, jiff::Timestamp::UNIX_EPOCH);
    insta::assert_yaml_snapshot!(node);
}

#[test]
fn a_leaving_base_takes_nothing_new() {
    let mut show = show();
    show.spec = Arc::new(BaseSpec { leaving: Some(Leaving::Deleted), ..base() });
    let wanted = render(&show, &frame());
    assert!(wanted.leaving);
    assert_eq!(wanted.taints[1].key, names::LEAVING_TAINT);
    assert_eq!(wanted.taints[1].effect, "NoSchedule");
}

#[test]
fn allocatable_pods_are_lowered_only_while_the_base_must_take_no_more() {
    let mut show = show();
    show.limits.pods = 8;
    Arc::make_mut(&mut show.report).bound = 3;
    let pods = |show: &Show| {
        let wanted = render(show, &frame());
        (wanted.capacity["pods"].0.clone(), wanted.allocatable["pods"].0.clone())
    };
    assert_eq!(pods(&show), ("8".to_owned(), "8".to_owned()));
    Arc::make_mut(&mut show.report).full = true;
    assert_eq!(pods(&show), ("8".to_owned(), "3".to_owned()));
    Arc::make_mut(&mut show.report).bound = 20;
    assert_eq!(pods(&show), ("8".to_owned(), "8".to_owned()), "never above the limit");
}

#[test]
fn resources_come_from_the_base_then_its_host_then_the_flag_less_what_is_reserved() {
    let wanted = render(&show(), &frame());
    assert_eq!(wanted.allocatable["cpu"].0, "1500m", "2 less 500m");
    assert_eq!(wanted.allocatable["ephemeral-storage"].0, "10737418240", "of the host");
    let mut show = show();
    show.spec = Arc::new(BaseSpec { resources: BTreeMap::new(), ..base() });
    show.host = Arc::default();
    let wanted = render(&show, &frame());
    assert_eq!(wanted.allocatable["memory"].0, "1073741824", "of the flag");
    assert!(!wanted.allocatable.contains_key("ephemeral-storage"), "nobody knows");
    show.limits.reserved.insert("cpu".to_owned(), Amount::parse("3").expect("quantity"));
    assert_eq!(render(&show, &frame()).allocatable["cpu"].0, "0", "never negative");
}

#[test]
fn ready_says_what_is_known_and_nothing_more() {
    let silent =
        Health::Silent { since: jiff::Timestamp::UNIX_EPOCH, reason: "connection refused".to_owned() };
    for (health, started, held, expected) in [
        (Health::Answering, true, false, Some((true, "BaseAnswering"))),
        (Health::Starting, true, false, None),
        (Health::Starting, false, false, Some((false, "BaseStarting"))),
        (silent.clone(), true, false, Some((false, "BaseSilent"))),
        (silent, true, true, None),
    ] {
        let mut show = show();
        show.spec = Arc::new(BaseSpec { started, ..base() });
        Arc::make_mut(&mut show.report).health = health.clone();
        show.silence_held = held;
        let wanted = render(&show, &frame());
        let ready = wanted.conditions.iter().find(|condition| condition.type_ == "Ready");
        assert_eq!(ready.map(|ready| (ready.status, ready.reason)), expected, "{health:?}");
    }
}

#[test]
fn topology_is_copied_only_on_wish() {
    let labels = |copy| render(&show(), &Frame { copy_topology: copy, ..frame() }).labels;
    assert!(!labels(false).contains_key(TOPOLOGY_ZONE));
    assert_eq!(labels(true).get(TOPOLOGY_ZONE).map(String::as_str), Some("a"));
    assert_eq!(labels(true).get(REGION).map(String::as_str), Some("north"));
}

#[test]
fn metaspace_pressure_goes_by_the_lowest_use() {
    let pressure = |metaspace| {
        let mut show = show();
        Arc::make_mut(&mut show.report).inventory.metaspace = metaspace;
        let wanted = render(&show, &frame());
        let found = wanted.conditions.iter().find(|condition| condition.type_ == names::METASPACE_PRESSURE);
        found.map(|condition| (condition.status, condition.reason)).expect("condition")
    };
    let figures = |used, lowest| Some(Metaspace { max: Some(100), used, lowest });
    assert_eq!(pressure(None), (false, "MetaspaceUnknown"));
    assert_eq!(pressure(Some(Metaspace { max: None, used: 9, lowest: 9 })), (false, "MetaspaceUnknown"));
    assert_eq!(pressure(figures(97, 20)), (false, "MetaspaceFine"));
    assert_eq!(pressure(figures(97, 91)), (true, "MetaspaceHigh"));
}

fn endpoint(ip: &str, for_all: bool) -> ServedEndpoint {
    ServedEndpoint { ip: ip.parse().expect("address"), port: 10_250, for_all }
}

/// Where the API server must reach the agent there is no host name that it could prefer and nobody resolves.
#[test]
fn a_vnode_leads_to_the_agent_only_where_it_is_served() {
    let addresses = |wanted: &Wanted| {
        wanted.addresses.iter().map(|one| format!("{}={}", one.type_, one.address)).collect::<Vec<_>>()
    };
    let with = |kubelet| render(&show(), &Frame { kubelet, ..frame() });
    let host = format!("Hostname={}", base().node);
    let off = with(None);
    assert_eq!((off.kubelet_port, addresses(&off)), (0, vec!["InternalIP=10.244.1.7".to_owned(), host]));
    let fleet = with(Some(endpoint("10.9.9.9", true)));
    assert_eq!((fleet.kubelet_port, addresses(&fleet)), (10_250, vec!["InternalIP=10.9.9.9".to_owned()]));
    assert_eq!(with(Some(endpoint("10.9.9.9", false))), off, "an agent in another Pod");
    let sidecar = with(Some(endpoint("10.244.1.7", false)));
    assert_eq!(
        (sidecar.kubelet_port, addresses(&sidecar)),
        (10_250, vec!["InternalIP=10.244.1.7".to_owned()])
    );
}

/// A base whose turn has not come keeps nothing away; what hinders it is said whether or not its healing has begun.
#[test]
fn a_healing_shows_its_step_and_what_holds_it_up() {
    use crate::healing::Cause;

    let started = "2026-11-01T10:00:00Z".parse().expect("time");
    for (step, hindrance, effects, says) in [
        (Step::Waiting, None, [].as_slice(), "healing is about to begin"),
        (Step::Waiting, Some(Hindrance::Budget), &[], "as many bases as the policy allows are healing"),
        (Step::Evicting, None, &["NoSchedule"], "its modules are evicted within their budgets"),
        (Step::Evicting, Some(Hindrance::NoPlace), &["NoSchedule"], "its modules have nowhere to go"),
        (Step::Forcing, None, &["NoSchedule", "NoExecute"], "overload.evictionDeadline has passed"),
        (Step::Replacing, None, &["NoSchedule"], "the base Pod is evicted"),
    ] {
        let healing = Healing { step, ..Healing::found("u-1", None, Cause::NotFreed, started) };
        let wanted = render(&Show { healing: Some((healing, hindrance)), ..show() }, &frame());
        let taints = wanted.taints.iter().filter(|taint| taint.key == names::OVERLOAD_TAINT);
        assert_eq!(taints.map(|taint| taint.effect.as_str()).collect::<Vec<_>>(), effects, "{step:?}");
        let shown = wanted.conditions.iter().find(|condition| condition.type_ == names::METASPACE_PRESSURE);
        let shown = shown.expect("a condition");
        assert_eq!((shown.status, shown.reason), (true, step.as_str()));
        assert!(shown.message.contains(says), "{step:?}: {}", shown.message);
    }
}
