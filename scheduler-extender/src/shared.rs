//! Placements that several extenders share, so that each sees what the others are about to bind.
//!
//! The caches of two processes lag behind each other, and reservations live in one of them. So where more than one
//! extender binds, a placement is written into a Lease before its Pod is bound, under the condition that nobody wrote
//! the Lease since it was read; and the Pods of the base are listed from the API server after it was read. Of two
//! placements on one base the later one was then written by somebody who had read the earlier one, or who had seen its
//! Pod bound: a placement leaves the Lease only when a list or a watch has shown its Pod on the base, or when its binding
//! can no longer happen. Sixteen Leases are shared by all bases; they wake nobody and are never cleaned up after bases.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use policy::contract::{ModulePod, PodKind, classify, names};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many Leases there are. Each is named in the manifests.
const LEASES: usize = 16;
/// After this long a request to bind cannot be on its way any more, even where clocks differ by a minute: API servers
/// end requests after one.
const LIFETIME: SignedDuration = SignedDuration::from_mins(2);
/// Placements in one Lease at most.
const MOST: usize = 500;
/// Bytes of them at most. An API server refuses annotations of more than 256 KiB.
const LONGEST: usize = 200 << 10;

/// Why the shared placements cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The API server did not answer as it should.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Somebody else wrote something into the Lease. Deleting it helps.
    #[error("Lease {lease} holds placements that cannot be read: {source}")]
    Unreadable {
        /// Its name.
        lease: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// More Pods are being bound than one Lease can hold.
    #[error("too many Pods are being bound at once")]
    Full,
}

/// A Pod that is about to be bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Of the Pod.
    pub uid: String,
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub name: String,
    /// Where it goes.
    pub node: String,
    /// When it was written, by the clock of its writer.
    pub at: Timestamp,
    /// When it was written before, for bindings that had no answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Timestamp>,
}

fn is_over(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) >= LIFETIME
}

impl Placement {
    /// Whether none of its bindings can happen any more.
    pub fn is_over(&self, now: Timestamp) -> bool {
        // Those before may have been written by a clock that is ahead.
        self.earlier.iter().chain([&self.at]).all(|at| is_over(*at, now))
    }
}

/// One Lease, as it was read.
#[derive(Debug)]
pub struct Page {
    lease: Lease,
    /// What is in it.
    pub placements: Vec<Placement>,
}

impl Page {
    fn of(lease: Lease) -> Result<Self, SharedError> {
        let annotations = lease.metadata.annotations.as_ref();
        let text = annotations.and_then(|all| all.get(names::PLACEMENTS)).map_or("[]", String::as_str);
        match serde_json::from_str(text) {
            Ok(placements) => Ok(Self { lease, placements }),
            Err(source) => {
                let lease = lease.metadata.name.unwrap_or_default();
                Err(SharedError::Unreadable { lease, source })
            }
        }
    }

    /// The placements of other Pods on a node that may still happen.
    pub fn on<'a>(
        &'a self,
        node: &'a str,
        uid: &'a str,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Placement> {
        self.placements.iter().filter(move |placement| {
            placement.node == node && placement.uid != uid && !placement.is_over(now)
        })
    }

    /// Takes out what is over, and what `settled` says is seen on its base or can never come.
    pub fn prune(&mut self, now: Timestamp, settled: impl Fn(&Placement) -> bool) {
        self.placements.retain(|placement| !placement.is_over(now) && !settled(placement));
    }

    /// Puts a placement in. Earlier ones of its Pod, here or on another node, stay: bindings without answer may yet happen.
    ///
    /// # Errors
    /// When there is no room.
    pub fn add(&mut self, placement: Placement) -> Result<(), SharedError> {
        let mut known = self.placements.iter_mut();
        if let Some(known) = known.find(|known| known.uid == placement.uid && known.node == placement.node) {
            known.earlier.push(known.at);
            known.earlier.retain(|at| !is_over(*at, placement.at));
            known.at = placement.at;
            return Ok(());
        }
        if self.placements.len() >= MOST {
            return Err(SharedError::Full);
        }
        self.placements.push(placement);
        Ok(())
    }

    /// Takes one binding of a Pod to a node out, which was written at `at`. Earlier ones yet may happen.
    pub fn withdraw(&mut self, uid: &str, node: &str, at: Timestamp) {
        self.placements.retain_mut(|placement| {
            if placement.uid != uid || placement.node != node {
                return true;
            }
            placement.earlier.retain(|earlier| *earlier != at);
            if placement.at != at {
                return true;
            }
            let last = placement.earlier.pop();
            placement.at = last.unwrap_or(at);
            last.is_some()
        });
    }
}

