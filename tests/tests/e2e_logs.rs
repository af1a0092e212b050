//! `kubectl logs` of VPods: what it shows, who may not see it, and that nothing of it is there unless it is turned on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod vpods;

use std::{fs, path::Path};

use futures::AsyncReadExt;
use harness::{
    Failure, TestResult, network,
    stage::{ModuleSet, PATIENCE, Stage},
    wait,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Client, Config,
    api::{DeleteParams, LogParams},
    config::Kubeconfig,
};
use tempfile::TempDir;
use vpods::*;

const PORT: u16 = 10250;

/// A stage on which logs are turned on as the component does it.
struct Logging {
    stage: Stage,
    /// Addresses of the agents.
    agents: Vec<String>,
    /// With the serving certificate.
    _folder: TempDir,
}

async fn logging(policy: &str, agents: usize) -> Result<Logging, Failure> {
    let folder = tempfile::tempdir()?;
    let addresses: Result<Vec<_>, _> = (0..agents).map(|_| network::allocate_ip()).collect();
    let agents: Vec<String> = addresses?.iter().map(ToString::to_string).collect();
    let pair = rcgen::generate_simple_self_signed(agents.clone())?;
    fs::write(folder.path().join("tls.crt"), pair.cert.pem())?;
    fs::write(folder.path().join("tls.key"), pair.signing_key.serialize_pem())?;
    let mut stage = Stage::builder().bases(1).policy(policy).agents(0).build().await?;
    let component = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/components/kubectl-logs");
    stage.cluster()?.apply_yaml(&fs::read_to_string(component.join("rbac.yaml"))?).await?;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (certificate, key) = (file("tls.crt"), file("tls.key"));
    let authority = stage.cluster()?.client_ca_path();
    for ip in &agents {
        let flags = [
            "--node-address=agent".to_owned(),
            format!("--agent-ip={ip}"),
            format!("--kubelet-tls-cert={certificate}"),
            format!("--kubelet-tls-key={key}"),
            format!("--client-ca-file={}", authority.display()),
            "--authentication-token-webhook".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        stage.start_agent(&flags).await?;
    }
    stage.wait_vnodes_ready(1).await?;
    Ok(Logging { stage, agents, _folder: folder })
}

/// Room for several VPods, and tries without end.
fn patient() -> String {
    policy(&[
        ("podsPerBase: 1", "podsPerBase: 10"),
        (
            "attempts: 5, backoff: {initial: 1s, max: 10s}",
            "attempts: 1000, backoff: {initial: 100ms, max: 100ms}",
        ),
    ])
}

async fn logs(stage: &Stage, pod: &str, container: &str, params: LogParams) -> Result<String, kube::Error> {
    let params = LogParams { container: Some(container.to_owned()), ..params };
    stage.api::<Pod>().logs(pod, &params).await
}

/// Waits until the log of a container tells this, and gives it back.
async fn logs_tell(stage: &Stage, pod: &str, container: &str, what: &str) -> Result<String, Failure> {
    let probe = async || match logs(stage, pod, container, LogParams::default()).await {
        Ok(text) if text.contains(what) => Ok(text),
        Ok(text) => Err(text),
        Err(error) => Err(error.to_string()),
    };
    Ok(wait::until(&format!("{what:?} in the log of {pod}/{container}"), PATIENCE, probe).await?)
}

/// `InternalIP`, whether there is a host name, and the port of the kubelet endpoint.
fn endpoint(node: &Node) -> (String, bool, i32) {
    let status = node.status.as_ref().expect("a status");
    let addresses = status.addresses.as_deref().unwrap_or_default();
    let of = |kind: &str| addresses.iter().find(|address| address.type_ == kind);
    let kubelet = status.daemon_endpoints.as_ref().and_then(|all| all.kubelet_endpoint.as_ref());
    let ip = of("InternalIP").map(|address| address.address.clone()).unwrap_or_default();
    (ip, of("Hostname").is_some(), kubelet.map_or(0, |kubelet| kubelet.port))
}

/// How many TCP sockets a process listens on.
fn listening(process: u32) -> Result<usize, Failure> {
    let mut listening = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{process}/net/{table}"))?;
        let rows = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Column 4 is the state, and 0A is LISTEN; column 10 is the inode.
        listening.extend(rows.filter(|row| row[3] == "0A").map(|row| format!("socket:[{}]", row[9])));
    }
    let open = fs::read_dir(format!("/proc/{process}/fd"))?;
    let sockets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(sockets.filter(|socket| listening.contains(&socket.display().to_string())).count())
}

