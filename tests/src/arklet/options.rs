//! How a simulated base is set up: the flags of its JVM and the release of arklet in it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use jiff::SignedDuration;

use super::metaspace::Footprint;

/// What `bizStateRecords` looks like in `queryAllBiz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// Time, state, reason and message (1.3.3 and later).
    Full,
    /// One `{}` per record (1.1.0 to 1.3.2).
    Hollow,
    /// No such field (before 1.1.0).
    Absent,
}

/// The field that names the base in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseField {
    /// `baseIdentity` (1.3.3 and later).
    Identity,
    /// `baseID` (1.3.2).
    Id,
    /// None (before 1.3.2).
    Absent,
}

/// What the release of arklet makes visible on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a feature of its own, with its own first release")]
pub struct Release {
    /// Shape of the state records.
    pub records: Records,
    /// Enum values in capitals, `ACTIVATED` for `activated` (before 1.3.0).
    pub upper_case: bool,
    /// `batchInstallBiz` is known (1.4.1).
    pub batch: bool,
    /// `installStrategy` is honoured (1.2.3).
    pub strategy: bool,
    /// `health` has the three metaspace figures (1.2.3).
    pub metaspace: bool,
    /// Field that names the base.
    pub base: BaseField,
}

impl Release {
    /// 1.4.2, and 2.1.11 of the line for newer JVMs.
    pub const V1_4_2: Self = Self {
        records: Records::Full,
        upper_case: false,
        batch: true,
        strategy: true,
        metaspace: true,
        base: BaseField::Identity,
    };
    /// 1.3.3, the oldest release with timestamps.
    pub const V1_3_3: Self = Self { batch: false, ..Self::V1_4_2 };
    /// 1.3.1: records are hollow and the base has no name.
    pub const V1_3_1: Self = Self { records: Records::Hollow, base: BaseField::Absent, ..Self::V1_3_3 };
    /// 1.2.3: capitals.
    pub const V1_2_3: Self = Self { upper_case: true, ..Self::V1_3_1 };
    /// 1.0.1: no records, no strategy, no metaspace.
    pub const V1_0_1: Self =
        Self { records: Records::Absent, strategy: false, metaspace: false, ..Self::V1_2_3 };
}

/// What happens when a second version of a module is installed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecondVersion {
    /// It stays deactivated.
    #[default]
    Deactivated,
    /// Both are active (`sofa.ark.activate.multi.biz.version.enable=true`).
    BothActive,
    /// It takes over (`activate.new.module=true`).
    TakesOver,
}

/// What becomes of a base that a module has brought down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterExit {
    /// It starts again after this time, without its modules.
    Restart(Duration),
    /// It stays down until [`Simulator::boot`](super::Simulator::boot).
    StayDown,
}

/// The set-up of one simulated base.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of a real base")]
pub struct Options {
    /// Where arklet listens; port 0 takes any free port.
    pub addr: SocketAddr,
    /// Take the next free port of the following 99 when the port is in use.
    pub port_drift: bool,
    /// HTTP workers; a real base has two per core.
    pub workers: usize,
    /// What a second version of a module becomes.
    pub second_version: SecondVersion,
    /// A module that failed to start stays `broken` (`sofa.ark.auto.uninstall.when.failed.enable=false`).
    pub keep_broken: bool,
    /// A module that failed to stop stays `broken`
    /// (`sofa.ark.remove.biz.instance.when.stop.failed.enable=false`).
    pub keep_broken_on_stop: bool,
    /// The release of arklet.
    pub release: Release,
    /// `-XX:MaxMetaspaceSize` in bytes; none is reported as -1.
    pub max_metaspace: Option<u64>,
    /// What the base itself loads.
    pub own_footprint: Footprint,
    /// What a module loads whose jar does not say.
    pub module_footprint: Footprint,
    /// How far the clock of the base's machine is ahead of the right time.
    pub clock_offset: SignedDuration,
    /// Name of the master biz.
    pub master_name: String,
    /// Version of the master biz; a real base always says 1.0.0.
    pub master_version: String,
    /// Ark plugins of the base: name and version.
    pub plugins: Vec<(String, String)>,
    /// The JVM's `java.version`.
    pub java_version: String,
    /// `baseIdentity`; the listening IP unless set.
    pub identity: Option<String>,
    /// Port on which modules serve HTTP that name none in their jar; none: they serve nothing.
    pub module_port: Option<u16>,
    /// Prefix of the URL that heartbeats go to; none: no heartbeats.
    pub heartbeat: Option<String>,
    /// Between two heartbeats: 12 s since 1.4.1, 120 s before.
    pub heartbeat_period: Duration,
    /// What becomes of the base when a module brings it down.
    pub after_exit: AfterExit,
    /// Further calls after a full metaspace before every connection is reset.
    pub calls_after_exhaustion: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            port_drift: false,
            workers: 4,
            second_version: SecondVersion::default(),
            keep_broken: false,
            keep_broken_on_stop: false,
            release: Release::V1_4_2,
            max_metaspace: Some(256 << 20),
            own_footprint: Footprint { bytes: 19_851_416, classes: 4390 },
            module_footprint: Footprint { bytes: 408_200, classes: 60 },
            clock_offset: SignedDuration::ZERO,
            master_name: "base".to_owned(),
            master_version: "1.0.0".to_owned(),
            plugins: vec![("web-ark-plugin".to_owned(), "2.2.16".to_owned())],
            java_version: "17.0.15".to_owned(),
            identity: None,
            module_port: None,
            heartbeat: None,
            heartbeat_period: Duration::from_secs(12),
            after_exit: AfterExit::Restart(Duration::ZERO),
            calls_after_exhaustion: 6,
        }
    }
}

impl Options {
    /// The default set-up on an address.
    pub fn at(addr: SocketAddr) -> Self {
        Self { addr, ..Self::default() }
    }
}
