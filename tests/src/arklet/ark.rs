//! What SOFAArk knows of the modules in the JVM: who is registered, in which state, and how it got there.
//! Pure: the caller owns the value and passes the time in.

use serde_json::{Value, json};

use super::metaspace::Footprint;
use super::options::{Records, Release, SecondVersion};

/// State of a module as arklet lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BizState {
    /// Being started.
    Resolved,
    /// Started, and the one that is called.
    Activated,
    /// Started, but another version is called.
    Deactivated,
    /// Failed to start or to stop, and kept.
    Broken,
}

impl BizState {
    /// The word on the wire of current releases.
    pub fn word(self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::Activated => "activated",
            Self::Deactivated => "deactivated",
            Self::Broken => "broken",
        }
    }
}

/// One change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    time: i64,
    state: BizState,
    reason: &'static str,
    message: String,
}

/// A module in the JVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Biz {
    pub name: String,
    pub version: String,
    pub main_class: String,
    pub context_path: String,
    pub priority: i64,
    pub work_dir: String,
    pub state: BizState,
    pub records: Vec<Record>,
    pub footprint: Footprint,
    pub leaks: bool,
    pub stop_millis: u64,
    pub stop_failure: Option<String>,
}

impl Biz {
    pub(super) fn identity(&self) -> String {
        format!("{}:{}", self.name, self.version)
    }

    fn turn(&mut self, time: i64, state: BizState, reason: &'static str, message: String) {
        self.state = state;
        self.records.push(Record { time, state, reason, message });
    }

    fn state_word(state: BizState, release: Release) -> String {
        if release.upper_case { state.word().to_uppercase() } else { state.word().to_owned() }
    }

    fn records_value(&self, release: Release) -> Option<Value> {
        let render = |record: &Record| match release.records {
            Records::Full => json!({
                "changeTime": record.time,
                "message": record.message,
                "reason": record.reason,
                "state": Self::state_word(record.state, release),
            }),
            Records::Hollow | Records::Absent => json!({}),
        };
        (release.records != Records::Absent).then(|| self.records.iter().map(render).collect())
    }

    /// An element of `queryAllBiz`.
    pub(super) fn listed(&self, release: Release) -> Value {
        let mut item = json!({
            "bizName": self.name,
            "bizState": Self::state_word(self.state, release),
            "bizVersion": self.version,
            "mainClass": self.main_class,
            "webContextPath": self.context_path,
        });
        if let (Some(fields), Some(records)) = (item.as_object_mut(), self.records_value(release)) {
            fields.insert("bizStateRecords".to_owned(), records);
        }
        item
    }

    /// An element of `health`.
    pub(super) fn summary(&self, release: Release) -> Value {
        json!({
            "bizName": self.name,
            "bizState": Self::state_word(self.state, release),
            "bizVersion": self.version,
            "webContextPath": self.context_path,
        })
    }

    /// The element of `bizInfos` in the reply to an install.
    pub(super) fn described(&self, release: Release) -> Value {
        let mut info = self.listed(release);
        let more = json!({
            "attributes": {},
            "bizTempWorkDir": self.work_dir,
            "bizUrl": format!("file:{}/", self.work_dir),
            "classPath": [format!("file:{}/", self.work_dir), format!("file:{}/lib", self.work_dir)],
            "declaredMode": false,
            "denyImportClasses": [],
            "denyImportPackageNodes": [],
            "denyImportPackageStems": [],
            "denyImportPackages": [],
            "denyImportResources": [],
            "denyPrefixImportResourceStems": [],
            "denySuffixImportResourceStems": [],
            "identity": self.identity(),
            "injectExportPackages": [],
            "injectPluginDependencies": [],
            "priority": self.priority,
        });
        if let (Some(fields), Value::Object(more)) = (info.as_object_mut(), more) {
            fields.extend(more);
        }
        info
    }
}

/// Why a module cannot be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopRefusal {
    Unknown,
    Starting,
}

/// Why a version cannot be made the active one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SwitchRefusal {
    Unknown,
    State(BizState),
}

