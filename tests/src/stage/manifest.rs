//! Objects for tests: small variations of the samples. JSON, which `kubectl apply` takes as well as YAML.

use policy::contract::names;
use serde_json::{Map, Value, json};

/// The workload that base or module Pods belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workload {
    Deployment,
    DaemonSet,
    StatefulSet,
}

impl Workload {
    fn kind(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::DaemonSet => "DaemonSet",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// Bases of one version.
#[derive(Debug, Clone)]
pub struct BaseSet {
    workload: Workload,
    name: String,
    version: String,
    replicas: u32,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    rolling: Option<Value>,
    pod: Value,
}

impl BaseSet {
    /// A Deployment: it rolls and scales as in production, its Pods have random names.
    pub fn deployment(name: &str, version: &str, replicas: u32) -> Self {
        Self::of(Workload::Deployment, name, version, replicas)
    }

    /// A `StatefulSet`: its Pods are `<name>-0`, `<name>-1`, ..., all started at once.
    pub fn stateful(name: &str, version: &str, replicas: u32) -> Self {
        Self::of(Workload::StatefulSet, name, version, replicas)
    }

    fn of(workload: Workload, name: &str, version: &str, replicas: u32) -> Self {
        Self {
            workload,
            name: name.to_owned(),
            version: version.to_owned(),
            replicas,
            labels: Map::new(),
            annotations: Map::new(),
            rolling: None,
            pod: json!({
                "terminationGracePeriodSeconds": 10,
                "containers": [{
                    "name": "base",
                    "image": "example/java-base",
                    "ports": [{"name": "arklet", "containerPort": 1238}],
                    "resources": {"requests": {"cpu": "100m", "memory": "512Mi"},
                                  "limits": {"cpu": "2", "memory": "2Gi"}},
                    "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
                }],
            }),
        }
    }

    /// A label of the Pods (VNodes get it too).
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), json!(value));
        self
    }

    /// An annotation of the Pods.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), json!(value));
        self
    }

    /// Changes the Pods' `spec`.
    #[must_use]
    pub fn pod_spec(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.pod);
        self
    }

    pub(super) fn count(&self) -> u32 {
        self.replicas
    }

    /// A Deployment rolls with so many more Pods, and none fewer.
    #[must_use]
    pub fn surge(mut self, pods: u32) -> Self {
        self.rolling = Some(json!({"rollingUpdate": {"maxSurge": pods, "maxUnavailable": 0}}));
        self
    }

    /// The Pods have the readiness gate for their modules.
    #[must_use]
    pub fn gated(self) -> Self {
        self.pod_spec(|pod| {
            if let Some(pod) = pod.as_object_mut() {
                let gates = json!([{"conditionType": names::MODULES_READY_GATE}]);
                pod.insert("readinessGates".to_owned(), gates);
            }
        })
    }

    /// The container sleeps so long before it ends (2 s unless set).
    #[must_use]
    pub fn pre_stop(self, seconds: u32) -> Self {
        self.pod_spec(|pod| {
            if let Some(container) = pod.pointer_mut("/containers/0").and_then(Value::as_object_mut) {
                container.insert("lifecycle".to_owned(), json!({"preStop": {"sleep": {"seconds": seconds}}}));
            }
        })
    }

    /// The container dies at SIGTERM without `preStop`.
    #[must_use]
    pub fn without_pre_stop(self) -> Self {
        self.pod_spec(|pod| {
            if let Some(container) = pod.pointer_mut("/containers/0").and_then(Value::as_object_mut) {
                container.remove("lifecycle");
            }
        })
    }

    /// For `kubectl apply`.
    pub fn yaml(&self) -> String {
        let mut labels = self.labels.clone();
        labels.insert("app".to_owned(), json!(self.name));
        labels.entry(names::STACK).or_insert_with(|| json!(names::DEFAULT_STACK));
        labels.insert(names::VERSION.to_owned(), json!(self.version));
        let mut spec = json!({
            "replicas": self.replicas,
            "selector": {"matchLabels": {"app": self.name}},
            "template": {"metadata": {"labels": labels, "annotations": self.annotations}, "spec": self.pod},
        });
        if self.workload == Workload::StatefulSet
            && let Some(spec) = spec.as_object_mut()
        {
            spec.insert("serviceName".to_owned(), json!(self.name));
            spec.insert("podManagementPolicy".to_owned(), json!("Parallel"));
        }
        if let (Some(rolling), Some(spec)) = (&self.rolling, spec.as_object_mut()) {
            spec.insert("strategy".to_owned(), rolling.clone());
        }
        object(self.workload, &self.name, &spec)
    }
}

