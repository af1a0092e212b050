//! kubectl, as users run it.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use tokio::{io::AsyncWriteExt, process::Command};

use crate::controlplane::binaries::{Binaries, BinariesError, Component};

/// Why a kubectl command failed.
#[derive(Debug, thiserror::Error)]
pub enum KubectlError {
    /// There is no kubectl.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// It could not be run.
    #[error("kubectl could not be run: {0}")]
    Run(#[from] io::Error),
    /// It failed.
    #[error("kubectl {command} failed: {stderr}{stdout}")]
    Failed {
        /// Its arguments.
        command: String,
        /// What it said.
        stderr: String,
        /// What it printed.
        stdout: String,
    },
}

/// kubectl with one kubeconfig. Each call is a process of about 0.2 s; use the [`kube::Client`] in loops.
#[derive(Debug, Clone)]
pub struct Kubectl {
    binaries: &'static Binaries,
    kubeconfig: PathBuf,
    home: PathBuf,
    namespace: Option<String>,
}

impl Kubectl {
    pub(crate) fn new(binaries: &'static Binaries, kubeconfig: &Path, home: &Path) -> Self {
        Self { binaries, kubeconfig: kubeconfig.to_owned(), home: home.to_owned(), namespace: None }
    }

    /// The same in another namespace than `default`.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Runs it and returns its standard output; an exit code other than 0 is an error with all it said.
    ///
    /// ```no_run
    /// # async fn example(kubectl: harness::kubectl::Kubectl) -> Result<(), harness::kubectl::KubectlError> {
    /// kubectl.run(&["rollout", "undo", "deployment/shop"]).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run(&self, args: &[&str]) -> Result<String, KubectlError> {
        self.run_with_input(args, "").await
    }

    /// `kubectl apply -f -` of one or more YAML documents.
    pub async fn apply(&self, yaml: &str) -> Result<String, KubectlError> {
        self.run_with_input(&["apply", "-f", "-"], yaml).await
    }

    /// The same as [`run`](Self::run) with a standard input.
    pub async fn run_with_input(&self, args: &[&str], input: &str) -> Result<String, KubectlError> {
        let output = self.output(args, input).await?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(stdout);
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(KubectlError::Failed { command: args.join(" "), stderr, stdout })
    }

    /// Exit code and both outputs (warnings of admission policies are on the standard error), whatever they are.
    pub async fn output(&self, args: &[&str], input: &str) -> Result<Output, KubectlError> {
        let mut command = Command::from(self.binaries.command(Component::Kubectl)?);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        let mut child = command
            .args(args)
            .env("HOME", &self.home)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take()
            && let Err(error) = stdin.write_all(input.as_bytes()).await
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            // A kubectl that ends without reading says why in its output.
            return Err(error.into());
        }
        Ok(child.wait_with_output().await?)
    }
}
