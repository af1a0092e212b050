//! The manifests on a real API server: accepted by its strict validation, and each policy does what its page says.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at what it did not expect"
)]

mod placing;
mod shipped;

use std::collections::BTreeSet;
use std::process::Command;

use harness::kubectl::Kubectl;
use harness::network;
use harness::priority;
use harness::program::Program;
use harness::wait;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use shipped::{SOON, cluster, manifests, namespace, object, render, strictly};

#[tokio::test]
async fn a_strict_server_accepts_everything() {
    let plane = cluster().await;
    strictly(plane, &[], &std::fs::read_to_string(manifests("samples/namespace.yaml")).unwrap()).await;
    plane.default_service_account("shop").await.unwrap();
    let mut samples = 0;
    for entry in std::fs::read_dir(manifests("samples")).unwrap() {
        strictly(plane, &["--namespace=shop"], &std::fs::read_to_string(entry.unwrap().path()).unwrap())
            .await;
        samples += 1;
    }
    assert!(samples >= 8, "{samples} samples");
    let overlays = [
        "extender-bind",
        "extender-mtls",
        "extender-preempt",
        "extender-replicas",
        "kubectl-logs",
        "no-mutating-policies",
        "sidecar",
        "two-clusters/base-cluster",
        "two-clusters/module-cluster",
    ];
    for overlay in overlays {
        let rendered = render(plane, &format!("overlays/{overlay}")).await;
        strictly(plane, &["--dry-run=server"], &rendered).await;
    }
    let monitoring = render(plane, "monitoring").await;
    assert!(monitoring.contains("kind: PrometheusRule") && monitoring.contains("stowage.json: |"));
    assert!(!render(plane, "overlays/no-mutating-policies").await.contains("MutatingAdmissionPolicy"));
    assert!(
        !render(plane, "overlays/two-clusters/module-cluster").await.contains("name: stowage-agent-bases")
    );
    assert!(
        !render(plane, "overlays/two-clusters/module-cluster").await.contains("name: stowage-agent-hosts")
    );
    let apart = render(plane, "overlays/extender-mtls").await;
    assert!(!apart.contains("127.0.0.1:8888"));
    // Its account has all that the extender needs, and the scheduler's nothing of it.
    let subjects: Vec<Value> = serde_saphyr::from_multiple::<Value>(&apart)
        .unwrap()
        .into_iter()
        .filter(|object| object["metadata"]["name"] == "stowage-extender" && !object["subjects"].is_null())
        .map(|object| object["subjects"][0]["name"].clone())
        .collect();
    assert_eq!(subjects, ["stowage-extender", "stowage-extender"]);
}

/// Logs are read where the component is, and nowhere else: the rights to ask about callers come with the port.
#[tokio::test]
async fn logs_are_turned_on_by_their_component_alone() {
    let plane = cluster().await;
    let objects = async |folder: &str| -> Vec<Value> {
        serde_saphyr::from_multiple(&render(plane, folder).await).unwrap()
    };
    let find = |objects: &[Value], kind: &str, name: &str| {
        objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).cloned()
    };
    let (off, on) = (objects("base").await, objects("overlays/kubectl-logs").await);
    assert!(
        !json!(off).to_string().contains("kubelet-tls") && !json!(off).to_string().contains("tokenreviews")
    );
    let role = find(&on, "ClusterRole", "stowage-agent-logs").unwrap();
    let rules = json!([
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ]);
    assert_eq!(role["rules"], rules);
    let binding = find(&on, "ClusterRoleBinding", "stowage-agent-logs").unwrap();
    assert_eq!(binding["subjects"][0]["name"], "stowage-agent");
    let agent = find(&on, "Deployment", "stowage-agent").unwrap();
    let container = &agent["spec"]["template"]["spec"]["containers"][0];
    let args: Vec<&str> = container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        args.contains(&"--node-address=agent")
            && args.contains(&"--client-ca-file=/etc/stowage/kubelet/ca.crt")
    );
    let named =
        |list: &Value, name: &str| list.as_array().unwrap().iter().find(|one| one["name"] == name).cloned();
    assert_eq!(named(&container["ports"], "kubelet").unwrap()["containerPort"], 10250);
    assert_eq!(
        named(&container["env"], "POD_IP").unwrap()["valueFrom"]["fieldRef"]["fieldPath"],
        "status.podIP"
    );
    assert_eq!(named(&container["volumeMounts"], "kubelet").unwrap()["mountPath"], "/etc/stowage/kubelet");
    let policy = find(&on, "NetworkPolicy", "stowage-metrics-only").unwrap();
    assert!(policy["spec"]["ingress"].to_string().contains("kubelet"), "{policy}");
}

