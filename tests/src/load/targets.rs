//! Where requests to a Service go, by what its EndpointSlices say. Pure.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// The endpoints of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Targets {
    ready: Vec<SocketAddr>,
    /// Only where none is ready: leaving, and serving still.
    leaving: Vec<SocketAddr>,
}

impl Targets {
    pub(super) fn of<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> Self {
        let (mut ready, mut leaving) = (BTreeSet::new(), BTreeSet::new());
        for slice in slices {
            let port = slice.ports.iter().flatten().find_map(|port| port.port);
            let Some(port) = port.and_then(|port| u16::try_from(port).ok()) else { continue };
            for endpoint in &slice.endpoints {
                let addresses = endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok());
                let addresses = addresses.map(|ip| SocketAddr::new(ip, port));
                if is(endpoint, |conditions| conditions.ready) {
                    ready.extend(addresses);
                } else if is(endpoint, |conditions| conditions.serving) {
                    leaving.extend(addresses);
                }
            }
        }
        Self { ready: Vec::from_iter(ready), leaving: Vec::from_iter(leaving) }
    }

    /// The target of the request with this number: one after the other.
    pub(super) fn pick(&self, number: u64) -> Option<SocketAddr> {
        let these = if self.ready.is_empty() { &self.leaving } else { &self.ready };
        let count = u64::try_from(these.len()).ok()?;
        let index = usize::try_from(number.checked_rem(count)?).ok()?;
        these.get(index).copied()
    }
}

/// A condition of an endpoint; absent means yes.
fn is(
    endpoint: &Endpoint,
    of: impl Fn(&k8s_openapi::api::discovery::v1::EndpointConditions) -> Option<bool>,
) -> bool {
    endpoint.conditions.as_ref().and_then(of).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn targets(endpoints: &Value) -> Targets {
        let slice = json!({"addressType": "IPv4", "metadata": {"name": "shop-1"}, "ports": [{"port": 8080}],
            "endpoints": endpoints});
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
        Targets::of([&slice, &slice].into_iter())
    }

    fn endpoint(ip: &str, ready: bool, serving: bool) -> Value {
        json!({"addresses": [ip], "conditions": {"ready": ready, "serving": serving}})
    }

    #[test]
    fn ready_ones_take_turns_and_others_are_the_last_resort() {
        let some = targets(&json!([
            endpoint("10.0.0.1", true, true),
            endpoint("10.0.0.2", false, true),
            endpoint("10.0.0.3", true, true),
        ]));
        let picked: Vec<_> = (0..3).map(|number| some.pick(number).unwrap().to_string()).collect();
        assert_eq!(picked, ["10.0.0.1:8080", "10.0.0.3:8080", "10.0.0.1:8080"]);
        let leaving =
            targets(&json!([endpoint("10.0.0.2", false, true), endpoint("10.0.0.4", false, false)]));
        assert_eq!(leaving.pick(7).unwrap().to_string(), "10.0.0.2:8080");
        assert_eq!(targets(&json!([endpoint("10.0.0.4", false, false)])).pick(0), None);
        assert_eq!(targets(&json!([{"addresses": ["10.0.0.5"]}])).pick(3).map(|to| to.port()), Some(8080));
    }
}
