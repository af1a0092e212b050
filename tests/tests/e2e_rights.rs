//! What the account of the agent may do: exactly what docs/rbac.md says, and only to objects of ours.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at what it did not expect"
)]

mod shipped;
mod sidecars;

use std::collections::{BTreeMap, BTreeSet};

use harness::controlplane::ControlPlane;
use harness::wait;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use policy::contract::names;
use serde_json::{Value, json};
use shipped::{SOON, account, agent, client_of, cluster, namespace, object, repository, strictly};

fn ours() -> Value {
    json!({"app.kubernetes.io/managed-by": "stowage", "stowage.dev/base-cluster": "default"})
}

fn refused<T>(result: kube::Result<T>) {
    let error = result.map(drop).expect_err("the policy refuses it").to_string();
    assert!(error.contains("account of the Stowage agent"), "{error}");
}

/// BL-125: Nodes and Leases of others are out of reach, whatever the agent would do.
#[tokio::test]
async fn the_agent_is_confined_to_nodes_and_leases_of_ours() {
    let plane = cluster().await;
    let (admin, agent) = (plane.client().unwrap(), agent(plane).await);
    let (post, patch) = (PostParams::default(), PatchParams::default());
    let (all_nodes, nodes): (Api<Node>, Api<Node>) = (Api::all(admin.clone()), Api::all(agent.clone()));
    all_nodes.create(&post, &object(json!({"metadata": {"name": "confined-worker"}}))).await.unwrap();
    let name = "virtual-node-java-confined-a";
    let node = |name: &str| object::<Node>(json!({"metadata": {"name": name, "labels": ours()}}));
    nodes.create(&post, &node(name)).await.unwrap();
    refused(nodes.create(&post, &node("confined-disguised")).await);
    let label = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
    let status = Patch::Merge(json!({"status": {"capacity": {"pods": "1"}}}));
    nodes.patch(name, &patch, &label).await.unwrap();
    nodes.patch_status(name, &patch, &status).await.unwrap();
    refused(nodes.patch("confined-worker", &patch, &label).await);
    refused(nodes.patch_status("confined-worker", &patch, &status).await);
    // Making a foreign Node ours is as much forbidden as letting one of ours go.
    refused(
        nodes.patch("confined-worker", &patch, &Patch::Merge(json!({"metadata": {"labels": ours()}}))).await,
    );
    for labels in
        [json!({"app.kubernetes.io/managed-by": null}), json!({"stowage.dev/base-cluster": "other"})]
    {
        refused(nodes.patch(name, &patch, &Patch::Merge(json!({"metadata": {"labels": labels}}))).await);
    }
    refused(nodes.delete("confined-worker", &DeleteParams::default()).await);

    let lease =
        |name: &str, labels: Value| object::<Lease>(json!({"metadata": {"name": name, "labels": labels}}));
    let heartbeats: Api<Lease> = Api::namespaced(agent.clone(), "kube-node-lease");
    let all_heartbeats: Api<Lease> = Api::namespaced(admin, "kube-node-lease");
    all_heartbeats.create(&post, &lease("confined-worker", json!({}))).await.unwrap();
    heartbeats.create(&post, &lease(name, ours())).await.unwrap();
    refused(heartbeats.create(&post, &lease("confined-other", json!({}))).await);
    let renew = Patch::Merge(json!({"spec": {"holderIdentity": "me"}}));
    heartbeats.patch(name, &patch, &renew).await.unwrap();
    refused(heartbeats.patch("confined-worker", &patch, &renew).await);
    refused(heartbeats.delete("confined-worker", &DeleteParams::default()).await);
    heartbeats.delete(name, &DeleteParams::default()).await.unwrap();
    let own: Api<Lease> = Api::namespaced(agent, "stowage-system");
    own.create(&post, &lease("stowage-agent", json!({}))).await.unwrap();
    let mut held = own.get("stowage-agent").await.unwrap();
    held.spec.get_or_insert_default().holder_identity = Some("me".to_owned());
    own.replace("stowage-agent", &post, &held).await.unwrap();
    refused(own.create(&post, &lease("another", ours())).await);
    nodes.delete(name, &DeleteParams::default()).await.unwrap();
}