#[tokio::test]
async fn policies_compile_and_levels_exist() {
    let plane = cluster().await;
    strictly(plane, &[], &render(plane, "overlays/sidecar").await).await;
    let client = plane.client().unwrap();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let of_ours = ListParams::default().labels("app.kubernetes.io/part-of=stowage");
    let ours = policies.list(&of_ours).await.unwrap().items;
    assert_eq!(ours.len(), 8);
    for policy in ours {
        let name = policy.metadata.name.unwrap();
        let checked = |policy: Option<&ValidatingAdmissionPolicy>| {
            policy.and_then(|policy| policy.status.as_ref()?.type_checking.as_ref()).is_some()
        };
        let policy = wait::object(&policies, &name, "type check", SOON, checked).await.unwrap().unwrap();
        let warnings = policy.status.and_then(|status| status.type_checking?.expression_warnings);
        assert_eq!(warnings.unwrap_or_default(), Vec::new(), "{name}");
    }
    let schemas: Api<FlowSchema> = Api::all(client);
    for name in [
        "stowage-agent-heartbeats",
        "stowage-leader-election",
        "stowage-scheduler",
        "stowage-sidecar-heartbeats",
    ] {
        let sound = |schema: Option<&FlowSchema>| {
            let conditions = schema.and_then(|schema| schema.status.as_ref()?.conditions.clone());
            conditions.into_iter().flatten().any(|condition| {
                condition.type_.as_deref() == Some("Dangling") && condition.status.as_deref() == Some("False")
            })
        };
        wait::object(&schemas, name, "priority level", SOON, sound).await.unwrap();
    }
}

/// What the server makes of `object`, or what it says against it.
async fn admitted(kubectl: &Kubectl, object: &Value) -> Result<(Value, String), String> {
    let args = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let output = kubectl.output(&args, &object.to_string()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok((serde_json::from_slice(&output.stdout).unwrap(), said))
    } else {
        Err(said)
    }
}

fn module_pod(labels: &Value, spec: &Value) -> Value {
    let container = json!({
        "name": "shop", "image": "https://repo.example.com/shop.jar",
        "env": [{"name": "MODULE_VERSION", "value": "1.4.0+7"}],
    });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "shop", "labels": labels}, "spec": {"containers": [container]},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn tolerations(pod: &Value) -> BTreeSet<(String, Option<i64>)> {
    let tolerations = pod.pointer("/spec/tolerations").and_then(Value::as_array).into_iter().flatten();
    tolerations
        .map(|toleration| {
            (toleration["key"].as_str().unwrap().to_owned(), toleration["tolerationSeconds"].as_i64())
        })
        .collect()
}

fn keys(of: &[(&str, Option<i64>)]) -> BTreeSet<(String, Option<i64>)> {
    of.iter().map(|(key, seconds)| ((*key).to_owned(), *seconds)).collect()
}

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const VIRTUAL: &str = "schedule.koupleless.io/virtual-node";

