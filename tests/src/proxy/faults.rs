//! Which calls fail, and how; set and taken back by a test while the proxy runs.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Method, Uri};
use jiff::SignedDuration;
use tokio::sync::Notify;

/// Which calls a fault concerns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    methods: Vec<Method>,
    resource: Option<&'static str>,
    watch: Option<bool>,
}

impl Calls {
    /// Every call.
    pub fn any() -> Self {
        Self::default()
    }

    /// Lists of a resource (`pods`), watches not among them.
    pub fn list(resource: &'static str) -> Self {
        Self { methods: vec![Method::GET], resource: Some(resource), watch: Some(false) }
    }

    /// Watches, of one resource or of all.
    pub fn watch(resource: Option<&'static str>) -> Self {
        Self { methods: vec![Method::GET], resource, watch: Some(true) }
    }

    /// Everything that writes a resource, its status included.
    pub fn writes(resource: &'static str) -> Self {
        let methods = vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        Self { methods, resource: Some(resource), watch: None }
    }

    fn meets(&self, method: &Method, uri: &Uri) -> bool {
        let named = |resource: &str| uri.path().split('/').any(|part| part == resource);
        (self.methods.is_empty() || self.methods.contains(method))
            && self.resource.is_none_or(named)
            && self.watch.is_none_or(|watch| watch == is_watch(uri))
    }
}

/// Whether a call is a watch.
pub(super) fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| matches!(part, "watch=true" | "watch=1")))
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiFault {
    /// The call is passed on later.
    Delay(Duration),
    /// The call is never answered, nor passed on.
    Hang,
    /// The connection breaks off before the body of the answer; the call is not passed on.
    Reset,
    /// A refusal, not passed on.
    Status {
        /// HTTP status: 409, 410, 429, 500, ...
        code: u16,
        /// The header `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// A watch ends after this time with the event `ERROR` of code 410.
    Expired(Duration),
    /// Watches, those under way too, never deliver events of these types (`ADDED`, `MODIFIED`, `DELETED`).
    Lose(&'static [&'static str]),
    /// Watches, those under way too, deliver every event twice.
    Double,
    /// Watches, those under way too, stay open and deliver nothing any more from their next event on, not even their
    /// end, and not even when the fault is taken back: so hangs a connection whose other side is gone.
    Mute,
    /// Watches, those under way too, deliver nothing until the fault is taken back, and then everything in its order:
    /// so lags a watch.
    Hold,
    /// The client's clock is off: to it the cluster's time is ahead by so much (behind, if negative).
    Skew(SignedDuration),
}

/// What becomes of one event of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is delivered so many times.
    Delivered(usize),
    /// Neither it nor any other after it.
    Mute,
}

/// A fault that was set; takes it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

#[derive(Debug, Default)]
struct Book {
    next: u64,
    armed: Vec<(FaultId, Calls, ApiFault)>,
    seen: Vec<(Method, Uri)>,
    lost: usize,
    muted: Vec<Uri>,
}

/// The faults of one proxy, and the calls it was asked.
#[derive(Debug, Clone, Default)]
pub struct ApiFaults {
    book: Arc<Mutex<Book>>,
    removed: Arc<Notify>,
}

impl ApiFaults {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, until it is taken back. Calls under way are not concerned.
    pub fn always(&self, on: Calls, fault: ApiFault) -> FaultId {
        let mut book = self.book();
        let id = FaultId(book.next);
        book.next += 1;
        book.armed.push((id, on, fault));
        id
    }

    /// Takes one back.
    pub fn remove(&self, id: FaultId) {
        self.book().armed.retain(|(armed, ..)| *armed != id);
        self.removed.notify_waiters();
    }

    /// Takes all back.
    pub fn clear(&self) {
        self.book().armed.clear();
        self.removed.notify_waiters();
    }

    /// How many such calls came so far, whatever became of them.
    pub fn count(&self, of: &Calls) -> usize {
        self.book().seen.iter().filter(|(method, uri)| of.meets(method, uri)).count()
    }

    pub(super) fn take(&self, method: &Method, uri: &Uri) -> Vec<ApiFault> {
        let mut book = self.book();
        book.seen.push((method.clone(), uri.clone()));
        let meant = book.armed.iter().filter(|(_, calls, _)| calls.meets(method, uri));
        meant.map(|(_, _, fault)| fault.clone()).collect()
    }

