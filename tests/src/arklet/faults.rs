//! Faults of a running base, set and taken back by a test. They outlive the base's restarts.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::throwable::Throwable;

/// Which requests a fault concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct On {
    command: Option<&'static str>,
    module: Option<String>,
}

impl On {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests of one command, by its id.
    pub fn command(command: &'static str) -> Self {
        Self { command: Some(command), module: None }
    }

    /// `installBiz`.
    pub fn install() -> Self {
        Self::command("installBiz")
    }

    /// `uninstallBiz`.
    pub fn uninstall() -> Self {
        Self::command("uninstallBiz")
    }

    /// `queryAllBiz`.
    pub fn query() -> Self {
        Self::command("queryAllBiz")
    }

    /// `health`.
    pub fn health() -> Self {
        Self::command("health")
    }

    /// Only requests that name this module.
    #[must_use]
    pub fn of(self, module: &str) -> Self {
        Self { module: Some(module.to_owned()), ..self }
    }

    fn meets(&self, command: &str, module: Option<&str>) -> bool {
        self.command.is_none_or(|wanted| wanted == command)
            && self.module.as_deref().is_none_or(|wanted| Some(wanted) == module)
    }
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The answer comes later; the workers stay free.
    Latency(Duration),
    /// The request is read and never answered, nor carried out.
    Hang,
    /// The connection is reset before anything is carried out.
    Reset,
    /// The operation is carried out, and the connection closes without a byte.
    LoseAnswer,
    /// The operation is carried out, and no answer ever comes.
    WithholdAnswer,
    /// The answer ends in its middle.
    Truncate,
    /// The answer carries this many more bytes.
    Oversize(usize),
    /// This text stands in place of the JSON.
    Text(String),
    /// The right keys, each with a value of another type.
    WrongTypes,
    /// Another status line and a short page, as from a proxy in between.
    Status(u16),
    /// An install is refused because the identity is busy.
    Conflict,
    /// A module's main throws this.
    MainThrows(Throwable),
    /// The metaspace is full.
    MetaspaceFull,
    /// An install takes this much longer, on its worker.
    Slow(Duration),
    /// An install says SUCCESS, and the module is gone right after.
    Vanish,
    /// An install registers another identity than the jar's: name and version.
    Identity(String, String),
    /// A module that fails to start stays `broken`.
    KeepBroken,
    /// An uninstall says SUCCESS and leaves the module as it is.
    Pretend,
    /// An uninstall throws; what becomes of the module is up to the base's flags.
    StopThrows(Throwable),
}

impl Fault {
    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Latency(_) => "Latency",
            Self::Hang => "Hang",
            Self::Reset => "Reset",
            Self::LoseAnswer => "LoseAnswer",
            Self::WithholdAnswer => "WithholdAnswer",
            Self::Truncate => "Truncate",
            Self::Oversize(_) => "Oversize",
            Self::Text(_) => "Text",
            Self::WrongTypes => "WrongTypes",
            Self::Status(_) => "Status",
            Self::Conflict => "Conflict",
            Self::MainThrows(_) => "MainThrows",
            Self::MetaspaceFull => "MetaspaceFull",
            Self::Slow(_) => "Slow",
            Self::Vanish => "Vanish",
            Self::Identity(..) => "Identity",
            Self::KeepBroken => "KeepBroken",
            Self::Pretend => "Pretend",
            Self::StopThrows(_) => "StopThrows",
        }
    }

    /// One of each kind, in their order.
    pub fn examples() -> Vec<Self> {
        vec![
            Self::Latency(Duration::from_secs(1)),
            Self::Hang,
            Self::Reset,
            Self::LoseAnswer,
            Self::WithholdAnswer,
            Self::Truncate,
            Self::Oversize(9 << 20),
            Self::Text("<html>not JSON</html>".to_owned()),
            Self::WrongTypes,
            Self::Status(503),
            Self::Conflict,
            Self::MainThrows(Throwable::new("java.lang.IllegalStateException", "no database")),
            Self::MetaspaceFull,
            Self::Slow(Duration::from_secs(5)),
            Self::Vanish,
            Self::Identity("mall".to_owned(), "9.9.9".to_owned()),
            Self::KeepBroken,
            Self::Pretend,
            Self::StopThrows(Throwable::new("java.lang.IllegalStateException", "still in use")),
        ]
    }

    /// Whether requests of this command are spoilt by it. Whatever changes an answer spoils that of any command.
    pub fn concerns(&self, command: &str) -> bool {
        match self {
            Self::Latency(_)
            | Self::Hang
            | Self::Reset
            | Self::LoseAnswer
            | Self::WithholdAnswer
            | Self::Truncate
            | Self::Oversize(_)
            | Self::Text(_)
            | Self::WrongTypes
            | Self::Status(_) => true,
            Self::Conflict => command == "installBiz" || command == "uninstallBiz",
            Self::MainThrows(_)
            | Self::MetaspaceFull
            | Self::Slow(_)
            | Self::Vanish
            | Self::Identity(..)
            | Self::KeepBroken => command == "installBiz",
            Self::Pretend | Self::StopThrows(_) => command == "uninstallBiz",
        }
    }
}

/// A fault that was set; takes it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

