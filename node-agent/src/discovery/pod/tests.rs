use serde_json::{Value, json};

use super::*;

fn pod(change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {"namespace": "shop", "name": "base-1", "uid": "u-1", "labels": {"app": "base"}, "annotations": {"x": "y"}},
        "spec": {"nodeName": "worker-1", "containers": [
            {"name": "sidecar"},
            {"name": "base", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
             "lifecycle": {"preStop": {"sleep": {"seconds": 10}}}}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "hostIP": "192.168.0.1",
            "containerStatuses": [{"name": "base", "ready": true, "restartCount": 2, "image": "", "imageID": "",
                "state": {"running": {"startedAt": "2026-11-01T10:00:00Z"}}}]}
    });
    change(&mut pod);
    serde_json::from_value(pod).expect("pod")
}

fn read(change: impl FnOnce(&mut Value)) -> Result<BaseSpec, NotABase> {
    from_pod(&pod(change), "default", None)
}

#[test]
fn a_base_as_a_whole() {
    let spec = read(|_| {}).expect("base");
    insta::assert_debug_snapshot!(spec);
}

#[test]
fn what_is_no_base_says_why() {
    assert_eq!(read(|pod| pod["status"]["phase"] = json!("Pending")), Err(NotABase::NotRunning));
    assert_eq!(
        read(|pod| {
            pod["status"]["podIP"] = Value::Null;
            pod["status"]["podIPs"] = json!([{"ip": "nonsense"}]);
        }),
        Err(NotABase::NoIp)
    );
    assert_eq!(read(|pod| pod["spec"]["containers"] = json!([])), Err(NotABase::NoContainer));
    assert_eq!(read(|pod| pod["metadata"]["uid"] = Value::Null), Err(NotABase::Unnamed));
    for value in ["0", "x", "65536", "-1"] {
        let result = read(|pod| pod["metadata"]["annotations"] = json!({names::ARKLET_PORT: value}));
        assert_eq!(result, Err(NotABase::Port { value: value.to_owned() }));
    }
    assert_eq!(
        read(|pod| pod["metadata"]["annotations"] = json!({names::ARKLET_PORT: "1239"})).map(|s| s.port),
        Ok(1239)
    );
}

#[test]
fn the_base_container_is_annotated_or_named_base_or_the_first() {
    let cpu = |annotations: Value| {
        let spec = read(|pod| {
            pod["metadata"]["annotations"] = annotations;
            pod["spec"]["containers"] = json!([
                {"name": "first", "resources": {"limits": {"cpu": "1"}}},
                {"name": "second", "resources": {"limits": {"cpu": "2"}}},
                {"name": "base", "resources": {"limits": {"cpu": "3"}}}]);
        });
        spec.expect("base").resources["cpu"].clone()
    };
    assert_eq!(cpu(json!({})), "3");
    assert_eq!(cpu(json!({names::KOUPLELESS_CONTAINER_NAME: "first"})), "1");
    assert_eq!(cpu(json!({names::KOUPLELESS_CONTAINER_NAME: "first", names::CONTAINER: "second"})), "2");
    assert_eq!(cpu(json!({names::CONTAINER: "none of them"})), "3");
    let first = read(|pod| {
        pod["spec"]["containers"] =
            json!([{"name": "a", "resources": {"limits": {"cpu": "7"}}}, {"name": "b"}]);
    });
    assert_eq!(first.expect("base").resources["cpu"], "7");
}

/// arklet answers before the application is up, so ready counts once; later flaps decide nothing.
#[test]
fn started_holds_until_the_container_starts_again() {
    let first = read(|_| {}).expect("base");
    assert!(first.started);
    let flap = |pod: &mut Value| pod["status"]["containerStatuses"][0]["ready"] = json!(false);
    assert!(!read(flap).expect("base").started, "never seen ready");
    let flapped = from_pod(&pod(flap), "default", Some(&first)).expect("base");
    assert!(flapped.started, "a flap");
    let restarted = from_pod(
        &pod(|pod| {
            flap(pod);
            pod["status"]["containerStatuses"][0]["restartCount"] = json!(3);
        }),
        "default",
        Some(&first),
    );
    assert!(!restarted.expect("base").started, "another start");
    let other = BaseSpec { uid: "u-2".to_owned(), ..first };
    assert!(
        !from_pod(&pod(flap), "default", Some(&other)).expect("base").started,
        "another Pod of that name"
    );
}

#[test]
fn a_base_leaves_by_deletion_or_by_its_end() {
    let deleted =
        read(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-01T11:00:00Z")).expect("base");
    assert_eq!(deleted.leaving, Some(Leaving::Deleted));
    for phase in ["Succeeded", "Failed"] {
        let before = read(|_| {}).expect("base");
        let ended = pod(|pod| {
            pod["status"] = json!({"phase": phase});
        });
        let ended = from_pod(&ended, "default", Some(&before)).expect("base");
        assert_eq!((ended.leaving, ended.ip), (Some(Leaving::Ended), before.ip), "the last IP counts");
    }
}

#[test]
fn revisions_name_the_workload_and_its_template() {
    let revision = |owner: &str, label: &str, hash: &str| {
        let spec = read(|pod| {
            pod["metadata"]["labels"] = json!({label: hash});
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "X", "name": owner, "uid": "o", "controller": true}]);
        });
        spec.expect("base").revision.expect("revision")
    };
    let expected = ("base".to_owned(), "7d9f".to_owned());
    assert_eq!(revision("base-7d9f", names::POD_TEMPLATE_HASH, "7d9f"), expected, "Deployment");
    assert_eq!(revision("base", names::CONTROLLER_REVISION_HASH, "base-7d9f"), expected, "StatefulSet");
    assert_eq!(revision("base", names::CONTROLLER_REVISION_HASH, "7d9f"), expected, "DaemonSet");
    assert_eq!(read(|_| {}).expect("base").revision, None, "a bare Pod");
}

#[test]
fn koupleless_labels_are_read_too() {
    let spec =
        read(|pod| pod["metadata"]["labels"] = json!({names::KOUPLELESS_VERSION: "1.0", names::STACK: ""}));
    let spec = spec.expect("base");
    assert_eq!((spec.version.as_deref(), spec.stack.as_str()), (Some("1.0"), "java"));
}