/// The registry.
#[derive(Debug, Default)]
pub(super) struct Ark {
    modules: Vec<Biz>,
}

impl Ark {
    /// Every module, in the order in which a Java hash map yields them.
    pub(super) fn modules(&self) -> Vec<&Biz> {
        let mut modules: Vec<&Biz> = self.modules.iter().collect();
        modules.sort_by_key(|biz| (hash_bucket(&biz.name), hash_bucket(&biz.version)));
        modules
    }

    pub(super) fn find(&self, name: &str, version: &str) -> Option<&Biz> {
        self.modules.iter().find(|biz| biz.name == name && biz.version == version)
    }

    fn find_mut(&mut self, name: &str, version: &str) -> Option<&mut Biz> {
        self.modules.iter_mut().find(|biz| biz.name == name && biz.version == version)
    }

    pub(super) fn versions(&self, name: &str) -> Vec<String> {
        self.modules.iter().filter(|biz| biz.name == name).map(|biz| biz.version.clone()).collect()
    }

    /// Registers a module that starts now; false when its identity is taken, in whatever state.
    pub(super) fn register(&mut self, mut biz: Biz, now: i64) -> bool {
        if self.find(&biz.name, &biz.version).is_some() {
            return false;
        }
        biz.records.clear();
        biz.turn(now, BizState::Resolved, "Created", String::new());
        self.modules.push(biz);
        true
    }

    /// The module's main has returned. Gives the module as it stands then.
    pub(super) fn started(
        &mut self,
        name: &str,
        version: &str,
        now: i64,
        second: SecondVersion,
    ) -> Option<Biz> {
        let rival = self
            .modules
            .iter()
            .find(|biz| biz.name == name && biz.version != version && biz.state == BizState::Activated)
            .map(Biz::identity);
        let biz = self.find_mut(name, version)?;
        let identity = biz.identity();
        match (second, rival) {
            (SecondVersion::Deactivated, Some(_)) => {
                biz.turn(now, BizState::Deactivated, "Started", "start but is deactivated".to_owned());
            }
            (SecondVersion::TakesOver, Some(old)) => {
                biz.turn(now, BizState::Activated, "Started", String::new());
                self.deactivate(&old, &identity, now);
            }
            _ => biz.turn(now, BizState::Activated, "Started", String::new()),
        }
        self.find(name, version).cloned()
    }

    fn deactivate(&mut self, old: &str, new: &str, now: i64) {
        if let Some(biz) = self.modules.iter_mut().find(|biz| biz.identity() == old) {
            biz.turn(now, BizState::Deactivated, "Switched", format!("switch to new version {new}"));
        }
    }

    /// The module's main has thrown, and the base keeps such modules.
    pub(super) fn broke(&mut self, name: &str, version: &str, now: i64, reason: &'static str, trace: String) {
        if let Some(biz) = self.find_mut(name, version) {
            biz.turn(now, BizState::Broken, reason, trace);
        }
    }

    /// Begins to stop a module.
    pub(super) fn stopping(&mut self, name: &str, version: &str, now: i64) -> Result<Biz, StopRefusal> {
        let biz = self.find_mut(name, version).ok_or(StopRefusal::Unknown)?;
        if biz.state == BizState::Resolved {
            return Err(StopRefusal::Starting);
        }
        biz.turn(now, BizState::Deactivated, "Killing", String::new());
        Ok(biz.clone())
    }

    pub(super) fn remove(&mut self, name: &str, version: &str) -> Option<Biz> {
        let place = self.modules.iter().position(|biz| biz.name == name && biz.version == version)?;
        Some(self.modules.remove(place))
    }

