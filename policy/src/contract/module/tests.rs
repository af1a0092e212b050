use super::*;

fn kind(text: &str) -> PodKind {
    classify(&serde_saphyr::from_str::<Pod>(text).unwrap())
}

fn module_pod_of(text: &str) -> ModulePod {
    match kind(text) {
        PodKind::Module(pod) => *pod,
        other => panic!("{other:?}"),
    }
}

const TOLERATION: &str = "{key: schedule.koupleless.io/virtual-node, value: 'true', effect: NoExecute}";

fn pod(metadata: &str, containers: &str) -> String {
    format!("{{metadata: {metadata}, spec: {{tolerations: [{TOLERATION}], containers: [{containers}]}}}}")
}

#[test]
fn a_whole_module_pod() {
    let read = module_pod_of(
        r#"
metadata:
  namespace: shop
  name: shop-7d9f-abcde
  uid: u1
  labels: {pod-template-hash: 7d9f, module.koupleless.io/shop: 1.4.0_b1}
  annotations: {stowage.dev/base-version: ">=2.1 <3", stowage.dev/stack: java, stowage.dev/metaspace: 64Mi}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: shop-7d9f, uid: r1, controller: true}]
spec:
  nodeName: n1
  tolerations: [{key: schedule.koupleless.io/virtual-node, operator: Exists}]
  containers:
  - {name: shop, image: "https://repo.example.com/shop.jar", args: ["--x"], env: [{name: MODULE_VERSION, value: 1.4.0+b1}]}
  - {name: cart, image: "https://repo.example.com/cart.jar", env: [{name: BIZ_VERSION, value: "0.9"}, {name: MODULE_NAME, value: cartService}]}
status: {phase: Running}
"#,
    );
    assert_eq!(
        (&*read.key(), &*read.uid, read.node_name.as_deref()),
        ("shop/shop-7d9f-abcde", "u1", Some("n1"))
    );
    assert_eq!(read.base_version.as_ref().map(ToString::to_string).as_deref(), Some("[2.1,3)"));
    assert_eq!((read.stack.as_deref(), read.metaspace), (Some("java"), Some(64 << 20)));
    assert_eq!(read.template, Some(TemplateKey { owner_uid: "r1".into(), hash: "7d9f".into() }));
    assert!(read.malformed.is_empty() && !read.terminal && !read.deleting);
    let [shop, cart] = &read.modules[..] else { panic!("{:?}", read.modules) };
    assert_eq!(
        (&*shop.name, shop.known_version(), shop.args.as_slice()),
        ("shop", Some("1.4.0+b1"), &["--x".to_owned()][..])
    );
    assert!(!shop.version_mismatch(), "`_` stands for `+`");
    assert_eq!((&*cart.name, &*cart.container, cart.known_version()), ("cartService", "cart", Some("0.9")));
}

