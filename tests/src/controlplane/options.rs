use std::time::Duration;

/// How a control plane is to be. The default has all components, as a cluster has them.
///
/// Arguments given here come after the harness' own, so that they win.
#[derive(Debug, Clone)]
pub struct Options {
    /// For log folders and messages.
    pub name: String,
    /// Whether kube-controller-manager runs. Without it nothing scales, rolls or is evicted, no Service finds its
    /// Pods, silent Nodes stay as they are, and Pods run without a service account.
    pub controller_manager: bool,
    /// Whether the default kube-scheduler runs.
    pub scheduler: bool,
    /// After how much silence a Node turns Unknown; Kubernetes' default is 50 s.
    pub node_monitor_grace_period: Option<Duration>,
    /// How often the node controller looks; Kubernetes' default is 5 s.
    pub node_monitor_period: Option<Duration>,
    /// Whether the controller manager hands Pod CIDRs (/24 out of this /16, say) to Nodes, VNodes included.
    pub allocate_node_cidrs: Option<String>,
    /// More arguments of kube-apiserver.
    pub apiserver_args: Vec<String>,
    /// More arguments of kube-controller-manager.
    pub controller_manager_args: Vec<String>,
    /// More arguments of the default kube-scheduler.
    pub scheduler_args: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "cluster".to_owned(),
            controller_manager: true,
            scheduler: true,
            node_monitor_grace_period: None,
            node_monitor_period: None,
            allocate_node_cidrs: None,
            apiserver_args: Vec::new(),
            controller_manager_args: Vec::new(),
            scheduler_args: Vec::new(),
        }
    }
}

impl Options {
    /// The default under a name.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// etcd and kube-apiserver alone: enough for a base cluster whose Pods the test binds itself (`spec.nodeName`), and
    /// fast.
    pub fn api_only(name: &str) -> Self {
        Self { controller_manager: false, scheduler: false, ..Self::named(name) }
    }
}
