use serde_json::{Value, json};

use super::*;

fn pod(env: &Value, labels: &Value, image: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "labels": labels},
        "spec": {
            "tolerations": [{"key": "schedule.koupleless.io/virtual-node", "operator": "Exists"}],
            "containers": [{"name": "shop", "image": image, "env": env, "args": ["--a"]}],
        },
    }))
    .unwrap()
}

const IMAGE: &str = "https://user:secret@repo.example.com/shop.jar?token=x";

fn reason(want: &Want) -> Option<Reason> {
    match want {
        Want::Unreadable { reason, message } => {
            assert!(message.contains("shop"), "{message}");
            assert!(!message.contains("secret"), "{message}");
            Some(*reason)
        }
        _ => None,
    }
}

fn first(want: Want) -> Wanted {
    match want {
        Want::Modules(mut modules) => modules.remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_literal_version_needs_nothing_else() {
    let pod = pod(
        &json!([{"name": "MODULE_VERSION", "value": " 1.0.0+build "}]),
        &json!({"module.koupleless.io/shop": "1.0.0_build"}),
        IMAGE,
    );
    assert!(references(&pod, &Pinned::new()).is_empty());
    let wanted = first(read(&pod, &Pinned::new(), &Vec::new()));
    assert_eq!(wanted.id.to_string(), "shop:1.0.0+build");
    assert_eq!(wanted.url, IMAGE);
    assert_eq!(wanted.args, ["--a"]);
}

#[test]
fn label_and_environment_must_agree_at_first_and_the_label_rules_later() {
    let pod = pod(
        &json!([{"name": "MODULE_VERSION", "value": "1.0"}]),
        &json!({"module.koupleless.io/shop": "2.0"}),
        IMAGE,
    );
    assert_eq!(reason(&read(&pod, &Pinned::new(), &Vec::new())), Some(Reason::VersionMismatch));
    let pinned = Pinned::from([("shop".to_owned(), "1.0".to_owned())]);
    assert_eq!(first(read(&pod, &pinned, &Vec::new())).id.version, "2.0");
}

#[test]
fn versions_that_lie_elsewhere_are_fetched_once() {
    let env = json!([{"name": "BIZ_VERSION", "valueFrom": {"configMapKeyRef": {"name": "versions", "key": "shop"}}}]);
    let pod = pod(&env, &json!({}), IMAGE);
    let wanted = references(&pod, &Pinned::new());
    assert_eq!(wanted.len(), 1);
    let with = |fetched| read(&pod, &Pinned::new(), &vec![(wanted[0].clone(), fetched)]);
    assert_eq!(first(with(Fetched::Value("3.1\n".to_owned()))).id.version, "3.1");
    assert_eq!(reason(&with(Fetched::Absent)), Some(Reason::MissingReference));
    assert_eq!(reason(&with(Fetched::Value(" ".to_owned()))), Some(Reason::InvalidVersion));
    assert_eq!(reason(&with(Fetched::Failed("x".to_owned()))), Some(Reason::Reading));
    assert!(worth_another_look(&with(Fetched::Absent)));
    let pinned = Pinned::from([("shop".to_owned(), "3.0".to_owned())]);
    assert!(references(&pod, &pinned).is_empty());
    assert_eq!(first(read(&pod, &pinned, &Vec::new())).id.version, "3.0");
}

#[test]
fn a_secret_that_may_not_be_read_says_so() {
    let env = json!([{"name": "MODULE_VERSION", "valueFrom": {"secretKeyRef": {"name": "versions", "key": "shop"}}}]);
    let pod = pod(&env, &json!({}), IMAGE);
    let values = vec![(references(&pod, &Pinned::new())[0].clone(), Fetched::Forbidden)];
    assert_eq!(reason(&read(&pod, &Pinned::new(), &values)), Some(Reason::SecretForbidden));
}

#[test]
fn what_a_secret_holds_is_never_shown() {
    let env = json!([{"name": "MODULE_VERSION", "valueFrom": {"secretKeyRef": {"name": "versions", "key": "shop"}}}]);
    for (labels, value, reason) in [
        (json!({}), "pass word", Reason::InvalidVersion),
        (json!({"module.koupleless.io/shop": "1.0"}), "password", Reason::VersionMismatch),
    ] {
        let pod = pod(&env, &labels, IMAGE);
        let reference = references(&pod, &Pinned::new())[0].clone();
        let values = vec![(reference, Fetched::Value(value.to_owned()))];
        match read(&pod, &Pinned::new(), &values) {
            Want::Unreadable { reason: found, message } => {
                assert_eq!(found, reason);
                assert!(!message.contains("pass"), "{message}");
                assert!(message.contains("key shop of Secret versions"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// BL-132: blanks, separators, lengths; images that are no URL.
#[test]
fn what_cannot_be_a_version_or_a_url_is_refused() {
    for version in ["a b", "1:2", "1/2", "x".repeat(200).as_str()] {
        let pod = pod(&json!([{"name": "MODULE_VERSION", "value": version}]), &json!({}), IMAGE);
        assert_eq!(
            reason(&read(&pod, &Pinned::new(), &Vec::new())),
            Some(Reason::InvalidVersion),
            "{version}"
        );
    }
    for image in ["nginx", "nginx:1.25", "", "https://"] {
        let pod = pod(&json!([{"name": "MODULE_VERSION", "value": "1"}]), &json!({}), image);
        assert_eq!(reason(&read(&pod, &Pinned::new(), &Vec::new())), Some(Reason::InvalidImage), "{image}");
    }
}

#[test]
fn half_a_module_pod_is_none_and_the_container_is_named() {
    let mut pod = pod(&json!([{"name": "MODULE_VERSION", "value": "1"}]), &json!({}), IMAGE);
    let spec = pod.spec.as_mut().unwrap();
    let mut sidecar = spec.containers[0].clone();
    sidecar.name = "istio-proxy".to_owned();
    sidecar.env = None;
    spec.containers.push(sidecar);
    match read(&pod, &Pinned::new(), &Vec::new()) {
        Want::NotAModule { message } => assert!(message.contains("istio-proxy"), "{message}"),
        other => panic!("{other:?}"),
    }
}

/// BL-130: a Pod without labels, annotations, containers and status.
#[test]
fn a_pod_of_anything_is_no_module() {
    assert!(matches!(read(&Pod::default(), &Pinned::new(), &Vec::new()), Want::NotAModule { .. }));
}

proptest::proptest! {
    /// BL-130: whatever stands in version, image and label.
    #[test]
    fn any_version_and_image_is_read_without_a_panic(version in ".{0,40}", image in ".{0,60}", label in ".{0,20}") {
        let pod = pod(&json!([{"name": "MODULE_VERSION", "value": version}]), &json!({"module.koupleless.io/shop": label}), &image);
        if let Want::Modules(modules) = read(&pod, &Pinned::new(), &Vec::new()) {
            proptest::prop_assert!(modules.iter().all(|module| !module.id.version.is_empty()));
        }
    }
}
