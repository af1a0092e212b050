//! Whether the metaspace of a base is used up for good. Pure.
//!
//! A JVM does not give metaspace back when a module goes, but when it collects, and it collects only under pressure: a
//! healthy one climbs to 97 % and more before it falls back. So one figure proves nothing, and an idle JVM never collects.
//! What counts is the lowest use after each of the last cycles of install and uninstall, and that a collection had its
//! chance: classes were unloaded in that time, or the use stood where a JVM must have collected.

use std::collections::VecDeque;

/// In hundredths of a percent of the maximum: above it a JVM has collected, or does with the next class.
const PRESSURE: u32 = 9_700;
/// Cycles remembered; a policy that asks for more never finds an overload by figures.
const LONGEST: usize = 1_000;

/// What a base says of its JVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of metaspace in use.
    pub used: u64,
    /// Its limit in bytes; without one there is nothing to compare with.
    pub max: Option<u64>,
    /// Classes unloaded since the JVM started, where it tells.
    pub unloaded: Option<i64>,
}

/// What the policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `overload.metaspaceHighPercent`.
    pub high_percent: u32,
    /// `overload.cycles`.
    pub cycles: u32,
}

/// Why a base is overloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// An install ended in an `OutOfMemoryError` of metaspace or compressed class space.
    Exhausted,
    /// The lowest use stayed above the limit over the last cycles.
    NotFreed,
}

impl Cause {
    /// Stable code for Events, conditions and docs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "MetaspaceExhausted",
            Self::NotFreed => "MetaspaceNotFreed",
        }
    }
}

/// The verdict on a base.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Load {
    /// Nothing is proven.
    #[default]
    Unknown,
    /// Its use was at or under the limit after the last cycle.
    Fine,
    /// It must be replaced.
    Overloaded(Cause),
}

/// Watches one JVM, from its start or from when the agent came.
#[derive(Debug, Clone, Default)]
pub struct Detector {
    exhausted: bool,
    /// Modules were uninstalled, and nothing was installed since.
    emptied: bool,
    unloaded: Option<i64>,
    /// Times after a cycle, up to the next one.
    ended: VecDeque<Window>,
    open: Option<Window>,
    /// The last figure, before the first cycle too.
    last: Option<u32>,
}

/// The time from the end of a cycle to the end of the next, as far as it was looked at.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// In hundredths of a percent of the maximum.
    lowest: Option<u32>,
    /// Classes were unloaded between two looks in this time. What a collection before the last cycle left may have grown
    /// by what that cycle let go.
    collected: bool,
}

impl Detector {
    /// The base told its figures.
    pub fn sample(&mut self, sample: Sample) {
        let collected = self.unloaded.is_some() && sample.unloaded > self.unloaded;
        self.unloaded = sample.unloaded.or(self.unloaded);
        let Some(share) = sample.max.and_then(|max| share(sample.used, max)) else { return };
        self.last = Some(share);
        if let Some(open) = &mut self.open {
            open.collected |= collected && open.lowest.is_some();
            open.lowest = Some(open.lowest.map_or(share, |lowest| lowest.min(share)));
        }
    }

    /// A module was installed.
    pub fn installed(&mut self) {
        self.emptied = false;
    }

    /// A module was uninstalled: a cycle ends, unless it had ended already and nothing came since.
    pub fn uninstalled(&mut self) {
        if std::mem::replace(&mut self.emptied, true) {
            return;
        }
        // Cycles that nobody looked between are one.
        if let Some(ended) = self.open.replace(Window::default()).filter(|ended| ended.lowest.is_some()) {
            if self.ended.len() >= LONGEST {
                self.ended.pop_front();
            }
            self.ended.push_back(ended);
        }
    }

    /// An install ended in an `OutOfMemoryError` of class memory.
    pub fn exhausted(&mut self) {
        self.exhausted = true;
    }

    /// The JVM started anew.
    pub fn restarted(&mut self) {
        *self = Self::default();
    }

    /// What is known now.
    pub fn load(&self, limits: Limits) -> Load {
        if self.exhausted {
            return Load::Overloaded(Cause::Exhausted);
        }
        let high = limits.high_percent.saturating_mul(100);
        if self.last.is_some_and(|last| last <= high) {
            return Load::Fine;
        }
        let wanted = usize::try_from(limits.cycles.max(1)).unwrap_or(usize::MAX);
        let windows = self.ended.iter().chain(&self.open).filter(|window| window.lowest.is_some());
        let last: Vec<&Window> = windows.rev().take(wanted).collect();
        let above = |limit: u32| last.iter().all(|window| window.lowest.is_some_and(|lowest| lowest > limit));
        let enough = last.len() == wanted && above(high);
        if enough && (last.iter().any(|window| window.collected) || above(high.max(PRESSURE))) {
            return Load::Overloaded(Cause::NotFreed);
        }
        Load::Unknown
    }
}

/// In hundredths of a percent.
fn share(used: u64, max: u64) -> Option<u32> {
    let share = u128::from(used).checked_mul(10_000)?.checked_div(u128::from(max))?;
    u32::try_from(share.min(10_000)).ok()
}

#[cfg(test)]
mod tests;
