//! What the end-to-end tests stand on: a real control plane, base Pods that a small kubelet runs with simulated
//! arklets inside, our programs as processes, and ways to break each of them.
//!
//! | module | what it offers |
//! |---|---|
//! | [`controlplane`] | etcd, kube-apiserver, kube-controller-manager, kube-scheduler: shared or one's own; stop, pause, restart; kubeconfigs per user and service account; more schedulers |
//! | [`namespace`] | a Kubernetes namespace per test, kept apart from other tests on the same control plane |
//! | [`kubelet`] | plain Nodes that run base Pods by a [`kubelet::Runtime`]; readiness, restarts, crashes, silent nodes |
//! | [`arklet`], [`artifact`] | the simulated base and the module jars it installs |
//! | [`program`] | `stowage-agent` and `stowage-extender` as processes: kill, pause, restart, logs |
//! | [`proxy`] | an API server that fails on demand, for one client |
//! | [`kubectl`] | what users type |
//! | [`wait`] | conditions with a limit and a failure that says what was last seen |
//! | [`network`] | addresses of bases, free ports |
//! | [`fetch`] | plain HTTP requests |
//! | [`samples`] | what a program shows at `/metrics` |
//! | [`load`] | constant load on a Service, and every request that was lost |
//! | [`TestResult`] | what tests return: failures that can be read |
//! | [`demo`] | `make demo` |
//! | [`stage`] | all of this set up for a test of the whole path |
//!
//! A test lies in `tests/tests/e2e_<subject>.rs` (the prefix gives its binary a network namespace) and looks like this:
//!
//! ```no_run
//! use std::time::Duration;
//! use harness::{
//!     controlplane::ControlPlane,
//!     kubelet::{Idle, Kubelet},
//!     wait, TestResult,
//! };
//! use k8s_openapi::api::core::v1::Pod;
//! use kube::Api;
//!
//! #[tokio::test]
//! async fn a_base_runs() -> TestResult {
//!     let cluster = ControlPlane::shared().await?; // started once per test binary
//!     let namespace = cluster.namespace("example").await?; // first: dropped last
//!     let kubelet = Kubelet::start(cluster.client()?, namespace.scope(), Idle).await?;
//!     kubelet.add_node("node-a").await?; // called kubelet.node_name("node-a") in the API
//!     namespace.kubectl(cluster)?.run(&["run", "base", "--image=base"]).await?;
//!     let pods: Api<Pod> = Api::namespaced(cluster.client()?, namespace.name());
//!     wait::object(&pods, "base", "Ready Pod", Duration::from_secs(20), |pod| {
//!         pod.is_some_and(harness::kubelet::is_ready)
//!     })
//!     .await?;
//!     Ok(())
//! }
//! # fn main() {}
//! ```
//!
//! Rules: tests of one binary run side by side on one control plane, so a test uses its own namespace, its own
//! `--base-cluster-id` and, with a scheduler of its own, its own `schedulerName`. It never sleeps; it waits by
//! [`wait`]. Logs of all processes stay in a folder whose path is printed when a test failed (`STOWAGE_KEEP_LOGS=1`:
//! always). No process outlives the test binary, whatever ends it.

pub mod arklet;
pub mod artifact;
pub mod controlplane;
pub mod demo;
mod failure;
pub mod fetch;
pub mod kubectl;
pub mod kubelet;
mod leash;
pub mod load;
pub mod logs;
pub mod namespace;
pub mod network;
pub mod priority;
pub mod process;
pub mod program;
pub mod proxy;
pub mod samples;
pub mod stage;
pub mod usage;
pub mod wait;
pub mod workdir;

pub use failure::{Failure, TestResult};
