//! What makes one base better than another.

/// One weighted term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTerm {
    /// What is scored.
    pub term: Term,
    /// How much it counts, 1 to 100.
    pub weight: u32,
}

/// What a term looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Bases with more free slots.
    Spread,
    /// Bases with fewer free slots.
    Pack,
    /// Real hosts with fewer Pods of the same controller.
    HostSpread,
    /// Zones with fewer Pods of the same controller.
    ZoneSpread,
    /// More metaspace left.
    MetaspaceHeadroom,
    /// Fewer modules that just failed there.
    RecentFailures,
    /// Newer or older base versions.
    BaseVersion(Prefer),
    /// Bases of the newest revision of their workload.
    BaseRevision,
    /// Nothing: bases are not divided among agents, so all score alike, whatever the number of Pods.
    UnderThreshold(u32),
}

impl Term {
    /// As it stands in the policy file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Pack => "pack",
            Self::HostSpread => "hostSpread",
            Self::ZoneSpread => "zoneSpread",
            Self::MetaspaceHeadroom => "metaspaceHeadroom",
            Self::RecentFailures => "recentFailures",
            Self::BaseVersion(_) => "baseVersion",
            Self::BaseRevision => "baseRevision",
            Self::UnderThreshold(_) => "underThreshold",
        }
    }
}

/// Which end of the base versions is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Greater versions.
    #[default]
    Newest,
    /// Smaller versions.
    Oldest,
}