/// BL-125: so are Pods elsewhere.
#[tokio::test]
async fn the_agent_is_confined_to_pods_on_vnodes_and_to_the_gate_of_bases() {
    let plane = cluster().await;
    let kubectl = namespace(plane, "confined", "").await;
    let (admin, agent) = (plane.client().unwrap(), agent(plane).await);
    let (all, pods): (Api<Pod>, Api<Pod>) =
        (Api::namespaced(admin, "confined"), Api::namespaced(agent, "confined"));
    let gate = json!([{"conditionType": "stowage.dev/modules-ready"}]);
    let pod = |name: &str, node: &str, gates: &Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeName": node, "readinessGates": gates, "tolerations": [{"operator": "Exists"}],
                     "containers": [{"name": "a", "image": "a"}]},
        })
    };
    for (name, node, gates) in [
        ("vpod", "virtual-node-java-confined-b", json!([])),
        ("other", "worker", json!([])),
        ("base", "worker", gate),
    ] {
        all.create(&PostParams::default(), &object(pod(name, node, &gates))).await.unwrap();
    }
    let patch = PatchParams::default();
    let condition = |kind: &str, status: &str| {
        Patch::Strategic(json!({"status": {"conditions": [{"type": kind, "status": status}]}}))
    };
    let running = Patch::Merge(json!({"status": {"phase": "Running", "podIP": "10.244.0.9"}}));
    pods.patch_status("vpod", &patch, &running).await.unwrap();
    pods.patch_status("vpod", &patch, &condition("module.koupleless.io/installed", "True")).await.unwrap();
    refused(pods.patch_status("other", &patch, &running).await);
    refused(pods.patch_status("other", &patch, &condition("stowage.dev/modules-ready", "True")).await);
    pods.patch_status("base", &patch, &condition("stowage.dev/modules-ready", "False")).await.unwrap();
    pods.patch_status("base", &patch, &condition("stowage.dev/modules-ready", "True")).await.unwrap();
    refused(pods.patch_status("base", &patch, &running).await);
    refused(pods.patch_status("base", &patch, &condition("Ready", "True")).await);
    let container = json!([{"name": "a", "image": "a", "imageID": "", "ready": true, "restartCount": 0}]);
    for status in [
        json!({"podIPs": [{"ip": "10.244.0.9"}]}),
        json!({"hostIP": "10.0.0.9"}),
        json!({"hostIP": "10.0.0.9", "hostIPs": [{"ip": "10.0.0.9"}]}),
        json!({"containerStatuses": container}),
        json!({"initContainerStatuses": container}),
        json!({"ephemeralContainerStatuses": container}),
        json!({"reason": "Evicted"}),
        json!({"message": "because"}),
        json!({"startTime": "2026-01-01T00:00:00Z"}),
        json!({"observedGeneration": 7}),
    ] {
        refused(pods.patch_status("base", &patch, &Patch::Merge(json!({"status": status}))).await);
    }
    // A write of the status may change these too.
    for metadata in [
        json!({"labels": {"a": "b"}}),
        json!({"annotations": {"a": "b"}}),
        json!({"finalizers": ["example.com/stays"]}),
    ] {
        refused(pods.patch_status("base", &patch, &Patch::Merge(json!({"metadata": metadata}))).await);
    }
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    refused(pods.delete("other", &now).await);
    refused(pods.delete("base", &now).await);
    pods.delete("vpod", &now).await.unwrap();
    kubectl.run(&["delete", "pods", "--all", "--grace-period=0", "--force"]).await.unwrap();
}

/// What is asked of the authorizer: group, resource, subresource, namespace, name.
type Subject = (String, String, String, String, String);

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// The rows of the tables in docs/rbac.md below headings that begin so.
fn published(heading: &str, tables: usize) -> BTreeMap<Subject, BTreeSet<String>> {
    let page = std::fs::read_to_string(repository().join("docs/rbac.md")).unwrap();
    let agent = page.split("\n## ").filter(|part| part.starts_with(heading)).collect::<Vec<_>>();
    assert_eq!(agent.len(), tables);
    let mut rows: BTreeMap<Subject, BTreeSet<String>> = BTreeMap::new();
    for line in agent.iter().flat_map(|part| part.lines()).filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [resources, place, verbs, ..] = cells.as_slice() else { panic!("a short row: {line}") };
        let namespace = match *place {
            "where" => continue,
            "cluster" => "",
            "kube-node-lease" | "stowage-system" => place,
            "its own" => "bases",
            _ => "shop",
        };
        for resource in resources.split(", ") {
            let (resource, rest) = resource.split_once('/').unwrap_or((resource, ""));
            let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
            let subresource = if ["status", "eviction", "scale"].contains(&rest) { rest } else { "" };
            let named = if subresource.is_empty() { rest } else { "" };
            let subject = [group, resource, subresource, namespace, named].map(str::to_owned);
            rows.entry(subject.into()).or_default().extend(verbs.split(", ").map(str::to_owned));
        }
    }
    rows
}