/// The Leases, and the Pods that the API server knows.
pub struct SharedPlacements {
    client: Client,
    leases: Api<Lease>,
    /// Calls of one process do not get in each other's way.
    turns: Vec<Arc<Semaphore>>,
}

impl SharedPlacements {
    /// In a namespace of ours.
    pub fn new(client: Client, namespace: &str) -> Self {
        let leases = Api::namespaced(client.clone(), namespace);
        Self { client, leases, turns: (0..LEASES).map(|_| Arc::new(Semaphore::new(1))).collect() }
    }

    /// Waits until nobody else in this process works on the Lease of a node.
    pub async fn turn(&self, node: &str) -> Option<OwnedSemaphorePermit> {
        let turn = Arc::clone(self.turns.get(index(node))?);
        turn.acquire_owned().await.ok()
    }

    /// Reads the Lease of a node; makes it where there is none.
    ///
    /// # Errors
    /// When the API server does not answer, or the Lease holds something else.
    pub async fn read(&self, node: &str) -> Result<Page, SharedError> {
        let name = lease_name(node);
        if let Some(lease) = self.leases.get_opt(&name).await? {
            return Page::of(lease);
        }
        let mut lease = Lease::default();
        lease.metadata.name = Some(name.clone());
        lease.metadata.labels = Some([(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned())].into());
        match self.leases.create(&PostParams::default(), &lease).await {
            Ok(lease) => Page::of(lease),
            Err(kube::Error::Api(status)) if status.code == 409 => Page::of(self.leases.get(&name).await?),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a Lease back. Whether nobody else did meanwhile; nothing is written otherwise.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn write(&self, page: Page) -> Result<bool, SharedError> {
        let Page { mut lease, placements } = page;
        let name = lease.metadata.name.clone().unwrap_or_default();
        let text = serde_json::to_string(&placements)
            .map_err(|source| SharedError::Unreadable { lease: name.clone(), source })?;
        if text.len() > LONGEST {
            return Err(SharedError::Full);
        }
        lease.metadata.annotations.get_or_insert_default().insert(names::PLACEMENTS.to_owned(), text);
        match self.leases.replace(&name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The module Pods bound to a node, as the API server knows them now.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn pods_on(&self, node: &str) -> Result<Vec<Arc<ModulePod>>, SharedError> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        // Without a resourceVersion the answer is not older than the question.
        let bound = pods.list(&ListParams::default().fields(&format!("spec.nodeName={node}"))).await?;
        let module = |pod: &Pod| match classify(pod) {
            PodKind::Module(pod) => Some(Arc::from(pod)),
            PodKind::Incomplete(_) | PodKind::Foreign => None,
        };
        Ok(bound.iter().filter_map(module).filter(|pod: &Arc<ModulePod>| !pod.terminal).collect())
    }
}

/// Which Lease speaks of a node: the same in every process (FNV-1a).
fn index(node: &str) -> usize {
    let hash = node.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    usize::try_from(hash % LEASES as u64).unwrap_or(0)
}

fn lease_name(node: &str) -> String {
    format!("stowage-placements-{:x}", index(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(uid: &str, node: &str, at: i64) -> Placement {
        let text = |text: &str| text.to_owned();
        let at = Timestamp::from_second(at).expect("a time");
        let (uid, name, namespace, node) = (text(uid), text(uid), text("shop"), text(node));
        Placement { uid, namespace, name, node, at, earlier: Vec::new() }
    }

    #[test]
    fn placements_are_kept_until_they_are_over_or_settled() {
        let mut page = Page { lease: Lease::default(), placements: Vec::new() };
        for (uid, node, at) in [("a", "v0", 0), ("b", "v0", 100), ("c", "v1", 100), ("d", "v0", 100)] {
            page.add(placement(uid, node, at)).expect("room");
        }
        let now = Timestamp::from_second(120).expect("a time");
        let on: Vec<_> = page.on("v0", "d", now).map(|placement| &*placement.uid).collect();
        assert_eq!(on, ["b"], "not the one that is over, and not the Pod itself");
        page.prune(now, |placement| placement.uid == "b");
        page.add(placement("d", "v1", 120)).expect("room");
        let left: Vec<_> = page.placements.iter().map(|p| (&*p.uid, &*p.node)).collect();
        assert_eq!(left, [("c", "v1"), ("d", "v0"), ("d", "v1")], "its binding to v0 may yet happen");
        for number in 0..MOST - 3 {
            page.add(placement(&number.to_string(), "v2", 120)).expect("room");
        }
        assert!(matches!(page.add(placement("more", "v2", 120)), Err(SharedError::Full)));
        assert!(page.add(placement("7", "v2", 121)).is_ok(), "beside its own");
    }

    /// Each binding ends by its own, and a Pod that is tried again and again fills no Lease.
    #[test]
    fn each_binding_is_withdrawn_for_itself() {
        let mut page = Page { lease: Lease::default(), placements: Vec::new() };
        let time = |seconds| Timestamp::from_second(seconds).expect("a time");
        for at in [0, 100, 110, 130] {
            page.add(placement("a", "v0", at)).expect("room");
        }
        let times =
            |page: &Page| page.placements.iter().map(|p| (p.earlier.clone(), p.at)).collect::<Vec<_>>();
        assert_eq!(times(&page), [(vec![time(100), time(110)], time(130))], "the first is over");
        page.withdraw("a", "v1", time(130));
        page.withdraw("b", "v0", time(130));
        page.withdraw("a", "v0", time(110));
        assert_eq!(times(&page), [(vec![time(100)], time(130))]);
        page.withdraw("a", "v0", time(130));
        assert_eq!(times(&page), [(vec![], time(100))], "over when the first one would have been");
        page.withdraw("a", "v0", time(7));
        assert_eq!(times(&page).len(), 1);
        page.withdraw("a", "v0", time(100));
        assert!(page.placements.is_empty());
        for at in [100, 45] {
            page.add(placement("a", "v0", at)).expect("room");
        }
        let is_over = |page: &Page, at| page.placements[0].is_over(time(at));
        assert_eq!([is_over(&page, 219), is_over(&page, 220)], [false, true], "a clock that is behind");
    }

    #[test]
    fn a_lease_that_holds_something_else_is_no_empty_one() {
        let mut lease = Lease::default();
        assert!(Page::of(lease.clone()).is_ok());
        lease.metadata.annotations = Some([(names::PLACEMENTS.to_owned(), "nonsense".to_owned())].into());
        assert!(matches!(Page::of(lease), Err(SharedError::Unreadable { .. })));
    }

    #[test]
    fn nodes_are_spread_over_the_leases_of_the_manifests() {
        let names: std::collections::BTreeSet<_> = (0..500).map(|n| lease_name(&format!("v{n}"))).collect();
        let role = include_str!("../../manifests/overlays/extender-replicas/rbac.yaml");
        assert_eq!(names.len(), LEASES);
        assert!(
            names.iter().all(|name| role.contains(&format!("{name},")) || role.contains(&format!("{name}]")))
        );
    }
}