/// One container of a module Pod.
#[derive(Debug, Clone)]
struct Container {
    name: String,
    version: String,
    url: String,
    more: Map<String, Value>,
}

/// A workload of module Pods. The admission policies complete them, except for what a `DaemonSet` must say itself.
#[derive(Debug, Clone)]
pub struct ModuleSet {
    workload: Workload,
    name: String,
    replicas: u32,
    containers: Vec<Container>,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    expressions: Vec<Value>,
    max_unavailable: Value,
    grace: u32,
    more: Map<String, Value>,
}

impl ModuleSet {
    /// A Deployment of one module, named as it; the Pods have the label `app: <module>`.
    pub fn deployment(module: &str, version: &str, url: &str) -> Self {
        Self::of(Workload::Deployment, module, version, url)
    }

    /// A `DaemonSet` of one module: one instance on every base.
    pub fn daemon_set(module: &str, version: &str, url: &str) -> Self {
        Self::of(Workload::DaemonSet, module, version, url)
    }

    fn of(workload: Workload, module: &str, version: &str, url: &str) -> Self {
        let empty = Self {
            workload,
            name: module.to_owned(),
            replicas: 1,
            containers: Vec::new(),
            labels: Map::new(),
            annotations: Map::new(),
            expressions: Vec::new(),
            max_unavailable: json!(1),
            grace: 30,
            more: Map::new(),
        };
        empty.module(module, version, url)
    }

    /// The object's name and the Pods' label `app`, where they are not the module's.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Of a Deployment.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// One more module: the Pod is a module group, installed in this order.
    #[must_use]
    pub fn module(mut self, module: &str, version: &str, url: &str) -> Self {
        self.containers.push(Container {
            name: module.to_owned(),
            version: version.to_owned(),
            url: url.to_owned(),
            more: Map::new(),
        });
        self
    }

    /// Sets a field of the module added last: `args`, `readinessProbe`, `resources`, ...
    #[must_use]
    pub fn field(mut self, key: &str, value: Value) -> Self {
        if let Some(container) = self.containers.last_mut() {
            container.more.insert(key.to_owned(), value);
        }
        self
    }

    /// A label of the Pods.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), json!(value));
        self
    }

    /// An annotation of the Pods.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), json!(value));
        self
    }

    /// The annotation `stowage.dev/base-version`.
    #[must_use]
    pub fn base_range(self, range: &str) -> Self {
        self.annotation(names::WANTED_BASE_VERSION, range)
    }

    /// Only bases of this version, by node affinity.
    #[must_use]
    pub fn on_base_version(mut self, version: &str) -> Self {
        self.expressions.push(json!({"key": names::VERSION, "operator": "In", "values": [version]}));
        self
    }

    /// `maxUnavailable` of the rollout (1 unless set; `maxSurge` is 0): a number or a percentage.
    #[must_use]
    pub fn max_unavailable(mut self, value: Value) -> Self {
        self.max_unavailable = value;
        self
    }

    /// `terminationGracePeriodSeconds` (30 unless set).
    #[must_use]
    pub fn grace(mut self, seconds: u32) -> Self {
        self.grace = seconds;
        self
    }

    /// Sets a field of the Pods' `spec`.
    #[must_use]
    pub fn pod_field(mut self, key: &str, value: Value) -> Self {
        self.more.insert(key.to_owned(), value);
        self
    }

    /// The Pods' `metadata` and `spec`.
    fn template(&self) -> Value {
        let mut labels = self.labels.clone();
        labels.insert("app".to_owned(), json!(self.name));
        labels.insert(names::MODULE_POD.to_owned(), json!("true"));
        let containers: Vec<Value> = self
            .containers
            .iter()
            .map(|container| {
                let mut object = Map::from_iter([
                    ("name".to_owned(), json!(container.name)),
                    ("image".to_owned(), json!(container.url)),
                    (
                        "env".to_owned(),
                        json!([{"name": names::ENV_MODULE_VERSION, "value": container.version}]),
                    ),
                ]);
                object.extend(container.more.clone());
                Value::Object(object)
            })
            .collect();
        let mut expressions = self.expressions.clone();
        let mut spec = Map::from_iter([
            ("terminationGracePeriodSeconds".to_owned(), json!(self.grace)),
            ("containers".to_owned(), json!(containers)),
        ]);
        if self.workload == Workload::DaemonSet {
            expressions.push(json!({"key": names::STACK, "operator": "Exists"}));
            spec.extend(completed());
        }
        if !expressions.is_empty() {
            let terms = json!({"nodeSelectorTerms": [{"matchExpressions": expressions}]});
            let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
            spec.insert("affinity".to_owned(), affinity);
        }
        spec.extend(self.more.clone());
        json!({"metadata": {"labels": labels, "annotations": self.annotations}, "spec": spec})
    }

    /// For `kubectl apply`.
    pub fn yaml(&self) -> String {
        let rolling = json!({"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 0, "maxUnavailable": self.max_unavailable}});
        let mut spec = Map::from_iter([
            ("selector".to_owned(), json!({"matchLabels": {"app": self.name}})),
            ("template".to_owned(), self.template()),
        ]);
        if self.workload == Workload::DaemonSet {
            spec.insert("updateStrategy".to_owned(), rolling);
        } else {
            spec.insert("strategy".to_owned(), rolling);
            spec.insert("replicas".to_owned(), json!(self.replicas));
        }
        object(self.workload, &self.name, &Value::Object(spec))
    }

    /// One Pod of the template, without a workload, complete as the admission policies would make it.
    pub fn pod_yaml(&self, name: &str) -> String {
        let mut pod = self.template();
        if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
            for (key, value) in completed() {
                spec.entry(key).or_insert(value);
            }
        }
        if let Some(pod) = pod.as_object_mut() {
            pod.insert("apiVersion".to_owned(), json!("v1"));
            pod.insert("kind".to_owned(), json!("Pod"));
            if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert("name".to_owned(), json!(name));
            }
        }
        pod.to_string()
    }
}

