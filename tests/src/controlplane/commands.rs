//! The command lines of the components: pure, given ports and files.

use std::path::{Path, PathBuf};

use super::Options;

/// Where everything of one control plane lies and listens.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) workdir: PathBuf,
    pub(crate) etcd_data: PathBuf,
    pub(crate) etcd_client: u16,
    pub(crate) etcd_peer: u16,
    pub(crate) apiserver: u16,
    pub(crate) controller_manager: u16,
    pub(crate) scheduler: u16,
}

impl Layout {
    fn file(&self, name: &str) -> String {
        self.workdir.join(name).display().to_string()
    }

    pub(crate) fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.apiserver)
    }

    pub(crate) fn etcd(&self) -> Vec<String> {
        let (client, peer) = (
            format!("http://127.0.0.1:{}", self.etcd_client),
            format!("http://127.0.0.1:{}", self.etcd_peer),
        );
        vec![
            format!("--data-dir={}", self.etcd_data.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ]
    }

    pub(crate) fn apiserver(&self, options: &Options) -> Vec<String> {
        let mut args = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_client),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.apiserver),
            format!("--tls-cert-file={}", self.file("apiserver.crt")),
            format!("--tls-private-key-file={}", self.file("apiserver.key")),
            format!("--client-ca-file={}", self.file("ca.crt")),
            format!("--kubelet-client-certificate={}", self.file("kubelet-client.crt")),
            format!("--kubelet-client-key={}", self.file("kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", self.file("service-accounts.pub")),
            format!("--service-account-signing-key-file={}", self.file("service-accounts.key")),
            "--profiling=false".to_owned(),
        ];
        if !options.controller_manager {
            // Nobody makes the service accounts that it asks for.
            args.push("--disable-admission-plugins=ServiceAccount".to_owned());
        }
        args.extend_from_slice(&options.apiserver_args);
        args
    }

    pub(crate) fn controller_manager(&self, options: &Options) -> Vec<String> {
        let kubeconfig = self.file("controller-manager.kubeconfig");
        let controllers = if options.allocate_node_cidrs.is_some() { "*" } else { "*,-node-ipam-controller" };
        let mut args = vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.controller_manager),
            "--leader-elect=false".to_owned(),
            format!("--controllers={controllers}"),
            "--use-service-account-credentials=true".to_owned(),
            // By default 20 requests per second: starting alone would take seconds longer.
            "--kube-api-qps=100".to_owned(),
            "--kube-api-burst=200".to_owned(),
            format!("--service-account-private-key-file={}", self.file("service-accounts.key")),
            format!("--root-ca-file={}", self.file("ca.crt")),
            "--profiling=false".to_owned(),
        ];
        if let Some(range) = &options.allocate_node_cidrs {
            args.extend(["--allocate-node-cidrs=true".to_owned(), format!("--cluster-cidr={range}")]);
        }
        if let Some(grace) = options.node_monitor_grace_period {
            args.push(format!("--node-monitor-grace-period={}ms", grace.as_millis()));
        }
        if let Some(period) = options.node_monitor_period {
            args.push(format!("--node-monitor-period={}ms", period.as_millis()));
        }
        args.extend_from_slice(&options.controller_manager_args);
        args
    }

    pub(crate) fn scheduler(&self, options: &Options) -> Vec<String> {
        let kubeconfig = self.file("scheduler.kubeconfig");
        let mut args = vec![format!("--kubeconfig={kubeconfig}"), "--leader-elect=false".to_owned()];
        args.extend(scheduler_serving(self.scheduler, Path::new(&kubeconfig)));
        args.extend_from_slice(&options.scheduler_args);
        args
    }
}

/// What every kube-scheduler needs, whether configured by flags or by a file.
pub(crate) fn scheduler_serving(port: u16, kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--authentication-kubeconfig={}", kubeconfig.display()),
        format!("--authorization-kubeconfig={}", kubeconfig.display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
    ]
}