async fn may(client: &Client, subject: &Subject, verb: &str) -> bool {
    account_may(client, "stowage-agent", subject, verb).await
}

async fn account_may(client: &Client, account: &str, subject: &Subject, verb: &str) -> bool {
    let user = format!("system:serviceaccount:stowage-system:{account}");
    user_may(client, &user, subject, verb).await
}

async fn user_may(client: &Client, user: &str, subject: &Subject, verb: &str) -> bool {
    let (group, resource, subresource, namespace, name) = subject.clone();
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(group),
                resource: Some(resource),
                subresource: Some(subresource),
                namespace: Some(namespace),
                name: Some(name),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    reviews.create(&PostParams::default(), &review).await.unwrap().status.is_some_and(|status| status.allowed)
}

/// BL-109, BL-125: no more rights than those of docs/rbac.md; to make a Pod is none of them.
#[tokio::test]
async fn the_agents_rights_are_those_of_the_page() {
    let plane = cluster().await;
    let client = plane.client().unwrap();
    let published = published("The agent", 2);
    assert!(published.len() >= 11, "{published:?}");
    for (subject, verbs) in &published {
        // A right to every object is a right to this one.
        let every =
            (subject.0.clone(), subject.1.clone(), subject.2.clone(), subject.3.clone(), String::new());
        let inherited = published.get(&every).cloned().unwrap_or_default();
        // Secrets are opened by a Role of the user's.
        let allowed: BTreeSet<_> = if subject.1 == "secrets" { BTreeSet::new() } else { verbs | &inherited };
        for verb in VERBS {
            assert_eq!(may(&client, subject, verb).await, allowed.contains(verb), "{verb} {subject:?}");
        }
    }
    for (group, resource, subresource, namespace) in [
        ("", "secrets", "", "stowage-system"),
        ("", "serviceaccounts", "token", "stowage-system"),
        ("", "pods", "exec", "shop"),
        ("", "pods", "binding", "shop"),
        ("", "nodes", "proxy", ""),
        ("apps", "statefulsets", "scale", "shop"),
        ("apps", "controllerrevisions", "", "shop"),
        ("coordination.k8s.io", "leases", "", "kube-system"),
        ("rbac.authorization.k8s.io", "clusterroles", "", ""),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", "", ""),
        ("authentication.k8s.io", "tokenreviews", "", ""),
        ("authorization.k8s.io", "subjectaccessreviews", "", ""),
    ] {
        let subject = [group, resource, subresource, namespace, ""].map(str::to_owned).into();
        for verb in VERBS {
            assert!(!may(&client, &subject, verb).await, "{verb} {subject:?}");
        }
    }
}

/// A namespace that may have bases with agents of their own, and a base Pod there with the token of its agent.
async fn sidecar_of(plane: &ControlPlane, namespace: &str, pod: &str) -> Client {
    let pods: Api<Pod> = Api::namespaced(plane.client().unwrap(), namespace);
    let base = json!({
        "metadata": {"name": pod},
        "spec": {"serviceAccountName": "stowage-sidecar", "schedulerName": "nobody",
                 "containers": [{"name": "base", "image": "a"}]},
    });
    let uid = pods.create(&PostParams::default(), &object(base)).await.unwrap().metadata.uid.unwrap();
    client_of(plane.kubeconfig_for_pod(namespace, "stowage-sidecar", (pod, &uid)).await.unwrap()).await
}

fn confined<T>(result: kube::Result<T>) {
    let error = result.map(drop).expect_err("the policy refuses it").to_string();
    assert!(error.contains("account of a Stowage sidecar"), "{error}");
}

