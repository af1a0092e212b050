//! The sidecar shape: each base has an agent of its own, with exactly the rights that are shipped for it and a token that
//! belongs to its base Pod.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod sidecars;
mod vpods;

use std::{collections::BTreeMap, fs};

use harness::{
    Failure, TestResult,
    stage::{BaseSet, ModuleSet, PATIENCE, Stage},
    wait,
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use policy::contract::names;
use serde_json::json;
use tempfile::TempDir;
use vpods::*;

/// A stage whose bases have agents of their own.
struct Sidecars {
    stage: Stage,
    /// Numbers of the agents, by base Pod.
    agents: BTreeMap<String, usize>,
    folder: TempDir,
}

impl Sidecars {
    async fn of(count: u32) -> Result<Self, Failure> {
        let stage = Stage::builder().agents(0).build().await?;
        let namespace = stage.default_ns().to_owned();
        stage.cluster()?.apply_yaml(&sidecars::rights(&namespace)).await?;
        let bases = BaseSet::stateful("base", "2.1.0", count)
            .label(names::SIDECAR, names::SIDECAR_YES)
            .pod_spec(|pod| {
                pod["serviceAccountName"] = "stowage-sidecar".into();
                // kubelet ends the base only when the test says so: with it the token of the agent ends.
                pod["terminationGracePeriodSeconds"] = 300.into();
                pod["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 290}}});
            });
        stage.apply_bases(&bases).await?;
        stage.wait_bases_ready(count as usize).await?;
        let mut all = Self { stage, agents: BTreeMap::new(), folder: tempfile::tempdir()? };
        for number in 0..count {
            all.start(&format!("base-{number}")).await?;
        }
        all.stage.wait_vnodes_ready(count as usize).await?;
        Ok(all)
    }

    /// What kubelet does when it starts the container.
    async fn start(&mut self, base: &str) -> TestResult {
        let stage = &mut self.stage;
        let namespace = stage.default_ns().to_owned();
        let pod = stage.base_pods().get(base).await?;
        let (uid, ip) = (uid(&pod), stage.base(base)?.ip().to_string());
        let token = stage.cluster()?.kubeconfig_for_pod(&namespace, "stowage-sidecar", (base, &uid)).await?;
        let pair = rcgen::generate_simple_self_signed(vec![ip.clone()])?;
        let file = |name: &str| self.folder.path().join(format!("{base}.{name}"));
        fs::write(file("crt"), pair.cert.pem())?;
        fs::write(file("key"), pair.signing_key.serialize_pem())?;
        let mut flags = sidecars::flags(&namespace, base, &uid);
        flags.retain(|flag| !flag.starts_with("--policy-file="));
        flags.extend([
            format!("--policy-file={}", stage.policy_file().display()),
            format!("--module-kubeconfig={}", token.display()),
            format!("--agent-ip={ip}"),
            format!("--kubelet-tls-cert={}", file("crt").display()),
            format!("--kubelet-tls-key={}", file("key").display()),
            format!("--client-ca-file={}", stage.cluster()?.client_ca_path().display()),
        ]);
        let number = stage.start_agent_with(flags).await?;
        self.agents.insert(base.to_owned(), number);
        Ok(())
    }

    fn agent(&self, base: &str) -> Result<&harness::stage::Daemon, Failure> {
        Ok(self.stage.agent(self.agents[base])?)
    }

    /// Waits until the Lease of a VNode is renewed by this agent, and says by whom.
    async fn renewed(&self, base: &str) -> TestResult {
        let before = self.lease(base).await?.and_then(|lease| lease.spec?.renew_time);
        let renewed = |lease: Option<&Lease>| {
            lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref()) != before.as_ref()
        };
        let name = self.stage.vnode_of(base);
        wait::object(&self.leases(), &name, "renewed Lease", PATIENCE, renewed).await?;
        Ok(())
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.stage.client(), "kube-node-lease")
    }

    async fn lease(&self, base: &str) -> Result<Option<Lease>, Failure> {
        Ok(self.leases().get_opt(&self.stage.vnode_of(base)).await?)
    }

    async fn vnode_uid(&self, base: &str) -> Result<Option<String>, Failure> {
        Ok(self.stage.nodes().get_opt(&self.stage.vnode_of(base)).await?.and_then(|node| node.uid()))
    }

    /// Neither VNode nor Lease is there.
    async fn is_gone(&self, base: &str) -> TestResult {
        let name = self.stage.vnode_of(base);
        wait::gone(&self.stage.nodes(), &name, PATIENCE).await?;
        wait::gone(&self.leases(), &name, PATIENCE).await?;
        Ok(())
    }

    /// Base Pods with a Pod of the Deployment `shop`.
    async fn shops(&self) -> Result<Vec<String>, Failure> {
        let pods = self.stage.pods("app=shop").await?;
        let mut on: Vec<String> = pods.iter().map(|pod| base_of(&self.stage, pod).pod().to_owned()).collect();
        on.sort();
        Ok(on)
    }
}