#[derive(Debug)]
struct Armed {
    id: FaultId,
    on: On,
    fault: Fault,
    left: Option<usize>,
}

#[derive(Debug, Default)]
struct Set {
    next: u64,
    armed: Vec<Armed>,
    metaspace_used: VecDeque<u64>,
    served: HashMap<String, u16>,
}

/// The faults of one base.
#[derive(Debug, Clone)]
pub struct Faults {
    set: Arc<Mutex<Set>>,
    refusing: Arc<watch::Sender<bool>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { set: Arc::default(), refusing: Arc::new(watch::Sender::new(false)) }
    }
}

impl Faults {
    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arm(&self, on: On, fault: Fault, left: Option<usize>) -> FaultId {
        let mut set = self.set();
        let id = FaultId(set.next);
        set.next += 1;
        set.armed.push(Armed { id, on, fault, left });
        id
    }

    /// From now on, until it is taken back.
    pub fn always(&self, on: On, fault: Fault) -> FaultId {
        self.arm(on, fault, None)
    }

    /// For the next `count` requests that it concerns.
    pub fn next(&self, count: usize, on: On, fault: Fault) -> FaultId {
        self.arm(on, fault, Some(count))
    }

    /// Takes one fault back.
    pub fn remove(&self, id: FaultId) {
        self.set().armed.retain(|armed| armed.id != id);
    }

    /// Takes every fault back, refused connections, reported metaspace and statuses among them.
    pub fn clear(&self) {
        let mut set = self.set();
        set.armed.clear();
        set.metaspace_used.clear();
        set.served.clear();
        drop(set);
        self.refuse(false);
    }

    /// Closes the port, so that connections are refused, or opens it again.
    pub fn refuse(&self, refuse: bool) {
        self.refusing.send_if_modified(|now| std::mem::replace(now, refuse) != refuse);
    }

    /// What the next `health` calls report as used metaspace, in bytes; the last value stays. An empty curve gives
    /// the true figures again.
    pub fn report_metaspace(&self, used: impl IntoIterator<Item = u64>) {
        self.set().metaspace_used = used.into_iter().collect();
    }

    /// The status with which a module answers its own HTTP requests, probes among them; none: that of its jar.
    pub fn serve_status(&self, module: &str, status: Option<u16>) {
        let served = &mut self.set().served;
        match status {
            Some(status) => served.insert(module.to_owned(), status),
            None => served.remove(module),
        };
    }

    pub(super) fn served_status(&self, module: &str) -> Option<u16> {
        self.set().served.get(module).copied()
    }

    pub(super) fn refusing(&self) -> watch::Receiver<bool> {
        self.refusing.subscribe()
    }

    pub(super) fn reported_metaspace(&self) -> Option<u64> {
        let mut set = self.set();
        if set.metaspace_used.len() > 1 {
            set.metaspace_used.pop_front()
        } else {
            set.metaspace_used.front().copied()
        }
    }

    /// The faults of one request; counted ones are used up by this.
    pub(super) fn take(&self, command: &str, module: Option<&str>) -> Vec<Fault> {
        let mut taken = Vec::new();
        self.set().armed.retain_mut(|armed| {
            if !armed.on.meets(command, module) {
                return true;
            }
            match &mut armed.left {
                Some(0) => return false,
                Some(left) => *left -= 1,
                None => {}
            }
            taken.push(armed.fault.clone());
            armed.left != Some(0)
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_fault_is_used_up_by_the_requests_that_it_concerns() {
        let faults = Faults::default();
        faults.next(2, On::install().of("shop"), Fault::Reset);
        assert_eq!(faults.take("installBiz", Some("cart")), []);
        assert_eq!(faults.take("queryAllBiz", None), []);
        assert_eq!(faults.take("installBiz", Some("shop")), [Fault::Reset]);
        assert_eq!(faults.take("installBiz", Some("shop")), [Fault::Reset]);
        assert_eq!(faults.take("installBiz", Some("shop")), []);
    }

    #[test]
    fn there_is_an_example_of_each_kind() {
        let source = include_str!("faults.rs");
        let declared =
            source.split("pub enum Fault {\n").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap();
        let names = declared.lines().map(str::trim).filter(|line| !line.starts_with("///"));
        let kinds: Vec<_> = names.map(|name| name.split(['(', ',']).next().unwrap_or_default()).collect();
        let examples = Fault::examples();
        assert_eq!(examples.iter().map(Fault::kind).collect::<Vec<_>>(), kinds);
    }

    #[test]
    fn a_lasting_fault_stays_until_taken_back() {
        let faults = Faults::default();
        let id = faults.always(On::any(), Fault::Hang);
        faults.always(On::health(), Fault::WrongTypes);
        assert_eq!(faults.take("health", None), [Fault::Hang, Fault::WrongTypes]);
        faults.remove(id);
        assert_eq!(faults.take("health", None), [Fault::WrongTypes]);
        faults.clear();
        assert_eq!(faults.take("health", None), []);
    }

    #[test]
    fn the_last_reported_figure_stays() {
        let faults = Faults::default();
        faults.report_metaspace([1, 2]);
        let read = || faults.reported_metaspace();
        assert_eq!((read(), read(), read()), (Some(1), Some(2), Some(2)));
        faults.report_metaspace([]);
        assert_eq!(read(), None);
    }
}
