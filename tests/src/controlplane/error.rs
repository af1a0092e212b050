use std::{io, path::PathBuf};

use super::binaries::BinariesError;
use crate::{network::NetworkError, process::ProcessError, wait::TimedOut};

/// Why a control plane did not start or do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// A program is missing and cannot be built.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// No port or address.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A file could not be written.
    #[error("a file of the control plane could not be written: {0}")]
    File(#[from] io::Error),
    /// A certificate could not be made.
    #[error("a certificate could not be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A process could not be started or signalled.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It ended while it should start.
    #[error("{name} ended at its start; the end of its log {log_file}:\n{log}")]
    Ended {
        /// The process.
        name: String,
        /// Its log file.
        log_file: PathBuf,
        /// The last lines.
        log: String,
    },
    /// It did not become ready.
    #[error("{name} is not ready: {timed_out}; the end of its log {log_file}:\n{log}")]
    NotReady {
        /// The process.
        name: String,
        /// What was waited for.
        timed_out: Box<TimedOut>,
        /// Its log file.
        log_file: PathBuf,
        /// The last lines.
        log: String,
    },
    /// What was waited for did not come.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// No client could be made.
    #[error("a client could not be made: {0}")]
    Client(#[source] Box<kube::Error>),
    /// The kubeconfig is not usable.
    #[error("a kubeconfig could not be read: {0}")]
    Kubeconfig(#[source] Box<kube::config::KubeconfigError>),
    /// The API server refused something the harness needs.
    #[error("the API server refused to {action}: {source}")]
    Api {
        /// What was tried.
        action: &'static str,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// The component was not started with this control plane.
    #[error("this control plane runs no {0}")]
    NotRunning(&'static str),
    /// A scheduler configuration that is no YAML mapping.
    #[error("the scheduler configuration is no YAML mapping: {0}")]
    SchedulerConfiguration(String),
}

impl From<kube::config::KubeconfigError> for ControlPlaneError {
    fn from(error: kube::config::KubeconfigError) -> Self {
        Self::Kubeconfig(Box::new(error))
    }
}

impl ControlPlaneError {
    pub(crate) fn api(action: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { action, source: Box::new(source) }
    }
}