/// By force, as from a dead node, or as kubelet does when all containers have ended.
fn now() -> DeleteParams {
    DeleteParams::default().grace_period(0)
}

#[tokio::test]
async fn each_base_is_served_by_its_own_agent_and_by_no_other() -> TestResult {
    let mut all = Sidecars::of(3).await?;
    let url = jar(&all.stage, "shop", "1.0.0")?;
    all.stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(3).yaml()).await?;
    let pods = all.stage.wait_pods_ready("app=shop", 3).await?;
    all.stage.wait_modules(&[("shop:1.0.0", 3)]).await?;
    assert_eq!(all.stage.installs("shop")?, 3);
    for base in ["base-0", "base-1", "base-2"] {
        let uid = all.stage.base(base)?.uid().to_owned();
        let holder = all.lease(base).await?.and_then(|lease| lease.spec?.holder_identity);
        assert_eq!(holder, Some(format!("{base}_{uid}")));
        let leads = all.stage.api::<Lease>().get(&all.stage.vnode_of(base)).await?;
        let owner = &leads.metadata.owner_references.as_ref().expect("the Lease goes with the Pod")[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Pod", uid.as_str()));
    }

    // kubectl logs reaches the agent at the address of its base.
    let pod = pods[0].name_any();
    let node: Node = all.stage.nodes().get(&node_of(&pods[0])).await?;
    let endpoint = node.status.as_ref().and_then(|status| status.daemon_endpoints.clone());
    assert_eq!(endpoint.and_then(|all| all.kubelet_endpoint).map(|kubelet| kubelet.port), Some(10250));
    let text = all.stage.kubectl()?.run(&["logs", &pod, "-c", "shop"]).await?;
    assert!(text.contains("installBiz shop:1.0.0"), "{text}");

    // Two are down, and one of them comes back: what the others have is not its business.
    let mut nodes = Vec::new();
    for base in ["base-0", "base-1", "base-2"] {
        nodes.push(all.vnode_uid(base).await?);
    }
    all.agent("base-0")?.kill9();
    all.agent("base-1")?.kill9();
    all.start("base-0").await?;
    all.agent("base-0")?.wait_ready().await?;
    all.renewed("base-0").await?;
    queried(&*all.stage.base("base-0")?, 3).await?;
    assert!((all.agent("base-0")?.metric("stowage_agent_bases", &[]).await? - 1.0).abs() < 0.1);
    assert!(all.agent("base-0")?.metric("stowage_agent_brake", &[]).await? < 0.5);
    all.start("base-1").await?;
    all.renewed("base-1").await?;
    queried(&*all.stage.base("base-1")?, 3).await?;
    for (base, before) in ["base-0", "base-1", "base-2"].iter().zip(nodes) {
        assert_eq!(all.vnode_uid(base).await?, before, "{base}");
    }
    assert_eq!(all.stage.installs("shop")?, 3, "nothing was installed again");
    all.stage.wait_pods_ready("app=shop", 3).await?;
    Ok(())
}

#[tokio::test]
async fn a_base_that_ends_takes_its_vnode_along() -> TestResult {
    let mut all = Sidecars::of(3).await?;
    let url = jar(&all.stage, "shop", "1.0.0")?;
    all.stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(1).yaml()).await?;
    all.stage.wait_pods_ready("app=shop", 1).await?;
    let first = all.shops().await?.remove(0);

    // In order: drained and removed while the base still sleeps, or right after; then kubelet ends the agent.
    let old = all.vnode_uid(&first).await?;
    all.stage.base_pods().delete(&first, &DeleteParams::default()).await?;
    all.is_gone(&first).await?;
    let ended = all.agent(&first)?.term(SOON).await?;
    assert!(ended.success(), "{ended}");
    all.stage.base_pods().delete(&first, &now()).await?;
    all.stage.wait_pods_ready("app=shop", 1).await?;
    let second = all.shops().await?.remove(0);
    assert_ne!(first, second);

    // The next Pod of that name is another base, with an agent of its own.
    all.stage.wait_bases_ready(3).await?;
    all.start(&first).await?;
    all.stage.wait_vnodes_ready(3).await?;
    assert_ne!(all.vnode_uid(&first).await?, old);

    // kubelet ends the agent before it has drained anything: it still takes all away, and then ends.
    let policy = policy(&[("drain: {wait: 1s", "drain: {wait: 50s")]);
    all.stage.rewrite_policy(&policy)?;
    wait::until("the new policy", SOON, async || {
        let agent = all.agent(&second).map_err(|error| error.to_string())?;
        let generation = agent.metric("policy_generation", &[]).await.map_err(|error| error.to_string())?;
        if generation > 1.5 { Ok(()) } else { Err(generation.to_string()) }
    })
    .await?;
    all.stage.base_pods().delete(&second, &DeleteParams::default()).await?;
    let leaving = |node: Option<&Node>| {
        node.is_none_or(|node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)))
    };
    let vnode = all.stage.vnode_of(&second);
    wait::object(&all.stage.nodes(), &vnode, "leaving VNode", PATIENCE, leaving).await?;
    let ended = all.agent(&second)?.term(SOON).await?;
    assert!(ended.success(), "{ended}");
    assert_eq!(all.vnode_uid(&second).await?, None, "gone when the agent is");
    assert!(all.lease(&second).await?.is_none());
    all.stage.wait_pods_ready("app=shop", 1).await?;
    let last = all.shops().await?.remove(0);
    assert_ne!(last, second);
    Ok(())
}