/// An agent of one base reaches its own VNode, that one's Lease and Pods, and nothing else of the kinds that it may write.
#[tokio::test]
async fn a_sidecar_is_confined_to_the_vnode_of_its_pod() {
    let plane = cluster().await;
    let admin = plane.client().unwrap();
    let (post, patch, now) = (
        PostParams::default(),
        PatchParams::default(),
        DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() },
    );
    let long = "base-with-a-name-that-is-by-far-too-long-for-the-name-of-a-node";
    for (namespace, pod) in [("plainly", "base-0"), ("with-dash", "base-0"), ("plainly2", long)] {
        shipped::namespace(plane, namespace, "").await;
        strictly(plane, &[], &sidecars::rights(namespace)).await;
        let client = sidecar_of(plane, namespace, pod).await;
        let name = policy::contract::node_name("java", namespace, pod, "default");
        let other = policy::contract::node_name("java", namespace, "base-1", "default");
        let foreign = policy::contract::node_name("java", "elsewhere", pod, "default");
        let node = |name: &str, base: &str| {
            object::<Node>(json!({"metadata": {"name": name, "labels": ours(),
                "annotations": {"stowage.dev/base": base}}}))
        };
        let own = format!("{namespace}/{pod}");
        let (all_nodes, nodes): (Api<Node>, Api<Node>) = (Api::all(admin.clone()), Api::all(client.clone()));
        for name in [&other, &foreign] {
            all_nodes.create(&post, &node(name, &format!("{namespace}/base-1"))).await.unwrap();
        }
        // Policies take effect a moment after they are stored.
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        wait::until("policy that confines the sidecar", SOON, async || {
            match nodes.create(&dry, &node("virtual-node-java-x", &own)).await {
                Err(refusal) if refusal.to_string().contains("account of a Stowage sidecar") => Ok(()),
                answer => Err(format!("{answer:?}")),
            }
        })
        .await
        .unwrap();
        confined(nodes.create(&post, &node("worker-sidecar", &own)).await);
        confined(nodes.create(&post, &node(&name, &format!("{namespace}/base-1"))).await);
        nodes.create(&post, &node(&name, &own)).await.unwrap();
        let remark = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
        let status = Patch::Merge(json!({"status": {"capacity": {"pods": "1"}}}));
        let moved = Patch::Merge(json!({"metadata": {"annotations": {"stowage.dev/base": "a/b"}}}));
        let freed = Patch::Merge(json!({"metadata": {"labels": {"stowage.dev/base-cluster": "b"}}}));
        nodes.patch(&name, &patch, &remark).await.unwrap();
        nodes.patch_status(&name, &patch, &status).await.unwrap();
        confined(nodes.patch(&name, &patch, &moved).await);
        confined(nodes.patch(&name, &patch, &freed).await);
        for name in [&other, &foreign] {
            confined(nodes.patch(name, &patch, &remark).await);
            confined(nodes.patch_status(name, &patch, &status).await);
            confined(nodes.delete(name, &DeleteParams::default()).await);
        }

        let lease = |name: &str| object::<Lease>(json!({"metadata": {"name": name, "labels": ours()}}));
        for place in ["kube-node-lease", namespace] {
            let leases: Api<Lease> = Api::namespaced(client.clone(), place);
            let mut held = leases.create(&post, &lease(&name)).await.unwrap();
            held.spec.get_or_insert_default().holder_identity = Some("me".to_owned());
            leases.replace(&name, &post, &held).await.unwrap();
            confined(leases.create(&post, &lease(&other)).await);
        }
        let heartbeats: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        heartbeats.delete(&name, &DeleteParams::default()).await.unwrap();

        let (all, pods): (Api<Pod>, Api<Pod>) =
            (Api::namespaced(admin.clone(), namespace), Api::namespaced(client, namespace));
        for (pod, on) in [("mine", &name), ("theirs", &other)] {
            let pod = json!({"metadata": {"name": pod}, "spec": {"nodeName": on,
                "tolerations": [{"operator": "Exists"}], "containers": [{"name": "a", "image": "a"}]}});
            all.create(&post, &object(pod)).await.unwrap();
        }
        let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
        pods.patch_status("mine", &patch, &running).await.unwrap();
        confined(pods.patch_status("theirs", &patch, &running).await);
        confined(pods.delete("theirs", &now).await);
        confined(pods.patch_status(pod, &patch, &running).await);
        confined(pods.delete(pod, &now).await);
        pods.delete("mine", &now).await.unwrap();

        // A token that belongs to no Pod opens nothing.
        let loose = plane.kubeconfig_for_service_account(namespace, "stowage-sidecar").await.unwrap();
        let loose: Api<Node> = Api::all(client_of(loose).await);
        confined(loose.patch(&name, &patch, &remark).await);
        nodes.delete(&name, &DeleteParams::default()).await.unwrap();
        for name in [&other, &foreign] {
            all_nodes.delete(name, &DeleteParams::default()).await.unwrap();
        }
        let kubectl = plane.kubectl().unwrap().in_namespace(namespace);
        kubectl.run(&["delete", "pods", "--all", "--grace-period=0", "--force"]).await.unwrap();
    }
}