    /// What becomes of an event (a line of JSON) of a watch that is under way.
    pub(super) fn fate(&self, method: &Method, uri: &Uri, event: &str) -> Fate {
        let mut book = self.book();
        let mut times = 1;
        let mut mute = false;
        for (_, calls, fault) in &book.armed {
            if !calls.meets(method, uri) {
                continue;
            }
            match fault {
                ApiFault::Lose(types) if types.iter().any(|of| is_of(event, of)) => times = 0,
                ApiFault::Double if !is_of(event, "BOOKMARK") => times *= 2,
                ApiFault::Mute => mute = true,
                _ => {}
            }
        }
        if mute {
            book.muted.push(uri.clone());
            return Fate::Mute;
        }
        if times == 0 {
            book.lost += 1;
        }
        Fate::Delivered(times)
    }

    /// Waits while such a watch is held.
    pub(super) async fn released(&self, method: &Method, uri: &Uri) {
        loop {
            let removed = self.removed.notified();
            let held = |(_, calls, fault): &(FaultId, Calls, ApiFault)| {
                *fault == ApiFault::Hold && calls.meets(method, uri)
            };
            if !self.book().armed.iter().any(held) {
                return;
            }
            removed.await;
        }
    }

    /// How far the client's view of the cluster's time is moved now.
    pub(super) fn skew(&self) -> SignedDuration {
        let book = self.book();
        let skews = book.armed.iter().filter_map(|(.., fault)| match fault {
            ApiFault::Skew(by) => Some(*by),
            _ => None,
        });
        skews.fold(SignedDuration::ZERO, SignedDuration::saturating_add)
    }

    /// How many events were lost so far.
    pub fn lost(&self) -> usize {
        self.book().lost
    }

    /// How many such watches hang.
    pub fn muted(&self, of: &Calls) -> usize {
        self.book().muted.iter().filter(|uri| of.meets(&Method::GET, uri)).count()
    }
}

/// The API server writes the type first.
fn is_of(event: &str, kind: &str) -> bool {
    event.strip_prefix("{\"type\":\"").and_then(|rest| rest.split('"').next()) == Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart() {
        let faults = ApiFaults::default();
        let ask = |method: Method, path: &'static str| faults.take(&method, &Uri::from_static(path)).len();
        let lists = faults.always(Calls::list("pods"), ApiFault::Reset);
        assert_eq!(ask(Method::GET, "/api/v1/pods?limit=500"), 1);
        assert_eq!(ask(Method::GET, "/api/v1/pods?watch=true&limit=500"), 0);
        assert_eq!(ask(Method::GET, "/api/v1/nodes"), 0);
        faults.always(Calls::writes("leases"), ApiFault::Hang);
        assert_eq!(ask(Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/x/leases/y"), 1);
        faults.remove(lists);
        assert_eq!(ask(Method::GET, "/api/v1/pods"), 0);
        assert_eq!((faults.count(&Calls::any()), faults.count(&Calls::list("pods"))), (5, 2));
    }

    #[test]
    fn events_are_lost_doubled_and_held_back() {
        let faults = ApiFaults::default();
        let watch = Uri::from_static("/api/v1/pods?watch=true");
        let fate = |kind: &str| {
            faults.fate(&Method::GET, &watch, &format!("{{\"type\":\"{kind}\",\"object\":{{}}}}"))
        };
        assert_eq!(fate("ADDED"), Fate::Delivered(1));
        let lose = faults.always(Calls::watch(Some("pods")), ApiFault::Lose(&["DELETED"]));
        faults.always(Calls::watch(None), ApiFault::Double);
        assert_eq!([fate("ADDED"), fate("DELETED"), fate("BOOKMARK")], [2, 0, 1].map(Fate::Delivered));
        faults.remove(lose);
        faults.always(Calls::watch(Some("nodes")), ApiFault::Mute);
        assert_eq!((fate("DELETED"), faults.lost()), (Fate::Delivered(2), 1));
        faults.always(Calls::watch(Some("pods")), ApiFault::Mute);
        assert_eq!(fate("MODIFIED"), Fate::Mute);
        assert_eq!(
            (faults.muted(&Calls::watch(Some("pods"))), faults.muted(&Calls::watch(Some("nodes")))),
            (1, 0)
        );
    }
    #[tokio::test]
    async fn what_is_held_comes_when_it_is_taken_back() {
        let faults = ApiFaults::default();
        let pods = Uri::from_static("/api/v1/pods?watch=true");
        let hold = faults.always(Calls::watch(Some("pods")), ApiFault::Hold);
        faults.released(&Method::GET, &Uri::from_static("/api/v1/nodes?watch=true")).await;
        let mut waiting = Box::pin(faults.released(&Method::GET, &pods));
        assert!(futures::poll!(&mut waiting).is_pending());
        faults.remove(faults.always(Calls::any(), ApiFault::Reset));
        assert!(futures::poll!(&mut waiting).is_pending(), "another fault");
        faults.remove(hold);
        waiting.await;
    }
}