/// Calls an agent past the API server, with the credentials of a kubeconfig or none; an answer that is no success is its
/// status and text.
async fn direct(
    ip: &str,
    kubeconfig: Option<&Path>,
    method: &str,
    path: &str,
) -> Result<String, (u16, String)> {
    let url: http::Uri = format!("https://{ip}:{PORT}").parse().expect("a URL");
    let mut config = match kubeconfig {
        Some(file) => {
            let file = Kubeconfig::read_from(file).expect("a kubeconfig");
            Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
                .await
                .expect("whole")
        }
        None => Config::new(url.clone()),
    };
    config.cluster_url = url;
    config.root_cert = None;
    config.accept_invalid_certs = true;
    // A 503 is an answer here.
    config.default_retry = false;
    let client = Client::try_from(config).expect("a client");
    let request = http::Request::builder().method(method).uri(path).body(Vec::new()).expect("a request");
    client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        error => panic!("{error}"),
    })
}

/// BL-137: nothing of it is there unless it is asked for.
#[tokio::test]
async fn by_default_nothing_is_served() -> TestResult {
    let stage = Stage::builder().bases(1).build().await?;
    let node = stage.nodes().get(&stage.vnode_of("base-0")).await?;
    let base = stage.base("base-0")?.ip().to_string();
    assert_eq!(endpoint(&node), (base, true, 0));
    assert_eq!(listening(stage.agent(0)?.id())?, 1, "the admin server alone");
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    assert!(logs(&stage, "shop", "shop", LogParams::default()).await.is_err());
    Ok(())
}

/// Install, failure with its root cause, and uninstall, each in the log of its container; options choose among the lines.
#[tokio::test]
async fn the_story_of_a_module_is_read_through_the_api_server() -> TestResult {
    let Logging { stage, agents, _folder } = logging(&patient(), 1).await?;
    let node = stage.nodes().get(&stage.vnode_of("base-0")).await?;
    assert_eq!(endpoint(&node), (agents[0].clone(), false, i32::from(PORT)));
    let shop = jar(&stage, "shop", "1.0.0")?;
    let cause = "java.lang.NoClassDefFoundError: com/example/Cart";
    let cart = stage.artifacts.module("cart", "1.0.0").fails(cause).url()?;
    let group = ModuleSet::deployment("shop", "1.0.0", &shop).module("cart", "1.0.0", &cart);
    stage.apply(&group.pod_yaml("group")).await?;
    pod_failed(&stage, "group").await?;

    let cart = logs_tell(&stage, "group", "cart", "failed (ClassError)").await?;
    assert!(cart.contains("installBiz cart:1.0.0 from http://") && cart.contains(cause), "{cart}");
    assert!(cart.contains("stack: ") && !cart.contains("installBiz shop"), "{cart}");
    let shop = logs_tell(&stage, "group", "shop", "failed for good").await?;
    for told in [
        "bound to virtual-node-",
        "uninstallBiz shop:1.0.0",
        "arklet answered installBiz",
        "active",
        "done; the base does not list shop:1.0.0",
    ] {
        assert!(shop.contains(told), "{told}: {shop}");
    }
    assert!(!shop.contains("installBiz cart"), "{shop}");
    for line in shop.lines() {
        let time = line.split(' ').next().unwrap_or_default();
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{line}");
    }

    let kubectl = stage.kubectl()?;
    let tail = kubectl.run(&["logs", "group", "-c", "shop", "--tail=2"]).await?;
    assert_eq!(
        tail.lines().collect::<Vec<_>>(),
        shop.lines().rev().take(2).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>()
    );
    assert_eq!(kubectl.run(&["logs", "group", "-c", "shop", "--since-time=2100-01-01T00:00:00Z"]).await?, "");
    let since = kubectl.run(&["logs", "group", "-c", "shop", "--since=1h"]).await?;
    assert_eq!(since, shop);
    assert_eq!(kubectl.run(&["logs", "group", "-c", "shop", "--limit-bytes=20"]).await?, shop[..20]);
    let stamped = kubectl.run(&["logs", "group", "-c", "shop", "--timestamps", "--tail=1"]).await?;
    assert_eq!(stamped.matches("Z ").count(), 2, "{stamped}");
    let refused = kubectl.run(&["logs", "group", "-c", "shop", "--previous"]).await.unwrap_err().to_string();
    assert!(refused.contains("previous run of container") && refused.contains("not found"), "{refused}");
    Ok(())
}