/// What is the same for every module Pod.
fn completed() -> Map<String, Value> {
    let tolerate = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute"});
    Map::from_iter([
        ("schedulerName".to_owned(), json!(names::SCHEDULER)),
        (
            "tolerations".to_owned(),
            json!([
                tolerate(names::VIRTUAL_NODE_TAINT),
                tolerate("node.kubernetes.io/not-ready"),
                tolerate("node.kubernetes.io/unreachable"),
            ]),
        ),
        ("readinessGates".to_owned(), json!([{"conditionType": names::READY_GATE}])),
    ])
}

fn object(workload: Workload, name: &str, spec: &Value) -> String {
    json!({"apiVersion": "apps/v1", "kind": workload.kind(), "metadata": {"name": name}, "spec": spec})
        .to_string()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        apps::v1::{DaemonSet, Deployment, StatefulSet},
        core::v1::Pod,
    };

    use super::*;

    #[test]
    fn they_are_what_they_say() {
        let deployment: Deployment = serde_json::from_str(
            &ModuleSet::deployment("shop", "1.0.0", "http://x/shop.jar")
                .replicas(3)
                .module("cart", "2.0", "http://x/cart.jar")
                .field("args", json!(["--a"]))
                .base_range(">=2")
                .on_base_version("2.1.0")
                .yaml(),
        )
        .unwrap();
        let template = deployment.spec.unwrap().template;
        let spec = template.spec.unwrap();
        assert_eq!(spec.containers.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["shop", "cart"]);
        assert_eq!(spec.containers[1].args.as_deref(), Some(&["--a".to_owned()][..]));
        assert!(spec.affinity.is_some() && spec.tolerations.is_none());
        assert_eq!(template.metadata.unwrap().annotations.unwrap()[names::WANTED_BASE_VERSION], ">=2");
        let set = ModuleSet::daemon_set("audit", "1", "http://x/audit.jar");
        let daemons: DaemonSet = serde_json::from_str(&set.yaml()).unwrap();
        assert_eq!(daemons.spec.unwrap().template.spec.unwrap().tolerations.unwrap().len(), 3);
        let pod: Pod = serde_json::from_str(&set.pod_yaml("one")).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("one"));
        let bases: StatefulSet = serde_json::from_str(&BaseSet::stateful("base", "2.1.0", 2).yaml()).unwrap();
        assert_eq!(bases.spec.unwrap().template.metadata.unwrap().labels.unwrap()[names::VERSION], "2.1.0");
    }
}
