//! The metaspace of a simulated JVM: it fills until a collection, and a leaking module keeps its share for good.

/// What one module loads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of metaspace.
    pub bytes: u64,
    /// Loaded classes.
    pub classes: u64,
}

impl Footprint {
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.classes = self.classes.saturating_add(other.classes);
    }

    fn subtract(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.classes = self.classes.saturating_sub(other.classes);
    }
}

/// The metaspace is full, even after a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Percentage of the maximum at which a JVM collects.
const COLLECT_AT_PERCENT: u64 = 97;
/// Garbage at which a JVM without a maximum collects.
const COLLECT_AT_GARBAGE: u64 = 64 << 20;
/// Reserved beyond what is used.
const SLACK: u64 = 333_672;

/// Who holds what.
#[derive(Debug, Clone)]
pub(super) struct Metaspace {
    max: Option<u64>,
    held: Footprint,
    garbage: Footprint,
    unloaded: u64,
}

impl Metaspace {
    /// The metaspace of a base that has just started; `max` in bytes, none when the JVM has no limit.
    pub(super) fn new(max: Option<u64>, base: Footprint) -> Self {
        Self { max, held: base, garbage: Footprint::default(), unloaded: 0 }
    }

    pub(super) fn used(&self) -> u64 {
        self.held.bytes.saturating_add(self.garbage.bytes)
    }

    pub(super) fn committed(&self) -> u64 {
        let wanted = self.used().saturating_add(SLACK);
        self.max.map_or(wanted, |max| wanted.min(max))
    }

    pub(super) fn max(&self) -> Option<u64> {
        self.max
    }

    /// Classes in memory now, and classes unloaded since the start.
    pub(super) fn classes(&self) -> (u64, u64) {
        (self.held.classes.saturating_add(self.garbage.classes), self.unloaded)
    }

    /// Loads the classes of a module.
    pub(super) fn load(&mut self, module: Footprint) -> Result<(), Exhausted> {
        let wanted = self.used().saturating_add(module.bytes);
        match self.max {
            Some(max) if wanted > max / 100 * COLLECT_AT_PERCENT => self.collect(),
            None if self.garbage.bytes > COLLECT_AT_GARBAGE => self.collect(),
            _ => {}
        }
        if self.max.is_some_and(|max| self.used().saturating_add(module.bytes) > max) {
            return Err(Exhausted);
        }
        self.held.add(module);
        Ok(())
    }

    /// Lets go of a module's classes; a leaking one stays reachable.
    pub(super) fn release(&mut self, module: Footprint, leaks: bool) {
        if !leaks {
            self.held.subtract(module);
            self.garbage.add(module);
        }
    }

    /// A full collection.
    pub(super) fn collect(&mut self) {
        self.unloaded = self.unloaded.saturating_add(self.garbage.classes);
        self.garbage = Footprint::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MODULE: Footprint = Footprint { bytes: 3 * MIB, classes: 400 };

    fn base() -> Metaspace {
        Metaspace::new(Some(48 * MIB), Footprint { bytes: 20 * MIB, classes: 4000 })
    }

    #[test]
    fn a_healthy_base_climbs_and_falls_back() {
        let mut metaspace = base();
        let mut highest = 0;
        for _ in 0..40 {
            metaspace.load(MODULE).unwrap();
            highest = highest.max(metaspace.used());
            metaspace.release(MODULE, false);
        }
        assert!(highest * 100 / (48 * MIB) >= 90, "{highest}");
        assert!(metaspace.classes().1 >= 400 * 30);
        metaspace.collect();
        assert_eq!(metaspace.used(), 20 * MIB);
    }

    #[test]
    fn a_leak_ends_in_exhaustion_and_unloads_nothing() {
        let mut metaspace = base();
        let rounds = (0..40)
            .take_while(|_| {
                let loaded = metaspace.load(MODULE).is_ok();
                metaspace.release(MODULE, true);
                loaded
            })
            .count();
        assert_eq!(rounds, 9);
        assert_eq!(metaspace.classes().1, 0);
    }

    #[test]
    fn committed_stays_between_used_and_max() {
        let mut metaspace = base();
        for _ in 0..9 {
            metaspace.load(MODULE).unwrap();
            assert!(metaspace.used() <= metaspace.committed() && metaspace.committed() <= 48 * MIB);
        }
    }
}