/// No more rights than those of docs/rbac.md; evictions, Secrets and other bases' Pods are none of them.
#[tokio::test]
async fn a_sidecars_rights_are_those_of_the_page() {
    let plane = cluster().await;
    let client = plane.client().unwrap();
    shipped::namespace(plane, "bases", "").await;
    strictly(plane, &[], &sidecars::rights("bases")).await;
    let user = "system:serviceaccount:bases:stowage-sidecar";
    let published = published("An agent as a sidecar", 1);
    assert!(published.len() >= 10, "{published:?}");
    let one = published.iter().next().expect("a row");
    wait::until("rights of the sidecar", SOON, async || {
        let verb = one.1.first().expect("a verb");
        if user_may(&client, user, one.0, verb).await { Ok(()) } else { Err("not yet") }
    })
    .await
    .unwrap();
    for (subject, verbs) in &published {
        for verb in VERBS {
            assert_eq!(
                user_may(&client, user, subject, verb).await,
                verbs.contains(verb),
                "{verb} {subject:?}"
            );
        }
    }
    for (group, resource, subresource, namespace) in [
        ("", "secrets", "", "bases"),
        ("", "pods", "eviction", "bases"),
        ("", "pods", "exec", "bases"),
        ("apps", "deployments", "scale", "bases"),
        ("coordination.k8s.io", "leases", "", "stowage-system"),
        ("", "serviceaccounts", "token", "bases"),
    ] {
        let subject = [group, resource, subresource, namespace, ""].map(str::to_owned).into();
        for verb in VERBS {
            assert!(!user_may(&client, user, &subject, verb).await, "{verb} {subject:?}");
        }
    }
}

/// In the scheduler's Pod the extender uses the scheduler's account, which must be able to do what the extender does.
#[tokio::test]
async fn the_extender_may_watch_wake_and_tell() {
    let plane = cluster().await;
    let client = plane.client().unwrap();
    for (group, resource, namespace, verbs) in [
        ("", "nodes", "", ["list", "watch"].as_slice()),
        ("", "pods", "shop", &["list", "watch", "patch"]),
        ("events.k8s.io", "events", "stowage-system", &["create"]),
    ] {
        let subject = [group, resource, "", namespace, ""].map(str::to_owned).into();
        for verb in verbs {
            assert!(account_may(&client, "stowage-scheduler", &subject, verb).await, "{verb} {subject:?}");
        }
    }
    for (resource, verb) in
        [("nodes", "patch"), ("nodes", "delete"), ("configmaps", "get"), ("secrets", "get")]
    {
        let namespace = if resource == "nodes" { "" } else { "shop" };
        let subject = ["", resource, "", namespace, ""].map(str::to_owned).into();
        assert!(!account_may(&client, "stowage-scheduler", &subject, verb).await, "{verb} {subject:?}");
    }
}

/// What the extender may patch on a Pod is the annotation that wakes it, and nothing else.
#[tokio::test]
async fn the_extender_is_confined_to_one_annotation() {
    let plane = cluster().await;
    let kubectl = namespace(plane, "nudging", "").await;
    let all: Api<Pod> = Api::namespaced(plane.client().unwrap(), "nudging");
    let pods: Api<Pod> = Api::namespaced(account(plane, "stowage-scheduler").await, "nudging");
    let pod = json!({
        "metadata": {"name": "waits", "labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["example.com/f"]},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "a", "image": "a"}]},
    });
    all.create(&PostParams::default(), &object(pod)).await.unwrap();
    let patch = PatchParams::default();
    let metadata = |metadata: Value| Patch::Merge(json!({"metadata": metadata}));
    // Policies take effect a moment after they are stored.
    let other = metadata(json!({"labels": {"a": "c"}}));
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    wait::until("policy that confines the extender", SOON, async || {
        match pods.patch("waits", &dry, &other).await {
            Err(refusal) if refusal.to_string().contains("may change nothing of a Pod but") => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await
    .unwrap();
    for time in ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"] {
        let nudge = metadata(json!({"annotations": {names::NUDGED: time}}));
        pods.patch("waits", &patch, &nudge).await.unwrap();
    }
    let image = Patch::Strategic(json!({"spec": {"containers": [{"name": "a", "image": "other"}]}}));
    for change in [
        other,
        metadata(json!({"labels": {"c": "d"}})),
        metadata(json!({"annotations": {"a": "c"}})),
        metadata(json!({"annotations": {"a": null}})),
        metadata(json!({"annotations": {names::NUDGED: "2026-01-01T00:00:02Z", "c": "d"}})),
        metadata(json!({"finalizers": null})),
        image,
    ] {
        let error =
            pods.patch("waits", &patch, &change).await.expect_err("the policy refuses it").to_string();
        assert!(error.contains("may change nothing of a Pod but"), "{error}");
    }
    all.patch("waits", &patch, &metadata(json!({"finalizers": null}))).await.unwrap();
    kubectl.run(&["delete", "pods", "--all", "--grace-period=0", "--force"]).await.unwrap();
}