/// BL-135: a version without the toleration is told as that, and so is the other half.
#[test]
fn half_a_module_pod_names_what_is_missing() {
    let versioned = "{name: a, env: [{name: MODULE_VERSION, value: '1'}]}";
    let incomplete = |text: &str| match kind(text) {
        PodKind::Incomplete(Incomplete { container, missing }) => {
            (container.as_deref().map(str::to_owned), missing)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(
        incomplete(&pod("{}", &format!("{versioned}, {{name: istio-proxy}}"))),
        (Some("istio-proxy".into()), Missing::Version)
    );
    assert_eq!(
        incomplete(&format!("{{metadata: {{}}, spec: {{containers: [{versioned}]}}}}")),
        (None, Missing::Toleration)
    );
    let empty = "{name: a, env: [{name: MODULE_VERSION, value: ''}]}";
    assert_eq!(incomplete(&pod("{}", empty)), (Some("a".into()), Missing::Version), "never an empty version");
    let named = "{name: a, env: [{name: MODULE_VERSION, value: '1'}, {name: MODULE_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}";
    assert_eq!(incomplete(&pod("{}", named)), (Some("a".into()), Missing::Name));
}

#[test]
fn tolerating_everything_does_not_count() {
    let text = "{metadata: {}, spec: {tolerations: [{operator: Exists}], containers: [{name: fluentd}]}}";
    assert_eq!(kind(text), PodKind::Foreign);
    assert_eq!(kind("{metadata: {}}"), PodKind::Foreign);
}

#[test]
fn who_tolerates_a_cordon() {
    let tolerates = |more: &str| {
        let text = pod("{}", "{name: a, env: [{name: MODULE_VERSION, value: '1'}]}");
        module_pod_of(&text.replace(TOLERATION, &format!("{TOLERATION}, {more}"))).tolerates_cordon
    };
    let key = "key: node.kubernetes.io/unschedulable";
    for more in ["operator: Exists", "operator: Exists, effect: NoSchedule"] {
        assert!(tolerates(&format!("{{{more}}}")), "{more}");
    }
    for more in
        ["operator: Exists", "operator: Exists, effect: NoSchedule", "effect: NoSchedule", "operator: Equal"]
    {
        assert!(tolerates(&format!("{{{key}, {more}}}")), "{more}");
    }
    for more in ["operator: Exists, effect: NoExecute", "value: 'true'", "operator: Lt"] {
        assert!(!tolerates(&format!("{{{key}, {more}}}")), "{more}");
    }
    for more in
        ["{key: other, operator: Exists}", "{operator: Equal}", "{operator: Exists, effect: NoExecute}"]
    {
        assert!(!tolerates(more), "{more}");
    }
}

#[test]
fn versions_from_elsewhere() {
    let from = |source: &str| format!("{{name: a, env: [{{name: MODULE_VERSION, valueFrom: {source}}}]}}");
    let version =
        |metadata: &str, source: &str| module_pod_of(&pod(metadata, &from(source))).modules.remove(0).version;
    assert_eq!(
        version("{}", "{configMapKeyRef: {name: m, key: k}}"),
        DeclaredVersion::Reference(Reference::ConfigMap { name: "m".into(), key: "k".into() })
    );
    assert_eq!(
        version("{labels: {module.koupleless.io/a: 1_x}}", "{secretKeyRef: {name: m, key: k}}"),
        DeclaredVersion::Label {
            version: "1+x".into(),
            reference: Reference::Secret { name: "m".into(), key: "k".into() }
        }
    );
    let field = "{fieldRef: {fieldPath: \"metadata.labels['v']\"}}";
    assert_eq!(version("{labels: {v: '3.1'}}", field), DeclaredVersion::Literal("3.1".into()));
    assert_eq!(
        version("{}", field),
        DeclaredVersion::Reference(Reference::Field("metadata.labels['v']".into()))
    );
    assert_eq!(
        version("{annotations: {v: '4'}}", "{fieldRef: {fieldPath: \"metadata.annotations['v']\"}}"),
        DeclaredVersion::Literal("4".into())
    );
}

#[test]
fn label_and_environment_must_agree() {
    let labelled = |label: &str, version: &str| {
        let container = format!("{{name: a, env: [{{name: MODULE_VERSION, value: '{version}'}}]}}");
        module_pod_of(&pod(&format!("{{labels: {{module.koupleless.io/a: '{label}'}}}}"), &container))
            .modules
            .remove(0)
    };
    assert!(!labelled("1.0_b", "1.0+b").version_mismatch());
    assert!(!labelled("1.0_b", "1.0_b").version_mismatch());
    let differing = labelled("2.0_b", "1.0");
    assert!(differing.version_mismatch());
    assert_eq!(differing.labelled_version("1.0").as_deref(), Some("2.0+b"), "the label rules in place");
    assert_eq!(labelled("1.0_b", "1.0_b").labelled_version("1.0_b").as_deref(), Some("1.0_b"));
}

#[test]
fn koupleless_labels_are_no_modules() {
    let text = pod(
        "{labels: {module.koupleless.io/name: a, module.koupleless.io/version: '9'}}",
        "{name: version, env: [{name: BIZ_VERSION, value: '1'}]}",
    );
    let read = module_pod_of(&text);
    assert_eq!(read.modules[0].label, None);
    assert!(!read.modules[0].version_mismatch());
}

#[test]
fn malformed_annotations_are_named() {
    let text = pod(
        "{annotations: {stowage.dev/base-version: '[1', stowage.dev/requires: 'jdk >=', stowage.dev/context-path: 'a b'}}",
        "{name: a, env: [{name: BIZ_VERSION, value: '1'}]}",
    );
    assert_eq!(
        module_pod_of(&text).malformed,
        ["stowage.dev/base-version", "stowage.dev/requires", "stowage.dev/context-path"]
    );
}

#[test]
fn context_paths_reach_their_modules() {
    let two = "{name: a, env: [{name: BIZ_VERSION, value: '1'}]}, {name: b, env: [{name: BIZ_VERSION, value: '1'}]}";
    let paths = |annotation: &str, containers: &str| {
        let read = module_pod_of(&pod(
            &format!("{{annotations: {{stowage.dev/context-path: '{annotation}'}}}}"),
            containers,
        ));
        (
            read.modules.iter().map(|m| m.context_path.as_deref().map(str::to_owned)).collect::<Vec<_>>(),
            read.malformed.len(),
        )
    };
    assert_eq!(paths("b=shop/, a=/cart", two), (vec![Some("/cart".into()), Some("/shop".into())], 0));
    assert_eq!(paths("/x", two).1, 1, "whose path it is must be said");
    assert_eq!(paths("c=/x", two).1, 1, "no such module");
    assert_eq!(paths("x", "{name: a, env: [{name: BIZ_VERSION, value: '1'}]}"), (vec![Some("/x".into())], 0));
}

#[test]
fn the_last_variable_of_a_name_counts() {
    let text =
        pod("{}", "{name: a, env: [{name: MODULE_VERSION, value: '1'}, {name: MODULE_VERSION, value: '2'}]}");
    assert_eq!(module_pod_of(&text).modules[0].known_version(), Some("2"));
}