    /// Makes a version the active one of its name.
    pub(super) fn switch(&mut self, name: &str, version: &str, now: i64) -> Result<(), SwitchRefusal> {
        let state = self.find(name, version).ok_or(SwitchRefusal::Unknown)?.state;
        match state {
            BizState::Activated => return Ok(()),
            BizState::Deactivated => {}
            BizState::Resolved | BizState::Broken => return Err(SwitchRefusal::State(state)),
        }
        let identity = format!("{name}:{version}");
        let old = self
            .modules
            .iter()
            .find(|biz| biz.name == name && biz.state == BizState::Activated)
            .map(Biz::identity);
        if let Some(old) = &old {
            self.deactivate(old, &identity, now);
        }
        if let Some(biz) = self.find_mut(name, version) {
            let from = old.map_or_else(String::new, |old| format!("switch from old version: {old}"));
            biz.turn(now, BizState::Activated, "Switched", from);
        }
        Ok(())
    }
}

/// Place of a string among the sixteen buckets of a small `java.util.HashMap`.
fn hash_bucket(text: &str) -> u32 {
    let hash =
        text.encode_utf16().fold(0_u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(u32::from(unit)));
    (hash ^ (hash >> 16)) & 15
}

#[cfg(test)]
mod tests {
    use super::*;

    fn biz(version: &str) -> Biz {
        Biz {
            name: "shop".to_owned(),
            version: version.to_owned(),
            main_class: "com.acme.Main".to_owned(),
            context_path: "shop".to_owned(),
            priority: 100,
            work_dir: "/tmp/x".to_owned(),
            state: BizState::Resolved,
            records: Vec::new(),
            footprint: Footprint::default(),
            leaks: false,
            stop_millis: 0,
            stop_failure: None,
        }
    }

    fn ark_with(versions: &[&str], second: SecondVersion) -> Ark {
        let mut ark = Ark::default();
        for version in versions {
            assert!(ark.register(biz(version), 1));
            ark.started("shop", version, 2, second).unwrap();
        }
        ark
    }

    fn states(ark: &Ark) -> Vec<(String, BizState)> {
        let mut states: Vec<_> = ark.modules().iter().map(|biz| (biz.version.clone(), biz.state)).collect();
        states.sort_by(|left, right| left.0.cmp(&right.0));
        states
    }

    #[test]
    fn the_flags_decide_on_a_second_version() {
        use BizState::{Activated, Deactivated};
        let table = [
            (SecondVersion::Deactivated, Activated, Deactivated),
            (SecondVersion::BothActive, Activated, Activated),
            (SecondVersion::TakesOver, Deactivated, Activated),
        ];
        for (second, first_state, second_state) in table {
            let ark = ark_with(&["1", "2"], second);
            assert_eq!(
                states(&ark),
                [("1".to_owned(), first_state), ("2".to_owned(), second_state)],
                "{second:?}"
            );
        }
    }

    #[test]
    fn a_switch_names_both_sides() {
        let mut ark = ark_with(&["1", "2"], SecondVersion::Deactivated);
        ark.switch("shop", "2", 3).unwrap();
        let last = |version: &str| ark.find("shop", version).unwrap().records.last().unwrap().message.clone();
        assert_eq!(last("2"), "switch from old version: shop:1");
        assert_eq!(last("1"), "switch to new version shop:2");
        assert_eq!(ark.switch("shop", "9", 3), Err(SwitchRefusal::Unknown));
    }

    #[test]
    fn a_starting_module_can_be_neither_stopped_nor_switched_to() {
        let mut ark = Ark::default();
        ark.register(biz("1"), 1);
        assert_eq!(ark.stopping("shop", "1", 2).unwrap_err(), StopRefusal::Starting);
        assert_eq!(ark.switch("shop", "1", 2), Err(SwitchRefusal::State(BizState::Resolved)));
        assert!(!ark.register(biz("1"), 2));
    }

    #[test]
    fn the_release_shapes_the_records() {
        let ark = ark_with(&["1"], SecondVersion::Deactivated);
        let listed = |release| ark.find("shop", "1").unwrap().listed(release);
        assert_eq!(listed(Release::V1_4_2)["bizStateRecords"][1]["state"], "activated");
        assert_eq!(listed(Release::V1_3_1)["bizStateRecords"], json!([{}, {}]));
        assert_eq!(listed(Release::V1_2_3)["bizState"], "ACTIVATED");
        assert!(listed(Release::V1_0_1).get("bizStateRecords").is_none());
    }
}
