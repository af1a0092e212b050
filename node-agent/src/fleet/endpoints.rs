//! What EndpointSlices say of our VPods: whether somebody still sends new traffic to them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::mirror::Feed;
use crate::base::EndpointLookup;

/// An EndpointSlice, trimmed to the Pods on VNodes that it lists as ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    uid: String,
    ready: HashSet<String>,
}

impl Slice {
    /// Takes what is needed of a slice. `is_vnode` judges the name of an endpoint's Node. A slice that lists none of
    /// our Pods is kept empty, because it may have listed one before.
    pub fn new(slice: EndpointSlice, is_vnode: impl Fn(&str) -> bool) -> Self {
        let ready = slice
            .endpoints
            .into_iter()
            .filter(|endpoint| endpoint.node_name.as_deref().is_some_and(&is_vnode))
            // Absent means ready.
            .filter(|endpoint| endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true))
            .filter_map(|endpoint| endpoint.target_ref?.uid)
            .collect();
        Self { uid: slice.metadata.uid.unwrap_or_default(), ready }
    }
}

#[derive(Debug, Default)]
struct Store {
    /// Slices that list at least one of our Pods.
    slices: HashMap<String, HashSet<String>>,
    /// In how many slices a Pod is ready.
    counts: HashMap<String, usize>,
    listing: Option<HashSet<String>>,
    synced: bool,
}

impl Store {
    fn put(&mut self, slice: Slice) {
        let Slice { uid, ready } = slice;
        if let Some(listing) = &mut self.listing {
            listing.insert(uid.clone());
        }
        self.remove(&uid);
        for pod in &ready {
            *self.counts.entry(pod.clone()).or_default() += 1;
        }
        if !ready.is_empty() {
            self.slices.insert(uid, ready);
        }
    }

    fn remove(&mut self, uid: &str) {
        for pod in self.slices.remove(uid).into_iter().flatten() {
            if let Some(count) = self.counts.get_mut(&pod) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.counts.remove(&pod);
                }
            }
        }
    }

    fn complete(&mut self) {
        let listed = self.listing.take().unwrap_or_default();
        let missing: Vec<String> = self.slices.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in missing {
            self.remove(&uid);
        }
        self.synced = true;
    }
}

/// The store. Written by the watch of EndpointSlices only, read by every actor. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Endpoints(Arc<RwLock<Store>>);

impl Endpoints {
    /// Takes what the watch tells.
    pub fn take(&self, feed: Feed<Slice>) {
        let mut store = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match feed {
            Feed::Begin => store.listing = Some(HashSet::new()),
            Feed::Listed(slice) | Feed::Applied(slice) => store.put(slice),
            Feed::Deleted(slice) => store.remove(&slice.uid),
            Feed::Complete => store.complete(),
        }
    }
}

impl EndpointLookup for Endpoints {
    fn ready(&self, _namespace: &str, pod_uid: &str) -> bool {
        let store = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !store.synced || store.counts.contains_key(pod_uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(uid: &str, endpoints: &[(&str, &str, Option<bool>)]) -> Slice {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(pod, node, ready)| {
                serde_json::json!({"addresses": ["10.0.0.1"], "nodeName": node, "conditions": {"ready": ready},
                    "targetRef": {"kind": "Pod", "uid": pod}})
            })
            .collect();
        let slice =
            serde_json::json!({"addressType": "IPv4", "metadata": {"uid": uid}, "endpoints": endpoints});
        Slice::new(serde_json::from_value(slice).expect("slice"), |node| node.starts_with("virtual-node-"))
    }

    const NODE: &str = "virtual-node-java-a-b";

    #[test]
    fn a_pod_is_ready_while_any_slice_says_so() {
        let endpoints = Endpoints::default();
        assert!(endpoints.ready("ns", "p"), "nothing is known yet");
        endpoints.take(Feed::Begin);
        endpoints.take(Feed::Listed(slice("s1", &[("p", NODE, Some(true)), ("q", "worker", Some(true))])));
        endpoints.take(Feed::Listed(slice("s2", &[("p", NODE, None)])));
        endpoints.take(Feed::Complete);
        assert!(endpoints.ready("ns", "p"));
        assert!(!endpoints.ready("ns", "q"), "not on a VNode");
        endpoints.take(Feed::Applied(slice("s1", &[("p", NODE, Some(false))])));
        assert!(endpoints.ready("ns", "p"));
        endpoints.take(Feed::Deleted(slice("s2", &[])));
        assert!(!endpoints.ready("ns", "p"));
    }

    #[test]
    fn a_new_list_forgets_what_is_not_in_it() {
        let endpoints = Endpoints::default();
        endpoints.take(Feed::Begin);
        endpoints.take(Feed::Listed(slice("s1", &[("p", NODE, Some(true))])));
        endpoints.take(Feed::Complete);
        endpoints.take(Feed::Begin);
        assert!(endpoints.ready("ns", "p"));
        endpoints.take(Feed::Complete);
        assert!(!endpoints.ready("ns", "p"));
        let store = endpoints.0.read().expect("lock");
        assert!(store.slices.is_empty() && store.counts.is_empty());
    }
}