/// BL-134: the API server completes Pods itself, so that each of a `ReplicaSet` has the gate, whatever else is up.
#[tokio::test]
async fn marked_pods_are_completed() {
    let plane = cluster().await;
    let watched = namespace(plane, "completed", "stowage.dev/modules=enabled").await;
    let other = namespace(plane, "not-completed", "").await;
    let unlimited = keys(&[(NOT_READY, None), (UNREACHABLE, None), (VIRTUAL, None)]);
    for label in [
        json!({"stowage.dev/module-pod": "true"}),
        json!({"virtual-kubelet.koupleless.io/component": "module"}),
    ] {
        let pod = wait::until("completed Pod", SOON, async || {
            let (pod, _) = admitted(&watched, &module_pod(&label, &json!({}))).await?;
            if pod["spec"]["schedulerName"] == "stowage-scheduler" { Ok(pod) } else { Err(pod.to_string()) }
        });
        let pod = pod.await.unwrap();
        assert_eq!(tolerations(&pod), unlimited);
        assert_eq!(pod["spec"]["readinessGates"], json!([{"conditionType": "module.koupleless.io/ready"}]));
    }
    let marked = json!({"stowage.dev/module-pod": "true"});
    // What the author said stays: another toleration, a time of their own, a gate, a scheduler.
    let spec = json!({
        "schedulerName": "mine",
        "readinessGates": [{"conditionType": "example.com/lb"}],
        "tolerations": [
            {"key": "dedicated", "operator": "Exists"},
            {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
        ],
    });
    let (pod, _) = admitted(&watched, &module_pod(&marked, &spec)).await.unwrap();
    let expected = keys(&[("dedicated", None), (NOT_READY, Some(30)), (UNREACHABLE, None), (VIRTUAL, None)]);
    assert_eq!(tolerations(&pod), expected);
    assert_eq!(pod["spec"]["schedulerName"], "mine");
    let gates = json!([{"conditionType": "example.com/lb"}, {"conditionType": "module.koupleless.io/ready"}]);
    assert_eq!(pod["spec"]["readinessGates"], gates);
    // Elsewhere, and without the mark, nothing happens.
    let untouched = keys(&[(NOT_READY, Some(300)), (UNREACHABLE, Some(300))]);
    for (kubectl, labels) in [(&other, marked), (&watched, json!({"app": "shop"}))] {
        let (pod, _) = admitted(kubectl, &module_pod(&labels, &json!({}))).await.unwrap();
        assert_eq!(tolerations(&pod), untouched);
        assert_eq!(pod["spec"]["schedulerName"], "default-scheduler");
    }
}

/// BL-042, and what else admission tells whoever applies a module workload.
#[tokio::test]
async fn module_workloads_are_checked() {
    let plane = cluster().await;
    let kubectl = namespace(plane, "checked", "stowage.dev/modules=enabled").await;
    let label = |version: &str| json!({"module.koupleless.io/shop": version});
    wait::until("refusal of versions that differ", SOON, async || {
        match admitted(&kubectl, &module_pod(&label("1.3.0"), &json!({}))).await {
            Err(said) if said.contains("differ for: shop") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    admitted(&kubectl, &module_pod(&label("1.4.0_7"), &json!({}))).await.unwrap();

    let workload = |kind: &str, spec: &Value| {
        let mut template = module_pod(&json!({"app": "shop", "stowage.dev/module-pod": "true"}), &json!({}));
        let mut object = json!({
            "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "shop"},
            "spec": {"selector": {"matchLabels": {"app": "shop"}}},
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            if key == "tolerations" {
                template["spec"]["tolerations"] = value.clone();
            } else {
                object["spec"][key] = value.clone();
            }
        }
        object["spec"]["template"] =
            json!({"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]});
        object
    };
    let refused = admitted(&kubectl, &workload("DaemonSet", &json!({}))).await.unwrap_err();
    assert!(refused.contains("needs the toleration schedule.koupleless.io/virtual-node"), "{refused}");
    let tolerating = json!({"tolerations": [{"key": VIRTUAL, "operator": "Exists"}]});
    admitted(&kubectl, &workload("DaemonSet", &tolerating)).await.unwrap();

    // A surge that can find no room is told when it is applied.
    let rolling = |surge: &Value, unavailable: &Value| json!({"replicas": 3, "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}});
    for (spec, warns) in [
        (json!({"replicas": 3}), true),
        (json!({"replicas": 4}), false),
        (rolling(&json!(1), &json!(0)), true),
        (rolling(&json!(0), &json!("25%")), false),
        (rolling(&json!(1), &json!("50%")), false),
        (json!({"replicas": 1, "strategy": {"type": "Recreate"}}), false),
    ] {
        let (_, said) = admitted(&kubectl, &workload("Deployment", &spec)).await.unwrap();
        assert_eq!(said.contains("a release cannot move"), warns, "{spec}: {said}");
    }
}

#[tokio::test]
async fn the_component_completes_templates() {
    let plane = cluster().await;
    let folder = tempfile::tempdir().unwrap();
    for file in ["kustomization.yaml", "module-pods.yaml"] {
        let target = folder.path().join("component");
        std::fs::create_dir_all(&target).unwrap();
        std::fs::copy(manifests(&format!("components/module-pods/{file}")), target.join(file)).unwrap();
    }
    let sample = std::fs::read_to_string(manifests("samples/module.yaml")).unwrap();
    let marked =
        sample.replacen("labels: {app: shop}", r#"labels: {app: shop, stowage.dev/module-pod: "true"}"#, 1);
    assert_ne!(sample, marked);
    std::fs::write(folder.path().join("module.yaml"), marked).unwrap();
    std::fs::write(
        folder.path().join("kustomization.yaml"),
        "resources: [module.yaml]\ncomponents: [component]\n",
    )
    .unwrap();
    let kubectl = plane.kubectl().unwrap();
    let rendered = kubectl.run(&["kustomize", &folder.path().display().to_string()]).await.unwrap();
    strictly(plane, &["--dry-run=server", "--namespace=default"], &rendered).await;
    let workload: Value = serde_saphyr::from_str(&rendered).unwrap();
    let template = &workload["spec"]["template"];
    assert_eq!(tolerations(template), keys(&[(NOT_READY, None), (UNREACHABLE, None), (VIRTUAL, None)]));
    assert_eq!(template["spec"]["schedulerName"], "stowage-scheduler");
    assert_eq!(template["spec"]["readinessGates"], json!([{"conditionType": "module.koupleless.io/ready"}]));
}

/// The scheduler starts with the configuration and the rights that we ship, leads, and judges Pods.
#[tokio::test]
async fn the_shipped_scheduler_configuration_works() {
    let plane = cluster().await;
    let client = plane.client().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "stowage-system");
    let data = maps.get("stowage-scheduler").await.unwrap().data.unwrap();
    let mut configuration: Value = serde_saphyr::from_str(&data["scheduler.yaml"]).unwrap();
    let account = plane.kubeconfig_for_service_account("stowage-system", "stowage-scheduler").await.unwrap();
    configuration["clientConnection"]["kubeconfig"] = json!(account);
    let _scheduler = plane.start_scheduler("shipped", &configuration.to_string()).await.unwrap();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "stowage-system");
    let held = |lease: Option<&Lease>| {
        lease
            .and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref())
            .is_some_and(|holder| !holder.is_empty())
    };
    wait::object(&leases, "stowage-scheduler", "leader", SOON, held).await.unwrap();
    let _kubectl = namespace(plane, "judged", "").await;
    let pods: Api<Pod> = Api::namespaced(client, "judged");
    let pod = module_pod(&json!({}), &json!({"schedulerName": "stowage-scheduler"}));
    pods.create(&PostParams::default(), &object(pod)).await.unwrap();
    let judged = |pod: Option<&Pod>| {
        let conditions = pod.and_then(|pod| pod.status.as_ref()?.conditions.as_ref()).into_iter().flatten();
        conditions
            .into_iter()
            .any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
    };
    wait::object(&pods, "shop", "verdict of the scheduler", SOON, judged).await.unwrap();
}

/// The overlay that turns preemption on works with the rights that we ship: a module of high priority evicts one from the
/// full base that fits, and none from the one that does not.
#[tokio::test]
async fn the_preempt_overlay_evicts_where_it_helps() {
    let plane = cluster().await;
    let client = plane.client().unwrap();
    let rendered = render(plane, "overlays/extender-preempt").await;
    let objects = serde_saphyr::from_multiple::<Value>(&rendered).unwrap();
    let data = objects.iter().find_map(|object| object["data"]["scheduler.yaml"].as_str()).unwrap();
    let mut configuration: Value = serde_saphyr::from_str(data).unwrap();
    let account = plane.kubeconfig_for_service_account("stowage-system", "stowage-scheduler").await.unwrap();
    let (port, admin) = (network::free_port().unwrap(), network::free_port().unwrap());
    let extender = Program::new("stowage-extender")
        .arg(format!("--listen=127.0.0.1:{port}"))
        .arg(format!("--admin-address=127.0.0.1:{admin}"))
        .arg(format!("--kubeconfig={}", account.display()))
        .start()
        .unwrap();
    extender.wait_http(&format!("http://127.0.0.1:{admin}/readyz")).await.unwrap();
    // Other tests have schedulers of the shipped name.
    configuration["clientConnection"]["kubeconfig"] = json!(account);
    configuration["leaderElection"] = json!({"leaderElect": false});
    configuration["profiles"][0]["schedulerName"] = json!("preempting");
    configuration["extenders"][0]["urlPrefix"] = json!(format!("http://127.0.0.1:{port}/scheduler"));
    let _scheduler = plane.start_scheduler("preempting", &configuration.to_string()).await.unwrap();

    let nodes: Api<Node> = Api::all(client.clone());
    let (parameters, fits, other) =
        (PostParams::default(), "virtual-node-java-full-a", "virtual-node-java-full-b");
    for (name, version) in [(fits, "2.1.0"), (other, "3.0.0")] {
        nodes.create(&parameters, &object(placing::vnode(name, version, 1))).await.unwrap();
    }
    let _kubectl = namespace(plane, "preempting", "").await;
    let class = json!({"metadata": {"name": "preempting"}, "value": 1_000_000});
    priority::create(&client, "preempting", &object(class)).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client, "preempting");
    let module = |name: &str| {
        let mut pod = placing::module_pod(name, name);
        pod["metadata"]["namespace"] = json!("preempting");
        pod["spec"]["schedulerName"] = json!("preempting");
        pod
    };
    for (name, node) in [("low-a", fits), ("low-b", other)] {
        let mut low = module(name);
        low["spec"]["nodeName"] = json!(node);
        pods.create(&parameters, &object(low)).await.unwrap();
    }
    let mut urgent = module("urgent");
    urgent["spec"]["priorityClassName"] = json!("preempting");
    urgent["metadata"]["annotations"] = json!({"stowage.dev/base-version": ">=2 <3"});
    pods.create(&parameters, &object(urgent)).await.unwrap();
    let evicted = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    wait::object(&pods, "low-a", "eviction", SOON, evicted).await.unwrap();
    let nominated = |pod: Option<&Pod>| {
        pod.and_then(|pod| pod.status.as_ref()?.nominated_node_name.as_deref()) == Some(fits)
    };
    wait::object(&pods, "urgent", "nomination", SOON, nominated).await.unwrap();
    assert!(pods.get("low-b").await.unwrap().metadata.deletion_timestamp.is_none());
    for name in [fits, other] {
        nodes.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Every flag that a container of ours is given is one that its program knows.
#[test]
fn containers_get_flags_that_exist() {
    let mut seen = 0;
    for path in [
        "base/agent/deployment.yaml",
        "base/scheduler/deployment.yaml",
        "overlays/extender-mtls/extender.yaml",
        "overlays/two-clusters/module-cluster/kustomization.yaml",
        "components/kubectl-logs/kustomization.yaml",
    ] {
        let text = std::fs::read_to_string(manifests(path)).unwrap();
        let mut image = "stowage/agent";
        for line in text.lines().map(str::trim) {
            if let Some((_, name)) = line.split_once("image: ") {
                image = name.split(':').next().unwrap_or_default();
            }
            let argument =
                line.strip_prefix("- ").or_else(|| line.strip_prefix("value: ")).unwrap_or_default();
            let Some(flag) = argument.strip_prefix("--").and_then(|flag| flag.split('=').next()) else {
                continue;
            };
            let program = match image {
                "stowage/agent" => "stowage-agent",
                "stowage/extender" => "stowage-extender",
                other => panic!("{path}: {other} has the argument {argument}"),
            };
            let help = Command::new(Program::find(program).unwrap()).arg("--help").output().unwrap();
            let help = String::from_utf8_lossy(&help.stdout).into_owned();
            let known = help.split_whitespace().any(|word| word == format!("--{flag}"));
            assert!(known, "{path}: {program} has no --{flag}:\n{help}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen} flags");
}