/// The real node died, and nobody could clean up: the agent of the fleet does, and leaves the others alone.
#[tokio::test]
async fn what_a_dead_agent_leaves_the_agent_of_the_fleet_removes() -> TestResult {
    let mut all = Sidecars::of(2).await?;
    let url = jar(&all.stage, "shop", "1.0.0")?;
    all.stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).replicas(2).yaml()).await?;
    all.stage.wait_pods_ready("app=shop", 2).await?;
    // One of the fleet's bases beside them.
    all.stage.apply_bases(&BaseSet::stateful("plain", "2.1.0", 1)).await?;
    all.stage.wait_bases_ready(3).await?;
    let fleet = all.agents.len();
    all.stage.start_agent(&[]).await?;
    all.stage.wait_vnodes_ready(3).await?;

    all.agent("base-1")?.kill9();
    let left = all.stage.nodes().get(&all.stage.vnode_of("base-1")).await?;
    all.stage.kubectl()?.run(&["scale", "statefulset", "base", "--replicas=1"]).await?;
    let ordered = |pod: Option<&Pod>| pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    wait::object(&all.stage.base_pods(), "base-1", "deletion", PATIENCE, ordered).await?;
    all.stage.base_pods().delete("base-1", &now()).await?;
    all.is_gone("base-1").await?;
    let on_it = ListParams::default().fields(&format!("spec.nodeName={}", left.name_any()));
    assert!(all.stage.api::<Pod>().list(&on_it).await?.items.is_empty());
    all.stage.wait_pods_ready("app=shop", 2).await?;
    all.stage.wait_modules(&[("shop:1.0.0", 2)]).await?;
    assert_eq!(all.shops().await?, ["base-0", "plain-0"]);

    // Each did its part and no more.
    let holder = async |base: &str| {
        all.lease(base).await.map(|lease| lease.and_then(|lease| lease.spec?.holder_identity))
    };
    assert!(holder("base-0").await?.is_some_and(|holder| holder.starts_with("base-0_")));
    assert_eq!(holder("plain-0").await?, Some(format!("agent-{fleet}")));
    let installed = all.stage.agent(fleet)?.metric("stowage_agent_installs_total", &[]).await?;
    assert!((installed - 1.0).abs() < 0.1, "on the base without an agent: {installed}");
    assert_eq!(all.stage.base("base-0")?.journal()?.installs("shop"), 1);
    Ok(())
}

/// Modules run in the base's process: what is mounted there is theirs, and the agent's token must not be.
#[test]
fn the_token_of_a_sidecar_is_mounted_into_the_agent_alone() {
    let pod = sidecars::sample_pod();
    assert_eq!(pod["automountServiceAccountToken"], false);
    let volumes = pod["volumes"].as_array().expect("volumes");
    let token = volumes.iter().find(|volume| volume.to_string().contains("serviceAccountToken"));
    let name = &token.expect("a token")["name"];
    let mounts = |containers: &serde_json::Value| {
        let containers = containers.as_array().expect("containers").iter();
        let with = containers.filter(|container| {
            container["volumeMounts"].as_array().into_iter().flatten().any(|mount| mount["name"] == *name)
        });
        with.map(|container| container["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(mounts(&pod["initContainers"]), ["stowage-agent"]);
    assert_eq!(mounts(&pod["containers"]), Vec::<serde_json::Value>::new());
    assert_eq!(pod["initContainers"][0]["restartPolicy"], "Always", "a native sidecar");
    let shutdown = pod["initContainers"][0]["args"].to_string();
    assert!(shutdown.contains("--shutdown-limit=15s"), "{shutdown}");
    let grace = pod["terminationGracePeriodSeconds"].as_i64().expect("seconds");
    let stop = pod
        .pointer("/containers/0/lifecycle/preStop/sleep/seconds")
        .and_then(serde_json::Value::as_i64)
        .expect("seconds");
    assert!(grace >= stop + 30, "the base's own end and the farewell of the agent fit in");
}
