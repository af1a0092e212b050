//! Every label, annotation, taint, condition and environment key. Nothing else spells them.

/// Base and `VNode` label: the technology of the base.
pub const STACK: &str = "basement.koupleless.io/stack";
/// Stack of a base that names none, and of a module that asks for none.
pub const DEFAULT_STACK: &str = "java";
/// Base and `VNode` label: version of the base application.
pub const VERSION: &str = "basement.koupleless.io/version";
/// The same, as Koupleless 2.x spells it. `VNode`s carry both.
pub const KOUPLELESS_VERSION: &str = "base.koupleless.io/version";
/// Koupleless annotation that names the base container.
pub const KOUPLELESS_CONTAINER_NAME: &str = "base.koupleless.io/container-name";

/// Key of the taint on every `VNode`; effect `NoExecute`.
pub const VIRTUAL_NODE_TAINT: &str = "schedule.koupleless.io/virtual-node";
/// Value of that taint unless `--taint-value` says otherwise.
pub const VIRTUAL_NODE_TAINT_VALUE: &str = "true";
/// Key of the taint on a base whose metaspace is full.
pub const OVERLOAD_TAINT: &str = "schedule.koupleless.io/metaspace-overload";
/// Key of the taint on a base that is going away; effect `NoSchedule`.
pub const LEAVING_TAINT: &str = "stowage.dev/leaving";
/// Key of the taint that Kubernetes puts on a cordoned Node; effect `NoSchedule`. `DaemonSet` Pods tolerate it.
pub const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Environment variable: name of the module where it cannot be a container name.
pub const ENV_MODULE_NAME: &str = "MODULE_NAME";
/// Environment variable: version of the module.
pub const ENV_MODULE_VERSION: &str = "MODULE_VERSION";
/// The same, as Koupleless 2.x spells it.
pub const ENV_BIZ_VERSION: &str = "BIZ_VERSION";

/// Prefix of the optional Pod label `module.koupleless.io/<module>: <version>`.
pub const MODULE_LABEL_PREFIX: &str = "module.koupleless.io/";
/// Koupleless label with a module's name; never taken for a module called `name`.
pub const KOUPLELESS_MODULE_NAME: &str = "module.koupleless.io/name";
/// Koupleless label with a module's version; never taken for a module called `version`.
pub const KOUPLELESS_MODULE_VERSION: &str = "module.koupleless.io/version";
/// Readiness gate of module Pods, and the condition behind it.
pub const READY_GATE: &str = "module.koupleless.io/ready";
/// Pod condition: all modules of the Pod are installed.
pub const INSTALLED_CONDITION: &str = "module.koupleless.io/installed";
/// Scheme of the container ids of modules: `arklet://<ip>:<module>:<version>`.
pub const CONTAINER_ID_SCHEME: &str = "arklet://";
/// Koupleless label that marks module Pods; its value is [`KOUPLELESS_COMPONENT_MODULE`].
pub const KOUPLELESS_COMPONENT: &str = "virtual-kubelet.koupleless.io/component";
/// Value of [`KOUPLELESS_COMPONENT`] on module Pods.
pub const KOUPLELESS_COMPONENT_MODULE: &str = "module";

/// What keys of ours begin with, but for those that Koupleless knows.
pub const PREFIX: &str = "stowage.dev/";
/// `reportingController` of the agent's Events.
pub const AGENT_CONTROLLER: &str = "stowage.dev/agent";
/// `reportingController` of the extender's Events.
pub const EXTENDER_CONTROLLER: &str = "stowage.dev/extender";

/// Annotation of Leases of the extender: placements about to be bound.
pub const PLACEMENTS: &str = "stowage.dev/placements";
/// Base Pod annotation: port of arklet where it is not 1238.
pub const ARKLET_PORT: &str = "stowage.dev/arklet-port";
/// Base Pod annotation: declared capabilities, `name=version` pairs joined by commas.
pub const PROVIDES: &str = "stowage.dev/provides";
/// Annotation of base Pods and module Pods: declared web context path.
pub const CONTEXT_PATH: &str = "stowage.dev/context-path";
/// Base Pod annotation: name of the container that is the base.
pub const CONTAINER: &str = "stowage.dev/container";
/// Base Pod annotation: `ignore` opts out of self-healing.
pub const OVERLOAD: &str = "stowage.dev/overload";
/// Value of [`OVERLOAD`].
pub const OVERLOAD_IGNORE: &str = "ignore";
/// Label of base Pods, and so of their `VNode`s: `true` where an agent of its own, a container of that Pod, looks after
/// the base.
pub const SIDECAR: &str = "stowage.dev/sidecar";
/// Value of [`SIDECAR`].
pub const SIDECAR_YES: &str = "true";
/// Readiness gate of base Pods: every module meant for the base is ready.
pub const MODULES_READY_GATE: &str = "stowage.dev/modules-ready";

