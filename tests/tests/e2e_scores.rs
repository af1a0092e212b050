//! What scores do on a real kube-scheduler: packing, spreading, and `filter.decisive`, with which it asks for none.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at what it did not expect"
)]

mod placing;

use std::collections::BTreeSet;

use harness::{Failure, TestResult};
use placing::{Field, Layout, SOON, module_pod, vnode};
use serde_json::Value;

const HEAD: &str =
    "apiVersion: policy.stowage.dev/v1alpha1\nkind: PlacementPolicy\ndefaults: {podsPerBase: 8}\n";

fn three_bases() -> Vec<Value> {
    ["v0", "v1", "v2"].map(|name| vnode(name, "2.1.0", 8)).to_vec()
}

/// Places one module after the other, and returns the nodes of all.
async fn placed(field: &Field, modules: &[&str]) -> Result<BTreeSet<String>, Failure> {
    let mut nodes = BTreeSet::new();
    for module in modules {
        let name = format!("{module}-0");
        field.create(vec![module_pod(&name, module)]).await?;
        nodes.insert(field.bound(&name, SOON).await?);
    }
    Ok(nodes)
}

async fn field(name: &str, policy: &str) -> Result<Field, Failure> {
    let policy = format!("{HEAD}{policy}\n");
    Field::new(Layout { name, policy: &policy, pairs: 1, ..Layout::default() }, three_bases()).await
}

#[tokio::test]
async fn pack_puts_modules_together_and_spread_apart() -> TestResult {
    let modules = ["shop", "cart", "mail"];
    let packed = field("pack", "scoring: [{term: pack, weight: 1}]").await?;
    assert_eq!(placed(&packed, &modules).await?.len(), 1);
    assert!(packed.calls("prioritize").await? >= 3, "each was scored");
    drop(packed);
    let spread = field("spread", "scoring: [{term: spread, weight: 1}]").await?;
    assert_eq!(placed(&spread, &modules).await?.len(), 3);
    Ok(())
}

/// A filter that answers with the best base alone: the modules land where the scores want them, and nobody asks for scores.
#[tokio::test]
async fn a_decisive_filter_saves_the_second_call() -> TestResult {
    let policy = "scoring: [{term: pack, weight: 1}]\nfilter: {decisive: true}";
    let field = field("decisive", policy).await?;
    assert_eq!(placed(&field, &["shop", "cart", "mail"]).await?.len(), 1);
    assert!(field.calls("filter").await? >= 3);
    assert_eq!(field.calls("prioritize").await?, 0, "scores were asked for");
    Ok(())
}