/// A follower sees the drain and the uninstall, and the log ends with the VPod.
#[tokio::test]
async fn a_follower_sees_the_end() -> TestResult {
    let Logging { stage, agents: _, _folder } = logging(&patient(), 1).await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    logs_tell(&stage, "shop", "shop", "the Pod is Ready").await?;
    let pods = stage.api::<Pod>();
    let params = LogParams { follow: true, tail_lines: Some(1), ..LogParams::default() };
    let mut follower = Box::pin(pods.log_stream("shop", &params).await?);
    pods.delete("shop", &DeleteParams::default()).await?;
    let mut text = String::new();
    tokio::time::timeout(PATIENCE, follower.read_to_string(&mut text)).await??;
    let told = [
        "deletion was asked for",
        "drained",
        "uninstallBiz shop:1.0.0",
        "done; the base does not list shop:1.0.0",
    ];
    let places: Vec<_> = told.iter().map(|told| text.find(told)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");

    // A module that fails for ever fills its journal, and no more.
    let url = stage
        .artifacts
        .module("loud", "1.0.0")
        .fails("java.lang.IllegalStateException: no database")
        .url()?;
    stage.apply(&ModuleSet::deployment("loud", "1.0.0", &url).pod_yaml("loud")).await?;
    let text = logs_tell(&stage, "loud", "loud", "earlier lines were dropped").await?;
    assert!(text.len() <= 64 << 10, "{} bytes", text.len());
    assert!(text.contains("failed (StartFailed): java.lang.IllegalStateException: no database"), "{text}");
    Ok(())
}

/// Straight at the port nobody gets anything without a name, and nothing without the right.
#[tokio::test]
async fn callers_past_the_api_server_need_a_name_and_the_right() -> TestResult {
    let Logging { stage, agents, _folder } = logging(&patient(), 1).await?;
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    let namespace = stage.default_ns().to_owned();
    let reader = format!("reader-{namespace}");
    let role = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {reader}}}\nrules:\n\
         - {{apiGroups: [''], resources: [nodes/log], verbs: [get]}}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {reader}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {reader}}}\nsubjects:\n\
         - {{kind: User, name: {reader}, apiGroup: rbac.authorization.k8s.io}}\n\
         - {{kind: ServiceAccount, name: reader, namespace: {namespace}}}\n---\n\
         apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: reader, namespace: {namespace}}}\n---\n\
         apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: other, namespace: {namespace}}}\n"
    );
    stage.apply(&role).await?;
    let plane = stage.cluster()?;
    let path = format!("/containerLogs/{namespace}/shop/shop");
    let status = async |kubeconfig: Option<&Path>, method: &str, path: &str| match direct(
        &agents[0], kubeconfig, method, path,
    )
    .await
    {
        Ok(text) => (200, text),
        Err(refused) => refused,
    };
    let exec = format!("/exec/{namespace}/shop/shop?command=ls");
    for (method, path) in [("GET", path.as_str()), ("POST", &exec), ("GET", "/pods"), ("GET", "/healthz")] {
        assert_eq!(status(None, method, path).await.0, 401, "{path}");
    }
    let other = plane.kubeconfig_for_user("nobody-in-particular", None)?;
    assert_eq!(status(Some(&other), "GET", &path).await.0, 403, "a certificate without the right");
    let other = plane.kubeconfig_for_service_account(&namespace, "other").await?;
    assert_eq!(status(Some(&other), "GET", &path).await.0, 403, "a token without the right");
    let by_certificate = plane.kubeconfig_for_user(&reader, None)?;
    let by_token = plane.kubeconfig_for_service_account(&namespace, "reader").await?;
    for reader in [&by_certificate, &by_token] {
        // The authorizer hears of a new role a moment after it is stored, and a refusal is remembered for seconds.
        wait::until("log for who may read it", SOON, async || {
            match status(Some(reader), "GET", &path).await {
                (200, text) if text.contains("installBiz shop:1.0.0") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        assert_eq!(status(Some(reader), "POST", &exec).await.0, 403, "logs are all that the right opens");
    }
    let (code, text) = status(Some(&plane.kubeconfig_path()), "POST", &exec).await;
    assert!(code == 501 && text.contains("go to the base Pod"), "{code} {text}");
    stage.kubectl()?.run(&["delete", "clusterrole,clusterrolebinding", &reader]).await?;
    Ok(())
}

/// Only the agent that acts writes its address; after a take-over logs come from the new one, which says what it lacks.
#[tokio::test]
async fn a_take_over_moves_the_address() -> TestResult {
    let Logging { mut stage, agents, _folder } = logging(&patient(), 2).await?;
    let (first, second) = (agents[0].as_str(), agents[1].as_str());
    let url = jar(&stage, "shop", "1.0.0")?;
    stage.apply(&ModuleSet::deployment("shop", "1.0.0", &url).pod_yaml("shop")).await?;
    pod_ready(&stage, "shop").await?;
    logs_tell(&stage, "shop", "shop", "arklet answered installBiz").await?;
    let name = stage.vnode_of("base-0");
    assert_eq!(endpoint(&stage.nodes().get(&name).await?).0, first);
    let path = format!("/containerLogs/{}/shop/shop", stage.default_ns());
    let admin = stage.cluster()?.kubeconfig_path();
    let (code, text) = direct(second, Some(&admin), "GET", &path).await.unwrap_err();
    assert!(code == 503 && text.contains("does not act"), "{code} {text}");

    stage.agents()[0].kill9();
    let moved = |node: Option<&Node>| {
        node.is_some_and(|node| endpoint(node) == (second.to_owned(), false, i32::from(PORT)))
    };
    wait::object(&stage.nodes(), &name, "address of the second agent", PATIENCE, moved).await?;
    let text = logs_tell(&stage, "shop", "shop", "takes the running VPod over").await?;
    assert!(!text.contains("installBiz"), "{text}");
    assert_eq!(stage.installs("shop")?, 1);
    Ok(())
}