/// `VNode` annotation: `<namespace>/<pod>` of the base.
pub const BASE: &str = "stowage.dev/base";
/// `VNode` annotation: UID of the base Pod.
pub const BASE_UID: &str = "stowage.dev/base-uid";
/// Label of everything we create: which base cluster the base lives in.
pub const BASE_CLUSTER: &str = "stowage.dev/base-cluster";
/// Cluster id where none is given.
pub const DEFAULT_CLUSTER: &str = "default";
/// `VNode` annotation: `<workload>/<hash>@<creation time of the base Pod>`.
pub const BASE_REVISION: &str = "stowage.dev/base-revision";
/// `VNode` label: the real node under the base.
pub const HOST: &str = "stowage.dev/host";
/// `VNode` label: zone of the real node.
pub const ZONE: &str = "stowage.dev/zone";
/// `VNode` label: first part of the base version, an integer.
pub const VERSION_MAJOR: &str = "stowage.dev/version-major";
/// `VNode` label: second part of the base version, an integer.
pub const VERSION_MINOR: &str = "stowage.dev/version-minor";
/// `VNode` annotation: what is on the base, see [`super::inventory`].
pub const INVENTORY: &str = "stowage.dev/inventory";
/// Annotation of `VNode`s: how far the healing of the base has come. On the agent's Lease: healed bases whose successors are
/// not complete yet.
pub const HEALING: &str = "stowage.dev/healing";
/// Annotation of `VNode`s and namespaces: `"true"` stops installs, uninstalls, evictions and healing.
pub const PAUSED: &str = "stowage.dev/paused";

/// Pod label that marks module Pods for admission.
pub const MODULE_POD: &str = "stowage.dev/module-pod";
/// Module Pod annotation: stack of the base that is wanted.
pub const WANTED_STACK: &str = "stowage.dev/stack";
/// Module Pod annotation: range of base versions that is wanted.
pub const WANTED_BASE_VERSION: &str = "stowage.dev/base-version";
/// Module Pod annotation: capabilities and modules that must be there.
pub const REQUIRES: &str = "stowage.dev/requires";
/// Module Pod annotation: modules that must not be there.
pub const CONFLICTS: &str = "stowage.dev/conflicts";
/// Module Pod annotation: metaspace the Pod's modules need, a quantity.
pub const METASPACE: &str = "stowage.dev/metaspace";
/// Annotation of module Pods and their controllers: a changed value forgets remembered failures.
pub const RETRY: &str = "stowage.dev/retry";
/// Deployment annotation: `bases` makes the replicas follow the bases.
pub const SCALE: &str = "stowage.dev/scale";
/// Value of [`SCALE`].
pub const SCALE_BASES: &str = "bases";
/// Module Pod annotation: when the extender last woke the Pod. Nobody reads it; the write itself is the message.
pub const NUDGED: &str = "stowage.dev/nudged";
/// Namespace label: `enabled` turns admission of marked Pods on.
pub const MODULES: &str = "stowage.dev/modules";
/// Annotation of the agent's Lease: `release` lets the brake go once.
pub const BRAKE: &str = "stowage.dev/brake";

/// Label of everything we create.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGER: &str = "stowage";

/// Condition of a `VNode`: the metaspace of its base is short.
pub const METASPACE_PRESSURE: &str = "MetaspacePressure";
/// Scheduler of module Pods.
pub const SCHEDULER: &str = "stowage-scheduler";
/// Scheme of a `VNode`'s provider id.
pub const PROVIDER_SCHEME: &str = "stowage://";

/// Label of Pods made from a `ReplicaSet`'s template.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
/// Label of Pods made from a `DaemonSet`'s or `StatefulSet`'s template.
pub const CONTROLLER_REVISION_HASH: &str = "controller-revision-hash";
/// Label: name of the host, at most 63 characters.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
