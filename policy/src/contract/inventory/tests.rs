use proptest::prelude::*;

use super::*;

fn module(name: &str, owner: Option<&str>) -> InventoryModule {
    InventoryModule {
        name: name.into(),
        version: "1.0".into(),
        state: ModuleState::Activated,
        context_path: None,
        owner: owner.map(|uid| Owner { namespace: "shop".into(), name: "p".into(), uid: uid.into() }),
        artifact_hash: None,
    }
}

#[test]
fn the_written_form_is_compact_and_stable() {
    let inventory = Inventory {
        modules: vec![module("shop", Some("u1")), module("base", Some("u1")), module("cart", None)],
        metaspace: Some(Metaspace { max: Some(100), used: 60, lowest: 40 }),
        failures: vec![RecentFailure { module: "x".into(), version: "2".into(), until: None }],
        provides: BTreeMap::from([("jdk".into(), "17".into())]),
        ..Inventory::default()
    };
    assert_eq!(
        inventory.to_annotation(),
        r#"{"v":1,"modules":[{"name":"shop","version":"1.0","state":"activated","owner":"shop/p/u1"},{"name":"base","version":"1.0","state":"activated","owner":"shop/p/u1"},{"name":"cart","version":"1.0","state":"activated"}],"metaspace":{"max":100,"used":60,"lowest":40},"failures":[{"module":"x","version":"2"}],"provides":{"jdk":"17"}}"#
    );
    assert_eq!(Inventory::default().to_annotation(), r#"{"v":1}"#);
}

/// BL-141: what a newer release wrote is read by this one.
#[test]
fn unknown_fields_and_states_are_tolerated() {
    let read = Inventory::parse(
        r#"{"v":1,"later":[1],"modules":[{"name":"a","version":"1","state":"frozen","x":{}}]}"#,
    );
    assert_eq!(read.unwrap().modules[0].state, ModuleState::Unknown);
}

#[test]
fn what_cannot_be_read_says_why() {
    assert!(matches!(Inventory::parse("{"), Err(InventoryError::Malformed(_))));
    assert!(matches!(Inventory::parse("{}"), Err(InventoryError::Malformed(_))));
    assert_eq!(Inventory::parse(r#"{"v":2}"#), Err(InventoryError::Format(2)));
    assert_eq!(Inventory::parse(&" ".repeat(LONGEST + 1)), Err(InventoryError::TooLong(LONGEST + 1)));
    assert!(matches!(
        Inventory::parse(r#"{"v":1,"modules":[{"name":"a","version":"1","owner":"a/b"}]}"#),
        Err(InventoryError::Malformed(_))
    ));
}

#[test]
fn foreign_modules_go_first_when_it_does_not_fit() {
    let mut modules: Vec<_> = (0..700).map(|n| module(&format!("foreign-{n:04}"), None)).collect();
    modules
        .extend((0..400).map(|n| module(&format!("ours-{n:04}"), Some("0123456789-0123456789-0123456789"))));
    let failures = vec![RecentFailure { module: "x".into(), version: "2".into(), until: None }];
    let inventory = Inventory { modules, failures, ..Inventory::default() };
    let text = inventory.to_annotation();
    assert!(text.len() <= LONGEST && text.len() > LONGEST - 200, "{} bytes", text.len());
    let read = Inventory::parse(&text).unwrap();
    assert!(read.truncated);
    assert_eq!(read.modules.iter().filter(|m| m.owner.is_some()).count(), 400);
    assert!(read.modules.iter().any(|m| m.owner.is_none()), "as many foreign ones as fit");
    assert_eq!(read.failures.len(), 1);
    let ours: Vec<_> = read.modules.iter().filter(|m| m.owner.is_some()).map(|m| m.name.clone()).collect();
    assert!(ours.is_sorted() && &*ours[0] == "ours-0000", "in the order given");
}

#[test]
fn even_failures_and_provides_are_bounded() {
    let failures = (0..3000)
        .map(|n| RecentFailure { module: format!("m{n}").into(), version: "1".into(), until: None })
        .collect();
    let provides = (0..3000).map(|n| (format!("capability-{n}"), "1".repeat(20))).collect();
    let text = Inventory { failures, provides, ..Inventory::default() }.to_annotation();
    assert!(text.len() <= LONGEST);
    assert!(Inventory::parse(&text).unwrap().truncated);
}

#[test]
fn metaspace_is_rounded_up_to_steps_of_max() {
    let rounded = |max, used, lowest| Metaspace { max, used, lowest }.rounded();
    assert_eq!(rounded(Some(100), 61, 40), Metaspace { max: Some(100), used: 65, lowest: 40 });
    assert_eq!(rounded(Some(100), 99, 98), Metaspace { max: Some(100), used: 100, lowest: 100 });
    assert_eq!(rounded(None, 1, 0), Metaspace { max: None, used: 16 << 20, lowest: 0 });
}

#[test]
fn artifact_hashes_tell_parts_apart() {
    let hash = |image: &str, args: &[&str]| {
        artifact_hash(image, &args.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(hash("a", &["b"]), hash("a", &["b"]));
    assert_ne!(hash("a", &["b"]), hash("ab", &[]));
    assert_ne!(hash("a", &["b", "c"]), hash("a", &["bc"]));
    assert_eq!(hash("a", &[]).len(), 16);
}

fn any_inventory() -> impl Strategy<Value = Inventory> {
    let owner = prop::option::of("[a-z]{1,5}")
        .prop_map(|uid| uid.map(|uid| Owner { namespace: "ns".into(), name: "pod".into(), uid: uid.into() }));
    let state = prop_oneof![
        Just(ModuleState::Resolved),
        Just(ModuleState::Activated),
        Just(ModuleState::Deactivated),
        Just(ModuleState::Broken),
        Just(ModuleState::Unknown)
    ];
    let module = ("\\PC{1,8}", "[0-9.]{1,5}", state, prop::option::of("/[a-z]{0,4}"), owner).prop_map(
        |(name, version, state, path, owner)| InventoryModule {
            name: name.into(),
            version: version.into(),
            state,
            context_path: path.map(Into::into),
            owner,
            artifact_hash: None,
        },
    );
    (
        prop::collection::vec(module, 0..8),
        prop::option::of((prop::option::of(any::<u64>()), any::<u64>(), any::<u64>())),
        prop::collection::btree_map("[a-z]{1,4}", "\\PC{0,6}", 0..4),
        any::<(bool, bool)>(),
    )
        .prop_map(|(modules, metaspace, provides, (multi_version, truncated))| Inventory {
            modules,
            metaspace: metaspace.map(|(max, used, lowest)| Metaspace { max, used, lowest }),
            failures: vec![],
            provides,
            context_path: None,
            multi_version,
            truncated,
        })
}

proptest! {
    #[test]
    fn what_is_written_reads_back(inventory in any_inventory()) {
        let read = Inventory::parse(&inventory.to_annotation()).unwrap();
        prop_assert_eq!(read, inventory);
    }

    #[test]
    fn nothing_panics(text in "\\PC{0,200}") {
        let _ = Inventory::parse(&text);
    }
}
