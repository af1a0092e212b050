//! The heartbeat by which a base announces itself to a controller.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use super::base::Base;
use crate::fetch;

/// What is posted to `{endpoint}/heartbeat`.
fn body(base: &Base) -> Value {
    let identity = base.identity();
    json!({
        "baseMetadata": {
            "clusterName": "default",
            // A real base says this, too, unless it was given a class that knows better.
            "name": "TO_BE_IMPLEMENTED",
            "identity": identity,
            "version": "1.0.0",
        },
        "localHostName": identity,
        "localIP": base.address.ip().to_string(),
        "port": base.address.port(),
        "state": "activated",
    })
}

/// Announces the base until its end. A beat that fails is not repeated; the next one comes in time.
pub(super) async fn beat(base: Arc<Base>, endpoint: String) {
    let period = base.options().heartbeat_period;
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let url = format!("{endpoint}/heartbeat");
    loop {
        tokio::select! {
            () = base.life.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let post = fetch::post_json(&url, Bytes::from(body(&base).to_string()), period);
        tokio::select! {
            () = base.life.cancelled() => return,
            // A real base only writes to its log what went wrong.
            _ = post => {}
        }
    }
}
