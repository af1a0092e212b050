use std::{fmt, io};

use crate::{
    arklet::SimulatorError, artifact::ServerError, controlplane::ControlPlaneError, kubectl::KubectlError,
    kubelet::KubeletError, network::NetworkError, program::ProgramError, wait::TimedOut,
};

/// Why a stage could not be set up or do what it was told. `{:?}` prints like `{}`, so that `unwrap` in a test is
/// readable.
#[derive(thiserror::Error)]
pub enum StageError {
    /// The control plane.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// A program of ours.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// kubectl.
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    /// The kubelet.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// The server of module jars.
    #[error(transparent)]
    Artifacts(#[from] ServerError),
    /// A simulated base.
    #[error(transparent)]
    Simulator(#[from] SimulatorError),
    /// No address or port.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A file.
    #[error("a file of the stage: {0}")]
    File(#[from] io::Error),
    /// The API server refused a request.
    #[error("the API server: {0}")]
    Api(Box<kube::Error>),
    /// What was waited for did not come.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// The shipped manifests are not as expected.
    #[error("the shipped manifests: {0}")]
    Shipped(String),
    /// No base Pod of this name was ever started.
    #[error("no base Pod {name} was ever started; there are: {known}")]
    NoSuchBase {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Only a simulated base has this.
    #[error("the base {0} is a command of the user's, not a simulator")]
    NotSimulated(String),
    /// A promise was broken.
    #[error("{0}")]
    Broken(String),
}

impl From<kube::Error> for StageError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl fmt::Debug for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
